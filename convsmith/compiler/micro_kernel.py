"""From the name of a micro-kernel to an artifact, through the driver of all kernels."""

from __future__ import annotations

from dataclasses import replace

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.driver import assemble, lower
from convsmith.diag.collection import no_collection
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import POINTERS, PTR
from convsmith.machine.base import Machine
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule.micro_kernel import micro_kernel_plan


def micro_kernel_artifact(m: MicroKernel, target: Machine) -> Artifact:
    """Compile ``m`` for ``target``."""
    with no_collection(), interning():
        made = micro_kernel_plan(m, target)

        def pointer(kernel: Kernel, b: Buffer) -> Argument:
            """Return the argument for a raw pointer, which the kernel only reads or may write."""
            argument = buffer_argument(b, "inout" if b in kernel.written else "in")
            return replace(argument, dtype=POINTERS[target.address_bits].name) if b.dtype is PTR else argument

        return replace(assemble(made, lower(made), pointer), problem=m.name, config=str(made.config))
