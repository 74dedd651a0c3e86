"""A convolution of sm_90a in LLVM's text: TMA im2col loads, a pipeline of mbarriers, products of a warp group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.emulate.ptx.tensor_copies import PtxTensorMap
from ptx.llvm_kernels import TRIPLE

ROWS, CHANNELS, COLUMNS = 64, 64, 16
"""Pixels of a group, channels of a step, and output channels."""
THREADS = 160
_A, _B = ROWS * 128, COLUMNS * 128
_SUMS = COLUMNS // 2
_DECLARE = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.mbarrier.init.shared(ptr addrspace(3), i32)
declare i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta(ptr addrspace(3), i32)
declare i64 @llvm.nvvm.mbarrier.arrive.scope.cta.space.cta(ptr addrspace(3), i32)
declare i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta(ptr addrspace(3), i32)
declare void @llvm.nvvm.cp.async.bulk.tensor.g2s.tile.2d(ptr addrspace(7), ptr addrspace(3), ptr, i32, i32, i16, i64, i1, i1, i32)
declare void @llvm.nvvm.cp.async.bulk.tensor.g2s.im2col.4d(ptr addrspace(7), ptr addrspace(3), ptr, i32, i32, i32, i32, i16, i16, i16, i64, i1, i1, i32)
declare void @llvm.nvvm.fence.mbarrier_init.release.cluster()
declare void @llvm.nvvm.wgmma.fence.sync.aligned()
declare void @llvm.nvvm.wgmma.commit_group.sync.aligned()
declare void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64)
"""  # noqa: E501


@dataclass(frozen=True)
class Layer:
    """A convolution of images (N, H, W, C) by weights (16, R, S, C)."""

    n: int
    h: int
    w: int
    c: int
    r: int = 3
    s: int = 3
    stride: int = 1
    dilation: int = 1
    pad: int = 1

    @property
    def p(self) -> int:
        """Rows of the result."""
        return (self.h + 2 * self.pad - (self.r - 1) * self.dilation - 1) // self.stride + 1

    @property
    def q(self) -> int:
        """Columns of the result."""
        return (self.w + 2 * self.pad - (self.s - 1) * self.dilation - 1) // self.stride + 1

    @property
    def pixels(self) -> int:
        """Pixels of the result."""
        return self.n * self.p * self.q

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """Rows, columns and first channels of the filter that the steps multiply."""
        return [(r, s, c) for r in range(self.r) for s in range(self.s) for c in range(0, self.c, CHANNELS)]


def maps(x: Layer, swizzle: int = 128) -> tuple[PtxTensorMap, PtxTensorMap]:
    """Return the tensor maps of the images (argument 2) and of the weights (argument 3)."""
    upper = [x.pad - (taps - 1) * x.dilation for taps in (x.s, x.r)]
    images = PtxTensorMap(
        2, 2, (x.c, x.w, x.h, x.n), (2 * x.c, 2 * x.c * x.w, 2 * x.c * x.w * x.h), (CHANNELS,), swizzle, ROWS,
        (-x.pad, -x.pad), (upper[0], upper[1]), (x.stride, x.stride),
    )  # fmt: skip
    terms = x.r * x.s * x.c
    return images, PtxTensorMap(3, 2, (terms, COLUMNS), (2 * terms,), (CHANNELS, COLUMNS), swizzle)


def reference(x: Layer, images: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sums of a convolution, a row for each pixel."""
    padded = np.pad(images.astype(np.float64), ((0, 0), (x.pad, x.pad), (x.pad, x.pad), (0, 0)))
    out = np.zeros((x.n, x.p, x.q, COLUMNS))
    for r in range(x.r):
        for s in range(x.s):
            rows, columns = np.arange(x.p) * x.stride + r * x.dilation, np.arange(x.q) * x.stride + s * x.dilation
            out += padded[:, rows][:, :, columns] @ weights[:, r, s].astype(np.float64).T
    return out.reshape(-1, COLUMNS).astype(np.float32)


class _Text:
    """Lines of LLVM text with names of values."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def put(self, expression: str) -> str:
        """Add an expression; return the name of its value."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {expression}")
        return f"%v{self.count}"

    def do(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def label(self, name: str) -> None:
        self.lines += [f"  br label %{name}", f"{name}:"]

    def wait(self, barrier: str, parity: int) -> None:
        """Add a loop that waits for a phase of a barrier."""
        self.count += 1
        again, on = f"wait{self.count}", f"on{self.count}"
        self.label(again)
        ended = self.put(f"call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta({barrier}, i32 {parity})")
        self.lines += [f"  br i1 {ended}, label %{on}, label %{again}", f"{on}:"]


def _shared(name: str, offset: int) -> str:
    return f"ptr addrspace(3) getelementptr (i8, ptr addrspace(3) @{name}, i64 {offset})"


@cache
def hopper_ptx(x: Layer, stages: int = 2, fault: str = "") -> str:
    """Return the PTX of a kernel ``k(images map, weights map, images, weights, sums)``; `fault` names a wrong line."""
    t = _Text()
    tid = t.put("call i32 @llvm.nvvm.read.ptx.sreg.tid.x()")
    group = t.put("call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()")
    t.do(f"br i1 {t.put(f'icmp eq i32 {tid}, 0')}, label %init, label %ready")
    t.lines.append("init:")
    for stage in range(stages):
        t.do(f"call void @llvm.nvvm.mbarrier.init.shared({_shared('full', 8 * stage)}, i32 1)")
        t.do(f"call void @llvm.nvvm.mbarrier.init.shared({_shared('free', 8 * stage)}, i32 4)")
    t.do("call void @llvm.nvvm.fence.mbarrier_init.release.cluster()")
    t.label("ready")
    if fault != "init":
        t.do("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
    t.do(f"br i1 {t.put(f'icmp ult i32 {tid}, 128')}, label %consume, label %produce")
    t.lines.append("produce:")
    t.do(f"br i1 {t.put(f'icmp eq i32 {tid}, 128')}, label %load, label %end")
    t.lines.append("load:")
    _produce(t, x, group, stages, fault)
    t.do("br label %end")
    t.lines.append("consume:")
    _consume(t, x, tid, group, stages, fault)
    t.lines += ["end:", "  ret void"]
    grid = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
    arrays = "ptr addrspace(1) %images, ptr addrspace(1) %weights, ptr addrspace(1) %sums"
    text = "\n".join([
        f'target triple = "{TRIPLE}"', _DECLARE,
        f"@a = internal addrspace(3) global [{stages * _A} x i8] undef, align 1024",
        f"@b = internal addrspace(3) global [{stages * _B} x i8] undef, align 1024",
        f"@full = internal addrspace(3) global [{stages} x i64] undef, align 8",
        f"@free = internal addrspace(3) global [{stages} x i64] undef, align 8",
        f"define ptx_kernel void @k({grid} %image_map, {grid} %weight_map, {arrays}) #0 {{", *t.lines, "}",
        f'attributes #0 = {{ nounwind "nvvm.reqntid"="{THREADS}" "nvvm.minctasm"="1" }}',
    ])  # fmt: skip
    return llvm_bind.assembly(text, TRIPLE, "sm_90a", "+ptx86")


def _produce(t: _Text, x: Layer, group: str, stages: int, fault: str) -> None:
    """Load the factors of each step once its stage is free."""
    pixel = t.put(f"mul i32 {group}, {ROWS}")
    column = t.put(f"urem i32 {pixel}, {x.q}")
    row = t.put(f"urem i32 {t.put(f'udiv i32 {pixel}, {x.q}')}, {x.p}")
    image = t.put(f"udiv i32 {pixel}, {x.p * x.q}")
    w = t.put(f"sub i32 {t.put(f'mul i32 {column}, {x.stride}')}, {x.pad}")
    h = t.put(f"sub i32 {t.put(f'mul i32 {row}, {x.stride}')}, {x.pad}")
    for n, (r, s, c) in enumerate(x.steps):
        stage, turn = n % stages, n // stages
        if turn and fault != "no wait for a free stage":
            t.wait(_shared("free", 8 * stage), (turn - 1) & 1)
        full = _shared("full", 8 * stage)
        nbytes = _A + _B - (2048 if fault == "short count" else 0)
        t.put(f"call i64 @llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta({full}, i32 {nbytes})")
        to_a, to_b = (
            t.put(f"addrspacecast {_shared(name, stage * size)} to ptr addrspace(7)")
            for name, size in (("a", _A), ("b", _B))
        )
        over, down = (r, s) if fault == "swapped offsets" else (s, r)
        t.do(
            f"call void @llvm.nvvm.cp.async.bulk.tensor.g2s.im2col.4d(ptr addrspace(7) {to_a}, {full}, ptr %image_map, "
            f"i32 {c}, i32 {w}, i32 {h}, i32 {image}, i16 {over * x.dilation}, i16 {down * x.dilation}, i16 0, i64 0, "
            "i1 0, i1 0, i32 0)"
        )
        t.do(
            f"call void @llvm.nvvm.cp.async.bulk.tensor.g2s.tile.2d(ptr addrspace(7) {to_b}, {full}, ptr %weight_map, "
            f"i32 {(r * x.s + s) * x.c + c}, i32 0, i16 0, i64 0, i1 0, i1 0, i32 0)"
        )


_PRODUCT = (
    "{{ .reg .pred p; setp.ne.b32 p, ${scale}, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{sums}}}, "
    "${left}, ${right}, p, 1, 1, 0, 0; }}"
)


def _consume(t: _Text, x: Layer, tid: str, group: str, stages: int, fault: str) -> None:
    """Multiply each step once its stage is full, and store the sums."""
    held = "{" + ", ".join(["float"] * _SUMS) + "}"
    numbers = ", ".join(f"${n}" for n in range(_SUMS))
    product = _PRODUCT.format(sums=numbers, left=2 * _SUMS, right=2 * _SUMS + 1, scale=2 * _SUMS + 2)
    product = product.replace("{", "\\7B").replace("}", "\\7D")
    ties = ",".join(["=f"] * _SUMS + [str(n) for n in range(_SUMS)])
    lane = t.put(f"and i32 {tid}, 31")
    first = t.put(f"icmp eq i32 {lane}, 0")
    zeros = t.put(f'call {held} asm sideeffect "// zeros", "{ties}"({", ".join(["float 0.0"] * _SUMS)})')
    sums = [t.put(f"extractvalue {held} {zeros}, {s}") for s in range(_SUMS)]
    for n in range(len(x.steps)):
        stage, turn = n % stages, n // stages
        t.wait(_shared("full", 8 * stage), (turn ^ (fault == "wrong parity")) & 1)
        t.do("call void @llvm.nvvm.wgmma.fence.sync.aligned()")
        for k in range(CHANNELS // 16):
            left, right = (_descriptor(t, name, stage * size, k * (4 if fault == "wrong descriptor" else 2))
                           for name, size in (("a", _A), ("b", _B)))  # fmt: skip
            given = ", ".join([*(f"float {s}" for s in sums), f"i64 {left}", f"i64 {right}", f"i32 {int(n + k > 0)}"])
            found = t.put(f'call {held} asm sideeffect "{product}", "{ties},l,l,r"({given})')
            sums = [t.put(f"extractvalue {held} {found}, {s}") for s in range(_SUMS)]
        t.do("call void @llvm.nvvm.wgmma.commit_group.sync.aligned()")
        is_last = n == len(x.steps) - 1
        if fault == "early release":
            _release(t, n, stage, first)
        if not (is_last and fault == "no final wait"):
            t.do("call void @llvm.nvvm.wgmma.wait_group.sync.aligned(i64 0)")
        if fault != "early release":
            _release(t, n, stage, first)
    given = ", ".join(f"float {s}" for s in sums)
    found = t.put(f'call {held} asm sideeffect "// sums", "{ties}"({given})')
    above = t.put(f"mul i32 {t.put(f'lshr i32 {tid}, 5')}, 16")
    row = t.put(f"add i32 {above}, {t.put(f'lshr i32 {lane}, 2')}")
    pixel = t.put(f"add i32 {t.put(f'mul i32 {group}, {ROWS}')}, {row}")
    column = t.put(f"mul i32 {t.put(f'and i32 {lane}, 3')}, 2")
    for s in range(_SUMS):
        here = t.put(f"add i32 {pixel}, {s // 2 % 2 * 8}")
        inside = t.put(f"icmp ult i32 {here}, {x.pixels}")
        t.do(f"br i1 {inside}, label %store{s}, label %stored{s}")
        t.lines.append(f"store{s}:")
        at = t.put(f"add i32 {t.put(f'mul i32 {here}, {COLUMNS}')}, {t.put(f'add i32 {column}, {s % 2 + s // 4 * 8}')}")
        place = t.put(f"getelementptr float, ptr addrspace(1) %sums, i32 {at}")
        t.do(f"store float {t.put(f'extractvalue {held} {found}, {s}')}, ptr addrspace(1) {place}")
        t.label(f"stored{s}")
    t.do("br label %end")


def _release(t: _Text, step: int, stage: int, first: str) -> None:
    """Let one lane of each warp say that a stage is free."""
    t.do(f"br i1 {first}, label %arrive{step}, label %arrived{step}")
    t.lines.append(f"arrive{step}:")
    t.put(f"call i64 @llvm.nvvm.mbarrier.arrive.scope.cta.space.cta({_shared('free', 8 * stage)}, i32 1)")
    t.label(f"arrived{step}")


def _descriptor(t: _Text, name: str, offset: int, units: int) -> str:
    """Return the descriptor of an operand whose rows have 128 bytes, swizzled; `units` of 16 bytes are added."""
    address = t.put(f"ptrtoint {_shared(name, offset)} to i64")
    start = t.put(f"and i64 {t.put(f'lshr i64 {address}, 4')}, 16383")
    return t.put(f"add i64 {start}, {(1 << 16 | 64 << 32 | 1 << 62) + units}")
