"""WebAssembly in Node and in wasmtime: faults, memory that nothing may change, and functions that code calls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import emulated_kernel

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.emulate import wasm
from convsmith.emulate.wasm import ENGINES, WEB_ASSEMBLY, WebAssembly
from convsmith.machine.registry import target

LEVEL = target("wasm32+relaxed")
ARGUMENTS = (Argument("src", "in", "f32", (4,), "a", 4), Argument("dst", "out", "f32", (4,), "a", 4))
LOADS = """
  %src = load ptr, ptr %block
  %at = getelementptr ptr, ptr %block, i32 1
  %dst = load ptr, ptr %at
"""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> WebAssembly:
    found = replace(WEB_ASSEMBLY, engine=request.param)
    try:
        found.check(LEVEL)
    except UnsupportedError:
        if any(_is_there(name) for name in ENGINES):
            pytest.skip(f"there is no {request.param}")
        raise
    return found


def _is_there(name: str) -> bool:
    try:
        WebAssembly(engine=name).check(LEVEL)
    except UnsupportedError:
        return False
    return True


def run(engine: WebAssembly, body: str, declared: str = "") -> np.ndarray:
    text = f"""target triple = "{LEVEL.triple}"\n{declared}
    define void @k_chunk(ptr %block, i32 %tid, i32 %n) nounwind {{{LOADS}{body}\n  ret void\n}}\n"""
    code = llvm_bind.object_code(text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
    artifact = Artifact(code, LEVEL.name, {"main": Entry("k", ARGUMENTS)}, "x", "y", needs=LEVEL.needs, address_bits=32)
    found: np.ndarray = emulated_kernel(artifact, engine).run({"src": np.arange(1, 5, dtype=np.float32)})["dst"]
    return found


def test_a_relaxed_multiply_add(engine: WebAssembly) -> None:
    (row,) = LEVEL.vector_rows("f32", "f32", "f32")
    call = row.llvm.format(a="%x", b="%x", c="%x")
    body = f"%x = load <4 x float>, ptr %src, align 4\n%y = {call}\nstore <4 x float> %y, ptr %dst, align 4"
    np.testing.assert_array_equal(run(engine, body, row.declare), [2, 6, 12, 20])


def test_functions_of_a_library_round_once(engine: WebAssembly) -> None:
    """(1 + 2^-12)^2 - 1 - 2^-11 is 2^-24, which a product that is rounded first loses."""
    body = """
    %y = call float @llvm.fma.f32(float 0x3FF0010000000000, float 0x3FF0010000000000, float 0xBFF0020000000000)
    store float %y, ptr %dst
    """
    found = run(engine, body, "declare float @llvm.fma.f32(float, float, float)")
    assert found[0] == 2.0**-24


@pytest.mark.parametrize("offset", [-4096, 16])
def test_a_write_beside_an_array_is_a_fault(engine: WebAssembly, offset: int) -> None:
    with pytest.raises(ToolchainError, match=r"page fault \(writing 0x[0-9a-f]+\)"):
        run(engine, f"%p = getelementptr i8, ptr %dst, i32 {offset}\nstore i32 0, ptr %p")


def test_a_write_to_what_is_only_read_is_a_fault(engine: WebAssembly) -> None:
    with pytest.raises(ToolchainError, match=r"page fault \(writing 0x[0-9a-f]+\)"):
        run(engine, "store float 9.0, ptr %src")


def test_a_read_behind_an_array_is_poison(engine: WebAssembly) -> None:
    found = run(engine, "%p = getelementptr i8, ptr %src, i32 16\n%x = load float, ptr %p\nstore float %x, ptr %dst")
    assert np.isnan(found[0])


def test_traps_are_faults(engine: WebAssembly) -> None:
    with pytest.raises(ToolchainError, match=r"stopped in the kernel of 'x'.*out of bounds"):
        run(engine, "%far = inttoptr i32 -65536 to ptr\nstore float 1.0, ptr %far")


def test_an_engine_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm.shutil, "which", lambda name: None)
    monkeypatch.setattr(wasm.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"install nodejs .* or wasmtime"):
        WEB_ASSEMBLY.check(LEVEL)
