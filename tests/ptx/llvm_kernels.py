"""Kernels in LLVM's text, with which the interpreter of PTX is tested: small ones, and products through fragments.

A text may hold faults on purpose: a generator leaves out the statements that `without` names.
"""

from __future__ import annotations

import re
from functools import cache

from convsmith.codegen import llvm_bind

TRIPLE = "nvptx64-nvidia-cuda"
_DECLARE = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32)
declare i32 @llvm.nvvm.idp4a.s.s(i32, i32, i32)
declare float @llvm.fma.f32(float, float, float)
declare void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.cg.shared.global.16.s(ptr addrspace(3), ptr addrspace(1), i32)
declare void @llvm.nvvm.cp.async.commit.group()
declare void @llvm.nvvm.cp.async.wait.group(i32)
declare {i32, i32, i32, i32} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4.b16.p3(ptr addrspace(3))
declare {i32, i32} @llvm.nvvm.ldmatrix.sync.aligned.m8n8.x2.trans.b16.p3(ptr addrspace(3))
declare {float, float, float, float} @llvm.nvvm.mma.m16n8k16.row.col.f32.f32(<2 x half>, <2 x half>, <2 x half>, <2 x half>, <2 x half>, <2 x half>, float, float, float, float)
"""  # noqa: E501

BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
_COPY = "  call void @llvm.nvvm.cp.async.cg.shared.global.16.s"
_MATRICES = "llvm.nvvm.ldmatrix.sync.aligned.m8n8"


@cache
def ptx_of(body: str, threads: int, cpu: str = "sm_80", features: str = "+ptx86") -> str:
    """Return the PTX of an LLVM function ``k``, whose text is its parameters in brackets and its body in braces."""
    used = set(re.findall(r"@(llvm\.[\w.]+)", body))
    declared = "\n".join(x for x in _DECLARE.splitlines() if any(f"@{name}(" in x for name in used))
    shared = "\n".join(re.findall(r"^@.*$", body, re.M))
    function = re.sub(r"^@.*$", "", body, flags=re.M).strip()
    text = (
        f'target triple = "{TRIPLE}"\n{declared}\n{shared}\ndefine ptx_kernel void @k{function}\n'
        f'attributes #0 = {{ nounwind "nvvm.reqntid"="{threads}" }}\n'
    )
    return llvm_bind.assembly(text, TRIPLE, cpu, features)


REVERSE = """@s = internal addrspace(3) global [96 x i32] undef, align 16
(ptr addrspace(1) %a, ptr addrspace(1) %c) #0 {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %ap = getelementptr i32, ptr addrspace(1) %a, i32 %t
  %x = load i32, ptr addrspace(1) %ap
  %sp = getelementptr i32, ptr addrspace(3) @s, i32 %t
  store i32 %x, ptr addrspace(3) %sp
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  %back = sub i32 95, %t
  %rp = getelementptr i32, ptr addrspace(3) @s, i32 %back
  %y = load i32, ptr addrspace(3) %rp
  %cp = getelementptr i32, ptr addrspace(1) %c, i32 %t
  store i32 %y, ptr addrspace(1) %cp
  ret void
}"""
"""Reverses 96 numbers through shared memory."""

COLLATZ = """(ptr addrspace(1) %a, ptr addrspace(1) %c) #0 {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %ap = getelementptr i32, ptr addrspace(1) %a, i32 %t
  %x = load i32, ptr addrspace(1) %ap
  br label %test
test:
  %n = phi i32 [ %x, %0 ], [ %half, %even ], [ %more, %odd ]
  %steps = phi i32 [ 0, %0 ], [ %s1, %even ], [ %s2, %odd ]
  %last = icmp eq i32 %n, 1
  br i1 %last, label %end, label %step
step:
  %bit = and i32 %n, 1
  %is_odd = icmp ne i32 %bit, 0
  br i1 %is_odd, label %odd, label %even
even:
  %half = lshr i32 %n, 1
  %s1 = add i32 %steps, 1
  br label %test
odd:
  %triple = mul i32 %n, 3
  %more = add i32 %triple, 1
  %s2 = add i32 %steps, 1
  br label %test
end:
  %b1 = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %steps, i32 1, i32 31)
  %sum = add i32 %steps, %b1
  %cp = getelementptr i32, ptr addrspace(1) %c, i32 %t
  store i32 %sum, ptr addrspace(1) %cp
  ret void
}"""
"""Counts the steps of Collatz's sequence for each number, in lanes that diverge, and adds those of a neighbour."""


def copied_reverse(without: str = "") -> str:
    """Return `REVERSE` with an asynchronous copy in place of the load and store."""
    load, store = "  %x = load i32, ptr addrspace(1) %ap\n", "  store i32 %x, ptr addrspace(3) %sp\n"
    copy = {
        "copy": "  call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) %sp, ptr addrspace(1) %ap)\n",
        "commit": "  call void @llvm.nvvm.cp.async.commit.group()\n",
        "wait": "  call void @llvm.nvvm.cp.async.wait.group(i32 0)\n",
    }
    text = REVERSE.replace(load, "").replace(store, "".join(x for name, x in copy.items() if name != without))
    return text.replace(f"{BARRIER}\n", "") if without == "barrier" else text


def product_of_fragments(k: int, stages: int, without: str = "", swizzle: str = "both") -> str:
    """Return a kernel of one warp: ``c[16, 8] = a[16, k] * b[k, 8]`` in f16, f32, through `stages` of shared memory.

    Each step of 16 terms copies 16 x 16 halves of ``a``, swizzled, and 16 x 8 of ``b``, `stages` - 1 steps ahead.
    """
    steps = k // 16
    lines = [
        f"@a_s = internal addrspace(3) global [{stages * 256} x half] undef, align 128",
        f"@b_s = internal addrspace(3) global [{stages * 128} x half] undef, align 128",
        "(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %c) #0 {",
        "  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "  %row = lshr i32 %t, 1",
        "  %part = and i32 %t, 1",
        "  %turn0 = lshr i32 %row, 2",
        "  %turn = and i32 %turn0, 1",
        f"  %place = xor i32 %part, {'%turn' if swizzle in ('both', 'store') else '0'}",
        "  %to0 = mul i32 %row, 16",
        "  %to1 = mul i32 %place, 8",
        "  %to_a = add i32 %to0, %to1",
        f"  %from0 = mul i32 %row, {k}",
        "  %from1 = mul i32 %part, 8",
        "  %from_a = add i32 %from0, %from1",
        "  %is_b = icmp ult i32 %t, 16",
        "  %b_bytes = select i1 %is_b, i32 16, i32 0",
        "  %lane_row = and i32 %t, 15",
        "  %at_b = mul i32 %lane_row, 8",
        "  %lane_part = lshr i32 %t, 4",
        "  %lane_turn0 = lshr i32 %lane_row, 2",
        "  %lane_turn = and i32 %lane_turn0, 1",
        f"  %lane_place = xor i32 %lane_part, {'%lane_turn' if swizzle in ('both', 'load') else '0'}",
        "  %at0 = mul i32 %lane_row, 16",
        "  %at1 = mul i32 %lane_place, 8",
        "  %at_a = add i32 %at0, %at1",
    ]

    def copy(step: int) -> None:
        """Copy the factors of a step; lanes from 16 on copy nothing of ``b``."""
        s = step % stages
        lines.extend([
            f"  %i{step} = add i32 %from_a, {16 * step}",
            f"  %p{step} = getelementptr half, ptr addrspace(1) %a, i32 %i{step}",
            f"  %j{step} = add i32 %to_a, {256 * s}",
            f"  %q{step} = getelementptr half, ptr addrspace(3) @a_s, i32 %j{step}",
            f"{_COPY}(ptr addrspace(3) %q{step}, ptr addrspace(1) %p{step}, i32 16)",
            f"  %f{step} = add i32 %at_b, {128 * step}",
            f"  %u{step} = getelementptr half, ptr addrspace(1) %b, i32 %f{step}",
            f"  %g{step} = add i32 %at_b, {128 * s}",
            f"  %v{step} = getelementptr half, ptr addrspace(3) @b_s, i32 %g{step}",
            f"  br i1 %is_b, label %copy{step}, label %on{step}",
            f"copy{step}:",
            f"{_COPY}(ptr addrspace(3) %v{step}, ptr addrspace(1) %u{step}, i32 %b_bytes)",
            f"  br label %on{step}",
            f"on{step}:",
        ])  # fmt: skip

    commit = "  call void @llvm.nvvm.cp.async.commit.group()"
    for step in range(stages - 1):
        if step < steps:
            copy(step)
        lines.append(commit)
    sums = ["0.0"] * 4
    for step in range(steps):
        s = step % stages
        if without != "wait":
            lines.append(f"  call void @llvm.nvvm.cp.async.wait.group(i32 {stages - 2})")
        if without != "barrier":
            lines.append(BARRIER)
        if step + stages - 1 < steps and without != "order":
            copy(step + stages - 1)
        lines.append(commit)
        lines += [
            f"  %x{step} = add i32 %at_a, {256 * s}",
            f"  %y{step} = getelementptr half, ptr addrspace(3) @a_s, i32 %x{step}",
            f"  %l{step} = call {{i32, i32, i32, i32}} @{_MATRICES}.x4.b16.p3(ptr addrspace(3) %y{step})",
            f"  %z{step} = add i32 %at_b, {128 * s}",
            f"  %w{step} = getelementptr half, ptr addrspace(3) @b_s, i32 %z{step}",
            f"  %m{step} = call {{i32, i32}} @{_MATRICES}.x2.trans.b16.p3(ptr addrspace(3) %w{step})",
        ]
        factors = []
        for name, count in (("l", 4), ("m", 2)):
            kind = "{" + ", ".join(["i32"] * count) + "}"
            for n in range(count):
                lines += [
                    f"  %{name}{step}_{n} = extractvalue {kind} %{name}{step}, {n}",
                    f"  %h{name}{step}_{n} = bitcast i32 %{name}{step}_{n} to <2 x half>",
                ]
                factors.append(f"<2 x half> %h{name}{step}_{n}")
        if without == "fragment":
            factors[1], factors[2] = factors[2], factors[1]
        four = "{float, float, float, float}"
        given = ", ".join(factors + [f"float {x}" for x in sums])
        lines.append(f"  %d{step} = call {four} @llvm.nvvm.mma.m16n8k16.row.col.f32.f32({given})")
        lines += [f"  %d{step}_{n} = extractvalue {four} %d{step}, {n}" for n in range(4)]
        sums = [f"%d{step}_{n}" for n in range(4)]
        if step + stages - 1 < steps and without == "order":  # the copy overwrites what others may still read
            copy(step + stages - 1)
    lines += ["  %fr = lshr i32 %t, 2", "  %fr8 = mul i32 %fr, 8", "  %fc = and i32 %t, 3", "  %fc2 = mul i32 %fc, 2",
              "  %fo = add i32 %fr8, %fc2"]  # fmt: skip
    for n, x in enumerate(sums):
        lines += [
            f"  %fo{n} = add i32 %fo, {n % 2 + n // 2 * 64}",
            f"  %fp{n} = getelementptr float, ptr addrspace(1) %c, i32 %fo{n}",
            f"  store float {x}, ptr addrspace(1) %fp{n}",
        ]
    return "\n".join([*lines, "  ret void", "}"])
