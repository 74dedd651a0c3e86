"""Counts instructions of RISC-V kernels: those of the inner loop, and in qemu all of a call with registers of several
lengths. Estimates cycles of the inner loop by llvm-mca. Nothing is timed.

Run: python benchmarks/riscv_loops.py [--loops] [--xnnpack DIR --clang COMMAND --include DIR]
On PATH must be qemu-riscv64, of version 8.1 or later for types of 16 bits, and llvm-mca of LLVM 22 or later. The
sources of XNNPACK, and those of pthreadpool to include, are in DIR; COMMAND compiles C for RISC-V as clang does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from report import Report

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact, lower
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.emulate.qemu import RISCV64, VECTOR_BITS, Qemu, rvv_processor
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
    "f32 1x1 of 16 channels": (f"{NHWC} mb1ic64ih14oc16oh14kh1ph0", "riscv64+rvv"),
    "f32 1x1 of one pixel": (f"{NHWC} mb1ic512ih1oc1000oh1kh1ph0", "riscv64+rvv"),
    "f32 depthwise 3x3": (f"{NHWC} g64mb1ic64ih14oc64oh14kh3ph1", "riscv64+rvv"),
}
"""Layers, and the levels that they are compiled for."""
XNNPACK = {
    "f32 7x4v": "f32-igemm/gen/f32-igemm-7x4v-minmax-rvv.c",
    "f16 7x4v": "f16-igemm/gen/f16-igemm-7x4v-minmax-rvvfp16arith.c",
    "s8 7x1v": "qs8-qc8w-igemm/gen/qs8-qc8w-igemm-7x1v-minmax-fp32-rvv.c",
}
"""Loops of XNNPACK, and the files below its folder `src`."""
GROUPS = (1, 2, 4, 8)
"""Registers of a group."""
SHORT_AND_LONG = (128, 512)
"""Bits of registers for which calls on groups are counted."""
GROUPED = ("f32 3x3", "f32 1x1", "u8 by s8, 3x3", "f32 1x1 of 16 channels", "f32 1x1 of one pixel")
"""The layers that are compared on groups."""
CPUS = ("sifive-x280", "sifive-p670", "spacemit-x60")
"""CPUs of whose pipelines LLVM has a description."""
KINDS = {
    "channels last": f"{NHWC} mb1ic16ih8oc64oh8kh3ph1",
    "transforms": "--stag=axb --dtag=axb mb1ic16ih8oc64oh8kh3ph1",
    "depthwise": f"{NHWC} g64mb1ic64ih8oc64oh8kh3ph1",
    "channels first": "--accuracy=strict --stag=abx --dtag=abx mb1ic16ih8oc64oh8kh3ph1",
    "channels first, stride": "--stag=abx --dtag=abx mb1ic3ih32oc32oh16kh3sh2ph1",
    "bytes, channels first": "--dt=s8:s8:s32 --stag=abx --dtag=abx mb1ic16ih8oc64oh8kh3ph1",
    "depthwise, channels first": "--stag=abx --dtag=abx g32mb1ic32ih14oc32oh14kh3ph1",
    "long epilogue": f"{NHWC} --attr-post-ops=gelu_erf mb1ic16ih8oc64oh8kh3ph1",
    "gradient of the source": f"--dir=BWD_D {NHWC} mb1ic64ih8oc16oh8kh3ph1",
    "gradient of the weights": f"--dir=BWD_W {NHWC} mb1ic32ih8oc64oh8kh1ph0",
    "gradient of depthwise weights": f"--dir=BWD_W {NHWC} g64mb1ic64ih8oc64oh8kh3ph1",
}
"""Problems of f32, and of bytes, by the kind of their kernels."""


class Counts(NamedTuple):
    """Instructions of a loop, by what they do."""

    products: int
    vector_loads: int
    scalar_loads: int
    others: int


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Count the instructions of RISC-V kernels.")
    parser.add_argument("--loops", action="store_true", help="Leave out whole calls, which qemu runs.")
    parser.add_argument("--xnnpack", metavar="DIR", type=Path, help="The sources of XNNPACK.")
    parser.add_argument("--clang", metavar="COMMAND", default="clang --target=riscv64-linux-gnu", help="A compiler.")
    parser.add_argument("--include", metavar="DIR", type=Path, help="The folder of pthreadpool.h.")
    given = parser.parse_args(arguments)
    report = Report("riscv-loops", "Instructions of kernels for RISC-V", on="riscv64")
    report.note(
        "An instruction works on a group of registers, whose number is chosen for each layer. Products are vector "
        "multiply-adds; a step of an inner loop adds one term to each sum of a register tile. LLVM's descriptions of "
        "CPUs rank loops on one CPU, and are no measurement. A dash: llvm-mca has no description of the CPU, or qemu "
        "does not run the extension. No kernel ran on a processor of RISC-V."
    )
    loops, calls, found = [], [], {}
    for name, (line, level) in ROWS.items():
        machine, problem = target(level), parse_problem(line).canonical()
        group = str(default_config(problem, machine).vector_registers or machine.vectors.group)
        loop, counts, cycles = inner_loop(assembly_of(problem, machine), machine), None, []
        if loop is not None:  # a tile of all taps has no loop
            counts, cycles = counted(loop), cycles_of(loop, machine)
            loops.append([name, group, *map(str, counts), f"{len(loop.lines) / loop.products:.2f}", *cycles])
        lengths = VECTOR_BITS if not given.loops and runs(machine) else ()
        ran = {n: instructions_of(problem, machine, emulator_of(machine, n)) for n in lengths}
        macs = problem.flops_dense // 2
        counts_of = (f"{1000 * ran[n] / macs:.1f}" if n in ran else "-" for n in VECTOR_BITS)
        calls.append([name, group, f"{macs / 1e6:.2f}", *counts_of])
        found[name] = {"line": line, "level": level, "group": int(group), "loop": counts and counts._asdict(),
                       "cycles": dict(zip(CPUS, cycles)), "instructions": ran}  # fmt: skip
    columns = ["products", "vector loads", "scalar loads", "others", "instructions per product"]
    columns = ["layer", "registers of a group", *columns]
    report.table("The inner loop", [*columns, *(f"cycles on {cpu}" for cpu in CPUS)], loops)
    if not given.loops:
        columns = ["layer", "registers of a group", "million multiply-adds"]
        columns += [f"registers of {bits} bits" for bits in VECTOR_BITS]
        report.table("Instructions of a call for 1,000 multiply-adds", columns, calls)
        report.table("Kinds of kernels: instructions of a call for 1,000 multiply-adds",
                     ["kind", *(f"registers of {bits} bits" for bits in VECTOR_BITS)],
                     list(kinds(target("riscv64+rvv"), VECTOR_BITS, emulator_of)))  # fmt: skip
    names = ["layer", "registers of a group", "products", "instructions", "instructions for a register"]
    names += [f"registers a cycle on {cpu}" for cpu in CPUS]
    lengths = () if given.loops else SHORT_AND_LONG
    names += [f"of a call for 1,000 multiply-adds, {bits} bits" for bits in lengths]
    report.table("Groups of registers", names, list(grouped(lengths)))
    columns = ["loop", "products", "vector loads", "scalar loads", "others", "instructions per product"]
    columns += [f"cycles on {cpu}" for cpu in CPUS]
    if given.xnnpack is not None:
        rows_of_others = [row_of(name, compiled_loop(given.xnnpack, file, given.clang.split(), given.include))
                          for name, file in XNNPACK.items()]  # fmt: skip
        report.table("Loops of XNNPACK, compiled", columns, rows_of_others)
    report.table(
        "A loop of ONNX Runtime, from its source", ["loop", "products", "vector loads", "scalar loads", "notes"],
        [
            ["MlasConvNchwcFloatKernelRvv", "4", "1", "4", "groups of four registers; the block of 16 channels is a "
             "part of the layout, and fills a group at 128 bits, half of it at 256"],
        ],
    )  # fmt: skip
    report.data = found
    report.write()


def grouped(lengths: Sequence[int]) -> Iterator[list[str]]:
    """Yield the inner loops of layers, by the registers of a group, with the instructions of calls for 1,000
    multiply-adds with vectors of the given ``lengths``.
    """
    for name, group in product(GROUPED, GROUPS):
        line, level = ROWS[name]
        machine, problem = target(level).with_vectors(group).with_own_vectors, parse_problem(line).canonical()
        loop = inner_loop(assembly_of(problem, machine), machine)
        assert loop is not None, name
        registers = loop.products * group
        rates = (x if x == "-" else f"{registers / float(x):.2f}" for x in cycles_of(loop, machine))
        counts = (instructions_of(problem, machine, emulator_of(machine, n)) for n in lengths)
        calls = (f"{1000 * n / (problem.flops_dense // 2):.1f}" for n in counts)
        count = len(loop.lines)
        yield [name, str(group), str(loop.products), str(count), f"{count / registers:.2f}", *rates, *calls]


def kinds(machine: Machine, lengths: Sequence[int], emulator: Callable[[Machine, int], Qemu]) -> Iterator[list[str]]:
    """Yield the instructions of each of `KINDS` for 1,000 multiply-adds, with vectors of the given ``lengths``."""
    for name, line in KINDS.items():
        problem = parse_problem(line).canonical()
        counts = (instructions_of(problem, machine, emulator(machine, n)) for n in lengths)
        yield [name, *(f"{1000 * n / (problem.flops_dense // 2):.0f}" for n in counts)]


def runs(machine: Machine) -> bool:
    """Return whether qemu runs the machine's extensions."""
    try:
        RISCV64.check(machine)
    except UnsupportedError:
        return False
    return True


def emulator_of(machine: Machine, bits: int) -> Qemu:
    """Return the emulator of registers of ``bits`` bits."""
    return replace(RISCV64, processor=rvv_processor(bits, machine.needs))


def row_of(name: str, loop: InnerLoop) -> list[str]:
    """Return the cells of a loop of another library."""
    per = f"{len(loop.lines) / loop.products:.2f}"
    return [name, *map(str, counted(loop)), per, *cycles_of(loop, target("riscv64+zvfh"))]


def cycles_of(loop: InnerLoop, machine: Machine) -> list[str]:
    """Return the cycles of a step on each of `CPUS`; a dash for one of which llvm-mca has no description."""
    found = []
    for cpu in CPUS:
        try:
            found.append(f"{estimated_cycles(loop, machine, cpu):.1f}")
        except UsageError:
            found.append("-")
    return found


def compiled_loop(folder: Path, file: str, compiler: Sequence[str], include: Path | None) -> InnerLoop:
    """Return the inner loop of a file in C."""
    folders = [folder, folder / "src", folder / "include", *([include] if include is not None else [])]
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "loop.s"
        command = [*compiler, "-O2", "-g0", *(f"-I{x}" for x in folders), "-S", str(folder / "src" / file)]
        subprocess.run([*command, "-o", str(made)], check=True, capture_output=True)
        loop = inner_loop(made.read_text(), target("riscv64+zvfh"))
    assert loop is not None, file
    return loop


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


def instructions_of(problem: Problem, machine: Machine, emulator: Qemu) -> int:
    """Return the instructions of a call in qemu; its results are checked elsewhere."""
    artifact = build_artifact(problem, default_config(problem, machine), machine)
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        singly = ("QEMU_ONE_INSN_PER_TB", "QEMU_SINGLESTEP")  # the latter is the name before qemu 8.1
        words = {"QEMU_LOG": "exec,nochain", "QEMU_LOG_FILENAME": str(log), **dict.fromkeys(singly, "1")}
        os.environ |= words
        try:
            HostKernel(artifact, None, emulator.load(artifact)).run(random_arrays(problem, 0))
            with log.open("rb") as file:  # of the last process, which ran the kernel itself
                return sum(line.startswith(b"Trace") for line in file)
        finally:
            for word in words:
                os.environ.pop(word)


if __name__ == "__main__":
    main()
