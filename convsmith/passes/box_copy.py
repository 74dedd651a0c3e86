"""Copies of the footprint of a loop's body, halo and padding included.

The footprint is, for each dim of the buffer, the range of coordinates that one iteration of the loop reads.  The copy
holds zero for coordinates outside the buffer, so the mask moves from every access into the copy.  An absent term
becomes a product with a stored zero, which has the same value if the other factor is finite.  An exact copy holds only
elements that exist; masks stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from convsmith.arith.ranges import Range
from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer, dense
from convsmith.ir.index import Index, Var, as_index, maximum, minimum
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, Block, For, Stmt, Store, block
from convsmith.ir.types import DType, dtype
from convsmith.ir.value import Cast, Load
from convsmith.ir.walk import children, walk
from convsmith.passes.copies import LoadsOfCopy, StagedReads, read_or_fill
from convsmith.passes.footprint import box, dense_blocks
from convsmith.passes.relocate import Place, Relocate


@record(frozen=True)
class BoxCopy:
    """A copy of the box of elements that are read, in the buffer's order of dims, but that ``innermost`` is contiguous.

    ``fill`` is stored for elements outside the buffer, and must make their terms zero. A copy in registers is written
    by unrolled code; a loop ``<buffer>_s.l`` over its last dim can be vectorised, and ``width`` is the room for its
    elements. An ``exact`` copy holds its dims in their own order, and only elements that exist; it runs before the
    first statement that reads it. With ``masked``, the loads keep their masks. With ``convert``, the copy holds
    elements of the type to which the nest converts each of them or, if it is the name of a type, elements of that type,
    which the nest converts further. The contiguous dim is filled up to a ``multiple`` of
    elements; if ``count`` says how many of them there are, those that a blocked layout adds are ``fill`` too. Along
    the dim ``beyond``, the copy has ``more`` elements behind those that are read. Loads keep their conditions along the
    dims ``inside``, along which the copy has only elements that exist if each iteration reads the same ones.
    """

    innermost: int | None = None
    fill: int = 0
    width: int = 1
    exact: bool = False
    masked: bool = False
    convert: bool | str = ""
    multiple: int = 1
    count: int | None = None
    beyond: int | None = None
    more: int = 0
    inside: tuple[int, ...] = ()
    ending = "s"

    def __str__(self) -> str:
        given = ((x.name, getattr(self, x.name)) for x in fields(self) if getattr(self, x.name) != x.default)
        return " ".join(["box", *(name if value is True else f"{name}={value}" for name, value in given)])

    def staged(self, reads: StagedReads, name: str, scope: str) -> Stmt:
        """Return the loop of ``reads``, each iteration of which fills a copy, called ``name``, and reads it."""
        loop, old, ranges, inner = reads.loop, reads.old, reads.around, reads.inner
        origin, shape = [], []
        for dim in range(len(old.shape)):
            base, lo, hi = box([r.index[dim] for r in reads.loads], ranges, inner, f"{old.name} along dim {dim}")
            if base.is_const and (self.exact or dim in self.inside):
                lo, hi = max(lo, 0), min(hi, old.shape[dim] - 1)
            origin.append(base + lo)
            shape.append(hi - lo + 1)
        nearest = min(old.blocks, key=lambda b: b.stride).dim
        shape[nearest] = max(shape[nearest], self.width)
        last = nearest if self.innermost is None else self.innermost
        shape[last] = -(-shape[last] // self.multiple) * self.multiple
        if self.beyond is not None:
            shape[self.beyond] += self.more
        blocks = dense(tuple(shape)) if self.exact else dense_blocks(old.blocks, shape, self.innermost)
        held = self._type(old, loop.body)
        new = Buffer(name, held, tuple(shape), blocks, scope)

        def place(index: Place) -> Place:
            return tuple(i - o for i, o in zip(index, origin))

        if self.exact:
            copy = _exact_copy(old, new, origin, ranges)
            body = _before_first_read(old, new, copy, Relocate(old, new, place), loop.body)
        else:
            sizes = [self.count if d == last and self.count is not None else n for d, n in enumerate(old.shape)]
            copy = _copy(old, new, origin, {**ranges}, self.fill, sizes)
            known = {**ranges, **inner}
            to_copy = Relocate(old, new, place) if self.masked else LoadsOfCopy(old, new, place, known, self.inside)
            body = Alloc(new, block(copy, to_copy.stmt(loop.body)))
        return reads.with_body(body)

    def _type(self, old: Buffer, body: Stmt) -> DType:
        """Return the type of the elements of the copy of ``old``, which ``body`` reads."""
        if isinstance(self.convert, str):
            return dtype(self.convert) if self.convert else old.dtype
        return _read_as(old, body) if self.convert else old.dtype


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
