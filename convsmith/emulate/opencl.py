"""`OpenClStandIn`: kernels for OpenCL GPUs on another OpenCL device, such as the CPU through Intel's driver.

A kernel for a Xe GPU multiplies matrices of a sub-group with functions that only Xe GPUs have. For another device, its
code is linked with functions of the same names that compute the products by broadcasts; all other code is the code that
the GPU runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import Any

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact
from convsmith.diag.record import record
from convsmith.emulate.base import Emulator
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.intel_gpu.fragments import MATRICES
from convsmith.machine.registry import target
from convsmith.runtime.loading import LoadedCode
from convsmith.runtime.opencl import OpenClLibrary, OpenedDevice, check_device, device_name

__all__ = ["OPENCL", "OpenClStandIn"]

_BROADCAST = "_Z19sub_group_broadcastij"


@record(frozen=True)
class OpenClStandIn(Emulator):
    """Runs code for another OpenCL device on the device that this machine has."""

    @property
    def name(self) -> str:
        return f"OpenCL on {device_name()}"

    def runs(self, machine: Machine) -> bool:
        return machine.device is not None and machine.device.runtime == "opencl"

    def check(self, machine: Machine) -> None:
        check_device(machine.name, _without_products(machine.needs))

    def load(self, artifact: Artifact) -> LoadedCode:
        return _LinkedLibrary(artifact)


OPENCL = OpenClStandIn()


def _without_products(needs: Collection[str]) -> Collection[str]:
    return [name for name in needs if not name.startswith(MATRICES)]


class _LinkedLibrary(OpenClLibrary):
    """The SPIR-V of an artifact, linked with the matrix products that it calls."""

    def needed(self, needs: Collection[str]) -> Collection[str]:
        return _without_products(needs)

    def options(self) -> list[str]:
        """Return no options: registers are those of another device."""
        return []

    def build(self, gpu: OpenedDevice) -> Any:
        if MATRICES not in self.artifact.needs:
            return super().build(gpu)
        own = gpu.cl.Program(gpu.context, self.artifact.code)
        own.compile()
        return gpu.cl.link_program(gpu.context, [own, _compiled(gpu, self.artifact.target)])


@cache
def _compiled(gpu: OpenedDevice, name: str) -> Any:
    """Return the program with the matrix products of the target `name`, compiled for a device."""
    program = gpu.cl.Program(gpu.context, _products(target(name)))
    program.compile()
    return program


def _products(machine: Machine) -> bytes:
    """Return SPIR-V of the functions that multiply matrices for a target, for all of its rows that use the extension.
    """
    functions = dict.fromkeys(_definition(row) for row in machine.instructions if MATRICES in row.needs)
    head = f'target triple = "{machine.triple}"\ndeclare spir_func i32 @{_BROADCAST}(i32, i32) convergent nounwind\n'
    text = head + "\n".join(functions)
    return bytes(llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features))


def _definition(row: Instruction) -> str:
    """Return the function that replaces dpas: each lane adds the products of its column, in order of the terms. The
    layouts of the row say which lane has a term of the left factor.
    """
    c, a, b = row.operands
    head, types = row.declare, []
    for x in "abc":
        found = re.search(r"<(\d+) x (\w+)>(?= ?[,)])(?! %)", head[head.index("(") :])
        assert found is not None
        types.append(found.groups())
        at = head.index("(") + found.end()
        head = f"{head[:at]} %{x}{head[at:]}"
    (count_a, type_a), (count_b, type_b), (_, kind) = types
    lines: list[str] = []

    def put(text: str) -> str:
        lines.append(f"%v{len(lines)} = {text}")
        return f"%v{len(lines) - 1}"

    def word(of: str, count: str, type_: str, register: int) -> str:
        own = put(f"extractelement <{count} x {type_}> {of}, i32 {register}")
        if type_ == "float":
            return put(f"bitcast float {own} to i32")
        return own if type_ == "i32" else put(f"zext {type_} {own} to i32")

    def element(word: str, number: int, type_: str) -> str:
        if type_ == "f32":
            return put(f"bitcast i32 {word} to float")
        bits = dtype(type_).bits
        part = put(f"trunc i32 {put(f'lshr i32 {word}, {number * bits}')} to i{bits}")
        if type_ in ("s8", "u8"):
            return put(f"{'s' if type_ == 's8' else 'z'}ext i8 {part} to i32")
        if type_ == "f16":
            return put(f"fpext half {put(f'bitcast i16 {part} to half')} to float")
        wide = put(f"zext i16 {part} to i32")
        return put(f"bitcast i32 {put(f'shl i32 {wide}, 16')} to float")

    add, mul = ("fadd float", "fmul float") if kind == "float" else ("add i32", "mul i32")
    left, right, whole = a.layout.places(), b.layout.places(), "%c"
    for m in range(c.shape[0]):
        total = put(f"extractelement <8 x {kind}> %c, i32 {m}")
        for k in range(a.shape[1]):
            (register, lane, number), (own, _, place) = left[m, k], right[k, 0]
            given = word("%a", count_a, type_a, register)
            given = put(f"call spir_func i32 @{_BROADCAST}(i32 {given}, i32 {lane})")
            x, y = element(given, number, a.dtype), element(word("%b", count_b, type_b, own), place, b.dtype)
            total = put(f"{add} {total}, {put(f'{mul} {x}, {y}')}")
        whole = put(f"insertelement <8 x {kind}> {whole}, {kind} {total}, i32 {m}")
    name = head.removeprefix("declare").replace(" willreturn memory(none)", "")
    return "\n  ".join([f"define{name} {{", *lines, f"ret <8 x {kind}> {whole}"]) + "\n}"
