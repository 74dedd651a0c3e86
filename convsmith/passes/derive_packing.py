"""Derive how an operand is packed from the order in which the scheduled nest reads it.

The packing kernel is that nest without the loops that do not index the operand, writing sequentially.  Elements
beyond the operand (where a loop was split with a rest, so that its last tile is cut short) are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import as_index, conj, is_true
from convsmith.ir.stmt import For, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Bits, Cast, Const, Load, Select, Value, const, dtype_of
from convsmith.ir.walk import Rewriter, variables_of
from convsmith.passes.scope import ScopedRewriter, extent


def _flipped(v: Value) -> Value:
    """What is read where a value is that with some bits turned over; else the value."""
    if isinstance(v, Bits) and isinstance(v.a, Binary) and v.a.op == "xor" and isinstance(v.a.b, Const):
        return v.a.a
    return v


class _FindRead(ScopedRewriter):
    """The read of a buffer and the loops around it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.loops: list[For] = []
        self.flips: set[Bits] = set()
        self.casts: set[Cast] = set()
        self.reads: dict[Load, tuple[list[For], dict]] = {}  # type: ignore[type-arg]

    def For(self, loop: For) -> Stmt:
        self.loops.append(loop)
        out = self._For(loop)
        self.loops.pop()
        return out

    def Load(self, v: Load) -> Value:
        if self.reads_it(v):
            self.reads[v] = (list(self.loops), dict(self.ranges))
        return v

    def Bits(self, v: Bits) -> Value:
        if self.reads_it(_flipped(v)):
            self.flips.add(v)
        return self._Bits(v)

    def Cast(self, v: Cast) -> Value:
        if self.reads_it(_flipped(v.a)):
            self.casts.add(v)
        return self._Cast(v)

    def reads_it(self, v: Value) -> bool:
        return isinstance(v, Load) and v.buffer.name == self.name


class _ReplaceRead(Rewriter):
    def __init__(self, read: Value, new: Load) -> None:
        super().__init__()
        self.read, self.new = read, new

    def Load(self, v: Load) -> Value:
        return self.new if v is self.read else self._Load(v)

    def Bits(self, v: Bits) -> Value:
        return self.new if v is self.read else self._Bits(v)

    def Cast(self, v: Cast) -> Value:
        return self.new if v is self.read else self._Cast(v)


def derive_packing(
    kernel: Kernel, operand: str, widths: Sequence[tuple[str, int]] = (), convert: bool = False
) -> Kernel:
    """Replace the one read of ``operand`` by a read of a packed buffer; add the packing kernel to ``packs``.

    An operand that is not read (every term absent) stays as it is. Where the nest turns over bits of each element,
    that is packed; ``convert`` packs what a conversion makes of the elements, where the nest converts each.

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

    After ``derive_packing("wei")``::

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
    """
    find = _FindRead(operand)
    find.stmt(kernel.body)
    if not find.reads:
        return kernel
    if len(find.reads) != 1:
        raise ConfigError(
            "reads", f"derive_packing: {operand} is read in {len(find.reads)} places; packing is derived from one"
        )
    ((read, (loops, ranges)),) = find.reads.items()
    used = set().union(*(variables_of(i) for i in read.index))
    # A loop that does not index the operand may still be empty, and then nothing is read.
    ends = [simplify(x.hi - x.lo, ranges) for x in loops if x.var not in used]
    bounds = [end > 0 for end in ends if variables_of(end) <= used]
    loops = [x for x in loops if x.var in used]
    shape = []
    for x in loops:
        n = extent(x, {v: r for v, r in ranges.items() if v is not x.var})
        shape.append(max(n, dict(widths).get(x.var.name, 0)))
        bounds.append(x.var < x.hi)
        if not (x.lo.is_const and x.lo.const == 0):
            raise ConfigError("bounds", f"derive_packing: loop {x.var} starts at {x.lo}, not at 0")
        if not variables_of(x.hi) <= used:
            why = f"which hangs on loops that do not index {operand}"
            raise ConfigError("bounds", f"derive_packing: loop {x.var} ends at {x.hi}, {why}")
    taken: Value = find.flips.pop() if len(find.flips) == 1 else read
    taken = find.casts.pop() if convert and len(find.casts) == 1 else taken
    packed = make_buffer(operand + "_p", dtype_of(taken), tuple(shape))
    index = tuple(x.var for x in loops)
    full = {x.var: (0, n - 1) for x, n in zip(loops, shape)}
    cond = simplify(conj(bounds), full)
    value = taken if is_true(cond) else Select(cond, taken, const(packed.dtype, 0))
    body: Stmt = Store(packed, index, value)
    for x, n in reversed(list(zip(loops, shape))):
        body = For(x.var, as_index(0), as_index(n), body)
    pack = Kernel(f"{kernel.name}_pack_{operand}", (read.buffer, packed), body)
    params = tuple(packed if b is read.buffer else b for b in kernel.params)
    new_body = _ReplaceRead(taken, Load(packed, index, None)).stmt(kernel.body)
    return replace(kernel, params=params, body=new_body, packs=(*kernel.packs, pack))
