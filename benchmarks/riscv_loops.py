"""Counts instructions of RISC-V kernels: those of the inner loop, and in qemu all of a call with registers of several
lengths. Estimates cycles of the inner loop by llvm-mca. Nothing is timed.

Run: python benchmarks/riscv_loops.py
On PATH must be qemu-riscv64, of version 8.1 or later for types of 16 bits, and llvm-mca of LLVM 19 or later.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from report import Report

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.diag.collection import no_collection
from convsmith.emulate.qemu import RISCV64, VECTOR_BITS, rvv_processor
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.page.inner_loop import InnerLoop, estimated_cycles, inner_loop
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

NHWC = "--accuracy=strict --stag=axb --dtag=axb"
ROWS = {
    "f32 3x3": (f"{NHWC} mb1ic64ih14oc64oh14kh3ph1", "riscv64+rvv"),
    "f32 1x1": (f"{NHWC} mb1ic64ih14oc128oh14kh1ph0", "riscv64+rvv"),
    "u8 by s8, 3x3": (f"--dt=u8:s8:s32 {NHWC} mb1ic64ih14oc64oh14kh3ph1", "riscv64+rvv"),
    "f16 3x3": (f"--dt=f16 {NHWC} mb1ic64ih14oc64oh14kh3ph1", "riscv64+zvfh"),
    "bf16 3x3": (f"--dt=bf16 {NHWC} mb1ic64ih14oc64oh14kh3ph1", "riscv64+zvfbfwma"),
    "f32 depthwise 3x3": (f"{NHWC} g64mb1ic64ih14oc64oh14kh3ph1", "riscv64+rvv"),
}
"""Layers, and the levels that they are compiled for."""
CPUS = ("sifive-x280", "sifive-p670")
"""CPUs of whose pipelines LLVM has a description."""


class Counts(NamedTuple):
    """Instructions of a loop, by what they do."""

    products: int
    vector_loads: int
    scalar_loads: int
    others: int


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count the instructions of RISC-V kernels.")
    parser.parse_args(arguments)
    report = Report("riscv-loops", "Instructions of kernels for RISC-V", on="riscv64")
    report.note(
        "An instruction works on a group of four registers. Products are vector multiply-adds; a step of an inner loop "
        "adds one term to each sum of a register tile. LLVM's descriptions of CPUs rank loops on one CPU, and are no "
        "measurement. No kernel ran on a processor of RISC-V."
    )
    loops, calls, found = [], [], {}
    for name, (line, level) in ROWS.items():
        machine, problem = target(level), parse_problem(line).canonical()
        loop, counts, cycles = inner_loop(assembly_of(problem, machine), machine), None, []
        if loop is not None:  # a tile of all taps has no loop
            counts = counted(loop)
            cycles = [f"{estimated_cycles(loop, machine, cpu):.1f}" for cpu in CPUS]
            loops.append([name, *map(str, counts), f"{len(loop.lines) / loop.products:.2f}", *cycles])
        ran = {bits: instructions_of(problem, machine, bits) for bits in VECTOR_BITS}
        macs = problem.flops_dense // 2
        calls.append([name, f"{macs / 1e6:.2f}", *(f"{1000 * n / macs:.1f}" for n in ran.values())])
        found[name] = {"line": line, "level": level, "loop": counts and counts._asdict(),
                       "cycles": dict(zip(CPUS, cycles)), "instructions": ran}  # fmt: skip
    columns = ["layer", "products", "vector loads", "scalar loads", "others", "instructions per product"]
    report.table("The inner loop", [*columns, *(f"cycles on {cpu}" for cpu in CPUS)], loops)
    columns = ["layer", "million multiply-adds", *(f"registers of {bits} bits" for bits in VECTOR_BITS)]
    report.table("Instructions of a call for 1,000 multiply-adds", columns, calls)
    report.table(
        "Loops of other libraries, from their sources", ["loop", "products", "vector loads", "scalar loads", "notes"],
        [
            ["XNNPACK, xnn_f32_gemm_minmax_ukernel_7x4v__rvv", "7", "1", "7", "groups of four registers; panels of "
             "packed weights are as wide as the machine's vectors; seven pointers and one of weights advance"],
            ["ONNX Runtime, MlasConvNchwcFloatKernelRvv", "4", "1", "4", "groups of four registers; the block of 16 "
             "channels is a part of the layout, and fills a group at 128 bits, half of it at 256"],
        ],
    )  # fmt: skip
    report.data = found
    report.write()


def assembly_of(problem: Problem, machine: Machine) -> str:
    """Return the assembly of the default kernel."""
    with no_collection(), interning():
        text = lower(plan(problem, default_config(problem, machine), machine)).text
    return llvm_bind.assembly(text, machine.triple, machine.cpu, machine.features)


def counted(loop: InnerLoop) -> Counts:
    """Return the instructions of a loop by what they do."""
    vectors = sum(bool(re.match(r"\tvle\d+\.", x)) for x in loop.lines)
    scalars = sum(bool(re.match(r"\t(l[bhwd]u?|fl[hwd])\t", x)) for x in loop.lines)
    return Counts(loop.products, vectors, scalars, len(loop.lines) - loop.products - vectors - scalars)


def instructions_of(problem: Problem, machine: Machine, bits: int) -> int:
    """Return the instructions of a call in qemu, with registers of ``bits`` bits; its results are checked elsewhere."""
    artifact = build_artifact(problem, default_config(problem, machine), machine)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        words = {"QEMU_LOG": "exec,nochain", "QEMU_LOG_FILENAME": str(log), "QEMU_ONE_INSN_PER_TB": "1"}
        os.environ |= words
        try:
            emulator = replace(RISCV64, processor=rvv_processor(bits, machine.needs))
            HostKernel(artifact, None, emulator.load(artifact)).run(random_arrays(problem, 0))
            with log.open("rb") as file:  # of the last process, which ran the kernel itself
                return sum(line.startswith(b"Trace") for line in file)
        finally:
            for word in words:
                os.environ.pop(word)


if __name__ == "__main__":
    main()
