"""`ProcessorEmulator`: runs object code of a CPU in an emulator that receives all memory as an `Image`.

Memory is stricter than a host's: arrays that an entry only reads are write-protected, an access beyond an array's last
element faults, and uninitialised memory holds poison.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial

import numpy as np

from convsmith.codegen.artifact import RUNTIME_SYMBOLS, Argument, Artifact, Entry
from convsmith.codegen.binder import AddressMemory, Binder, element_type
from convsmith.diag.errors import ToolchainError
from convsmith.diag.record import record
from convsmith.emulate.base import EmulatedCode, Emulator, Memory, Piece
from convsmith.emulate.image import Image
from convsmith.emulate.processors import Fault, processor_for
from convsmith.machine.base import Machine
from convsmith.runtime.arrays import ALIGNMENT, Array
from convsmith.runtime.loading import LoadedCode
from convsmith.runtime.object_code import ObjectCode

__all__ = ["CODE_ALIGNMENT", "ProcessorEmulator"]

CODE_ALIGNMENT = 128
"""Alignment, in bytes, of code, which contains constants of Hexagon's vectors."""
_POISON = 0xFF
"""The byte that fills uninitialised memory: NaN as a float, -1 or the largest number as an integer."""
_WORDS = {32: "I", 64: "Q"}
"""Formats of a word of an argument block, by the bits of an address."""
_NOWHERE = 0
"""Address of the functions that start threads, which is never called: the parts of an entry run one after the other."""


@record(frozen=True)
class ProcessorEmulator(Emulator):
    """An emulator that runs an `Image` on a processor.

    `processor` is the emulator's name of the processor; the default is the smallest processor with the features that an
    artifact needs. A run of an entry may take `timeout` seconds.
    """

    processor: str = ""
    timeout: float = 600.0

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The first word of the LLVM triple of the code that runs."""

    @property
    @abstractmethod
    def processors(self) -> Mapping[str, frozenset[str]]:
        """The emulator's names of processors, with their features by LLVM's names. The first with all required features
        is used.
        """

    @property
    @abstractmethod
    def page(self) -> int:
        """Bytes of a page."""

    @abstractmethod
    def program(self) -> str:
        """Return the path of the emulator. UnsupportedError (code `emulator`) if it is not installed."""

    @abstractmethod
    def library(self) -> Mapping[str, int]:
        """Return the addresses of the functions of the C library, and of the compiler's, that code may call."""

    @abstractmethod
    def emulate(self, image: Image, processor: str) -> bytes | Fault:
        """Run a processor on an image until it has sent the results or an exception has ended the run.

        ToolchainError if the emulator ends otherwise (`text` is its output) or exceeds the time limit.
        """

    def runs(self, machine: Machine) -> bool:
        return machine.triple.partition("-")[0] == self.architecture

    def check(self, machine: Machine) -> None:
        self.program()
        processor_for(machine.needs, self.processors)

    def load(self, artifact: Artifact) -> LoadedCode:
        processor = self.processor or processor_for(artifact.needs, self.processors)
        runtimes = {entry.launch.runtime for entry in artifact.entries.values()} - {""}
        starts = {name: _NOWHERE for runtime in runtimes for name in RUNTIME_SYMBOLS[runtime]}
        code, outside = ObjectCode(artifact.code), {**self.library(), **starts}
        code.require(outside)
        for entry in artifact.entries.values():
            if entry.chunk_symbol not in code.symbols:
                raise ToolchainError(f"object code of {artifact.problem!r} has no {entry.chunk_symbol}", code="symbol")
        return EmulatedCode(artifact, partial(self._run, artifact, code, outside, processor))

    def _run(
        self, artifact: Artifact, code: ObjectCode, outside: Mapping[str, int], processor: str, entry: Entry,
        memory: Memory,
    ) -> None:  # fmt: skip
        """Run an entry of linked code on memory."""
        image = Image(self.page)
        start = image.reserve(code.size, "execute", CODE_ALIGNMENT)
        image.write(start, code.at(start, outside))
        binder = Binder(_ImageMemory(image), dict(memory.sizes))
        written = []
        for name, piece in memory.pieces.items():
            binder.places[name] = _placed(image, piece)
            if piece.is_written:
                image.result(binder.places[name], piece.contents.nbytes)
                written.append(piece.contents)
        words, word = binder.bind(entry).words, _WORDS[artifact.address_bits]
        block = image.place(struct.pack(f"<{len(words)}{word}", *words), "read", struct.calcsize(word))
        for part in range(entry.launch.threads):
            image.call(start + code.symbols[entry.chunk_symbol], block, part, entry.launch.threads)
        found = self.emulate(image, processor)
        if isinstance(found, Fault):
            raise ToolchainError(
                f"the emulated {processor} stopped in the kernel of {artifact.problem!r} (config {artifact.config}): "
                f"{found.kind}{_where(code, found.at, start)}",
                code="fault",
            )
        for contents in written:
            contents[:] = np.frombuffer(found, np.uint8, contents.nbytes)
            found = found[contents.nbytes :]


def _placed(image: Image, piece: Piece) -> int:
    """Return the address of an argument's memory, which has been copied into the image."""
    argument, contents = piece.argument, piece.contents.tobytes()
    is_tensor = argument.role in ("in", "out", "inout")
    return image.place(
        bytes([_POISON]) * len(contents) if piece.is_blank else contents,
        "write" if piece.is_written else "read",
        element_type(argument).itemsize if is_tensor else ALIGNMENT,
    )


def _where(code: ObjectCode, address: int | None, start: int) -> str:
    """Return the location of an address, relative to the nearest preceding symbol of code that starts at another
    address.
    """
    if address is None:
        return ""
    offset = address - start
    before = {name: at for name, at in code.symbols.items() if at <= offset < code.size}
    if not before:
        return f" at {offset:#x} from the code's start"
    name = max(before, key=lambda name: before[name])
    return f" at {name}+{offset - before[name]:#x}"


class _ImageMemory(AddressMemory):
    """Memory of an image: tables and absent pixels are read-only for the kernel, scratch memory holds poison."""

    def __init__(self, image: Image) -> None:
        self._image = image

    def reserve(self, argument: Argument, elements: int) -> int:
        contents = bytes([_POISON]) * argument.bytes_of(elements)
        return self._image.place(contents, "read" if argument.role in ("table", "zero") else "write", ALIGNMENT)

    def read(self, place: int, nbytes: int) -> bytes:
        return self._image.read(place, nbytes)

    def write(self, place: int, contents: Array) -> None:
        self._image.write(place, contents.tobytes())
