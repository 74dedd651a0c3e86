"""Modules of LLVM text that are joined to one: the symbols that stay visible, and those that nobody needs."""

from __future__ import annotations

import pytest

from convsmith.codegen.llvm_bind import joined_code
from convsmith.codegen.object_symbols import undefined_symbols
from convsmith.machine.base import Machine
from convsmith.machine.registry import target

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
