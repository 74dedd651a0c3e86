"""The limits of a machine with groups of threads, and the checks of a config against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, gcd, inf, prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.dialect import SplitBarrierCalls
from convsmith.ir.index import Var, is_true
from convsmith.ir.shared import BARRIER, taken_bytes
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.device import Device
from convsmith.passes.load_ahead import MAX_PRODUCTS
from convsmith.schedule.config import Config
from convsmith.schedule.copy_layouts import copy_shape, group_tiles, innermost, shared_bytes
from convsmith.schedule.grid import l2_flaw, launched_sizes
from convsmith.schedule.loops import Loop, Loops, terms_of_part, tile_of
from convsmith.schedule.nest import Nest
from convsmith.schedule.registers import check_words
from convsmith.statement.statement import Statement, View

REALISED = ("mask", "pad_copy")
"""The ways to read absent elements on machines with thread groups."""
WORD = 32
"""Bits of the elements that a store to shared memory moves at least."""
VECTOR = 16
"""Maximum number of elements of a vector of SPIR-V."""
ATOMIC = ("f32", "s32")
"""Types of results to which groups can add parts."""


def check_names(st: Statement, loops: Loops, config: Config, machine: Machine) -> None:
    """Raise ConfigError where ``config`` names loops or operands that ``st`` does not have, or requests a feature
    that devices do not support.
    """
    check_words(loops, config, machine)
    if loops.kinds[config.lane] == "k":
        raise ConfigError(
            "lane", f"--lane={config.lane}: a reduction loop; legal on {machine.name} are "
            f"{', '.join(loops.of('batch', 'n', 'm'))}",
        )  # fmt: skip
    operands = [v.name for v in st.factors]
    for name in config.staged("shared"):
        if name not in operands:
            raise ConfigError("shared", f"--shared={name}: legal are {', '.join(operands)}")
    if (flaw := l2_flaw(loops, config)) is not None:
        raise flaw
    if config.staged("resident") and config.realise != "hardware":
        raise ConfigError(
            "resident", f"--resident={','.join(config.staged('resident'))}: elements stay in shared memory where a "
            "copy engine brings them; legal with --realise=hardware",
        )  # fmt: skip
    for name, size in config.tiles_at("vectors"):
        tile = tile_of(loops, config, name)[loops.kinds.get(name) != "k"] if name in loops.extents else 0
        if size < 2 or not tile or tile % size or config.instruction:
            raise ConfigError(
                "vectors", f"--vectors={name}:{size}: legal is a divisor of at least 2 of a thread's tile along a "
                f"loop, of a step along a reduction loop, found {tile}, and no --instruction=",
            )  # fmt: skip
    if config.barriers == "split" and split_barrier_of(machine) is None:
        raise ConfigError(
            "barriers", f"--barriers=split: {machine.name} has no instruction by which a thread arrives at a barrier "
            "and goes on; legal is --barriers=whole",
        )  # fmt: skip
    if config.realise not in REALISED:
        raise ConfigError("realise", f"--realise={config.realise}: legal on {machine.name} are {', '.join(REALISED)}")
    if config.realise == "pad_copy" and st.a.name not in config.staged("shared") and not is_true(st.a.mask):
        raise ConfigError("stage", f"--realise=pad_copy pads a copy in shared memory; needs --shared={st.a.name}")
    if config.realise == "pad_copy" and st.shifted:
        raise ConfigError("stage", f"--realise=pad_copy: {st.a.name} has a zero point; legal is --realise=mask")


def check_parts(st: Statement, loops: Loops, config: Config) -> None:
    """Raise ConfigError if groups cannot add parts of the sums to the result."""
    if config.join != "atomic":
        return
    if not config.tiles_at("split"):
        raise ConfigError("join", "--join=atomic needs --split=")
    for loop, parts in config.tiles_at("split"):
        if not has_parts(loops, config, loop, parts):
            legal = ", ".join(f"{n} ({loops.extents[n]})" for n in loops.of("k"))
            raise ConfigError(
                "split", f"--split={loop}:{parts}: legal is a reduction loop and a divisor of it: {legal}"
            )
    if st.acc not in ATOMIC or st.c.dtype != st.acc:
        raise ConfigError(
            "join", f"--join=atomic: sums of {st.acc} give {st.c.name} of {st.c.dtype}; legal are results of the type "
            f"of the sums, {' or '.join(ATOMIC)}",
        )  # fmt: skip


def has_parts(loops: Loops, config: Config, loop: str, parts: int) -> bool:
    """Return whether ``loop`` is a reduction loop with so many parts: equal ones, or whole steps of several dims."""
    if loops.kinds.get(loop) != "k":
        return False
    whole = loops.whole(loop)
    left = whole.extent - (parts - 1) * terms_of_part(whole, config, parts)
    return left > 0 and (len(whole.dims) > 1 or not whole.extent % parts)


def check_groups(
    st: Statement, loops: Loops, config: Config, nest: Nest, machine: Machine
) -> dict[str, int]:  # fmt: skip
    """Return the bytes of shared memory for the copy of each operand; ConfigError if a group of ``nest`` exceeds a
    limit of ``machine``. A machine without groups has no such limits.
    """
    if machine.device is None:
        return {}
    shared = shared_bytes(st, loops, config, nest)
    split = split_barrier_of(machine) if config.barriers == "split" else None
    word = {"barrier": BARRIER} if split is not None and split.init is not None else {}
    if (flaw := limit_flaw(machine, nest, aligned_bytes({**shared, **word}))) is not None:
        raise flaw
    _check_registers(st, config, nest, machine, machine.device)
    _check_sets(config, nest)
    return shared


def _check_sets(config: Config, nest: Nest) -> None:
    """Raise ConfigError if no warp multiplies fragments that it could load ahead, or if the two sets of registers,
    which its products use in turn, would be others in the next step.
    """
    if not config.load_ahead:
        return
    if nest.warp is None or nest.warp.steps > MAX_PRODUCTS:
        found = "none" if nest.warp is None else f"{nest.warp.steps} products"
        raise ConfigError(
            "load_ahead", f"--load_ahead=yes: legal is an --instruction= on fragments, with at most {MAX_PRODUCTS} "
            f"products of a fragment in a step, found {found}",
        )  # fmt: skip
    if prod(x.extent for x in nest.steps) == 1:
        return
    products = nest.warp.steps * (config.buffers if config.rounds else 1)
    if products % 2:
        raise ConfigError(
            "load_ahead", f"--load_ahead=yes: products use two sets of registers in turn; legal are steps, or with "
            f"--rounds=yes rounds, of an even number of products of {nest.warp.row.name}, found {products}",
        )  # fmt: skip


def _check_registers(st: Statement, config: Config, nest: Nest, machine: Machine, device: Device) -> None:
    """Raise ConfigError if a thread cannot have the registers that ``config`` names, the sums of a thread exceed them,
    or the sums and the factors of a step that it holds in fragments, or the threads of a group do not fit the registers
    of a unit.
    """
    most, of_group = config.register_file or machine.registers, device.units.registers_of(nest.size)
    if config.register_file and most not in device.register_files:
        legal = ", ".join(map(str, device.register_files)) or "none"
        raise ConfigError(
            "registers", f"--register_file={most}: a thread of {machine.name} usually has {machine.registers} "
            f"registers; legal are {legal}",
        )  # fmt: skip
    sums, factors = prod(x.extent for x in nest.accumulators) * dtype(st.acc).bits / 32, 0.0
    if nest.warp is not None:
        sums, *held = nest.warp.registers
        factors = sum(held) * (2 if config.load_ahead else 1)
    has = f"{machine.name} has {most}"
    if of_group < most and not config.register_file:
        most, has = of_group, f"{machine.name} has {of_group} for each of {nest.size} threads"
    if sums + factors > most:
        text = f"{ceil(sums)} for sums" + (f", {ceil(factors)} for factors" if factors else "")
        raise ConfigError(
            "registers", f"needs {ceil(sums + factors)} registers of a lane ({text}), {has}; legal are smaller tiles "
            "of --register=",
        )  # fmt: skip
    if device.register_files and nest.size * most > device.units.registers:
        raise ConfigError(
            "registers", f"needs {nest.size * most} registers for {nest.size} threads with {most} each, a unit of "
            f"{machine.name} has {device.units.registers}",
        )  # fmt: skip


def split_barrier_of(machine: Machine) -> SplitBarrierCalls | None:
    """Return the two parts of a barrier of ``machine``, or None if it has none."""
    dialect = machine.device.dialect if machine.device is not None else None
    return dialect.split_barrier if dialect is not None else None


def limit_flaw(machine: Machine, nest: Nest, shared: Mapping[str, int]) -> ConfigError | None:
    """Return the error, with the numbers, if a grid or a group needs more than ``machine`` has, otherwise None.

    ``shared`` are the bytes that each array of a group takes from shared memory.
    """
    device = machine.device
    assert device is not None
    if nest.size > device.threads:
        text = " x ".join(f"{x.of}:{x.extent}" for x in nest.threads)
        return ConfigError(
            "threads", f"needs {nest.size} threads in a group, {machine.name} has {device.threads} ({text})"
        )
    if sum(shared.values()) > device.shared.bytes:
        text = ", ".join(f"{name} {nbytes}" for name, nbytes in shared.items())
        return ConfigError(
            "shared", f"needs {sum(shared.values())} bytes of shared memory, a group on {machine.name} has "
            f"{device.shared.bytes} ({text})",
        )  # fmt: skip
    return grid_flaw(machine, launched_sizes([x.extent for x in nest.grid], device.grid))


def grid_flaw(machine: Machine, sizes: Sequence[int], what: str = "") -> ConfigError | None:
    """Return the error if a grid of ``sizes`` groups, outermost first, exceeds the limit of ``machine`` along an axis,
    otherwise None.

    ``what`` names the kernel if it is not the main one.
    """
    device = machine.device
    assert device is not None
    for most, groups in zip(device.grid, reversed(sizes)):
        if groups > most:
            start = f"{what} needs" if what else "needs"
            return ConfigError("grid", f"{start} {groups} groups along a dim of the grid, {machine.name} has {most}")
    return None


def aligned_bytes(shared: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes that the copies of operands occupy in shared memory, given the bytes of each in ``shared``."""
    return {name: taken_bytes(nbytes) for name, nbytes in shared.items()}


def ends_beyond(st: Statement, loops: Loops, config: Config) -> bool:
    """Return whether tiles of a group extend beyond a loop whose next iterations are elements of the result that belong
    to another iteration of an enclosing loop, such as channels of the next group.
    """
    sizes = {Var(d.name): d.size for d in st.dims}
    of = {Var(dim): n for n, dims in loops.dims.items() for dim in dims}
    inner: set[str] = set()
    for x in st.c.coords:
        steps = {v: abs(c) for v, c in x.terms if isinstance(v, Var) and sizes.get(v, 1) > 1}
        inner |= {of[v] for v, c in steps.items() if c < max(steps.values())}
    return any(loops.extents[n] % tile_of(loops, config, n)[0] for n in inner)


def copy_width(st: Statement, view: View, loops: Loops, config: Config, nest: Nest, access: int) -> int:
    """Return the elements that a thread copies at once, which are contiguous in memory and in shared memory: aligned
    vectors of at most ``access`` bytes, or the few channels of a pixel with the zeros after them, which it loads one by
    one and stores at once.
    """
    nearest = view.layout.contiguous
    if nearest is None or nearest.dim != innermost(st, view, nest, config):
        word = word_of(st, view, loops, config, nest)
        return 1 if word is None else min(_vector_width(st, view, loops, config, access), VECTOR // word[1])
    return max(_vector_width(st, view, loops, config, access), _pixel_width(st, view, loops, config, access))


def word_of(st: Statement, view: View, loops: Loops, config: Config, nest: Nest) -> tuple[int, int] | None:
    """Return the dim of a view whose elements are adjacent in its copy in the order of fragments, though others are in
    memory, and the number of these elements in a word. A thread loads vectors of as many rows and stores words of them.
    None for other copies, and where an element may be absent.
    """
    nearest, dim = view.layout.contiguous, innermost(st, view, nest, config)
    if nearest is None or dim is None or dim == nearest.dim or view.name not in dict(config.layouts("fragments")):
        return None
    sizes = {Var(d.name): d.size for d in st.dims}
    tiles = group_tiles(loops, config, sizes)
    if not is_true(view.mask) or any(sizes[v] % tiles[v] for x in view.coords for v in variables_of(x)):
        return None
    return dim, WORD // dtype(view.dtype).bits


def _pixel_width(st: Statement, view: View, loops: Loops, config: Config, access: int) -> int:
    """Return the elements of a row of the copy of a view if it has a whole dim and zeros, in one access; otherwise 1.
    """
    dim = min(view.layout.blocks, key=lambda b: b.stride).dim
    count, size = copy_shape(st, view, loops, config)[dim], view.layout.shape[dim]
    longer = [x.layout[1] for x in config.stagings if x.operand == view.name and x.layout is not None]
    fits = count * dtype(view.dtype).bytes <= access and not count & (count - 1) and not any(n % count for n in longer)
    return count if 1 < size < count and fits else 1


def _vector_width(st: Statement, view: View, loops: Loops, config: Config, access: int) -> int:
    """Return the elements of the longest aligned vectors of the contiguous dim of a view that a group copies."""
    blocks, nearest = [b for b in view.layout.blocks if b.size > 1], view.layout.contiguous
    assert nearest is not None
    sizes = {Var(d.name): d.size for d in st.dims}
    coordinate, tiles = view.coords[nearest.dim], group_tiles(loops, config, sizes)
    parts = [coordinate.const, copy_shape(st, view, loops, config)[nearest.dim], access // dtype(view.dtype).bytes]
    parts += [b.stride for b in blocks if b is not nearest]
    parts += [b.size for b in blocks if b is nearest and len([x for x in blocks if x.dim == b.dim]) > 1]
    for atom, n in coordinate.terms:
        if not isinstance(atom, Var):
            return 1
        if sizes[atom] > tiles[atom]:
            parts.append(n * tiles[atom])
    parts += [x.layout[1] for x in config.stagings if x.operand == view.name and x.layout is not None]
    return gcd(*parts)


def copied_nest(st: Statement, view: View, loops: Loops, config: Config, nest: Nest, access: int) -> list[int]:
    """Return the iterations of the loops over the copy of a view, outermost first, in each of which a thread copies
    elements at once; loops of one iteration are left out.
    """
    shape, width = copy_shape(st, view, loops, config), copy_width(st, view, loops, config, nest, access)
    if width > 1 and (word := word_of(st, view, loops, config, nest)) is not None:
        shape[word[0]] //= word[1]
    extents = [shape[d] for d in as_in_memory(view) if shape[d] > 1] or [1]
    return [*extents[:-1], -(-extents[-1] // width)]


def are_asynchronous(
    st: Statement, view: View, loops: Loops, config: Config, nest: Nest, device: Device
) -> bool:  # fmt: skip
    """Return whether threads only start the copies of a view, and compute meanwhile."""
    width, nearest = copy_width(st, view, loops, config, nest, device.access), view.layout.contiguous
    is_whole = nearest is not None and width <= view.layout.shape[nearest.dim]
    return config.copies == "async" and is_whole and width * dtype(view.dtype).bytes in device.copy_sizes


def copies_in_parts(
    st: Statement, view: View, loops: Loops, config: Config, nest: Nest, device: Device
) -> bool:  # fmt: skip
    """Return whether threads may copy a view in parts of its nest: by asynchronous copies, of which the places are most
    of the work, and in tiles of one step. Where there are several steps, places are computed before all of them.
    """
    return prod(x.extent for x in nest.steps) == 1 and are_asynchronous(st, view, loops, config, nest, device)


def as_in_memory(view: View) -> list[int]:
    """Return the dims of a view in memory order."""
    nearest = {b.dim: b.stride for b in view.layout.blocks if b.size > 1}
    return sorted(range(len(view.coords)), key=lambda d: (-nearest.get(d, inf), d))


def copied_run(st: Statement, view: View, loops: Loops, config: Config) -> int:
    """Return the contiguous bytes in memory of each row of the copy of a view: all of the bytes of the tensor if rows
    are whole.
    """
    nearest = view.layout.contiguous
    if nearest is None:
        return dtype(view.dtype).bytes
    count, whole = copy_shape(st, view, loops, config)[nearest.dim], view.layout.shape[nearest.dim]
    return (count if count < whole else prod(view.layout.shape)) * dtype(view.dtype).bytes


def loaded_vector(st: Statement, view: View, loops: Loops, config: Config, nest: Nest) -> Loop | None:
    """Return the loop along which a thread loads elements of a view as vectors: a loop over its sums that indexes the
    view, or a loop over contiguous terms. None if there is no such loop.
    """
    if view.name in config.staged("shared"):
        dim = innermost(st, view, nest, config)
    else:
        nearest = view.layout.contiguous
        dim = None if nearest is None else nearest.dim
    for x in reversed(nest.runs):
        var = Var(loops.dims[x.of][-1])
        if x in nest.accumulators and any(var in variables_of(c) for c in view.coords):
            return x
        if x in nest.terms and dim is not None and dict(view.coords[dim].terms).get(var) == 1:
            return x
    return None
