"""`EmulatedKernel`: an artifact as a callable on numpy arrays, run by an emulated processor that has what it needs."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from convsmith.codegen.artifact import ABI_VERSION, Argument, Artifact, Entry
from convsmith.diag.errors import ToolchainError, UnsupportedError, UsageError
from convsmith.layout.indirection import from_recipe
from convsmith.runtime.arrays import ALIGNMENT, Array, ArraySpec, all_finite, numpy_dtype
from convsmith.runtime.border import Border, Given, tensors_of
from convsmith.runtime.pointers import absent_pixel
from emulator import bochs
from emulator.image import Image
from emulator.objects import ObjectCode

__all__ = ["EmulatedKernel"]

_POISON = 0xFF
"""Every byte that no array gives: NaN as a float, -1 or the largest number as an integer."""


class EmulatedKernel:
    """A compiled problem on one thread: `run` on arrays by name, as a `HostKernel`'s, but for packed operands.

    Memory is stricter than a host's: inputs cannot be written, and what reads or writes beyond an array's last element
    faults. `processor` is Bochs' name of the processor. UnsupportedError when there is none that has what the artifact
    needs, ToolchainError when its code cannot be linked. A run may take `timeout` seconds.
    """

    def __init__(self, artifact: Artifact, timeout: float = 60.0) -> None:
        if artifact.abi != ABI_VERSION:
            message = f"artifact has ABI version {artifact.abi}; this convsmith runs {ABI_VERSION}"
            raise UsageError(message, code="bad-artifact")
        threads = max(entry.threads for entry in artifact.entries.values())
        if threads > 1:
            raise UnsupportedError(
                f"kernel {artifact.problem!r} is made for {threads} threads; the emulated machine has one: legal is a "
                "config with threads=1",
                code="threads",
            )
        self.artifact, self.timeout = artifact, timeout
        self.processor = bochs.processor(artifact.needs)
        self._code = ObjectCode(artifact.code, bochs.memory_functions())
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
        """What `run` gives for each of several calls, which share one start of the emulator."""
        taken = [self._border.take(arrays) for arrays in calls]
        if not self._border.empty:
            self._compute([(cast(dict[str, Array], inputs), outputs) for inputs, outputs in taken])
        return [
            {name: arrays.get(name, result) for name, result in outputs.items()}  # type: ignore[misc]
            for arrays, (_, outputs) in zip(calls, taken)
        ]

    def _compute(self, calls: Sequence[tuple[dict[str, Array], dict[str, Array]]]) -> None:
        for inputs, _ in calls:
            self._check_finite(inputs)
        image = Image()
        start = image.reserve(self._code.size, "execute", ALIGNMENT)
        image.write(start, self._code.at(start))
        for inputs, outputs in calls:
            self._place(image, start, inputs, outputs)
        found = bochs.emulate(image, self.processor, self.timeout)
        if isinstance(found, bochs.Fault):
            raise ToolchainError(
                f"the emulated {self.processor} stopped in the kernel of {self.artifact.problem!r} (config "
                f"{self.artifact.config}): {found.kind} at {self._where(found.at - start)}",
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
        addresses: dict[str, int] = {}
        given = {**self._border.defaults, **inputs}
        for name, array in given.items():
            addresses[name] = image.place(_memory(specs[name], array), "read", array.itemsize)
        for name, result in outputs.items():
            old = result if specs[name].argument.role == "inout" else None
            addresses[name] = image.place(_memory(specs[name], old), "write", result.itemsize)
            image.result(addresses[name], specs[name].extent)
        for of, entries in self.artifact.packs.items():
            for name in entries if not specs[of].empty_tensor else ():
                self._call(image, start, self.artifact.entries[name], addresses, given)
        for step in self.artifact.steps.values():
            self._call(image, start, step, addresses, given)

    def _call(
        self, image: Image, start: int, entry: Entry, addresses: dict[str, int], arrays: Mapping[str, Array]
    ) -> None:
        """Have an entry run. `addresses` gets the memory of the kernel's own that other entries see too."""
        own = {a.name: image.place(_poison(a), "write", ALIGNMENT) for a in entry.arguments if a.role == "scratch"}
        for a in entry.arguments:
            if a.role in ("packed", "shared") and a.name not in addresses:
                addresses[a.name] = image.place(_poison(a), "write", ALIGNMENT)
        every = addresses | own
        for a in entry.arguments:
            if a.role == "zero":
                pixel = absent_pixel(a, a.recipe, arrays.get(a.recipe, np.zeros(1, np.int32)))
                every[a.name] = image.place(pixel.tobytes(), "read", ALIGNMENT)
        for a in entry.arguments:
            if a.role == "table":
                zero = next(z for z in entry.arguments if z.role == "zero" and z.of == a.of)
                item = numpy_dtype(zero.dtype).itemsize
                table = from_recipe(a.recipe).pointers(every[a.of], every[zero.name], item)
                every[a.name] = image.place(table.tobytes(), "read", ALIGNMENT)
        block = struct.pack(f"<{len(entry.arguments)}Q", *(every[a.name] for a in entry.arguments))
        image.call(start + self._code.symbols[entry.chunk_symbol], image.place(block, "read", 8))

    def _check_finite(self, inputs: Mapping[str, Array]) -> None:
        for name in self.artifact.needs_finite:
            if name in inputs and not all_finite(inputs[name]):
                raise UnsupportedError(
                    f"{name}: holds infinities or NaN, which the kernel of {self.artifact.problem!r} would multiply by "
                    f"stored zeros (config {self.artifact.config}); legal are finite values",
                    code="non-finite",
                )

    def _where(self, offset: int) -> str:
        """An address in the code, from the nearest symbol before it."""
        before = {name: at for name, at in self._code.symbols.items() if at <= offset < self._code.size}
        if not before:
            return f"{offset:#x} from the code's start"
        name = max(before, key=lambda name: before[name])
        return f"{name}+{offset - before[name]:#x}"


def _poison(argument: Argument) -> bytes:
    return bytes([_POISON]) * (argument.size * numpy_dtype(argument.dtype).itemsize)


def _memory(spec: ArraySpec, array: Array | None) -> bytes:
    """The memory of an array in the kernel's layout, with poison between its elements, or in all when there is none."""
    memory = np.full(spec.extent, _POISON, np.uint8)
    if array is not None:
        np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides)[...] = array
    return memory.tobytes()
