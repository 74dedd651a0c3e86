"""A block of threads: its warps, shared memory, barriers and pending operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from convsmith.emulate.ptx.memory import LOCAL, PARAM, SHARED, SHARED_START, Clock, GlobalMemory, Lanes, Region
from convsmith.emulate.ptx.parser import PtxError
from convsmith.emulate.ptx.register_shares import check_shares
from convsmith.emulate.ptx.warp import LANES, Operation, Warp

if TYPE_CHECKING:
    from convsmith.emulate.ptx.cluster import BlockCluster
    from convsmith.emulate.ptx.tensor_copies import PtxTensorMap

AGENTS = 64
"""Maximum number of barriers in shared memory of a block; each has its own clock for copies that complete on it."""


class NamedBarrier:
    """A barrier of the hardware: warps that arrived, and the clock that they published."""

    def __init__(self, clocks: int) -> None:
        self.arrived: list[Warp] = []
        self.waiting: list[Warp] = []
        self.published = np.zeros(clocks, np.int64)
        self.generation = 0


class ThreadBlock:
    """One block, the one of a `rank` in a cluster of `blocks`, whose warps number their clocks from `first` on."""

    def __init__(self, operations: list[Operation], number: int, grid: tuple[int, int, int],
                 threads: tuple[int, int, int], memory: GlobalMemory, parameters: Region, shared_bytes: int,
                 local_bytes: int, rng: np.random.Generator, maps: Mapping[int, PtxTensorMap] | None = None,
                 tensors: Mapping[int, Region] | None = None, rank: int = 0, blocks: int = 1) -> None:  # fmt: skip
        self.operations, self.number, self.grid, self.threads = operations, number, grid, threads
        self.position = (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))
        self.memory, self.parameters, self.rng = memory, parameters, rng
        self.shared = Region("shared memory", SHARED + SHARED_START, shared_bytes, proxied=True)
        count = int(np.prod(threads))
        warps = -(-count // LANES)
        self.maps, self.tensors = maps or {}, tensors or {}
        self.local_bytes = -(-local_bytes // 16) * 16
        self.locals = [Region("local memory", 0, self.local_bytes * LANES, shared=False) for _ in range(warps)]
        self.rank: int = rank
        self.first, self.clocks = rank * (warps + AGENTS), blocks * (warps + AGENTS)
        lanes, numbers = np.arange(LANES), range(self.first, self.first + warps)
        self.warps = [
            Warp(n, self, lanes + n * LANES < count, Clock(number, self.clocks), lanes + number * LANES)
            for n, number in enumerate(numbers)
        ]
        self.cluster: BlockCluster
        self.has_ended = False
        self.pool = 0
        """Registers that warps have given up, which others may take."""
        self.asking: list[tuple[Warp, int]] = []
        """Warps that ask for registers, each with the number that a thread is to have."""
        self.barriers: dict[int, NamedBarrier] = {}
        self.objects: dict[int, Any] = {}
        """Barriers in shared memory (mbarrier), by address."""
        self.underway: list[Callable[[], None]] = []
        """Asynchronous operations that the hardware completes by itself, at any time."""

    def end(self) -> None:
        """End the block, all of whose warps have ended. PtxError if its operations have not."""
        while self.underway:
            self.underway.pop()()
        if any(w.state.get(x) for w in self.warps for x in ("open stores", "stores")):
            raise PtxError(f"block {self.number} ends while a copy still reads its shared memory")
        check_shares(self)
        self.has_ended = True

    def region(self, addresses: np.ndarray, warp: Warp) -> list[tuple[Region, Lanes, np.ndarray]]:
        """Return the regions of generic addresses, with the numbers of the accesses and their addresses in a region."""
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        window, whole = low >> 44, slice(None)
        if high >> 44 != window:
            raise PtxError("the lanes of an instruction access several state spaces")
        if window == SHARED >> 44:
            return [(self.shared, whole, addresses)]
        if window == PARAM >> 44:
            return [(self.parameters, whole, addresses)]
        if window == LOCAL >> 44:
            return [(self.locals[warp.number], whole, addresses - LOCAL)]
        if window:
            raise PtxError(f"address {int(addresses[0]):#x} is in no memory")
        return [(region, numbers, addresses[numbers]) for region, numbers in self.memory.split(addresses, low, high)]

    def barrier(self, number: int) -> NamedBarrier:
        """Return the hardware barrier of this number."""
        if not 0 <= number < 16:
            raise PtxError(f"barrier {number} does not exist: there are 16")
        return self.barriers.setdefault(number, NamedBarrier(self.clocks))

    def arrive(self, warp: Warp, number: int, threads: int | None, waits: bool) -> None:
        """Let a warp arrive at a barrier for `threads` threads (None: all threads of the block)."""
        barrier = self.barrier(number)
        if warp in barrier.arrived:
            raise PtxError(f"warp {warp.number} arrives at barrier {number} twice")
        if threads is not None and threads % LANES:
            raise PtxError(f"barrier {number} is for {threads} threads, no multiple of {LANES}")
        warp.clock.release(barrier.published)
        barrier.arrived.append(warp)
        if waits:
            barrier.waiting.append(warp)
            generation = barrier.generation
            warp.waiting, warp.why = lambda: barrier.generation > generation, f"barrier {number}"
        if len(barrier.arrived) == (len(self.warps) if threads is None else threads // LANES):
            for other in barrier.waiting:
                other.clock.acquire(barrier.published)
            barrier.arrived, barrier.waiting, barrier.generation = [], [], barrier.generation + 1
            if waits:
                warp.waiting = None
