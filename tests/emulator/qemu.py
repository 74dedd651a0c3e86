"""Starting qemu for processes of Linux: which processor it shall be, and what the process says in the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from convsmith.codegen import llvm_bind
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.machine.aarch64.levels import TRIPLE as AARCH64_TRIPLE
from convsmith.machine.hexagon.levels import TRIPLE as HEXAGON_TRIPLE
from emulator.executable import FileHeader, executable
from emulator.image import PAGE, START, Image, numbers_at
from emulator.objects import ObjectCode
from emulator.processors import Fault, processor_for

__all__ = ["AARCH64", "HEXAGON", "PROCESSORS", "UNITS", "Qemu", "processor_with"]

UNITS = (1, 2, 3, 4, 16)
"""Units of 128 bits that a vector register of SVE may have: all that tests ask for, the greatest number included."""


def processor_with(units: int) -> str:
    """Return qemu's name of the processor with SVE whose vector registers have so many units of 128 bits."""
    return f"max,sve-default-vector-length={16 * units}"


_V8_2 = frozenset({"neon", "dotprod", "fullfp16"})

PROCESSORS: dict[str, frozenset[str]] = {
    "cortex-a72": frozenset({"neon"}),
    "neoverse-n1": _V8_2,
    "max": _V8_2 | {"bf16", "i8mm"},
    processor_with(2): _V8_2 | {"bf16", "i8mm", "sve", "sve256"},
    processor_with(4): _V8_2 | {"bf16", "i8mm", "sve", "sve512"},
}
"""qemu's models of AArch64 and their features, as LLVM names them. The first that has all serves: it lacks most of the
others.
"""
_HVX: dict[str, frozenset[str]] = {"v67": frozenset({"hvx-length128b", "hvxv68", "hvxv73"})}
"""qemu's model of Hexagon, which has the integer instructions of later versions that LLVM selects for vectors, and no
floating-point numbers in vectors.
"""

_FAULTS = {signal.SIGILL: "illegal instruction", signal.SIGSEGV: "page fault", signal.SIGBUS: "page fault",
           signal.SIGTRAP: "trap"}  # fmt: skip


@dataclass(frozen=True)
class Qemu:
    """The emulator of one architecture: its program, the processors it has, and how a process is made for it.

    `header` is that of an executable. `startup` is the file of the code that begins the run, `target` the triple, the
    processor and the features that it is compiled for, `library` the functions in it that kernels may call. A page has
    PAGE bytes.
    """

    program: str
    processors: Mapping[str, frozenset[str]]
    header: FileHeader
    startup: str
    target: tuple[str, str, str]
    library: tuple[str, ...]
    PAGE: int = PAGE

    def emulator(self) -> str:
        """Where the program is. UnsupportedError when there is none."""
        found = shutil.which(self.program)
        if found is None:
            raise UnsupportedError(
                f"no emulator: PATH has no {self.program}; legal is that of a package qemu-user", code="emulator"
            )
        return os.path.abspath(found)

    def processor(self, needs: Collection[str]) -> str:
        """qemu's name of the processor that has the features. UnsupportedError when there is none."""
        return processor_for(needs, self.processors)

    def memory_functions(self) -> dict[str, int]:
        """Addresses of the functions of the C library, and of the compiler's, that the process has."""
        symbols = _startup(self.startup, self.target, self.PAGE).symbols
        return {name: START + symbols[name] for name in self.library}

    def emulate(self, image: Image, model: str, timeout: float) -> bytes | Fault:
        """Run a process of an image until it has sent the results, or an exception has ended it.

        ToolchainError when qemu ends otherwise (its `text` is what it said), or takes more than `timeout` seconds.
        """
        qemu, startup = self.emulator(), _startup(self.startup, self.target, self.PAGE)
        size = image.result_size
        image.write(START, startup.at(START))
        image.finish()
        with tempfile.TemporaryDirectory(prefix="convsmith-qemu-") as directory:
            file = Path(directory) / "process"
            file.write_bytes(executable(image, START + startup.symbols["begin"], self.header))
            file.chmod(0o700)
            try:
                done = subprocess.run(
                    [qemu, "-cpu", model, str(file)], cwd=directory, stdin=subprocess.DEVNULL,
                    capture_output=True, timeout=timeout, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise ToolchainError(f"qemu ({qemu}) did not end within {timeout:g} s", code="timeout") from None
            except OSError as error:
                raise ToolchainError(f"qemu ({qemu}) cannot be run: {error}", code="emulator") from None
        if kind := _FAULTS.get(-done.returncode):
            return Fault(kind, None)
        if done.returncode or len(done.stdout) != size:
            text = done.stderr.decode(errors="replace")
            raise ToolchainError(
                f"qemu ({qemu}, processor {model}) ended without results, status {done.returncode}, "
                f"{len(done.stdout)} of {size} bytes: {text.strip()[-300:]}",
                text=text, code="emulator",
            )  # fmt: skip
        return done.stdout


AARCH64 = Qemu(
    "qemu-aarch64", PROCESSORS, FileHeader(64, 183), "startup_aarch64.ll",
    (AARCH64_TRIPLE, "generic", "+neon"), ("memcpy", "memset"),
)  # fmt: skip
HEXAGON = Qemu(
    "qemu-hexagon", _HVX, FileHeader(32, 164, 0x67), "startup_hexagon.ll", (HEXAGON_TRIPLE, "hexagonv68", ""),
    ("memcpy", "memset", "rintf", "floorf", "floor", "fma", "__hexagon_sqrtf", "__hexagon_divsf3", "__hexagon_udivdi3"),
    PAGE=1 << 16,
)  # fmt: skip


@cache
def _startup(name: str, target: tuple[str, str, str], page: int) -> ObjectCode:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return ObjectCode(llvm_bind.object_code(text.replace("{NUMBERS}", str(numbers_at(page))), *target), {})
