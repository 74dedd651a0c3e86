"""Outline each register tile, or loops by name, into a function; equal ones share one function.

A function takes one pointer into each buffer that it touches, with the tile's constant offsets folded in, and the loop
bounds that depend on the tile's position. The caller allocates memory that the tile uses. Functions therefore stay
small, because LLVM's compile time grows faster than linearly with a function's size; they are the micro-kernels in the
assembly. Tiles that differ in the places that they read in a table of borders share a function that takes a pointer to
each place.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Max, Min, Var, as_index, from_sorted
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import LANE, Alloc, Block, Call, For, Function, Kernel, PointerLoad, Prefetch, Stmt, Store
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import bound_in, statements_of, variables_of
from convsmith.passes.border_places import name_places
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import allocate, require_no_effects

SHORT = 16
"""Maximum number of statements that take no longer than the call of a function."""


class _Abstract(Rewriter):
    """Replaces free variables of a statement by parameters; the buffers in ``own`` belong to the statement.

    ``memory`` collects the memory buffers that the statement allocates; their allocations move to the caller.
    """

    def __init__(self, free: frozenset[Var], own: set[Buffer]) -> None:
        super().__init__()
        self.free, self.own = free, own
        self.memory: dict[Buffer, None] = {}
        self.pointers: dict[tuple[Buffer, tuple[Any, ...]], tuple[Var, Index]] = {}
        self.indices: dict[Index, Var] = {}

    def split(self, e: Index) -> tuple[Index, Index]:
        """Return ``e`` as (part of free variables, part of local variables); the constant belongs to the local part."""
        is_free = [variables_of(a) <= self.free for a, _ in e.terms]
        out = tuple([t for t, free in zip(e.terms, is_free) if free])
        local = tuple([t for t, free in zip(e.terms, is_free) if not free])
        return from_sorted(0, out), from_sorted(e.const, local)

    def position(self, buffer: Buffer, e: Index) -> Index:
        free, local = self.split(e)
        start = free + local.const
        if any(c % buffer.dtype.per_byte for c in (start.const, *(c for _, c in start.terms))):
            free, local, start = as_index(0), e, as_index(0)  # a pointer points at a whole byte
        key = (buffer, free.terms)
        if key not in self.pointers:
            self.pointers[key] = (Var(f"ptr{len(self.pointers)}"), start)
        var, start = self.pointers[key]
        local_part: Index = self.expr(local)
        return var + local_part - start.const

    def access(self, buffer: Buffer, index: tuple[Index, ...]) -> tuple[Index, ...]:
        if buffer.in_registers:
            return index
        if buffer in self.own:
            return self.index(index)
        return (self.position(buffer, index[0]),)

    def visit_Alloc(self, a: Alloc) -> Stmt:
        if a.buffer.in_registers:
            return self._Alloc(a)
        self.memory[a.buffer] = None
        return self.stmt(a.body)

    def visit_PointerLoad(self, s: PointerLoad) -> Stmt:
        """Rewrite the statement; the function also takes a pointer to the source, into which the table's entries point,
        or from which rows are counted.
        """
        index, zero_at = self.access(s.table, s.index), self.access(s.zero, s.zero_at)
        (first,) = self.access(s.source, (s.offset if s.rows else as_index(0),))
        offset = first if s.rows else self.expr(s.offset)
        return PointerLoad(s.buffer, s.table, index, offset, s.source, s.zero, zero_at, self.stmt(s.body), s.rows)

    def visit_Load(self, v: Load) -> Value:
        return Load(v.buffer, self.access(v.buffer, v.index), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        return Store(s.buffer, self.access(s.buffer, s.index), self.expr(s.value), s.lanes)

    def visit_Prefetch(self, s: Prefetch) -> Stmt:
        return Prefetch(s.buffer, self.access(s.buffer, s.index))

    def parameter(self, e: Index) -> Index:
        return self.indices.setdefault(e, Var(f"arg{len(self.indices)}"))

    def _abstract(self, e: Index) -> Index:
        free, local = self.split(e)
        if not free.terms:
            return self.rebuild(e)  # type: ignore[no-any-return]
        if local.terms:
            local = self.expr(local)
        return self.parameter(free) + local

    visit_Affine = visit_Var = visit_FloorDiv = visit_Mod = visit_Prod = visit_Quot = _abstract

    def _extremum(self, e: Min | Max) -> Index:
        return self.parameter(e) if variables_of(e) <= self.free else self.rebuild(e)

    visit_Min = visit_Max = _extremum


class _Outline(Rewriter):
    """Outlines tiles, or ``loops``, except those in ``left``; ``sources`` are the statements of each function."""

    def __init__(self, loops: frozenset[str], left: frozenset[Stmt] = frozenset()) -> None:
        super().__init__()
        self.loops, self.left = loops, left
        self.sources: dict[str, list[Stmt]] = {}
        self.functions: list[Function] = []
        self.alike: dict[Hashable, list[Function]] = {}
        """Functions with the same parameters, whose statements have the same classes and bounds."""
        self.fields: dict[Function, tuple[Any, ...]] = {}
        self.texts: dict[Function, str] = {}
        self.calls: dict[Stmt, Stmt] = {}
        """The call of each statement; copies of a loop may have the same body."""

    def fields_of(self, f: Function) -> tuple[Any, ...]:
        """Return the fields of the statements of the body; functions whose fields are equal have equal texts."""
        if f not in self.fields:
            self.fields[f] = _fields(f.body)
        return self.fields[f]

    def text(self, f: Function) -> str:
        """Return the text of the body, which is equal for equal functions of the same parameters."""
        if f not in self.texts:
            self.texts[f] = str(f.body)
        return self.texts[f]

    def equal(self, f: Function) -> Function:
        """Return an earlier function that equals ``f``, or else ``f`` itself, which is stored."""
        statements = tuple((s.lo, s.hi) if isinstance(s, For) else type(s) for s in statements_of(f.body))
        alike = self.alike.setdefault((tuple((v, b.name) for v, b in f.pointers), len(f.indices), statements), [])
        found = next((x for x in alike if self.fields_of(x) == self.fields_of(f)), None)
        found = found or next((x for x in alike if self.text(x) == self.text(f)), None)
        if found is None:
            alike.append(f)
            self.functions.append(f)
        return found or f

    def visit_For(self, s: For) -> Stmt:
        if s.var.name in self.loops:
            if s not in self.calls:
                self.calls[s] = self.call(s)
            return self.calls[s]
        return s if s.kind == "scalable" else self._For(s)

    def visit_Alloc(self, a: Alloc) -> Stmt:
        if a in self.left:
            return a
        return self.call(a) if a.buffer.in_registers and not self.loops else self._Alloc(a)

    def call(self, s: Stmt) -> Stmt:
        """Return a call of a function for ``s``: an existing equal function, or a new one whose body is ``s``."""
        free = variables_of(s) - bound_in(s) - {LANE}
        abstract = _Abstract(free, {x.buffer for x in statements_of(s) if isinstance(x, PointerLoad)})
        body = abstract.stmt(s)
        pointers = tuple((var, key[0]) for key, (var, _) in abstract.pointers.items())
        name = f"{'loop' if self.loops else 'tile'}{len(self.functions)}"
        f = Function(name, pointers, tuple(abstract.indices.values()), body)
        f = self.equal(f)
        self.sources.setdefault(f.name, []).append(s)
        starts = tuple((key[0], start) for key, (_, start) in abstract.pointers.items())
        return allocate(abstract.memory, Call(f.name, starts, tuple(abstract.indices)))


def _fields(s: Stmt) -> tuple[Any, ...]:
    """Return the class and the fields of ``s``, and of the statements in it."""
    if isinstance(s, Block):
        return tuple([_fields(x) for x in s.stmts])
    values = [getattr(s, name) for name in type(s).__match_args__]  # type: ignore[attr-defined]
    return type(s), *(_fields(x) if isinstance(x, Stmt) else x for x in values)


def _is_short(s: Stmt) -> bool:
    """Return whether ``s`` has no loop, and so few statements that a call of a function takes as long."""
    within = [*statements_of(s)]
    return len(within) <= SHORT and not any(isinstance(x, For) for x in within)


@stages(*FLATTENED, ensures=TENSORISED)
def outline(kernel: Kernel, loops: tuple[str, ...] = (), repeated: bool = False) -> Kernel:
    """Outline every statement that allocates registers into a function; requires a flat kernel.

    With ``loops``, outline only these loops; without, no statement that takes no longer than a call; and with
    ``repeated``, only statements that share a function with another one.

    Statements in a scalable loop stay in it, because the loop determines where its last vectors end.

    Before::

        kernel k(a: f32[12], dst: f32[4])
          for i in 0 .. 4:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for k in max(-i + 1, 0) .. 3:
                acc[] = acc[] + a[i * 3 + k]
              dst[i] = acc[]

    After ``outline()``::

        function tile0(ptr0: a, ptr1: dst, arg0)
          alloc acc: f32[] @register:
            acc[] = 0.0
            for k in arg0 .. 3:
              acc[] = acc[] + a[k + ptr0]
            dst[ptr1] = acc[]
        kernel k(a: f32[12], dst: f32[4])
          for i in 0 .. 4:
            call tile0(a @ i * 3, dst @ i, max(-i + 1, 0))
    """
    require_no_effects(kernel, "outline")
    o, whole = _Outline(frozenset(loops)), kernel.body
    body = o.stmt(whole)
    if not (loops or repeated) and len(o.functions) > 1 and (named := name_places(whole)) is not whole:
        of_places = _Outline(frozenset())
        within = of_places.stmt(named)
        if len(of_places.functions) < len(o.functions):
            o, body, whole = of_places, within, named
    if not loops:
        of_functions = o.sources.values()
        left = frozenset(x for found in of_functions for x in found if _is_short(x) or (repeated and len(found) == 1))
        if all(found[0] in left for found in of_functions):
            return kernel
        if left:
            o = _Outline(frozenset(loops), left)
            body = o.stmt(whole)
    if body is kernel.body:
        return kernel
    return replace(kernel, body=body, functions=(*kernel.functions, *o.functions))
