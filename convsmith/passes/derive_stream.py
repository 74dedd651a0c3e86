"""Derive how several operands are packed as one stream, from the order in which the scheduled nest reads them.

The packing kernel is the nest without the loops that index no operand, writing sequentially; elements beyond an operand
are zero.  Operands of one type make a stream of that type, those of several a stream of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import UNKNOWN, Buffer, make_buffer
from convsmith.ir.index import Cond, Index, Min, Var, as_index, conj, is_true, parts_of, product
from convsmith.ir.stmt import Alloc, At, Block, For, If, Kernel, Let, Stmt, Store, block
from convsmith.ir.types import U8, DType
from convsmith.ir.value import Bits, Load, Select, Value, const, dtype_of, strided
from convsmith.ir.walk import Rewriter, variables_of, walk


class _Leaves(Rewriter):
    """Replace what a statement reads of the operands, a masked read as a whole, by what ``read`` gives for it."""

    def __init__(self, names: frozenset[str], read) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.names, self.read = names, read

    def Load(self, v: Load) -> Value:
        return self.read(v) if v.buffer.name in self.names else self._Load(v)

    def Select(self, v: Select) -> Value:
        masked = isinstance(v.yes, Load) and v.yes.buffer.name in self.names
        return self.read(v) if masked else self._Select(v)


class _Stream:
    """Walks the nest; positions count elements of the stream."""

    def __init__(self, stream: Buffer, names: frozenset[str]) -> None:
        self.stream, self.names = stream, names
        self.bounds: list[Cond] = []

    def width(self, v: Value) -> int:
        return dtype_of(v).bytes // self.stream.dtype.bytes

    def operands_below(self, s: Stmt) -> list[Load]:
        return [x for x in walk(s) if isinstance(x, Load) and x.buffer.name in self.names]

    def indexes(self, loop: For) -> bool:
        return any(loop.var in variables_of(i) for x in self.operands_below(loop.body) for i in x.index)

    def length(self, loop: For) -> Index:
        """Iterations of a loop; of one that a tile cut short, all of the tile."""
        ends = [a.const for a in loop.hi.args if a.is_const] if isinstance(loop.hi, Min) else []
        return as_index(min(ends)) if ends else loop.hi - loop.lo

    def size(self, s: Stmt) -> Index:
        """Elements that a statement reads, once."""
        if isinstance(s, Block):
            return sum((self.size(x) for x in s.stmts), as_index(0))
        if isinstance(s, For):
            inner = self.size(s.body)
            return product(self.length(s), inner) if self.indexes(s) else inner
        if isinstance(s, (If, Let, Alloc, At)):
            return self.size(s.body)
        assert isinstance(s, Store)
        total = 0

        def count(v: Value) -> Value:
            nonlocal total
            total += self.width(v)
            return v

        _Leaves(self.names, count).expr(s.value)
        return as_index(total)

    def derive(self, s: Stmt, at: Index) -> tuple[Stmt, Stmt]:
        """The statement reading the stream from a position on, and the one that writes the stream there."""
        if isinstance(s, Block):
            parts = []
            for x in s.stmts:
                parts.append(self.derive(x, at))
                at = at + self.size(x)
            return block(*(new for new, _ in parts)), block(*(pack for _, pack in parts))
        if isinstance(s, For):
            return self.loop(s, at)
        if isinstance(s, (If, Let, Alloc, At)):
            new, pack = self.derive(s.body, at)
            return replace(s, body=new), pack
        assert isinstance(s, Store)
        writes: list[Stmt] = []

        def read(v: Value) -> Value:
            nonlocal at
            new, write = self.element(v, at)
            writes.append(write)
            at = at + self.width(v)
            return new

        value = _Leaves(self.names, read).expr(s.value)
        return Store(s.buffer, s.index, value, s.lanes), block(*writes)

    def loop(self, s: For, at: Index) -> tuple[Stmt, Stmt]:
        if not self.indexes(s):
            new, pack = self.derive(s.body, at)
            return For(s.var, s.lo, s.hi, new, s.kind, s.carried), pack
        if not (s.lo.is_const and s.lo.const == 0):
            raise ConfigError("bounds", f"derive_stream: loop {s.var} starts at {s.lo}, not at 0")
        length = self.length(s)
        cut = length is not s.hi
        if cut:
            self.bounds.append(s.var < s.hi)
        new, pack = self.derive(s.body, at + product(s.var, self.size(s.body)))
        if cut:
            self.bounds.pop()
        return For(s.var, s.lo, s.hi, new, s.kind, s.carried), For(s.var, s.lo, length, pack)

    def element(self, v: Value, at: Index) -> tuple[Value, Stmt]:
        """An operand's element as the stream has it, and the store that puts it there."""
        mask, load = (v.cond, v.yes) if isinstance(v, Select) else (conj(()), v)
        cond = conj((*self.bounds, *parts_of(mask)))
        given: Value = load if is_true(cond) else Select(cond, load, const(dtype_of(load), 0))
        width = self.width(v)
        if self.stream.dtype is dtype_of(v):
            return Load(self.stream, (at,), None), Store(self.stream, (at,), given)
        lanes = strided(width, 1) if width > 1 else None
        read = Bits(dtype_of(v), Load(self.stream, (at,), lanes))
        return read, Store(self.stream, (at,), Bits(self.stream.dtype, given), lanes)


def _stream_type(types: set[DType]) -> DType:
    return types.pop() if len(types) == 1 else U8


def derive_stream(kernel: Kernel, operands: Sequence[str], name: str) -> Kernel:
    """Let the kernel read its operands from one stream, and add the packing kernel that writes it to ``packs``.

    Before::

        kernel k(b: f32[3], w: f32[3, 2], a: f32[2], dst: f32[3])
          for c.o in 0 .. 2:
            for c.l in 0 .. min(-c.o * 2 + 3, 2):
              dst[c.l + c.o * 2] = b[c.l + c.o * 2]
            for k in 0 .. 2:
              for c.l in 0 .. min(-c.o * 2 + 3, 2):
                dst[c.l + c.o * 2] = dst[c.l + c.o * 2] + a[k] * w[c.l + c.o * 2, k]

    After ``derive_stream(("b", "w"), "s")``::

        kernel k(s: f32[?], a: f32[2], dst: f32[3])
          for c.o in 0 .. 2:
            for c.l in 0 .. min(-c.o * 2 + 3, 2):
              dst[c.l + c.o * 2] = s[c.l + c.o * 6]
            for k in 0 .. 2:
              for c.l in 0 .. min(-c.o * 2 + 3, 2):
                dst[c.l + c.o * 2] = dst[c.l + c.o * 2] + a[k] * s[c.l + c.o * 6 + k * 2 + 2]
        pack k_pack_s(b: f32[3], w: f32[3, 2], s: f32[?])
          for c.o in 0 .. 2:
            for c.l in 0 .. 2:
              s[c.l + c.o * 6] = (b[c.l + c.o * 2] if -c.l + min(-c.o * 2 + 3, 2) - 1 >= 0 else 0.0)
            for k in 0 .. 2:
              for c.l in 0 .. 2:
                s[c.l + c.o * 6 + k * 2 + 2] = (w[c.l + c.o * 2, k] if -c.l + min(-c.o * 2 + 3, 2) - 1 >= 0 else 0.0)
    """
    names = frozenset(operands)
    given = tuple(b for b in kernel.params if b.name in names)
    if not given:
        return kernel
    stream = make_buffer(name, _stream_type({b.dtype for b in given}), (UNKNOWN,))
    body, packing = _Stream(stream, names).derive(kernel.body, as_index(0))
    first = kernel.params.index(given[0])
    rest = [b for b in kernel.params if b not in given]
    rest.insert(first, stream)
    free: set[Var] = variables_of(packing)
    sizes = tuple(v for v in kernel.sizes if v in free)
    pack = Kernel(f"{kernel.name}_pack_{name}", (*given, stream), packing, sizes=sizes)
    return replace(kernel, params=tuple(rest), body=body, packs=(*kernel.packs, pack))
