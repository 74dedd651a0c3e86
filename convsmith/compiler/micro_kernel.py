"""Compiles the name of a micro-kernel to an artifact: the kernel, and the kernel that packs its weights."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry, Launch, size_argument
from convsmith.codegen.llvm_text import module_text
from convsmith.compiler.facts import facts
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.passes.manager import Instrument, run_steps
from convsmith.plan.micro_kernel import micro_kernel_steps, micro_packing_steps
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.statement.micro_kernel import naive_micro_kernel

WRITTEN = ("output", "buffer", "weights")
"""Arguments that the two kernels write; a micro-kernel only reads its weights."""


def lower_micro_kernel(
    m: MicroKernel, target: Machine, instruments: Sequence[Instrument] = ()
) -> tuple[Kernel, Kernel]:
    """Return the kernel after all rewrites, and its packing kernel."""
    kernel = run_steps(naive_micro_kernel(m), micro_kernel_steps(m, target), instruments)
    (pack,) = kernel.packs
    return kernel, run_steps(pack, micro_packing_steps())


def micro_kernel_artifact(m: MicroKernel, target: Machine) -> Artifact:
    """Compile a micro-kernel for a target."""
    with llvm_bind.no_collection(), interning():
        kernel, pack = lower_micro_kernel(m, target)
        kernels = {m.name: (kernel, Launch()), f"{m.name}_pack": (pack, Launch())}
        text = module_text(kernels, facts(target), {})
        entries = {"main": _entry(m.name, kernel), "pack": _entry(f"{m.name}_pack", pack)}
    code = llvm_bind.object_code(text, target.triple, target.cpu, target.features)
    return Artifact(code=code, isa=target.isa, entries=entries, problem=m.name, config=f"--isa={target.isa}",
                    needs=target.needs, permissions=target.permissions)  # fmt: skip


def _entry(symbol: str, kernel: Kernel) -> Entry:
    written = WRITTEN if symbol.endswith("_pack") else WRITTEN[:2]

    def argument(b: Buffer) -> Argument:
        return Argument(b.name, "inout" if b.name in written else "in", b.dtype.name, (b.size,), "a", b.size)

    sizes = (size_argument(v.name) for v in kernel.sizes)
    return Entry(symbol, (*map(argument, kernel.params), *sizes))
