"""Barriers in shared memory (mbarrier): arrivals, counts of transactions, and waits for a phase by its parity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convsmith.emulate.ptx.cluster import owner_of
from convsmith.emulate.ptx.memory import SHARED
from convsmith.emulate.ptx.operands import TYPES, Operands
from convsmith.emulate.ptx.parser import PtxError, PtxInstruction
from convsmith.emulate.ptx.warp import LANES, Execute, Warp


class SharedBarrier:
    """A barrier for `count` arrivals; `bytes` counts expected transactions that have not yet arrived.

    `published` collects the clocks of the arriving warps. `passed` holds the clocks of the phase that ended last.
    """

    def __init__(self, number: int, count: int, clocks: int) -> None:
        self.number, self.count = number, count
        self.missing, self.bytes, self.phase = count, 0, 0
        self.published, self.passed = np.zeros(clocks, np.int64), np.zeros(clocks, np.int64)

    def arrive(self, count: int) -> None:
        """Count arrivals. PtxError if they exceed the arrivals of the phase."""
        if count > self.missing:
            raise PtxError(f"{count} arrivals at a barrier that lacks {self.missing} of its {self.count} arrivals")
        self.missing -= count
        self._end()

    def transact(self, nbytes: int) -> None:
        """Count bytes that have arrived; a negative number announces expected bytes."""
        self.bytes -= nbytes
        self._end()

    def _end(self) -> None:
        if not self.missing and not self.bytes:
            self.phase, self.missing = self.phase + 1, self.count
            np.maximum(self.passed, self.published, out=self.passed)


def barrier_at(warp: Warp, address: int, lane: int) -> SharedBarrier:
    """Return the barrier at a generic address, as a lane accesses it, which may be one of another block."""
    block, address = owner_of(warp, address)
    place = int(block.shared.offsets(np.array([address]), 8)[0])
    if place not in block.objects:
        raise PtxError(f"there is no barrier at offset {place} of shared memory")
    places = np.arange(place, place + 8)[None]
    block.shared.note_read(places, warp.threads[lane : lane + 1], warp.clock, block.number)
    found = block.objects[place]
    assert isinstance(found, SharedBarrier)
    return found


def _init(ins: PtxInstruction, made: Operands) -> Execute:
    where, count = made.address(ins.arguments[0], "shared"), made.read(ins.arguments[1], TYPES["u32"])

    def init(warp: Warp, mask: np.ndarray) -> None:
        block = warp.block
        for lane in np.flatnonzero(mask):
            place = block.shared.offsets(where(warp)[lane : lane + 1], 8)
            rows = np.zeros((1, 8), np.uint8)
            block.shared.write(place, rows, warp.threads[lane : lane + 1], warp.clock, block.number)
            number = len(block.objects)
            block.objects[int(place[0])] = SharedBarrier(number, int(count(warp)[lane]), len(warp.clock.known))

    return init


def _arrive(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``mbarrier.arrive``, also with ``expect_tx``, and ``mbarrier.expect_tx``."""
    returns = ins.words[1] == "arrive"
    state = made.write(ins.arguments[0], TYPES["b64"]) if returns else None
    place, *more = ins.arguments[returns:]
    where = made.address(place, "shared")
    number = made.read(more[0], TYPES["u32"]) if more else None
    expects = "expect_tx" in ins.words

    def arrive(warp: Warp, mask: np.ndarray) -> None:
        is_whole = bool((mask == warp.live).all())
        addresses = where(warp)
        phases = np.zeros(LANES, np.uint64)
        for n, lane in enumerate(np.flatnonzero(mask)):
            barrier = barrier_at(warp, int(addresses[lane]), int(lane))
            given = int(number(warp)[lane]) if number is not None else 1
            phases[lane] = barrier.phase
            if expects:
                barrier.bytes += given
            if returns:
                if not n or not is_whole:
                    warp.clock.release(barrier.published, is_whole)
                barrier.arrive(1 if expects else given)
        if state is not None:
            state(warp, phases, mask)

    return arrive


def _wait(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``try_wait`` and ``test_wait``, by parity or by the phase that an arrival returned.

    The instruction suspends the warp until the phase has ended, or fails at random, as the manual permits.
    """
    put = made.write(ins.arguments[0], TYPES["pred"])
    where = made.address(ins.arguments[1], "shared")
    by_parity = "parity" in ins.words
    wanted = made.read(ins.arguments[2], TYPES["u32" if by_parity else "u64"])

    def wait(warp: Warp, mask: np.ndarray) -> None:
        lanes = np.flatnonzero(mask)
        places = {int(where(warp)[lane]) for lane in lanes}
        if len(places) > 1:
            raise PtxError("the lanes of a warp wait at several barriers at once")
        barrier = barrier_at(warp, places.pop(), int(lanes[0]))
        value = int(wanted(warp)[lanes[0]])

        def has_ended() -> bool:
            ended = barrier.phase & 1 != value if by_parity else barrier.phase > value
            if ended:
                warp.clock.acquire(barrier.passed)
                put(warp, np.ones(LANES, bool), mask)
            return ended

        if not has_ended():
            put(warp, np.zeros(LANES, bool), mask)
            if warp.block.rng.random() < 0.8:
                warp.waiting, warp.why = has_ended, f"phase {value} of the barrier at {where(warp)[lanes[0]] - SHARED}"

    return wait


def _invalidate(ins: PtxInstruction, made: Operands) -> Execute:
    where = made.address(ins.arguments[0], "shared")

    def invalidate(warp: Warp, mask: np.ndarray) -> None:
        for lane in np.flatnonzero(mask):
            del warp.block.objects[int(warp.block.shared.offsets(where(warp)[lane : lane + 1], 8)[0])]

    return invalidate


KINDS: dict[str, Callable[[PtxInstruction, Operands], Execute]] = {
    "init": _init, "arrive": _arrive, "expect_tx": _arrive, "try_wait": _wait, "test_wait": _wait, "inval": _invalidate,
}  # fmt: skip
"""Forms of ``mbarrier`` by its second word."""


def mbarrier_instruction(ins: PtxInstruction, made: Operands) -> Execute:
    """Return the function of an ``mbarrier``."""
    return KINDS[ins.words[1]](ins, made)
