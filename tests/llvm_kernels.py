"""Artifacts for tests of the run time, from LLVM text written by hand: no other part of the compiler takes part.

The kernel is a depthwise 1x1 convolution on channels-last memory, with channels stored backwards in the packed
weights so that packing shows: dst[i] = src[i] * packed[C - 1 - i % C] (+ bia[i % C]). With scratch memory, each chunk
takes its products through its own part of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from llvmlite import binding as llvm

from convsmith.codegen.artifact import FINITE, Argument, Artifact, Entry, host_launch
from convsmith.problem.tensor import HOLDS

_OPENMP = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""

_PART = """
define internal void @{symbol}_part(ptr %block) nounwind {{
  %t = call i32 @omp_get_thread_num()
  %n = call i32 @omp_get_num_threads()
  %t64 = sext i32 %t to i64
  %n64 = sext i32 %n to i64
  call void @{symbol}_chunk(ptr %block, i64 %t64, i64 %n64)
  ret void
}}
"""


def object_code(text: str) -> bytes:
    """LLVM text as an ELF object for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_default_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2)
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    module.verify()
    return machine.emit_object(module)


def whole(symbol: str, threads: int) -> str:
    """The function that runs all chunks."""
    if threads == 1:
        part, call = "", f"call void @{symbol}_chunk(ptr %block, i64 0, i64 1)"
    else:
        part = _PART.format(symbol=symbol)
        call = f"call void @GOMP_parallel(ptr @{symbol}_part, ptr %block, i32 {threads}, i32 0)"
    return f"{part}\ndefine void @{symbol}(ptr %block) nounwind {{\n  {call}\n  ret void\n}}\n"


def chunk(symbol: str, total: int, loads: tuple[str, ...], body: str) -> str:
    """A chunk function: `body` once for each %i of its part; `loads` names the pointers of the block, in order."""
    pointers = "\n".join(
        f"  %at{k} = getelementptr ptr, ptr %block, i64 {k}\n  %{name} = load ptr, ptr %at{k}"
        for k, name in enumerate(loads)
    )
    return f"""
define void @{symbol}_chunk(ptr %block, i64 %tid, i64 %n) nounwind {{
entry:
{pointers}
  %a = mul i64 %tid, {total}
  %lo = sdiv i64 %a, %n
  %b = add i64 %a, {total}
  %hi = sdiv i64 %b, %n
  br label %head
head:
  %i = phi i64 [ %lo, %entry ], [ %next, %loop ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %loop, label %exit
loop:
{body}
  %next = add i64 %i, 1
  br label %head
exit:
  ret void
}}
"""


@functools.cache
def depthwise(
    shape: tuple[int, ...] = (2, 5, 3, 7),
    *,
    threads: int = 1,
    bias: bool = False,
    scratch: bool = False,
    layout: str = "axb",
    needs_finite: bool = False,
    packing: str = "backwards",
    in_place: bool = False,
) -> Artifact:
    """The depthwise kernel for activations of a logical shape, in a layout whose fastest lanes are channels."""
    block = int("".join(filter(str.isdigit, layout)) or 0)
    channels = shape[1]
    lanes = -(-channels // block) * block if block else channels
    total = math.prod(shape[:1] + shape[2:]) * lanes
    per_row = block or channels
    wei_shape = (channels, 1) + (1,) * (len(shape) - 2)
    axes = "dhw"[5 - len(shape) :]
    src = Argument("src", "in", "f32", shape, layout, total, ("mb", "ic", *("i" + a for a in axes)), holds="src")
    dst = Argument("dst", "out", "f32", shape, layout, total, ("mb", "oc", *("o" + a for a in axes)), holds="dst")
    wei_dims = ("oc", "ic", *("k" + a for a in axes))
    wei = Argument("wei", "in", "f32", wei_shape, "abx", channels, wei_dims, holds="wei")
    packed = Argument("wei_p", "packed", "f32", wei_shape, "abx", channels, of="wei")
    arguments = [src, wei if in_place else packed]
    names = ["src", "packed"]
    if bias:
        arguments.append(Argument("bia", "in", "f32", (channels,), "a", channels, ("oc",), holds="bia"))
        names.append("bia")
    arguments.append(dst)
    names.append("dst")
    if scratch:
        arguments.append(Argument("scratch", "scratch", "f32", (total,), "a", total))
        names.append("scratch")
    # With blocks of channels (one block in these tests), lanes beyond the last channel are written as zero.
    order = f"%c = srem i64 %i, {per_row}\n  %inside = icmp slt i64 %c, {channels}\n"
    order += f"  %cc = select i1 %inside, i64 %c, i64 0\n  %r = sub i64 {channels - 1}, %cc"
    body = f"""
  {order}
  %ps = getelementptr float, ptr %src, i64 %i
  %x = load float, ptr %ps, align 4
  %pw = getelementptr float, ptr %packed, i64 {"%cc" if in_place else "%r"}
  %w = load float, ptr %pw, align 4
  %p0 = fmul float %x, %w
"""
    if scratch:
        body += f"""
  %base = mul i64 %tid, {total}
  %si = add i64 %base, %i
  %pt = getelementptr float, ptr %scratch, i64 %si
  store volatile float %p0, ptr %pt, align 4
  %p1 = load volatile float, ptr %pt, align 4
"""
    product = "%p1" if scratch else "%p0"
    if bias:
        body += f"""
  %pb = getelementptr float, ptr %bia, i64 %cc
  %bv = load float, ptr %pb, align 4
  %sum = fadd float {product}, %bv
"""
        product = "%sum"
    body += f"""
  %y = select i1 %inside, float {product}, float 0.0
  %pd = getelementptr float, ptr %dst, i64 %i
  store float %y, ptr %pd, align 4
"""
    text = _OPENMP + chunk("k", total, tuple(names), body) + whole("k", threads)
    pack_body = f"""
  %r = sub i64 {channels - 1}, %i
  %ps = getelementptr float, ptr %wei, i64 %i
  %x = load float, ptr %ps, align 4
  %pd = getelementptr float, ptr %packed, i64 %r
  store float %x, ptr %pd, align 4
"""
    entries = {"main": Entry("k", tuple(arguments), host_launch(threads))}
    if not in_place:
        text += chunk("p", channels, ("wei", "packed"), pack_body) + whole("p", 1)
        entries["pack"] = Entry("p", (wei, packed), packing=packing)
    return Artifact(
        object_code(text), "generic", entries, f"g{channels}...", "by hand",
        limits={"wei": FINITE} if needs_finite else {},
    )  # fmt: skip


def expected(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Return the result of the depthwise kernel for logical arrays."""
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    with np.errstate(invalid="ignore"):
        y = x * w.reshape(per_channel)
    return y if bias is None else y + bias.reshape(per_channel)


def data(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Small integers as f32: every kernel of these tests is exact on them."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def channels_last(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """A logical (N, C, *spatial) array in channels-last memory."""
    n, c, *spatial = shape
    return np.moveaxis(data((n, *spatial, c), seed), -1, 1)


def weights(channels: int, rank: int = 4, seed: int = 1) -> np.ndarray:
    """Weights of the depthwise kernel."""
    return data((channels, 1) + (1,) * (rank - 2), seed)


def pointwise(symbol: str, arguments: tuple[Argument, ...], body: str) -> str:
    """An entry that computes %y from the values %NAME of its arguments, for each element of the last one.

    An argument with fewer elements than the result has one for each channel (dim 1 of three), or one for all.
    """
    *_, result = arguments
    lines = []
    for a in arguments:
        kind = "float" if a.dtype == "f32" else "i32"
        lines += [f"%c{a.name} = udiv i64 %i, {result.shape[-1]}", f"%r{a.name} = urem i64 %c{a.name}, {a.size}"]
        place = "%i" if a.size == result.size else f"%r{a.name}"
        lines += [f"%at.{a.name} = getelementptr {kind}, ptr %{a.name}.p, i64 {place}"]
        if a.role != "out":
            lines += [f"%{a.name} = load {kind}, ptr %at.{a.name}, align 4"]
    lines += [body, f"store float %y, ptr %at.{result.name}, align 4"]
    names = tuple(f"{a.name}.p" for a in arguments)
    return chunk(symbol, result.size, names, "\n".join(lines)) + whole(symbol, 1)


def tensor(name: str, role: str, shape: tuple[int, ...], default: tuple[float, ...] | None = None) -> Argument:
    """A plain argument, f32, or s32 for zero points."""
    holds = next(x for x in HOLDS if name.removeprefix("diff_").startswith(x))
    dtype = "s32" if holds == "zero_points" else "f32"
    layout = "abcdef"[: len(shape)]
    return Argument(name, role, dtype, shape, layout, math.prod(shape), default=default, holds=holds)  # type: ignore[arg-type]


QUANTISED_SHAPE = (2, 3, 4)


@functools.cache
def quantised(add: bool = False, default: tuple[float, ...] | None = (2.0,), bias: bool = False) -> Artifact:
    """dst = src * wei * scales_src * scales_wei + zero_points_dst (+ bia) (+ dst), wei being one number.

    By default scales_src is `default`, scales_wei 1, 2, 3 over the channels, and zero_points_dst 0.
    """
    arguments = (
        tensor("src", "in", QUANTISED_SHAPE),
        tensor("wei", "in", (1, 1, 1)),
        *((tensor("bia", "in", (3,)),) if bias else ()),
        tensor("scales_src", "in", (1,), default),
        tensor("scales_wei", "in", (3,), (1.0, 2.0, 3.0)),
        tensor("zero_points_dst", "in", (1,), (0,)),
        tensor("dst", "inout" if add else "out", QUANTISED_SHAPE),
    )
    body = f"""
      %t0 = fmul float %src, %wei
      %t1 = fmul float %t0, %scales_src
      %t2 = fmul float %t1, %scales_wei
      %t3 = sitofp i32 %zero_points_dst to float
      %t4 = fadd float %t2, %t3
      %t5 = fadd float %t4, {"%bia" if bias else "0.0"}
      %y = fadd float %t5, {"%dst" if add else "0.0"}
    """
    code = object_code(pointwise("q", arguments, body))
    return Artifact(code, "generic", {"main": Entry("q", arguments)}, "quantised", "by hand")


@functools.cache
def gradients(packed: bool = False, both: bool = False, needs_finite: bool = False) -> Artifact:
    """Entry "main": diff_wei = src * diff_dst; then "bias": diff_bia = diff_wei + 1, or + diff_dst with `both`.

    With `packed`, "main" reads twice diff_dst, which the entry "pack" makes.
    """
    shape = (1, 2, 3)
    src, diff_dst = tensor("src", "in", shape), tensor("diff_dst", "in", shape)
    diff_wei, diff_bia = tensor("diff_wei", "out", shape), tensor("diff_bia", "out", shape)
    diff_dst_p = Argument("diff_dst_p", "packed", "f32", (6,), "a", 6, of="diff_dst")
    seen = diff_dst_p if packed else diff_dst
    main = (src, seen, diff_wei)
    second = (dataclasses.replace(diff_wei, role="in"), *((diff_dst,) if both else ()), diff_bia)
    text = pointwise("m", main, f"%y = fmul float %src, %{seen.name}")
    text += pointwise("b", second, f"%y = fadd float %diff_wei, {'%diff_dst' if both else '1.0'}")
    entries = {"main": Entry("m", main), "bias": Entry("b", second)}
    if packed:
        out = dataclasses.replace(diff_dst_p, shape=shape, layout="abc")
        text += pointwise("p", (diff_dst, out), "%y = fadd float %diff_dst, %diff_dst").replace(
            "%diff_dst_p = load float, ptr %at.diff_dst_p, align 4", ""
        )
        entries["pack"] = Entry("p", (diff_dst, diff_dst_p), packing="twice")
    return Artifact(
        object_code(text), "generic", entries, "gradients", "by hand",
        limits={"diff_dst": FINITE} if needs_finite else {},
    )  # fmt: skip


MEMORY_FUNCTIONS = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind {
  %src = load ptr, ptr %block
  %at = getelementptr ptr, ptr %block, i64 1
  %dst = load ptr, ptr %at
  %third = getelementptr i8, ptr %dst, i64 12
  %bytes = mul i64 %n, 64
  %few = mul i64 %n, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %dst, ptr %src, i64 %bytes, i1 false)
  call void @llvm.memset.p0.i64(ptr %third, i8 1, i64 %few, i1 false)
  ret void
}
"""
"""Calls of functions of the C library: copies 64 bytes a task, then sets 8 of them from the third element on."""
