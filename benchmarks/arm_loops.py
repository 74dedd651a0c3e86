"""Estimates the inner loops of AArch64 kernels by llvm-mca, beside loops of other libraries in assembly, and counts
the instructions of kernels for SVE in qemu, with vectors of several lengths. Nothing is timed.

Run: python benchmarks/arm_loops.py [--loops] [--xnnpack DIR] [--kleidiai DIR]
On PATH must be qemu-aarch64 and llvm-mca of LLVM 22 or later; for the libraries, whose sources are in DIR, also cc,
llvm-mc-22 and llvm-objdump-22.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from report import Report
from riscv_loops import NHWC, assembly_of, kinds

from convsmith.diag.errors import ConvsmithError
from convsmith.emulate.qemu import AARCH64, Qemu, sve_processor
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.page.inner_loop import DESCRIBED, InnerLoop, estimated_cycles, inner_loop
from convsmith.problem.lines import parse_problem

CPUS = DESCRIBED["aarch64"]
LAYER = "mb1ic64ih14oc64oh14kh3ph1"
ROWS = {
    "f32": ("", ("aarch64", "aarch64+sve")),
    "f16": ("--dt=f16 --attr-acc-mode=f16", ("aarch64+fp16", "aarch64+sve")),
    "bf16": ("--dt=bf16", ("aarch64+bf16", "aarch64+sve")),
    "s8": ("--dt=s8:s8:s32", ("aarch64+dotprod", "aarch64+i8mm", "aarch64+sve")),
}
"""Types of the layer, with their options and levels."""
XNNPACK = {
    "f32 6x8, ld128": ("f32-igemm/gen/f32-igemm-6x8-minmax-asm-aarch64-neonfma-ld128.S", "f32"),
    "f32 6x8, cortex-a75": ("f32-igemm/gen/f32-igemm-6x8-minmax-asm-aarch64-neonfma-cortex-a75.S", "f32"),
    "f32 6x8, cortex-a55": ("f32-igemm/f32-igemm-6x8-minmax-asm-aarch64-neonfma-cortex-a55.S", "f32"),
    "f16 6x16, cortex-a75": ("f16-igemm/f16-igemm-6x16-minmax-asm-aarch64-neonfp16arith-cortex-a75.S", "f16"),
    "s8 4x16, dot, ld128": (
        "qs8-qc8w-igemm/gen/qs8-qc8w-igemm-4x16c4-minmax-fp32-asm-aarch64-neondot-ld128.S", "s8"),
    "s8 4x16, dot, cortex-a55": (
        "qs8-qc8w-igemm/gen/qs8-qc8w-igemm-4x16c4-minmax-fp32-asm-aarch64-neondot-cortex-a55.S", "s8"),
}  # fmt: skip
_KAI = "kai/ukernels/matmul"
KLEIDIAI = {
    "f32 6x16, neon": (
        f"{_KAI}/matmul_clamp_f32_f32_f32p/kai_matmul_clamp_f32_f32_f32p16x1b_6x16_neon_mla_asm.S", "f32"),
    "f32 6x4vl, sve": (
        f"{_KAI}/imatmul_clamp_f32_f32_f32p/kai_imatmul_clamp_f32_f32_f32p4vlx1b_6x4vl_sve_mla_asm.S", "f32"),
    "f16 6x32, neon": (
        f"{_KAI}/matmul_clamp_f16_f16_f16p/kai_matmul_clamp_f16_f16_f16p32x1b_6x32_neon_mla_asm.S", "f16"),
    "s8 16x4, i8mm": (
        f"{_KAI}/matmul_clamp_f32_qai8dxp_qsi8cxp/kai_matmul_clamp_f32_qai8dxp4x8_qsi8cxp4x8_16x4_neon_i8mm_asm.S",
        "s8"),
}  # fmt: skip
"""Loops of libraries in assembly: a file, and the types that it multiplies."""
_MACS = {r"fmla\s.*\.4s": 4, r"fm(la|ad)\s.*\.s\b": 4, r"fmla\s.*\.8h": 8, r"fm(la|ad)\s.*\.h\b": 8,
         r"[us]{1,2}dot\s": 16, r"[us]{1,2}mmla\s": 32,
         r"bfdot\s": 8, r"bfmmla\s": 16, r"bfmlal[bt]\s": 4}  # fmt: skip
"""Multiply-adds of an instruction on 128 bits, by its text."""
_FEATURES = "+v8.6a,+fullfp16,+dotprod,+i8mm,+bf16,+sve"


LENGTHS = (1, 2, 4)
"""Units of the vectors of SVE on which kernels run."""


class Estimate(NamedTuple):
    """A loop: its instructions, multiply-adds, and multiply-adds a cycle on each of `CPUS`; None if unknown."""

    instructions: int
    macs: int
    rates: tuple[float | None, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Estimate the inner loops of AArch64 kernels by llvm-mca.")
    parser.add_argument("--loops", action="store_true", help="Leave out whole calls, which qemu runs.")
    parser.add_argument("--xnnpack", metavar="DIR", type=Path, help="The sources of XNNPACK.")
    parser.add_argument("--kleidiai", metavar="DIR", type=Path, help="The sources of KleidiAI.")
    given = parser.parse_args(arguments)
    report = Report("arm-loops", "Inner loops for AArch64, estimated by llvm-mca", on="aarch64")
    report.note(
        "Multiply-adds a cycle of the inner loop, with data in the first-level cache, as LLVM's descriptions of CPUs "
        "have it. They rank loops on one CPU, and are no measurement: nothing was timed. Vectors of SVE have 128 bits. "
        f"The layer is {LAYER}, channels last, on one thread. A dash: llvm-mca does not describe these instructions on "
        "that CPU."
    )
    rows = []
    for types, (options, levels) in ROWS.items():
        for level in levels:
            machine = target(level)
            problem = parse_problem(f"{options} {NHWC} {LAYER}".strip()).canonical()
            loop = inner_loop(assembly_of(problem, machine), machine)
            if loop is not None:
                rows.append((types, f"convsmith, {level}", estimate(loop, machine)))
    for library, folder, loops in (("XNNPACK", given.xnnpack, XNNPACK), ("KleidiAI", given.kleidiai, KLEIDIAI)):
        for name, (file, types) in loops.items() if folder is not None else ():
            path = folder / "src" / file if library == "XNNPACK" else folder / file
            machine = replace(target("aarch64"), features=_FEATURES)
            rows.append((types, f"{library}, {name}", estimate(library_loop(path, folder), machine)))
    order = [*ROWS]
    rows.sort(key=lambda row: order.index(row[0]))
    report.table(
        "Multiply-adds a cycle", ["types", "loop", "instructions", "multiply-adds", "per instruction", *CPUS],
        [[types, name, str(x.instructions), str(x.macs), f"{x.macs / x.instructions:.2f}",
          *("-" if rate is None else f"{rate:.1f}" for rate in x.rates)] for types, name, x in rows],
    )  # fmt: skip
    if not given.loops:
        report.table("Kinds of kernels for SVE: instructions of a call for 1,000 multiply-adds",
                     ["kind", *(f"vectors of {128 * n} bits" for n in LENGTHS)],
                     list(kinds(target("aarch64+sve"), LENGTHS, sve_emulator)))  # fmt: skip
    report.data = {"cpus": CPUS, "loops": [{"types": types, "loop": name, **x._asdict()} for types, name, x in rows]}
    report.write()


def sve_emulator(machine: Machine, units: int) -> Qemu:
    """Return the emulator of a processor whose vectors have so many units."""
    return replace(AARCH64, processor=sve_processor(units))


def estimate(loop: InnerLoop, machine: Machine) -> Estimate:
    """Return the estimates of a loop."""
    macs = sum(next((n for text, n in _MACS.items() if re.match(rf"\t{text}", line)), 0) for line in loop.lines)
    rates: list[float | None] = []
    for cpu in CPUS:
        try:
            rates.append(macs / estimated_cycles(loop, machine, cpu))
        except ConvsmithError:
            rates.append(None)
    return Estimate(len(loop.lines), macs, tuple(rates))


def library_loop(file: Path, folder: Path) -> InnerLoop:
    """Return the loop with most products of a file in assembly: it is assembled, then read back."""
    with tempfile.TemporaryDirectory() as directory:
        source, code = Path(directory) / "loop.s", Path(directory) / "loop.o"
        defined = ["-U__x86_64__", *(f"-D{x}" for x in ("__aarch64__", "__ELF__", "__ARM_FEATURE_SVE"))]
        defined += [f"-I{folder}", f"-I{folder}/src"]
        source.write_text(run("cc", "-E", "-P", "-x", "assembler-with-cpp", *defined, str(file)))
        run("llvm-mc-22", "-triple=aarch64", f"-mattr={_FEATURES}", "-filetype=obj", str(source), "-o", str(code))
        listing = run("llvm-objdump-22", "-d", "--no-show-raw-insn", f"--mattr={_FEATURES}", str(code))
    found = re.findall(r"^ *([0-9a-f]+):\s+(.*)$", listing, re.MULTILINE)
    jumped = {int(x, 16) for _, text in found for x in re.findall(r"0x([0-9a-f]+) <", text)}
    lines = []
    for address, text in found:
        if int(address, 16) in jumped:
            lines.append(f".LBB0_{int(address, 16)}:")
        lines.append("\t" + re.sub(r"0x([0-9a-f]+) <.*>", lambda x: f".LBB0_{int(x[1], 16)}", text))
    machine = target("aarch64+i8mm")
    loop = inner_loop("\n".join(lines), machine)
    assert loop is not None, file
    return loop


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
