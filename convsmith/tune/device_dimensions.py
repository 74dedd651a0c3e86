"""The dimensions of the space of configs on a device: functions from a config to the changes of one decision.

Loops are the loops of the statement after fusing. A step may lead to an illegal config, which a space rejects when it
plans it. Configs under which a copy engine brings the operands have their own dimensions
(`tune/hardware_dimensions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from math import gcd
from typing import NamedTuple

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.group_limits import ATOMIC
from convsmith.schedule.loops import Loops, fused_name, loops_after_fusing
from convsmith.statement.parts import splits
from convsmith.statement.statement import Statement
from convsmith.tune.config_space import Changes
from convsmith.tune.fusions import Sizes, neighbours_of

__all__ = ["DEVICE_DIMENSIONS", "DevicePoint"]

COPIES = (("wait", 1), ("wait", 2), ("async", 2), ("async", 3), ("async", 4))
"""Kinds of copies to shared memory, each with a number of slots."""
PARTS = (2, 4, 8, 16)
"""Numbers of parts of a reduction that groups share."""


class DevicePoint(NamedTuple):
    """A config with its statement and device, and its loops after fusing."""

    config: Config
    statement: Statement
    loops: Loops
    machine: Machine
    problem: Problem


def _access(at: DevicePoint) -> int:
    """Return the maximum bytes that a thread moves at once, the unit by which rows of a copy may be longer."""
    assert at.machine.device is not None
    return at.machine.device.access


def _registers(at: DevicePoint) -> Iterator[Changes]:
    """Yield twice and half the tile of a thread or a warp along a loop; the tile of a group keeps its threads."""
    c = at.config
    for n in at.loops.of("batch", "n", "m"):
        own, whole = c.size(n), c.group_size(n)
        if own * 2 <= whole:  # fewer threads
            yield dict(register=_with_size(c.tiles_at("register"), n, own * 2))
        yield dict(
            register=_with_size(c.tiles_at("register"), n, own * 2), group=_with_size(c.tiles_at("group"), n, whole * 2)
        )
        if not own % 2:
            yield dict(register=_with_size(c.tiles_at("register"), n, own // 2))
            if not whole % 2:
                yield dict(
                    register=_with_size(c.tiles_at("register"), n, own // 2),
                    group=_with_size(c.tiles_at("group"), n, whole // 2),
                )


def _groups(at: DevicePoint) -> Iterator[Changes]:
    """Yield twice and half the tile of a group along a loop of the result."""
    c = at.config
    for n in at.loops.of("batch", "n", "m"):
        whole = c.group_size(n)
        yield dict(group=_with_size(c.tiles_at("group"), n, whole * 2))
        if not whole % (2 * c.size(n)):
            yield dict(group=_with_size(c.tiles_at("group"), n, whole // 2))


def _steps(at: DevicePoint) -> Iterator[Changes]:
    """Yield twice and half a step of the reduction, and steps with and without all taps."""
    c = at.config
    for n in at.loops.of("k"):
        whole, most = c.group_size(n), at.loops.extents[n]
        yield dict(group=_with_size(c.tiles_at("group"), n, min(whole * 2, most)))
        yield dict(group=_with_size(c.tiles_at("group"), n, most if whole == 1 else 1))
        if not whole % 2:
            yield dict(group=_with_size(c.tiles_at("group"), n, whole // 2))


def _shared(at: DevicePoint) -> Iterator[Changes]:
    """Yield the operands that a group copies to shared memory, with the corresponding way to read padding."""
    a, *others = (v.name for v in at.statement.factors)
    alone = dict(buffers=1, copies="wait", pad=(), swizzle=())
    for names in ((), (a,), (*others,), (a, *others)):
        realise = at.config.realise if a in names else "mask"
        yield dict(shared=names, realise=realise, **({} if names else alone))


def _copies(at: DevicePoint) -> Iterator[Changes]:
    """Yield the ways to copy, and the numbers of slots."""
    for how, slots in COPIES:
        yield dict(copies=how, buffers=slots)
    for barriers in ("whole", "split"):
        yield dict(barriers=barriers)


def _rows(at: DevicePoint) -> Iterator[Changes]:
    """Yield unchanged, longer and swizzled rows of a copy, against bank conflicts."""
    c = at.config
    for view in (v for v in at.statement.factors if v.name in c.staged("shared")):
        vector = _access(at) // dtype(view.dtype).bytes
        for longer, turned in ((0, 0), (1, 0), (vector, 0), (0, vector)):
            pad, swizzle = (
                _with_size(x, view.name, n, 1) for x, n in ((c.layouts("pad"), longer), (c.layouts("swizzle"), turned))
            )
            yield dict(pad=pad, swizzle=swizzle)


def _vectors(at: DevicePoint) -> Iterator[Changes]:
    """Yield vectors along the lane loop and along the innermost terms, and no vectors."""
    c = at.config
    if c.instruction:
        return
    widths = [n for n in (2, 4, 8) if n * max(dtype(v.dtype).bytes for v in at.statement.factors) <= _access(at)]
    for name in (c.lane, *c.reduce[-1:]):
        for width in (0, *widths):
            yield dict(vectors=_with_size(c.tiles_at("vectors"), name, width))


def _epilogues(at: DevicePoint) -> Iterator[Changes]:
    """Yield the bias and the summand of a ``sum`` as operands that a thread loads before the products, and no operands.
    """
    legal = [t.name for t in at.problem.tensors if t.role == "inout" or (t.role == "in" and t.holds == "bia")]
    for count in range(len(legal) + 1):
        yield dict(preload=tuple(legal[:count]))


def _orders(at: DevicePoint) -> Iterator[Changes]:
    """Yield the orders of groups, and of the steps of the reduction."""
    outer = [n for n in at.loops.of("batch", "n", "m") if at.loops.extents[n] > 1]
    for order in permutations(outer):
        yield dict(order=order)
    for reduce in permutations(at.loops.of("k")):
        yield dict(reduce=reduce)


def _parts(at: DevicePoint) -> Iterator[Changes]:
    """Yield the parts of the reduction of a gradient of weights, and how groups join them."""
    st = at.statement
    if st.constant or not splits(st):
        return
    yield dict(split=(), join="ordered")
    for d in st.of("k"):
        for parts in (n for n in PARTS if not d.size % n):
            yield dict(split=((d.name, parts),), join="ordered")
            if st.acc in ATOMIC and st.c.dtype == st.acc:
                yield dict(split=((d.name, parts),), join="atomic")


def _fusions(at: DevicePoint) -> Iterator[Changes]:
    """Yield the config with one more pair of adjacent loops fused, and with one pair of fused loops split."""
    c = at.config
    for pair in neighbours_of(at.loops, c.lane):
        outer, inner = pair
        name = fused_name(outer, inner)
        yield dict(
            fuse=(*c.fuse, pair),
            lane=name if c.lane == inner else c.lane,
            register=_fused_tile(c.tiles_at("register"), pair),
            group=_fused_tile(c.tiles_at("group"), pair),
            vectors=tuple((name if n == inner else n, size) for n, size in c.tiles_at("vectors") if n != outer),
            order=_fused_order(c.order, pair),
            reduce=_fused_order(c.reduce, pair),
        )
    for pair in c.fuse:
        outer, inner = pair
        name = fused_name(outer, inner)
        if name not in at.loops.extents:
            continue  # part of a third loop
        fuse = tuple(other for other in c.fuse if other != pair)
        extents = loops_after_fusing(at.statement, c.changed(fuse=fuse)).extents
        yield dict(
            fuse=fuse,
            lane=inner if c.lane == name else c.lane,
            register=_split_tile(c.tiles_at("register"), pair, extents),
            group=_split_tile(c.tiles_at("group"), pair, extents),
            vectors=tuple((inner if n == name else n, size) for n, size in c.tiles_at("vectors")),
            order=_split_order(c.order, pair),
            reduce=_split_order(c.reduce, pair),
        )


def _fused_tile(tile: Sizes, pair: tuple[str, str]) -> Sizes:
    """Return ``tile`` with the tiles of a ``pair`` of loops replaced by a tile of the fused loop."""
    sizes = dict(tile)
    size = sizes.pop(pair[0], 1) * sizes.pop(pair[1], 1)
    return _with_size(tuple(sizes.items()), fused_name(*pair), size)


def _split_tile(tile: Sizes, pair: tuple[str, str], extents: Mapping[str, int]) -> Sizes:
    """Return ``tile`` with the tile of a fused loop replaced by tiles of the ``pair`` of loops, the inner one first."""
    sizes = dict(tile)
    size = sizes.pop(fused_name(*pair), 1)
    inner = gcd(size, 1 << (extents[pair[1]] - 1).bit_length())
    return _with_size(_with_size(tuple(sizes.items()), pair[0], size // inner), pair[1], inner)


def _fused_order(names: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Return an order of loops with the fused loop of a ``pair`` in place of the inner loop."""
    return tuple(fused_name(*pair) if n == pair[1] else n for n in names if n != pair[0])


def _split_order(names: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Return an order of loops with a ``pair`` of loops in place of the loop that they were fused to."""
    return tuple(x for n in names for x in (pair if n == fused_name(*pair) else (n,)))


def _with_size(sizes: Sizes, name: str, size: int, least: int = 2) -> Sizes:
    """Return ``sizes`` with another size for ``name``; empty if it is below ``least``."""
    changed = {**dict(sizes), name: size}
    return tuple((n, s) for n, s in changed.items() if n != name or s >= least)


DEVICE_DIMENSIONS: dict[str, Callable[[DevicePoint], Iterator[Changes]]] = {
    "register": _registers, "group": _groups, "step": _steps, "copies": _copies, "rows": _rows, "shared": _shared,
    "vectors": _vectors, "epilogue": _epilogues, "order": _orders, "parts": _parts, "fuse": _fusions,
}  # fmt: skip
"""The dimensions of the space by name. Lanes and instructions come with the model's candidates."""
