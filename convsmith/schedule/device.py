"""The plan of a problem for a device: one grid of thread groups for each statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import sub

from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.ir.stmt import Block, Kernel, Stmt, Store
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.passes.add_atomically import START
from convsmith.passes.bind import bind
from convsmith.passes.manager import Step, run_steps
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.fill import filling, filling_groups
from convsmith.schedule.fused import links, scheduled_stages
from convsmith.schedule.group import group_plan
from convsmith.schedule.group_fragments import why_no_fragments
from convsmith.schedule.group_limits import check_grid, ends_beyond
from convsmith.schedule.group_packing import packed_statement
from convsmith.schedule.group_plan import GroupPlan
from convsmith.schedule.hardware_choice import why_not_hardware
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.loops import loops_in
from convsmith.schedule.pipelines import SYMBOL
from convsmith.schedule.sums import config_of_sums
from convsmith.statement.fused import suffix
from convsmith.statement.naive import added_boxes, naive
from convsmith.statement.offsets import summed
from convsmith.statement.program import Program, program
from convsmith.statement.views import statement


@dataclass(frozen=True)
class DevicePlan:
    """The plans of all statements of the program of ``problem``, in the order in which they run."""

    problem: Problem
    config: Config
    machine: Machine
    program: Program
    kernels: tuple[GroupPlan, ...]
    requirements: Requirements = FIXED

    @property
    def main(self) -> GroupPlan:
        """The plan of the statement that writes the problem's result."""
        return next(k for k in self.kernels if k.statement.when == "main")

    @property
    def pipeline(self) -> tuple[Step, ...]:
        """The rewrites of the main kernel."""
        return self.main.pipeline

    @property
    def preparing(self) -> dict[str, tuple[Step, ...]]:
        """The rewrites of the kernels that run before the main one, by name."""
        found = {k.statement.name: k.pipeline for k in self.kernels if k.statement.when == "before"}
        if self.main.nest.parts:
            found[self._start] = self.main.zeroing
        return found

    @property
    def each_call(self) -> frozenset[str]:
        """The names of those of them that run in each call."""
        return frozenset((*(st.name for st in self.program.of("before")), self._start))

    @property
    def _start(self) -> str:
        """The name of the kernel that sets the result to zero, where groups add parts to it."""
        return f"{self.main.statement.name}{START}"

    def naive(self) -> Kernel:
        """Return the naive nest of the main kernel, with those of the kernels before it."""
        whole = self.program.naive()
        return Kernel(whole.name, whole.params, _parts(whole)[0], before=whole.before)

    def finishing(self) -> list[tuple[Kernel, tuple[Step, ...]]]:
        """Return the naive nests of the kernels that run after the main one, with their rewrites.

        Elements that blocked layouts add to results are zeroed by kernels of their own.
        """
        found: list[tuple[Kernel, tuple[Step, ...]]] = []
        if self.program.kernels:
            return _zeros(self.main.statement.name, self.program.naive())
        for k in self.kernels:
            st, whole = k.statement, naive(self.problem, k.statement)
            if st.when == "after":
                found.append((_kernel_of(st.name, whole, _parts(whole)[0]), k.pipeline))
            found += _zeros(st.name, whole)
        return found

    def symbol(self, kernel: str = "") -> str:
        """Return the symbol of the main kernel, or of a kernel around it."""
        return f"{SYMBOL}_{kernel}" if kernel else SYMBOL

    def threads(self, kernel: str = "") -> int:
        """Return 1: one host thread launches a kernel."""
        return 1

    def __str__(self) -> str:
        return "\n".join(f"{head:14}{text}".rstrip() for head, text in self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "config", str(self.config)
        yield from self.decisions()

    def decisions(self) -> Iterator[tuple[str, str]]:
        """Yield the decisions of the plan of each kernel, and why a copy engine or instructions on fragments that the
        machine has are not used.
        """
        for kernel in self.kernels:
            yield from kernel.lines()
        if self.program.kernels:
            return
        if self.config.realise != "hardware":
            st, rounds = statement(self.problem, self.machine), self.problem.accuracy == "any"
            sums = summed(self.problem, st) if st.shifted else None
            for why in why_not_hardware(sums or st, self.machine, rounds):
                yield "copy engine", f"not used: {why}"
        for why in why_no_fragments(self.main.statement, self.config, self.machine):
            yield "fragments", f"not used: {why}"


def _each_call(made: Program) -> Program:
    """Return the program whose statements that run while packing run in each call: devices pack nothing."""
    statements = (replace(st, when="before") if st.when == "packing" else st for st in made.statements)
    return replace(made, statements=tuple(statements))


def _in_memory(config: Config) -> tuple[tuple[str, int], ...]:
    """Return the split of a reduction whose parts have memory of their own."""
    return config.tiles_at("split") if config.join == "ordered" else ()


def _parts(kernel: Kernel) -> tuple[Stmt, ...]:
    return kernel.body.stmts if isinstance(kernel.body, Block) else (kernel.body,)


def _zeros(name: str, whole: Kernel) -> list[tuple[Kernel, tuple[Step, ...]]]:
    """Return the kernels that zero the padding of a blocked result of ``whole``, with their rewrites."""
    return [
        (_kernel_of(f"{name}_zeros{n}", whole, nest), filling(loops_in(nest)))
        for n, nest in enumerate(_parts(whole)[1:])
    ]


def _check_fillings(kernels: Sequence[GroupPlan], machine: Machine) -> None:
    """Raise ConfigError where the grid of a kernel that packs an operand of ``kernels``, or zeroes their results or the
    elements that blocks of these add, exceeds that of ``machine``.
    """
    for k in kernels:
        st, layout = k.statement, k.statement.c.layout
        read = packed_statement(st, k.config, machine)
        filled = [(f"zeroing {st.c.name}", layout.padded_shape)] if k.nest.parts else []
        for _, starts, ends in added_boxes(layout):
            filled.append((f"zeroing what blocks add to {st.c.name}", tuple(map(sub, ends, starts))))
        filled += [(f"packing {v.name}", v.layout.shape) for v in read.factors if v.packed]
        for what, shape in filled:
            check_grid(machine, (filling_groups(prod(shape)),), what)


def _stage_kernels(
    problem: Problem, stages: Stages, config: Config, machine: Machine
) -> tuple[Program, tuple[GroupPlan, ...]]:  # fmt: skip
    """Return the program of ``stages``, one kernel for each, and their plans; results in between stay in memory of the
    device.
    """
    if any(x.at or x.tiles_at("split") or x.offsets == "sums" for x in links(config)):
        raise ConfigError(
            "then", f"config {config}: {machine.name} runs a kernel for each stage; legal is a config of each without "
            "--at=, --split= and --offsets=sums",
        )  # fmt: skip
    made = scheduled_stages(problem, stages, config, machine)
    kernels = []
    for k in made.kernels:
        n = k.last
        own = config.stages[n].renamed({d.name: d.name + suffix(n) for d in k.own[-1].dims}, k.arrays(n))
        kernels.append(group_plan(k.renamed(n), own, machine))
        if n < len(stages) - 1 and len(_parts(k.naive())) > 1:
            raise ConfigError(
                "then", f"{problem}: blocks of {stages.names[n]['dst']} hold more than its channels; legal between "
                f"kernels on {machine.name} are layouts without such elements",
            )  # fmt: skip
    return made, tuple(kernels)


def _kernel_of(name: str, whole: Kernel, nest: Stmt) -> Kernel:
    """Return the kernel of one ``nest`` of the kernel ``whole``, with the parameters that it accesses."""
    used = {x.buffer for x in walk(nest) if isinstance(x, (Load, Store))}
    return Kernel(name, tuple(b for b in whole.params if b in used), nest)


def device_plan(problem: Problem, config: Config, machine: Machine) -> DevicePlan:
    """Return the plan of ``problem`` under ``config`` for a machine that runs grids of groups of threads; ConfigError
    where no kernel can be made from it.
    """
    stages = stages_of(problem)
    if config.has_transform:
        tiles = next(stage.tiles_at("winograd") for stage in config.stages if stage.tiles_at("winograd"))
        raise UnsupportedError(
            f"--winograd={','.join(f'{n}:{size}' for n, size in tiles)}: {machine.name} has kernels that sum products, "
            "and none that transform tiles; available is the same convolution without --winograd=",
            code="device",
        )  # fmt: skip
    if config.then is not None and stages is None:
        raise UnsupportedError(
            f"{problem} under {config}: {machine.name} runs a kernel for each stage of a chain; available are configs "
            "of one stage, as the problem has",
            code="device",
        )  # fmt: skip
    if stages is not None:
        made, kernels = _stage_kernels(problem, stages, config, machine)
        _check_fillings(kernels, machine)
        return DevicePlan(problem, config, machine, made, kernels)
    made = _each_call(program(problem, scheduled(problem, config.changed(split=_in_memory(config)), machine)))
    configs = (config if st.when == "main" else config_of_sums(st, machine, 1) for st in made.statements)
    kernels = tuple(group_plan(st, own, machine) for st, own in zip(made.statements, configs))
    named = {k.config.instruction for k in kernels}
    for row in (x for x in machine.instructions if x.name in named):
        if row.rounds and problem.accuracy != "any":
            raise ConfigError(
                "accuracy", f"--instruction={row.name} rounds the {row.rounds} to fewer bits; legal with "
                f"--accuracy=any, found {problem.accuracy}",
            )  # fmt: skip
    _check_fillings(kernels, machine)
    for k in kernels:
        if k.config.realise != "hardware" and ends_beyond(k.statement, k.loops, k.config):
            # Whether threads would write the same elements follows from the nest, so that the rewrites run up to there.
            *_, last = (n for n, step in enumerate(k.order) if step.run is bind)
            run_steps(naive(problem, k.statement), k.order[: last + 1])
    return DevicePlan(problem, config, machine, made, kernels)
