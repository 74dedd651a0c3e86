"""Memories of a GPU: regions of bytes with checks of bounds, alignment, initialisation and races.

A race is an access to bytes that another thread wrote (or read, of a write) without an ordering between the two. Each
warp counts its *clock*; a release publishes it, and an acquire merges the published clocks: accesses of warp u up to
clock ``known[u]`` are ordered before the next access of this warp. Only a synchronisation of the warp orders the
threads of one warp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from convsmith.emulate.ptx.parser import PtxError

GLOBAL, SHARED, LOCAL, PARAM = 0x7_0000_0000, 0x1 << 44, 0x2 << 44, 0x3 << 44
"""Generic addresses at which the state spaces begin."""
SHARED_START = 1024
"""The address within shared memory of the first variable."""
NOBODY, MANY = -1, -2
MAX_RECENT = 256
"""Number of reads after which an access log enters them by byte, which bounds its memory."""
_BYTES = np.arange(16)
"""Offsets of the bytes of the largest access."""


Lanes = np.ndarray | slice
"""Positions of some of the accesses of an instruction."""


class Clock:
    """The order that one warp knows: its own clock, and the clocks of all warps ordered before it."""

    def __init__(self, warp: int, warps: int) -> None:
        self.warp, self.now = warp, 1
        self.known = np.zeros(warps, np.int64)

    def join_lanes(self) -> None:
        """Order earlier accesses of the warp's lanes before later accesses."""
        self.known[self.warp] = self.now
        self.now += 1

    def release(self, published: np.ndarray, is_whole: bool = True) -> None:
        """Publish the accesses of the warp; for a single lane, the accesses that the last join of the lanes ordered."""
        if is_whole:
            self.join_lanes()
        np.maximum(published, self.known, out=published)

    def acquire(self, published: np.ndarray) -> None:
        """Order the accesses that `published` covers before later accesses of this warp."""
        np.maximum(self.known, published, out=self.known)


class AccessLog:
    """The last writer of each byte of a region, and the warps that have read it since.

    The last clocks at which each warp wrote and read any byte tell most accesses that all others are ordered before
    them; single bytes are looked up for the others only. Reads are therefore kept as they come in `recent`, by warp and
    clock, until a write needs their bytes in `readers`.
    """

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, NOBODY, np.int32)
        self.written = np.zeros(size, np.int64)
        self.block = np.full(size, NOBODY, np.int32)
        self.readers: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.last_writes: dict[int, int] = {}
        self.last_reads: dict[int, int] = {}
        self.blocks: set[int] = set()
        self.touched: list[np.ndarray] = []
        self.recent: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = {}
        self.count = 0

    def start_block(self) -> None:
        """Forget the threads of the previous block, but remember the block that wrote each byte."""
        for places in self.touched:
            self.writer[places] = NOBODY
        self.touched = []
        self.last_writes, self.last_reads, self.recent, self.count = {}, {}, {}, 0
        self.readers.clear()

    def read(self, places: np.ndarray, threads: np.ndarray, clock: Clock, block: int) -> str:
        """Record a read of ``places[n]`` by ``threads[n]``; return the race if there is one."""
        fault = self._after_writes(places, threads, clock, block)
        self.recent.setdefault((clock.warp, clock.now), []).append((places, threads))
        self.last_reads[clock.warp] = clock.now
        self.count += 1
        if self.count == MAX_RECENT:
            self._enter_reads()
        return fault

    def _enter_reads(self) -> None:
        """Enter the recent reads into `readers`: the clock of a warp's last read of each byte, and the lane that read
        it then, or MANY.
        """
        for (warp, now), reads in self.recent.items():
            if warp not in self.readers:
                size = len(self.writer)
                self.readers[warp] = (np.zeros(size, np.int64), np.full(size, NOBODY, np.int32))
            stamps, lanes = self.readers[warp]
            places = np.concatenate([x.ravel() for x, _ in reads])
            one = np.concatenate([np.repeat(threads, x.shape[1]) for x, threads in reads])
            earlier = (stamps[places] == now) & (lanes[places] != one)
            lanes[places] = np.where(earlier, MANY, one)
            lanes[places[lanes[places] != one]] = MANY  # several lanes have read a byte
            stamps[places] = now
        self.recent, self.count = {}, 0

    def write(self, places: np.ndarray, threads: np.ndarray, clock: Clock, block: int) -> str:
        """Record a write of ``places[n]`` by ``threads[n]``; return the race if there is one."""
        fault = self._after_writes(places, threads, clock, block)
        one = threads[:, None]
        if not _is_ordered(self.last_reads, clock):
            self._enter_reads()
            for warp, (stamps, lanes) in self.readers.items():
                late = stamps[places] > clock.known[warp]
                if warp == clock.warp:
                    late &= lanes[places] != one
                if late.any() and not fault:
                    byte, thread = places[late][0], np.broadcast_to(one, places.shape)[late][0]
                    fault = f"byte {byte} is written by thread {thread} while warp {warp} may still read it"
        self.writer[places] = one
        self.written[places] = clock.now
        self.block[places] = block
        self.last_writes[clock.warp] = clock.now
        self.touched.append(places)
        self.blocks.add(block)
        return fault

    def note_copy(self, places: np.ndarray, agent: int, stamp: int) -> None:
        """Record that a copy, whose barrier is an agent with a clock, has written bytes."""
        self.writer[places], self.written[places] = agent * 32, stamp
        self.last_writes[agent] = stamp
        self.touched.append(places)

    def _after_writes(self, places: np.ndarray, threads: np.ndarray, clock: Clock, block: int) -> str:
        if not _is_ordered(self.last_writes, clock):
            writer, one = self.writer[places], threads[:, None]
            late = (writer != NOBODY) & (writer != one)
            if late.any():
                late &= self.written[places] > clock.known[np.maximum(writer, 0) // 32]
            if late.any():
                n = tuple(x[0] for x in np.nonzero(late))
                two = f"written by thread {writer[n]}, is accessed by thread {threads[n[0]]}"
                return f"byte {places[n]}, {two} without a barrier"
        if self.blocks - {block}:
            other = self.block[places]
            alien = (other != NOBODY) & (other != block)
            if alien.any():
                n = tuple(x[0] for x in np.nonzero(alien))
                return f"byte {places[n]}, written by block {other[n]}, is accessed by block {block}"
        return ""


def _is_ordered(last: Mapping[int, int], clock: Clock) -> bool:
    """Return whether the `last` accesses of all warps are ordered before the next one of the warp of `clock`."""
    known = clock.known
    for warp, now in last.items():
        if now > known[warp]:
            return False
    return True


class Region:
    """Bytes at adjacent addresses: a variable, an argument, or the shared memory of a block.

    ``ready`` is 255 for initialised bytes. A region without `accesses` is not checked for races. In a `proxied` region,
    ``pending`` is set for bytes that an asynchronous copy is about to write or that an asynchronous product reads, and
    what a thread wrote is ``unfenced`` until the thread executes a fence between its accesses and asynchronous ones.
    """

    def __init__(self, name: str, base: int, size: int, content: bytes | None = None, shared: bool = True,
                 proxied: bool = False) -> None:  # fmt: skip
        self.name, self.base, self.size = name, base, size
        padded = -(-max(size, 1) // 16) * 16
        self.data = np.zeros(padded, np.uint8)
        self.ready = np.full(padded, 0 if content is None else 255, np.uint8)
        self.is_ready = content is not None
        self.pending_writes = np.zeros(padded if proxied else 0, np.int16)
        self.pending_reads = np.zeros(padded if proxied else 0, np.int16)
        self.is_pending = 0
        self.accesses = AccessLog(padded) if shared else None
        self.unfenced = np.zeros(padded, bool) if proxied else None
        if content is not None:
            self.data[: len(content)] = np.frombuffer(content, np.uint8)

    def fault(self, text: str) -> PtxError:
        """Return the error that names the region."""
        return PtxError(f"{self.name}: {text}")

    def offsets(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Return the offsets of accesses of `size` bytes at `addresses`, after a check of bounds and alignment."""
        offsets: np.ndarray = np.subtract(addresses, self.base, dtype=np.int64)
        bits = int(np.bitwise_or.reduce(offsets))  # negative if any offset is
        if bits < 0 or int(np.maximum.reduce(offsets)) + size > self.size:
            bad = offsets[(offsets < 0) | (offsets + size > self.size)][0]
            raise self.fault(f"an access of {size} bytes at offset {bad} is outside of the {self.size} bytes")
        if bits % size:
            raise self.fault(f"an access of {size} bytes at offset {offsets[offsets % size != 0][0]} is not aligned")
        return offsets

    def read(self, offsets: np.ndarray, size: int, threads: np.ndarray, clock: Clock, block: int) -> np.ndarray:
        """Return the bytes of `size` at each of `offsets`, as rows."""
        self.note_read(offsets[:, None] + _BYTES[:size], threads, clock, block)
        rows: np.ndarray = self.data.reshape(-1, size).take(offsets // size, axis=0)
        return rows

    def note_read(self, places: np.ndarray, threads: np.ndarray, clock: Clock, block: int) -> None:
        """Check and record a read of rows of bytes, one row a thread."""
        if self.is_pending and self.pending_writes[places].any():
            byte = places[self.pending_writes[places] > 0][0]
            raise self.fault(f"byte {byte} is read before its asynchronous copy was waited for")
        if not self.is_ready:
            ready = self.ready[places]
            if b"\0" in ready.tobytes():
                raise self.fault(f"byte {places[ready == 0][0]} is read before it is written")
        if self.accesses is not None:
            race = self.accesses.read(places, threads, clock, block)
            if race:
                raise self.fault(race)

    def write(self, offsets: np.ndarray, values: np.ndarray, threads: np.ndarray, clock: Clock, block: int,
              is_atomic: bool = False) -> None:  # fmt: skip
        """Write a row of `values` at each of `offsets`."""
        places = offsets[:, None] + _BYTES[: values.shape[1]]
        self.check_overwrite(places)
        if not is_atomic:
            if len(set(offsets.tolist())) < len(offsets):
                raise self.fault(f"two threads write offset {_repeated(offsets)} in one instruction")
            if self.accesses is not None:
                race = self.accesses.write(places, threads, clock, block)
                if race:
                    raise self.fault(race)
        self.data[places] = values
        self.ready[places] = 255
        if self.unfenced is not None:
            self.unfenced[places] = True

    def fence(self, warp: int) -> None:
        """Let asynchronous operations see what the threads of a warp wrote."""
        assert self.unfenced is not None and self.accesses is not None
        self.unfenced[self.accesses.writer // 32 == warp] = False

    def require_fenced(self, places: np.ndarray) -> None:
        """Require that an asynchronous operation sees what threads wrote to the bytes."""
        if self.unfenced is not None and self.unfenced[places].any():
            byte = places[self.unfenced[places]][0]
            raise self.fault(f"byte {byte} is read asynchronously, and no fence.proxy.async follows its write")

    def check_overwrite(self, places: np.ndarray) -> None:
        """Require that no asynchronous operation still reads or writes the bytes."""
        if not self.is_pending:
            return
        for pending, doing in ((self.pending_writes, "writes"), (self.pending_reads, "reads")):
            if pending[places].any():
                byte = places[pending[places] > 0][0]
                raise self.fault(f"byte {byte} is written while an asynchronous operation {doing} it")

    def begin_pending(self, places: np.ndarray, is_write: bool) -> None:
        """Mark bytes as belonging to an asynchronous operation under way."""
        np.add.at(self.pending_writes if is_write else self.pending_reads, places.ravel(), 1)
        self.is_pending += 1

    def end_pending(self, places: np.ndarray, is_write: bool) -> None:
        """Remove the mark."""
        np.add.at(self.pending_writes if is_write else self.pending_reads, places.ravel(), -1)
        self.is_pending -= 1


def _repeated(values: np.ndarray) -> Any:
    unique, counts = np.unique(values, return_counts=True)
    return unique[counts > 1][0]


class GlobalMemory:
    """The regions of global memory, at addresses with gaps between them."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.bases: list[int] = []

    def add(self, name: str, size: int, content: bytes | None) -> Region:
        """Return a new region of `size` bytes."""
        base = GLOBAL if not self.regions else -(-(self.bases[-1] + self.regions[-1].size + 4096) // 512) * 512
        region = Region(name, base, size, content)
        self.regions.append(region)
        self.bases.append(base)
        return region

    def find(self, address: int) -> Region:
        """Return the region that contains or precedes an address."""
        n = bisect_right(self.bases, address) - 1
        if n < 0:
            raise PtxError(f"address {address:#x} is in no memory")
        return self.regions[n]

    def split(self, addresses: np.ndarray, low: int, high: int) -> Sequence[tuple[Region, Lanes]]:
        """Return the regions that contain the addresses, which are from `low` to `high`, each with the positions of its
        addresses.
        """
        first = self.find(low)
        if first.base <= low and high < first.base + first.size:
            return [(first, slice(None))]
        regions = [self.find(int(a)) for a in addresses]
        return [(r, np.array([n for n, x in enumerate(regions) if x is r])) for r in dict.fromkeys(regions)]
