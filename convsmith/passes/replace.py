"""Replace nests and vector statements by machine instructions, by unifying them with specifications.

A result on vectors stays in its register array. If a row computes fragments, matrices in registers of a separate file,
the register array moves into them for its whole lifetime: it is filled, loaded and stored by whole fragments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace as changed
from functools import cache

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import LANES, Instruction, Operand
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import FENCES, Alloc, For, Invoke, Kernel, Stmt, Store
from convsmith.ir.threads import has_effects
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import children, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import perfect_nest, with_body, wrap
from convsmith.passes.split_nests import StoreNest, panels_of, split_nest
from convsmith.passes.unify import Specification


class _RowIndex:
    """Rows by the type of the result of a nest; by type and lanes of the result of a vector statement."""

    def __init__(self, rows: Sequence[Instruction]) -> None:
        self.vectors: dict[tuple[str, int], list[Specification]] = {}
        self.nests: dict[str, list[Specification]] = {}
        self.fragments: dict[str, list[Specification]] = {}
        for row in sorted(rows, key=_is_of_one_type):
            if row.is_scalable:
                continue  # lanes of statements are numbers: a machine of one scale has the row `at` that scale
            c, form = row.result, Specification(row)
            if c.scope == "fragment":
                self.fragments.setdefault(c.dtype, []).append(form)
                continue
            self.nests.setdefault(c.dtype, []).append(form)
            if all(x.layout.registers == 1 for x in row.operands):
                self.vectors.setdefault((c.dtype, c.size), []).append(form)


def _is_of_one_type(row: Instruction) -> bool:
    """Return whether operands have one type: a factor of such a row may be any value, also one that is converted, so
    rows that convert their factors are tried before.
    """
    return len({*row.types}) == 1


_row_index = cache(_RowIndex)


def _innermost(loops: Sequence[For], s: Store, form: Specification) -> StoreNest:
    """Return the store within as many of the loops as the specification has."""
    return StoreNest(tuple(loops[len(loops) - len(form.extents) :]), s)


def _invoked(loops: Sequence[For], s: Store, forms: Sequence[Specification]) -> tuple[Sequence[For], Invoke] | None:
    """Return the instruction that computes the most of the innermost loops, and the loops around it; None if there is
    none.
    """
    for form in forms:
        if len(form.extents) > len(loops):
            continue
        nest = around = _innermost(loops, s, form)
        for at, size in panels_of(nest)[:1] if form.reads_shared else ():
            form, nest = form.in_panels(nest.loops[at].hi.const, size), split_nest(nest, at, size)
        invoked = form.invoke_on_nest(nest)
        if invoked is not None:
            return loops[: len(loops) - len(around.loops)], invoked
    return None


class _UseRows(Rewriter):
    def __init__(self, table: _RowIndex, strict: frozenset[str]) -> None:
        super().__init__()
        self.table, self.strict = table, strict

    def visit_Store(self, s: Store) -> Stmt:
        if s.lanes is None or s.buffer.scope != "register":
            return s
        for form in self.table.vectors.get((s.buffer.dtype.name, s.lanes.count), ()):
            invoked = form.invoke_on_vectors(s)
            if invoked is not None:
                return invoked
        return s

    def visit_For(self, loop: For) -> Stmt:
        loops, s = perfect_nest(loop)
        if not isinstance(s, Store) or s.lanes is not None:
            return self._For(loop)
        forms = self.table.nests.get(s.buffer.dtype.name) if s.buffer.scope == "register" else None
        invoked = _invoked(loops, s, forms) if forms else None
        return loop if invoked is None else wrap(*invoked)

    def visit_Alloc(self, a: Alloc) -> Stmt:
        forms = self.table.fragments.get(a.buffer.dtype.name)
        if not forms or a.buffer.scope != "register" or has_effects(a.body, FENCES):
            return self._Alloc(a)
        nests = [(loops, s) for loops, s in _nests(a.body) if s.buffer is a.buffer]
        sums = [(loops, s) for loops, s in nests if _adds(s, a.buffer)]
        if not sums and any(_has(loops, self.strict) for loops, _ in nests):
            return _in_memory(a)
        for loops, s in sums:
            invoked = _invoked(loops, s, forms)
            if invoked is not None:
                row = next(form.row for form in forms if form.row.name == invoked[1].instruction)
                life = _LaneFragmentLife if row.result.file == LANES else _FragmentLife
                move = life(a.buffer, row.result, forms)
                return Alloc(move.new, move.stmt(a.body))
            if _has(loops, self.strict) and len(loops) >= len(forms[0].extents):
                raise _no_row(loops, s, forms)
        return self._Alloc(a)


def _in_memory(a: Alloc) -> Alloc:
    """Return the allocation of sums to which no product is added, in memory: their elements have loops."""
    new = Buffer(a.buffer.name, a.buffer.dtype, a.buffer.shape, a.buffer.blocks, "cache")
    return Alloc(new, Relocate(a.buffer, new, lambda index: index).stmt(a.body))


def _has(loops: Sequence[For], names: frozenset[str]) -> bool:
    """Return whether ``names`` is not empty and all of them are loops."""
    return bool(names) and names <= {x.var.name for x in loops}


def _nests(s: Stmt) -> Iterator[tuple[list[For], Store]]:
    """Yield the perfect nests around one store, in order."""
    stack = [s]
    while stack:
        x = stack.pop()
        if isinstance(x, For):
            loops, x = perfect_nest(x)
            if isinstance(x, Store):
                yield loops, x
        stack += reversed([y for y in children(x) if isinstance(y, Stmt)])


def _adds(s: Store, buffer: Buffer) -> bool:
    """Return whether a store to a buffer depends on the buffer."""
    return s.buffer is buffer and any(isinstance(v, Load) and v.buffer is buffer for v in walk(s.value))


def _no_row(loops: Sequence[For], s: Store, forms: Sequence[Specification]) -> ConfigError:
    runs = ", ".join(f"{x.var} {x.lo} .. {x.hi}" for x in loops)
    rows = ", ".join(form.row.name for form in forms)
    return ConfigError("fragment", f"replace: none of {rows} computes {s} in loops {runs}")


class _FragmentLife(Rewriter):
    """Moves a register array into registers for fragments."""

    def __init__(self, old: Buffer, fragment: Operand, forms: Sequence[Specification]) -> None:
        super().__init__()
        self.old, self.forms = old, forms
        self.new = Buffer(old.name, old.dtype, old.shape, old.blocks, "fragment")
        self.copy = _copy(fragment)

    def visit_For(self, loop: For) -> Stmt:
        loops, s = perfect_nest(loop)
        if not isinstance(s, Store):
            return self._For(loop)
        if _adds(s, self.old):
            invoked = _invoked(loops, s, self.forms)
            if invoked is None:
                raise _no_row(loops, s, self.forms)
            around, invoke = invoked
            return wrap(around, Invoke(invoke.instruction, self.moved(invoke.dst), invoke.args))
        if s.buffer is not self.old and all(v.buffer is not self.old for v in walk(s.value) if isinstance(v, Load)):
            return loop
        nest = _innermost(loops, s, self.copy)
        for c, a in self.copy.operands_of(nest):
            assert isinstance(c, Load)
            to = self.moved(c)
            return wrap(loops[: len(loops) - len(nest.loops)], Store(to.buffer, to.index, self.value(a), to.lanes))
        raise ConfigError("fragment", f"replace: {s} is no copy of rows of a fragment of {self.old.shape[-2:]}")

    def moved(self, v: Load) -> Load:
        return Load(self.new, v.index, v.lanes) if v.buffer is self.old else v

    def value(self, v: Value) -> Value:
        return self.moved(v) if isinstance(v, Load) else v


class _LaneFragmentLife(_FragmentLife):
    """Moves a register array into fragments whose elements belong to lanes, which access them one by one."""

    def visit_For(self, loop: For) -> Stmt:
        s = perfect_nest(loop)[1]
        return super().visit_For(loop) if isinstance(s, Store) and _adds(s, self.old) else self._For(loop)

    def visit_Load(self, v: Load) -> Value:
        return self.moved(v)

    def visit_Store(self, s: Store) -> Stmt:
        to = self.new if s.buffer is self.old else s.buffer
        return Store(to, s.index, self.expr(s.value), s.lanes)


@cache
def _copy(fragment: Operand) -> Specification:
    """Return the specification of a copy of a fragment, or of its first rows, from or to memory."""
    names = [f"i{n}" for n in range(len(fragment.shape))]
    index = ", ".join(names)
    heads = [f"{'  ' * n}  for {x} in 0 .. {size}:\n" for n, (x, size) in enumerate(zip(names, fragment.shape))]
    body = "".join(heads) + f"{'  ' * len(names)}  c[{index}] = a[{index}]\n"
    operands = (changed(fragment, name="c"), changed(fragment, name="a"))
    return Specification(Instruction("copy", operands, body, "", "", (), "", partial=(names[0],)))


@stages(*FLATTENED, ensures=TENSORISED)
def replace(kernel: Kernel, rows: Sequence[Instruction], strict: Collection[str] = ()) -> Kernel:
    """Use the first of `rows` that computes each nest or vector statement on registers; others are unchanged.

    Loops may have any names, and any equivalent order. Needs a flat kernel. A nest of sums in all of the loops `strict`
    that no row for fragments computes is a ConfigError; sums in these loops to which nothing is added are in memory.

    Before::

        kernel k(a: f32[3], b: f32[12], dst: f32[4], u: u8[160], w: s8[64], out: s32[8])
          alloc acc: f32[4] @register:
            acc[0]{4} = 0.0
            for k in 0 .. 3:
              acc[0]{4} = acc[0]{4} + a[k]{4:0} * b[k * 4]{4}
            dst[0]{4} = acc[0]{4}
          alloc sums: s32[4, 4] @register:
            for m in 0 .. 4:
              for l in 0 .. 4:
                sums[m, l] = s32(0)
            for m in 0 .. 2:
              for q in 0 .. 4:
                for l in 0 .. 4:
                  for p in 0 .. 4:
                    sums[m, l] = sums[m, l] + cast(s32, u[m * 80 + p + q * 4]) * cast(s32, w[l * 4 + p + q * 16])
            for m in 0 .. 2:
              for l in 0 .. 4:
                out[l + m * 4] = sums[m, l]

    After ``replace(ROWS)``::

        kernel k(a: f32[3], b: f32[12], dst: f32[4], u: u8[160], w: s8[64], out: s32[8])
          alloc acc: f32[4] @register:
            acc[0]{4} = 0.0
            for k in 0 .. 3:
              multiply_add_128(acc[0]{4}, a[k]{4:0}, b[k * 4]{4})
            dst[0]{4} = acc[0]{4}
          alloc sums: s32[4, 4] @fragment:
            sums[0, 0]{16} = s32(0)
            fragment_dot(sums[0, 0]{16}, u[0]{4 * 16:80/32}, w[0]{64})
            out[0]{16/8} = sums[0, 0]{16}
    """
    return with_body(kernel, _UseRows(_row_index(tuple(rows)), frozenset(strict)).stmt(kernel.body))
