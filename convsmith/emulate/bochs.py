"""`Bochs`: x86-64 in the emulated machine of Bochs, with neither an operating system nor disks.

The machine's ROM holds kernel and arrays; results come through a port.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from llvmlite import binding as llvm

from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.diag.settings import settings
from convsmith.emulate.image import PAGE, START, START_SIZE, Image
from convsmith.emulate.processor import ProcessorEmulator
from convsmith.emulate.processors import Fault
from convsmith.emulate.rom import rom_of
from convsmith.runtime.object_code import ObjectCode

__all__ = ["BOCHS", "PROCESSORS", "Bochs"]

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
"""Bochs' models and their features, by LLVM's names. The first model with all required features is used: it has the
fewest others.
"""

_MISREAD = frozenset({"avx512bw", "avx512bf16", "avx512fp16", "amx-int8"})
"""Features with instructions whose operands Bochs (sources of August 2026) decodes wrongly."""

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
"""Bochs requires a ROM for the display; this ROM holds zeros."""


def _fault(at: int, accessed: int, vector: int, error: int) -> Fault:
    """Describe an exception from its four numbers: address of the instruction, address accessed, vector and error code.
    """
    kind = _VECTORS.get(vector, f"exception {vector}")
    if vector == _PAGE_FAULT:
        how = "executing" if error & 16 else "writing" if error & 2 else "reading"
        kind = f"{kind} ({how} {accessed:#x})"
    return Fault(kind, at)


@record(frozen=True)
class Bochs(ProcessorEmulator):
    """The emulator for x86-64 processors."""

    @property
    def name(self) -> str:
        return "Bochs"

    @property
    def architecture(self) -> str:
        return "x86_64"

    @property
    def processors(self) -> Mapping[str, frozenset[str]]:
        return PROCESSORS

    @property
    def page(self) -> int:
        return PAGE

    def program(self) -> str:
        given = settings.bochs
        found = shutil.which("bochs" if given is None else given)
        if found is None:
            where = "PATH does not have" if given is None else f"is not at CONVSMITH_BOCHS={str(given)!r}"
            raise UnsupportedError(
                f"code for levels of x86-64 that this CPU lacks runs under Bochs, which {where}: install Bochs 3.0 or "
                "later with the display nogui, or set CONVSMITH_BOCHS to its path",
                code="emulator",
            )
        return os.path.abspath(found)

    def doubt(self, artifact: Artifact) -> str:
        wrong = ", ".join(name for name in artifact.needs if name in _MISREAD)
        return f"Bochs may compute {wrong} wrong unless it is corrected as CONTRIBUTING.md says" if wrong else ""

    def library(self) -> Mapping[str, int]:
        symbols = _rom()[1]
        return {name: START + symbols[name] for name in ("memcpy", "memset")}

    def emulate(self, image: Image, processor: str) -> bytes | Fault:
        code, symbols = _rom()
        rom, size = rom_of(image, code, symbols["pages"]), image.result_size
        bochs = self.program()
        megabytes = (image.end >> 20) + 2
        with tempfile.TemporaryDirectory(prefix="convsmith-bochs-") as directory:
            folder = Path(directory)
            (folder / "rom").write_bytes(rom)
            (folder / "display").write_bytes(bytes(2048))
            (folder / "rc").write_text(_RC.format(model=processor, megabytes=megabytes))
            try:
                done = subprocess.run(
                    [bochs, "-q", "-f", "rc"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, timeout=self.timeout, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                raise ToolchainError(f"Bochs ({bochs}) did not end within {self.timeout:g} s", code="timeout") from None
            except OSError as error:
                raise ToolchainError(f"Bochs ({bochs}) cannot be run: {error}", code="emulator") from None
            log = folder / "log"
            text = (log.read_text(errors="replace") if log.exists() else "") + done.stdout.decode(errors="replace")
        _, _, sent = done.stdout.partition(_MARK)
        if sent[:1] == b"F" and len(sent) > _FAULT.size:
            return _fault(*_FAULT.unpack_from(sent, 1))
        if sent[:1] == b"T":
            raise ToolchainError(
                f"the emulated {processor} began again: an exception came while one was handled, as where the stack is "
                "used up",
                code="fault",
            )
        if sent[:1] != b"R" or len(sent) <= size:
            panics = [line.strip() for line in text.splitlines() if ">>PANIC<<" in line or "p[" in line]
            raise ToolchainError(
                f"Bochs ({bochs}, processor {processor}) ended without results, status {done.returncode}: "
                f"{'; '.join(panics) or text.strip()[-300:]}",
                text=text, code="emulator",
            )  # fmt: skip
        return sent[1 : 1 + size]


BOCHS = Bochs()


@cache
def _rom() -> tuple[bytes, dict[str, int]]:
    """Return the ROM, and the offsets in it by name."""
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
    code = ObjectCode(machine.emit_object(llvm.parse_assembly(text)))
    rom = code.at(START)
    assert len(rom) == START_SIZE
    return rom, code.symbols
