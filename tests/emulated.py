"""Kernels in the emulated machine: for levels that this machine lacks, and where memory must be strict."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from guarded import Array, Arrays, check_result, expected, memories, memory_of

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.codegen.wasm_object import is_wasm
from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.emulate.base import Emulator
from convsmith.emulate.boards import BOARDS
from convsmith.emulate.bochs import BOCHS
from convsmith.emulate.emulators import EMULATORS
from convsmith.emulate.processor import ProcessorEmulator
from convsmith.emulate.qemu import AARCH64, HEXAGON, RISCV32, RISCV64, THUMB
from convsmith.emulate.wasm import WEB_ASSEMBLY
from convsmith.machine.arm32.levels import LEVELS as ARM32
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, known_targets
from convsmith.machine.x86.levels import TRIPLE
from convsmith.problem import Conv, Problem, parse_problem
from convsmith.problem.data import keep_within
from convsmith.problem.types import is_integer
from convsmith.runtime.arrays import ArraySpec, numpy_dtype
from convsmith.runtime.border import tensors_of
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.config import Config

LACKING = tuple(t for t in known_targets() if t not in host_targets())
"""Levels that can only be emulated here."""

TILE_FORMS = {"ssd": ("s8", "s8"), "sud": ("s8", "u8"), "usd": ("u8", "s8"), "uud": ("u8", "u8")}
"""Products of tiles of bytes, by the end of the instruction's name, and the types of their factors."""


def _of_arm() -> ProcessorEmulator:
    """Return qemu's user mode where its version runs microcontrollers, else its boards."""
    try:
        THUMB.check(ARM32[0])
    except UnsupportedError:
        return BOARDS
    return THUMB


_BY_MACHINE: dict[bytes, ProcessorEmulator] = {
    b"\2\x3e": BOCHS, b"\2\xb7": AARCH64, b"\1\xa4": HEXAGON, b"\2\xf3": RISCV64, b"\1\xf3": RISCV32,
    b"\1\x28": _of_arm(),
}  # fmt: skip
"""By the class and the machine that the header of an object of ELF names: x86-64, AArch64, Hexagon, RISC-V, Arm."""
_CLASS, _MACHINE = slice(4, 5), slice(18, 19)
"""Their places in the header."""


def emulated_kernel(artifact: Artifact, emulator: Emulator | None = None, **options: object) -> HostKernel:
    """An artifact as a callable on arrays, which an emulator runs: by default that of its object code, with options of
    the emulator, which gives up after a minute.
    """
    given = {"timeout": 60.0, **options}
    mark = artifact.code[_CLASS] + artifact.code[_MACHINE]
    own = WEB_ASSEMBLY if is_wasm(artifact.code) else _BY_MACHINE.get(mark, BOCHS)
    emulator = emulator or replace(own, **given)
    return HostKernel(artifact, None, emulator.load(artifact))


def run_emulated(artifact: Artifact, memory: Arrays, emulator: Emulator | None = None, **options: object) -> None:
    """Run an artifact on memory by the names of tensors, which it writes."""
    specs = [ArraySpec(argument) for argument in tensors_of(artifact).values()]
    views = {s.argument.name: np.ndarray(s.shape, s.dtype, memory[s.argument.name], 0, s.strides) for s in specs}
    emulated_kernel(artifact, emulator, **options).run(views)


def architecture_of(target: Machine) -> str:
    """The first word of the target's triple."""
    return target.triple.partition("-")[0]


def skip_without_emulator(target: Machine | None = None) -> None:
    """Skip the test where there is no emulator of the target's processors, by default of x86's, or none has what the
    target needs.
    """
    machine = target or known_targets()[0]
    reason = ""
    for emulator in (x for x in EMULATORS if x.runs(machine)):
        try:
            emulator.check(target)
        except UnsupportedError as missing:
            reason = str(missing)
        else:
            return
    pytest.skip(reason)


def check_emulated(problem: Problem, artifact: Artifact, arrays: Arrays, processor: str = "") -> None:
    """The artifact's results are exact in memory that starts as canaries and poison, on the emulator's `processor`."""
    keep_within(artifact.limits, arrays)
    memory = memories(problem, arrays)
    for name in artifact.limits:  # the poison would be refused
        memory[name] = memory_of(arrays[name], problem.tensor(name).layout, 0)
    try:
        run_emulated(artifact, memory, processor=processor)
    except ToolchainError as error:
        if error.code == "emulator" and "Assertion `" in str(error):
            pytest.skip(f"the emulator fails by itself: {error}")
        raise
    check_result(problem, memory, expected(problem, arrays))


def kinds_of(problem: Problem) -> set[str]:
    """The facts of interest about a problem."""
    found = {problem.dir if isinstance(problem, Conv) else "product", *problem.dt}
    found |= {"zero points"} if problem.zero_points else set()
    found |= {"scales"} if problem.scales else set()
    found |= {"post-ops"} if problem.post_ops else set()
    if isinstance(problem, Conv):
        found |= {f"{problem.rank}D", "deconvolution" if problem.deconv else "convolution"}
        found |= {"groups"} if problem.g > 1 else set()
        found |= {"depthwise"} if problem.g > 1 and problem.g in (problem.ic, problem.oc) else set()
        found |= {"strides"} if max(problem.s) > 1 else set()
        found |= {"dilations"} if max(problem.d) else set()
        found |= {"pads"} if max(problem.p) else set()
        found |= {"blocks" for tag in (problem.stag, problem.dtag) if any(c.isdigit() for c in tag)}
    return found


def known_fault(problem: Problem, artifact: Artifact) -> str:
    """Why the emulator's results say nothing about the kernel; empty where they do."""
    types = [t.dtype for t in problem.inputs]
    if "avx512bf16" in artifact.needs and "bf16" in types and not pairs_are_read():
        return MISREAD
    gathered = "--lane=g " in artifact.config and "avx512bw" in artifact.needs
    if "sme" in artifact.needs and "mopa_za" in artifact.config and problem.acc == "s32" and not tiles_are_whole():
        return IN_PARTS
    halves = "avx512fp16" in artifact.needs and {"f16", "bf16"} & {t.dtype for t in problem.outputs}
    misplaced = halves or (gathered and {"u8", "s8"} & {*types})
    return MISPLACED if misplaced and not bytes_are_inserted() else ""


def without_signs(problem: Problem, artifact: Artifact, arrays: Arrays) -> Arrays:
    """The arrays, without negative bytes where the emulator would take these as unsigned."""
    if "amx-int8" not in artifact.needs or problem.acc != "s32" or tiles_have_signs():
        return arrays
    factors = {t.name for t in problem.inputs if t.name in ("src", "wei", "diff_dst") and is_integer(t.dtype)}
    return {n: np.where(x < 0, ~x, x).astype(x.dtype) if n in factors else x for n, x in arrays.items()}


# -- faults of emulators, each found out by one product
UNSIGNED = "this Bochs takes all bytes in tiles as unsigned: CONTRIBUTING.md says what to change"
MISREAD = "this Bochs reads an operand of vdpbf16ps from a wrong place: CONTRIBUTING.md says what to change"

MISPLACED = "this Bochs has the operands of vpinsrb and vmovw in a wrong place: CONTRIBUTING.md says what to change"

IN_PARTS = "this qemu computes outer products of bytes in even rows and columns alone; qemu 10.0 computes all"


@cache
def tiles_are_whole() -> bool:
    """Whether outer products of bytes are right in all rows and columns."""
    target = next(t for t in known_targets() if "sme" in t.needs)
    problem = parse_problem("--dt=s8:s8:s32 --matmul 16x4:4x16")
    (row,) = target.fragment_rows("s8", "s8", "s32")
    config = f"--target={target.name} --lane=n --register=m:16,n:16 --instruction={row.name} --k_step=k:4"
    artifact = build_artifact(problem, Config.parse(config), target)
    ones = {t.name: np.ones(t.shape, numpy_dtype(t.dtype)) for t in problem.inputs}
    return bool((emulated_kernel(artifact).run(ones)["dst"] == 4).all())


@cache
def tiles_have_signs() -> bool:
    """Whether products of tiles are right for negative bytes."""
    found, truth, _ = tile_products("ssd")
    return bool((found == truth).all())


@cache
def pairs_are_read() -> bool:
    """Whether products of pairs of bf16 are right for an operand in memory."""
    found, truth, _ = pair_products()
    return bool((found == truth).all())


@cache
def bytes_are_inserted() -> bool:
    """Whether a byte from memory is right in a register that only AVX-512 has."""
    found, right, _ = inserted_byte()
    return found == right


def inserted_byte() -> tuple[int, int, int]:
    """A byte 9 from the base: as emulated, as is right, and the one 18 from the base."""
    text = """
    define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind {
      %src = load ptr, ptr %block
      %at = getelementptr ptr, ptr %block, i64 1
      %dst = load ptr, ptr %at
      call void asm sideeffect "vpxord %xmm16, %xmm16, %xmm16", "~{xmm16}"()
      call void asm sideeffect "vpinsrb $$0, 9($0), %xmm16, %xmm16", "r,~{memory},~{xmm16}"(ptr %src)
      call void asm sideeffect "vmovd %xmm16, ($0)", "r,~{memory}"(ptr %dst)
      ret void
    }
    """
    arguments = (Argument("src", "in", "u8", (32,), "a", 32), Argument("dst", "out", "s32", (1,), "a", 1))
    BOCHS.library()  # makes LLVM read assembly
    code = llvm_bind.object_code(text, TRIPLE, "x86-64-v4", "")
    entries = {"main": Entry("k", arguments)}
    artifact = Artifact(code, "by hand", entries, "a byte", "by hand", needs=("avx512f", "avx512bw"))
    x = np.arange(32, dtype=np.uint8)
    return int(emulated_kernel(artifact).run({"src": x})["dst"][0]), 9, 18


def pair_products() -> tuple[Array, Array, Array]:
    """Products of pairs with an operand in memory: as emulated, as is right, and with what is 32 bytes from the base.

    The place is 512 bytes from the base, written as 8 times the operand's size.
    """
    text = """
    declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
    define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind "prefer-vector-width"="512" {
      %src = load ptr, ptr %block
      %at = getelementptr ptr, ptr %block, i64 1
      %dst = load ptr, ptr %at
      %there = getelementptr i8, ptr %src, i64 512
      %a = load <32 x bfloat>, ptr %src, align 2
      %b = load <32 x bfloat>, ptr %there, align 2
      %c = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(
        <16 x float> zeroinitializer, <32 x bfloat> %a, <32 x bfloat> %b)
      store <16 x float> %c, ptr %dst, align 4
      ret void
    }
    """
    arguments = (Argument("src", "in", "bf16", (288,), "a", 288), Argument("dst", "out", "f32", (16,), "a", 16))
    code = llvm_bind.object_code(text, TRIPLE, "x86-64-v4", "+avx512bf16")
    entries = {"main": Entry("k", arguments)}
    artifact = Artifact(code, "by hand", entries, "pairs", "by hand", needs=("avx512f", "avx512bf16"))
    x = np.random.default_rng(0).integers(-9, 10, 288).astype(numpy_dtype("bf16"))
    a, right, wrong = (x[n : n + 32].astype(np.float32) for n in (0, 256, 16))
    return emulated_kernel(artifact).run({"src": x})["dst"], *((a * b).reshape(16, 2).sum(1) for b in (right, wrong))


def tile_products(form: str) -> tuple[Array, Array, Array]:
    """A product of tiles of any bytes: as emulated, as it is right, and as it is when all bytes are unsigned."""
    a, b = TILE_FORMS[form]
    arguments = (
        Argument("config", "in", "u8", (64,), "a", 64),
        Argument("a", "in", a, (16, 64), "ab", 1024),
        Argument("b", "in", b, (16, 64), "ab", 1024),
        Argument("c", "inout", "s32", (16, 16), "ab", 256),
    )
    loads = "".join(
        f"%at{n} = getelementptr ptr, ptr %block, i64 {n}\n%p{n} = load ptr, ptr %at{n}\n" for n in range(4)
    )
    text = f"""
    declare void @llvm.x86.ldtilecfg(ptr)
    declare void @llvm.x86.tilerelease()
    declare void @llvm.x86.tileloadd64(i8, ptr, i64)
    declare void @llvm.x86.tilestored64(i8, ptr, i64)
    declare void @llvm.x86.tdpb{form}(i8, i8, i8)
    define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind {{
      {loads}
      call void @llvm.x86.ldtilecfg(ptr %p0)
      call void @llvm.x86.tileloadd64(i8 0, ptr %p3, i64 64)
      call void @llvm.x86.tileloadd64(i8 1, ptr %p1, i64 64)
      call void @llvm.x86.tileloadd64(i8 2, ptr %p2, i64 64)
      call void @llvm.x86.tdpb{form}(i8 0, i8 1, i8 2)
      call void @llvm.x86.tilestored64(i8 0, ptr %p3, i64 64)
      call void @llvm.x86.tilerelease()
      ret void
    }}
    """
    needs = ("amx-tile", "amx-int8")
    code = llvm_bind.object_code(text, TRIPLE, "x86-64-v4", ",".join(f"+{name}" for name in needs))
    artifact = Artifact(code, "by hand", {"main": Entry("k", arguments)}, "tiles", "by hand", needs=needs)
    config = np.zeros(64, np.uint8)
    config[0] = 1
    config[16:22:2] = 64  # bytes of a row of each tile
    config[48:51] = 16  # rows
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 256, (16, 64)).astype(np.uint8) for _ in "ab")
    signed = [factor.view(np.int8) if t == "s8" else factor for factor, t in zip((x, y), (a, b))]
    c = rng.integers(-1000, 1000, (16, 16)).astype(np.int32)
    found = emulated_kernel(artifact).run({"config": config, "a": signed[0], "b": signed[1], "c": c.copy()})["c"]
    return found, c + _product(*signed), c + _product(x, y)


def _product(x: Array, y: Array) -> Array:
    """Return the product of a matrix and one whose rows come four at a time, element by element."""
    rows = y.astype(np.int32).reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
    return np.asarray(x.astype(np.int32) @ rows)
