"""Starting qemu-aarch64: which processor it shall be, and what the process says in the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path

from convsmith.codegen import llvm_bind
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.machine.aarch64.levels import TRIPLE
from emulator.executable import executable
from emulator.image import NUMBERS, START, Image
from emulator.objects import ObjectCode
from emulator.processors import Fault, processor_for

__all__ = ["PROCESSORS", "UNITS", "emulate", "emulator", "memory_functions", "processor", "processor_with"]

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
"""qemu's models and their features, as LLVM names them. The first that has all serves: it lacks most of the others."""

_FAULTS = {signal.SIGILL: "illegal instruction", signal.SIGSEGV: "page fault", signal.SIGBUS: "page fault",
           signal.SIGTRAP: "trap"}  # fmt: skip


def emulator() -> str:
    """Where qemu-aarch64 is. UnsupportedError when there is none."""
    found = shutil.which("qemu-aarch64")
    if found is None:
        raise UnsupportedError(
            "no emulator: PATH has no qemu-aarch64; legal is that of a package qemu-user", code="emulator"
        )
    return os.path.abspath(found)


def processor(needs: Collection[str]) -> str:
    """qemu's name of the processor that has the features. UnsupportedError when there is none."""
    return processor_for(needs, PROCESSORS)


def memory_functions() -> dict[str, int]:
    """Addresses of the functions of the C library that the process has."""
    symbols = _startup().symbols
    return {name: START + symbols[name] for name in ("memcpy", "memset")}


def emulate(image: Image, model: str, timeout: float) -> bytes | Fault:
    """Run a process of an image until it has sent the results, or an exception has ended it.

    ToolchainError when qemu ends otherwise (its `text` is what it said), or takes more than `timeout` seconds.
    """
    qemu, startup, size = emulator(), _startup(), image.result_size
    image.write(START, startup.at(START))
    image.finish()
    with tempfile.TemporaryDirectory(prefix="convsmith-qemu-") as directory:
        file = Path(directory) / "process"
        file.write_bytes(executable(image, START + startup.symbols["begin"]))
        file.chmod(0o700)
        try:
            done = subprocess.run(
                [qemu, "-cpu", model, str(file)], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=timeout, check=False,
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
            f"qemu ({qemu}, processor {model}) ended without results, status {done.returncode}, {len(done.stdout)} of "
            f"{size} bytes: {text.strip()[-300:]}",
            text=text, code="emulator",
        )  # fmt: skip
    return done.stdout


@cache
def _startup() -> ObjectCode:
    text = Path(__file__).with_name("startup_aarch64.ll").read_text(encoding="utf-8")
    return ObjectCode(llvm_bind.object_code(text.replace("{NUMBERS}", str(NUMBERS)), TRIPLE, "generic", "+neon"), {})
