"""Several stages: the schedules of the statements of one kernel as one pipeline.

Rows of a statement are computed in a loop of a later statement that reads them (`passes/compute_at.py`). The later nest
is ordered first, so that the loop exists; the earlier nest is then ordered inside it. A statement that is not computed
at a loop of another statement ends a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.machine.base import Machine
from convsmith.passes.compute_at import compute_at
from convsmith.passes.manager import Step
from convsmith.problem.fusion import Stages, middle, reads_padding_alone
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import symbolic_stage
from convsmith.schedule.kernel import RowLoop, decided_kernel, loop_at, scheduled
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import fused_name
from convsmith.schedule.pipeline import pipeline_of
from convsmith.schedule.schedule import Schedule
from convsmith.schedule.sums import config_of_sums
from convsmith.schedule.winograd import product_config, winograd_of
from convsmith.statement.fused import FusedStatements, suffix
from convsmith.statement.program import Program, fused_program
from convsmith.statement.statement import Statement
from convsmith.statement.winograd import Winograd

CIRCULAR_REALISATIONS = ("mask", "peel")
"""Legal realisations of a statement that reads rows from a circular buffer."""


@record(frozen=True)
class ComputedAt:
    """The loop at which rows of a stage are computed: ``loop`` of stage ``of`` (from 0), by its name in the kernel.

    It steps over cache tiles of ``tile`` iterations; if that is 0, it is the innermost such loop around the register
    tile.

    With ``keeps``, rows that consecutive iterations read are kept.
    """

    of: int
    loop: str
    tile: int
    keeps: bool


def scheduled_stages(
    problem: Problem, stages: Stages, config: Config, machine: Machine, dynamic: bool = False
) -> Program:
    """Return the program of ``stages``, each scheduled by its config; sizes of ``dynamic`` stages are known only at the
    call.
    """
    configs = config.stages
    if len(configs) != len(stages):
        raise ConfigError(
            "consumer",
            f"config {config}: {problem} has {len(stages)} statements, and {len(configs)} configs are given; "
            "legal is one for each, joined by ' / '",
        )  # fmt: skip
    breaks = [n for n, link in enumerate(config.links) if not link.compute_at]
    if dynamic and len(breaks) < len(stages):
        raise ConfigError(
            "dynamic", f"config {config}: rows of fused stages lie in memory of a constant size, and the length of a "
            "row is known at the call; legal with dynamic sizes are stages without --compute_at=",
        )  # fmt: skip
    kernels, start = [], 0
    for end in breaks:
        alone = reads_padding_alone(stages.problems[start : end + 1]) if end > start else None
        if alone is not None:
            raise ConfigError(
                "compute_at",
                f"config {config}: stage {start + alone + 1}, {stages.problems[start + alone].descriptor()}, "
                f"reads padding alone where it computes what stage {end + 1} needs: no row is computed for it; legal "
                "is a kernel of its own, without --compute_at= at it and before it",
            )  # fmt: skip
        own: list[Statement] = []
        made: Winograd | None = None
        for n in range(start, end + 1):
            if configs[n].tiles_at("winograd"):
                made = winograd_of(stages.problems[n], configs[n], machine, dynamic)
            _check(configs[n], n > start, end > start)
            own.append(scheduled(stages.problems[n], configs[n], machine, dynamic) if made is None else made.product)
            if n and own[-1].a.name in configs[n].staged("pack"):
                raise ConfigError(
                    "consumer", f"config {configs[n]}: operands are packed before the first statement runs, and "
                    f"{own[-1].a.name} is the result of one; legal are other operands",
                )  # fmt: skip
            if n > start and any(v.adds != own[-1].b.name for v in own[-1].sums):
                raise ConfigError(
                    "consumer", f"config {configs[n]}: sums of entries of the source need all of them before the first "
                    "row; legal are --offsets=each and a --flip of weights that need none",
                )  # fmt: skip
        is_last = end == len(stages) - 1
        kernels.append(FusedStatements(stages, start, tuple(own), "main" if is_last else "before", made))
        start = end + 1
    return fused_program(problem, tuple(kernels))


def _check(config: Config, reads_rows: bool, has_others: bool) -> None:
    """Raise ConfigError if ``config`` of a stage does not suit a kernel of several stages.

    In a kernel that ``has_others``, the statement may read rows of another one.
    """
    if config.tiles_at("split") or ((config.tiles_at("winograd") or config.realise == "indirection") and has_others):
        raise ConfigError(
            "consumer",
            f"config {config}: one of several statements has no --split; it has --winograd or a pointer table "
            "only if no other statement is computed with it",
        )  # fmt: skip
    if reads_rows and config.realise not in CIRCULAR_REALISATIONS:
        raise ConfigError(
            "consumer", f"config {config}: legal for a statement that reads rows of another one are "
            f"--realise={' or '.join(CIRCULAR_REALISATIONS)}",
        )  # fmt: skip


def places(kernel: FusedStatements, config: Config) -> dict[int, ComputedAt]:
    """Return the place of each stage of ``kernel`` except the last; ConfigError if ``config`` names no loop."""
    found = {}
    every = config.links
    for n in kernel.numbers[:-1]:
        link, (name, tile) = every[n], every[n].place
        for of in range(n + 1, kernel.last + 1):
            st = kernel.own[of - kernel.start]
            dims = {d.name: d.name + suffix(of) for d in st.dims}
            for a, b in every[of].fuse:
                dims[fused_name(a, b)] = fused_name(dims.get(a, a), dims.get(b, b))
            loop = dims.get(name) if of == n + 1 else None
            if loop is None and name in dims.values():
                loop = name
            if loop is not None:
                found[n] = ComputedAt(of, loop, tile, link.halo == "keep")
                break
        else:
            last = kernel.own[-1]
            raise ConfigError(
                "compute_at",
                f"--compute_at={link.compute_at}: no loop of that name is in a later statement of the kernel; "
                f"legal are "
                f"{', '.join(d.name + suffix(kernel.last) for d in last.dims)}",
            )  # fmt: skip
    return found


def decided_stages(
    kernel: FusedStatements, config: Config, machine: Machine, dynamic: bool = False
) -> list[KernelPlan]:
    """Return the decisions of all statements of ``kernel``, sums of entries first; ConfigError if one is illegal."""
    configs, at = config.stages, places(kernel, config)
    plans: list[KernelPlan] = []
    for st in kernel.statements[: len(kernel.sums)]:
        threads = config.threads if st.when == "before" else 1
        plans.append(decided_kernel(st, config_of_sums(st, machine, threads), machine))
    for n in kernel.numbers:
        st, whole = kernel.renamed(n), kernel.own[n - kernel.start]
        given = configs[n] if kernel.winograd is None else product_config(configs[n])
        own = given.renamed({d.name: d.name + suffix(n) for d in whole.dims}, kernel.arrays(n))
        if n < kernel.last:
            own = own.changed(threads=1)
        held = tuple(RowLoop(place.loop, place.tile, place.keeps) for place in at.values() if place.of == n)
        sizes = symbolic_stage(kernel, n, configs[n]) if dynamic else None
        plans.append(decided_kernel(st, own, machine, sizes, within=held))
    return plans


def merge_pipelines(kernel: FusedStatements, config: Config, plans: Sequence[KernelPlan]) -> tuple[Step, ...]:
    """Return the rewrites of all statements of ``kernel``, which have ``plans``; each is computed at its place."""
    return pipeline_of(plans, merged_ordering(kernel, config, plans))


def merged_ordering(kernel: FusedStatements, config: Config, plans: Sequence[KernelPlan]) -> Schedule:
    """Return the schedule that puts the loops of all statements of ``kernel`` into order, each nest at its place."""
    by_stage = dict(zip(kernel.numbers, plans))
    at = places(kernel, config)
    s = Schedule()
    s.include(by_stage[kernel.last].ordering)
    for n in reversed(kernel.numbers[:-1]):
        loop = loop_at(by_stage[at[n].of].nest, at[n].loop, at[n].tile)
        s.run(compute_at, middle(n), loop, *(() if at[n].keeps else (False,)))
        s.include(by_stage[n].ordering)
    return s
