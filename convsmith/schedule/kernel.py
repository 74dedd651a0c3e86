"""The plan of one statement, and the statement that a config schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.buffers import buffers
from convsmith.schedule.config import Config, Level
from convsmith.schedule.dynamic import serves_unpadded
from convsmith.schedule.fill import filling
from convsmith.schedule.group_limits import check_groups, check_names, check_parts
from convsmith.schedule.hardware import expected_rate, hardware_tile
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop, Loops, SymbolicSizes, in_parts, loops_after_fusing, places, side_by_side
from convsmith.schedule.lower import check_fetches, check_streams
from convsmith.schedule.nest import Nest
from convsmith.schedule.nest_builders import nest_of
from convsmith.schedule.order import order_loops
from convsmith.schedule.packed_operands import pack_operands, packed_statement
from convsmith.schedule.pipeline import pipeline_of
from convsmith.schedule.pointers import indirect, indirect_step
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.read import check_reads
from convsmith.schedule.registers import check_config, check_words
from convsmith.schedule.schedule import Schedule, zeroing_loops
from convsmith.statement.naive import stores_sums
from convsmith.statement.offsets import MAX_WEIGHT_SUMS, of_fewer_bits, summed
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement


class RowLoop(NamedTuple):
    """A ``loop`` in whose iterations rows of another statement are computed, over cache tiles of ``tile`` iterations
    unless that is 0; ``keeps`` states whether an iteration along an axis keeps rows for the next one.
    """

    loop: str
    tile: int
    keeps: bool


class Prescribed(NamedTuple):
    """Decisions that the interface of a kernel prescribes: its register tile, independent of the machine's vectors and
    registers, and the array of the partial ``sums`` between cache tiles of a reduction loop, if there are any.
    """

    sums: Buffer | None = None


def kernel_plan(
    st: Statement, config: Config, machine: Machine, sizes: SymbolicSizes | None = None,
    within: tuple[RowLoop, ...] = (), prescribed: Prescribed | None = None,
) -> KernelPlan:  # fmt: skip
    """Return the plan of ``st`` under its own ``config``, as :func:`decided_kernel` describes it, with its rewrites."""
    return with_rewrites(decided_kernel(st, config, machine, sizes, within, prescribed))


def with_rewrites(k: KernelPlan) -> KernelPlan:
    """Return the decided plan ``k`` with the rewrites of a kernel of its statement alone."""
    return replace(k, pipeline=pipeline_of([k], k.ordering))


def decided_kernel(
    st: Statement, config: Config, machine: Machine, sizes: SymbolicSizes | None = None,
    within: tuple[RowLoop, ...] = (), prescribed: Prescribed | None = None,
) -> KernelPlan:  # fmt: skip
    """Return the plan of ``st`` under its own ``config`` without rewrites, with symbolic ``sizes`` if they are given.
    ConfigError if ``config`` makes no kernel; all rewrites of a decided kernel are legal.

    Threads share the loops outside of the innermost loop in which rows of another statement are computed (``within``),
    and that loop too if it keeps no rows.
    """
    if machine.device is not None and config.realise == "hardware":
        return _engine_kernel(st, config, machine)
    loops = loops_after_fusing(st, config)
    if sizes is not None:
        loops = replace(loops, symbolic=sizes.loops)
    unit = needed = None
    if machine.device is not None:
        check_names(st, loops, config, machine)
        check_parts(st, loops, config)
    else:
        check_words(loops, config, machine)
        unit = ProductShape.of(st, machine, config)
        if prescribed is not None:
            unit = unit.filling(config.size(config.lane))
        needed = check_config(st, loops, config, machine, unit, prescribed is not None)
    read = packed_statement(st, config, machine)
    s = Schedule(d.name for d in st.dims)
    pack_operands(s, read, config, machine)
    if sizes is not None:
        s.record(*sizes.steps)
    if indirect(st, config) and sizes is None:
        if config.phases:
            raise ConfigError("phases", f"--phases={','.join(config.phases)}: --realise=indirection has none")
        s.record(indirect_step(st, config.table))
    nest = nest_of(s, read, loops, config, machine, unit)
    shared = check_groups(read, loops, config, nest, machine)
    order_loops(s, nest)
    found = KernelPlan(
        st, config, machine, loops, nest, s, _outside(nest, loops, within), needed,
        sums=prescribed.sums if prescribed is not None else None,
        zeroing=filling(zeroing_loops(len(st.c.coords))) if nest.parts else (),
    )  # fmt: skip
    check_reads(found)
    check_streams(found)
    check_fetches(found)
    return replace(found, buffers=buffers(found.columns, config, nest, shared))


def _engine_kernel(st: Statement, config: Config, machine: Machine) -> KernelPlan:
    """Return the decided plan of a kernel whose operands a copy engine brings; ConfigError if a tile exceeds a limit of
    copies or products.
    """
    if config.staged("preload"):
        raise ConfigError(
            "preload",
            f"--preload={','.join(config.staged('preload'))}: --realise=hardware has the registers of a lane for "
            "sums alone; legal is none",
        )
    read = packed_statement(st, config, machine)
    loops = loops_after_fusing(read, config)
    check_parts(st, loops, config)
    made = hardware_tile(read, loops, config, machine)
    if isinstance(made, ConfigError):
        raise made
    return KernelPlan(
        st, config, machine, loops, made.nest, made.schedule, brought=made,
        buffers=buffers(made.st, config, made.nest, made.shared), notes=tuple(expected_rate(made, machine)),
        zeroing=filling(zeroing_loops(len(st.c.coords))) if made.nest.parts else (),
    )  # fmt: skip


def loop_at(nest: Nest, of: str, size: int = 0) -> Loop:
    """Return the innermost loop around the register tile that steps through the loop ``of``, in tiles of ``size``
    unless that is 0; ConfigError if there is none.
    """
    candidates = [x for x in nest.outside if x.of == of and size in (0, x.tile)]
    if not candidates:
        name = f"{of}:{size}" if size else of
        raise ConfigError(
            "compute_at",
            f"--compute_at={name}: no loop of that name is around the register tile; legal are {places(nest.outside)}"
        )
    return candidates[-1]


def _outside(nest: Nest, loops: Loops, within: tuple[RowLoop, ...]) -> tuple[Loop, ...]:
    """Return the loops that threads may share: loops that keep no rows for their next iteration and are not inside one
    that does.
    """
    found = [(at, nest.outside.index(loop_at(nest, at.loop, at.tile))) for at in within]
    ends = [n + (not (at.keeps and loops.axes[at.loop])) for at, n in found]
    return nest.outside[: min(ends, default=len(nest.outside))]


def scheduled(problem: Problem, config: Config, machine: Machine, dynamic: bool = False) -> Statement:
    """Return the statement that ``config`` schedules: offsets are subtracted from the sums, and the reduction is in
    parts.

    The masks of a ``dynamic`` statement contain sizes of its kernel, unless it serves calls without pads alone.
    """
    st = statement(problem, machine, dynamic, not (dynamic and serves_unpadded(problem, config)))
    if of_fewer_bits(st):
        need = [view.name for view in st.factors if view.requantised is not None or view is st.b]
        if config.offsets != "sums" or not set(need) <= set(config.staged("pack")):
            raise ConfigError(
                "bits", f"entries of fewer bits are made while packing: legal are --offsets=sums and "
                f"--pack={','.join(need)}",
            )  # fmt: skip
    if config.offsets == "sums" and st.sizes and config.realise != "indirection":
        raise ConfigError(
            "dynamic", f"--offsets=sums --realise={config.realise}: sums of weights over the taps that are there "
            "depend on the sizes of the call; legal is --offsets=each",
        )  # fmt: skip
    if config.offsets == "sums":
        with_sums = summed(
            problem, st, config.flip, config.staged("pack"), config.realise in ("indirection", "window_copy"),
            machine.device is not None,
        )
        if with_sums is None:
            words = "--offsets=sums" + (f" --flip={','.join(config.flip)}" if config.flip else "")
            raise ConfigError(
                "offsets",
                f"{words}: legal where source or weights have zero points or are "
                "flipped (sources and u8 weights can be), the zero point of the source is common to its channels, "
                f"or a device reads the weights as they are, and at most {MAX_WEIGHT_SUMS} sums of weights are needed; "
                "else --offsets=each",
            )
        if st.b.name not in config.staged("pack") and machine.device is None:
            raise ConfigError("offsets", f"--offsets=sums: needs --pack={st.b.name}, beside which the sums are packed")
        st = with_sums
        if dynamic and any(view.adds == st.a.name for view in st.sums):
            raise ConfigError(
                "dynamic", "--offsets=sums: zero points of weights, and flipped weights, need sums of the source, "
                "which kernels with dynamic sizes do not make; legal is --offsets=each",
            )  # fmt: skip
    stored: tuple[tuple[Level, str], ...] = (
        ("diagonal", "the groups beside its own"), ("zeros", "results beside its own")
    )  # fmt: skip
    for word, spoilt in stored:
        for loop, count in config.tiles_at(word):
            if st.strict:
                raise ConfigError(
                    "accuracy", f"--{word}={loop}:{count}: an infinity or a NaN of the source would spoil {spoilt}, "
                    "which --accuracy=strict rules out; legal with it is relaxed",
                )  # fmt: skip
            if st.b.name not in config.staged("pack"):
                raise ConfigError(
                    word, f"--{word}={loop}:{count}: zeros of weights are packed; legal with --pack={st.b.name}"
                )
    if config.join == "atomic" and not stores_sums(problem, st):
        raise ConfigError(
            "join", f"--join=atomic: {st.c.name} is computed from whole sums; legal are results that are the sums "
            "themselves, without bias, scales and post-ops",
        )  # fmt: skip
    return in_parts(side_by_side(st, config), config, machine)
