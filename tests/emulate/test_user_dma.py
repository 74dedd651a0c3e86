"""Why copies of kernels for Hexagon are not asynchronous: LLVM selects the instructions of the user DMA, and the
emulator has none of them.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from emulated import skip_without_emulator

from convsmith.codegen import llvm_bind
from convsmith.emulate.image import Image
from convsmith.emulate.processor import CODE_ALIGNMENT
from convsmith.emulate.processors import Fault, processor_for
from convsmith.emulate.qemu import HEXAGON
from convsmith.machine.registry import target
from convsmith.runtime.object_code import ObjectCode

LEVEL = target("hexagon+v68")
CALLS = {
    "dmstart": "call void @llvm.hexagon.Y6.dmstart(ptr %descriptor)",
    "dmlink": "call void @llvm.hexagon.Y6.dmlink(ptr %descriptor, ptr %descriptor)",
    "dmpoll": "%status = call i32 @llvm.hexagon.Y6.dmpoll()",
    "dmwait": "%status = call i32 @llvm.hexagon.Y6.dmwait()",
}
"""Instructions of the user DMA, and LLVM's calls of their intrinsics."""


def text(call: str) -> str:
    """The module of a function that runs a call, with the descriptor of a transfer, and then stores 7."""
    return f"""target triple = "{LEVEL.triple}"
declare void @llvm.hexagon.Y6.dmstart(ptr)
declare void @llvm.hexagon.Y6.dmlink(ptr, ptr)
declare i32 @llvm.hexagon.Y6.dmpoll()
declare i32 @llvm.hexagon.Y6.dmwait()
define void @f(ptr %block, i32 %part, i32 %parts) nounwind {{
  %descriptor = load ptr, ptr %block
  {call}
  %at = getelementptr ptr, ptr %block, i32 1
  %result = load ptr, ptr %at
  store i32 7, ptr %result
  ret void
}}
"""


def emulated(call: str) -> bytes | Fault:
    """The bytes that the function stores, or the fault that ends the process."""
    code = ObjectCode(llvm_bind.object_code(text(call), LEVEL.triple, LEVEL.cpu, LEVEL.features))
    image = Image(HEXAGON.page)
    start = image.reserve(code.size, "execute", CODE_ALIGNMENT)
    image.write(start, code.at(start, {}))
    source, to = image.place(bytes(64), "read", 64), image.place(bytes(64), "write", 64)
    result = image.place(bytes(4), "write", 4)
    # A linear transfer: the next descriptor, the bytes, and both addresses.
    descriptor = image.place(struct.pack("<4I", 0, 64, source, to), "write", 64)
    image.call(start + code.symbols["f"], image.place(struct.pack("<2I", descriptor, result), "read", 8))
    image.result(result, 4)
    return replace(HEXAGON, timeout=60.0).emulate(image, processor_for(LEVEL.needs, HEXAGON.processors))


@pytest.mark.parametrize("name", CALLS)
def test_llvm_selects_the_instructions_and_the_emulator_lacks_them(name: str) -> None:
    """Where an emulator has them, asynchronous copies of kernels can be run, and belong into the generated code."""
    m = LEVEL
    assert name in llvm_bind.joined_code([text(CALLS[name])], ["f"], m.triple, m.cpu, m.features, True).decode()
    skip_without_emulator(LEVEL)
    assert emulated("") == struct.pack("<I", 7)
    assert isinstance(emulated(CALLS[name]), Fault)
