"""Copies of parts of tensors (TMA): tiles and im2col, swizzled in shared memory, completed at any time after the issue.

A tensor map is opaque to a kernel; the interpreter passes a `PtxTensorMap` as the parameter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convsmith.diag.record import record
from convsmith.emulate.ptx.block import ThreadBlock
from convsmith.emulate.ptx.cluster import in_block
from convsmith.emulate.ptx.mbarriers import barrier_at
from convsmith.emulate.ptx.memory import SHARED_START, Region
from convsmith.emulate.ptx.operands import TYPES, Operands
from convsmith.emulate.ptx.parser import Address, Argument, Group, PtxError, PtxInstruction
from convsmith.emulate.ptx.warp import Execute, Warp


@record(frozen=True)
class PtxTensorMap:
    """The tensor in argument number `argument`: dims and strides (bytes) innermost first, and the box of a copy.

    An im2col map has `pixels` columns of `box[0]` channels in place of a box, and the corners of the box of base
    pixels, `lower` and `upper`, along the dims between channels and images, which it steps through by `steps`.
    """

    argument: int
    itemsize: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    pixels: int = 0
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if any(s % 16 for s in self.strides):
            raise PtxError(f"strides {self.strides} of a tensor map are no multiples of 16 bytes")
        if self.swizzle and self.box[0] * self.itemsize > self.swizzle:
            raise PtxError(f"rows of {self.box[0] * self.itemsize} bytes are swizzled over {self.swizzle} bytes")

    def elements(self, at: tuple[int, ...], offsets: tuple[int, ...]) -> np.ndarray:
        """Return the coordinates, innermost last, of the elements of a copy, in the order of shared memory."""
        if self.pixels:
            return self._columns(at, offsets)
        axes = [start + np.arange(size) for start, size in zip(reversed(at), reversed(self.box))]
        grid = np.meshgrid(*axes, indexing="ij")
        return np.stack([g.ravel() for g in grid], 1)

    def _columns(self, at: tuple[int, ...], offsets: tuple[int, ...]) -> np.ndarray:
        channel, *place = at
        inner = len(place) - 1
        first = list(self.lower)
        last = [size - 1 + up for size, up in zip(self.dims[1:], self.upper)]
        steps = self.steps or (1,) * inner
        found = []
        for _ in range(self.pixels):
            pixel = [p + o for p, o in zip(place, offsets)] + [place[-1]]
            found += [(*reversed(pixel), channel + c) for c in range(self.box[0])]
            for axis in range(inner):
                place[axis] += steps[axis]
                if place[axis] <= last[axis]:
                    break
                place[axis] = first[axis]
            else:
                place[-1] += 1
        return np.array(found)

    def source(self, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the byte offset of each element in the tensor, and whether it is within the tensor."""
        sizes, steps = np.array(self.dims[::-1]), np.array([*self.strides[::-1], self.itemsize])
        inside = np.asarray(((coordinates >= 0) & (coordinates < sizes)).all(1))
        return np.asarray((coordinates * steps).sum(1)), inside


def swizzled(addresses: np.ndarray, width: int) -> np.ndarray:
    """Return addresses of shared memory after a swizzle of `width` bytes: bits from 7 on are XORed into the bits from 4
    on.
    """
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[width]
    return np.asarray(addresses ^ ((addresses >> 7 & (1 << bits) - 1) << 4))


def _map_of(warp: Warp, address: int) -> PtxTensorMap:
    if address not in warp.block.maps:
        raise PtxError(f"address {address:#x} is not the address of a tensor map")
    return warp.block.maps[address]


def _shared_places(block: ThreadBlock, address: int, copied: PtxTensorMap, count: int) -> np.ndarray:
    """Return the bytes of shared memory of the elements of a copy, a row each."""
    shared = block.shared
    start = address - (shared.base - SHARED_START)
    if start % 128:
        raise PtxError(f"a tensor is copied to address {start} of shared memory, no multiple of 128")
    first = swizzled(start + np.arange(count) * copied.itemsize, copied.swizzle) - SHARED_START
    places = first[:, None] + np.arange(copied.itemsize)
    if places.min() < 0 or places.max() >= shared.size:
        nbytes = count * copied.itemsize
        raise PtxError(f"a copy of {nbytes} bytes to offset {start - SHARED_START} leaves shared memory")
    return places


def _operands(
    ins: PtxInstruction, made: Operands
) -> tuple[Address, Address, Address | None, Group, Argument | None]:  # fmt: skip
    """Return the addresses of shared memory, of the tensor map and of the barrier, the offsets of im2col, and the mask
    of a multicast.
    """
    if "mbarrier:complete_tx:bytes" in ins.words:
        shared, tensor, barrier, *more = ins.arguments
    else:
        tensor, shared, *more = ins.arguments
        barrier = None
    assert isinstance(shared, Address) and isinstance(tensor, Address)
    offsets = more[0] if more and isinstance(more[0], Group) else Group(())
    mask = more[-1] if "multicast:cluster" in ins.words else None
    return shared, tensor, barrier if isinstance(barrier, Address) else None, offsets, mask


def tensor_copy(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``cp.async.bulk.tensor``: a load that completes on a barrier, or a store of a group."""
    shared, tensor, barrier, offsets, given = _operands(ins, made)
    at_shared = made.address(shared, "shared")
    at_map = made.address(Address(tensor.base, tensor.offset), "")
    at_barrier = made.address(barrier, "shared") if barrier is not None else None
    place = [made.read(x, TYPES["s32"]) for x in tensor.coordinates]
    shift = [made.read(x, TYPES["u16"]) for x in offsets.items]
    ranks = made.read(given, TYPES["u16"]) if given is not None else None

    def copy(warp: Warp, mask: np.ndarray) -> None:
        for lane in np.flatnonzero(mask):
            copied = _map_of(warp, int(at_map(warp)[lane]))
            at, moved = (tuple(int(x(warp)[lane]) for x in values) for values in (place, shift))
            coordinates = copied.elements(at, moved)
            to, region = int(at_shared(warp)[lane]), warp.block.tensors[copied.argument]
            if at_barrier is None:
                places = _shared_places(warp.block, to, copied, len(coordinates))
                _store(warp, int(lane), copied, coordinates, places, region)
                continue
            chosen = 1 << warp.block.rank if ranks is None else int(ranks(warp)[lane])
            for block in warp.block.cluster.chosen(chosen):
                places = _shared_places(block, to, copied, len(coordinates))
                _load(warp, int(lane), block, int(at_barrier(warp)[lane]), copied, coordinates, places, region)

    return copy


def _load(warp: Warp, lane: int, block: ThreadBlock, at: int, copied: PtxTensorMap, coordinates: np.ndarray,
          places: np.ndarray, region: Region) -> None:  # fmt: skip
    shared = block.shared
    barrier = barrier_at(warp, in_block(block, warp, at), lane)
    shared.check_overwrite(places)
    agent = block.first + len(block.warps) + barrier.number
    assert shared.accesses is not None
    race = shared.accesses.write(places, np.full(len(places), warp.threads[lane]), warp.clock, block.number)
    if race:
        raise shared.fault(race)
    stamp = barrier.phase + 1
    shared.begin_pending(places, True)

    def complete() -> None:
        offsets, inside = copied.source(coordinates)
        rows = np.zeros(places.shape, np.uint8)
        read = offsets[inside][:, None] + np.arange(copied.itemsize)
        if not region.ready[read].all():
            raise region.fault("a tensor is copied before it is written")
        rows[inside] = region.data[read]
        if block.has_ended:
            raise PtxError(f"block {block.number} has ended when a copy of another block arrives")
        shared.end_pending(places, True)
        shared.data[places], shared.ready[places] = rows, 255
        assert shared.unfenced is not None
        shared.unfenced[places] = False
        assert shared.accesses is not None
        shared.accesses.note_copy(places, agent, stamp)
        barrier.published[agent] = stamp
        barrier.transact(places.size)

    warp.block.underway.append(complete)


def _store(warp: Warp, lane: int, copied: PtxTensorMap, coordinates: np.ndarray, places: np.ndarray,
           region: Region) -> None:  # fmt: skip
    block, shared = warp.block, warp.block.shared
    threads = np.full(len(places), warp.threads[lane])
    shared.require_fenced(places)
    shared.note_read(places, threads, warp.clock, block.number)
    shared.begin_pending(places, False)

    def complete() -> None:
        offsets, inside = copied.source(coordinates)
        written = offsets[inside][:, None] + np.arange(copied.itemsize)
        shared.end_pending(places, False)
        shared.note_read(places, threads, warp.clock, block.number)
        region.data[written], region.ready[written] = shared.data[places[inside]], 255

    warp.state.setdefault("open stores", []).append(complete)


def bulk_commit(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``cp.async.bulk.commit_group``."""

    def commit(warp: Warp, mask: np.ndarray) -> None:
        warp.state.setdefault("stores", []).append(warp.state.pop("open stores", []))

    return commit


def bulk_wait(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``cp.async.bulk.wait_group``: the stores of a group take effect when the program waits for the group."""
    pending = made.read(ins.arguments[0], TYPES["u32"])

    def wait(warp: Warp, mask: np.ndarray) -> None:
        groups = warp.state.setdefault("stores", [])
        while len(groups) > int(pending(warp)[0]):
            for complete in groups.pop(0):
                complete()

    return wait


BULK: dict[str, Callable[[PtxInstruction, Operands], Execute]] = {
    "tensor": tensor_copy, "commit_group": bulk_commit, "wait_group": bulk_wait,
}  # fmt: skip
"""Forms of ``cp.async.bulk`` by its fourth word."""
