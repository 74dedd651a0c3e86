"""The features of kernels of devices: of threads, of warps that multiply fragments, and of groups whose operands a copy
engine brings.

All groups that a unit of the device runs one after the other count, with the work of all their threads. The same
functions serve a config whose nest is known, and a tile whose other decisions are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf, prod
from typing import NamedTuple

from convsmith.ir.index import is_true, parts_of
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.device import Device
from convsmith.machine.device_costs import CopyEngine
from convsmith.passes.distribute_copy import turns_of
from convsmith.schedule.config import Config
from convsmith.schedule.copy_layouts import registers_together
from convsmith.schedule.group_limits import (
    are_asynchronous,
    copied_nest,
    copied_run,
    copies_in_parts,
    copy_width,
    loaded_vector,
)  # fmt: skip
from convsmith.schedule.hardware import engine_of, is_mn_major
from convsmith.schedule.hardware_choice import EngineTile
from convsmith.schedule.loops import Loops
from convsmith.schedule.nest import Nest
from convsmith.statement.statement import Statement, View
from convsmith.tune.costs.features import Events, Features, Section

__all__ = [
    "Loads", "arrivals", "engine_features", "kernel_features", "loads_of", "parts_features", "residing",
    "thread_features", "warp_features",
]  # fmt: skip


def kernel_features(
    st: Statement, loops: Loops, config: Config, nest: Nest, machine: Machine, shared: Mapping[str, int]
) -> Features:
    """Return the features of the kernel of ``nest``; ``shared`` are the bytes of each copy in shared memory."""
    device, nbytes = machine.device, sum(shared.values())
    assert device is not None
    times = device.units.turns(prod(x.extent for x in nest.grid))
    steps, terms = prod(x.extent for x in nest.steps), prod(x.extent for x in nest.terms)
    accesses = _accesses(st, loops, config, nest, device, shared)
    alone = {v.name for v in st.factors if are_asynchronous(st, v, loops, config, nest, device)}
    ahead = set() if config.buffers == 1 else {*shared} if config.copies == "wait" else alone
    filling = {v.name: _turns(st, v, loops, config, nest, device) for v in st.factors if v.name in shared}
    # Asynchronous copies need no registers on the way: all rounds of a step are requested at once.
    rounds = sum(count for name, (_, count) in filling.items() if name not in ahead and name not in alone)
    waits = 0 if shared and ahead >= {*shared} else times * steps  # for elements that no step has requested ahead
    if nest.warp is not None:
        row, size = nest.warp.row, dtype(st.a.factor).bits / 8
        rows, columns = (x * n for x, n in zip(nest.warp.fragments, nest.warp.row.result.shape))
        warps, barriers = prod(x.extent for x in nest.threads), 2 if config.buffers == 1 else 1
        copied = sum(n for name, n in accesses.items() if name in alone) * device.access
        issued = [
            (event, count * n * nest.size)
            for name, (events, n) in filling.items() if name not in alone or steps == 1
            for event, count in events
        ]  # fmt: skip
        held, *others = nest.warp.registers
        registers = ceil(held + (3 if config.load_ahead else 2) * sum(others)) + device.costs.addresses
        waited = (1 if config.load_ahead else steps) * bool(device.costs.warp_load)
        places = device.costs.warp_places_of_rounds if config.rounds else device.costs.warp_places
        if device.register_files:  # a thread takes all of its registers, however many it uses
            registers = config.register_file or machine.registers
        residing = min(device.units.residing(nest.size, nbytes, registers).values())
        return (
            *warp_features(
                times * nest.warp_size, steps, row, (rows, columns, terms), warps, size, copied, barriers,
                by_messages(machine, registers_together(st, loops, config, nest)), places=places,
            ),
            behind_barriers(
                times * nest.warp_size * waited, residing, (rows + columns) * row.terms * size * warps
            ),
            Section(times * steps, (("copies", tuple(issued)),)),
            arrivals(waits, residing, nbytes // config.buffers, rounds),
        )  # fmt: skip
    sums, counted = prod(x.extent for x in nest.accumulators), [0.0, 0.0, 0.0]
    for view in st.factors:
        vector = loaded_vector(st, view, loops, config, nest)
        straight = {*nest.unrolled, *([] if vector is None else [vector])}
        iterations = {dims[-1]: prod(x.extent for x in straight if x.of == of) for of, dims in loops.dims.items()}
        turns = prod(x.extent for x in nest.terms if x not in straight)
        loads = loads_of(st, view, iterations, 1 if vector is None else vector.extent, device.access)
        counted = [n + turns * x for n, x in zip(counted, loads)]
    rows_of = {v.name: max(device.costs.sector / copied_run(st, v, loops, config), 1) for v in st.factors}
    filled = tuple(
        (event, count * n * rows_of[name]) for name, (events, n) in filling.items() for event, count in events
    )
    tests = sums if config.realise == "mask" and not is_true(st.a.mask) else 0
    memory = "shared" if config.staged("shared") else "global"
    along = dict(config.tiles_at("vectors")).get(config.lane, 1)
    lanes = max(device.warps, default=device.costs.filled)
    threads = -(-nest.size // lanes) * lanes
    step = thread_features(
        times * threads * steps, terms * sums, terms * tests, memory, Loads(*counted), filled, memory == "shared"
    )
    stored = Section(times * threads, (("write-back", (("global_element", sums / along),)),))
    residing = min(device.units.residing(threads, nbytes, device.costs.registers_of(sums)).values())
    return (*step, stored, arrivals(waits, residing, nbytes // config.buffers, rounds))


def _accesses(
    st: Statement, loops: Loops, config: Config, nest: Nest, device: Device, shared: Mapping[str, int]
) -> dict[str, float]:  # fmt: skip
    """Return the accesses that copy each operand to shared memory for a step; ``shared`` are the bytes of the copies.
    """
    found = {}
    for view in (v for v in st.factors if v.name in shared):
        width = copy_width(st, view, loops, config, nest, device.access)
        found[view.name] = shared[view.name] / config.buffers / dtype(view.dtype).bytes / width
    return found


def _turns(
    st: Statement, view: View, loops: Loops, config: Config, nest: Nest, device: Device
) -> tuple[Events, int]:  # fmt: skip
    """Return the events of an access by which each thread copies an operand for a step, and the number of accesses."""
    extents = copied_nest(st, view, loops, config, nest, device.access)
    turns, part = turns_of(extents, nest.size)
    if part is None or not copies_in_parts(st, view, loops, config, nest, device):
        return (("shared_copy", 1.0),), -(-prod(extents) // nest.size)
    return (("placed_copy", 1.0), ("test", len(parts_of(view.mask)))), turns


def behind_barriers(times: float, residing: int, nbytes: float) -> Section:
    """Return the section of ``times`` first products behind a barrier, for whose factors, ``nbytes`` of all warps, a
    group waits. The groups that are ``residing`` on a unit multiply meanwhile.
    """
    late = (("warp_load", 1.0), ("warp_shared_byte", nbytes))
    return Section(times / max(residing, 1), (("loads behind barriers", late),))


def arrivals(times: float, residing: int, nbytes: int, rounds: int) -> Section:
    """Return the section of ``times`` waits of groups for elements from memory, with copies of ``nbytes`` in some
    ``rounds`` of all threads; the groups that are ``residing`` on a unit compute meanwhile.
    """
    late = (("arriving_byte", nbytes), ("arriving_round", rounds), ("arrival", 1))
    return Section(times / max(residing, 1), (("arrivals", late),))


ISSUE = 0.25
"""Time to issue a load of a vector, relative to the time of a longest access; the rest is in proportion to its bytes.
"""


class Loads(NamedTuple):
    """The loads of a thread: of single ``elements`` and of ``vectors``, in longest accesses that take as long, and the
    elements that are ``converted``.
    """

    elements: float
    vectors: float
    converted: float


def loads_of(st: Statement, view: View, iterations: Mapping[str, int], width: int, access: int) -> Loads:
    """Return the loads of a ``view`` in straight-line code that runs some ``iterations`` of each dim, as vectors of
    ``width`` elements, of at most ``access`` bytes. It loads and converts an element once, however many taps and pixels
    read it.
    """
    count = 1
    for x in view.coords:
        moving = {v: iterations[v.name] for v in variables_of(x) if iterations.get(v.name, 1) > 1}
        each, steps = prod(moving.values()), dict(x.terms)
        is_plain = all(v in steps for v in moving)
        reached = 1 + sum(abs(steps[v]) * (n - 1) for v, n in moving.items()) if is_plain else each
        count *= min(each, reached)
    converted = count if dtype(view.dtype).bits < dtype(st.acc).bits else 0
    if width == 1:
        return Loads(count, 0, converted)
    share = width * dtype(view.dtype).bytes / access
    return Loads(0, count / width * (ISSUE + (1 - ISSUE) * share), converted)


def thread_features(
    times: float, products: float, tests: float, memory: str, loads: Loads, copied: Events, waits: bool
) -> Features:
    """Return the features of threads that run ``times`` steps in all: their multiply-adds, tests of masks, ``loads``
    from ``memory``, shared or global, the runs of elements ``copied`` to shared memory by price, and the barriers if a
    step ``waits`` for copies.
    """
    read = ((f"{memory}_element", loads.elements), (f"{memory}_vector", loads.vectors))
    step = (
        ("products", (("thread_product", products),)), ("tests", (("test", tests),)), ("loads", read),
        ("conversions", (("conversion", loads.converted),)), ("copies", copied),
        ("barriers", (("step_barriers", waits),)),
    )  # fmt: skip
    return tuple(Section(times, (cause,)) for cause in step)


def by_messages(machine: Machine, together: tuple[int, int]) -> tuple[int, int]:
    """Return the registers that a message of ``machine`` loads of those that lie ``together``, of each factor."""
    most = max((x.result.layout.registers for x in machine.messages), default=1)
    left, right = together
    return min(left, most), min(right, most)


def warp_features(
    times: float, steps: float, row: Instruction, tile: tuple[int, int, int], warps: int, nbytes: float, copied: float,
    barriers: int, together: tuple[int, int], is_stored: bool = True, places: int = 0,
) -> Features:  # fmt: skip
    """Return the features of ``times`` groups of ``warps``, which run ``steps``: each warp multiplies a ``tile`` of
    rows, columns and terms of ``nbytes`` with ``row``. A message loads the registers of fragments of the left and of
    the right factor that lie ``together``. A step copies bytes to shared memory, waits at ``barriers``, and computes
    ``places`` by that many instructions.
    """
    rows, columns, terms = tile
    lanes = row.result.layout.lanes
    left, right = (x.layout.registers / n for x, n in zip(row.operands[1:], together))
    (tall, broad) = row.result.shape
    messages = terms / row.terms * (rows / tall * left + columns / broad * right)
    step = (
        ("products", ((row.name, rows * columns * terms * warps / lanes),)),
        ("loads", (("warp_shared_byte", (rows + columns) * terms * nbytes * warps),)),
        ("messages", (("warp_message", messages * warps),)),
        ("copies", (("warp_global_byte", copied),)),
        ("issue", (("warp_issue", (rows * columns * terms / (tall * broad * row.terms) + messages + places) * warps),)),
    )  # fmt: skip
    waiting = ("barriers", (("warp_barrier", barriers),))
    stored = ("write-back", (("warp_store", rows * columns * warps / lanes * is_stored),))
    return (
        Section(times * steps, step, overlap=inf), Section(times * steps, (waiting,)), Section(times, (stored,)),
    )  # fmt: skip


def engine_features(x: EngineTile, st: Statement, machine: Machine) -> Features:
    """Return the features of all tiles of the busiest unit, of rows and columns that a copy engine brings, in cycles.

    A step takes as long as the slowest of its parts: its products; the reads of the factors by each group of warps; the
    copies; and their latency, which the slots of all groups that reside on the unit share. Groups of a cluster read the
    rows of the operand that they share once, but each stores all of them, while its products read shared memory; and
    they wait for each other's slots. The small tiles of teams are bound by the port of shared memory, at which reads
    and copies meet, and elements of results that leave through it. An operand that is resident is copied for the first
    tile of a group alone. The engine stores a result that leaves through shared memory during the steps of the next
    tile, or the last part of one that leaves in parts, before which nothing else runs; and a team of warps stores its
    result during the steps of the next team.
    """
    assert machine.device is not None
    engine, units, size = engine_of(machine), machine.device.units, dtype(st.a.factor)
    (height, width), (tall, wide) = x.tile, x.row.result.shape
    tiles = units.turns(x.groups)
    arriving = rows = 0.0
    for number, lines in enumerate(x.tile, 1):
        outer, inner = (x.terms, lines) if is_mn_major(x.row, number) else (lines, x.terms)
        arriving += outer * copied_rows(inner * size.bytes, engine)
        stays = st.factors[number - 1].name in x.config.staged("resident")
        often = min(residing(x, st, machine) / tiles, 1.0) if stays else 1.0
        rows += often * outer * copied_rows(inner * size.bytes, engine) / x.sharing[number - 1]
    reads = height // tall * (tall * (width // wide) + width) * x.terms * size.bytes / engine.widths[0]
    at_once = tiles / units.turns(-(-x.groups // residing(x, st, machine)))
    waits, is_shared = 1 / (x.config.buffers * at_once), max(x.sharing) > 1
    steps, sums = max(tiles * x.steps, x.longest), height * width
    is_staged, in_turn = st.c.name in x.config.staged("shared"), x.config.teams > 1
    step = (
        ("products", (("engine_product", height * width * x.terms * size.bits / 16),)),
        ("loads", (("engine_read", reads), ("engine_arrival", arriving * is_shared))),
        ("port", (
            ("engine_port", (reads + arriving) * in_turn),
            ("engine_staged", sums * tiles / steps * is_staged * in_turn),
        )),
        ("copies", (("engine_row", rows),)),
        ("latency of copies", (
            ("engine_wait", waits), ("engine_row_wait", waits * rows), ("engine_meeting", waits * is_shared),
        )),
    )  # fmt: skip
    if not is_staged and not in_turn:
        return Section(steps, step, overlap=inf), Section(tiles, (("write-back", (("engine_result", sums),)),))
    left = sums / x.config.store_parts
    beside = ("stores", (("engine_result", left * (tiles - 1) / steps),))
    staged = ("write-back", (("engine_staged", sums), ("engine_result", sums - left)))
    last = ("write-back", (("engine_result", left),))
    alone = (1 if in_turn else tiles) * is_staged
    return Section(steps, (*step, beside), overlap=inf), Section(alone, (staged,)), Section(1, (last,))


def copied_rows(nbytes: int, engine: CopyEngine) -> int:
    """Return the rows in which ``engine`` copies contiguous ``nbytes`` of a tile, terms of a row or of a column, or
    columns of a term: the longest legal ones.

    A row takes the same time whatever its bytes: layers of rows of 32 and 64 bytes took 1.2 times as long on an H200 as
    this count says, and layers of rows of 128 bytes 1.1 times.
    """
    row = next(n for n in engine.widths if not nbytes % n)
    return nbytes // row


def residing(x: EngineTile, st: Statement, machine: Machine) -> int:
    """Return the number of groups with a tile of ``st`` that reside on a unit at a time."""
    assert machine.device is not None
    units, engine, (height, width) = machine.device.units, engine_of(machine), x.tile
    threads = (x.config.teams * height // x.row.result.shape[0] + 1) * x.row.result.layout.lanes
    lines = height * x.config.buffers + width * (int(x.steps) if x.config.staged("resident") else x.config.buffers)
    shared = lines * x.terms * dtype(st.a.factor).bytes + engine.reserved
    if st.c.name in x.config.staged("shared"):
        shared += x.config.teams * height * width // x.config.store_parts * dtype(st.c.dtype).bytes
    registers = threads * (width // 2 + engine.addresses)
    return max(min(units.shared // shared, units.threads // threads, units.registers // registers), 1)


def parts_features(unit: str, parts: int, st: Statement, machine: Machine) -> Features:
    """Return the features of a kernel that adds up ``parts`` of the sums of ``st``, in the time of a ``unit``, "thread"
    or "engine", which multiplies; none for one part.

    Each part is stored and loaded, in a cache if all of them fit, and the kernel starts after the products have ended.
    """
    if parts == 1:
        return ()
    nbytes = 2 * parts * prod(d.size for d in st.dims if d.kind != "k") * dtype(st.acc).bytes
    place = "cached" if nbytes <= machine.memories[-1].bytes else "stored"
    launch, moved = ((f"{unit}_launch", 1.0),), ((f"{unit}_{place}_byte", float(nbytes)),)
    return Section(1, (("launch of sums", launch),)), Section(1, (("parts of sums", moved),))
