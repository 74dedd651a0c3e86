"""Modules of LLVM text that are joined to one: the symbols that stay visible, and those that nobody needs."""

from __future__ import annotations

import ctypes

import pytest

from convsmith.codegen.llvm_bind import joined_code, merged_code
from convsmith.codegen.object_symbols import undefined_symbols
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, target
from convsmith.runtime.executable_memory import ExecutableMemory
from convsmith.runtime.object_code import ObjectCode

ONE = """
declare i32 @shared(i32)
declare i32 @outside(i32)
define i32 @entry(i32 %x) {
  %a = call i32 @shared(i32 %x)
  %b = call i32 @outside(i32 %a)
  ret i32 %b
}
define i32 @unused(i32 %x) {
  %a = call i32 @elsewhere(i32 %x)
  ret i32 %a
}
declare i32 @elsewhere(i32)
"""
OTHER = """
@table = constant [2 x i32] [i32 5, i32 7]
define i32 @shared(i32 %x) noinline {
  %p = getelementptr i32, ptr @table, i32 %x
  %v = load i32, ptr %p
  ret i32 %v
}
"""


def joined(machine: Machine, texts: tuple[str, ...], public: set[str], is_text: bool) -> bytes:
    return joined_code(texts, public, machine.triple, machine.cpu, machine.features, is_text=is_text)


@pytest.mark.parametrize("name", ["generic", "avx2", "aarch64", "hexagon+v68", "wasm32"])
def test_symbols_of_joined_modules(name: str) -> None:
    machine = target(name)
    text = joined(machine, (ONE, OTHER), {"entry"}, is_text=True).decode()
    assert "entry:" in text and "unused" not in text and "elsewhere" not in text
    assert ".globl\tentry" in text and ".globl\tshared" not in text and ".globl\ttable" not in text
    assert undefined_symbols(joined(machine, (ONE, OTHER), {"entry"}, is_text=False)) == ("outside",)
    every = joined(machine, (ONE, OTHER), {"entry", "unused"}, is_text=False)
    assert undefined_symbols(every) == ("elsewhere", "outside")
    assert undefined_symbols(joined(machine, (ONE,), {"entry"}, is_text=False)) == ("outside", "shared")


SHOWN = "declare i32 @inner(i32)\ndefine i32 @{name}(i32 %x) {{\n  %a = call i32 @inner(i32 %x)\n  ret i32 %a\n}}\n"
INNER = "define i32 @inner(i32 %x) noinline {{\n  %a = {operation} i32 %x, 3\n  ret i32 %a\n}}\n"
WHOLE = """
declare i32 @one(i32)
declare i32 @other(i32)
define i32 @whole(i32 %x) {
  %a = call i32 @one(i32 %x)
  %b = call i32 @other(i32 %a)
  ret i32 %b
}
define i32 @unused(i32 %x) {
  ret i32 %x
}
"""


def test_parts_may_have_symbols_of_one_name() -> None:
    """What a part does not show stays its own."""
    machine = host_targets()[0]
    parts = [
        ((SHOWN.format(name=name), INNER.format(operation=operation)), (name,))
        for name, operation in (("one", "add"), ("other", "mul"))
    ]  # fmt: skip
    code = merged_code([*parts, ((WHOLE,), ("whole",))], ("whole",), machine.triple, machine.cpu, machine.features)
    assert undefined_symbols(code) == () and set(ObjectCode(code).symbols) & {"unused", "whole"} == {"whole"}
    linked = ObjectCode(code)
    memory = ExecutableMemory(linked.size)
    memory.hold(linked.at(memory.address, {}))
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(memory.address + linked.symbols["whole"])(4) == (4 + 3) * 3
