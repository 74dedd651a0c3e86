"""Configs for a device whose warps multiply fragments: tiles of warps and groups, with their expected cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil, gcd, prod
from typing import NamedTuple

from convsmith.ir.index import Var, is_false
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.device import Device
from convsmith.machine.device_costs import DeviceCosts
from convsmith.schedule.config import Config
from convsmith.schedule.copy_layouts import fragment_blocks, shared_bytes
from convsmith.schedule.device_tiles import BY_WARPS
from convsmith.schedule.group_fragments import lane_rows, registers_of
from convsmith.schedule.group_limits import aligned_bytes
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.nest import Nest
from convsmith.schedule.nest_builders import nest_of
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement
from convsmith.statement.zero_terms import takes_zero_terms
from convsmith.tune.costs.features import cycles
from convsmith.tune.devices.device_features import by_messages, kernel_features, warp_features

MAX_WARPS = 8
"""Maximum number of warps of a group."""
MAX_COMPLETED = 8
"""Number of candidates, ranked by their tiles alone, whose other decisions are determined."""


class DeviceChoice(NamedTuple):
    """A config with its expected cycles, counted like the cycles of all threads of the groups of a unit."""

    cycles: float
    config: Config


class _StepTerms(NamedTuple):
    """Reduction loops with their iterations per step, and the fraction of the work that is within their ends."""

    sizes: dict[str, int]
    used: float


def fragment_choices(st: Statement, machine: Machine, lane: str, rounds: bool = False) -> Iterator[DeviceChoice]:
    """Yield configs whose warps multiply fragments, with their expected cycles; the columns are along ``lane``.

    An instruction that rounds factors is taken if ``rounds`` permits it.
    """
    found = _row_of(st, machine, lane, rounds)
    if found is None:
        return
    row, most = found
    for terms in _steps(st, row, most):
        yield from _of_terms(st, machine, _plain(st, machine, lane), row, terms)


def _plain(st: Statement, machine: Machine, lane: str) -> Config:
    """Return the config of fragments before tiles are chosen."""
    plain = Config(machine.name, lane, pack=(), shared=tuple(v.name for v in st.factors), realise="pad_copy")
    return plain.changed(offsets="sums" if st.sums else "each")


def _row_of(st: Statement, machine: Machine, lane: str, rounds: bool) -> tuple[Instruction, int] | None:
    """Return the instruction that multiplies the fragments of ``st``, with the maximum number of terms of a step; None
    if no instruction does.
    """
    device = machine.device
    if device is None or not device.fragment_rate or len(st.factors) < 2 or st.shifted:
        return None
    if is_false(st.a.mask):
        return None
    plain = _plain(st, machine, lane)
    loops = loops_after_fusing(st, plain)
    has_terms = any(loops.extents[n] > 1 for n in loops.of("k"))
    if loops.kinds[lane] not in ("m", "n") or loops.extents[lane] == 1 or not has_terms:
        return None
    rows = [row for row in lane_rows(st, loops, plain, machine) if rounds or not row.rounds]
    if not rows:
        return None
    most = device.costs.warp_step * 8 // dtype(st.a.factor).bits
    row = max(rows, key=lambda row: (_terms(st, row, most).used * machine.fragment_rate(row), row.terms))
    return row, most


def stored_zeros(st: Statement, machine: Machine, lane: str, rounds: bool) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield the reduction loops, with their terms, that steps of a few channels of several taps run beyond their ends,
    so that packed weights may have zeros there.
    """
    row_of = _row_of(st, machine, lane, rounds)
    if row_of is None or not takes_zero_terms(st):
        return
    row, most = row_of
    for terms in _steps(st, row, most):
        sizes = {n: -(-st.extents[n] // size) * size for n, size in terms.sizes.items()}
        beyond = tuple((n, size) for n, size in sizes.items() if size > st.extents[n])
        if beyond and any(d.sort == "taps" and d.size > 1 for d in st.of("k") if d.name in terms.sizes):
            yield beyond


def _of_terms(
    st: Statement, machine: Machine, plain: Config, row: Instruction, terms: _StepTerms
) -> Iterator[DeviceChoice]:  # fmt: skip
    """Yield the configs whose steps have ``terms``, with their expected cycles."""
    device = machine.device
    assert device is not None
    tiles: list[tuple[float, Sequence[int], Config]] = []
    *rows_of_warp, _ = columns_of_warp = BY_WARPS.own  # columns are half as long
    for counts in product(rows_of_warp, columns_of_warp, BY_WARPS.across, BY_WARPS.across):
        files = {0: machine.registers} | {n: n for n in device.register_files}
        ahead = min(prod(terms.sizes.values()) // row.terms, device.costs.warp_ahead)
        file = next((x for x, n in files.items() if _has_registers(row, counts, n, device.costs, ahead)), None)
        if file is None or prod(counts[2:]) > MAX_WARPS:
            continue
        config = _config(st, plain.changed(register_file=file), row, counts, terms, device)
        if config is not None:
            tiles.append((_of_tile(st, machine, row, counts, config), counts, config))
    for _, _, config in sorted(tiles, key=lambda x: (x[0], x[1]))[:MAX_COMPLETED]:
        yield from _with_cycles(st, machine, config)


def _has_registers(row: Instruction, counts: Sequence[int], registers: int, costs: DeviceCosts, ahead: int) -> bool:
    """Return whether the fragments of a warp's tile fit the ``registers`` of a lane, those of several products too if
    the factors of so many are loaded ``ahead`` of the first one.
    """
    high, wide, *_ = counts
    sums, left, right = registers_of(row, high, wide)
    if ahead > 1 and sums + ahead * (left + right) + costs.warp_beside > registers:
        return False
    return sums <= ceil(registers * costs.warp_sums) and sums + left + right <= registers * costs.warp_held


def _of_tile(st: Statement, machine: Machine, row: Instruction, counts: Sequence[int], config: Config) -> float:
    """Return the cycles of all groups for one product of ``row`` in each fragment, by the tiles alone."""
    assert machine.device is not None
    high, wide, down, across = counts
    sizes = {d.name: -(-d.size // st.residues.get(d.name, 1)) for d in st.dims if d.kind != "k"}
    groups = prod(-(-size // config.group_size(n)) for n, size in sizes.items())
    (tall, broad), terms, nbytes = row.result.shape, row.terms, dtype(st.a.factor).bits / 8
    tile, copied = (high * tall, wide * broad, terms), (high * tall * down + wide * broad * across) * terms * nbytes
    times = machine.device.units.turns(groups)
    inner = config.size(last) if (last := _last_rows(st, config)) else 1
    together = by_messages(machine, (gcd(inner, tall), row.operands[2].layout.registers))
    work = warp_features(times, 1, row, tile, down * across, nbytes, copied, 1, together, is_stored=False)
    return cycles(work, machine)


def _last_rows(st: Statement, config: Config) -> str:
    """Return the innermost loop with rows of a warp's tile; empty if there is none."""
    kind = next(d.kind for d in st.dims if d.name == config.lane)
    found = [n for n, _ in config.tiles_at("register") if n != config.lane]
    return next((d.name for d in reversed(st.dims) if d.name in found and d.kind != kind), "")


def _with_cycles(st: Statement, machine: Machine, config: Config) -> Iterator[DeviceChoice]:
    """Yield the config with its copies in several slots, as far as shared memory has room, and its cycles. In one slot,
    copies are asynchronous or not.
    """
    device = machine.device
    assert device is not None
    known = (how for how in BY_WARPS.copies if how[0] == "wait" or device.copy_sizes)
    loops = loops_after_fusing(st, config)
    nest = nest_of(Schedule(), st, loops, config, machine)
    config = _in_fragments(st, config, nest)
    for how, slots in known:
        whole = config.changed(copies=how, buffers=slots)
        needed = shared_bytes(st, loops, whole, nest)
        is_full = sum(aligned_bytes(needed).values()) > device.shared.bytes
        if is_full or (slots > 1 and prod(x.extent for x in nest.steps) < slots):
            continue
        hows = [h for h, n in BY_WARPS.copies if n == 1 and (h == "wait" or device.copy_sizes)] if slots == 1 else [how]
        for x in (x for h in hows for x in _ahead(whole.changed(copies=h), nest, machine)):
            yield DeviceChoice(cycles(kernel_features(st, loops, x, nest, machine, needed), machine), x)
        return


def _ahead(config: Config, nest: Nest, machine: Machine) -> Iterator[Config]:
    """Yield the config, and those that load factors ahead of products and have rounds of steps, as far as the
    registers of a lane suffice and the costs of ``machine`` tell them apart.
    """
    yield config
    assert machine.device is not None and nest.warp is not None
    costs, slots = machine.device.costs, config.buffers
    sums, *held = nest.warp.registers
    rounds = slots > 1 and prod(x.extent for x in nest.steps) > 2 * slots
    if not costs.warp_load or not rounds:
        return
    fits = sums + 2 * sum(held) + costs.addresses <= machine.registers
    for ahead, whole in ((False, True), (True, False), (True, True)):
        if not ahead or (fits and not nest.warp.steps * (slots if whole else 1) % 2):
            yield config.changed(load_ahead=ahead, rounds=whole)


def _in_fragments(st: Statement, config: Config, nest: Nest) -> Config:
    """Return the config with copies in the order of fragments, as far as these can have it."""
    loops = loops_after_fusing(st, config)
    found = [v.name for v in st.factors if not isinstance(fragment_blocks(st, v, loops, config, nest), str)]
    pad = tuple((name, n) for name, n in config.layouts("pad") if name not in found)
    return config.changed(pad=pad, fragments=tuple((name, nest.unit.terms) for name in found))


def _config(
    st: Statement, plain: Config, row: Instruction, counts: Sequence[int], terms: _StepTerms, device: Device
) -> Config | None:
    """Return the config of a warp's and a group's tile, None if a loop has too few iterations for it."""
    high, wide, down, across = counts
    kind = next(d.kind for d in st.dims if d.name == plain.lane)
    others = {d.name: -(-d.size // st.residues.get(d.name, 1)) for d in st.dims if d.kind in {"m", "n"} - {kind}}
    same = {d.name: -(-d.size // st.residues.get(d.name, 1)) for d in st.dims if d.kind == kind}
    columns = wide * row.result.shape[1]
    axes = {d.name: d.axis for d in st.dims}
    taps = {n: max((d.size for d in st.of("k") if d.axis == axes[n] and d.axis), default=1) for n in others}
    rows = _rows(others, taps, high * row.result.shape[0] * down, device.costs.warp_halo)
    if rows is None or columns * across >= 2 * max(same[plain.lane], row.result.shape[1]):
        return None
    register, group = {plain.lane: columns}, {plain.lane: columns * across}
    left = down
    for n, size in rows.items():
        part = left
        while size % part:
            part //= 2
        register[n], group[n] = size // part, size
        left //= part
    inner = inner_dims(st)
    if left > 1 or any(size % group.get(n, 1) for n, size in {**others, **same}.items() if n in inner):
        return None
    # Rows of a matrix are in different banks if a row is longer by one access; adjacent short rows are anyway.
    pad = tuple((v.name, device.access // dtype(v.dtype).bytes) for v in st.factors)
    reduce = (*(n for n in st.reduce if n not in terms.sizes), *(n for n in st.reduce if n in terms.sizes))
    return plain.changed(
        instruction=row.name,
        register=items(register),
        group=items({**group, **terms.sizes}),
        pad=pad,
        reduce=reduce,
    )


def inner_dims(st: Statement) -> set[str]:
    """Return the dims of the result that share a coordinate with a dim of larger steps, such as channels of a group:
    iterations beyond their ends would write elements of the next group.
    """
    found = set()
    for coord in st.c.coords:
        steps = {atom.name: abs(step) for atom, step in coord.terms if isinstance(atom, Var)}
        found |= {name for name, step in steps.items() if step < max(steps.values())}
    return found


def _rows(loops: Mapping[str, int], taps: Mapping[str, int], count: int, cost: float) -> dict[str, int] | None:
    """Return the tile of ``count`` iterations of the ``loops``, in powers of two, with the least work beyond their ends
    and the least halo for ``taps``, whose relative cost is ``cost``; among equal ones, the squarest. None if the loops
    have too few iterations.
    """
    found: tuple[tuple[float, int], dict[str, int]] | None = None
    names = [n for n, size in loops.items() if size > 1]
    most = [1 << (loops[n] - 1).bit_length() for n in names]
    for sizes in product(*(_powers(x) for x in most)):
        if prod(sizes) != count:
            continue
        beyond = prod(-(-loops[n] // s) * s / loops[n] for n, s in zip(names, sizes))
        halo = prod((s + taps[n] - 1) / s for n, s in zip(names, sizes))
        rank = beyond * (1 + cost * (halo - 1)), max(sizes)
        if found is None or rank < found[0]:
            found = rank, {n: s for n, s in zip(names, sizes) if s > 1}
    return None if found is None else found[1]


def _steps(st: Statement, row: Instruction, most: int) -> Iterator[_StepTerms]:
    """Yield the terms of a step: up to ``most``. Where these are several taps of few channels, the copies of steps
    overlap, and all terms are one step as well.
    """
    terms = _terms(st, row, most)
    yield terms
    others = [d for d in st.of("k") if d.size > 1]
    if any(d.sort == "taps" for d in others if d.name in terms.sizes) and not st.residues:
        whole = _all_terms(st, row)
        if whole != terms and all(d.sort == "taps" for d in others if d.name not in terms.sizes):
            yield whole


def _all_terms(st: Statement, row: Instruction) -> _StepTerms:
    """Return the reduction loops with all of their terms, and as few more as make a multiple of the row's."""
    tile: dict[str, int] = {}
    loops = [(n, st.extents[n]) for n in reversed(st.reduce) if st.extents[n] > 1]
    for number, (n, size) in enumerate(loops, 1):
        if number == len(loops):
            unit = row.terms // gcd(row.terms, prod(tile.values()))
            size = -(-size // unit) * unit
        elif prod(tile.values()) % row.terms:
            size = 1 << (size - 1).bit_length()
        tile[n] = size
    return _StepTerms(tile, prod(st.extents[n] / size for n, size in tile.items()))


def _terms(st: Statement, row: Instruction, most: int) -> _StepTerms:
    """Return the reduction loops of a step, the innermost first, with up to ``most`` terms: a multiple of the row's."""
    sizes = {d.name: -(-d.size // st.residues.get(d.name, 1)) for d in st.of("k")}
    tile: dict[str, int] = {}
    for n in reversed(st.reduce):
        room = most // prod(tile.values())
        if sizes[n] > 1 and room > 1:
            tile[n] = min(1 << (sizes[n] - 1).bit_length(), room)
    last = next(reversed(tile), "")
    while tile and prod(tile.values()) % row.terms:
        tile[last] *= 2
    return _StepTerms(tile, prod(sizes[n] / (-(-sizes[n] // s) * s) for n, s in tile.items()))


def _powers(most: int) -> list[int]:
    return [1 << n for n in range(most.bit_length())]


def items(tile: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return a tile in the form of a config's field."""
    return tuple((n, size) for n, size in tile.items() if size > 1)
