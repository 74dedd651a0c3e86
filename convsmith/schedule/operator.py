"""The plan of an operator of a network: its nests, and the rewrites that a function of the library makes of them."""

from __future__ import annotations

from functools import partial

from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.given_kernel import GivenKernel
from convsmith.schedule.library.operator import operator
from convsmith.schedule.plan import Plan
from convsmith.statement.operator import Operator
from convsmith.statement.program import Program


def operator_plan(op: Operator, machine: Machine, threads: int) -> Plan:
    """Return the plan of ``op``: by vectors, or element by element if its reads are not adjacent along the lanes."""
    nests = op.nests()
    for vectors in (True, False):
        s = KernelSchedule(op, machine, nests.kernel, nests.statements)
        try:
            operator(s, vectors)
        except ConfigError:
            if not vectors:
                raise
        else:
            break
    given = GivenKernel(machine, nests.statements, tuple(s.steps), s.kernel, s.tables)
    config = GivenSchedule(partial(operator, vectors=vectors), machine.name, threads)
    return Plan(op, config, machine, Program(op, nests.statements, nest=nests.kernel), (), given=given)
