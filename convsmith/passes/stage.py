"""Stage the footprint of a loop's body in a copy, halo and padding included.

The footprint is, for each dim of the buffer, the range of coordinates that one iteration of the loop reads.  The copy
holds zero for coordinates outside the buffer, so the mask moves from every access into the copy.  An absent term
becomes a product with a stored zero, which has the same value if the other factor is finite.  An exact copy holds only
elements that exist; masks stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

import numpy as np

from convsmith.arith.evaluate import holds
from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, dense
from convsmith.ir.index import Cond, Index, Var, as_index, conj, is_true, maximum, minimum, parts_of
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import FENCES, Alloc, Block, For, Kernel, Stmt, Store, block
from convsmith.ir.types import DType
from convsmith.ir.value import Cast, Load, Select, Value, const
from convsmith.ir.walk import children, variables_of, walk
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.footprint import box, dense_blocks
from convsmith.passes.relocate import Place, Relocate
from convsmith.passes.scope import (
    ScopedRewriter,
    loop_range,
    ranges_below,
    require_loops,
    require_new_buffer,
    require_no_effects,
    with_body,
)

MAX_POINTS = 1 << 22
"""Maximum number of points at which two conditions are compared."""


class LoadsOfCopy(Relocate):
    """Redirects loads to the ``place`` of their index in the copy, and drops the conditions that it has evaluated.

    Conditions are compared after simplification under ``ranges``, or by their values, because earlier simplification
    may have rewritten them. A condition that keeps another load within its buffer stays.
    """

    def __init__(self, old: Buffer, new: Buffer, place: Callable[[Place], Place], ranges: Mapping[Var, Range]) -> None:
        super().__init__(old, new, place)
        self.ranges = ranges

    def visit_Cast(self, v: Cast) -> Value:
        is_read = isinstance(v.a, Load) and v.a.buffer is self.old
        return self.expr(v.a) if is_read and self.new.dtype is v.dtype else self._Cast(v)

    def visit_Select(self, v: Select) -> Value:
        inside: set[Cond] = set()
        others: set[Cond] = set()
        for x in walk(v.yes):
            if isinstance(x, Load):
                bounds = (simplify(c, self.ranges) for i, n in zip(x.index, x.buffer.shape) for c in (i >= 0, i < n))
                (inside if x.buffer is self.old else others).update(c for c in bounds if not is_true(c))
        parts = [(p, simplify(p, self.ranges)) for p in parts_of(v.cond)]
        if others <= {simple for _, simple in parts}:
            ranges = self.ranges
            parts = [(p, simple) for p, simple in parts if simple in others or not is_implied(simple, inside, ranges)]
        cond = conj(p for p, _ in parts)
        yes = self.expr(v.yes)
        return yes if is_true(cond) else Select(cond, yes, v.no)


def is_implied(cond: Cond, by: Collection[Cond], ranges: Mapping[Var, Range]) -> bool:
    """Return whether ``cond`` is one of the conditions ``by``, or holds wherever one of them does under ``ranges``."""
    if cond in by:
        return True
    names = variables_of(cond)
    for c in by:
        used = sorted(names | variables_of(c), key=str)
        if not names & variables_of(c) or prod(hi - lo + 1 for lo, hi in map(ranges.__getitem__, used)) > MAX_POINTS:
            continue
        grids = np.meshgrid(*(np.arange(lo, hi + 1) for lo, hi in map(ranges.__getitem__, used)), sparse=True)
        values = dict(zip(used, grids))
        if not np.any(np.asarray(holds(c, values)) & ~np.asarray(holds(cond, values))):
            return True
    return False


class _Stage(ScopedRewriter):
    def __init__(
        self, buffer: str, loop: str, innermost: int | None, fill: int, scope: str, width: int, exact: bool,
        masked: bool, convert: bool, multiple: int, count: int | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.multiple, self.count = multiple, count
        self.buffer, self.loop, self.innermost, self.fill = buffer, loop, innermost, fill
        self.scope, self.width, self.exact, self.masked, self.convert = scope, width, exact, masked, convert

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        reads = [x for x in walk(loop.body) if isinstance(x, Load) and x.buffer.name == self.buffer]
        if not reads:
            return loop
        old = reads[0].buffer
        if any(x.lanes is not None for x in reads):
            raise ConfigError("lanes", f"stage: {self.loop} reads vectors of {old}; legal is to stage single elements")
        if old in written_in(loop.body):
            raise ConfigError(
                "dependence", f"stage: {old}[...] = ... and ... {reads[0]}: a copy at the start of an iteration of "
                f"{loop.var} lacks what the iteration writes; legal are buffers that it only reads",
            )  # fmt: skip
        ranges: dict[Var, Range] = {**self.ranges, loop.var: loop_range(loop, self.ranges)}
        inner = ranges_below(loop.body, ranges)
        origin, shape = [], []
        for dim in range(len(old.shape)):
            base, lo, hi = box([r.index[dim] for r in reads], ranges, inner, f"{self.buffer} along dim {dim}")
            if self.exact and base.is_const:
                lo, hi = max(lo, 0), min(hi, old.shape[dim] - 1)
            origin.append(base + lo)
            shape.append(hi - lo + 1)
        nearest = min(old.blocks, key=lambda b: b.stride).dim
        shape[nearest] = max(shape[nearest], self.width)
        last = nearest if self.innermost is None else self.innermost
        shape[last] = -(-shape[last] // self.multiple) * self.multiple
        blocks = dense(tuple(shape)) if self.exact else dense_blocks(old.blocks, shape, self.innermost)
        held = _read_as(old, loop.body) if self.convert else old.dtype
        new = Buffer(f"{self.buffer}_s", held, tuple(shape), blocks, self.scope)

        def place(index: Place) -> Place:
            return tuple(i - o for i, o in zip(index, origin))

        if self.exact:
            copy = _exact_copy(old, new, origin, ranges)
            body = _before_first_read(old, new, copy, Relocate(old, new, place), loop.body)
        else:
            sizes = [self.count if d == last and self.count is not None else n for d, n in enumerate(old.shape)]
            copy = _copy(old, new, origin, {**ranges}, self.fill, sizes)
            to_copy = Relocate(old, new, place) if self.masked else LoadsOfCopy(old, new, place, {**ranges, **inner})
            body = Alloc(new, block(copy, to_copy.stmt(loop.body)))
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)


def _read_as(old: Buffer, body: Stmt) -> DType:
    """Return the type to which ``body`` converts each element of ``old`` that it reads; ConfigError if there is no such
    type.
    """
    types = {
        n.dtype if isinstance(n, Cast) else old.dtype
        for n in walk(body) for x in children(n) if isinstance(x, Load) and x.buffer is old
    }  # fmt: skip
    if len(types) > 1:
        names = ", ".join(sorted(t.name for t in types))
        raise ConfigError("stage", f"stage: elements of {old} are read as {names}; legal is one type")
    return types.pop()


def _before_first_read(old: Buffer, new: Buffer, copy: Stmt, rewriter: Rewriter, s: Stmt) -> Stmt:
    """Return ``s`` with its loads rewritten, and the copy before the first of its statements that reads ``old``."""
    if isinstance(s, Alloc):
        return Alloc(s.buffer, _before_first_read(old, new, copy, rewriter, s.body))
    if not isinstance(s, Block):
        return Alloc(new, block(copy, rewriter.stmt(s)))
    first = next(n for n, x in enumerate(s.stmts) if any(isinstance(y, Load) and y.buffer is old for y in walk(x)))
    if first == len(s.stmts) - 1:
        return block(*s.stmts[:first], _before_first_read(old, new, copy, rewriter, s.stmts[first]))
    return block(*s.stmts[:first], Alloc(new, block(copy, *map(rewriter.stmt, s.stmts[first:]))))


def _copy(
    old: Buffer, new: Buffer, origin: Sequence[Index], ranges: dict[Var, Range], fill: int, sizes: Sequence[int]
) -> Stmt:
    """Return the nest that copies ``sizes`` elements of ``old`` along each dim, starting at ``origin``."""
    *outer, lanes = new.blocks
    last = lanes.dim if new.in_registers else None
    index = tuple(Var(f"{new.name}.l" if d == last else f"{new.name}{d}") for d in range(len(new.shape)))
    source = tuple(o + i for o, i in zip(origin, index))
    full = {**ranges, **{v: (0, n - 1) for v, n in zip(index, new.shape)}}
    element = read_or_fill(old, source, full, fill, sizes)
    body: Stmt = Store(new, index, element if new.dtype is old.dtype else Cast(new.dtype, element))
    kind = "unrolled" if new.in_registers else "serial"
    body = For(index[lanes.dim], as_index(0), as_index(lanes.size), body)
    for b in reversed(outer):
        body = For(index[b.dim], as_index(0), as_index(b.size), body, kind)
    return body


def _exact_copy(old: Buffer, new: Buffer, origin: Sequence[Index], ranges: Mapping[Var, Range]) -> Stmt:
    """Return the nest that copies elements of ``old`` starting at ``origin``, as far as they exist."""
    index = tuple(Var(f"{new.name}{d}") for d in range(len(new.shape)))
    body: Stmt = Store(new, index, Load(old, tuple(o + i for o, i in zip(origin, index)), None))
    for var, start, size, whole in reversed(list(zip(index, origin, new.shape, old.shape))):
        lo, hi = simplify(maximum(0, -start), ranges), simplify(minimum(size, whole - start), ranges)
        body = For(var, lo, hi, body)
    return body


def read_or_fill(
    buffer: Buffer, index: Place, ranges: Mapping[Var, Range], fill: int, sizes: Sequence[int] | None = None
) -> Value:
    """Return the element of ``buffer`` at ``index``, or ``fill`` if the index is outside of the buffer or of ``sizes``.
    """
    within = buffer.shape if sizes is None else sizes
    inside = simplify(conj(c for i, n in zip(index, within) for c in (i >= 0, i < n)), ranges)
    read = Load(buffer, index, None)
    return read if is_true(inside) else Select(inside, read, const(buffer.dtype, fill))


@stages(*LOOPS)
def stage(
    kernel: Kernel, buffer: str, loop: str, innermost: int | None = None, fill: int = 0, scope: str = "cache",
    width: int = 1, exact: bool = False, masked: bool = False, convert: bool = False, multiple: int = 1,
    count: int | None = None,
) -> Kernel:  # fmt: skip
    """Copy the footprint of each iteration of ``loop`` in ``buffer`` to ``<buffer>_s`` before the iteration runs.

    The copy keeps the buffer's order of dims, except that ``innermost`` becomes contiguous. ``fill`` is stored for
    elements outside the buffer, and must make their terms zero. A copy in registers is written by unrolled code; a loop
    ``<buffer>_s.l`` over its last dim can be vectorised, and ``width`` is the room for its elements. An ``exact`` copy
    holds its dims in their own order, and only elements that exist; it runs before the first statement that reads it.
    With ``masked``, the loads keep their masks. With ``convert``, the copy holds elements of the type to which the nest
    converts each of them. The contiguous dim is padded to a ``multiple`` of elements; if ``count`` gives the number of
    existing elements, the padding of a blocked layout is ``fill`` too.

    Before::

        kernel k(a: f32[2, 3], b: f32[2], c: f32[2, 4])
          for n in 0 .. 2:
            for i in 0 .. 4:
              for k in 0 .. 2:
                c[n, i] = c[n, i] + (a[n, i + k - 1] * b[k] if i + k - 1 >= 0 and -i - k + 3 >= 0 else 0.0)

    After ``stage("a", "n")``::

        kernel k(a: f32[2, 3], b: f32[2], c: f32[2, 4])
          for n in 0 .. 2:
            alloc a_s: f32[1, 5] @cache:
              for a_s0 in 0 .. 1:
                for a_s1 in 0 .. 5:
                  a_s[a_s0, a_s1] = (a[a_s0 + n, a_s1 - 1] if a_s1 - 1 >= 0 and -a_s1 + 3 >= 0 else 0.0)
              for i in 0 .. 4:
                for k in 0 .. 2:
                  c[n, i] = c[n, i] + a_s[0, i + k] * b[k]
    """
    require_no_effects(kernel, "stage", FENCES)
    require_loops(kernel, (loop,), "stage")
    require_new_buffer(kernel, f"{buffer}_s", "stage")
    rewriter = _Stage(buffer, loop, innermost, fill, scope, width, exact, masked, convert, multiple, count)
    body = rewriter.stmt(kernel.body)
    return with_body(kernel, body)
