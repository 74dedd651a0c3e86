"""Clusters of blocks: blocks that run side by side and reach each other's shared memory, and the schedule of their
warps.

An address of another block's shared memory has the rank of the block in its upper bits (`mapa`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from convsmith.emulate.ptx.block import ThreadBlock
from convsmith.emulate.ptx.memory import SHARED
from convsmith.emulate.ptx.moves import block_barrier
from convsmith.emulate.ptx.operands import TYPES, Operands
from convsmith.emulate.ptx.parser import PtxError, PtxInstruction
from convsmith.emulate.ptx.warp import Execute, Warp

QUANTUM = 48
"""Maximum number of instructions that a warp runs before another warp may continue."""
PEER = 1 << 24
"""Distance between the addresses of the shared memory of two blocks of a cluster."""


def clusters_of(grid: Sequence[int], cluster: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the blocks of each cluster of a grid, by their ranks. PtxError if the clusters, whose
    extents along each axis are given, do not divide the grid.
    """
    if any(n % size for n, size in zip(grid, cluster)):
        raise PtxError(f"a grid of {tuple(grid)} blocks is not divided into clusters of {tuple(cluster)}")
    steps = (1, grid[0], grid[0] * grid[1])
    corners = product(*(range(0, n, size) for n, size in zip(grid, cluster)))
    inside = [at[::-1] for at in product(*(range(n) for n in reversed(cluster)))]
    return [[sum((a + b) * n for a, b, n in zip(corner, at, steps)) for at in inside] for corner in corners]


class BlockCluster:
    """The blocks of a cluster, by their ranks: all of their warps run interleaved, in a random order."""

    def __init__(self, blocks: Sequence[ThreadBlock]) -> None:
        self.blocks = blocks
        self.is_reached = False
        """Whether a block has reached the memory of another one since all threads met."""
        self.arrived: set[Warp] = set()
        self.meetings = 0
        self.published = np.zeros(blocks[0].clocks, np.int64)
        for block in blocks:
            block.cluster = self

    def run(self) -> None:
        """Run the blocks to their ends. PtxError if all warps wait for one another."""
        with np.errstate(all="ignore"):  # inactive lanes hold arbitrary values
            self._run()

    def _run(self) -> None:
        rng = self.blocks[0].rng
        for region in self.blocks[0].memory.regions:
            if region.accesses is not None:
                region.accesses.start_block()
        style = int(rng.integers(3))
        while True:
            warps = [w for block in self.blocks for w in block.warps if not w.is_done]
            if not warps:
                break
            ready = [w for w in warps if w.waiting is None or w.waiting()]
            underway = [x for x in self.blocks if x.underway]
            if underway and (not ready or rng.random() < 0.05):
                block = underway[int(rng.integers(len(underway)))] if len(underway) > 1 else underway[0]
                block.underway.pop(int(rng.integers(len(block.underway))))()
                continue
            if not ready:
                reasons = "; ".join(f"warp {w.number} waits for {w.why}" for w in warps)
                raise PtxError(f"block {warps[0].block.number}: no warp can go on: {reasons}")
            warp = ready[0] if style == 0 else ready[-1] if style == 1 else ready[int(rng.integers(len(ready)))]
            if warp.waiting is not None:
                warp.waiting = None
                warp.place += 1
            warp.run(1 + int(rng.integers(QUANTUM)))
            if warp.is_done:
                self._end(warp)

    def _end(self, warp: Warp) -> None:
        """End a warp, and its block if it is the last one."""
        self.meet()
        block = warp.block
        if any(not w.is_done for w in block.warps):
            return
        block.end()
        if self.is_reached:
            raise PtxError(f"block {block.number} ends while others of its cluster may still reach its shared memory")

    def meet(self) -> None:
        """End the phase of the barrier of the cluster if all warps that run have arrived."""
        if self.arrived and all(w.is_done or w in self.arrived for block in self.blocks for w in block.warps):
            self.arrived, self.is_reached, self.meetings = set(), False, self.meetings + 1

    def reach(self, block: ThreadBlock) -> None:
        """Record that another block reaches the memory of ``block``. PtxError if it has ended."""
        self.is_reached = True
        if block.has_ended:
            raise PtxError(f"block {block.number} has ended when another one reaches its shared memory")

    def chosen(self, mask: int) -> list[ThreadBlock]:
        """Return the blocks whose bits of a mask are set. PtxError if the cluster has fewer blocks."""
        if not mask or mask >> len(self.blocks):
            raise PtxError(f"the mask {mask:#x} of a copy names blocks beyond the {len(self.blocks)} of the cluster")
        return [block for n, block in enumerate(self.blocks) if mask >> n & 1]


def owner_of(warp: Warp, address: int) -> tuple[ThreadBlock, int]:
    """Return the block whose shared memory has a generic address, and the address in its own window."""
    rank, place = divmod(address - SHARED, PEER) if address >= SHARED else (0, address - SHARED)
    if not rank:
        return warp.block, address
    (block,) = warp.block.cluster.chosen(1 << rank - 1)
    if block is not warp.block:
        warp.block.cluster.reach(block)
    return block, SHARED + place


def in_block(block: ThreadBlock, warp: Warp, address: int) -> int:
    """Return the address, for a warp, of the place in the shared memory of ``block`` that ``address`` is in its own."""
    return address if block is warp.block else address + PEER * (block.rank + 1)


def _map(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``mapa``: the address of a place in the shared memory of the block of a rank."""
    type_ = TYPES[ins.words[-1]]
    put = made.write(ins.arguments[0], type_)
    place, rank = made.read(ins.arguments[1], type_), made.read(ins.arguments[2], TYPES["u32"])

    def mapped(warp: Warp, mask: np.ndarray) -> None:
        put(warp, (place(warp) + (rank(warp).astype(np.int64) + 1) * PEER).astype(type_.dtype), mask)

    return mapped


def _barrier(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``barrier.cluster``, or a barrier of a block."""
    if ins.words[1] != "cluster":
        return block_barrier(ins, made)
    return {"arrive": _arrive, "wait": _wait}[ins.words[2]]


def _arrive(warp: Warp, mask: np.ndarray) -> None:
    warp.require_all(mask, "a barrier of a cluster")
    cluster = warp.block.cluster
    if warp in cluster.arrived:
        raise PtxError(f"warp {warp.number} arrives twice at the barrier of the cluster")
    warp.clock.release(cluster.published)
    warp.state["meeting"] = cluster.meetings
    cluster.arrived.add(warp)
    cluster.meet()


def _wait(warp: Warp, mask: np.ndarray) -> None:
    warp.require_all(mask, "a barrier of a cluster")
    cluster, meeting = warp.block.cluster, warp.state.pop("meeting", None)
    if meeting is None:
        raise PtxError(f"warp {warp.number} waits at the barrier of the cluster, where it has not arrived")

    def has_met() -> bool:
        if cluster.meetings > meeting:
            warp.clock.acquire(cluster.published)
            return True
        return False

    if not has_met():
        warp.waiting, warp.why = has_met, "the other blocks of the cluster"


CLUSTERS: dict[str, Callable[[PtxInstruction, Operands], Execute]] = {"mapa": _map, "barrier": _barrier}
"""Instructions of clusters by the first word of their opcode."""
