"""Split a reduction outside of its register tiles: memory keeps the partial sums between the parts.

The memory is private to the kernel, or a parameter of the kernel, or the result, to which each part adds atomically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.stmt import Alloc, AtomicAdd, Block, For, If, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, const
from convsmith.ir.walk import bound_in, variables_of
from convsmith.passes.accesses import sites_of, written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import in_any_order, require_order, require_order_in_passes, require_sum
from convsmith.passes.scope import (
    LoopRewriter,
    allocate,
    allocated,
    extents,
    loops_around,
    perfect_nest,
    require_loops,
    require_new_buffer,
    require_no_effects,
    with_body,
    wrap,
)

START = "_start"
"""Suffix of the name of the kernel that sets a result to zero."""
ZERO = "zero"
"""Prefix of the names of its loops."""


class _BlockReduction(LoopRewriter):
    def __init__(
        self, kernel: Kernel, outer: Sequence[str], moved: Sequence[str], memory: Buffer | None,
        place: Sequence[Index], is_atomic: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel = kernel
        self.outer, self.moved = list(outer), list(moved)
        self.memory, self.place, self.is_atomic = memory, tuple(place), is_atomic
        self.results: dict[Buffer, None] = {}
        """The buffers to which parts of sums are added atomically."""

    def visit_For(self, loop: For) -> Stmt:
        return self.kept(loop) if loop.var.name == self.moved[0] else self._For(loop)

    def kept(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        names = [x.var.name for x in chain]
        allocs, body = allocated(body)
        parts = body.stmts if isinstance(body, Block) else ()
        terms = [[*self.over_terms(x)] for x in takewhile(self.is_of_terms, parts[1:])]
        start, finish = parts[:1], parts[1 + len(terms) :]
        if names == self.moved and not {*map(Var, self.outer)} & {*bound_in(body)}:
            return self._For(loop)
        around = ", ".join(self.outer)
        if names != self.moved or not terms or not finish or not allocs:
            wanted = ", ".join(self.moved)
            raise ConfigError(
                "not-nested", f"block_reduction: {', '.join(names)} must be {wanted}, around a sum over {around}"
            )
        acc = allocs[-1]
        self.check(chain, start[0], terms, finish)
        for x in terms:
            require_sum("block_reduction", acc, start[0], x[0])
        for a in allocs[:-1]:
            if any(a in written_in(s) for s in (start[0], *(x[0] for x in terms))):
                raise ConfigError(
                    "dependence", f"block_reduction: {a} does not last from one part of a sum to the next"
                )
        what = f"block_reduction({around})"
        require_order_in_passes(what, loop, len(chain), len(terms), len(self.outer), self.ranges)
        if self.is_atomic:
            after = [self.added(s, acc) for s in finish]
            return block(*(_around(x, chain, allocs, start[0], x[-1].body, *after) for x in terms))
        memory = self.memory or self.private(chain, acc)
        fetch, keep = _moves(start[0], acc, memory, self.place, tuple(x.var for x in chain))
        self.require_places(what, wrap(chain, keep))

        def part(n: int, loops: Sequence[For]) -> Stmt:
            running = [x for x in loops if x.hi - x.lo is not as_index(1)]
            begins, ends = n == 0, n == len(terms) - 1
            several = (begins or ends) and bool(running)
            before = list(start) if begins else [fetch]
            after = list(finish) if ends else [keep]
            at = sum((x.var for x in running), as_index(0))  # equals the sum of all first iterations only in the first
            if begins and several:
                first = sum((x.lo for x in running), as_index(0))
                before = [If(at < first + 1, start[0]), If(at > first, fetch)]
            if ends and several:
                last = sum((x.hi - 1 for x in running), as_index(0))
                after = [If(at < last, keep), *(If(at >= last, s) for s in finish)]
            return _around(loops, chain, allocs, *before, loops[-1].body, *after)

        nest = block(*(part(n, x) for n, x in enumerate(terms)))
        return nest if self.memory is not None else Alloc(memory, nest)

    def is_of_terms(self, s: Stmt) -> bool:
        """Return whether a statement of a sum is a loop of the reduction, which adds terms."""
        return isinstance(s, For) and s.var.name == self.outer[0]

    def over_terms(self, s: Stmt) -> Sequence[For]:
        """Return the loops ``outer`` of a statement of a sum, outermost first."""
        loops = perfect_nest(s)[0][: len(self.outer)] if isinstance(s, For) else []
        if (names := [x.var.name for x in loops]) != self.outer:
            raise ConfigError(
                "not-nested", f"block_reduction: {', '.join(names)} must be {', '.join(self.outer)}, directly nested"
            )
        return loops

    def check(
        self, chain: Sequence[For], start: Stmt, terms: Sequence[Sequence[For]], finish: Sequence[Stmt]
    ) -> None:  # fmt: skip
        """Raise ConfigError unless the loops over ``terms`` can be moved around the loops of the ``chain``."""
        names = ", ".join(x.var.name for x in chain)
        each = [x for loops in terms for x in loops]
        for x in (*terms[0], *terms[-1]):
            if not (x.lo.is_const and x.hi.is_const and x.lo.const < x.hi.const):
                raise ConfigError(
                    "bounds",
                    f"block_reduction: {x.var} runs {x.lo} .. {x.hi}, and must start and end with constant bounds",
                )
        if any(x.kind == "parallel" for x in chain):
            raise ConfigError("loop-kind", f"block_reduction: loops {names} share the sums; legal are serial loops")
        if any(x.lo is not as_index(0) for x in chain):
            raise ConfigError("bounds", f"block_reduction: loops {names} must start at 0")
        if any(variables_of(b) & {x.var for x in chain} for loop in each for b in (loop.lo, loop.hi)):
            raise ConfigError("bounds", f"block_reduction: the bounds of {', '.join(self.outer)} need loops within it")
        outer = {*map(Var, self.outer)}
        parts = (start, *(x[-1].body for x in terms), *finish)
        if taken := [x for s in parts for x in bound_in(s) if x in outer]:
            raise ConfigError(
                "loop-name", f"block_reduction: a loop before, in or after the sum is called {taken[0]} too"
            )

    def added(self, s: Stmt, acc: Buffer) -> Stmt:
        """Return the atomic addition of the sum that ``s`` stores."""
        if isinstance(s, If):
            return If(s.cond, self.added(s.body, acc))
        if not isinstance(s, Store) or not isinstance(s.value, Load) or s.value.buffer is not acc:
            raise ConfigError(
                "split", f"block_reduction: `{s}` needs the whole sum; legal are results that are the sums themselves"
            )
        self.results[s.buffer] = None
        return AtomicAdd(s.buffer, s.index, s.value, s.lanes)

    def private(self, chain: Sequence[For], acc: Buffer) -> Buffer:
        """Return private memory of the kernel for the sums of all iterations of the ``chain``."""
        shape = extents(chain, self.ranges)
        require_new_buffer(self.kernel, f"{acc.name}_k", "block_reduction")
        return make_buffer(f"{acc.name}_k", acc.dtype, (*shape, *acc.shape), "cache")

    def require_places(self, what: str, kept: Stmt) -> None:
        """Raise ConfigError if two sums have the same place in the given memory."""
        if self.memory is None:
            return
        if any(isinstance(x, For) and x.kind == "parallel" for x in self.around):
            raise ConfigError(
                "loop-kind",
                f"block_reduction: {self.memory} holds the sums of one thread; legal are serial loops around it",
            )
        require_order(what, sites_of(kept, self.ranges), in_any_order, self.ranges)


def _around(loops: Sequence[For], chain: Sequence[For], allocs: Sequence[Buffer], *parts: Stmt) -> Stmt:
    """Return ``loops`` around the loops of ``chain``, which allocate registers for ``parts``."""
    return wrap(loops, wrap(chain, allocate(allocs, block(*parts))))


def _zeroed(name: str, buffer: Buffer) -> Kernel:
    """Return the kernel that sets all elements of ``buffer`` to zero."""
    index = tuple(Var(f"{ZERO}{d}") for d in range(len(buffer.shape)))
    body: Stmt = Store(buffer, index, const(buffer.dtype, 0))
    return Kernel(f"{name}{START}", (buffer,), loops_around(zip(index, buffer.shape), body))


def _moves(
    start: Stmt, acc: Buffer, memory: Buffer, place: tuple[Index, ...], around: tuple[Index, ...]
) -> tuple[Stmt, Stmt]:
    """Return the loads of partial sums from memory and the stores to memory, within the loops that initialise the sums.
    """
    loops, s = perfect_nest(start) if isinstance(start, For) else ([], start)
    assert isinstance(s, Store)
    there = place or (*around, *s.index)
    if memory.dtype is not acc.dtype or len(memory.shape) != len(there):
        raise ConfigError(
            "buffer",
            f"block_reduction: {memory} has {len(memory.shape)} dims of {memory.dtype}; expected {len(there)} "
            f"of {acc.dtype}, for sums at [{', '.join(map(str, there))}]",
        )  # fmt: skip
    fetch, keep = Store(acc, s.index, Load(memory, there, None)), Store(memory, there, Load(acc, s.index, None))
    return wrap(loops, fetch), wrap(loops, keep)


@stages(*LOOPS)
def block_reduction(
    kernel: Kernel, outer: str | Sequence[str], moved: Sequence[str], memory: Buffer | None = None,
    place: Sequence[Index] = (), is_atomic: bool = False,
) -> Kernel:  # fmt: skip
    """Move the reduction loop ``outer`` around the loops ``moved``, which are outside of the whole sum.

    ``outer`` may be several directly nested loops. The first part initialises the sums, the other parts load partial
    sums from memory, and the last part finishes them. If several loops ``outer`` follow each other, the first and the
    last run at least once, the loops in between any number of times. A copy of the loops ``moved`` without a loop
    ``outer``, as for a residue class without taps, is unchanged. ``memory``, if given, becomes a parameter of the
    kernel, and keeps each sum at its ``place``, an index over the loops ``moved`` and the loops of the accumulator; by
    default these loops are its dims. If ``is_atomic``, no memory holds partial sums: each part adds its sums to the
    result, which a kernel that runs before sets to zero.

    Before::

        kernel k(a: f32[4, 6], dst: f32[4])
          for i in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for k.b in 0 .. 3:
                for k in 0 .. 2:
                  acc[] = acc[] + a[i, k + k.b * 2]
              dst[i] = acc[]

    After ``block_reduction("k.b", ("i",))``::

        kernel k(a: f32[4, 6], dst: f32[4])
          alloc acc_k: f32[4] @cache:
            for k.b in 0 .. 3:
              for i in 0 .. 4:
                alloc acc: f32[] @register:
                  if -k.b >= 0:
                    acc[] = 0.0
                  if k.b - 1 >= 0:
                    acc[] = acc_k[i]
                  for k in 0 .. 2:
                    acc[] = acc[] + a[i, k + k.b * 2]
                  if -k.b + 1 >= 0:
                    acc_k[i] = acc[]
                  if k.b - 2 >= 0:
                    dst[i] = acc[]

    Before::

        kernel k(a: f32[4, 6], dst: f32[4])
          for i in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for p in 0 .. 2:
                for k in 0 .. 3:
                  acc[] = acc[] + a[i, k + p * 3]
              dst[i] = acc[]

    After ``block_reduction(("p", "k"), ("i",))``::

        kernel k(a: f32[4, 6], dst: f32[4])
          alloc acc_k: f32[4] @cache:
            for p in 0 .. 2:
              for k in 0 .. 3:
                for i in 0 .. 4:
                  alloc acc: f32[] @register:
                    if -k - p >= 0:
                      acc[] = 0.0
                    if k + p - 1 >= 0:
                      acc[] = acc_k[i]
                    acc[] = acc[] + a[i, k + p * 3]
                    if -k - p + 2 >= 0:
                      acc_k[i] = acc[]
                    if k + p - 3 >= 0:
                      dst[i] = acc[]

    Before::

        kernel k(a: f32[4, 6], dst: f32[4])
          for i in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for p in 0 .. 2:
                for k in 0 .. 3:
                  acc[] = acc[] + a[i, k + p * 3]
              dst[i] = acc[]

    After ``block_reduction("p", ("i",), is_atomic=True)``::

        kernel k(a: f32[4, 6], dst: f32[4])
          for p in 0 .. 2:
            for i in 0 .. 4:
              alloc acc: f32[] @register:
                acc[] = 0.0
                for k in 0 .. 3:
                  acc[] = acc[] + a[i, k + p * 3]
                atomic dst[i] += acc[]
        before k_start(dst: f32[4])
          for zero0 in 0 .. 4:
            dst[zero0] = 0.0
    """
    outer = (outer,) if isinstance(outer, str) else outer
    require_no_effects(kernel, "block_reduction")
    require_loops(kernel, (*outer, *moved), "block_reduction")
    if not moved:
        raise ConfigError(
            "not-nested",
            f"block_reduction: no loop is named that {', '.join(outer)} goes around; legal is at least one",
        )
    rewriter = _BlockReduction(kernel, outer, moved, memory, place, is_atomic)
    new = with_body(kernel, rewriter.stmt(kernel.body))
    if memory is not None:
        require_new_buffer(kernel, memory.name, "block_reduction")
        new = replace(new, params=(*kernel.params, memory))
    if rewriter.results:
        new = replace(new, before=(*kernel.before, *(_zeroed(kernel.name, b) for b in rewriter.results)))
    return new
