"""Lanes that are a small step apart in memory, stored by masked stores of whole vectors instead of one by one."""

from __future__ import annotations

from typing import Any

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.types import S8, S16, DType
from convsmith.ir.value import MAX_SPREAD, Lanes

INTEGERS = {8: S8, 16: S16}
"""Types by their bits that masked accesses of small elements have, because LLVM splits those of small floats."""


def is_spread(t: DType, lanes: Lanes) -> bool:
    """Return whether masked stores of vectors take fewer instructions than stores of each of the lanes."""
    step = lanes.stride or 0
    return 1 < step <= MAX_SPREAD and lanes.active - lanes.first > 2 * step


def store_spread(emit: Any, buffer: Buffer, index: Index, lanes: Lanes, x: str) -> None:
    """Store the lanes of ``x``, whose step is `lanes.stride`, by a masked store for each vector that they reach.

    Small elements are integers, because LLVM splits masked stores of small floating-point types.
    """
    t, n, step = INTEGERS.get(buffer.dtype.bits, buffer.dtype), lanes.count, lanes.stride or 1
    ty, name = emit.type(t, n), f"@llvm.masked.store.{emit.suffix(t, n)}.p0"
    if t is not buffer.dtype:
        x = emit.put(f"bitcast {emit.type(buffer.dtype, n)} {x} to {ty}")
    emit.declared[f"declare void {name}({ty}, ptr, {emit.type_i1(n)})"] = None
    for start in range(0, n * step, n):
        places = [divmod(start + k, step) for k in range(n)]
        written = [not rest and lanes.first <= lane < lanes.active for lane, rest in places]
        if not any(written):
            continue
        spread = emit.shuffle(t, n, x, "poison", [lane for lane, _ in places])
        mask = ", ".join(f"i1 {'true' if each else 'false'}" for each in written)
        where = emit.address(buffer, index + start)
        emit.lines.append(
            f"  call void {name}({ty} {spread}, ptr align {t.bytes} {where}, {emit.type_i1(n)} <{mask}>)"
        )
