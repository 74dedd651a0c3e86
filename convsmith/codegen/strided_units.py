"""Loads and stores of scalable vectors whose lanes are evenly apart in memory, in all units.

A machine that has lengths of vectors has strided accesses; others gather and scatter the lanes, whose distances are a
vector of multiples of the step.
"""

from __future__ import annotations

from typing import Any

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.types import DType
from convsmith.ir.value import Lanes, Load


def load_strided(emit: Any, v: Load, lanes: Lanes) -> str:
    """Return a scalable vector of lanes that are `lanes.stride` elements apart; lanes beyond the last unit are zero or
    not specified.
    """
    t, n = v.buffer.dtype, lanes.count
    ty, where = emit.type(t, n), emit.address(v.buffer, v.index[0])
    if emit.has_vector_lengths:
        name = f"@llvm.experimental.vp.strided.load.{emit.suffix(t, n)}.p0.i64"
        emit.declared[f"declare {ty} {name}(ptr, i64, {emit.type_i1(n)}, i32)"] = None
        return str(emit.put(f"call {ty} {name}(ptr align {t.bytes} {where}, {_step(t, lanes)}, {emit.number_of(n)})"))
    pointers = emit.vector("ptr", n)
    name = f"@llvm.masked.gather.{emit.suffix(t, n)}.{emit.letters(n)}p0"
    emit.declared[f"declare {ty} {name}({pointers}, {emit.type_i1(n)}, {ty})"] = None
    places = f"{pointers} align {t.bytes} {_places(emit, t, lanes, where)}"
    return str(emit.put(f"call {ty} {name}({places}, {emit.mask(lanes)}, {ty} zeroinitializer)"))


def store_strided(emit: Any, buffer: Buffer, index: Index, lanes: Lanes, x: str) -> None:
    """Store the lanes of the scalable vector ``x``, `lanes.stride` elements apart."""
    t, n = buffer.dtype, lanes.count
    ty, where = emit.type(t, n), emit.address(buffer, index)
    if emit.has_vector_lengths:
        name = f"@llvm.experimental.vp.strided.store.{emit.suffix(t, n)}.p0.i64"
        emit.declared[f"declare void {name}({ty}, ptr, i64, {emit.type_i1(n)}, i32)"] = None
        place = f"ptr align {t.bytes} {where}, {_step(t, lanes)}"
        emit.lines.append(f"  call void {name}({ty} {x}, {place}, {emit.number_of(n)})")
        return
    pointers = emit.vector("ptr", n)
    name = f"@llvm.masked.scatter.{emit.suffix(t, n)}.{emit.letters(n)}p0"
    emit.declared[f"declare void {name}({ty}, {pointers}, {emit.type_i1(n)})"] = None
    places = f"{pointers} align {t.bytes} {_places(emit, t, lanes, where)}"
    emit.lines.append(f"  call void {name}({ty} {x}, {places}, {emit.mask(lanes)})")


def _step(t: DType, lanes: Lanes) -> str:
    """Return the distance of lanes in bytes, as an operand."""
    assert lanes.stride is not None
    return f"i64 {lanes.stride * t.bytes}"


def _places(emit: Any, t: DType, lanes: Lanes, where: str) -> str:
    """Return the addresses of all lanes from ``where`` on; their distances, which one vector serves, have 32 bits."""
    numbers = emit.vector("i32", lanes.count)
    key = ("places", numbers, lanes.stride)
    places = emit.known.get(key)
    if places is None:
        name = f"@llvm.stepvector.{emit.letters(lanes.count)}i32"
        emit.declared[f"declare {numbers} {name}()"] = None
        step = emit.put(f"call {numbers} {name}()")
        places = emit.put(f"mul nsw {numbers} {step}, splat (i32 {lanes.stride})")
        emit.known.set(key, places)
    return str(emit.put(f"getelementptr {t.llvm}, ptr {where}, {numbers} {places}"))
