"""`ProcessorEmulator`: runs object code of a CPU in an emulator that receives all memory as an `Image`.

Memory is stricter than a host's: arrays that an entry only reads are write-protected, an access beyond an array's last
element faults, and uninitialised memory holds poison.
"""

from __future__ import annotations

import os
import shutil
import struct
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Protocol

import numpy as np

from convsmith.codegen.artifact import RUNTIME_SYMBOLS, Argument, Artifact, Entry
from convsmith.codegen.binder import AddressMemory, Binder, element_type
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.emulate.base import EmulatedCode, Emulator, Memory, Piece
from convsmith.emulate.image import START, Image
from convsmith.emulate.processors import Fault, processor_for
from convsmith.machine.base import Machine
from convsmith.runtime.arrays import ALIGNMENT, Array
from convsmith.runtime.loading import LoadedCode
from convsmith.runtime.object_code import ObjectCode

__all__ = ["CODE_ALIGNMENT", "POISON", "ImageMemory", "PlacedCode", "ProcessorEmulator", "program_on_path"]

CODE_ALIGNMENT = 128
"""Alignment, in bytes, of code, which contains constants of Hexagon's vectors."""
POISON = 0xFF
"""The byte that fills uninitialised memory: NaN as a float, -1 or the largest number as an integer."""
_WORDS = {32: "I", 64: "Q"}
"""Formats of a word of an argument block, by the bits of an address."""
_NOWHERE = 0
"""Address of the functions that start threads, which is never called: the parts of an entry run one after the other."""


class PlacedCode(Protocol):
    """The code of an artifact, which images of memory receive."""

    def place(self, image: Image) -> Mapping[str, int]:
        """Add the code to an image, and return what stands for each function in calls, by its symbol."""

    def where(self, address: int | None) -> str:
        """Return the location of an address in the image that the code was added to last, as the end of a sentence."""


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

    @property
    def room(self) -> int:
        """Bytes of memory that are certain to be there for arrays."""
        return 1 << 30

    @property
    def start(self) -> int:
        """The address of the start-up code."""
        return START

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

    def counter(self) -> int | None:
        """Return the address of a function for calls of an image that stores, in the 8 bytes of its block, what
        `counted` reads, and then counts anew; None if this emulator counts no instructions.
        """
        return None

    def counted(self, found: bytes, processor: str) -> int | None:
        """Return the instructions between two calls of `counter`, of which the second stored the bytes ``found``, to
        within one part of its unit; None if they exceed its range.
        """
        raise NotImplementedError

    def runs(self, machine: Machine) -> bool:
        return machine.triple.partition("-")[0] == self.architecture

    def check(self, machine: Machine) -> None:
        self.program()
        processor_for(machine.needs, self.processors)

    def load(self, artifact: Artifact) -> LoadedCode:
        processor = self.processor or processor_for(artifact.needs, self.processors)
        return EmulatedCode(artifact, partial(self._run, artifact, self.link(artifact), processor))

    def link(self, artifact: Artifact) -> PlacedCode:
        """Return the code of an artifact. ToolchainError if it cannot be linked."""
        runtimes = {entry.launch.runtime for entry in artifact.entries.values()} - {""}
        starts = {name: _NOWHERE for runtime in runtimes for name in RUNTIME_SYMBOLS[runtime]}
        code, outside = ObjectCode(artifact.code), {**self.library(), **starts}
        code.require(outside)
        for entry in artifact.entries.values():
            if entry.chunk_symbol not in code.symbols:
                raise ToolchainError(f"object code of {artifact.problem!r} has no {entry.chunk_symbol}", code="symbol")
        return _ProcessorCode(code, outside)

    def _run(self, artifact: Artifact, code: PlacedCode, processor: str, entry: Entry, memory: Memory) -> None:
        """Run an entry of linked code on memory."""
        image = Image(self.page, self.start)
        functions = code.place(image)
        binder = Binder(ImageMemory(image), dict(memory.sizes))
        written = []
        for name, piece in memory.pieces.items():
            binder.places[name] = _placed(image, piece)
            if piece.is_written:
                image.result(binder.places[name], piece.contents.nbytes)
                written.append(piece.contents)
        words, word = binder.bind(entry).words, _WORDS[artifact.address_bits]
        block = image.place(struct.pack(f"<{len(words)}{word}", *words), "read", struct.calcsize(word))
        for part in range(entry.launch.threads):
            image.call(functions[entry.chunk_symbol], block, part, entry.launch.threads)
        found = self.emulate(image, processor)
        if isinstance(found, Fault):
            raise ToolchainError(
                f"the emulated {processor} stopped in the kernel of {artifact.problem!r} (config {artifact.config}): "
                f"{found.kind}{code.where(found.at)}",
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
        bytes([POISON]) * len(contents) if piece.is_blank else contents,
        "write" if piece.is_written else "read",
        element_type(argument).itemsize if is_tensor else ALIGNMENT,
    )


class _ProcessorCode:
    """Object code of a processor, with the addresses of the functions ``outside`` that it may call."""

    def __init__(self, code: ObjectCode, outside: Mapping[str, int]) -> None:
        self._code, self._outside, self._start = code, outside, 0

    def place(self, image: Image) -> Mapping[str, int]:
        """Return the addresses of the functions."""
        code = self._code
        self._start = start = image.reserve(code.size, "execute", CODE_ALIGNMENT)
        image.write(start, code.at(start, self._outside))
        return {name: start + at for name, at in code.symbols.items()}

    def where(self, address: int | None) -> str:
        """Return the location of an address, relative to the nearest preceding symbol of code that starts at another
        address.
        """
        if address is None:
            return ""
        code, offset = self._code, address - self._start
        before = {name: at for name, at in code.symbols.items() if at <= offset < code.size}
        if not before:
            return f" at {offset:#x} from the code's start"
        name = max(before, key=lambda name: before[name])
        return f" at {name}+{offset - before[name]:#x}"


class ImageMemory(AddressMemory):
    """Memory of an image: tables and absent pixels are read-only for the kernel, scratch memory holds poison."""

    def __init__(self, image: Image) -> None:
        self._image = image

    def reserve(self, argument: Argument, elements: int) -> int:
        contents = bytes([POISON]) * argument.bytes_of(elements)
        return self._image.place(contents, "read" if argument.role in ("table", "zero") else "write", ALIGNMENT)

    def read(self, place: int, nbytes: int) -> bytes:
        return self._image.read(place, nbytes)

    def write(self, place: int, contents: Array) -> None:
        self._image.write(place, contents.tobytes())


def program_on_path(name: str, of: str, package: str, version: str) -> str:
    """Return the path of an emulator's program; UnsupportedError with the ``package`` and ``version`` that provide it,
    for code for ``of``, if PATH does not have it.
    """
    found = shutil.which(name)
    if found is None:
        raise UnsupportedError(
            f"code for {of} runs under {name}, which PATH does not have: install the package {package} (apt install "
            f"{package}), version {version}",
            code="emulator",
        )
    return os.path.abspath(found)
