"""The length of this machine's scalable vectors, which only its code knows."""

from __future__ import annotations

from functools import cache

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry, host_launch
from convsmith.codegen.launch import entry_text
from convsmith.machine.base import Machine
from convsmith.machine.registry import scalable_level
from convsmith.runtime.host_kernel import HostKernel

_CHUNK = """declare i64 @llvm.vscale.i64()
define void @units_chunk(ptr %block, i64 %who, i64 %n) {
  %out = load ptr, ptr %block
  %units = call i64 @llvm.vscale.i64()
  %word = trunc i64 %units to i32
  store i32 %word, ptr %out
  ret void
}"""


@cache
def scalable_bits() -> int:
    """Return the bits of a vector register of this machine, or of a group of registers that instructions name as a
    whole; 0 if its vectors are not scalable.
    """
    level = scalable_level()
    if level is None:
        return 0
    units = int(HostKernel(units_artifact(level)).run({"units": np.zeros(1, np.int32)})["units"][0])
    return units * level.vector_bits


def units_artifact(level: Machine) -> Artifact:
    """Return the code that writes ``vscale``, the units of a vector, to its argument."""
    declared: dict[str, None] = {}
    entry = entry_text("units", host_launch(1), "i64", declared)
    text = "\n".join((f'target triple = "{level.triple}"', *declared, _CHUNK, entry, "attributes #0 = { nounwind }"))
    code = llvm_bind.object_code(text, level.triple, level.cpu, level.features)
    signature = Entry("units", (Argument("units", "out", "s32", (1,), "a", 1),), host_launch(1))
    return Artifact(code, level.name, {"main": signature}, "units", "", needs=level.needs)
