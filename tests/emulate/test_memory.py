"""Facts of a call that an emulator is given: the memory that an entry writes, and the memory that holds nothing yet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ptx.kernels import kernel_ptx

import convsmith as cs
from convsmith.codegen.artifact import ABI_VERSION, Artifact, Entry
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.launch import launch_of
from convsmith.diag.errors import ToolchainError, UsageError
from convsmith.emulate.base import EmulatedCode, Memory
from convsmith.emulate.ptx.emulator import PTX
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target
from convsmith.runtime.host_kernel import HostKernel


def seen(artifact: Artifact, given: dict[str, np.ndarray]) -> dict[str, Memory]:
    """The memory of each entry of a call, which computes nothing."""
    found: dict[str, Memory] = {}
    HostKernel(artifact, None, EmulatedCode(artifact, lambda entry, memory: found.update({entry.symbol: memory}))).run(
        given
    )
    return found


def test_packed_memory_is_blank_until_an_entry_has_written_it() -> None:
    artifact = cs.compile("--stag=axb --dtag=axb mb1ic3ih5oc4kh3ph1", target="generic", threads=1).artifact
    assert artifact is not None
    x = np.zeros((1, 5, 5, 3), np.float32).transpose(0, 3, 1, 2)
    entries = seen(artifact, {"src": x, "wei": np.zeros((4, 3, 3, 3), np.float32)})
    pack, main = (entries[artifact.entries[name].symbol].pieces for name in ("pack", "main"))
    (packed,) = (name for name, piece in main.items() if piece.argument.role == "packed")
    assert (pack[packed].is_written, pack[packed].is_blank) == (True, True)
    assert (main[packed].is_written, main[packed].is_blank) == (False, False)
    assert {name for name, piece in (*pack.items(), *main.items()) if piece.is_written} == {packed, "dst"}
    assert not any(piece.is_blank for name, piece in main.items())


def test_memory_between_entries_is_blank_for_the_first() -> None:
    line = "--stag=axb mb1ic4ih6oc8kh1ph0 -> --dtag=axb mb1ic8ih6oc4kh3ph1"
    artifact = cs.compile(line, target="sm_80").artifact
    assert artifact is not None
    arrays = {t.name: np.zeros(t.shape, np.float32) for t in cs.compile(line, target="sm_80").arguments}
    entries = seen(artifact, {name: x for name, x in arrays.items() if "dst" not in name})
    shared = [(name, piece.is_blank) for memory in entries.values() for name, piece in memory.pieces.items()
              if piece.argument.role == "shared"]  # fmt: skip
    assert len(shared) == 2 and [blank for _, blank in shared] == [True, False]


def test_artifacts_of_another_version_are_refused() -> None:
    artifact = cs.compile("mb1ic3ih5oc4kh3ph1", target="sm_80").artifact
    assert artifact is not None
    with pytest.raises(UsageError, match=f"ABI version 99; this convsmith runs {ABI_VERSION}"):
        PTX.load(replace(artifact, abi=99))


COPIES = """\
kernel copies(a: f32[32], c: f32[32])
  for t in 0 .. 32 #group:
    c[t] = a[t]
    {}
"""


@pytest.mark.parametrize("line, legal", [("c[t] = a[t]", True), ("a[t] = 1.0", False)])
def test_an_input_is_not_written_in_the_interpreter_of_ptx(line: str, legal: bool) -> None:
    machine, kernel = target("sm_80"), parse_kernel(COPIES.format(line))
    arguments = tuple(buffer_argument(b, "in" if b.name == "a" else "out") for b in kernel.params)
    entry = Entry(kernel.name, arguments, launch_of(kernel, 1, machine))
    artifact = Artifact(b"", machine.name, {"main": entry}, "copies", "", notes={"ptx": kernel_ptx(kernel, machine)})
    run = HostKernel(artifact, None, PTX.load(artifact)).run
    x = np.arange(32, dtype=np.float32)
    if legal:
        np.testing.assert_array_equal(run({"a": x})["c"], x)
        return
    with pytest.raises(ToolchainError, match="entry copies of kernel 'copies' writes its input a"):
        run({"a": x})
