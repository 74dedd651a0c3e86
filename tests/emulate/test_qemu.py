"""Processes under qemu-aarch64: the contract of a kernel's memory, what ends a run, and what is refused before one."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from emulated import emulated_kernel, skip_without_emulator
from llvm_kernels import MEMORY_FUNCTIONS

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.machine.aarch64.levels import LEVELS

BASE = LEVELS[-1]
NUMBERS = np.arange(16, dtype=np.int32)


@pytest.fixture
def qemu() -> None:
    """Skips where there is no qemu-aarch64."""
    skip_without_emulator(BASE)


needs_qemu = pytest.mark.usefixtures("qemu")


def copies(body: str = "", declare: str = "", features: str = "+neon", needs: tuple[str, ...] = ("neon",)) -> Artifact:
    """`dst[0:16] = src[0:16]`, after `body`, which sees %src, %dst and %n."""
    text = f"""
    {declare}
    define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind {{
      %src = load ptr, ptr %block
      %at = getelementptr ptr, ptr %block, i64 1
      %dst = load ptr, ptr %at
      {body}
      %x = load <16 x i32>, ptr %src, align 4
      store <16 x i32> %x, ptr %dst, align 4
      ret void
    }}
    """
    arguments = (Argument("src", "in", "s32", (16,), "a", 16), Argument("dst", "out", "s32", (16,), "a", 16))
    code = llvm_bind.object_code(text, BASE.triple, BASE.cpu, features)
    return Artifact(code, "by hand", {"main": Entry("k", arguments)}, "copies", "by hand", needs=needs)


SDOT = """
%a = load <16 x i8>, ptr %src, align 1
%s = call <4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8(<4 x i32> zeroinitializer, <16 x i8> %a, <16 x i8> %a)
store <4 x i32> %s, ptr %dst, align 4
"""
SMMLA = SDOT.replace("sdot", "smmla")
DECLARE = "declare <4 x i32> @llvm.aarch64.neon.{}.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)"


def raised(artifact: Artifact, code: str, timeout: float = 60.0, processor: str = "") -> ToolchainError:
    with pytest.raises(ToolchainError) as caught:
        emulated_kernel(artifact, timeout=timeout, processor=processor).run({"src": NUMBERS})
    assert caught.value.code == code
    return caught.value


@needs_qemu
def test_memory_functions_of_the_c_library() -> None:
    code = llvm_bind.object_code(MEMORY_FUNCTIONS, BASE.triple, BASE.cpu, BASE.features)
    whole = copies()
    artifact = Artifact(code, "by hand", whole.entries, "copies", "by hand", needs=("neon",))
    found = emulated_kernel(artifact).run({"src": NUMBERS})["dst"]
    assert found.tolist() == [0, 1, 2, *[0x01010101] * 2, *range(5, 16)]


@needs_qemu
@pytest.mark.parametrize(
    "name, body, needs, processor",
    [
        ("sdot", SDOT, ("neon", "dotprod"), "cortex-a72"), ("smmla", SMMLA, ("neon", "i8mm"), "neoverse-n1"),
        ("smmla", SMMLA, ("neon", "i8mm"), "cortex-a76"),
    ],
)  # fmt: skip
def test_an_instruction_that_the_processor_lacks(
    name: str, body: str, needs: tuple[str, ...], processor: str
) -> None:
    features = ",".join(f"+{n}" for n in needs)
    artifact = copies(body, DECLARE.format(name), features, needs)
    np.testing.assert_array_equal(emulated_kernel(artifact).run({"src": NUMBERS})["dst"], NUMBERS)
    assert f"the emulated {processor} stopped in the kernel of 'copies' (config by hand): illegal instruction" in str(
        raised(artifact, "fault", processor=processor)
    )
    lying = Artifact(artifact.code, "by hand", artifact.entries, "copies", "by hand", needs=("neon",))
    assert "the emulated cortex-a72 stopped" in str(raised(lying, "fault"))


@needs_qemu
@pytest.mark.parametrize(
    "body, message",
    [
        ("store volatile i32 1, ptr %src", "page fault"),
        ("%e = getelementptr i32, ptr %src, i64 16\n%v = load volatile i8, ptr %e", "page fault"),
        ("%e = getelementptr i32, ptr %dst, i64 16\nstore volatile i8 1, ptr %e", "page fault"),
        ("store volatile i8 1, ptr null", "page fault"),
        ("call void %src()", "page fault"),
        ("call void @llvm.trap()", "trap"),
    ],
    ids=["input", "beyond-input", "beyond-output", "null", "data", "trap"],
)
def test_faults(body: str, message: str) -> None:
    assert message in str(raised(copies(body, "declare void @llvm.trap()"), "fault"))


@needs_qemu
def test_a_run_that_does_not_end() -> None:
    body = "br label %again\nagain:\n%v = load volatile i64, ptr %block\nbr label %again\nnever:"
    message = str(raised(copies(body), "timeout", timeout=0.5))
    assert message.startswith("qemu (") and message.endswith(") did not end within 0.5 s")


@pytest.mark.parametrize("script", ["exit 3", "echo no such processor >&2; exit 1", "printf few"])
def test_a_program_that_gives_no_results(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "qemu-aarch64"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    message = str(raised(copies(), "emulator"))
    assert message.startswith(f"qemu ({program}, processor cortex-a72) ended without results, status ")
    assert "echo" not in script or message.endswith("no such processor")


def test_no_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError) as caught:
        emulated_kernel(copies()).run({"src": NUMBERS})
    assert caught.value.code == "emulator" and str(caught.value) == (
        "code for aarch64 runs under qemu-aarch64, which PATH does not have: install the package qemu-user (apt "
        "install qemu-user), version 7.2 or later"
    )


def test_a_feature_that_no_processor_has() -> None:
    with pytest.raises(UnsupportedError) as caught:
        emulated_kernel(copies(needs=("neon", "sme3")))
    assert str(caught.value) == "no emulated processor has neon, sme3; nearest is cortex-a72, without sme3"
