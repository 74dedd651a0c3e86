"""`PlacedKernel`: a kernel of WebAssembly with the memory that it runs on, for programs that call it many times.

A run of an emulator copies memory to an engine and back for each entry. Here the memory of a whole kernel is laid out
once: arrays, packed operands, argument blocks, and the stack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from convsmith.codegen.artifact import ALIGNMENT, Artifact, Entry
from convsmith.codegen.binder import Binder
from convsmith.emulate.image import PAGE, Image
from convsmith.emulate.processor import ImageMemory
from convsmith.emulate.wasm import ModuleCode, library, memory_of
from convsmith.runtime.arrays import Array

__all__ = ["PlacedKernel", "placed_kernel"]

_STACK = 1 << 16


class PlacedKernel(NamedTuple):
    """A `module` that imports its memory, whose contents before the first call are `memory`, and functions of the
    module `library`, which has the same memory.

    `packs` and `steps` are calls: a function by its name, an argument block, a part, and the number of parts. The
    packs make what all calls of the kernel share, from the weights; the steps are one call, which packs other operands
    itself. `places` are the addresses of arrays by name, `stack` is the top of the stack.
    """

    module: bytes
    library: bytes
    memory: bytes
    stack: int
    packs: list[tuple[str, int, int, int]]
    steps: list[tuple[str, int, int, int]]
    places: dict[str, int]


def placed_kernel(artifact: Artifact, arrays: Mapping[str, Array]) -> PlacedKernel:
    """Return a kernel with the `arrays` of its inputs, in the order of their memory; memory of its outputs is reserved.

    UsageError names an array that is missing.
    """
    image = Image(PAGE)
    code = ModuleCode(artifact)
    code.place(image)
    binder = Binder(ImageMemory(image), {})
    weights = {a.name for entry in artifact.entries.values() for a in entry.arguments if a.holds == "wei"}
    each_call = [artifact.entries[x] for name, names in artifact.packs.items() if name not in weights for x in names]
    packs = [artifact.entries[x] for name, names in artifact.packs.items() if name in weights for x in names]
    steps = [*each_call, *artifact.steps.values()]
    for argument in (a for entry in (*packs, *steps) for a in entry.arguments):
        if argument.role not in ("in", "out", "inout") or argument.name in binder.places:
            continue
        held = arrays.get(argument.name)
        content = bytes(argument.nbytes) if held is None else held.tobytes()
        binder.places[argument.name] = image.place(content, "write", ALIGNMENT)
    packing, running = (list(_calls(image, binder, entries)) for entries in (packs, steps))
    stack = image.reserve(_STACK, "write", PAGE) + _STACK
    return PlacedKernel(image.code, library(), bytes(memory_of(image)), stack, packing, running, dict(binder.places))


def _calls(image: Image, binder: Binder[int], entries: Iterable[Entry]) -> Iterator[tuple[str, int, int, int]]:
    """Yield the calls that run entries, whose argument blocks are placed in the image."""
    for entry in entries:
        words = binder.bind(entry).words
        block = image.place(struct.pack(f"<{len(words)}I", *words), "read", ALIGNMENT)
        for part in range(entry.launch.threads):
            yield entry.chunk_symbol, block, part, entry.launch.threads
