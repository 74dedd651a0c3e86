"""A plan: every decision of a config, or of a user's schedule, worked out for a machine, once, as a value that prints.

All later code reads it: the driver runs its pipelines, `explain` prints it. CPUs and devices differ only in facts of
the machine: a device runs one nest per kernel, one kernel for each stage of a chain, and packs no sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from operator import sub

from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.diag.forking import import_lock
from convsmith.diag.record import record
from convsmith.ir.index import is_true
from convsmith.ir.stmt import Kernel
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.passes.block_reduction import START
from convsmith.passes.derive_packing import packing_name
from convsmith.passes.manager import Step, run_steps
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import check_dynamic, symbolic_dims, symbolic_sizes
from convsmith.schedule.fill import filling_groups, main_nest, zeroing_kernels
from convsmith.schedule.fused import decided_stages, merge_pipelines, merged_ordering, scheduled_stages
from convsmith.schedule.fusing import fuse_dims
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.given_kernel import GivenKernel, given_kernel
from convsmith.schedule.group_limits import ends_beyond, grid_flaw
from convsmith.schedule.kernel import decided_kernel, kernel_plan, scheduled, with_rewrites
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.order import bind_groups
from convsmith.schedule.packed_operands import packed_statement
from convsmith.schedule.pointers import indirect
from convsmith.schedule.schedule import Schedule
from convsmith.schedule.sums import config_of_sums
from convsmith.schedule.winograd import block_steps, product_config, weights_steps, winograd_of
from convsmith.statement.fused import FusedStatements
from convsmith.statement.naive import added_boxes, naive
from convsmith.statement.operator import Operator
from convsmith.statement.program import Program, program, transformed_program
from convsmith.statement.statement import Statement
from convsmith.statement.winograd import WEIGHTS, Winograd

SYMBOL = "convsmith"
"""The symbol of the main kernel of a problem, and the prefix of the symbols of the kernels around it."""
COPIES = ("pad_copy", "window_copy", "indirection", "hardware")
"""Realisations that multiply weights by zeros in place of absent elements."""


@record(frozen=True)
class Plan:
    """The plans of all statements of the program of a problem, a micro-kernel or an operator, in the order in which
    they run.

    ``requirements`` constrain the sizes of a call; they are empty if all sizes are known. If ``config`` is a user's
    schedule, it has ``given`` the main kernel, and ``kernels`` are the kernels around it.
    """

    computed: Problem | MicroKernel | Operator
    config: Config | GivenSchedule
    machine: Machine
    program: Program
    kernels: tuple[KernelPlan, ...]
    requirements: Requirements = FIXED
    given: GivenKernel | None = None

    @property
    def problem(self) -> Problem:
        """The problem, which is neither a micro-kernel nor an operator."""
        assert isinstance(self.computed, Problem)
        return self.computed

    @property
    def main(self) -> KernelPlan:
        """The plan of the statement that writes the problem's result."""
        return next(k for k in self.kernels if k.statement.when == "main")

    @property
    def pipeline(self) -> tuple[Step, ...]:
        """The rewrites of the main kernel, including the nests that are computed at its loops."""
        if self.given is not None:
            return self.given.pipeline
        if self.program.transform is not None:
            return block_steps(self.program.transform, self.main, self.decided, self.machine)
        return self._merged_pipelines(self.program.kernels[-1]) if self.program.kernels else self.main.pipeline

    @property
    def preparing(self) -> dict[str, tuple[Step, ...]]:
        """The rewrites of the kernels that run before the main one, by name."""
        found = {k.statement.name: k.pipeline for k in self.kernels if k.statement.when in ("packing", "before")}
        found |= {_start(k): k.zeroing for k in self.kernels if k.zeroing}
        if self.given is not None:
            return found
        if self.program.transform is not None:
            found[WEIGHTS] = weights_steps(self.program.transform)
        for kernel in self.program.kernels:
            if kernel.winograd is not None:
                found[kernel.name(kernel.start, WEIGHTS)] = weights_steps(kernel.winograd)
        fused = self.program.kernels[:-1]
        return found | {kernel.renamed(kernel.last).name: self._merged_pipelines(kernel) for kernel in fused}

    @property
    def joint(self) -> frozenset[str]:
        """The names of the statements that one kernel computes with other nests; they have no rewrites of their own."""
        if self.program.transform is not None:
            return frozenset((self.main.statement.name,))
        shared = (kernel for kernel in self.program.kernels if len(kernel.numbers) > 1 or kernel.winograd is not None)
        return frozenset(kernel.renamed(n).name for kernel in shared for n in kernel.numbers)

    def _merged_pipelines(self, kernel: FusedStatements) -> tuple[Step, ...]:
        """Return the rewrites of a ``kernel`` of several statements."""
        plans = self.plans_of(kernel)
        if kernel.winograd is not None:
            return block_steps(kernel.winograd, plans[0], self.decided.stages[kernel.start], self.machine)
        return plans[0].pipeline if len(plans) == 1 else merge_pipelines(kernel, self.decided, plans)

    def plans_of(self, kernel: FusedStatements) -> list[KernelPlan]:
        """Return the plans of the stages that ``kernel`` computes."""
        plans = {k.statement.name: k for k in self.kernels}
        return [plans[kernel.renamed(n).name] for n in kernel.numbers]

    @property
    def decided(self) -> Config:
        """The config, which is not a user's schedule."""
        assert isinstance(self.config, Config)
        return self.config

    @property
    def each_call(self) -> frozenset[str]:
        """The names of the preparing kernels that run in each call."""
        starts = (_start(k) for k in self.kernels if k.zeroing)
        return frozenset((*(st.name for st in self.program.of("before")), *starts))

    @property
    def constant(self) -> frozenset[str]:
        """The names of the operands that are packed once, because they have the same contents in all calls."""
        views = (view for k in self.kernels for view in k.statement.whole.factors)
        return frozenset(view.name for view in views if view.constant)

    def naive(self) -> Kernel:
        """Return the naive nest of the main kernel, with the nests of the kernels before it."""
        return main_nest(self.program.naive(), self.machine)

    def finishing(self) -> list[tuple[Kernel, tuple[Step, ...]]]:
        """Return the naive nests of the kernels that run after the main one, with their rewrites."""
        found = [] if self.machine.device is None else zeroing_kernels(self.program.naive(), self.machine)
        for k in (k for k in self.kernels if k.statement.when == "after"):
            whole = naive(self.problem, k.statement)
            found += [(main_nest(whole, self.machine), k.pipeline), *zeroing_kernels(whole, self.machine)]
        return found

    def symbol(self, kernel: str = "") -> str:
        """Return the symbol of the main kernel, or of a kernel around it. A micro-kernel has XNNPACK's name, and a
        packing kernel besides.
        """
        if isinstance(self.computed, MicroKernel):
            return f"{self.computed.name}_pack" if kernel else self.computed.name
        return f"{SYMBOL}_{kernel}" if kernel else SYMBOL

    def threads(self, kernel: str = "") -> int:
        """Return the number of threads that share the main kernel, or a kernel around it."""
        if not kernel:
            return self.config.threads if self.given is None or self.given.is_shared else 1
        own = {k.statement.name: k.config.threads for k in self.kernels}
        for k in self.kernels:
            own |= {packing_name(k.statement.name, (view.name,)): k.config.threads for view in k.statement.factors}
        for stages in self.program.kernels if self.given is None else ():
            own[stages.renamed(stages.last).name] = self.decided.stages[stages.last].threads
        return own.get(kernel, 1)

    def limits(self) -> Iterator[tuple[str, float | None]]:
        """Yield, for each statement, the name of the weights with each limit of their magnitude; None means any finite
        number.

        Weights are multiplied by stored zeros that represent absent activations. Sums of a transform overflow sooner
        than direct sums.
        """
        if self.given is not None:
            yield from self.given.limits()
            return
        for k, names, transform in self._weights():
            for name in names:
                unfolds_absent = k.config.staged("unfold") and not is_true(k.statement.a.mask)
                if k.config.realise in COPIES or unfolds_absent:
                    yield name, None
                if k.nest.unit.limit:
                    yield name, float(k.nest.unit.limit)
                if transform is not None and not transform.is_integer:
                    yield name, transform.limit

    def _weights(self) -> Iterator[tuple[KernelPlan, list[str], Winograd | None]]:
        """Yield the plan of each statement that computes products, with the names that the main kernel has for its
        weights, and its transform.
        """
        if not self.program.kernels:
            yield self.main, [x.name for x in self.main.statement.whole.factors[1:]], self.program.transform
        for kernel in self.program.kernels:
            for n, own, k in zip(kernel.numbers, kernel.own, self.plans_of(kernel)):
                yield k, [kernel.name(n, x.name) for x in own.whole.factors[1:]], kernel.winograd

    @property
    def tables(self) -> list[tuple[Statement, str, bool]]:
        """The statements that read their source through a table of pointers, each with the form of the table, and
        whether the sizes of a call decide its extents.
        """
        given = () if self.given is None else ((st, form, False) for form, st in self.given.tables.items())
        read = ((k, k.statement.whole) for k in self.kernels)
        return [*given, *((st, k.config.table, bool(k.loops.symbolic)) for k, st in read if indirect(st, k.config))]

    @property
    def rewrites(self) -> str:
        """The rewrites of the main kernel as text: equal texts imply equal kernels of a problem on a machine."""
        return "\n".join([*map(str, self.pipeline), f"threads {self.threads()}"])

    def __str__(self) -> str:
        with import_lock:
            from convsmith.schedule.text import plan_text

        return plan_text(self)


def _start(kernel: KernelPlan) -> str:
    """Return the name of the kernel that sets the result of ``kernel`` to zero, if groups add parts to it."""
    return f"{kernel.statement.name}{START}"


def plan(
    problem: Problem, config: Config | GivenSchedule, machine: Machine, requirements: Requirements = FIXED
) -> Plan:
    """Return the plan of ``problem`` under ``config``. ConfigError if ``config`` makes no kernel, UnsupportedError
    if the machine has no kernels of this kind.

    With ``requirements`` on the sizes of calls, these sizes are arguments of each call, and the sizes of ``problem``
    are placeholders.
    """
    if isinstance(config, GivenSchedule):
        if requirements:
            check_dynamic(problem)
            raise UnsupportedError(
                "schedule=: kernels that a function schedules have fixed sizes; available is a kernel for each size",
                code="dynamic",
            )
        made, given = given_kernel(problem, config, machine)
        around = (st for st in made.statements if st.when not in ("main", "loop"))
        plans = tuple(kernel_plan(st, config_of_sums(st, machine, 1), machine) for st in around)
        return Plan(problem, config, machine, made, plans, given=given)
    found = _decided(problem, config, machine, requirements)
    joint = found.joint
    return replace(found, kernels=tuple(k if k.statement.name in joint else with_rewrites(k) for k in found.kernels))


def decided(problem: Problem, config: Config, machine: Machine) -> Plan | ConfigError:
    """Return the plan of ``problem`` without the rewrites of its kernels, or the ConfigError if ``config`` makes no
    kernel. UnsupportedError as from :func:`plan`.
    """
    try:
        return _decided(problem, config, machine, FIXED)
    except ConfigError as error:
        return error


def flaw(problem: Problem, config: Config, machine: Machine) -> ConfigError | None:
    """Return the error for which ``config`` makes no kernel of ``problem``, which :func:`plan` raises; None if it makes
    one. No rewrite is determined.
    """
    found = decided(problem, config, machine)
    return found if isinstance(found, ConfigError) else None


def _decided(problem: Problem, config: Config, machine: Machine, requirements: Requirements) -> Plan:
    """Return the plan of ``problem`` without rewrites. ConfigError if ``config`` makes no kernel."""
    dynamic, machine = bool(requirements), machine.with_vectors(config.vector_registers)
    unknown = frozenset(symbolic_dims(check_dynamic(problem))) if dynamic else frozenset()
    made = _program(problem, config, machine, dynamic)
    kernels = [k for kernel in made.kernels for k in decided_stages(kernel, config, machine, dynamic)]
    for st in () if made.kernels else made.statements:
        if st.when == "main":
            own = config if made.transform is None else product_config(config)
            sizes = symbolic_sizes(problem, st, own) if dynamic else None
        else:
            # Sums of parts, and sums while packing, are computed on the calling thread.
            own = config_of_sums(st, machine, config.threads if st.when == "before" else 1, unknown)
            sizes = symbolic_sizes(problem, st, own) if any(d.name in unknown for d in st.dims) else None
        kernels.append(decided_kernel(st, own, machine, sizes))
    found = Plan(problem, config, machine, made, tuple(kernels), requirements)
    if machine.device is None:
        _check_nests(found)
    else:
        _check_grids(found)
    return found


def _program(problem: Problem, config: Config, machine: Machine, dynamic: bool) -> Program:
    """Return the program of ``problem`` as ``config`` has it scheduled."""
    stages = stages_of(problem)
    if machine.device is not None:
        _check_stages(problem, stages, config, machine)
    if stages is not None:
        return scheduled_stages(problem, stages, config, machine, dynamic)
    if config.consumer is not None:
        raise ConfigError(
            "consumer", f"--compute_at={config.compute_at}: {problem} has one statement; legal is the config of one"
        )
    if config.tiles_at("winograd"):
        return transformed_program(problem, winograd_of(problem, config, machine, dynamic))
    made = program(problem, scheduled(problem, config, machine, dynamic))
    if machine.device is None:
        return made
    in_calls = (replace(st, when="before") if st.when == "packing" else st for st in made.statements)
    return replace(made, statements=tuple(in_calls))


def _check_stages(problem: Problem, stages: Stages | None, config: Config, machine: Machine) -> None:
    """Raise the error if ``machine``, a device, has no kernels for the stages under ``config``."""
    if config.has_transform:
        tiles = next(stage.tiles_at("winograd") for stage in config.stages if stage.tiles_at("winograd"))
        raise UnsupportedError(
            f"--winograd={','.join(f'{n}:{size}' for n, size in tiles)}: {machine.name} has kernels that sum products, "
            "and none that transform tiles; available is the same convolution without --winograd=",
            code="device",
        )  # fmt: skip
    if config.consumer is not None and stages is None:
        raise UnsupportedError(
            f"{problem} under {config}: {machine.name} runs a kernel for each stage of a chain; available are configs "
            "of one stage, as the problem has",
            code="device",
        )  # fmt: skip
    if stages is not None and any(x.compute_at or x.tiles_at("split") or x.offsets == "sums" for x in config.links):
        raise ConfigError(
            "consumer",
            f"config {config}: {machine.name} runs a kernel for each stage; legal is a config of each without "
            "--compute_at=, --split= and --offsets=sums",
        )  # fmt: skip


def _check_nests(found: Plan) -> None:
    """Raise ConfigError for faults that only the nests of a CPU's kernels show: an operand of residue classes that
    cannot be packed in reading order, because the classes have different ends; or loops of a stage within another stage
    that cannot be fused, because the reads of the other stage determine the number of rows.
    """
    problem, config, made = found.problem, found.decided, found.program
    for k in found.kernels:
        st, packed = k.statement, k.config.staged("pack")
        if not made.kernels and st.residues and st.a.name in packed and not indirect(st, k.config):
            s = Schedule(d.name for d in st.dims)
            fuse_dims(s, st, k.config)
            s.pack((st.a.name,), ())
            run_steps(naive(problem, st), s.steps)
    places = config.links
    for joint in made.kernels:
        if any(places[n].compute_at and config.stages[n].fuse for n in joint.numbers):
            run_steps(joint.naive(), merged_ordering(joint, config, found.plans_of(joint)).steps)


def _check_grids(found: Plan) -> None:
    """Raise ConfigError if a device cannot run the kernels: an instruction rounds without permission, a grid of a
    kernel around the main one is too large, blocks between stages have elements beyond their channels, or threads would
    write the same elements.
    """
    problem, machine, made = found.problem, found.machine, found.program
    named = {k.config.instruction for k in found.kernels} if not made.kernels else set()
    for row in (x for x in machine.instructions if x.name in named):
        if row.rounds and problem.accuracy != "any":
            raise ConfigError(
                "accuracy", f"--instruction={row.name} rounds the {row.rounds} to fewer bits; legal with "
                f"--accuracy=any, found {problem.accuracy}",
            )  # fmt: skip
    for kernel in made.kernels[:-1]:
        if zeroing_kernels(kernel.naive(), machine):
            raise ConfigError(
                "consumer",
                f"{problem}: blocks of {kernel.stages.names[kernel.last]['dst']} hold more than its channels; "
                f"legal between kernels on {machine.name} are layouts without such elements",
            )  # fmt: skip
    for k in found.kernels:
        st, layout = k.statement, k.statement.c.layout
        filled = [(f"zeroing {st.c.name}", layout.padded_shape)] if k.nest.parts else []
        filled += [
            (f"zeroing what blocks add to {st.c.name}", tuple(map(sub, ends, starts)))
            for _, starts, ends in added_boxes(layout)
        ]
        read = packed_statement(st, k.config, machine)
        filled += [(f"packing {v.name}", v.layout.shape) for v in read.factors if v.packed]
        for what, shape in filled:
            if (flaw := grid_flaw(machine, (filling_groups(prod(shape)),), what)) is not None:
                raise flaw
        if not made.kernels and k.config.realise != "hardware" and ends_beyond(st, k.loops, k.config):
            s = Schedule()
            s.include(k.ordering)
            bind_groups(s, k.nest)
            run_steps(naive(problem, st), s.steps)
