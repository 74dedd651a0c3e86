"""Accesses to the lanes of a vector for which a condition holds, whose mask is computed when they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convsmith.codegen.masked_stores import INTEGERS
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Ge0, Index, as_index, conj, ge0, is_true, maximum, minimum, parts_of
from convsmith.ir.stmt import LANE, For, If
from convsmith.ir.types import DType
from convsmith.ir.value import Lanes, Load
from convsmith.ir.walk import bound_in, statements_of, variables_of, walk

__all__ = ["holds_on_all", "load_on_lanes", "mask_on_lanes", "masks_ahead", "run_on_lanes", "store_on_lanes"]

LEAST_BITS = 16
"""Minimum bits of the numbers that are compared: those of bytes do not hold each constant of a condition."""


def mask_on_lanes(emit: Any, cond: Cond, numbers: Sequence[int | None], bits: int) -> str:
    """Return the mask, with its type, of a vector of elements of ``bits``, each of which belongs to the lane of that
    number, if any: an element is active if ``cond`` holds for its lane.
    """
    key = ("lanes", cond, tuple(numbers), bits)
    mask = emit.known.get(key)
    if mask is None:
        known = ", ".join(f"i1 {'false' if n is None else 'true'}" for n in numbers)
        found = [f"<{known}>"] if None in numbers else []
        found += [_holding(emit, part, numbers, max(bits, LEAST_BITS)) for part in parts_of(cond)]
        mask = found[0]
        for each in found[1:]:
            mask = emit.put(f"and <{len(numbers)} x i1> {mask}, {each}")
        emit.known.set(key, mask)
    return f"<{len(numbers)} x i1> {mask}"


def _holding(emit: Any, part: Cond, numbers: Sequence[int | None], bits: int) -> str:
    """Return the mask of the elements for whose lane a condition holds: the terms of its lane and its constant are
    compared with the negated sum of its other terms, which conditions of adjacent taps share.
    """
    step = dict(part.arg.terms).get(LANE, 0) if isinstance(part, Ge0) else 0
    if not isinstance(part, Ge0) or not step:
        raise InternalError(f"the condition {part} does not bound the numbers of lanes")
    const = part.arg.const
    places = [step * (n or 0) + const for n in numbers]
    if max(map(abs, places)) >= 1 << bits - 2:
        raise InternalError(f"the condition {part} on lanes has a constant of more than {bits - 2} bits")
    count, ty, limit = len(numbers), f"<{len(numbers)} x i{bits}>", (1 << bits - 2) if bits < emit.bits else 0
    bound = LANE * step + const - part.arg
    key = ("bound of lanes", bound, count, bits)
    each = emit.known.get(key)
    if each is None:
        # The bound is clipped to what no place reaches, so that narrow integers hold it.
        narrow = emit.index(minimum(maximum(bound, -limit), limit) if limit else bound)
        if bits < emit.bits:
            narrow = emit.put(f"trunc {emit.it} {narrow} to i{bits}")
        elif bits > emit.bits:
            narrow = emit.put(f"sext {emit.it} {narrow} to i{bits}")
        one = emit.put(f"insertelement {ty} poison, i{bits} {narrow}, i64 0")
        each = emit.put(f"shufflevector {ty} {one}, {ty} poison, <{count} x i32> zeroinitializer")
        emit.known.set(key, each)
    constants = ", ".join(f"i{bits} {x}" for x in places)
    return str(emit.put(f"icmp sge {ty} <{constants}>, {each}"))


def divided_by_lanes(cond: Cond) -> tuple[Cond, Cond]:
    """Return the parts of a condition that depend on the lane, as one condition, and the other parts."""
    parts = parts_of(cond)
    return conj(x for x in parts if LANE in variables_of(x)), conj(x for x in parts if LANE not in variables_of(x))


def masks_ahead(emit: Any, around: For | If) -> None:
    """Compute the masks in a statement that do not change in it, which LLVM leaves there."""
    inside = bound_in(around)
    for s in statements_of(around.body):
        if not isinstance(s, If) or LANE not in variables_of(s.cond):
            continue
        on, _ = divided_by_lanes(s.cond)
        if variables_of(on).isdisjoint(inside):
            for v in (v for v in walk(s.body) if isinstance(v, Load) and v.buffer.scope != "register"):
                for _, numbers in _vectors(v.lanes) if v.lanes is not None and v.lanes.stride else ():
                    mask_on_lanes(emit, on, numbers, v.buffer.dtype.bits)


def _vectors(lanes: Lanes) -> Iterator[tuple[int, list[int | None]]]:
    """Yield the first element of each vector of adjacent elements that lanes a constant step apart reach, and the lane
    of each of its elements, None between two lanes.
    """
    n, step = lanes.count, lanes.stride or 1
    for start in range(0, (n - 1) * step + 1, n):
        places = [divmod(start + k, step) for k in range(n)]
        yield start, [lane if not rest and lane < n else None for lane, rest in places]


def load_on_lanes(emit: Any, v: Load, lanes: Lanes, cond: Cond) -> str:
    """Return the lanes of ``v``, a constant step apart, for which ``cond`` holds; the content of others is arbitrary.

    Each vector of adjacent elements that the lanes reach is loaded; small elements are integers, because LLVM splits
    masked loads of small floating-point types.
    """
    own, n, step = v.buffer.dtype, lanes.count, lanes.stride or 1
    t = INTEGERS.get(own.bits, own)
    ty, name = emit.type(t, n), f"@llvm.masked.load.{emit.suffix(t, n)}.p0"
    emit.declared[f"declare {ty} {name}(ptr, {emit.type_i1(n)}, {ty})"] = None
    found = ""
    for start, numbers in _vectors(lanes):
        mask, where = mask_on_lanes(emit, cond, numbers, t.bits), emit.address(v.buffer, v.index[0] + start)
        x = emit.put(f"call {ty} {name}(ptr align {t.bytes} {where}, {mask}, {ty} zeroinitializer)")
        if step == 1:
            found = x
            continue
        here = [n + lane * step - start if 0 <= lane * step - start < n else lane for lane in range(n)]
        found = emit.shuffle(t, n, found or "zeroinitializer", x, here)
    return found if t is own else str(emit.put(f"bitcast {ty} {found} to {emit.type(own, n)}"))


def holds_on_all(cond: Cond, count: int) -> Cond:
    """Return the condition that ``cond``, bounds of the numbers of lanes, holds for all of ``count`` lanes."""
    found = []
    for part in parts_of(cond):
        assert isinstance(part, Ge0)
        step = dict(part.arg.terms).get(LANE, 0)
        found.append(ge0(part.arg + step * ((count - 1 if step < 0 else 0) - LANE)))
    return conj(found)


def run_on_lanes(emit: Any, cond: Cond, count: int) -> tuple[str, str]:
    """Return the first of ``count`` lanes for which ``cond`` holds, and the one behind the last, as numbers of 32 bits
    from 0 to ``count``; the latter is not behind the first if it holds for none.
    """
    on, others = divided_by_lanes(cond)
    first, end = as_index(0), as_index(count)
    for part in parts_of(on):
        step = dict(part.arg.terms).get(LANE, 0) if isinstance(part, Ge0) else 0
        if not isinstance(part, Ge0) or not step:
            raise InternalError(f"the condition {part} does not bound the numbers of lanes")
        rest = part.arg - LANE * step
        if step > 0:
            first = minimum(maximum(first, -(rest // step)), count)
        else:
            end = maximum(minimum(end, rest // -step + 1), 0)
    low, high = (emit.index(x) if emit.bits == 32 or x.is_const else emit.put(f"trunc {emit.it} {emit.index(x)} to i32")
                 for x in (first, end))  # fmt: skip
    return low, high if is_true(others) else emit.put(f"select i1 {emit.cond(others)}, i32 {high}, i32 0")


def store_on_lanes(emit: Any, buffer: Buffer, index: Index, lanes: Lanes, x: str, cond: Cond) -> None:
    """Store the adjacent lanes of ``x`` for which ``cond`` holds.

    Where masked stores are slow, a vector of whose lanes none is left out is stored without a mask.
    """
    own, n = buffer.dtype, lanes.count
    t: DType = INTEGERS.get(own.bits, own)
    ty, name = emit.type(t, n), f"@llvm.masked.store.{emit.suffix(t, n)}.p0"
    if t is not own:
        x = emit.put(f"bitcast {emit.type(own, n)} {x} to {ty}")
    emit.declared[f"declare void {name}({ty}, ptr, {emit.type_i1(n)})"] = None
    where = emit.address(buffer, index)
    if not emit.has_masked_stores:
        whole, part, end = emit.label("whole"), emit.label("part"), emit.label("end")
        emit.lines.append(f"  br i1 {emit.cond(holds_on_all(cond, n))}, label %{whole}, label %{part}")
        emit.start(whole)
        emit.lines += [f"  store {ty} {x}, ptr {where}, align {t.bytes}", f"  br label %{end}"]
        emit.start(part)
        emit.known.push()
    mask = mask_on_lanes(emit, cond, range(n), t.bits)
    emit.lines.append(f"  call void {name}({ty} {x}, ptr align {t.bytes} {where}, {mask})")
    if not emit.has_masked_stores:
        emit.known.pop()
        emit.lines.append(f"  br label %{end}")
        emit.start(end)
