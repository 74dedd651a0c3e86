"""A call of an exported function in an emulator: its outputs, and the instructions that it takes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.emulate.emulators import EMULATORS
from convsmith.emulate.image import Image
from convsmith.emulate.processor import CODE_ALIGNMENT, POISON, ProcessorEmulator
from convsmith.emulate.processors import Fault, processor_for
from convsmith.exporter.interface import Interface, Parameter
from convsmith.machine.base import Machine
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.runtime.object_code import ObjectCode

__all__ = ["EmulatedCall", "counting_emulator", "emulated_call"]

_TIMEOUT = 60.0
"""Seconds that a call may take in an emulator."""
_CALLER = "call_exported"


@record(frozen=True)
class EmulatedCall:
    """The outputs of a call by name, and its instructions, to within ten; None where they were not counted."""

    outputs: Mapping[str, Array]
    instructions: int | None


def counting_emulator(machine: Machine) -> ProcessorEmulator | None:
    """Return an installed emulator that runs code for `machine` and counts instructions; None if there is none."""
    for emulator in EMULATORS:
        if isinstance(emulator, ProcessorEmulator) and emulator.runs(machine):
            try:
                emulator.check(machine)
            except UnsupportedError:
                continue
            if emulator.counter() is not None:
                return replace(emulator, timeout=_TIMEOUT)
    return None


def emulated_call(
    interface: Interface, codes: Sequence[bytes], machine: Machine, emulator: ProcessorEmulator,
    inputs: Mapping[str, Array],
) -> EmulatedCall:  # fmt: skip
    """Run an exported function that returns a code once, on `inputs` by the names of parameters; `codes` are the
    objects of its library. The workspace and the outputs hold poison before.

    ToolchainError if the function has a fault or returns a code other than 0, or the emulator ends without results.
    """
    processor = processor_for(machine.needs, emulator.processors)
    image = Image(emulator.page, emulator.start)
    parameters = interface.parameters
    code = llvm_bind.object_code(_caller(interface, machine), machine.triple, machine.cpu, machine.features)
    function = _linked(image, [*codes, code], emulator)[_CALLER]
    places = {p.name: _placed(image, p, inputs) for p in parameters}
    returned = image.place(bytes([POISON]) * 4, "write", 4)
    word = "Q" if machine.address_bits == 64 else "I"
    block = image.place(struct.pack(f"<{len(places) + 1}{word}", *places.values(), returned), "read", 8)
    counter = emulator.counter()
    counts = image.place(bytes(16), "write", 8) if counter is not None else 0
    if counter is not None:
        image.call(counter, counts)
    image.call(function, block)
    if counter is not None:
        image.call(counter, counts + 8)
        image.result(counts + 8, 8)
    image.result(returned, 4)
    results = [p for p in parameters if p.is_written and p.tensor is not None]
    for p in results:
        image.result(places[p.name], p.nbytes)
    found = emulator.emulate(image, processor)
    if isinstance(found, Fault):
        raise ToolchainError(f"the emulated {processor} stopped in {interface.name}: {found.kind}", code="fault")
    instructions = None
    if counter is not None:
        instructions, found = emulator.counted(found[:8], processor), found[8:]
    if any(found[:4]):
        raise ToolchainError(f"{interface.name} returned {int.from_bytes(found[:4], 'little')}", code="fault")
    found, outputs = found[4:], {}
    for p in results:
        assert p.tensor is not None
        outputs[p.name] = np.frombuffer(found[: p.nbytes], numpy_dtype(p.tensor.dtype)).reshape(p.tensor.shape)
        found = found[p.nbytes :]
    return EmulatedCall(outputs, instructions)


def _linked(image: Image, codes: Sequence[bytes], emulator: ProcessorEmulator) -> dict[str, int]:
    """Add objects that refer to each other to an image, and return the addresses of their symbols."""
    objects = [ObjectCode(code) for code in codes]
    starts = [image.reserve(code.size, "execute", CODE_ALIGNMENT) for code in objects]
    own = {name: start + at for code, start in zip(objects, starts) for name, at in code.symbols.items()}
    known = {**emulator.library(), **own}
    for code, start in zip(objects, starts):
        code.require(known)
        image.write(start, code.at(start, known))
    return own


def _placed(image: Image, p: Parameter, inputs: Mapping[str, Array]) -> int:
    """Return the address of the memory of a parameter."""
    given = inputs.get(p.name)
    contents = bytes([POISON]) * p.nbytes if given is None else given.tobytes()
    return image.place(contents, "write" if p.is_written else "read", p.alignment)


def _caller(interface: Interface, machine: Machine) -> str:
    """Return the module of a function that reads the arguments of the exported function from a block, and stores what
    it returns at the last address there.
    """
    word, count = f"i{machine.address_bits}", len(interface.parameters)
    lines = [f"define void @{_CALLER}(ptr %block, {word} %part, {word} %parts) nounwind {{"]
    for n in range(count + 1):
        lines += [f"  %p{n} = getelementptr ptr, ptr %block, {word} {n}", f"  %a{n} = load ptr, ptr %p{n}"]
    given, types = ", ".join(f"ptr %a{n}" for n in range(count)), ", ".join(["ptr"] * count)
    lines += [f"  %code = call i32 @{interface.name}({given})", f"  store i32 %code, ptr %a{count}", "  ret void", "}"]
    return "\n".join((f'target triple = "{machine.triple}"', f"declare i32 @{interface.name}({types})", *lines, ""))
