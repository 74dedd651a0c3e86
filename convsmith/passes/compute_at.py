"""Compute a buffer where it is read: the nest that writes it moves under a loop of the nest that reads it.

Each iteration of the loop computes the footprint of its reads only (bounds inference), and the buffer shrinks to it.
Where consecutive iterations read overlapping rows, the halo, the buffer can be circular: it keeps the rows that the
next iteration reads again, each iteration computes only its new rows, and a nest before the loop computes the halo of
the first.

A nest before the loop may read the buffer too, for example to compute the halo of another buffer. It then has its own
buffer, and the elements that it reads are computed right before it.

The rewrite relies on four facts, and checks them: the statement that writes the buffer is a nest that writes nothing
else and does not read it; it writes one element per iteration; one later statement reads the buffer, and only under the
loop or in nests right before it; and neither the reader nor a statement that the nest moves across writes an element
that the nest reads. The dependence test decides the last condition. A dim is cut to the footprint where a loop of the
nest is its coordinate; any other dim is computed whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convsmith.arith.ranges import Range, Unbounded
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, maximum, minimum, mod
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, Block, Call, For, Invoke, Kernel, Let, PointerLoad, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import bound_in, statements_of, variables_of, walk
from convsmith.passes.accesses import Site, sites_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.footprint import box, dense_blocks
from convsmith.passes.order import require_independent
from convsmith.passes.relocate import Place, Relocate
from convsmith.passes.scope import (
    ScopedRewriter,
    loop_range,
    perfect_nest,
    ranges_below,
    require_loops,
    require_no_effects,
    with_body,
    wrap,
)


def _refuse(why: str) -> ConfigError:
    return ConfigError("compute-at", f"compute_at: {why}")


@record(frozen=True)
class _Producer:
    """The nest that writes `buffer`; `cuts` has for each dim the loop that is its coordinate, or None.

    A dim without its own loop is computed completely.
    """

    buffer: Buffer
    loops: list[For]
    body: Stmt
    cuts: tuple[For | None, ...]

    @staticmethod
    def of(buffer: Buffer, s: Stmt) -> _Producer:
        """Return the nest of `s`; ConfigError unless it only writes one element of `buffer` per iteration."""
        if not isinstance(s, For):
            raise _refuse(f"{buffer} is not written by a nest of loops")
        loops, body = perfect_nest(s)
        if any(x.kind == "parallel" or x.carried for x in loops):
            raise _refuse(f"a loop of the nest that writes {buffer} is parallel already")
        own = {x.buffer for x in statements_of(s) if isinstance(x, Alloc)}
        stores = [x for x in statements_of(s) if isinstance(x, Store) and x.buffer not in own]
        if other := [x.buffer for x in stores if x.buffer is not buffer]:
            raise _refuse(f"the nest that writes {buffer} writes {other[0]} too")
        if any(isinstance(x, Load) and x.buffer is buffer for x in walk(s)):
            raise _refuse(f"the nest that writes {buffer} reads it too")
        index, *others = dict.fromkeys(x.index for x in stores)
        if others:
            raise _refuse(f"{buffer} is written at {_place(buffer, index)} and at {_place(buffer, others[0])}")
        by_var: dict[Index, For] = {x.var: x for x in loops if not variables_of(x.lo) | variables_of(x.hi)}
        return _Producer(buffer, loops, body, tuple(by_var.pop(i, None) for i in index))

    def over(self, rows: Mapping[Var, tuple[Index, Index]], store: Rewriter) -> Stmt:
        """Return the nest with loops cut to `rows`, (first coordinate, number), and its stores rewritten."""
        shift = {var: start + var for var, (start, _) in rows.items()}
        body = substitute(store.stmt(self.body), shift)
        loops = []
        for x in self.loops:
            if x.var in rows:
                lo, hi = as_index(0), rows[x.var][1]
            else:
                lo, hi = substitute(x.lo, shift), substitute(x.hi, shift)
            loops.append(For(x.var, lo, hi, body, x.kind))
        return wrap(loops, body)


def _place(buffer: Buffer, index: tuple[Index, ...]) -> str:
    return f"{buffer}[{', '.join(map(str, index))}]"


def _into(old: Buffer, new: Buffer, origin: Place, circular: int | None = None) -> Relocate:
    """Return the rewriter that accesses ``new`` instead of ``old``: coordinates are relative to ``origin``, and taken
    modulo the size along a ``circular`` dim.
    """

    def place(index: Place) -> Place:
        return tuple(
            mod(i, new.shape[dim]) if dim == circular else i - start
            for dim, (i, start) in enumerate(zip(index, origin))
        )  # fmt: skip

    return Relocate(old, new, place)


@record(frozen=True)
class _Interval:
    """The `size` coordinates from `first` on of a dim, which an iteration reads; `loop` of the producer moves them."""

    loop: For
    first: Index
    size: int

    def step(self, var: Var) -> int:
        """Return the distance that an iteration of `var` moves the interval; 0 if the distance is not constant."""
        coefficients = dict(self.first.terms)
        step = coefficients.pop(var, 0)
        return 0 if any(var in variables_of(atom) for atom in coefficients) else step


class _ComputeAt(ScopedRewriter):
    """Moves the producer into `loop`, wherever `loop` is in the rewritten statement."""

    def __init__(self, producer: _Producer, loop: str, rolling: bool) -> None:
        super().__init__()
        self.producer, self.loop, self.rolling = producer, loop, rolling
        self.reached = 0

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        self._note(loop.body)
        try:
            return _moved(self.producer, loop, self.rolling, self.ranges)
        except Unbounded as unknown:
            raise _refuse(f"what {loop.var} reads of {self.producer.buffer} depends on {unknown.args[0]}") from None

    def visit_Block(self, s: Block) -> Stmt:
        return block(*map(self._before, s.stmts)) if self._has_loop(s) else self._Block(s)

    def _has_loop(self, s: Stmt) -> bool:
        return any(isinstance(x, For) and x.var.name == self.loop for x in statements_of(s))

    def _before(self, s: Stmt) -> Stmt:
        """Return a statement that contains the loop or precedes it; a preceding reader of the buffer gets a nest before
        it that computes the elements that it reads.
        """
        if self._has_loop(s) or self.producer.buffer not in _read(s):
            return self.stmt(s)
        self._note(s)
        return _computed_before(self.producer, s, self.ranges)

    def _note(self, s: Stmt) -> None:
        self.reached += sum(isinstance(x, Load) and x.buffer is self.producer.buffer for x in walk(s))


def _moved(producer: _Producer, loop: For, rolling: bool, outer: dict[Var, Range]) -> Stmt:
    """Return the loop with a nest that computes the elements that its iterations read; `outer` are the ranges around
    it.
    """
    old = producer.buffer
    ranges = {**outer, loop.var: loop_range(loop, outer)}
    parts = _footprint(producer, loop.body, ranges, str(loop.var), loop.var)
    rolled = _rolled(parts, loop) if rolling else None
    shape = [old.shape[dim] if dim not in parts else parts[dim].size for dim in range(len(old.shape))]
    if rolled is not None:
        shape[rolled] = 1 << (shape[rolled] - 1).bit_length()  # a power of two, so that the modulo is a bitwise "and"
    new = Buffer(old.name, old.dtype, tuple(shape), dense_blocks(old.blocks, shape), "cache")
    origin = tuple(parts[dim].first if dim in parts else as_index(0) for dim in range(len(shape)))
    redirect = _into(old, new, origin, rolled)

    def computed(parts: Mapping[int, _Interval], ranges: Mapping[Var, Range]) -> Stmt:
        rows = {part.loop.var: _cut(part, ranges) for part in parts.values()}
        return producer.over(rows, redirect)

    reading = redirect.stmt(loop.body)
    if rolled is None:
        body: Stmt = Alloc(new, block(computed(parts, ranges), reading))
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)
    part = parts[rolled]
    halo = part.size - part.step(loop.var)
    warm = replace(part, first=substitute(part.first, {loop.var: loop.lo}), size=halo)
    fresh = replace(part, first=part.first + halo, size=part.size - halo)
    body = block(computed({**parts, rolled: fresh}, ranges), reading)
    again = For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)
    return Alloc(new, block(computed({**parts, rolled: warm}, outer), again))


def _computed_before(producer: _Producer, reader: Stmt, ranges: dict[Var, Range]) -> Stmt:
    """Return the nest `reader` preceded by a nest that computes the elements that it reads; `ranges` are the ranges
    around it.
    """
    old, parts = producer.buffer, _footprint(producer, reader, ranges, str(producer.buffer))
    shape = [old.shape[dim] if dim not in parts else parts[dim].size for dim in range(len(old.shape))]
    new = Buffer(old.name, old.dtype, tuple(shape), dense_blocks(old.blocks, shape), "cache")
    origin = tuple(parts[dim].first if dim in parts else as_index(0) for dim in range(len(shape)))
    redirect = _into(old, new, origin)
    rows = {part.loop.var: _cut(part, ranges) for part in parts.values()}
    return Alloc(new, block(producer.over(rows, redirect), redirect.stmt(reader)))


def _footprint(
    producer: _Producer, reader: Stmt, ranges: Mapping[Var, Range], what: str, moving: Var | None = None
) -> dict[int, _Interval]:
    """Return the coordinates that `reader` reads, for each dim of the buffer that is not computed completely.

    A dim is computed completely if `reader` reads all of it and the coordinates do not depend on `moving`. `what` names
    reader and buffer in messages.
    """
    old = producer.buffer
    reads = [x for x in walk(reader) if isinstance(x, Load) and x.buffer is old]
    inner = ranges_below(reader, ranges)
    out = {}
    for dim, cut in enumerate(producer.cuts):
        if cut is None or not reads:
            continue
        base, lo, hi = box([r.index[dim] for r in reads], ranges, inner, f"{old} along dim {dim}")
        if hi < lo:
            raise _refuse(f"{what} reads nothing of {old}")
        if hi - lo + 1 < old.shape[dim] or moving in variables_of(base):
            out[dim] = _Interval(cut, base + lo, hi - lo + 1)
    return out


def _rolled(parts: Mapping[int, _Interval], loop: For) -> int | None:
    """Return the dim along which consecutive iterations of `loop` overlap, if there is one."""
    moving = [dim for dim, part in parts.items() if loop.var in variables_of(part.first)]
    if len(moving) != 1 or not 0 < parts[moving[0]].step(loop.var) < parts[moving[0]].size:
        return None
    if loop.kind == "parallel":
        raise _refuse(f"iterations of the parallel loop {loop.var} cannot keep rows for each other")
    return moving[0]


def _cut(part: _Interval, ranges: Mapping[Var, Range]) -> tuple[Index, Index]:
    """Return the first coordinate and the number of the iterations of the loop that are in the interval."""
    loop, end = part.loop, part.first + part.size
    start = simplify(maximum(part.first, loop.lo), ranges)
    number = minimum(part.size, end - loop.lo, loop.hi - part.first, loop.hi - loop.lo)
    return start, simplify(number, ranges)


@stages(*LOOPS)
def compute_at(kernel: Kernel, buffer: str, loop: str, rolling: bool = True) -> Kernel:
    """Move the nest that writes `buffer` into `loop` of the nest that reads it; `buffer` shrinks to the footprint.

    With `rolling`, the buffer is circular if iterations overlap, so no row is computed twice. Otherwise each iteration
    recomputes its halo.

    Before::

        kernel k(a: f32[8], b: f32[6])
          alloc t: f32[8] @cache:
            for x in 0 .. 8:
              t[x] = a[x] * a[x]
            for i in 0 .. 6:
              b[i] = t[i] + t[i + 2]

    After ``compute_at("t", "i")``::

        kernel k(a: f32[8], b: f32[6])
          alloc t: f32[4] @cache:
            for x in 0 .. 2:
              t[x % 4] = a[x] * a[x]
            for i in 0 .. 6:
              for x in 0 .. 1:
                t[(i + x + 2) % 4] = a[i + x + 2] * a[i + x + 2]
              b[i] = t[i % 4] + t[(i + 2) % 4]
    """
    require_no_effects(kernel, "compute_at")
    require_loops(kernel, (loop,), "compute_at")
    moving = _Moving(buffer, loop, rolling)
    body = moving.stmt(kernel.body)
    if not moving.found:
        raise _refuse(f"kernel {kernel.name} allocates no {buffer}, or not around statements that write and read it")
    return with_body(kernel, body)


class _Moving(ScopedRewriter):
    """Rewrites the allocation of the buffer."""

    def __init__(self, buffer: str, loop: str, rolling: bool) -> None:
        super().__init__()
        self.buffer, self.loop, self.rolling = buffer, loop, rolling
        self.found = False

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if s.buffer.name != self.buffer or not isinstance(s.body, Block):
            return self._Alloc(s)
        self.found = True
        _check_stage(s)
        writes = [x for x in s.body.stmts if s.buffer in _written(x)]
        reads = [x for x in s.body.stmts if s.buffer in _read(x)]
        for what, found in (("written", writes), ("read", reads)):
            if len(found) != 1:
                raise _refuse(f"{s.buffer} is {what} by {len(found)} statements; legal is one")
        (writer,), (reader,) = writes, reads
        producer = _Producer.of(s.buffer, writer)
        before, after = s.body.stmts.index(writer), s.body.stmts.index(reader)
        if before >= after:
            raise _refuse(f"{s.buffer} is read before it is written")
        moved_over = Block(s.body.stmts[before : after + 1])

        def is_moved_over(a: Site, b: Site) -> bool:
            return a.path[0] == 0 != b.path[0] and a.access.buffer is not s.buffer

        require_independent("compute_at", sites_of(moved_over, self.ranges), self.ranges, is_moved_over)
        if clash := sorted(v.name for v in bound_in(writer) & bound_in(reader)):
            raise _refuse(f"a loop of both nests is called {clash[0]}")
        into = _ComputeAt(producer, self.loop, self.rolling)
        into.ranges = self.ranges
        moved = into.stmt(reader)
        every = sum(isinstance(x, Load) and x.buffer is s.buffer for x in walk(reader))
        if into.reached != every:
            raise _refuse(f"{every - into.reached} of {every} reads of {s.buffer} are not within loop {self.loop}")
        return block(*(moved if x is reader else x for x in s.body.stmts if x is not writer))


def _check_stage(s: Alloc) -> None:
    """Raise ConfigError if accesses have lanes, or statements other than stores write memory."""
    nodes = walk(s)
    opaque = (PointerLoad, Call, Invoke, Let)
    if any(isinstance(x, opaque) or (isinstance(x, (Load, Store)) and x.lanes) for x in nodes):
        raise _refuse(f"statements within {s.buffer} have lanes, pointers or functions; legal are scalar nests")


def _written(s: Stmt) -> set[Buffer]:
    return {x.buffer for x in statements_of(s) if isinstance(x, Store)}


def _read(s: Stmt) -> set[Buffer]:
    return {x.buffer for x in walk(s) if isinstance(x, Load)}
