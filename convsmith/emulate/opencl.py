"""`OpenClStandIn`: kernels for OpenCL GPUs on another OpenCL device, such as the CPU through Intel's driver.

A kernel for a Xe GPU multiplies matrices of a sub-group, and loads rows of matrices, with functions that only Xe GPUs
have. For another device, its code is linked with functions of the same names that compute the products by broadcasts,
and load element by element. Where threads wait at a split barrier, they stop at a whole one. All other code is the code
that the GPU runs.
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
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.intel_gpu.dialect import SPLIT_BARRIERS
from convsmith.machine.intel_gpu.fragments import MATRICES
from convsmith.machine.intel_gpu.messages import ROWS
from convsmith.machine.registry import target
from convsmith.runtime.loading import LoadedCode
from convsmith.runtime.opencl import OpenClLibrary, OpenedDevice, check_device, device_name

__all__ = ["OPENCL", "OpenClStandIn"]

_BROADCAST, _LANE = "_Z19sub_group_broadcastij", "_Z22get_sub_group_local_idv"


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
    return [name for name in needs if name not in (ROWS, SPLIT_BARRIERS) and not name.startswith(MATRICES)]


class _LinkedLibrary(OpenClLibrary):
    """The SPIR-V of an artifact with whole barriers, linked with the matrix products that it calls."""

    def needed(self, needs: Collection[str]) -> Collection[str]:
        return _of_device(needs)

    def options(self) -> list[str]:
        """Return no options: registers are those of another device."""
        return []

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
    """Return SPIR-V of the functions that multiply matrices and load rows of them for a target, for all of its rows
    that use the extensions.
    """
    functions = dict.fromkeys(_definition(row) for row in machine.instructions if MATRICES in row.needs)
    functions |= dict.fromkeys(_loader(row) for row in machine.messages if ROWS in row.needs)
    head = f'target triple = "{machine.triple}"\ndeclare spir_func i32 @{_BROADCAST}(i32, i32) convergent nounwind\n'
    head += f"declare spir_func i32 @{_LANE}() nounwind\n"
    text = head + "\n".join(functions)
    return bytes(llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features))


def _definition(row: Instruction) -> str:
    """Return the function that replaces dpas: each lane adds the products of its column, in order of the terms.

    As in the extension, whatever the layouts of the row are, the next terms of a row are in a lane's register of the
    left factor, or further rows in the lanes that one row leaves, and the registers of the right factor are adjacent
    along the terms.
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
    (rows, lanes), terms, whole = c.shape, a.shape[1], "%c"
    together, across, group = max(terms // lanes, 1), max(lanes // terms, 1), 32 // dtype(b.dtype).bits
    for m in range(rows):
        total = put(f"extractelement <8 x {kind}> %c, i32 {m}")
        for k in range(terms):
            given = word("%a", count_a, type_a, m // across)
            given = put(f"call spir_func i32 @{_BROADCAST}(i32 {given}, i32 {m % across * terms + k // together})")
            x = element(given, k % together, a.dtype)
            y = element(word("%b", count_b, type_b, k // group), k % group, b.dtype)
            total = put(f"{add} {total}, {put(f'{mul} {x}, {y}')}")
        whole = put(f"insertelement <8 x {kind}> {whole}, {kind} {total}, i32 {m}")
    name = head.removeprefix("declare").replace(" willreturn memory(none)", "")
    return "\n  ".join([f"define{name} {{", *lines, f"ret <8 x {kind}> {whole}"]) + "\n}"


def _loader(row: Instruction) -> str:
    """Return the function that replaces a message for rows of a matrix: each lane loads 16 bits of each row, or zeros
    beyond the matrix.
    """
    (name,) = re.findall(r"@(_Z\w+)\(", row.declare.splitlines()[0])
    size, registers = dtype(row.result.dtype).bytes, row.result.layout.registers
    lines = [
        f"%lane = call spir_func i32 @{_LANE}()", "%first = mul i32 %lane, 2",
        "%column = extractelement <2 x i32> %at, i32 0", "%row = extractelement <2 x i32> %at, i32 1",
        f"%start = mul i32 %column, {size}", "%x = add i32 %start, %first", "%inside = icmp ult i32 %x, %width",
    ]  # fmt: skip
    for r in range(registers):
        lines += [
            f"%y{r} = add i32 %row, {r}", f"%above{r} = icmp ult i32 %y{r}, %height",
            f"%here{r} = and i1 %inside, %above{r}", f"%to{r} = getelementptr i16, ptr %to, i32 {r}",
            f"store i16 0, ptr %to{r}", f"br i1 %here{r}, label %read{r}, label %next{r}", f"read{r}:",
            f"%skipped{r} = mul i32 %y{r}, %pitch", f"%offset{r} = add i32 %skipped{r}, %x",
            f"%p{r} = getelementptr i8, ptr addrspace(1) %a, i32 %offset{r}",
            f"%v{r} = load i16, ptr addrspace(1) %p{r}", f"store i16 %v{r}, ptr %to{r}", f"br label %next{r}",
            f"next{r}:",
        ]  # fmt: skip
    head = "ptr addrspace(1) %a, i32 %width, i32 %height, i32 %pitch, <2 x i32> %at, ptr %to"
    body = "\n  ".join(lines)
    return f"define spir_func void @{name}({head}) convergent nounwind {{\n  {body}\n  ret void\n}}"
