"""The plan of a depthwise micro-kernel, whose name is its config."""

from __future__ import annotations

from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.machine.base import Machine
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import Prescribed, kernel_plan
from convsmith.schedule.loops import SymbolicSizes
from convsmith.schedule.plan import Plan
from convsmith.statement.micro_kernel import WEIGHTS, sums_type
from convsmith.statement.program import micro_program


def micro_kernel_plan(m: MicroKernel, machine: Machine) -> Plan:
    """Return the plan of the micro-kernel ``m``, whose caller supplies memory for sums between several passes."""
    config, program = config_of_name(m, machine), micro_program(m, machine.address_bits)
    sizes = SymbolicSizes(frozenset(d.name for d in program.main.dims), ())
    sums = make_buffer("buffer", sums_type(m), (UNKNOWN,)) if m.multipass else None
    made = kernel_plan(program.main, config, machine, sizes, prescribed=Prescribed(sums))
    return Plan(m, config, machine, program, (made,))


def config_of_name(m: MicroKernel, machine: Machine) -> Config:
    """Return the config that the name of ``m`` encodes: tiles of channels, of taps, and of the remaining channels."""
    middle = m.taps[len(m.taps) // 2]
    config = Config(
        machine.name, "c", register=(("c", m.channel_tile), ("k", middle)), order=("x", "c"), realise="indirection",
        pack=(WEIGHTS,), outline=False,
    )  # fmt: skip
    if not m.multipass:
        return config
    first, _, last = m.taps
    return config.changed(
        cache=(("x", 1), ("k", middle)), first_last_tile=(("k", first), ("k", last)), remainder=(("c", m.subtile),)
    )
