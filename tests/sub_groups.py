"""Sub-groups of Xe GPUs without one: dpas emulated by broadcasts, and the disassembly of what ocloc makes of SPIR-V."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from convsmith.codegen.device_module import device_text
from convsmith.compiler import driver, service
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.measure.verification import verify_kernel
from convsmith.problem import Problem
from convsmith.runtime import opencl
from convsmith.schedule.config import Config

DEVICES = {"xe_hpc": "pvc", "xe_hpg": "dg2", "xe_lp": "tgllp"}
"""Names of devices, as ocloc knows them."""
_BROADCAST = "_Z19sub_group_broadcastij"


def emulated(text: str, machine: Machine) -> str:
    """Return LLVM text in which each product of fragments that it declares is a function of broadcasts."""
    for row in machine.instructions:
        if row.mnemonic == "dpas":
            text = text.replace(row.declare, _definition(row))
    if f"@{_BROADCAST}(" not in text:
        return text
    triple, _, rest = text.partition("\n")
    return f"{triple}\ndeclare spir_func i32 @{_BROADCAST}(i32, i32) convergent nounwind\n{rest}"


def run_emulated(
    problem: Problem, machine: Machine, config: Config | None, monkeypatch: pytest.MonkeyPatch, seed: int = 0
) -> Config:
    """Run a kernel for a device through OpenCL, where it must be exact, and return its config. Functions of broadcasts
    stand in for dpas; all else is the code that a GPU runs.
    """
    monkeypatch.setattr(service, "disk_cache", lambda: None)
    monkeypatch.setattr(opencl, "_check_extensions", lambda *a: None)
    monkeypatch.setattr(driver, "device_text", lambda *a: emulated(device_text(*a), machine))
    kernel = CompiledKernel(problem, machine, config)
    verdict = verify_kernel(kernel, seed)
    assert verdict.ok, f"{problem} {kernel.config}: {verdict.detail}"
    return kernel.config


def _definition(row: Instruction) -> str:
    """Return the function that stands in for dpas: each lane adds the products of its column, in order of the terms.

    As the extension says, a lane has a row's next terms in its register of the left factor, and the registers of
    the right factor follow each other along the terms.
    """
    c, a, b = row.operands
    lanes, terms = c.shape[1], a.shape[1]
    bits = 8 if terms == 32 else 16
    together = terms // lanes
    head = re.sub(r"<8 x i(16|32)>, <8 x i32>, <8 x (\w+)>", r"<8 x i\1> %a, <8 x i32> %b, <8 x \2> %c", row.declare)
    lines: list[str] = []

    def put(text: str) -> str:
        lines.append(f"%v{len(lines)} = {text}")
        return f"%v{len(lines) - 1}"

    def element(word: str, number: int, type_: str) -> str:
        moved = put(f"lshr i32 {word}, {number * bits}")
        part = put(f"trunc i32 {moved} to i{bits}")
        if type_ in ("s8", "u8"):
            return put(f"{'s' if type_ == 's8' else 'z'}ext i8 {part} to i32")
        if type_ == "f16":
            return put(f"fpext half {put(f'bitcast i16 {part} to half')} to float")
        wide = put(f"zext i16 {part} to i32")
        return put(f"bitcast i32 {put(f'shl i32 {wide}, 16')} to float")

    kind = "float" if c.dtype == "f32" else "i32"
    add, mul = ("fadd float", "fmul float") if kind == "float" else ("add i32", "mul i32")
    whole = "%c"
    for m in range(8):
        total = put(f"extractelement <8 x {kind}> %c, i32 {m}")
        own = put(f"extractelement <8 x i{bits * together}> %a, i32 {m}")
        own = own if bits * together == 32 else put(f"zext i16 {own} to i32")
        for k in range(terms):
            lane = put(f"call spir_func i32 @{_BROADCAST}(i32 {own}, i32 {k // together})")
            word = put(f"extractelement <8 x i32> %b, i32 {k * bits // 32}")
            x, y = element(lane, k % together, a.dtype), element(word, k % (32 // bits), b.dtype)
            total = put(f"{add} {total}, {put(f'{mul} {x}, {y}')}")
        whole = put(f"insertelement <8 x {kind}> {whole}, {kind} {total}, i32 {m}")
    name = head.removeprefix("declare").replace(" willreturn memory(none)", "")
    return "\n  ".join([f"define{name} {{", *lines, f"ret <8 x {kind}> {whole}"]) + "\n}"


@cache
def _disassembler() -> Path | None:
    """The library with which ocloc disassembles, or None where it is not installed."""
    places = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
    return next((x for p in places for x in sorted(Path(p).glob("libiga64.so*"))), None)


def assembly(spirv: bytes, machine: Machine, folder: Path) -> str:
    """Return the instructions that ocloc makes of SPIR-V for a device. Skip the test where it is not installed."""
    library = _disassembler()
    if shutil.which("ocloc") is None or library is None:
        pytest.skip("ocloc or libiga64 is not installed: nothing makes code of Xe GPUs of SPIR-V here")
    (folder / "lib").mkdir()
    (folder / "lib" / "libiga64.so").symlink_to(library)
    (folder / "kernel.spv").write_bytes(spirv)
    env = os.environ | {"LD_LIBRARY_PATH": str(folder / "lib")}
    device = DEVICES[machine.name]

    def run(*words: str) -> None:
        subprocess.run(["ocloc", *words, "-device", device], cwd=folder, env=env, check=True, capture_output=True)

    run("compile", "-spirv_input", "-file", "kernel.spv", "-out_dir", "out")
    (made,) = (folder / "out").glob("*.bin")
    run("disasm", "-file", str(made), "-dump", "dump")
    return "\n".join(x.read_text() for x in sorted((folder / "dump").glob("*.asm")))
