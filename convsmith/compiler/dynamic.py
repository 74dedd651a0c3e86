"""From a problem with sizes that are known at the call to an artifact: one kernel for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.build.dynamic import TABLE, check_dynamic, dynamic_config, dynamic_steps
from convsmith.build.packing import packing_steps
from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.codegen.llvm_text import module_text
from convsmith.compiler.arguments import argument_of, packing_note
from convsmith.compiler.driver import SYMBOL, naive_kernel
from convsmith.compiler.facts import facts
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.passes.manager import Instrument, run_steps
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.target.base import Target


def lower_dynamic(p: Conv, config: Config, target: Target, instruments: Sequence[Instrument] = ()) -> Kernel:
    """The kernel after all rewrites."""
    _, kernel = naive_kernel(p, target)
    return run_steps(kernel, dynamic_steps(p, config, target), instruments)


def dynamic_artifact(problem: Problem, target: Target, config: Config | None = None) -> Artifact:
    """Compile a forward convolution for any batch, extents and pads; UnsupportedError where that is not built."""
    with llvm_bind.no_collection(), interning():
        p = check_dynamic(problem)
        config = config or dynamic_config(p, target)
        kernel = lower_dynamic(p, config, target)
        kernels = {SYMBOL: (kernel, 1)}
        for pack in kernel.packs:
            kernels[f"{SYMBOL}_pack"] = (run_steps(pack, packing_steps(pack, target)), 1)
        text = module_text(kernels, facts(target), {})
        tensors = {t.name: argument_of(t) for t in p.tensors}

        def argument(b: Buffer) -> Argument:
            if b.name in tensors:
                return tensors[b.name]
            if b.name == TABLE:
                return Argument(b.name, "table", b.dtype.name, (b.size,), "a", b.size, of="src")
            if b.name == "src_0":
                return Argument(b.name, "zero", b.dtype.name, (b.size,), "a", b.size, of="src")
            return Argument(b.name, "packed", b.dtype.name, (b.size,), "a", b.size, of=b.name.removesuffix("_p"))

        entries = {"main": Entry(SYMBOL, tuple(map(argument, kernel.params)), 1, tuple(map(str, kernel.sizes)))}
        notes = {}
        for pack in kernel.packs:
            entries["pack"] = Entry(f"{SYMBOL}_pack", tuple(map(argument, pack.params)))
            notes["packing"] = packing_note(pack)
    code = llvm_bind.object_code(text, target.triple, target.cpu, target.features)
    return Artifact(
        code=code, isa=target.isa, entries=entries, problem=str(p), config=str(config), needs=target.needs,
        needs_finite=("wei",), notes=notes,
    )  # fmt: skip
