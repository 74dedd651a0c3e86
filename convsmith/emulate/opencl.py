"""`OpenClStandIn`: kernels for OpenCL GPUs on another OpenCL device, such as the CPU through Intel's driver.

A kernel for a Xe GPU multiplies matrices of a sub-group with functions that only Xe GPUs have. For another device, its
code is linked with functions of the same names that compute the products by broadcasts. Where threads wait at a split
barrier, they stop at a whole one. All other code is the code that the GPU runs.
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
from convsmith.emulate.spirv import with_whole_barriers
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.machine.intel_gpu.dialect import SPLIT_BARRIERS
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
        check_device(machine.name, _of_device(machine.needs))

    def load(self, artifact: Artifact) -> LoadedCode:
        return _LinkedLibrary(artifact)


OPENCL = OpenClStandIn()


def _of_device(needs: Collection[str]) -> Collection[str]:
    """Return the extensions that the device itself must have."""
    return [name for name in needs if name not in (MATRICES, SPLIT_BARRIERS)]


class _LinkedLibrary(OpenClLibrary):
    """The SPIR-V of an artifact with whole barriers, linked with the matrix products that it calls."""

    def needed(self, needs: Collection[str]) -> Collection[str]:
        return _of_device(needs)

    def build(self, gpu: OpenedDevice) -> Any:
        own = gpu.cl.Program(gpu.context, with_whole_barriers(self.artifact.code))
        if MATRICES not in self.artifact.needs:
            return own.build()
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
    """Return the function that replaces dpas: each lane adds the products of its column, in order of the terms.

    As in the extension, the next terms of a row are in a lane's register of the left factor, and the registers of the
    right factor are adjacent along the terms.
    """
    c, a, b = row.operands
    lanes, terms = c.shape[1], a.shape[1]
    bits = 8 if terms == 32 else 16
    together = terms // lanes
    head = re.sub(r"<8 x i(16|32)>, <8 x i32>, <8 x (\w+)>", r"<8 x i\1> %a, <8 x i32> %b, <8 x \2> %c", row.declare)
    lines: list[str] = []

    def put(text: str) -> str:
        lines.append(f"%v{len(lines)} = {text}")
        return f"%v{len(lines) - 1}"

    def element(word: str, number: int, type_: str) -> str:
        moved = put(f"lshr i32 {word}, {number * bits}")
        part = put(f"trunc i32 {moved} to i{bits}")
        if type_ in ("s8", "u8"):
            return put(f"{'s' if type_ == 's8' else 'z'}ext i8 {part} to i32")
        if type_ == "f16":
            return put(f"fpext half {put(f'bitcast i16 {part} to half')} to float")
        wide = put(f"zext i16 {part} to i32")
        return put(f"bitcast i32 {put(f'shl i32 {wide}, 16')} to float")

    kind = "float" if c.dtype == "f32" else "i32"
    add, mul = ("fadd float", "fmul float") if kind == "float" else ("add i32", "mul i32")
    whole = "%c"
    for m in range(8):
        total = put(f"extractelement <8 x {kind}> %c, i32 {m}")
        own = put(f"extractelement <8 x i{bits * together}> %a, i32 {m}")
        own = own if bits * together == 32 else put(f"zext i16 {own} to i32")
        for k in range(terms):
            lane = put(f"call spir_func i32 @{_BROADCAST}(i32 {own}, i32 {k // together})")
            word = put(f"extractelement <8 x i32> %b, i32 {k * bits // 32}")
            x, y = element(lane, k % together, a.dtype), element(word, k % (32 // bits), b.dtype)
            total = put(f"{add} {total}, {put(f'{mul} {x}, {y}')}")
        whole = put(f"insertelement <8 x {kind}> {whole}, {kind} {total}, i32 {m}")
    name = head.removeprefix("declare").replace(" willreturn memory(none)", "")
    return "\n  ".join([f"define{name} {{", *lines, f"ret <8 x {kind}> {whole}"]) + "\n}"
