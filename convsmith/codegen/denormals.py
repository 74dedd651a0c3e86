"""Values that are never denormal, because instructions that flush denormal sums to zero have made them.

Such values are converted to bf16 by one instruction, which treats denormal numbers as zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import Invoke, Kernel, Store
from convsmith.ir.value import Binary, Const, Load, Value, Where
from convsmith.ir.walk import statements_of


def flushed_buffers(kernel: Kernel, rows: Mapping[str, Instruction]) -> frozenset[Buffer]:
    """Return the buffers to which the functions of ``kernel`` write only flushed sums, copies of them and zeros.

    Sums start at zero, which is not denormal.
    """
    written: dict[Buffer, list[Value | bool]] = {}
    for body in (kernel.body, *(f.body for f in kernel.functions)):
        for s in statements_of(body):
            if isinstance(s, Store):
                written.setdefault(s.buffer, []).append(s.value)
            elif isinstance(s, Invoke):
                written.setdefault(s.dst.buffer, []).append(rows[s.instruction].flushes)
    flushed = frozenset(b for b, values in written.items() if not any(x is False for x in values))
    while True:
        kept = frozenset(
            b for b in flushed if all(x is True or (x is not False and is_flushed(x, flushed)) for x in written[b])
        )
        if kept == flushed:
            return kept
        flushed = kept


def is_flushed(v: Value, flushed: frozenset[Buffer]) -> bool:
    """Return whether ``v`` selects among zeros and elements of ``flushed`` buffers."""
    if isinstance(v, Const):
        return v.value == 0
    if isinstance(v, Binary):
        return v.op in ("max", "min") and is_flushed(v.a, flushed) and is_flushed(v.b, flushed)
    if isinstance(v, Where):
        return is_flushed(v.yes, flushed) and is_flushed(v.no, flushed)
    return isinstance(v, Load) and v.buffer in flushed
