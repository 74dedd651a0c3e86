"""`EmulatedKernel`: an artifact as a callable on numpy arrays, run by an emulated processor that has what it needs."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from convsmith.codegen.artifact import ABI_VERSION, Argument, Artifact, Launch
from convsmith.codegen.binder import AddressMemory, Binder, element_type
from convsmith.diag.errors import ToolchainError, UnsupportedError, UsageError
from convsmith.runtime.arrays import ALIGNMENT, Array, ArraySpec, beyond_text, is_within, within_text
from convsmith.runtime.border import Border, Given, tensors_of
from emulator import bochs, qemu
from emulator.image import Image
from emulator.objects import ObjectCode
from emulator.processors import Fault

__all__ = ["CODE_ALIGNMENT", "EmulatedKernel"]

CODE_ALIGNMENT = 128
"""Bytes to which code is aligned: constants of vectors of Hexagon stand among it."""
_POISON = 0xFF
"""Every byte that no array gives: NaN as a float, -1 or the largest number as an integer."""


_EMULATORS = {b"\x3e\0": bochs, b"\xb7\0": qemu.AARCH64, b"\xa4\0": qemu.HEXAGON}
"""By the machine that the header of an object names: x86-64, AArch64, Hexagon."""
_MACHINE = slice(18, 20)
"""Its place in the header."""
_WORDS = {32: "I", 64: "Q"}
"""Forms of a word of an argument block, by the bits of an address."""


class EmulatedKernel:
    """A compiled problem on one thread: `run` on arrays by name, as a `HostKernel`'s, but for packed operands.

    Memory is stricter than a host's: inputs cannot be written, and what reads or writes beyond an array's last element
    faults. `processor` is the emulator's name of the processor, by default of the smallest that has what the artifact
    needs; UnsupportedError when there is none. ToolchainError when the code cannot be linked. A run may take `timeout`
    seconds.
    """

    def __init__(self, artifact: Artifact, timeout: float = 60.0, processor: str = "") -> None:
        if artifact.abi != ABI_VERSION:
            message = f"artifact has ABI version {artifact.abi}; this convsmith runs {ABI_VERSION}"
            raise UsageError(message, code="bad-artifact")
        for launch in (entry.launch for entry in artifact.entries.values()):
            if launch != Launch():
                raise UnsupportedError(
                    f"kernel {artifact.problem!r} is made for {launch.threads} threads; the emulated machine has one: "
                    "legal is a config with threads=1",
                    code="threads",
                )
        self.artifact, self.timeout = artifact, timeout
        self._emulator = _EMULATORS.get(artifact.code[_MACHINE], bochs)
        self.processor = processor or self._emulator.processor(artifact.needs)
        self._code = ObjectCode(artifact.code, self._emulator.memory_functions())
        for entry in artifact.entries.values():
            if entry.chunk_symbol not in self._code.symbols:
                raise ToolchainError(f"object code of {artifact.problem!r} has no {entry.chunk_symbol}", code="symbol")
        self._border = Border(tuple(tensors_of(artifact).values()), "")

    def run(self, arrays: Mapping[str, Given]) -> dict[str, Array]:
        """Compute on arrays by name: all inputs without a default, and outputs to be written in place. Gives outputs.

        UsageError names what does not fit. ToolchainError says what the emulated processor stopped at.
        """
        return self.run_all([arrays])[0]

    def run_all(self, calls: Sequence[Mapping[str, Given]]) -> list[dict[str, Array]]:
        """Return the results of `run` for several calls, which share one start of the emulator."""
        taken = [self._border.take(arrays) for arrays in calls]
        if not self._border.empty:
            self._compute([(cast(dict[str, Array], inputs), outputs) for inputs, outputs in taken])
        return [
            {name: arrays.get(name, result) for name, result in outputs.items()}  # type: ignore[misc]
            for arrays, (_, outputs) in zip(calls, taken)
        ]

    def _compute(self, calls: Sequence[tuple[dict[str, Array], dict[str, Array]]]) -> None:
        for inputs, _ in calls:
            self._check_limits(inputs)
        image = Image(self._emulator.PAGE)
        start = image.reserve(self._code.size, "execute", CODE_ALIGNMENT)
        image.write(start, self._code.at(start))
        for inputs, outputs in calls:
            self._place(image, start, inputs, outputs)
        found = self._emulator.emulate(image, self.processor, self.timeout)
        if isinstance(found, Fault):
            raise ToolchainError(
                f"the emulated {self.processor} stopped in the kernel of {self.artifact.problem!r} (config "
                f"{self.artifact.config}): {found.kind}{self._where(found.at, start)}",
                code="fault",
            )
        for _, outputs in calls:
            for name, array in outputs.items():
                spec = self._border.specs[name]
                np.copyto(array, np.ndarray(spec.shape, spec.dtype, found, 0, spec.strides))
                found = found[spec.extent :]

    def _place(self, image: Image, start: int, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        """Put the memory of a call into the image, and have its entries run."""
        specs = self._border.specs
        binder = Binder(ImageMemory(image), {})
        for name, array in {**self._border.defaults, **inputs}.items():
            binder.places[name] = image.place(_memory(specs[name], array), "read", array.itemsize)
        for name, result in outputs.items():
            old = result if specs[name].argument.role == "inout" else None
            binder.places[name] = image.place(_memory(specs[name], old), "write", result.itemsize)
            image.result(binder.places[name], specs[name].extent)
        packs = (name for of, names in self.artifact.packs.items() for name in names if not specs[of].empty_tensor)
        word = _WORDS[self.artifact.address_bits]
        for name in (*packs, *self.artifact.steps):
            entry = self.artifact.entries[name]
            words = binder.bind(entry).words
            block = image.place(struct.pack(f"<{len(words)}{word}", *words), "read", struct.calcsize(word))
            image.call(start + self._code.symbols[entry.chunk_symbol], block)

    def _check_limits(self, inputs: Mapping[str, Array]) -> None:
        for name, limit in self.artifact.limits.items():
            if name in inputs and not is_within(inputs[name], limit):
                raise UnsupportedError(
                    f"{name}: holds {beyond_text(limit)}, with which the kernel of {self.artifact.problem!r} would "
                    f"compute wrong results (config {self.artifact.config}); legal are {within_text(limit)}",
                    code="non-finite",
                )

    def _where(self, address: int | None, start: int) -> str:
        """The place of an address in code that starts at another, from the nearest symbol before it."""
        if address is None:
            return ""
        offset = address - start
        before = {name: at for name, at in self._code.symbols.items() if at <= offset < self._code.size}
        if not before:
            return f" at {offset:#x} from the code's start"
        name = max(before, key=lambda name: before[name])
        return f" at {name}+{offset - before[name]:#x}"


class ImageMemory(AddressMemory):
    """Memory of an image: what a kernel only reads cannot be written, what it is to write holds poison."""

    def __init__(self, image: Image) -> None:
        self._image = image

    def reserve(self, argument: Argument, elements: int) -> int:
        contents = bytes([_POISON]) * (elements * element_type(argument).itemsize)
        return self._image.place(contents, "read" if argument.role in ("table", "zero") else "write", ALIGNMENT)

    def read(self, place: int, nbytes: int) -> bytes:
        return self._image.read(place, nbytes)

    def write(self, place: int, contents: Array) -> None:
        self._image.write(place, contents.tobytes())


def _memory(spec: ArraySpec, array: Array | None) -> bytes:
    """The memory of an array in the kernel's layout, with poison between its elements, or in all when there is none."""
    memory = np.full(spec.extent, _POISON, np.uint8)
    if array is not None:
        np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides)[...] = array
    return memory.tobytes()
