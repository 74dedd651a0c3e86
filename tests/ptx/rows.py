"""The rows of a level of NVIDIA's GPUs as kernels, each of the lanes that the fragments of its row are spread over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from convsmith.arith.evaluate import evaluate
from convsmith.codegen import llvm_bind
from convsmith.emulate.ptx.tensor_copies import swizzled
from convsmith.ir.index import Var
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.nvidia.dialect import PIPELINES
from convsmith.machine.nvidia.warpgroups import LANES
from ptx.llvm_kernels import TRIPLE

_MOST = 256 * 128
"""Bytes of the largest factor in shared memory."""


def places_of(operand: Operand) -> np.ndarray:
    """Return the element of the operand, row after row, that each register, lane and element holds; of an operand in
    shared memory, the byte at which each element lies there.
    """
    if operand.file == "shared":
        return _shared_places(operand)
    layout = operand.layout
    lane, register, element = np.indices((layout.lanes, layout.registers, layout.elements))
    here = {Var("r"): register, Var("l"): lane, Var("e"): element}
    out = np.zeros(lane.shape, np.int64)
    for n, i in enumerate(layout.indices):
        out += evaluate(i, here) * prod(operand.shape[n + 1 :])
    return out.astype(np.int32)


def _shared_places(operand: Operand) -> np.ndarray:
    """Return the bytes at which elements lie: rows of 128 bytes, of which a longer row has several, swizzled."""
    rows = operand.shape[0]
    nbytes = np.dtype(dtype(operand.dtype).numpy).itemsize
    row, column = np.indices(operand.shape)
    across = 128 // nbytes
    places = column // across * rows * 128 + row * 128 + column % across * nbytes
    return swizzled(places, 128).astype(np.int32).ravel()


def _shared_factor(lines: list[str], operand: Operand) -> str:
    """Store an operand to shared memory, each lane some of its elements; return its descriptor."""
    name, one = operand.name, f"i{dtype(operand.dtype).bits}"
    for n in range(-(-operand.size // LANES)):
        at = f"%{name}{n}"
        lines += [
            f"{at}i = add i32 %t, {n * LANES}",
            f"{at}p = getelementptr i32, ptr addrspace(1) %at_{name}, i32 {at}i",
            f"{at}o = load i32, ptr addrspace(1) {at}p",
            f"{at}q = getelementptr {one}, ptr addrspace(1) %{name}, i32 {at}i",
            f"{at} = load {one}, ptr addrspace(1) {at}q",
            f"{at}s = getelementptr i8, ptr addrspace(3) @shared_{name}, i32 {at}o",
            f"store {one} {at}, ptr addrspace(3) {at}s",
        ]
    lead = operand.shape[0] * 128 >> 4 if operand.size > operand.shape[0] * 128 // dtype(operand.dtype).bytes else 1
    lines += [
        f"%{name}a = ptrtoint ptr addrspace(3) @shared_{name} to i64", f"%{name}w = lshr i64 %{name}a, 4",
        f"%{name}d = add i64 %{name}w, {lead << 16 | 64 << 32 | 1 << 62}",
    ]  # fmt: skip
    return f"%{name}d"


def _register(lines: list[str], operand: Operand, number: int) -> str:
    """Load a register of an operand in all lanes; return its value."""
    name, t, layout = operand.name, operand.dtype, operand.layout
    bits = {"f64": 64, "f32": 32, "s32": 32, "f16": 16, "bf16": 16}.get(t, 8)
    one = {"f64": "double", "f32": "float"}.get(t, f"i{bits}")
    count = layout.elements if layout.elements > 1 or layout.lanes > 1 or operand.size == 1 else operand.size
    value = "poison"
    for e in range(count):
        at = f"%{name}{number}_{e}"
        lines += [
            f"{at}i0 = mul i32 %t, {layout.registers * layout.elements}",
            f"{at}i = add i32 {at}i0, {number * layout.elements + e}",
            f"{at}p = getelementptr i32, ptr addrspace(1) %at_{name}, i32 {at}i",
            f"{at}o = load i32, ptr addrspace(1) {at}p",
            f"{at}q = getelementptr {one}, ptr addrspace(1) %{name}, i32 {at}o",
            f"{at} = load {one}, ptr addrspace(1) {at}q",
        ]
        if count > 1:
            lines.append(f"{at}v = insertelement <{count} x {one}> {value}, {one} {at}, i32 {e}")
            value = f"{at}v"
        else:
            value = at
    if count > 1 and operand.file == "lane":
        lines.append(f"%{name}{number} = bitcast <{count} x {one}> {value} to i32")
        value = f"%{name}{number}"
    return value


@cache
def rows_ptx(target: Machine, rows: tuple[Instruction, ...]) -> str:
    """Return the PTX of a kernel ``name(c, a, b, at_c, at_a, at_b)`` for each of the rows, which it applies once.

    ``at_x`` holds, for each lane, register and element, the element's place in ``x``.
    """
    declared = dict.fromkeys(line for row in rows for line in row.declare.splitlines())
    parts = [_kernel(row) for row in rows]
    number = "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
    if any(x.file == "shared" for row in rows for x in row.operands):
        calls = PIPELINES.published, PIPELINES.before, PIPELINES.commit, PIPELINES.wait
        barrier = "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)"
        factors = (f"@shared_{x} = internal addrspace(3) global [{_MOST} x i8] undef, align 1024" for x in "ab")
        declared |= dict.fromkeys((barrier, *(line for call in calls for line in call.declare), *factors))
    text = "\n".join([f'target triple = "{TRIPLE}"', *declared, number, *parts])
    return llvm_bind.assembly(text, target.triple, target.cpu, target.features)


def _kernel(row: Instruction) -> str:
    lines: list[str] = ["%t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()"]
    registers: dict[str, Sequence[str]] = {}
    spread = {x.name: as_lanes(x) for x in row.operands}
    for x in spread.values():
        if x.file == "shared":
            registers[x.name] = [_shared_factor(lines, x)]
        else:
            registers[x.name] = [_register(lines, x, n) for n in range(x.layout.registers)]
    in_shared = any(x.file == "shared" for x in spread.values())
    if in_shared:
        lines += [PIPELINES.published.effect, "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"]
        lines.append(PIPELINES.before.effect)

    def put(expression: str) -> str:
        lines.append(f"%x{len(lines)} = {expression}")
        return f"%x{len(lines) - 1}"

    results = row.emit(put, registers)
    if in_shared:
        lines += [PIPELINES.commit.effect, PIPELINES.wait.effect.format(pending=0)]
    c = spread["c"]
    one = {"f64": "double", "f32": "float"}.get(c.dtype, "i32")
    for n, value in enumerate(results):
        lines.append(f"store {one} {value}, ptr addrspace(1) %c{n}_0q")
    params = ", ".join(f"ptr addrspace(1) %{x}" for x in ("c", "a", "b", "at_c", "at_a", "at_b"))
    body = "\n  ".join([*lines, "ret void"])
    return (
        f'define ptx_kernel void @{row.name}({params}) nounwind "nvvm.reqntid"="{c.layout.lanes}" {{\n  {body}\n}}\n'
    )


def load_ptx(target: Machine, row: Instruction) -> str:
    """Return the PTX of a kernel ``name(out, rows)`` that loads matrices: lanes give rows of 16 bytes, which the group
    copies to shared memory first, and store their registers.
    """
    assert row.exchange is not None
    count = row.exchange.registers
    lines = [
        "%t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()", f"%line = urem i32 %t, {8 * count}",
        "%from = getelementptr <4 x i32>, ptr addrspace(1) %rows, i32 %line",
        "%to = getelementptr <4 x i32>, ptr addrspace(3) @memory, i32 %line",
        "%line16 = load <4 x i32>, ptr addrspace(1) %from",
        f"%own = icmp ult i32 %t, {8 * count}", "br i1 %own, label %copy, label %load", "copy:",
        "store <4 x i32> %line16, ptr addrspace(3) %to", "br label %load", "load:",
        "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",
    ]  # fmt: skip

    def put(expression: str) -> str:
        lines.append(f"%x{len(lines)} = {expression}")
        return f"%x{len(lines) - 1}"

    for n, value in enumerate(row.emit(put, {"a": ["%to"]})):
        place = put(f"mul i32 %t, {count}")
        place = put(f"add i32 {place}, {n}")
        place = put(f"getelementptr i32, ptr addrspace(1) %out, i32 {place}")
        lines.append(f"store i32 {value}, ptr addrspace(1) {place}")
    declared = (
        f'target triple = "{TRIPLE}"', row.declare, "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)",
        "@memory = internal addrspace(3) global [32 x <4 x i32>] undef, align 16",
    )  # fmt: skip
    body = "\n  ".join([*lines, "ret void"])
    params = ", ".join(f"ptr addrspace(1) align 16 %{x}" for x in ("out", "rows"))
    head = f"define ptx_kernel void @{row.name}({params}) nounwind"
    text = "\n".join([*declared, f'{head} "nvvm.reqntid"="32" {{\n  {body}\n}}\n'])
    return llvm_bind.assembly(text, target.triple, target.cpu, target.features)


def as_lanes(operand: Operand) -> Operand:
    """Return an operand of a fragment as it is, and one of a scalar row as the registers of one lane."""
    if operand.file != "vector":
        return operand
    return replace(operand, layout=FragmentLayout(("e",), 1, elements=operand.size))
