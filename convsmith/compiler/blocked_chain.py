"""From the plan of two convolutions over blocked layouts to an artifact, through the driver of all kernels."""

from __future__ import annotations

from dataclasses import replace

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact
from convsmith.compiler.arguments import argument_of
from convsmith.compiler.driver import assemble, lower
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.schedule.blocked_chain import BlockedChain

__all__ = ["blocked_chain_artifact"]


def blocked_chain_artifact(plan: BlockedChain) -> Artifact:
    """Compile ``plan``, the form whose loops end with the results."""
    known = {tensor.name: argument_of(tensor) for tensor in plan.stages.whole.tensors}

    def argument(_: Kernel, b: Buffer) -> Argument:
        return known[b.name]

    with llvm_bind.no_collection(), interning():
        made = assemble(plan, lower(plan), argument)
    return replace(made, problem=str(plan.stages.whole))
