"""Named costs of the threads of a device, and the facts of its copy engine, with which schedules are ranked and
checked.

Only ratios matter, because configs of one problem are compared. No device was measured for the costs of threads and
warps: the defaults are estimates from data sheets. Those of the copy engine were fitted to 1,446 configs of the layers
of ResNet-50 and of their gradients by data on an H200.
"""

from __future__ import annotations

from convsmith.diag.record import record

__all__ = ["CopyEngine", "DeviceCosts"]


@record(frozen=True)
class DeviceCosts:
    """Costs of the threads of a group, in multiply-adds of one thread, and of its warps, in multiply-adds of one warp.
    """

    shared_load: float = 2.0
    """Multiply-adds of a thread in the time in which it loads an element from shared memory."""
    vector_load: float = 2.0
    """Time in which a thread loads a vector from shared memory, relative to loading one element."""
    global_load: float = 6.0
    """Multiply-adds of a thread in the time in which it loads an element from global memory, with its address."""
    shared_copy: float = 24.0
    """Multiply-adds of a thread in the time in which it copies adjacent elements, at most 16 bytes, to shared memory,
    with their addresses and tests.
    """
    placed_copy: float = 6.0
    """Multiply-adds of a thread in the time of an asynchronous copy whose place within a row is the same in each turn,
    without tests: as many instructions as it takes on sm_90a.
    """
    arrival: float = 500.0
    """Multiply-adds of a multiplier in the time in which the first bytes of a copy arrive; other groups that reside on
    the unit compute meanwhile.
    """
    arriving_round: float = 50.0
    """Multiply-adds of a multiplier in the time by which the elements arrive later that each further access of a thread
    copies.
    """
    cached: float = 2.0
    """Bytes that the last cache delivers in the time of a byte of memory."""
    sector: int = 64
    """Bytes that memory moves at least: copying a shorter row takes as long."""
    conversion: float = 1.0
    """Multiply-adds of a thread in the time in which it converts an element to the type of the sums."""
    test: float = 2.0
    """Multiply-adds of a thread in the time in which it tests whether a term is present."""
    barriers: float = 40.0
    """Multiply-adds of a thread in the time of the two barriers of a step."""
    sums: int = 64
    """Maximum number of sums of a thread: its other registers hold factors and addresses."""
    terms: int = 4
    """Maximum number of terms that a thread loads at once; each takes a register for each pixel."""
    filled: int = 32
    """Threads of a group below which a unit of the device is partly idle."""
    addresses: int = 28
    """Registers of a thread beside its sums, and beside as many for factors."""

    warp_shared: float = 64.0
    """Bytes that a warp loads from shared memory in the time of one of its multiply-adds."""
    warp_global: float = 32.0
    """Bytes that a group loads from global memory in the time of a multiply-add of a warp."""
    warp_message: float = 0.0
    """Multiply-adds of a warp in the time in which a unit starts a message that loads registers of fragments."""
    warp_barrier: float = 40.0
    """Multiply-adds of a warp in the time of a barrier."""
    warp_load: float = 0.0
    """Multiply-adds of a warp in the time from a barrier to the first factors that are loaded behind it; groups that
    reside on the unit multiply meanwhile. 0 if unknown: the model then does not count waits for factors.
    """
    warp_issue: float = 0.0
    """Multiply-adds of a warp in the time in which a unit issues an instruction of a warp."""
    warp_places: int = 60
    """Number of instructions with which a warp computes the places of a step's copies and factors."""
    warp_places_of_rounds: int = 30
    """Number of these instructions in a round of steps, where places in shared memory are constants."""
    warp_store: float = 4.0
    """Multiply-adds of a warp in the time in which it stores a register of sums."""
    warp_sums: float = 0.5
    """Maximum fraction of the registers of a lane that sums take."""
    warp_held: float = 0.75
    """Maximum fraction of the registers of a lane that sums and factors take."""
    warp_ahead: int = 1
    """Products of a fragment whose factors the driver's compiler loads before it multiplies those of the first one."""
    warp_beside: int = 28
    """Registers of a lane that the driver's compiler needs beside the sums and the factors that it loads ahead."""
    warp_step: int = 64
    """Bytes of the terms of a row that a group copies in a step."""
    warp_halo: float = 0.1
    """Time to copy each element of a tile once, relative to the time of its products."""

    resident: int = 128
    """Threads that a unit needs to multiply at its full rate: a warp in each of its four parts."""
    launch: float = 2000.0
    """Cycles from the end of a kernel to the start of the next kernel of a call, fitted on an H200: a microsecond."""

    def registers_of(self, sums: int) -> int:
        """Return the expected number of registers of a thread with ``sums``."""
        return 2 * sums + self.addresses


@record(frozen=True)
class CopyEngine:
    """Limits and costs of an engine that copies tiles of a tensor to shared memory, from where groups of warps multiply
    them.
    """

    widths: tuple[int, ...]
    """Legal bytes of a row of a copy, the longest first. A swizzle permutes the pieces of a row."""
    pixels: int
    """Maximum number of pixels of an im2col copy."""
    box: int
    """Maximum number of elements along a dim of a tile."""
    dims: int
    """Maximum number of dims of a tensor."""
    alignment: int
    """Bytes that divide the strides of a tensor and the address of a row."""
    steps: int
    """Maximum distance of the pixels that adjacent results read."""
    corners: tuple[tuple[int, int], ...]
    """Lowest and highest corner of the pixels that an im2col copy starts from, for one spatial dim, two, and three."""
    offsets: tuple[int, ...]
    """Highest offset of a tap, for one spatial dim, two, and three."""
    slots: tuple[int, ...]
    """Numbers of steps whose copies are in shared memory at once, if they fit: powers of two, by which the number of a
    step is divided in one operation.
    """
    addresses: int
    """Maximum number of registers of a lane besides its sums."""
    copiers: int
    """Registers that a thread which starts copies keeps, if lanes need those that it leaves."""
    reserved: int
    """Maximum bytes of shared memory of a group beside its copies."""
    columns: int
    """Maximum number of columns of a group of warps, whose sums are in half as many registers of a lane."""
    latency: float
    """Cycles from the start of a step's copies to the products that wait for them, beside those of its rows."""
    row_latency: float
    """Cycles by which a row of a step delays these products."""
    row_read: float
    """Cycles in which a group of warps reads a row of a factor, of the longest legal bytes, from shared memory."""
    row_copy: float
    """Cycles in which the engine reads a row of any legal bytes for a unit."""
    row_arrival: float
    """Cycles in which a unit stores a row that a unit of its cluster has read to shared memory, which products read."""
    port: float
    """Cycles in which shared memory gives or takes a row of the longest legal bytes, at most: the cycles of a step of
    640 rows, without the stores of results, in a layer of tiles of 128 x 128 with four slots that ran on an H200.
    """
    result: float
    """Cycles in which a unit stores an element of a result."""
    staged: float
    """Cycles in which a unit writes an element of a result of 16 bits to shared memory, from where the engine stores
    it; an estimate from the bytes that shared memory takes in a cycle, and from the instructions."""
    meeting: float = 0.0
    """Cycles by which a step's copies start later because the groups of a cluster release slots to each other."""
    clusters: tuple[int, ...] = ()
    """Legal numbers of groups of a cluster, to all of which a copy may bring its elements."""
    together: int = 8
    """Rows whose pieces a swizzle permutes alike: a part of a copy has a multiple of them."""
