"""Derive how operands are packed from the order in which the scheduled nest reads them.

The packing kernel is that nest without the loops that do not index the operands; it writes sequentially.  Operations on
a single element (inverted bits, a conversion, a mask) are part of packing.  If a loop's last tile is short, the packed
operand has zeros in the remainder of the tile.

If one access of the nest reads the operand, in loops of known lengths, the packed operand is an array with one dim per
loop.  Several accesses, or lengths known only at the call, give a stream with computed positions; if the types of its
elements differ, it is a stream of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from convsmith.arith.ranges import Range, Unbounded
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import UNKNOWN, Buffer, make_buffer
from convsmith.ir.index import Cond, Index, Var, as_index, conj, is_true, parts_of, product
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Let, PointerLoad, Stmt, Store, block
from convsmith.ir.types import U8, dtype
from convsmith.ir.value import Bits, Cast, Const, Load, Select, Value, const, dtype_of, lanes_of, strided
from convsmith.ir.walk import bound_in, children, statements_of, variables_of, walk
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.packed_sums import PackedElement, add_packed
from convsmith.passes.scope import extent, loop_range


class _Elements(Rewriter):
    """Replaces the largest subexpressions that use only the operands, by the result of ``read``.

    ``convert`` states whether a conversion to a wider type is part of the subexpression. If ``convert`` is the name of
    a type, an exact conversion to that type is part of it, provided that the nest converts the subexpression to a still
    wider type, or that the type is narrower than the subexpression.
    """

    def __init__(self, names: frozenset[str], convert: bool | str, read: Callable[[Value], Value]) -> None:
        super().__init__()
        self.names, self.convert, self.read = names, convert, read
        self.known: dict[Value, set[Load] | None] = {}

    def expr(self, e: Any) -> Any:
        if isinstance(e, Value) and e not in self._memo and (loads := self.loads(e)):
            if (converted := self.converted(e, loads)) is not None:
                self._memo[e] = converted
            elif self.convert is True or dtype_of(e).bits <= max(x.buffer.dtype.bits for x in loads):
                self._memo[e] = self.read(e)
        return super().expr(e)

    def converted(self, e: Value, loads: set[Load]) -> Value | None:
        """Return ``e``, which depends on ``loads``, as a conversion of packed elements of the type `convert`, or None.
        """
        if not isinstance(self.convert, str):
            return None
        held = dtype(self.convert)
        if held.bits < dtype_of(e).bits <= max(x.buffer.dtype.bits for x in loads):
            return Cast(dtype_of(e), self.read(Cast(held, e)))
        if not isinstance(e, Cast):
            return None
        given = e.a
        if not dtype_of(given).bits < held.bits < e.dtype.bits:
            return None
        if isinstance(given, Select):
            return Cast(e.dtype, self.read(Select(given.cond, Cast(held, given.yes), Cast(held, given.no))))
        return Cast(e.dtype, self.read(Cast(held, given)))

    def loads(self, v: Value) -> set[Load] | None:
        """Return the loads of operands on which ``v`` depends; None if it also depends on other loads."""
        if v not in self.known:
            loads: set[Load] | None = set()
            if isinstance(v, Load):
                loads = {v} if v.buffer.name in self.names else None
            for x in children(v):
                if isinstance(x, Value) and loads is not None:
                    below = self.loads(x)
                    loads = None if below is None else loads | below
            self.known[v] = loads
        return self.known[v]


def guards_of(root: Value, v: Value) -> tuple[Cond, ...]:
    """Return the conditions of the masks around ``v``, which hold whenever ``root`` evaluates it."""
    known: dict[Value, tuple[Cond, ...] | None] = {}

    def around(x: Value) -> tuple[Cond, ...] | None:
        if x is v:
            return ()
        if x not in known:
            paths: list[tuple[Cond, ...]] = []
            for child in children(x):
                guards = around(child) if isinstance(child, Value) else None
                if guards is not None:
                    masked = isinstance(x, Select) and child is x.yes and child is not x.no
                    paths.append((*parts_of(x.cond), *guards) if masked and isinstance(x, Select) else guards)
            known[x] = tuple(c for c in paths[0] if all(c in path for path in paths[1:])) if paths else None
        return known[x]

    return around(root) or ()


class _Unmasked(Rewriter):
    """Replaces masked values by the values themselves if some of ``conditions`` are the mask."""

    def __init__(self, conditions: tuple[Cond, ...]) -> None:
        super().__init__()
        self.conditions = conditions

    def visit_Select(self, v: Select) -> Value:
        is_zero = isinstance(v.no, Const) and v.no.value == 0
        return v.yes if is_zero and set(parts_of(v.cond)) <= set(self.conditions) else v


class Packing:
    """Walks the nest; a position counts elements of the stream, a buffer of ``scope``."""

    def __init__(
        self, kernel: Kernel, operands: frozenset[str], name: str, widths: dict[str, int], convert: bool | str,
        adjacent: tuple[str, ...] = (), filled: bool = False, scope: str = "global", order: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.kernel, self.operands, self.name, self.widths, self.convert = kernel, operands, name, widths, convert
        self.columns = columns
        self.adjacent, self.filled, self.scope, self.order = adjacent, filled, scope, order
        self.around: dict[Var, Range] = {}
        """Ranges of the variables of the loops around the nest."""
        tables = (x for x in statements_of(kernel.body) if isinstance(x, PointerLoad) and x.buffer.name in operands)
        self.pointed = {v for x in tables for i in (*x.index, x.offset) for v in variables_of(i)}
        """The variables that decide which pointer of a table leads to an element."""
        self.kept: list[tuple[For, Index]] = []
        self.bounds: list[Cond] = []
        self.ranges: dict[Var, Range] = {}
        self.found: dict[Stmt, list[Value]] = {}
        self.sizes: dict[Stmt, Index] = {}
        places = self.elements(kernel.body)
        types = {dtype_of(v) for v in places}
        self.alone = len(set(self.places(kernel.body, ()))) == 1
        """Whether there is one place, or all places read the same elements in the same order."""
        self.dtype = types.pop() if len(types) == 1 else U8
        self.packed: Buffer | None = None
        self.place: PackedElement | None = None
        self.whole = True
        """Whether the operands are packed completely."""
        self.once = len(places) == 1
        """Whether exactly one place reads the operands; an empty place packs no element."""

    def elements(self, s: Stmt) -> list[Value]:
        """Return the packed elements that a statement reads, one entry per access."""
        if s not in self.found:
            found = self.found[s] = []

            def note(v: Value) -> Value:
                found.append(v)
                return v

            if isinstance(s, Store):
                _Elements(self.operands, self.convert, note).expr(s.value)
                if any(map(lanes_of, found)):
                    raise ConfigError("lanes", f"derive_packing: {s} reads vectors; legal are single elements")
            for x in children(s):
                found += self.elements(x) if isinstance(x, Stmt) else ()
        return self.found[s]

    def places(self, s: Stmt, loops: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
        """Yield, for each place where ``s`` reads, the value to pack, its guards and the loops that index it."""
        if isinstance(s, Store):
            yield from ((v, guards_of(s.value, v), *loops) for v in self.elements(s))
        elif isinstance(s, For) and self.indexes(s):
            loops = (*loops, (s.var, s.lo, s.hi))
        for x in children(s):
            if isinstance(x, Stmt):
                yield from self.places(x, loops)

    def width(self, v: Value) -> int:
        return dtype_of(v).bits // self.dtype.bits

    def length(self, loop: For) -> Index:
        """Return the iterations of a loop; for a loop that a short last tile cuts, the iterations of a full tile."""
        try:
            most = extent(loop, {v: r for v, r in self.ranges.items() if v is not loop.var})
        except Unbounded:
            return loop.hi - loop.lo
        return as_index(max(most, self.widths.get(loop.var.name, 0)))

    def indexes(self, loop: For) -> bool:
        elements = self.elements(loop.body)
        if elements and loop.var in self.pointed:
            return True
        return any(loop.var.name in self.columns or loop.var in variables_of(v) for v in elements)

    def size(self, s: Stmt) -> Index:
        """Return the number of stream elements that one execution of a statement reads."""
        if s not in self.sizes:
            self.sizes[s] = self._size(s)
        return self.sizes[s]

    def _size(self, s: Stmt) -> Index:
        if not self.elements(s):
            return as_index(0)
        if isinstance(s, Block):
            return sum((self.size(x) for x in s.stmts), as_index(0))
        if isinstance(s, For):
            outer = self.enter(s)
            inner = self.size(s.body)
            self.ranges = outer
            return product(self.length(s), inner) if self.indexes(s) else inner
        if isinstance(s, (If, Let, Alloc, PointerLoad)):
            return self.size(s.body)
        return as_index(sum(map(self.width, self.elements(s))))

    def derive(self, s: Stmt, at: Index) -> tuple[Stmt, Stmt]:
        """Return the statement, reading packed elements from position ``at`` on, and the statement that writes them
        there.
        """
        if not self.elements(s):
            return s, block()
        if isinstance(s, Block):
            parts = []
            for x in s.stmts:
                parts.append(self.derive(x, at))
                at = at + self.size(x)
            return block(*(new for new, _ in parts)), block(*(pack for _, pack in parts))
        if isinstance(s, For):
            return self.loop(s, at)
        if isinstance(s, PointerLoad) and s.buffer.name in self.operands:  # only packing follows the pointer
            new, pack = self.derive(s.body, at)
            return new, replace(s, body=pack)
        if isinstance(s, (If, Let, Alloc, PointerLoad)):
            new, pack = self.derive(s.body, at)
            return replace(s, body=new), pack
        assert isinstance(s, Store)
        writes: list[Stmt] = []

        def read(v: Value) -> Value:
            nonlocal at
            new, write = self.element(v, at, guards_of(s.value, v))
            writes.append(write)
            at = at + self.width(v)
            return new

        value = _Elements(self.operands, self.convert, read).expr(s.value)
        if self.filled:
            guards = tuple(c for v in self.elements(s) for c in guards_of(s.value, v))
            value = _Unmasked(self.absent(guards)).expr(value)
        return Store(s.buffer, s.index, value, s.lanes), block(*writes)

    def absent(self, guards: tuple[Cond, ...]) -> tuple[Cond, ...]:
        """Return the ``guards`` that the loops of the packing kernel decide: it stores zeros where they do not hold."""
        own = {x.var for x, _ in self.kept} | self.around.keys()
        return tuple(c for c in guards if variables_of(c) <= own)

    def is_open(self, loop: For) -> bool:
        """Return whether a copy within the kernel has as many elements along ``loop`` as a call, and no zeros."""
        return self.scope != "global" and not variables_of(loop.hi).isdisjoint(self.kernel.sizes)

    def enter(self, loop: For) -> dict[Var, Range]:
        """Bind the loop's variable to its range, and return the previous ranges."""
        outer = dict(self.ranges)
        try:
            self.ranges[loop.var] = loop_range(loop, self.ranges)
        except Unbounded:
            self.ranges.pop(loop.var, None)
        return outer

    def loop(self, s: For, at: Index) -> tuple[Stmt, Stmt]:
        outer = self.enter(s)
        kept = self.indexes(s)
        own = {x.var for x, _ in self.kept} | self.around.keys()
        if kept:
            length = self.length(s)
            self.check(s, own)
            at = at + product(s.var, self.size(s.body))
            end = s.hi if self.is_open(s) else length
            bound = s.var < s.hi if end is not s.hi else conj(())
            self.kept.append((s, length))
        else:
            # An empty loop reads nothing, even if it does not index the operands.
            end = simplify(s.hi - s.lo, outer)
            bound = end > 0 if self.once and variables_of(end) <= own else conj(())
            self.whole &= is_true(bound)
        self.bounds.append(bound)
        new, pack = self.derive(s.body, at)
        self.bounds.pop()
        self.ranges = outer
        if kept:
            self.kept.pop()
            pack = pack if isinstance(pack, Block) and not pack.stmts else For(s.var, s.lo, end, pack)
        return For(s.var, s.lo, s.hi, new, s.kind, s.carried), pack

    def dims(self) -> list[tuple[For, Index]]:
        """Return the loops that index the operands, in the order of the packed operand's dims."""
        names = [x.var.name for x, _ in self.kept]
        if self.order:
            if sorted(self.order) != sorted(names):
                raise ConfigError(
                    "order", f"derive_packing: order {', '.join(self.order)}; legal is one of the loops that index "
                    f"{', '.join(sorted(self.operands))}: {', '.join(names)}",
                )  # fmt: skip
            return [self.kept[names.index(n)] for n in self.order]
        if not self.adjacent or not set(self.adjacent) <= set(names):
            return self.kept
        outer, inner = (names.index(n) for n in self.adjacent)
        before, after = self.kept[:inner], self.kept[inner:]
        return [*before[:outer], *before[outer + 1 :], self.kept[outer], *after]

    def check(self, loop: For, own: set[Var]) -> None:
        if not (loop.lo.is_const and loop.lo.const == 0):
            raise ConfigError("bounds", f"derive_packing: loop {loop.var} starts at {loop.lo}, not at 0")
        if not variables_of(loop.hi) & bound_in(self.kernel.body) <= own:
            why = f"which hangs on loops that do not index {', '.join(sorted(self.operands))}"
            raise ConfigError("bounds", f"derive_packing: loop {loop.var} ends at {loop.hi}, {why}")

    def element(self, v: Value, at: Index, guards: tuple[Cond, ...]) -> tuple[Value, Stmt]:
        """Return the packed access that replaces ``v``, and the store that packs it.

        If the guards do not hold, ``v`` is not read and may be outside of the operand.
        """
        absent = self.absent(guards)
        masked = isinstance(v, Select) and isinstance(v.no, Const) and v.no.value == 0
        mask, value = (v.cond, v.yes) if masked and isinstance(v, Select) else (conj(()), v)
        full = {**self.around, **{x.var: (0, n.const - 1) for x, n in self.kept if n.is_const}}
        cond = simplify(conj((*self.bounds, *absent, *parts_of(mask))), full)
        given = value if is_true(cond) else Select(cond, value, const(dtype_of(value), 0))
        index: tuple[Index, ...] = (at,)
        again = False
        if self.alone and all(n.is_const for _, n in self.kept):
            again = self.packed is not None
            dims = self.dims()
            self.packed = self.packed or make_buffer(
                self.name, self.dtype, tuple(n.const for _, n in dims), self.scope
            )
            index = tuple(x.var for x, _ in dims)
            if self.whole and not absent:
                self.place = PackedElement(tuple((x, n.const) for x, n in self.kept), v, Load(self.packed, index, None))
        elif self.packed is None:
            size = self.size(self.kernel.body)
            self.packed = make_buffer(self.name, self.dtype, (size.const if size.is_const else UNKNOWN,), self.scope)
        if self.dtype is dtype_of(v):
            return Load(self.packed, index, None), block() if again else Store(self.packed, index, given)
        width = self.width(v)
        lanes = strided(width, 1) if width > 1 else None
        read = Bits(dtype_of(v), Load(self.packed, index, lanes))
        return read, block() if again else Store(self.packed, index, Bits(self.dtype, given), lanes)


def packing_name(kernel: str, operands: Sequence[str]) -> str:
    """Return the name of the kernel that packs ``operands`` for ``kernel``."""
    return f"{kernel}_pack_{'_'.join(operands)}"


@stages(*LOOPS)
def derive_packing(
    kernel: Kernel, operands: Sequence[str], name: str, widths: Sequence[tuple[str, int]] = (),
    convert: bool | str = False, adjacent: tuple[str, ...] = (), filled: bool = False, order: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
) -> Kernel:  # fmt: skip
    """Make the kernel read its operands from a packed buffer, and add the packing kernel that writes it to ``packs``.

    Operands that are never read (every term absent) stay unpacked. ``widths`` gives loops with room for more elements
    than their iterations; ``convert`` also packs converted elements that are wider than the original: those of the nest
    or, if it is the name of a type, elements of that type, which the nest converts further. ``adjacent`` are two loops,
    the outer one first, whose dims are adjacent in the packed operand; ``order`` lists all loops that index the operand
    in the desired order of its dims. The packed operand has dims for the loops ``columns`` even if they do not index
    it, because it has one column. With ``filled``, the kernel multiplies the zeros that a packed operand holds in place
    of absent elements, without tests. If a kernel ``before`` this one only adds up entries, the packing kernel computes
    the sums (:mod:`convsmith.passes.packed_sums`).

    Before::

        kernel k(src: f32[6], wei: f32[3, 6], dst: f32[3])
          for oc.o in 0 .. 2:
            alloc acc: f32[2] @register:
              for oc.l in 0 .. min(-oc.o * 2 + 3, 2):
                acc[oc.l] = 0.0
              for ic in 0 .. 6:
                for oc.l in 0 .. min(-oc.o * 2 + 3, 2):
                  acc[oc.l] = acc[oc.l] + src[ic] * wei[oc.l + oc.o * 2, ic]
              for oc.l in 0 .. min(-oc.o * 2 + 3, 2):
                dst[oc.l + oc.o * 2] = acc[oc.l]

    After ``derive_packing(("wei",), "wei_p")``::

        kernel k(src: f32[6], wei_p: f32[2, 6, 2], dst: f32[3])
          for oc.o in 0 .. 2:
            alloc acc: f32[2] @register:
              for oc.l in 0 .. min(-oc.o * 2 + 3, 2):
                acc[oc.l] = 0.0
              for ic in 0 .. 6:
                for oc.l in 0 .. min(-oc.o * 2 + 3, 2):
                  acc[oc.l] = acc[oc.l] + src[ic] * wei_p[oc.o, ic, oc.l]
              for oc.l in 0 .. min(-oc.o * 2 + 3, 2):
                dst[oc.l + oc.o * 2] = acc[oc.l]
        pack k_pack_wei(wei: f32[3, 6], wei_p: f32[2, 6, 2])
          for oc.o in 0 .. 2:
            for ic in 0 .. 6:
              for oc.l in 0 .. 2:
                wei_p[oc.o, ic, oc.l] = (wei[oc.l + oc.o * 2, ic] if -oc.l - oc.o * 2 + 2 >= 0 else 0.0)

    Several operands make a stream, in the order in which they are read: with a bias ``b`` read before the weights,
    ``derive_packing(("b", "wei"), "s")`` reads ``s[oc.l + oc.o * 14]``, then ``s[ic * 2 + oc.l + oc.o * 14 + 2]``.
    """
    if stale := sorted({b.name for b in written_in(kernel.body)} & set(operands)):
        raise ConfigError(
            "dependence", f"derive_packing: kernel {kernel.name} writes {stale[0]}, which is packed before it runs; "
            f"legal are operands that it only reads",
        )  # fmt: skip
    packing = Packing(
        kernel, frozenset(operands), name, dict(widths), convert, adjacent, filled, order=order, columns=columns
    )
    body, writes = packing.derive(kernel.body, as_index(0))
    if packing.packed is None:
        return kernel
    before, known = kernel.before, kernel.params
    if packing.place is not None:
        sums, adding = add_packed(packing.place, kernel.before)
        if adding is not None:
            writes = block(writes, sums)
            before = tuple(k for k in kernel.before if k is not adding)
            known = tuple(dict.fromkeys((*known, *(b for b in adding.params if b.name not in operands))))
    loads = {x.buffer for x in walk(writes) if isinstance(x, Load)} - {packing.packed}
    given = tuple(b for b in known if b in loads)
    place = kernel.params.index(next(b for b in given if b.name in operands))
    rest = [b for b in kernel.params if b not in given or b.name not in operands]
    rest.insert(place, packing.packed)
    free = variables_of(writes)
    if unknown := free - bound_in(writes) - set(kernel.sizes):
        raise ConfigError(
            "bounds", f"derive_packing: {', '.join(operands)} is indexed by {min(map(str, unknown))}, which is no loop"
        )
    sizes = tuple(v for v in kernel.sizes if v in free)
    stored = {x.buffer for x in walk(writes) if isinstance(x, Store)}
    added = tuple(b for b in known if b in stored and b not in given)
    name = packing_name(kernel.name, operands)
    arrays = (*given, *added, packing.packed)
    pack = Kernel(name, arrays, writes, sizes=sizes)
    return replace(kernel, params=tuple(rest), body=body, packs=(*kernel.packs, pack), before=before)
