"""Counts instructions of RISC-V kernels: those of the inner loop, and in qemu all of a call with registers of several
lengths. Estimates cycles of the inner loop by llvm-mca. Nothing is timed.

Run: python benchmarks/riscv_loops.py [--mca PATH]
qemu-riscv64 must be on PATH, of version 8.1 or later for types of 16 bits; llvm-mca of LLVM 19 or later knows the CPUs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from report import Report

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.emulate.qemu import RISCV64, VECTOR_BITS, rvv_processor
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
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
_PRODUCT = re.compile(r"^\tv\w*(macc|madd)\w*\.")
_LENGTH = "vsetvli\tzero, zero, e{bits}, m{group}, ta, ma"


class Counts(NamedTuple):
    """Instructions of a loop, by what they do."""

    products: int
    vector_loads: int
    scalar_loads: int
    others: int


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count the instructions of RISC-V kernels.")
    parser.add_argument("--mca", default=shutil.which("llvm-mca") or "", help="the program llvm-mca, of LLVM 19")
    options = parser.parse_args(arguments)
    report = Report("riscv-loops", "Instructions of kernels for RISC-V", on="riscv64")
    report.note(
        "An instruction works on a group of four registers. Products are vector multiply-adds; a step of an inner loop "
        "adds one term to each sum of a register tile. LLVM's descriptions of CPUs rank loops on one CPU, and are no "
        "measurement. No kernel ran on a processor of RISC-V."
    )
    loops, calls, found = [], [], {}
    for name, (line, level) in ROWS.items():
        machine, problem = target(level), parse_problem(line).canonical()
        body = inner_loop(assembly_of(problem, machine))
        counts = counted(body)
        cycles = [cycles_of(options.mca, cpu, body, problem) for cpu in CPUS] if options.mca else ["-"] * len(CPUS)
        if counts.products:  # a tile of all taps has no loop
            loops.append([name, *map(str, counts), f"{sum(counts) / counts.products:.2f}", *cycles])
        ran = {bits: instructions_of(problem, machine, bits) for bits in VECTOR_BITS}
        macs = problem.flops_dense // 2
        calls.append([name, f"{macs / 1e6:.2f}", *(f"{1000 * n / macs:.1f}" for n in ran.values())])
        found[name] = {"line": line, "level": level, "loop": counts._asdict(), "cycles": dict(zip(CPUS, cycles)),
                       "instructions": ran}  # fmt: skip
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
    with llvm_bind.no_collection(), interning():
        text = lower(plan(problem, default_config(problem, machine), machine)).text
    return llvm_bind.assembly(text, machine.triple, machine.cpu, machine.features)


def inner_loop(assembly: str) -> list[str]:
    """Return the instructions of the loop without loops that has most products."""
    lines, labels, best = assembly.splitlines(), {}, []
    for n, line in enumerate(lines):
        if line.startswith(".LBB"):
            labels[line.partition(":")[0]] = n
        jump = re.match(r"\tb\w+\t.*(\.LBB\d+_\d+)$", line)
        if jump is None or jump[1] not in labels:
            continue
        body = lines[labels[jump[1]] + 1 : n + 1]
        is_inner = not any(x.startswith(".LBB") for x in body)
        if is_inner and counted(body).products > counted(best).products:
            best = body
    return best


def counted(body: Sequence[str]) -> Counts:
    """Return the instructions of a loop by what they do."""
    products = sum(bool(_PRODUCT.match(x)) for x in body)
    vectors = sum(bool(re.match(r"\tvle\d+\.", x)) for x in body)
    scalars = sum(bool(re.match(r"\t(l[bhwd]u?|fl[hwd])\t", x)) for x in body)
    return Counts(products, vectors, scalars, len(body) - products - vectors - scalars)


def cycles_of(mca: str, cpu: str, body: Sequence[str], problem: Problem) -> str:
    """Return the cycles of a step by llvm-mca."""
    bits = {"f32": 32, "f64": 64}.get(problem.dt[0], 16)
    length = _LENGTH.format(bits=bits, group=4 * bits // 32)
    text = "\n".join([length, *(re.sub(r"\.LBB\d+_\d+", "0", x) for x in body if "vset" not in x)])
    options = ["-mtriple=riscv64", f"-mcpu={cpu}", "-mattr=+v,+zvfh,+zvfbfwma", "-iterations=100", "-"]
    done = subprocess.run([mca, *options], input=text + "\n", capture_output=True, text=True, check=False)
    total = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return f"{int(total[1]) / 100:.1f}" if total else "unknown"


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
