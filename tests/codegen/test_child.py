"""Work in a forked child returns bytes, errors in words, and a death as an error."""

from __future__ import annotations

import os
import signal

import pytest
from thread_kernels import HEAD, KERNELS

from convsmith.codegen import llvm_bind
from convsmith.codegen.child import in_child
from convsmith.codegen.device_module import device_text
from convsmith.compiler.facts import facts
from convsmith.diag.errors import ToolchainError
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target


def test_the_result_of_a_child_comes_back() -> None:
    assert in_child(lambda: os.getpid().to_bytes(8, "little"), "asking") != os.getpid().to_bytes(8, "little")


def test_a_refusal_in_a_child_is_one_here() -> None:
    def refuse() -> bytes:
        raise ToolchainError("LLVM refused the generated text: no")

    with pytest.raises(ToolchainError, match=r"^LLVM refused the generated text: no$"):
        in_child(refuse, "refusing")


def test_a_child_that_dies_is_an_error() -> None:
    def die() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    with pytest.raises(ToolchainError, match=r"^spirv64: LLVM ended its process \(Killed\)$"):
        in_child(die, "spirv64")


def test_modules_of_spirv_know_nothing_of_earlier_ones() -> None:
    """LLVM numbers the blocks of a module by the blocks of earlier ones, where these had the same addresses."""
    machine = target("opencl")
    with interning():
        kernel = parse_kernel(HEAD + KERNELS["sums of threads and groups"].strip("\n"))
        text = device_text({kernel.name: kernel}, facts(machine))
    made = {llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features) for _ in range(20)}
    assert len(made) == 1
