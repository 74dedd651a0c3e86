"""The features of kernels of devices: of threads, of warps that multiply fragments, and of groups whose operands a copy
engine brings.

All groups that a unit of the device runs one after the other count, with the work of all their threads. The same
functions serve a config whose nest is known, and a tile whose other decisions are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

from convsmith.ir.index import Index, Var, is_true
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.group_limits import loaded_vector
from convsmith.schedule.hardware import engine_of
from convsmith.schedule.hardware_choice import EngineTile
from convsmith.schedule.loops import Loops
from convsmith.schedule.nest import Nest
from convsmith.statement.statement import Statement
from convsmith.tune.features import Features, Section

__all__ = ["engine_features", "kernel_features", "parts_features", "residing", "thread_features", "warp_features"]


def kernel_features(
    st: Statement, loops: Loops, config: Config, nest: Nest, machine: Machine, shared: Mapping[str, int]
) -> Features:
    """Return the features of the kernel of ``nest``; ``shared`` are the bytes of each copy in shared memory."""
    assert machine.device is not None
    times = machine.device.units.turns(prod(x.extent for x in nest.grid))
    steps, terms, copied = prod(x.extent for x in nest.steps), prod(x.extent for x in nest.terms), sum(shared.values())
    if nest.warp is not None:
        row, nbytes = nest.warp.row, dtype(st.a.factor).bits / 8
        rows, columns = (x * n for x, n in zip(nest.warp.fragments, nest.warp.row.result.shape))
        warps, barriers = prod(x.extent for x in nest.threads), 2 if config.buffers == 1 else 1
        return warp_features(
            times * nest.warp_size, steps, row, (rows, columns, terms), warps, nbytes, copied / config.buffers, barriers
        )
    sums, elements, vectors = prod(x.extent for x in nest.accumulators), 0.0, 0.0
    for view in st.factors:
        vector = loaded_vector(st, view, loops, config, nest)
        count = prod(x.extent for x in nest.accumulators if _moves(loops, x.of, view.coords))
        elements += count if vector is None else 0
        vectors += 0 if vector is None else count / vector.extent
    tests = sums if config.realise == "mask" and not is_true(st.a.mask) else 0
    memory = "shared" if config.staged("shared") else "global"
    return thread_features(
        times * nest.size * steps, terms * sums, terms * tests, memory, (terms * elements, terms * vectors),
        copied / 4 / nest.size, memory == "shared",
    )  # fmt: skip


def thread_features(
    times: float, products: float, tests: float, memory: str, loads: tuple[float, float], copied: float, waits: bool
) -> Features:
    """Return the features of threads that run ``times`` steps in all: their multiply-adds, tests of masks, ``loads`` of
    elements and of vectors from ``memory``, shared or global, the elements ``copied`` to shared memory, and the
    barriers if a step ``waits`` for copies.
    """
    elements, vectors = loads
    step = (
        ("products", (("thread_product", products),)), ("tests", (("test", tests),)),
        ("loads", ((f"{memory}_element", elements), (f"{memory}_vector", vectors))),
        ("copies", (("global_element", copied),)), ("barriers", (("step_barriers", waits),)),
    )  # fmt: skip
    return tuple(Section(times, (cause,)) for cause in step)


def warp_features(
    times: float, steps: float, row: Instruction, tile: tuple[int, int, int], warps: int, nbytes: float, copied: float,
    barriers: int, is_stored: bool = True,
) -> Features:  # fmt: skip
    """Return the features of ``times`` groups of ``warps``, which run ``steps``: each warp multiplies a ``tile`` of
    rows, columns and terms of ``nbytes`` with ``row``. A step copies bytes to shared memory, and waits at ``barriers``.
    """
    rows, columns, terms = tile
    lanes = row.result.layout.lanes
    step = (
        ("products", ((row.name, rows * columns * terms * warps / lanes),)),
        ("loads", (("warp_shared_byte", (rows + columns) * terms * nbytes * warps),)),
        ("copies", (("warp_global_byte", copied),)),
    )  # fmt: skip
    waiting = ("barriers", (("warp_barrier", barriers),))
    stored = ("write-back", (("warp_store", rows * columns * warps / lanes * is_stored),))
    return (
        Section(times * steps, step, overlap=inf), Section(times * steps, (waiting,)), Section(times, (stored,)),
    )  # fmt: skip


def engine_features(x: EngineTile, st: Statement, machine: Machine) -> Features:
    """Return the features of all tiles of the busiest unit, of rows and columns that a copy engine brings, in cycles.

    A step takes as long as the slowest of its parts: its products; the reads of the factors by each group of warps; the
    copies; and their latency, which the slots of all groups that reside on the unit share.
    """
    assert machine.device is not None
    engine, units, size = engine_of(machine), machine.device.units, dtype(st.a.factor)
    (height, width), (tall, wide) = x.tile, x.row.result.shape
    tiles = units.turns(x.groups)
    rows = (height + width) * x.terms * size.bytes / engine.widths[0]
    reads = height // tall * (tall * (width // wide) + width) * x.terms * size.bytes / engine.widths[0]
    at_once = tiles / units.turns(-(-x.groups // residing(x, size.bytes, machine)))
    waits = 1 / (x.config.buffers * at_once)
    step = (
        ("products", (("engine_product", height * width * x.terms * size.bits / 16),)),
        ("loads", (("engine_read", reads),)), ("copies", (("engine_row", rows),)),
        ("latency of copies", (("engine_wait", waits), ("engine_row_wait", waits * rows))),
    )  # fmt: skip
    around = ("write-back", (("engine_result", height * width),))
    return Section(max(tiles * x.steps, x.longest), step, overlap=inf), Section(tiles, (around,))


def residing(x: EngineTile, nbytes: int, machine: Machine) -> int:
    """Return the number of groups with a tile of elements of ``nbytes`` that reside on a unit at a time."""
    assert machine.device is not None
    units, engine, (height, width) = machine.device.units, engine_of(machine), x.tile
    threads = (height // x.row.result.shape[0] + 1) * x.row.result.layout.lanes
    shared = sum(x.tile) * x.terms * nbytes * x.config.buffers + engine.reserved
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


def _moves(loops: Loops, of: str, coords: tuple[Index, ...]) -> bool:
    """Return whether a view depends on the loop ``of``."""
    return any(Var(dim) in variables_of(x) for dim in loops.dims[of] for x in coords)
