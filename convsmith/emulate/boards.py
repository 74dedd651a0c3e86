"""`Boards`: Arm's processors for microcontrollers on boards without an operating system, under qemu's system mode.

The boards' memory has no rights. Pages that may not be written are compared after the run, as are pages of poison
between pieces; reads beyond an array are not noticed, and yield poison. Results come as a file, by semihosting. qemu's
user mode, whose pages have rights, runs these processors from version 8 on.

An instruction takes 4 ns of the boards' time, so that their timers count instructions. The timer of the processor
(SysTick) wraps after 2^24 ticks, more than 100 million instructions.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from convsmith.codegen import llvm_bind
from convsmith.codegen.library_functions import library_text
from convsmith.diag.errors import ToolchainError
from convsmith.diag.record import record
from convsmith.emulate.executable import FileHeader, executable
from convsmith.emulate.image import PAGE, Image, numbers_at
from convsmith.emulate.processor import POISON, ProcessorEmulator, program_on_path
from convsmith.emulate.processors import Fault
from convsmith.machine.arm32.levels import EXTENDED
from convsmith.machine.base import Machine
from convsmith.runtime.object_code import ObjectCode

__all__ = ["BOARDS", "Boards"]

_PROGRAM = "qemu-system-arm"
_BOARDS = {"mps2-an386": frozenset({"dsp"}), "mps3-an547": frozenset({"dsp", "mve.fp"})}
"""qemu's boards, with a Cortex-M4 and a Cortex-M55, and their features."""
_START, _END = 0x21000000, 0x21400000
"""Memory that both boards have."""
_LIBRARY = ("memcpy", "memset", "rintf", "floorf")
"""Functions that LLVM calls for bytes, and where a processor does not round."""
_RESULTS = "results"
"""Name of the file of results in the folder of a run."""
_FAULTED = 3
"""Status of a run that an exception has ended."""
_VECTORS = 16
"""Words of the table of vectors: the top of the stack, the first instruction, and the exceptions."""
_WRITE, _EXIT = 5, 32
_COUNT = (1 << 24) - 1
"""Ticks from which the timer counts down."""
_WRAPPED = 1 << 16
"""Bit of the timer's state that tells that it wrapped since it was started."""
_SHIFT = 2
"""Binary logarithm of the nanoseconds of an instruction."""
_TICKS = {"mps2-an386": 25_000_000, "mps3-an547": 32_000_000}
"""Ticks of a board's timer in a second."""
"""Operations of semihosting: a write, and the end of the run with a status."""

_SYSTEM = f"""
@name = private constant [{len(_RESULTS) + 1} x i8] c"{_RESULTS}\\00"

define i32 @host(i32 %operation, ptr %block) naked noinline
    prologue [2 x i16] [i16 u0xBEAB, i16 u0x4770] {{
  unreachable
}}

define i32 @system(i32 %a, i32 %b, i32 %c, i32 %number) noinline {{
entry:
  %block = alloca [3 x i32]
  %second = getelementptr i32, ptr %block, i32 1
  %third = getelementptr i32, ptr %block, i32 2
  %writes = icmp eq i32 %number, {_WRITE}
  br i1 %writes, label %write, label %exit
write:
  store ptr @name, ptr %block
  store i32 9, ptr %second
  store i32 {len(_RESULTS)}, ptr %third
  %file = call i32 @host(i32 1, ptr %block)
  store i32 %file, ptr %block
  %length = call i32 @host(i32 12, ptr %block)
  store i32 %length, ptr %second
  %sought = call i32 @host(i32 10, ptr %block)
  store i32 %b, ptr %second
  store i32 %c, ptr %third
  %left = call i32 @host(i32 {_WRITE}, ptr %block)
  store i32 %file, ptr %block
  %closed = call i32 @host(i32 2, ptr %block)
  %written = sub i32 %c, %left
  ret i32 %written
exit:
  store i32 131110, ptr %block
  store i32 %a, ptr %second
  %ended = call i32 @host(i32 {_EXIT}, ptr %block)
  unreachable
}}

define void @reset() {{
  store volatile i32 15728640, ptr inttoptr (i32 3758157192 to ptr)
  call void @begin()
  unreachable
}}

define void @ticks(ptr %place, i32 %part, i32 %parts) {{
  %now = load volatile i32, ptr inttoptr (i32 3758153752 to ptr)
  %control = load volatile i32, ptr inttoptr (i32 3758153744 to ptr)
  store i32 %now, ptr %place
  %second = getelementptr i32, ptr %place, i32 1
  store i32 %control, ptr %second
  store volatile i32 {_COUNT}, ptr inttoptr (i32 3758153748 to ptr)
  store volatile i32 0, ptr inttoptr (i32 3758153752 to ptr)
  store volatile i32 5, ptr inttoptr (i32 3758153744 to ptr)
  ret void
}}

define void @fault() {{
  %ended = call i32 @system(i32 {_FAULTED}, i32 0, i32 0, i32 {_EXIT})
  unreachable
}}
"""
"""Results are appended to the file of that name (mode 9; qemu 7.2 opens it at its beginning). Before the run, access to
the registers of numbers and vectors is granted (CPACR). `ticks` stores what the timer has left and its state, and
starts it anew.
"""


@record(frozen=True)
class Boards(ProcessorEmulator):
    """qemu's boards with Arm's processors for microcontrollers."""

    @property
    def name(self) -> str:
        return _PROGRAM

    @property
    def architecture(self) -> str:
        return "thumb"

    @property
    def processors(self) -> Mapping[str, frozenset[str]]:
        return _BOARDS

    @property
    def page(self) -> int:
        return PAGE

    @property
    def room(self) -> int:
        return (_END - _START) // 2

    @property
    def start(self) -> int:
        return _START

    def runs(self, machine: Machine) -> bool:
        return machine.triple.startswith(self.architecture)

    def library(self) -> Mapping[str, int]:
        symbols = _startup().symbols
        return {name: _START + symbols[name] for name in _LIBRARY}

    def emulate(self, image: Image, processor: str) -> bytes | Fault:
        qemu, startup, size = self.program(), _startup(), image.result_size
        image.write(_START, startup.at(_START))
        kept = _kept(image)
        image.finish()
        if image.end > _END:
            raise ToolchainError(f"{_PROGRAM} {processor}: arrays need {image.end - _START} bytes, and the boards have "
                                 f"{_END - _START}", code="emulator")  # fmt: skip
        (stack,) = struct.unpack("<Q", image.read(image.numbers, 8))
        symbols = startup.symbols
        starts = [_START + symbols[name] | 1 for name in ("reset", *["fault"] * (_VECTORS - 2))]
        image.rights[0] = "read"
        image.write(0, struct.pack(f"<{_VECTORS}I", stack, *starts))
        with tempfile.TemporaryDirectory(prefix="convsmith-qemu-") as directory:
            file = Path(directory) / "process"
            file.write_bytes(executable(image, starts[0], FileHeader(32, 40, 0x05000400)))
            command = [qemu, "-M", processor, "-kernel", str(file), "-display", "none", "-serial", "none"]
            command += ["-icount", f"shift={_SHIFT}"]
            command += ["-monitor", "none", "-semihosting-config", "enable=on,target=native"]
            try:
                done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True,
                                      timeout=self.timeout, check=False)  # fmt: skip
            except subprocess.TimeoutExpired:
                raise ToolchainError(f"{qemu} did not end within {self.timeout:g} s", code="timeout") from None
            except OSError as error:
                raise ToolchainError(f"{qemu} cannot be run: {error}", code="emulator") from None
            results = Path(directory) / _RESULTS
            found = results.read_bytes() if results.exists() else b""
        if done.returncode == _FAULTED:
            return Fault("exception", None)
        if done.returncode or len(found) != size + len(kept):
            text = done.stderr.decode(errors="replace")
            raise ToolchainError(
                f"{qemu} ({processor}) ended without results, status {done.returncode}, {len(found)} of "
                f"{size + len(kept)} bytes: "
                f"{text.strip()[-300:]}", text=text, code="emulator",
            )  # fmt: skip
        return found[:size] if found[size:] == kept else Fault("write outside of results", None)

    def counter(self) -> int:
        return _START + _startup().symbols["ticks"] | 1

    def counted(self, found: bytes, processor: str) -> int | None:
        left, state = struct.unpack("<2I", found)
        return None if state & _WRAPPED else round((_COUNT - left) * 1e9 / _TICKS[processor] / (1 << _SHIFT))

    def program(self) -> str:
        return program_on_path(_PROGRAM, "thumb", _PROGRAM, "7.2 or later, or qemu-user of version 8 or later")


BOARDS = Boards()


def _kept(image: Image) -> bytes:
    """Return the contents of pages that no call may write, and add them to the results; pages between pieces get
    poison.
    """
    page = image.page
    for between in {*range(image.start // page, image.end // page + 1)} - image.rights.keys():
        image.rights[between], image.pages[between] = "read", bytes([POISON]) * page
    numbers = [n for n, right in sorted(image.rights.items()) if right == "read" and n != image.numbers // page]
    for n in numbers:
        image.result(n * page, page)
    return b"".join(image.pages.get(n, bytes(page)) for n in numbers)


@cache
def _startup() -> ObjectCode:
    """Return the code that begins a run, with the functions that kernels may call."""
    text = Path(__file__).with_name("startup_words.ll").read_text(encoding="utf-8")
    words = {"TRIPLE": EXTENDED, "SYSTEM": _SYSTEM, "WRITE": str(_WRITE), "EXIT": str(_EXIT),
             "NUMBERS": str(numbers_at(PAGE, _START))}  # fmt: skip
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", value)
    texts = (text, *(library_text(name, EXTENDED, "i32") for name in _LIBRARY))
    symbols = ("begin", "reset", "fault", "ticks", *_LIBRARY)
    return ObjectCode(llvm_bind.joined_code(texts, symbols, EXTENDED, "cortex-m4", ""))
