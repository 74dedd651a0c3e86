"""Starting Bochs: which processor it shall be, what the machine around it is, and what it says in the end."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path

from llvmlite import binding as llvm

from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.settings import settings
from emulator.image import PAGE, START, START_SIZE, Image
from emulator.objects import ObjectCode
from emulator.processors import Fault, processor_for
from emulator.rom import rom_of

__all__ = ["PAGE", "PROCESSORS", "emulate", "emulator", "memory_functions", "processor"]

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_VNNI = frozenset({"avxvnni"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"})
_SERVER = frozenset({"avx512vnni", "avx512bf16", "avx512fp16", "avx512vbmi", "amx-tile", "amx-int8", "amx-bf16"})

PROCESSORS: dict[str, frozenset[str]] = {
    "corei7_haswell_4770": _AVX2,
    "corei7_skylake_x": _AVX2 | _AVX512,
    "arrow_lake": _AVX2 | _VNNI | {"avxvnniint8", "avxvnniint16", "avxneconvert"},
    "sapphire_rapids": _AVX2 | _AVX512 | _VNNI | _SERVER,
    'sapphire_rapids, add_features="amx_fp16"': _AVX2 | _AVX512 | _VNNI | _SERVER | {"amx-fp16"},
}
"""Bochs' models and their features, as LLVM names them. The first that has all serves: it lacks most of the others."""

_MARK = b"\nconvsmith results:"
_FAULT = struct.Struct("<4Q")
_PAGE_FAULT = 14
_VECTORS = {0: "division error", 6: "illegal instruction", 7: "no such unit", 8: "double fault", 13: "protection fault",
            _PAGE_FAULT: "page fault", 19: "floating-point error"}  # fmt: skip

_RC = """\
display_library: nogui
config_interface: textconfig
log: log
panic: action=fatal
error: action=report
info: action=report
debug: action=ignore
cpu: model={model}, ips=1000000000
memory: guest={megabytes}, host={megabytes}
romimage: file=rom
vgaromimage: file=display
port_e9_hack: enabled=1
pci: enabled=0
clock: sync=none
"""
"""Bochs insists on a ROM for the display: it is of zeros."""


def _fault(at: int, accessed: int, vector: int, error: int) -> Fault:
    """An exception by its four numbers: address of the instruction, address accessed, vector and error code."""
    kind = _VECTORS.get(vector, f"exception {vector}")
    if vector == _PAGE_FAULT:
        how = "executing" if error & 16 else "writing" if error & 2 else "reading"
        kind = f"{kind} ({how} {accessed:#x})"
    return Fault(kind, at)


def emulator() -> str:
    """Where Bochs is. UnsupportedError when there is none."""
    given = settings.bochs
    found = shutil.which("bochs" if given is None else given)
    if found is None:
        where = "PATH has no bochs" if given is None else f"CONVSMITH_BOCHS={str(given)!r} is no executable"
        raise UnsupportedError(
            f"no emulator: {where}; legal is Bochs on PATH, or CONVSMITH_BOCHS with its path", code="emulator"
        )
    return os.path.abspath(found)


def processor(needs: Collection[str]) -> str:
    """Bochs' name of the processor that has the features. UnsupportedError when there is none."""
    return processor_for(needs, PROCESSORS)


def memory_functions() -> dict[str, int]:
    """Addresses of the functions of the C library that the emulated machine has."""
    symbols = _rom()[1]
    return {name: START + symbols[name] for name in ("memcpy", "memset")}


def emulate(image: Image, model: str, timeout: float) -> bytes | Fault:
    """Run the machine on an image until it has sent the results, or an exception has ended the run.

    ToolchainError when Bochs ends otherwise (its `text` is Bochs' log), or takes more than `timeout` seconds.
    """
    code, symbols = _rom()
    rom, size = rom_of(image, code, symbols["pages"]), image.result_size
    bochs = emulator()
    megabytes = (image.end >> 20) + 2
    with tempfile.TemporaryDirectory(prefix="convsmith-bochs-") as directory:
        folder = Path(directory)
        (folder / "rom").write_bytes(rom)
        (folder / "display").write_bytes(bytes(2048))
        (folder / "rc").write_text(_RC.format(model=model, megabytes=megabytes))
        try:
            done = subprocess.run(
                [bochs, "-q", "-f", "rc"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"Bochs ({bochs}) did not end within {timeout:g} s", code="timeout") from None
        except OSError as error:
            raise ToolchainError(f"Bochs ({bochs}) cannot be run: {error}", code="emulator") from None
        log = folder / "log"
        text = (log.read_text(errors="replace") if log.exists() else "") + done.stdout.decode(errors="replace")
    _, _, sent = done.stdout.partition(_MARK)
    if sent[:1] == b"F" and len(sent) > _FAULT.size:
        return _fault(*_FAULT.unpack_from(sent, 1))
    if sent[:1] == b"T":
        raise ToolchainError(
            f"the emulated {model} began again: an exception came while one was handled, as where the stack is used up",
            code="fault",
        )
    if sent[:1] != b"R" or len(sent) <= size:
        panics = [line.strip() for line in text.splitlines() if ">>PANIC<<" in line or "p[" in line]
        raise ToolchainError(
            f"Bochs ({bochs}, processor {model}) ended without results, status {done.returncode}: "
            f"{'; '.join(panics) or text.strip()[-300:]}",
            text=text, code="emulator",
        )  # fmt: skip
    return sent[1 : 1 + size]


@cache
def _rom() -> tuple[bytes, dict[str, int]]:
    """The ROM, and offsets in it by name."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise UnsupportedError(
            f"the emulated machine's ROM is assembled on x86-64 only, and this is {platform.machine()}", code="emulator"
        )
    source = Path(__file__).with_name("startup.s").read_text(encoding="utf-8")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    quoted = "".join(c if c.isalnum() or c == " " else f"\\{ord(c):02x}" for c in source)
    triple = "x86_64-unknown-linux-gnu"
    machine = llvm.Target.from_triple(triple).create_target_machine()
    text = f'target triple = "{triple}"\nmodule asm "{quoted}"\n'
    code = ObjectCode(machine.emit_object(llvm.parse_assembly(text)), {})
    rom = code.at(START)
    assert len(rom) == START_SIZE
    return rom, code.symbols
