"""Replace nests over matrices by instructions on fragments, by matching them against specifications.

A register array whose sums come from such a nest moves into registers for fragments.  What else touches it is done on
whole fragments too: it is filled with a constant, copied to memory and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import Alloc, For, Invoke, Kernel, Stmt, Store
from convsmith.ir.value import Const, Lanes, Load, Value, rows_of_lanes, strided
from convsmith.ir.walk import Rewriter, statements_of, substitute, walk
from convsmith.passes.pick_instructions import contract, unify
from convsmith.passes.scope import perfect_nest, require_loops, with_body, wrap


class _Nest:
    """A store and the innermost loops around it, which run from 0 to constants."""

    def __init__(self, loops: Sequence[For], store: Store) -> None:
        for x in loops:
            if not (x.lo.is_const and x.lo.const == 0 and x.hi.is_const):
                raise ConfigError("fragment", f"a fragment's loop {x.var} runs {x.lo} .. {x.hi}, no numbers from 0")
        self.loops, self.store = loops, store
        self.sizes = [x.hi.const for x in loops]
        self.start: dict[Var, Index] = {x.var: x.lo for x in loops}

    def at(self, index: tuple[Index, ...]) -> tuple[Index, ...]:
        """The index where all loops start."""
        return tuple(substitute(i, self.start) for i in index)

    def steps(self, index: Index) -> list[int]:
        """Elements that each loop moves an index by."""
        found = dict(index.terms)
        return [found.get(x.var, 0) for x in self.loops]


@cache
def _pattern(row: Instruction) -> tuple[_Nest, tuple[Buffer, ...]]:
    """The row's specification and its operands, the accumulator first."""
    body = row.kernel.body
    assert isinstance(body, For)
    loops, store = perfect_nest(body)
    assert isinstance(store, Store)
    return _Nest(loops, store), row.kernel.params


class _Pick(Rewriter):
    """Within the life of ``old``, whose fragments move to ``new``."""

    def __init__(self, old: Buffer, rows: Sequence[Instruction]) -> None:
        super().__init__()
        self.old, self.rows = old, rows
        self.new = Buffer(old.name, old.dtype, old.shape, old.blocks, "fragment")
        self.height, self.width = old.shape[-2:]
        self.whole = strided(self.height * self.width, 1)

    def For(self, loop: For) -> Stmt:
        loops, s = perfect_nest(loop)
        if not isinstance(s, Store):
            return self._For(loop)
        if s.buffer is self.old and isinstance(s.value, Load):
            return wrap(loops[:-2], self.fetched(_Nest(loops[-2:], s), s.value))
        if s.buffer is self.old and not isinstance(s.value, Const):
            return wrap(loops[:-4], self.sums(_Nest(loops[-4:], s)))
        if s.buffer is self.old:
            nest = _Nest(loops[-2:], s)
            return wrap(loops[:-2], Store(self.new, nest.at(s.index), s.value, self.whole))
        if isinstance(s.value, Load) and s.value.buffer is self.old:
            return wrap(loops[:-2], self.copied(_Nest(loops[-2:], s), s.value))
        return loop

    def copied(self, nest: _Nest, value: Load) -> Stmt:
        """A fragment's rows in memory."""
        lanes = self.rows_at(nest, nest.store.index[0])
        fragment = Load(self.new, nest.at(value.index), self.whole)
        return Store(nest.store.buffer, nest.at(nest.store.index), fragment, lanes)

    def fetched(self, nest: _Nest, value: Load) -> Stmt:
        """A fragment from its rows in memory."""
        rows = Load(value.buffer, nest.at(value.index), self.rows_at(nest, value.index[0]))
        return Store(self.new, nest.at(nest.store.index), rows, self.whole)

    def rows_at(self, nest: _Nest, index: Index) -> Lanes:
        distance, step = nest.steps(index)
        if step != 1 or nest.sizes[1] != self.width:
            raise ConfigError("fragment", f"{nest.sizes[1]} lanes, {step} apart, are no fragment's row: {nest.store}")
        return rows_of_lanes(self.height, self.width, distance, nest.sizes[0])

    def sums(self, nest: _Nest) -> Stmt:
        """The first instruction that computes the nest."""
        s = nest.store
        for row in self.rows:
            pattern, (c, *operands) = _pattern(row)
            if nest.sizes[1:] != pattern.sizes[1:] or nest.sizes[0] > row.rows:
                continue
            here = Load(s.buffer, s.index, None)
            for bound in unify(contract(pattern.store.value), contract(s.value), {c: here}):
                found = (_operand(b, pattern, bound[b], nest) for b in operands)
                args = tuple(a for a in found if a is not None)
                if len(args) == len(operands):
                    return Invoke(row.name, Load(self.new, nest.at(s.index), self.whole), args)
        raise ConfigError("fragment", f"no instruction on fragments runs {nest.sizes} times {s}")


def _operand(b: Buffer, pattern: _Nest, value: Value, nest: _Nest) -> Load | None:
    """The fragment that an operand stands for: the same places within a row, and rows at any distance."""
    if not isinstance(value, Load):
        return None
    reads = {v.buffer: v for v in walk(pattern.store.value) if isinstance(v, Load)}
    along, within = (pattern.steps(i) for i in reads[b].index)
    steps = nest.steps(value.index[0])
    row = along.index(1)
    distance, height = steps[row] or b.shape[1], nest.sizes[row]
    if any(x != y for n, (x, y) in enumerate(zip(steps, within)) if n != row) or (height > 1 and not steps[row]):
        return None
    return Load(value.buffer, nest.at(value.index), rows_of_lanes(b.shape[0], b.shape[1], distance, height))


class _Allocations(Rewriter):
    def __init__(self, rows: Sequence[Instruction], loops: tuple[str, ...]) -> None:
        super().__init__()
        self.rows, self.loops = rows, loops

    def Alloc(self, a: Alloc) -> Stmt:
        if a.buffer.scope == "register" and any(self.fits(a.buffer, s) for s in statements_of(a.body)):
            pick = _Pick(a.buffer, self.rows)
            return Alloc(pick.new, pick.stmt(a.body))
        return self._Alloc(a)

    def fits(self, buffer: Buffer, s: Stmt) -> bool:
        if not isinstance(s, For) or s.var.name != self.loops[0]:
            return False
        loops, body = perfect_nest(s)
        return tuple(x.var.name for x in loops) == self.loops and isinstance(body, Store) and body.buffer is buffer


def pick_fragments(kernel: Kernel, rows: Sequence[Instruction], loops: tuple[str, str, str, str]) -> Kernel:
    """Compute the nests of four ``loops`` (rows, groups, lanes, terms) by instructions on fragments.

    ConfigError where no instruction matches: of the operands' elements those of a row must be neighbours, and the
    loops must run as often as the instruction does, but for the rows, which may be fewer. Needs a flat kernel.

    Before::

        kernel k(a: u8[160], b: s8[64], dst: s32[8])
          alloc acc: s32[4, 4] @register:
            for m in 0 .. 4:
              for l in 0 .. 4:
                acc[m, l] = s32(0)
            for m in 0 .. 2:
              for q in 0 .. 4:
                for l in 0 .. 4:
                  for p in 0 .. 4:
                    acc[m, l] = acc[m, l] + cast(s32, a[m * 80 + p + q * 4]) * cast(s32, b[l * 4 + p + q * 16])
            for m in 0 .. 2:
              for l in 0 .. 4:
                dst[l + m * 4] = acc[m, l]

    After ``pick_fragments(ROWS, ("m", "q", "l", "p"))``::

        kernel k(a: u8[160], b: s8[64], dst: s32[8])
          alloc acc: s32[4, 4] @fragment:
            acc[0, 0]{16} = s32(0)
            fragment_dot(acc[0, 0]{16}, a[0]{4 * 16:80/32}, b[0]{64})
            dst[0]{16/8} = acc[0, 0]{16}
    """
    require_loops(kernel, loops, "pick_fragments")
    fragments = tuple(row for row in rows if row.rows > 1)
    return with_body(kernel, _Allocations(fragments, loops).stmt(kernel.body))
