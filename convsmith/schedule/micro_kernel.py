"""The plan of a depthwise micro-kernel, whose name is its config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convsmith.diag.forking import cached_property
from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.passes.manager import Step
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import Prescribed, kernel_plan
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import SymbolicSizes
from convsmith.statement.micro_kernel import WEIGHTS, micro_statement, naive_micro_kernel, sums_type


@dataclass(frozen=True)
class MicroKernelPlan:
    """The plan of the micro-kernel ``m``: one kernel, and the packing kernel that its rewrites derive."""

    m: MicroKernel
    machine: Machine

    @property
    def config(self) -> Config:
        """The decisions that the name of the micro-kernel encodes."""
        return config_of_name(self.m, self.machine)

    @cached_property
    def kernel(self) -> KernelPlan:
        """The plan of the statement; the caller supplies memory for sums between several passes."""
        st = micro_statement(self.m)
        sizes = SymbolicSizes(frozenset(d.name for d in st.dims), ())
        sums = make_buffer("buffer", sums_type(self.m), (UNKNOWN,)) if self.m.multipass else None
        return kernel_plan(st, self.config, self.machine, sizes, prescribed=Prescribed(sums))

    @property
    def preparing(self) -> dict[str, Sequence[Step]]:
        """No kernel runs before this one."""
        return {}

    @property
    def each_call(self) -> frozenset[str]:
        """No kernel runs before this one."""
        return frozenset()

    @property
    def pipeline(self) -> Sequence[Step]:
        """The rewrites of the kernel."""
        return self.kernel.pipeline

    def naive(self) -> Kernel:
        """Return the naive nest."""
        return naive_micro_kernel(self.m, self.machine.address_bits)

    def finishing(self) -> list[tuple[Kernel, Sequence[Step]]]:
        """Return an empty tuple: no kernel runs after this one."""
        return []

    def symbol(self, kernel: str = "") -> str:
        """Return XNNPACK's name of the kernel, or the name of its packing kernel."""
        return f"{self.m.name}_pack" if kernel else self.m.name

    def threads(self, kernel: str = "") -> int:
        """Return 1: a micro-kernel runs on the thread that calls it."""
        return 1


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
