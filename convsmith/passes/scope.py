"""Helpers shared by the passes: loops by name, ranges of variables in scope, kernels with a new body."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from convsmith.arith.ranges import Range, Unbounded, interval, upper_bound
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Min, Var, as_index, is_true
from convsmith.ir.intern import nodes
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import EFFECTS, Alloc, Block, For, If, Kernel, Let, PointerLoad, Stmt
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import loops_of, statements_of, walk

_EFFECTS = frozenset(EFFECTS)


def with_body(kernel: Kernel, body: Stmt) -> Kernel:
    """Return ``kernel`` with ``body``, or the same object if the body is unchanged."""
    return kernel if body is kernel.body else replace(kernel, body=body)


def loop_names(s: Stmt) -> tuple[str, ...]:
    """Return the names of all loops in ``s``, outermost first."""
    return _loops_and_effects(s)[0]


def _loops_and_effects(s: Stmt) -> tuple[tuple[str, ...], tuple[Stmt, ...]]:
    """Return the names of all loops in ``s``, and its effects.

    The intern table caches the result for each loop, because a pass that rewrites one nest leaves the other nests
    unchanged.
    """
    names: list[str] = []
    effects: list[Stmt] = []
    stack = [s]
    while stack:
        x = stack.pop()
        if type(x) is For:
            found = _below_loop(x)
            names += found[0]
            effects += found[1]
        elif type(x) is Block:
            stack.extend(x.stmts[::-1])
        elif type(x) in _EFFECTS:
            effects.append(x)
        elif isinstance(x, (If, Let, Alloc, PointerLoad)):
            stack.append(x.body)
    return tuple(names), tuple(effects)


def has_loop(loop: For, names: Collection[str]) -> bool:
    """Return whether ``loop`` or a loop in it has one of the ``names``."""
    return not set(names).isdisjoint(_below_loop(loop)[0])


def _below_loop(loop: For) -> tuple[tuple[str, ...], tuple[Stmt, ...]]:
    known = nodes()
    found: tuple[tuple[str, ...], tuple[Stmt, ...]] | None = known.get((_below_loop, loop))
    if found is None:
        names, effects = _loops_and_effects(loop.body)
        found = known[_below_loop, loop] = (loop.var.name, *names), effects
    return found


def require_no_effects(kernel: Kernel, what: str, kinds: tuple[type[Stmt], ...] = EFFECTS) -> None:
    """Raise ConfigError if the kernel has effects of the ``kinds``, whose order ``what``, a pass, would not keep."""
    for s in _loops_and_effects(kernel.body)[1]:
        if isinstance(s, kinds):
            raise ConfigError(
                "effects", f"{what}: kernel {kernel.name} has `{s}`, which orders threads or is shared by them; legal "
                f"are kernels without {', '.join(x.__name__ for x in kinds)}",
            )  # fmt: skip


def require_loops(kernel: Kernel, names: Iterable[str], what: str) -> None:
    """Raise ConfigError if one of ``names`` is not a loop of ``kernel``; ``what`` is the pass."""
    known = set(loop_names(kernel.body))
    for n in names:
        if n not in known:
            raise ConfigError(
                "unknown-loop",
                f"{what}: kernel {kernel.name} has no loop {n!r}; its loops are {', '.join(sorted(known))}",
            )


def require_new_buffer(kernel: Kernel, name: str, what: str) -> None:
    """Raise ConfigError if the kernel already has a buffer of that name."""
    allocated = (x.buffer for x in statements_of(kernel.body) if isinstance(x, Alloc))
    if any(b.name == name for b in (*kernel.params, *allocated)):
        raise ConfigError("buffer-name", f"{what}: kernel {kernel.name} has a buffer {name} already")


def loop_range(loop: For, ranges: dict[Var, Range]) -> Range:
    """Return the lowest and highest value of the loop's variable; the highest is lower if the loop never runs."""
    lo, hi = loop.lo, loop.hi
    return (
        interval(lo, ranges)[0] if lo.terms else lo.const,
        upper_bound(hi, ranges) - 1 if hi.terms else hi.const - 1,
    )


def known_range(loop: For, ranges: dict[Var, Range]) -> dict[Var, Range]:
    """Return the `loop_range` of a loop by its variable; empty if its length is known at the call alone."""
    try:
        return {loop.var: loop_range(loop, ranges)}
    except Unbounded:
        return {}


def ranges_below(s: Stmt, ranges: Mapping[Var, Range]) -> dict[Var, Range]:
    """Return the ranges of the variables of all loops in ``s``, which has the ``ranges`` around it.

    Loops of one name, copies of a loop for example, have the range from the lowest to the highest of their values.
    """
    found: dict[Var, Range] = {}
    for x in loops_of(s):
        lo, hi = loop_range(x, {**ranges, **found})
        known = found.get(x.var, (lo, hi))
        found[x.var] = (min(lo, known[0]), max(hi, known[1]))
    return found


def extent(loop: For, ranges: dict[Var, Range]) -> int:
    """Return an upper bound on the iterations of ``loop``, from intervals; for a size known at the call, from a
    minimum.
    """
    try:
        return max(0, interval(loop.hi - loop.lo, ranges)[1])
    except Unbounded:
        ends = [a.const for a in loop.hi.args if a.is_const] if isinstance(loop.hi, Min) else []
        if not ends or not loop.lo.is_const:
            raise
        return max(0, min(ends) - loop.lo.const)


def extents(loops: Iterable[For], ranges: Mapping[Var, Range]) -> list[int]:
    """Return upper bounds on the iterations of nested ``loops`` from 0, outermost first; ``ranges`` are those around
    them.
    """
    known = dict(ranges)
    out = []
    for x in loops:
        out.append(extent(x, known))
        known[x.var] = (0, out[-1] - 1)
    return out


def bounds_of(buffer: Buffer, index: Sequence[Index]) -> Iterator[Cond]:
    """Yield the conditions under which ``index`` is within ``buffer``."""
    for i, size in zip(index, buffer.shape):
        yield i >= 0
        yield i < size


def are_inside(v: Value, ranges: Mapping[Var, Range]) -> bool:
    """Return whether all loads of ``v`` are within their buffers, regardless of conditions."""
    loads = (x for x in walk(v) if isinstance(x, Load))
    return all(is_true(simplify(c, ranges)) for x in loads for c in bounds_of(x.buffer, x.index))


class ScopedRewriter(Rewriter):
    """A rewriter that tracks the ranges of the variables in scope (``self.ranges``)."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges: dict[Var, Range] = {}

    def within(self, var: Var, range_: Range | None, body: Stmt) -> Stmt:
        """Return ``body``, rewritten where ``var`` has the range ``range_``."""
        ranges, memo = self.ranges, self._memo
        outer = ranges.get(var)
        if range_ is not None:
            ranges[var] = range_
        self._memo = {}
        body = self.stmt(body)
        self._memo = memo
        if outer is not None:
            ranges[var] = outer
        elif range_ is not None:
            del ranges[var]
        return body

    def inside(self, loop: For) -> Stmt:
        """Return the loop's body, rewritten under the loop's range."""
        try:
            r: Range | None = loop_range(loop, self.ranges)
        except Unbounded:
            r = None
        return self.within(loop.var, r, loop.body)

    def _For(self, s: For) -> Stmt:
        lo, hi = s.lo, s.hi
        if not lo.terms and not hi.terms and not s.carried:
            body = self.within(s.var, (lo.const, hi.const - 1), s.body)
            return s if body is s.body else For(s.var, lo, hi, body, s.kind)
        lo, hi = self.expr(lo), self.expr(hi)
        carried = tuple([c._replace(init=self.expr(c.init)) for c in s.carried]) if s.carried else ()
        body = self.inside(s)
        if lo is s.lo and hi is s.hi and body is s.body and carried == s.carried:
            return s
        return For(s.var, lo, hi, body, s.kind, carried)

    def _Let(self, s: Let) -> Stmt:
        value = self.expr(s.value)
        try:
            r: Range | None = interval(s.value, self.ranges)
        except Unbounded:
            r = None
        body = self.within(s.var, r, s.body)
        return s if value is s.value and body is s.body else Let(s.var, value, body)


class LoopRewriter(Rewriter):
    """A rewriter that tracks the loops and names around the current statement.

    ``around`` are these loops and names, outermost first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.around: list[For | Let] = []

    @property
    def ranges(self) -> dict[Var, Range]:
        """The ranges of the variables in scope, as far as they are known."""
        out: dict[Var, Range] = {}
        for s in self.around:
            try:
                out[s.var] = loop_range(s, out) if isinstance(s, For) else interval(s.value, out)
            except Unbounded:
                out.pop(s.var, None)
        return out

    def inside(self, *around: For | Let) -> Stmt:
        """Return the body of the last of ``around``, rewritten within all of them."""
        self.around += around
        body = self.stmt(around[-1].body)
        del self.around[-len(around) :]
        return body

    def _For(self, s: For) -> Stmt:
        body = self.inside(s)
        return s if body is s.body else For(s.var, s.lo, s.hi, body, s.kind, s.carried)

    def _Let(self, s: Let) -> Stmt:
        body = self.inside(s)
        return s if body is s.body else Let(s.var, s.value, body)


def perfect_nest(loop: For) -> tuple[list[For], Stmt]:
    """Return the perfectly nested loops from ``loop`` inwards, outermost first, and the body of the innermost."""
    chain = [loop]
    while isinstance(chain[-1].body, For):
        chain.append(chain[-1].body)
    return chain, chain[-1].body


def wrap(loops: Iterable[For], body: Stmt) -> Stmt:
    """Return ``body`` within copies of ``loops``, which are listed outermost first."""
    for loop in reversed(list(loops)):
        body = For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)
    return body


def loops_around(loops: Iterable[tuple[Var, int]], body: Stmt) -> Stmt:
    """Return ``body`` within loops from 0 of these variables and extents, which are listed outermost first."""
    return wrap([For(v, as_index(0), as_index(size), body) for v, size in loops], body)


def allocate(buffers: Iterable[Buffer], body: Stmt) -> Stmt:
    """Return ``body`` within allocations of ``buffers``, which are listed outermost first."""
    for buffer in reversed(list(buffers)):
        body = Alloc(buffer, body)
    return body


def allocated(s: Stmt) -> tuple[list[Buffer], Stmt]:
    """Return the buffers that ``s`` allocates before all else, outermost first, and the statement that uses them."""
    buffers = []
    while isinstance(s, Alloc):
        buffers.append(s.buffer)
        s = s.body
    return buffers, s


def gathered_allocations(s: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """Return the buffers that ``s`` allocates outside of loops, and its statements without these allocations: memory of
    the buffers then lives as long as ``s``.
    """
    if isinstance(s, Alloc):
        inner, parts = gathered_allocations(s.body)
        return [s.buffer, *inner], parts
    if not isinstance(s, Block):
        return [], [s]
    found = [gathered_allocations(x) for x in s.stmts]
    return [b for buffers, _ in found for b in buffers], [x for _, parts in found for x in parts]


def each_body(kernel: Kernel, rewrite: Callable[[Stmt], Stmt]) -> Kernel:
    """Return ``kernel`` with ``rewrite`` applied to its body and to the bodies of its functions."""
    bodies = [(f, rewrite(f.body)) for f in kernel.functions]
    functions = tuple(f if body is f.body else replace(f, body=body) for f, body in bodies)
    body = rewrite(kernel.body)
    if body is kernel.body and functions == kernel.functions:
        return kernel
    return replace(kernel, body=body, functions=functions)
