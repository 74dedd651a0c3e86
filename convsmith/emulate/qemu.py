"""`Qemu`: AArch64, Arm, Hexagon and RISC-V as processes of Linux under qemu's user mode.

An image becomes a static executable, whose start-up code is LLVM text of this folder: no linker and no compiler for the
architecture is needed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact
from convsmith.codegen.library_functions import PROVIDED, library_text
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.emulate.executable import FileHeader, executable
from convsmith.emulate.float_functions import FLOAT_FUNCTIONS, float_text
from convsmith.emulate.image import PAGE, START, Image, numbers_at
from convsmith.emulate.processor import ProcessorEmulator, program_on_path
from convsmith.emulate.processors import Fault
from convsmith.machine.aarch64.levels import TRIPLE as AARCH64_TRIPLE
from convsmith.machine.arm32.levels import EXTENDED
from convsmith.machine.base import Machine
from convsmith.machine.hexagon.levels import TRIPLE as HEXAGON_TRIPLE
from convsmith.machine.riscv.levels import SCALARS, SMALL, VECTORS
from convsmith.machine.riscv.levels import TRIPLE as RISCV_TRIPLE
from convsmith.runtime.object_code import ObjectCode

__all__ = [
    "AARCH64", "HEXAGON", "PROCESSORS", "RISCV32", "RISCV64", "THUMB", "UNITS", "VECTOR_BITS", "Qemu", "rvv_processor",
    "sve_processor",
]  # fmt: skip

UNITS = (1, 2, 3, 4, 16)
"""Legal numbers of 128-bit units of an emulated SVE register, the greatest included."""


def sve_processor(units: int) -> str:
    """Return qemu's name of the processor whose SVE registers have `units` units of 128 bits."""
    return f"max,sve-default-vector-length={16 * units}"


_V8_2 = frozenset({"neon", "dotprod", "fullfp16"})

PROCESSORS: dict[str, frozenset[str]] = {
    "cortex-a72": frozenset({"neon"}),
    "neoverse-n1": _V8_2,
    "max": _V8_2 | {"bf16", "i8mm"},
    sve_processor(2): _V8_2 | {"bf16", "i8mm", "sve", "sve256"},
    sve_processor(4): _V8_2 | {"bf16", "i8mm", "sve", "sve512"},
    "max,sme-default-vector-length=64": _V8_2 | {"bf16", "i8mm", "sme", "sme-f64f64", "sme512", "sme2"},
}
"""qemu's models of AArch64 and their features, by LLVM's names. The first model with all required features is used: it
has the fewest others.
"""
_HVX: dict[str, frozenset[str]] = {"v67": frozenset({"hvx-length128b", "hvxv68", "hvxv73"})}
"""qemu's model of Hexagon, which supports the integer instructions of later versions that LLVM selects for vectors, but
no floating-point vectors.
"""

VECTOR_BITS = (128, 256, 512, 1024)
"""Legal bits of a register of an emulated vector unit of RISC-V."""


def rvv_processor(bits: int, needs: Collection[str]) -> str:
    """Return qemu's name of the processor of RISC-V with vector registers of `bits` bits and the features `needs`."""
    options = (f"{name}=true" for name in needs if name not in _RV64)
    return ",".join(("rv64", *options, "vext_spec=v1.0", f"vlen={bits}"))


_RV64 = frozenset({"m", "a", "f", "d", "c"})
"""The features that qemu's processor `rv64` has by itself."""
_RISCV = {
    "rv64" if "v" not in t.needs else rvv_processor(256, t.needs): frozenset(t.needs)
    for t in (SCALARS, *reversed(VECTORS))
}
"""qemu's processors of RISC-V, one for each level, lowest first."""

_FAULTS: dict[int, str] = {
    signal.SIGILL: "illegal instruction", signal.SIGSEGV: "page fault", signal.SIGBUS: "page fault",
    signal.SIGTRAP: "trap",
}  # fmt: skip
"""Signals that end a process, in words."""
_ASSERTION = b": Assertion `"
"""Part of the message of an emulator that ends by a fault of its own."""


@record(frozen=True)
class _Platform:
    """One architecture: qemu's program for it, its processors, and the parts of a process.

    `header` is the header of an executable. `startup` is the file with the code that begins the run, `target` the
    triple, processor and features for which that code is compiled, `library` the functions in it that kernels may call.
    """

    program: str
    processors: Mapping[str, frozenset[str]]
    header: FileHeader
    startup: str
    target: tuple[str, str, str]
    library: tuple[str, ...]
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Texts that take the place of names in the start-up code, by name."""
    provided: tuple[str, ...] = ()
    """Functions that LLVM calls and that exported code has too, which the start-up code lacks."""
    page: int = PAGE
    since: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The first versions of qemu that have features."""
    floats: str = ""
    """Features with which the functions on floating-point numbers are compiled that code without them calls."""


_CORTEX: dict[str, frozenset[str]] = {"cortex-m4": frozenset({"dsp"}), "cortex-m55": frozenset({"dsp", "mve.fp"})}
"""qemu's models of Arm's processors for microcontrollers."""
_SUPERVISOR = "[5 x i16] [i16 u0xB480, i16 u0x461F, i16 u0xDF00, i16 u0xBC80, i16 u0x4770]"
"""``push {r7}; mov r7, r3; svc #0; pop {r7}; bx lr``."""
_ECALL = "[3 x i32] [i32 u0x00068893, i32 u0x00000073, i32 u0x00008067]"
"""``mv a7, a3; ecall; ret``."""
_MEMORY, _ROUNDING = ("memcpy", "memset"), ("rintf", "floorf")
"""Functions that LLVM calls for bytes, and where a processor does not round."""


def _of_words(
    program: str, processors: Mapping[str, frozenset[str]], header: FileHeader, target: tuple[str, str, str],
    stub: str, calls: tuple[int, int], provided: tuple[str, ...], since: Mapping[str, tuple[int, int]],
    floats: str = "",
) -> _Platform:  # fmt: skip
    """Return a platform of 32 bits, whose system writes and ends a process by the numbers of `calls`."""
    system = f"define i32 @system(i32 %a, i32 %b, i32 %c, i32 %number) naked noinline\n    prologue {stub} {{\n"
    numbers = {"TRIPLE": target[0], "SYSTEM": f"{system}  unreachable\n}}", "WRITE": str(calls[0]),
               "EXIT": str(calls[1])}  # fmt: skip
    library = (*provided, *FLOAT_FUNCTIONS) if floats else provided
    return _Platform(program, processors, header, "startup_words.ll", target, library, numbers, provided,
                     since=since, floats=floats)  # fmt: skip


_PLATFORMS = {
    "aarch64": _Platform(
        "qemu-aarch64", PROCESSORS, FileHeader(64, 183), "startup_aarch64.ll",
        (AARCH64_TRIPLE, "generic", "+neon"),
        ("memcpy", "memset", "__arm_sc_memcpy", "__arm_sc_memset", "__arm_tpidr2_save"), since={"sme2": (10, 1)},
    ),
    "hexagon": _Platform(
        "qemu-hexagon", _HVX, FileHeader(32, 164, 0x67), "startup_hexagon.ll", (HEXAGON_TRIPLE, "hexagonv68", ""),
        ("memcpy", "memset", "rintf", "floorf", "floor", "fma", "__hexagon_sqrtf", "__hexagon_divsf3",
         "__hexagon_udivdi3"),
        page=1 << 16,
    ),
    "riscv64": _Platform(
        "qemu-riscv64", _RISCV, FileHeader(64, 243, 5), "startup_riscv64.ll",
        (RISCV_TRIPLE, "generic-rv64", SCALARS.features), ("memcpy", "memset"),
        since={"zvfh": (8, 0), "zvfbfwma": (8, 1)},
    ),
    "riscv32": _of_words(
        "qemu-riscv32", {"rv32": frozenset(SMALL.needs)}, FileHeader(32, 243, 1),
        (SMALL.triple, SMALL.cpu, SMALL.features), _ECALL, (64, 94), PROVIDED, {},
        f"{SMALL.features},+f,+d",
    ),
    "thumb": _of_words(
        "qemu-arm", _CORTEX, FileHeader(32, 40, 0x05000400), (EXTENDED, "cortex-m4", ""), _SUPERVISOR, (4, 248),
        (*_MEMORY, *_ROUNDING), {"dsp": (8, 0), "mve.fp": (8, 0)},
    ),
}  # fmt: skip
"""Architectures by the beginning of their triples."""


@record(frozen=True)
class Qemu(ProcessorEmulator):
    """qemu's emulator of the processors of the architecture `of`, the beginning of the triples of code that runs."""

    of: str = "aarch64"

    @property
    def name(self) -> str:
        return self._platform.program

    @property
    def architecture(self) -> str:
        return self.of

    @property
    def processors(self) -> Mapping[str, frozenset[str]]:
        return self._platform.processors

    @property
    def page(self) -> int:
        return self._platform.page

    @property
    def _platform(self) -> _Platform:
        return _PLATFORMS[self.of]

    def library(self) -> Mapping[str, int]:
        symbols = _startup(self.of).symbols
        return {name: START + symbols[name] for name in self._platform.library}

    def emulate(self, image: Image, processor: str) -> bytes | Fault:
        qemu, startup = self.program(), _startup(self.of)
        size = image.result_size
        image.write(START, startup.at(START))
        image.finish()
        with tempfile.TemporaryDirectory(prefix="convsmith-qemu-") as directory:
            file = Path(directory) / "process"
            file.write_bytes(executable(image, START + startup.symbols["begin"], self._platform.header))
            file.chmod(0o700)
            try:
                done = subprocess.run(
                    [qemu, "-cpu", processor, str(file)], cwd=directory, stdin=subprocess.DEVNULL,
                    capture_output=True, timeout=self.timeout, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise ToolchainError(f"qemu ({qemu}) did not end within {self.timeout:g} s", code="timeout") from None
            except OSError as error:
                raise ToolchainError(f"qemu ({qemu}) cannot be run: {error}", code="emulator") from None
        kind = _FAULTS.get(-done.returncode)
        if kind and _ASSERTION not in done.stderr:
            return Fault(kind, None)
        if done.returncode or len(done.stdout) != size:
            text = done.stderr.decode(errors="replace")
            raise ToolchainError(
                f"qemu ({qemu}, processor {processor}) ended without results, status {done.returncode}, "
                f"{len(done.stdout)} of {size} bytes: {text.strip()[-300:]}",
                text=text, code="emulator",
            )  # fmt: skip
        return done.stdout

    def runs(self, machine: Machine) -> bool:
        return machine.triple.startswith(self.of)

    def check(self, machine: Machine) -> None:
        super().check(machine)
        version, since = _version(self.program()), self._platform.since
        for feature in machine.needs:
            if version < since.get(feature, version):
                have, first = (".".join(map(str, v)) for v in (version, since[feature]))
                raise UnsupportedError(f"{self.name} {have} does not run {feature}; version {first} does",
                                       code="emulator")  # fmt: skip

    def doubt(self, artifact: Artifact) -> str:
        version = _version(self.program())
        bytes_of = {a.dtype for entry in artifact.entries.values() for a in entry.arguments} & {"s8", "u8"}
        if "sme" not in artifact.needs or not bytes_of or version >= _WHOLE_TILES:
            return ""
        have, first = (".".join(map(str, v)) for v in (version, _WHOLE_TILES))
        return f"qemu {have} computes outer products of bytes in even rows and columns alone; {first} computes all"

    def program(self) -> str:
        return program_on_path(self._platform.program, self.of, "qemu-user", "7.2 or later")


AARCH64 = Qemu(of="aarch64")
HEXAGON = Qemu(of="hexagon")
RISCV32 = Qemu(of="riscv32")
RISCV64 = Qemu(of="riscv64")
THUMB = Qemu(of="thumb")


_WHOLE_TILES = (10, 0)
"""The first version of qemu that computes all rows and columns of outer products of bytes."""


@cache
def _version(program: str) -> tuple[int, ...]:
    """Return the first two numbers of the version that a qemu program reports; (0, 0) if it reports none."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


@cache
def _startup(architecture: str) -> ObjectCode:
    """Return the code that begins the run of a process."""
    platform = _PLATFORMS[architecture]
    text = Path(__file__).with_name(platform.startup).read_text(encoding="utf-8")
    for name, value in {**platform.numbers, "NUMBERS": str(numbers_at(platform.page))}.items():
        text = text.replace(f"{{{name}}}", value)
    if not platform.provided:
        return ObjectCode(llvm_bind.object_code(text, *platform.target))
    triple, cpu, features = platform.target
    texts = (text, *(library_text(name, triple, "i32") for name in platform.provided))
    texts += (float_text(triple, platform.floats),) if platform.floats else ()
    return ObjectCode(llvm_bind.joined_code(texts, ("begin", *platform.library), triple, cpu, features))
