"""The dimensions of the space of configs on a device: functions from a config to the changes of one decision.

Loops are the loops of the statement after fusing. A step may lead to an illegal config, which a space refuses. Configs
under which a copy engine brings the operands have the same dimensions, with other units: their tiles are whole
instructions of groups of warps, and their loops of rows and of terms are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations, product
from math import gcd
from typing import NamedTuple

from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config, Level
from convsmith.schedule.config_rows import LAYOUTS, Sizes
from convsmith.schedule.device_tiles import space_of_tiles
from convsmith.schedule.group_limits import ATOMIC, has_parts
from convsmith.schedule.hardware import EngineLoops, engine_loops, engine_of, hardware_row, hardware_rows, is_mn_major
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.loops import Loops, fused_chain, fused_name, loops_after_fusing, side_by_side
from convsmith.schedule.packed_operands import packed_statement
from convsmith.statement.naive import stores_sums
from convsmith.statement.parts import splits_of_loops, splits_on_devices
from convsmith.statement.statement import Statement
from convsmith.tune.devices.stored_results import STORE_PARTS
from convsmith.tune.devices.teams import TEAMS
from convsmith.tune.search.config_space import Changes
from convsmith.tune.search.fusions import fused_loops, neighbours_of, split_loops

__all__ = ["DEVICE_DIMENSIONS", "THREADS_ALONE", "DevicePoint", "device_point"]

PARTS = (2, 4, 8, 16)
"""Numbers of parts of a reduction that groups share."""
BLOCKS = (4, 16)
"""Numbers of tiles of a block along a loop."""
_TILED: tuple[Level, ...] = ("register", "group")
"""Levels of tiles that change with the loops of a config."""


class DevicePoint(NamedTuple):
    """A legal config with its statement and device, and its loops after fusing; with the ``nest`` of groups that
    multiply what a copy engine brings, if one does.
    """

    config: Config
    statement: Statement
    loops: Loops
    machine: Machine
    problem: Problem
    nest: EngineLoops | None = None

    @property
    def access(self) -> int:
        """The maximum bytes that a thread moves at once, the unit by which rows of a copy may be longer."""
        assert self.machine.device is not None
        return self.machine.device.access

    def units(self) -> dict[str, int]:
        """Return the units of a group's tile, by loop of the result: the tile of a thread, or an instruction."""
        if self.nest is not None:
            return dict(zip((self.nest.rows, self.nest.columns), self.nest.row.result.shape))
        return {n: self.config.size(n) for n in self.loops.of("batch", "n", "m")}

    def grouped(self, loop: str, size: int) -> Changes:
        """Return the change to a tile of a group of ``size`` along ``loop``."""
        group = _with_size(self.config.tiles_at("group"), loop, size)
        if self.nest is None or loop != self.nest.columns:
            return dict(group=group)
        return dict(group=group, register=_with_size(self.config.tiles_at("register"), loop, size))


def device_point(problem: Problem, st: Statement, config: Config, machine: Machine) -> DevicePoint:
    """Return the facts of ``config``, which is legal, for the statement ``st`` of ``problem``."""
    if config.realise != "hardware":
        st = side_by_side(st, config)
        return DevicePoint(config, st, loops_after_fusing(st, config), machine, problem)
    read = packed_statement(scheduled(problem, config.changed(split=()), machine), config, machine)
    loops = loops_after_fusing(read, config)
    nest = engine_loops(read, loops, config, hardware_row(read, config, machine), machine)
    assert isinstance(nest, EngineLoops)
    return DevicePoint(config, st, loops, machine, problem, nest)


def _registers(at: DevicePoint) -> Iterator[Changes]:
    """Yield twice and half the tile of a thread or a warp along a loop; the tile of a group keeps its threads. Where a
    copy engine brings the factors, yield the instructions for them, with the group's tile rounded to whole ones.
    """
    c = at.config
    if at.nest is not None:
        mn_major = [is_mn_major(at.nest.row, n) for n in (1, 2)]
        rows = (x for x in hardware_rows(at.nest.st, at.machine) if [is_mn_major(x, n) for n in (1, 2)] == mn_major)
        yield from (_on_row(at, at.nest, row) for row in rows)
        return
    for n in at.loops.of("batch", "n", "m"):
        own, whole = c.size(n), c.group_size(n)
        if own * 2 <= whole:  # fewer threads
            yield dict(register=_with_size(c.tiles_at("register"), n, own * 2))
        for size in space_of_tiles(c).near(own):
            register = _with_size(c.tiles_at("register"), n, size)
            if size < own:
                yield dict(register=register)
            if not whole * size % own:
                yield dict(register=register, group=_with_size(c.tiles_at("group"), n, whole * size // own))


def _on_row(at: DevicePoint, nest: EngineLoops, row: Instruction) -> Changes:
    """Return the change to ``row`` with a tile of a group of approximately the same rows, columns and terms."""
    (tall, wide), c = row.result.shape, at.config
    units = ((nest.rows, tall), (nest.columns, wide), (nest.terms, row.terms))
    group = {n: max(c.group_size(n) // unit, 1) * unit for n, unit in units}
    register = ((nest.rows, tall), (nest.columns, group[nest.columns]))
    return dict(instruction=row.name, register=register, group=tuple(group.items()))


def _groups(at: DevicePoint) -> Iterator[Changes]:
    """Yield other tiles of a group along a loop of the result."""
    for n, unit in at.units().items():
        count, rest = divmod(at.config.group_size(n), unit)
        yield from (at.grouped(n, size * unit) for size in space_of_tiles(at.config).near(count) if not rest)


def _steps(at: DevicePoint) -> Iterator[Changes]:
    """Yield twice and half a step of the reduction, and steps with and without all taps."""
    if at.nest is not None:
        n, unit = at.nest.terms, at.nest.row.terms
        yield from (at.grouped(n, x * unit) for x in space_of_tiles(at.config).near(at.config.group_size(n) // unit))
        return
    for n in at.loops.of("k"):
        whole, most = at.config.group_size(n), at.loops.extents[n]
        yield from (at.grouped(n, min(size, most)) for size in space_of_tiles(at.config).near(whole))
        yield at.grouped(n, most if whole == 1 else 1)


def _shared(at: DevicePoint) -> Iterator[Changes]:
    """Yield the operands that a group copies to shared memory, with the corresponding way to read padding."""
    a, *others = (v.name for v in at.statement.factors)
    alone = dict(buffers=1, copies="wait", rounds=False, load_ahead=False, pad=(), swizzle=(), fragments=())
    for names in ((), (a,), (*others,), (a, *others)):
        realise = at.config.realise if a in names else "mask"
        yield dict(shared=names, realise=realise, **({} if names else alone))


def _copies(at: DevicePoint) -> Iterator[Changes]:
    """Yield the ways to copy, the numbers of slots, registers, barriers and columns whose factors are in registers at
    once, whether factors are loaded ahead of their products and steps are in rounds, and whether loops carry offsets.
    """
    for how, slots in space_of_tiles(at.config).copies:
        yield dict(copies=how, buffers=slots, rounds=at.config.rounds and slots > 1)
    assert at.machine.device is not None
    for file in (0, *at.machine.device.register_files):
        yield dict(register_file=file)
    if at.config.instruction and at.nest is None:
        columns = at.machine.rows[at.config.instruction].result.shape[1]
        yield from (dict(sub_tile=n) for n in (0, columns, 2 * columns))
    for barriers in ("whole", "split") if at.nest is None else ():
        yield dict(barriers=barriers)
    ways = (False, True) if at.config.instruction else (False,)
    for ahead, rounds in product(ways, (False, True)) if at.nest is None else ():
        yield dict(load_ahead=ahead, rounds=rounds)
    yield from (dict(carry=carry) for carry in (False, True) if at.nest is None)


def _rows(at: DevicePoint) -> Iterator[Changes]:
    """Yield unchanged, longer and swizzled rows of a copy, against bank conflicts, and copies in the order of
    fragments.
    """
    c = at.config
    terms = at.machine.rows[c.instruction].terms if at.machine.messages and c.instruction else 0
    for view in (v for v in at.statement.factors if v.name in c.staged("shared")):
        vector = at.access // dtype(view.dtype).bytes
        for sizes in ((0, 0, 0), (1, 0, 0), (vector, 0, 0), (0, vector, 0), *([(0, 0, terms)] if terms else [])):
            yield {kind: _with_size(c.layouts(kind), view.name, n, 1) for kind, n in zip(LAYOUTS, sizes)}


def _vectors(at: DevicePoint) -> Iterator[Changes]:
    """Yield vectors along the lane loop and along the innermost terms, and no vectors."""
    c = at.config
    if c.instruction:
        return
    widths = [n for n in (2, 4, 8) if n * max(dtype(v.dtype).bytes for v in at.statement.factors) <= at.access]
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
    """Yield the orders of groups, the blocks of tiles that they compute one by one, their clusters, and the orders of
    the steps of the reduction; steps that a copy engine brings are around the terms of one tap.
    """
    outer = [n for n in at.loops.of("batch", "n", "m") if at.loops.extents[n] > 1]
    for order in permutations(outer):
        yield dict(order=order)
    yield dict(l2=())
    for n in outer:
        blocks = (count * at.config.group_size(n) for count in BLOCKS)
        yield from (dict(l2=((n, size),)) for size in blocks if size < at.loops.extents[n])
    yield from _clusters(at)
    last = (at.nest.terms,) if at.nest is not None else ()
    for reduce in permutations(n for n in at.loops.of("k") if n not in last):
        yield dict(reduce=(*reduce, *last))


def _clusters(at: DevicePoint) -> Iterator[Changes]:
    """Yield the clusters of groups that share rows or columns, of as many groups as copies reach, and none. Groups that
    are in no cluster may store their results through shared memory, whole or in parts, and have teams of warps that
    take turns.
    """
    if at.nest is None:
        return
    from_registers = _from_registers(at)
    stored = (*from_registers["shared"], at.statement.c.name)
    yield dict(cluster=(), teams=1, **from_registers)
    yield from (dict(cluster=(), shared=stored, teams=1, store_parts=n) for n in (1, *STORE_PARTS))
    yield dict(cluster=(), resident=(), teams=TEAMS, **from_registers)
    yield from (dict(cluster=(), resident=(), shared=stored, teams=TEAMS, store_parts=n) for n in (1, *STORE_PARTS))
    for loop, groups in product((at.nest.rows, at.nest.columns), engine_of(at.machine).clusters):
        if groups * at.config.group_size(loop) <= at.loops.extents[loop]:
            yield dict(cluster=((loop, groups),), teams=1, **from_registers)


def _from_registers(at: DevicePoint) -> Changes:
    """Return the words under which results leave from registers, not through shared memory."""
    factors = tuple(n for n in at.config.staged("shared") if n != at.statement.c.name)
    return dict(shared=factors, store_parts=1)


def _parts(at: DevicePoint) -> Iterator[Changes]:
    """Yield the parts of the reduction along its dims, and along fused ones, and how groups join them; sums of parts
    leave from registers.
    """
    st, fused = at.statement, [n for n in at.loops.of("k") if len(at.loops.dims[n]) > 1]
    if not splits_on_devices(st):
        return
    from_registers = {} if at.nest is None else _from_registers(at)
    is_added = st.acc in ATOMIC and st.c.dtype == st.acc and stores_sums(at.problem, st)
    yield dict(split=(), join="ordered")
    ways = {d.name: [n for n in sorted({*PARTS, d.size}) if n > 1 and not d.size % n] for d in st.of("k")}
    ways |= {loop: [n for n in PARTS if has_parts(at.loops, at.config, loop, n)] for loop in fused}
    for split in splits_of_loops(ways, PARTS[-1]):
        if not splits_on_devices(st, len(split)):
            continue
        yield dict(split=split, join="ordered", **from_registers)
        if is_added and all(loop in at.loops.extents for loop, _ in split):
            yield dict(split=split, join="atomic", **from_registers)


def _fusions(at: DevicePoint) -> Iterator[Changes]:
    """Yield the config with one more pair of adjacent loops fused, and with one pair of fused loops split. Rows and
    terms that a copy engine brings are along a single dim, or along all dims of their kind.
    """
    c = at.config
    if at.nest is not None:
        yield from _fused_whole(at, at.nest)
        return
    for pair in neighbours_of(at.loops, c.lane):
        outer, inner = pair
        vectors = tuple((fused_name(*pair) if n == inner else n, s) for n, s in c.tiles_at("vectors") if n != outer)
        tiles = {level: _fused_tile(c.tiles_at(level), pair) for level in _TILED}
        yield dict(vectors=vectors, **tiles) | fused_loops(c, pair, inner)
    for pair in c.fuse:
        loops = split_loops(c, pair)
        if loops is None:
            continue
        extents = loops_after_fusing(at.statement, c.changed(fuse=loops["fuse"])).extents
        vectors = tuple((pair[1] if n == fused_name(*pair) else n, s) for n, s in c.tiles_at("vectors"))
        tiles = {level: _split_tile(c.tiles_at(level), pair, extents) for level in _TILED}
        yield dict(vectors=vectors, **tiles) | loops


def _fused_whole(at: DevicePoint, nest: EngineLoops) -> Iterator[Changes]:
    """Yield loops of rows, and of terms, along a single dim, and along all dims of their kind fused."""
    for name in (nest.rows, nest.terms):
        dims, kind = at.loops.dims[name], at.loops.kinds[name]
        if len(dims) > 1:
            for own in dims:
                yield _with_loops(at, (name,), {n: (n,) for n in dims}, name, own)
            continue
        around = [n for n in at.loops.of(kind) if n != at.config.lane]
        if len(around) > 1:
            every = [d for n in around for d in at.loops.dims[n]]
            whole, _ = fused_chain(every)
            yield _with_loops(at, around, {whole: every}, name, whole)


def _with_loops(
    at: DevicePoint, replaced: Sequence[str], loops: Mapping[str, Sequence[str]], name: str, tiled: str
) -> Changes:  # fmt: skip
    """Return the change to ``loops``, each with its dims, in place of the ``replaced`` loops. The loop ``tiled`` gets
    the tile of ``name``, and is the innermost of them.
    """
    c = at.config
    kept = [at.loops.dims[n] for n in at.loops.extents if n not in replaced]
    fuse = tuple(pair for dims in (*kept, *loops.values()) for pair in fused_chain(dims)[1])
    tiles: Changes = {level: tuple((tiled if n == name else n, s) for n, s in c.tiles_at(level)) for level in _TILED}
    order, reduce = (_in_place(names, replaced, [*(n for n in loops if n != tiled), tiled], name)
                     for names in (c.order, c.reduce))  # fmt: skip
    return dict(fuse=fuse, order=order, reduce=reduce, **tiles)


def _in_place(names: Sequence[str], replaced: Sequence[str], loops: Sequence[str], name: str) -> tuple[str, ...]:
    """Return an order of loops with ``loops`` in place of ``name``, without the other ``replaced`` loops."""
    return tuple(x for n in names if n == name or n not in replaced for x in (loops if n == name else (n,)))


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


def _with_size(sizes: Sizes, name: str, size: int, least: int = 2) -> Sizes:
    """Return ``sizes`` with another size for ``name``; empty if it is below ``least``."""
    changed = {**dict(sizes), name: size}
    return tuple((n, s) for n, s in changed.items() if n != name or s >= least)


DEVICE_DIMENSIONS: dict[str, Callable[[DevicePoint], Iterator[Changes]]] = {
    "register": _registers, "group": _groups, "step": _steps, "copies": _copies, "rows": _rows, "shared": _shared,
    "vectors": _vectors, "epilogue": _epilogues, "order": _orders, "parts": _parts, "fuse": _fusions,
}  # fmt: skip
"""The dimensions of the space by name. Lanes and instructions come with the model's candidates."""
THREADS_ALONE = ("rows", "shared", "vectors", "epilogue")
"""Dimensions of configs whose threads load the operands; a copy engine leaves nothing to decide along them."""
