"""Alignment of accesses to memory that belongs to a kernel: packed operands, results between entries, private buffers.

This memory begins at a multiple of the machine's alignment, so a divisor of an index proves the alignment of the
access. Arrays of the caller begin anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import gcd

from convsmith.arith.divisors import divisor_of
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.stmt import Call, For, Kernel, Let
from convsmith.ir.value import Load, lanes_of
from convsmith.ir.walk import statements_of

__all__ = ["AlignedPlaces"]


class AlignedPlaces:
    """The alignment of the places of ``kernel`` in the ``buffers`` that begin at multiples of ``alignment`` bytes."""

    def __init__(self, kernel: Kernel, buffers: Collection[Buffer], alignment: int) -> None:
        self._buffers, self._alignment = frozenset(buffers), alignment
        self._divisors = _divisors(kernel)

    def bytes_of(self, v: Load) -> int:
        """Return bytes that divide the address of the first lane of ``v``, at most the bytes of its vector."""
        size = v.buffer.dtype.bytes
        if v.buffer not in self._buffers:
            return size
        vector = size * max(lanes_of(v), 1)
        return max(size, gcd(divisor_of(v.index[0], self._divisors) * size, self._alignment, vector & -vector))


def _divisors(kernel: Kernel) -> dict[Var, int]:
    """Return a divisor of each variable of ``kernel`` and of its functions; variables without a known divisor are
    absent.

    Several loops and calls may bind one name. A divisor divides all values, so divisors shrink until a fixed point is
    reached.
    """
    bindings = list(_bindings(kernel))
    known = dict.fromkeys((var for var, _, _ in bindings), 0)
    while True:
        before = dict(known)
        for var, value, step in bindings:
            known[var] = gcd(known[var], divisor_of(value, known), step)
        if known == before:
            return known


def _bindings(kernel: Kernel) -> Iterator[tuple[Var, Index, int]]:
    """Yield each variable with a value that it takes, and the step by which it advances from that value."""
    parameters = {f.name: (*(var for var, _ in f.pointers), *f.indices) for f in kernel.functions}
    for body in (kernel.body, *(f.body for f in kernel.functions)):
        for s in statements_of(body):
            if isinstance(s, For):
                yield s.var, s.lo, 1
                yield from ((c.var, c.init, c.step) for c in s.carried)
            elif isinstance(s, Let):
                yield s.var, s.value, 0
            elif isinstance(s, Call):
                given = (*(place for _, place in s.pointers), *s.indices)
                yield from ((var, value, 0) for var, value in zip(parameters[s.function], given))
