"""Lanes that form a few runs of adjacent elements, such as a vector that crosses blocks of channels, as LLVM text.

Masked loads and stores access a run at once. Machines without them store each run by vectors of powers of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from convsmith.codegen.masked_stores import INTEGERS
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.types import DType
from convsmith.ir.value import Lanes, Load, strided

MAX_RUNS = 3
"""Maximum number of runs of a vector that is accessed by runs."""
MIN_LANES = 4
"""Minimum number of active lanes of such a vector."""


def runs_of(lanes: Lanes) -> Iterator[tuple[int, int]]:
    """Yield the first active lane of each run of adjacent elements, and the lane after its last one."""
    start = lanes.first
    for n in range(lanes.first + 1, lanes.active + 1):
        if n == lanes.active or lanes.offsets[n] != lanes.offsets[n - 1] + 1:
            yield start, n
            start = n


def has_long_runs(t: DType, lanes: Lanes) -> bool:
    """Return whether ``lanes`` are two or three runs of different lengths, which fewer accesses than lanes reach; rows
    of equal length are accessed as vectors of that length.
    """
    count = lanes.active - lanes.first
    if count < MIN_LANES or lanes.rows is not None or t.per_byte > 1:
        return False
    return 1 < sum(1 for _ in runs_of(lanes)) <= min(MAX_RUNS, count // 2)


def store_runs(emit: Any, buffer: Buffer, index: Index, lanes: Lanes, x: str) -> None:
    """Store the lanes of ``x``, a run at a time."""
    t, n = buffer.dtype, lanes.count
    if not emit.has_masked_stores:
        for start, width in (part for run in runs_of(lanes) for part in _powers(*run)):
            where = (index + lanes.offsets[start],)
            if width > 1:
                part = emit.shuffle(t, n, x, "poison", range(start, start + width))
                emit.store(buffer, where, strided(width, 1), part)
            else:
                one = emit.put(f"extractelement {emit.type(t, n)} {x}, i64 {start}")
                emit.store(buffer, where, None, one)
        return
    t = INTEGERS.get(t.bits, t)
    ty, name = emit.type(t, n), f"@llvm.masked.store.{emit.suffix(t, n)}.p0"
    if t is not buffer.dtype:
        x = emit.put(f"bitcast {emit.type(buffer.dtype, n)} {x} to {ty}")
    emit.declared[f"declare void {name}({ty}, ptr, {emit.type_i1(n)})"] = None
    for first, end in runs_of(lanes):
        where = emit.address(buffer, index + (lanes.offsets[first] - first))
        mask = emit.mask(Lanes(lanes.offsets, end, first))
        emit.lines.append(f"  call void {name}({ty} {x}, ptr align {t.bytes} {where}, {mask})")


def load_runs(emit: Any, v: Load, lanes: Lanes) -> str:
    """Return the lanes of ``v``, loaded a run at a time by masked loads; inactive lanes are zero."""
    t, n = v.buffer.dtype, lanes.count
    small = INTEGERS.get(t.bits, t)
    ty, name, out = emit.type(small, n), f"@llvm.masked.load.{emit.suffix(small, n)}.p0", "zeroinitializer"
    emit.declared[f"declare {ty} {name}(ptr, {emit.type_i1(n)}, {ty})"] = None
    for first, end in runs_of(lanes):
        where = emit.address(v.buffer, v.index[0] + (lanes.offsets[first] - first))
        mask = emit.mask(Lanes(lanes.offsets, end, first))
        out = emit.put(f"call {ty} {name}(ptr align {t.bytes} {where}, {mask}, {ty} {out})")
    return out if small is t else str(emit.put(f"bitcast {ty} {out} to {emit.type(t, n)}"))


def _powers(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the first lane and the width of vectors of powers of two that make up a run, the widest first."""
    while start < end:
        width = 1 << ((end - start).bit_length() - 1)
        yield start, width
        start += width
