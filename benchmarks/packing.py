"""Packing beside copying, and products of 8-bit matrices: raw, with their left side packed, with output stages, called.

Run: python benchmarks/packing.py
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
from report import Report

import convsmith as cs
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.registry import host_targets
from convsmith.measure.peak import peak_sample
from convsmith.measure.timing import Sampler, alternate, measure, spread
from convsmith.runtime.arrays import address_of, aligned_empty, numpy_dtype
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.host_block import HostBlock

ROUNDS = 9
BYTES = ("u8", "s8", "s32")
SIDES = (64, 256, 512, 1024, 2048)
"""Square matrices, from the first-level cache outwards."""
MATRICES = {
    "f32, rows": ("wei", "--wtag=ab"), "f32, columns": ("wei", "--wtag=ba"),
    "f32, left, rows": ("src", "--stag=ab"), "f32, left, columns": ("src", "--stag=ba"),
    "bytes, rows": ("wei", "--dt=u8:s8:s32 --wtag=ab"), "bytes, columns": ("wei", "--dt=u8:s8:s32 --wtag=ba"),
    "bytes, left, rows": ("src", "--dt=u8:s8:s32 --stag=ab"),
    "bytes, left, columns": ("src", "--dt=u8:s8:s32 --stag=ba"),
    "bf16, rows": ("wei", "--dt=bf16 --wtag=ab"), "bf16, columns": ("wei", "--dt=bf16 --wtag=ba"),
}  # fmt: skip
WEIGHTS = {
    "f32 oihw, 3x3": "mb1ic256ih14oc256oh14kh3ph1",
    "f32 oihw, 1x1": "mb1ic512ih14oc512oh14kh1ph0",
    "f32 hwio, 3x3": "--wtag=xba mb1ic256ih14oc256oh14kh3ph1",
    "bytes oihw, 3x3": "--dt=u8:s8:s32 mb1ic256ih14oc256oh14kh3ph1",
    "bytes hwio, 3x3": "--dt=u8:s8:s32 --wtag=xba mb1ic256ih14oc256oh14kh3ph1",
    "bf16 oihw, 3x3": "--dt=bf16 mb1ic256ih14oc256oh14kh3ph1",
}
PRODUCTS = {"512^3": (512, 512, 512), "192x1152x256": (192, 1152, 256), "1024^3": (1024, 1024, 1024)}
"""Rows, depth and columns; the second is one of gemmlowp's own."""
STAGES = [("fixed_point", 1518500250, 12, 128), ("saturate_u8",)]


def main() -> None:
    report = Report("packing", "Packing, and products of 8-bit matrices")
    report.note(
        f"One thread. Bytes that are read and written, beside a copy (memcpy) of as many bytes in the same rounds; the "
        f"median of {ROUNDS}. Matrices are square, of the given side."
    )
    data: dict[str, object] = {}
    rows = []
    for side in SIDES:
        for name, (operand, options) in MATRICES.items():
            rows.append([name, str(side), *_packing(f"{name} {side}", _square(options, side), operand, data)])
    for name, line in WEIGHTS.items():
        rows.append([name, "", *_packing(name, f"--stag=axb --dtag=axb {line}", "wei", data)])
    report.table("Packing", ["what", "side", "level", "KiB", "GB/s", "copy, GB/s", "% of copy"], rows)
    levels = [t.name for t in host_targets() if t.name in ("avx512_vnni", "avx512_amx", "avx2_vnni")]
    products = [_product(f"{name} {isa}", size, isa, data) for isa in levels for name, size in PRODUCTS.items()]
    report.table(
        "Products u8 x s8 of matrices in order of rows, % of the peak of bytes",
        ["product", "GOP/s, right side packed", "%", "both packed, %", "left side packed in the call, %",
         "a fixed-point stage costs, %"],
        products,
    )  # fmt: skip
    report.table("Calls of `gemm_lowp` on 8x8 matrices, us", ["call", "time"], _calls(data))
    report.data = data
    report.write()


def _square(options: str, side: int) -> str:
    return f"--matmul {options} {side}x{side}:{side}x{side}"


def _packing(name: str, line: str, operand: str, data: dict[str, object]) -> list[str]:
    """Level, size, speed of packing and of a copy, and the share."""
    kernel = cs.compile(line, threads=1)
    if "avx512_amx" in kernel.config.target and operand == "src":
        kernel = cs.compile(line, threads=1, target="avx512_vnni")  # fragments read the left side as it lies
    if operand not in kernel.config.staged("pack"):
        kernel = cs.compile(line, threads=1, config=kernel.config.changed(pack=(operand,)))
    entry = next(e for e in _entries(kernel) if e.startswith("pack") and (":" not in e or f":{operand}_" in e))
    call, memory = _entry(kernel, entry)
    given, packed = memory[0], memory[-1]
    count = min(given.nbytes, packed.nbytes)
    moved = ctypes.CDLL(None).memcpy
    moved.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    to, of = address_of(packed), address_of(given)
    taken = alternate({"pack": Sampler(call), "copy": Sampler(lambda: moved(to, of, count))}, ROUNDS, _at_once)
    ours = spread([(given.nbytes + packed.nbytes) / t * 1e-9 for t in taken["pack"]])
    copy = spread([2 * count / t * 1e-9 for t in taken["copy"]])
    share = spread([
        (given.nbytes + packed.nbytes) / t / (2 * count / c) for t, c in zip(taken["pack"], taken["copy"], strict=True)
    ])  # fmt: skip
    data[name] = {"gbs": asdict(ours), "copy_gbs": asdict(copy), "share": asdict(share), "config": str(kernel.config)}
    size = f"{(given.nbytes + packed.nbytes) / 2048:.0f}"
    return [kernel.config.target, size, f"{ours.median:.1f}", f"{copy.median:.1f}", f"{share.median * 100:.0f}"]


def _product(name: str, size: tuple[int, int, int], isa: str, data: dict[str, object]) -> list[str]:
    """The raw product, with both sides packed before, with the left one packed in the call, and with a stage."""
    m, k, n = size
    line = f"--matmul --dt=u8:s8:{{}} {{}} {m}x{k}:{k}x{n}"
    raw = cs.compile(line.format("s32", ""), target=isa, threads=1)
    both = cs.compile(line.format("s32", ""), threads=1, config=raw.config.changed(pack=("src", "wei")))
    steps = "--attr-post-ops=s32_mulh:common:1518500250+s32_rshift:common:12+s32_add:common:128"
    staged = cs.compile(line.format("u8", steps), target=isa, threads=1)
    main_entry, left_entry = _entry(both, "main")[0], _entry(both, "pack:src_p")[0]

    def with_packing() -> None:
        left_entry()
        main_entry()

    others: dict[str, Callable[[], object]] = {
        "both": main_entry, "left": with_packing, "staged": _entry(staged, "main")[0],
    }  # fmt: skip
    raw_entry = _entry(raw, "main")[0]
    times = measure(raw_entry, 2 * m * k * n, lambda: peak_sample(isa, 1, BYTES).gflops, others, ROUNDS)
    data[name] = asdict(times)
    more = {what: peer.speedup.median for what, peer in times.peers.items()}
    share = times.of_peak.median * 100 if times.of_peak else 0.0
    return [
        name, f"{times.gflops.median:.0f}", f"{share:.1f}", f"{share / more['both']:.1f}",
        f"{share / more['left']:.1f}", f"{(more['staged'] - 1) * 100:.1f}",
    ]  # fmt: skip


def _calls(data: dict[str, object]) -> list[list[str]]:
    """Return the time that Python takes for a call that computes next to nothing."""
    lhs, rhs = (np.full((8, 8), x, np.uint8) for x in (3, 5))
    product = cs.pack_lowp(8, rhs, -5, -3, output_stages=STAGES, threads=1)
    out = np.empty((8, 8), np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "raw": lambda: cs.gemm_lowp(lhs, rhs, threads=1),
        "offsets": lambda: cs.gemm_lowp(lhs, rhs, -5, -3, threads=1),
        "offsets and stages": lambda: cs.gemm_lowp(lhs, rhs, -5, -3, output_stages=STAGES, threads=1),
        "offsets and stages, of `pack_lowp`, with `out`": lambda: product(lhs, out=out),
    }
    found = {name: spread([Sampler(call)() for _ in range(ROUNDS)]).median * 1e6 for name, call in calls.items()}
    data["calls"] = found
    return [[name, f"{seconds:.1f}"] for name, seconds in found.items()]


def _entries(kernel: CompiledKernel) -> list[str]:
    assert kernel.artifact is not None
    return list(kernel.artifact.entries)


def _entry(kernel: CompiledKernel, name: str) -> tuple[Callable[[], object], list[np.ndarray]]:
    """An entry of a kernel's machine code on memory of its own, all ones."""
    assert kernel.artifact is not None
    function = HostLibrary(kernel.artifact)[name]
    memory = {a.name: aligned_empty(a.size * numpy_dtype(a.dtype).itemsize) for a in function.entry.arguments}
    for array in memory.values():
        array[:] = 1
    block = HostBlock(function.entry, {name: address_of(array) for name, array in memory.items()})
    return lambda: function(block.address, (block, memory)), [*memory.values()]


def _at_once() -> None:
    """Nothing has threads here."""


if __name__ == "__main__":
    main()
