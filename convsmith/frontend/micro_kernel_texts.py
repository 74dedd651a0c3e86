"""The texts of a micro-kernel: its IR at any stage, LLVM's text, its assembly."""

from __future__ import annotations

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.micro_kernel import micro_kernel_artifact
from convsmith.diag import trace
from convsmith.frontend.inspection import KernelTexts
from convsmith.machine.base import Machine
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule.micro_kernel import config_of_name, micro_kernel_plan
from convsmith.schedule.plan import Plan

__all__ = ["MicroKernelTexts"]


class MicroKernelTexts(KernelTexts):
    """A micro-kernel that is compiled for a target, which may be another machine's."""

    artifact: Artifact

    def __init__(self, m: MicroKernel, target: Machine) -> None:
        self.kernel, self.target = m, target
        self.config = config_of_name(m, target)
        self.artifact = micro_kernel_artifact(m, target)

    @property
    def name(self) -> str:
        return self.kernel.name

    def _new_plan(self) -> Plan:
        return micro_kernel_plan(self.kernel, self.target)

    def _command(self) -> str:
        return trace.command("show", self.name, target=self.target.name)
