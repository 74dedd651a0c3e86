"""Plans that are kept: while a problem is compiled, and in its artifact; and the configs of kernels for all weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.ir.intern import Table, interning, nodes
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.plan import Plan, plan

__all__ = ["KeptPlan", "check_sizes", "plan_for", "with_wide_products", "without_limits"]

LANES = 32
"""Threads per group of a kernel that tests each element, because non-finite weights would be multiplied by a copy
engine's zeros.
"""


@record(frozen=True)
class KeptPlan:
    """A ``plan`` with the intern ``table`` of its IR nodes, which outlives the compilation that created it."""

    plan: Plan
    table: Table

    @staticmethod
    def of(plan: Plan) -> KeptPlan:
        """Return ``plan`` with a copy of the current intern table, before rewrites add their nodes."""
        return KeptPlan(plan, nodes().copy())

    @contextmanager
    def opened(self) -> Iterator[Plan]:
        """Run the ``with`` block with a copy of the table, in which rewrites of the plan find its nodes."""
        with interning(self.table):
            yield self.plan


def plan_for(
    problem: Problem, config: Config | GivenSchedule, machine: Machine, requirements: Requirements = FIXED
) -> Plan:
    """Return the plan of ``problem`` under ``config``, as `plan` does.

    The intern table caches the plan, because the choice of a config may need it before the kernel is compiled.
    """
    known, key = nodes(), (plan_for, problem, config, id(machine), requirements)
    made: Plan | None = known.get(key)
    if made is None:
        check_sizes(machine, bool(requirements) and isinstance(config, Config))
        made = known[key] = plan(problem, config, machine, requirements)
    return made


def check_sizes(machine: Machine, dynamic: bool) -> None:
    """Raise UnsupportedError if the kernels of a device would have to be ``dynamic``, for sizes of a call."""
    if dynamic and machine.device is not None:
        raise UnsupportedError(
            f"kernels for {machine.name} have fixed sizes; available is a kernel for each size, or a level of a CPU",
            code="dynamic",
        )


def with_wide_products(config: Config, machine: Machine) -> Config:
    """Return the config with instructions without limits in place of instructions that limit the weights."""
    limited = {row.name: row for row in machine.instructions if row.limit}
    row = limited.get(config.instruction)
    if row is not None:
        other = machine.row(*row.types)
        terms = tuple((loop, other.terms if other else 1) for loop, _ in config.tiles_at("k_step"))
        config = config.changed(instruction=other.name if other else "", k_step=terms)
    return config if config.consumer is None else config.changed(consumer=with_wide_products(config.consumer, machine))


def without_limits(config: Config, machine: Machine) -> Config:
    """Return the config of a kernel that is correct for all weights: its products are wide, or it does not multiply
    zeros that represent absent elements.
    """
    if config.realise == "hardware":
        lane = config.lane
        if config.staged("pack"):  # along pixels, so that the packed order is the same
            lane = config.fuse[-1][1] if config.fuse else config.tiles_at("register")[0][0]
        return Config(
            config.target, lane, reduce=config.reduce if config.staged("pack") else (), pack=config.staged("pack"),
            group=((lane, LANES),), realise="mask", diagonal=config.tiles_at("diagonal"),
        )  # fmt: skip
    if machine.device is not None:
        return config.of_each(realise="mask")
    if (wide := with_wide_products(config, machine)) != config:
        return wide
    on_fragments = {row.name for row in machine.instructions if row.result.scope == "fragment"}
    if config.instruction in on_fragments:  # if all elements exist
        return Config(config.target, config.lane, threads=config.threads)
    return config.of_each(realise="peel")
