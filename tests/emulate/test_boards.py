"""Boards with Arm's processors for microcontrollers under qemu's system mode: results, faults, and stray writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated import check_emulated

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.emulate.boards import BOARDS
from convsmith.emulate.emulators import emulator_for
from convsmith.emulate.image import PAGE, Image
from convsmith.emulate.processors import Fault
from convsmith.emulate.qemu import THUMB
from convsmith.machine.arm32.levels import EXTENDED
from convsmith.machine.arm32.levels import LEVELS as ARM32
from convsmith.machine.base import Machine
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.object_code import ObjectCode
from convsmith.tune.candidates import default_config

LINE = "--dt=s8:s8:s8 --stag=axb --dtag=axb mb1ic8ih5oc8oh5kh3ph1"
ADDRESSES = """target triple = "thumbv7em-none-unknown-eabihf"
define void @store(ptr %block, i32 %part, i32 %parts) {
  %place = load ptr, ptr %block
  %old = load i32, ptr %place
  %new = add i32 %old, 1
  store i32 %new, ptr %place
  ret void
}
define void @trap(ptr %block, i32 %part, i32 %parts) {
  call void @llvm.trap()
  unreachable
}
declare void @llvm.trap()
"""
STEPS = """target triple = "thumbv7em-none-unknown-eabihf"
define void @steps(ptr %block, i32 %part, i32 %parts) {
entry:
  br label %loop
loop:
  %n = phi i32 [ 0, %entry ], [ %next, %loop ]
  %next = add i32 %n, 1
  store volatile i32 %next, ptr %block
  %ends = icmp eq i32 %next, %parts
  br i1 %ends, label %end, label %loop
end:
  ret void
}
"""
"""A step has four instructions: an addition, a comparison, a store and a branch."""


def needs_boards() -> None:
    try:
        BOARDS.program()
    except UnsupportedError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("machine", ARM32, ids=lambda t: t.name)
def test_a_kernel_is_exact(machine: Machine) -> None:
    needs_boards()
    problem = parse_problem(LINE).canonical()
    artifact = build_artifact(problem, default_config(problem, machine), machine)
    arrays = random_arrays(problem, 0)
    found = HostKernel(artifact, None, BOARDS.load(artifact)).run(arrays)
    check_emulated(problem, artifact, arrays)
    assert isinstance(found, dict) and found["dst"].any()


@pytest.mark.parametrize("board", BOARDS.processors)
def test_writes_outside_of_results_and_exceptions_are_faults(board: str) -> None:
    needs_boards()
    code = ObjectCode(llvm_bind.object_code(ADDRESSES, EXTENDED, "cortex-m4", ""))

    def run(function: str, at: int, right: str = "write") -> bytes | Fault:
        """Run a function that adds 1 to the word at a distance from the beginning of a page of zeros."""
        image = Image(PAGE, BOARDS.start)
        start = image.reserve(code.size, "execute", 128)
        image.write(start, code.at(start))
        place = image.place(bytes(PAGE), right, 4)  # type: ignore[arg-type]
        block = image.place((place + at).to_bytes(4, "little"), "read", 4)
        image.call(start + code.symbols[function] | 1, block)
        image.result(place, PAGE)
        return BOARDS.emulate(image, board)

    right = run("store", 8)
    assert isinstance(right, bytes) and np.frombuffer(right, np.int32).nonzero()[0].tolist() == [2]
    stray = Fault("write outside of results", None)
    assert [run("store", at) for at in (-4, PAGE)] == [stray, stray] and run("store", 8, "read") == stray
    assert run("trap", 0) == Fault("exception", None)


@pytest.mark.parametrize("board", BOARDS.processors)
def test_instructions_are_counted(board: str) -> None:
    """The count is exact to a tick of the board's timer, and unknown beyond its range."""
    needs_boards()
    code = ObjectCode(llvm_bind.object_code(STEPS, EXTENDED, "cortex-m4", ""))

    def counted(steps: int) -> int | None:
        image = Image(PAGE, BOARDS.start)
        start = image.reserve(code.size, "execute", 128)
        image.write(start, code.at(start))
        place = image.place(bytes(PAGE), "write", 4)
        image.call(BOARDS.counter(), place + 8)
        image.call(start + code.symbols["steps"] | 1, place, 0, steps)
        image.call(BOARDS.counter(), place + 8)
        image.result(place + 8, 8)
        found = BOARDS.emulate(image, board)
        assert isinstance(found, bytes)
        return BOARDS.counted(found, board)

    few, many = counted(1000), counted(1_000_000)
    assert few is not None and many is not None
    assert abs(many - few - 4 * 999_000) <= 10 and 4000 <= few < 4100
    assert counted(45_000_000) is None


def test_boards_stand_in_for_the_user_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a machine without both names both packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"package qemu-system-arm .* or qemu-user of version 8 or later"):
        emulator_for(ARM32[0])
    for name in ("qemu-arm", "qemu-system-arm"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho qemu version 7.2.0\n")
        program.chmod(0o755)
    assert emulator_for(ARM32[0]) is BOARDS
    (tmp_path / "qemu-arm").unlink()
    with pytest.raises(ToolchainError, match="ended without results, status 0, 0 of"):
        BOARDS.emulate(Image(PAGE, BOARDS.start), "mps2-an386")
    assert THUMB.runs(ARM32[0])
