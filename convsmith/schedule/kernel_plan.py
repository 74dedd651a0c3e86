"""The plan of one statement on any machine, as all phases of its schedule read it."""

from __future__ import annotations

from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.machine.base import Machine
from convsmith.passes.manager import Step
from convsmith.schedule.buffers import BufferPlan
from convsmith.schedule.config import Config
from convsmith.schedule.hardware import HardwareTile
from convsmith.schedule.loops import Loop, Loops, with_phases
from convsmith.schedule.nest import Nest
from convsmith.schedule.packed_operands import packed_statement
from convsmith.schedule.registers import Registers
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement


@record(frozen=True)
class KernelPlan:
    """The plan of one statement: its loops, the nest, registers and buffers under ``config``, and its pipeline.

    ``ordering`` is the schedule that puts the loops of the statement into the order of the nest. Host threads share the
    loops ``outside``. ``sums`` is the array that keeps partial sums, if the interface of the kernel has one.
    ``pipeline`` makes a kernel of this statement alone; it is empty if other nests share the kernel. ``zeroing`` are
    the rewrites of the kernel that sets the result to zero, if groups of threads add parts to it. ``registers`` is None
    if an assembler allocates them. ``brought`` is the tile of a group whose operands a copy engine brings, if one does.
    ``notes`` state the bounds of the plan's rate.
    """

    statement: Statement
    config: Config
    machine: Machine
    loops: Loops
    nest: Nest
    ordering: Schedule
    outside: tuple[Loop, ...] = ()
    registers: Registers | None = None
    buffers: tuple[BufferPlan, ...] = ()
    sums: Buffer | None = None
    pipeline: tuple[Step, ...] = ()
    zeroing: tuple[Step, ...] = ()
    brought: HardwareTile | None = None
    notes: tuple[tuple[str, str], ...] = ()

    @cached_property
    def columns(self) -> Statement:
        """The statement as the nest reads it: with the phases of the config as columns of the product, and with
        operands that are packed as arrays.
        """
        return with_phases(packed_statement(self.statement, self.config, self.machine), self.config)

    @property
    def shared(self) -> dict[str, int]:
        """The bytes of each operand's copy in memory that a group of threads shares."""
        return {b.operand: b.bytes for b in self.buffers if b.scope == "shared"}
