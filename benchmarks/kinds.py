"""Every kind of problem on one thread: data types, gradients, groups, strides, post-ops, beside the peak of the type.

Run: python benchmarks/kinds.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from report import Report, Row, bench, percent, ratio

LAST = "--stag=axb --dtag=axb"
SQUARE = {
    "3x3 64 @ 56": "mb1ic64ih56oc64oh56kh3ph1",
    "3x3 128 @ 28": "mb1ic128ih28oc128oh28kh3ph1",
    "3x3 256 @ 14": "mb1ic256ih14oc256oh14kh3ph1",
    "3x3 512 @ 7": "mb1ic512ih7oc512oh7kh3ph1",
}
WIDE = {
    "1x1 256 -> 64 @ 56": "mb1ic256ih56oc64oh56kh1ph0",
    "1x1 512 -> 128 @ 28": "mb1ic512ih28oc128oh28kh1ph0",
    "1x1 1024 -> 256 @ 14": "mb1ic1024ih14oc256oh14kh1ph0",
    "1x1 2048 -> 512 @ 7": "mb1ic2048ih7oc512oh7kh1ph0",
}
SHORT = {
    "1x1 64 -> 256 @ 56": "mb1ic64ih56oc256oh56kh1ph0",
    "7x7 s2 3 -> 64 @ 224": "mb1ic3ih224oc64oh112kh7sh2ph3",
}
RESNET = SQUARE | WIDE | SHORT
GROUPS = {
    "4 a group, 128 @ 56": "g32mb1ic128ih56oc128oh56kh3ph1",
    "8 a group, 256 @ 28": "g32mb1ic256ih28oc256oh28kh3ph1",
    "16 a group, 512 @ 14": "g32mb1ic512ih14oc512oh14kh3ph1",
}
STRIDES = {
    "3x3 128, 56 -> 28": ("mb1ic128ih56oc128oh28kh3sh2ph1", "mb1ic128ih28oc128oh28kh3ph1"),
    "3x3 256, 28 -> 14": ("mb1ic256ih28oc256oh14kh3sh2ph1", "mb1ic256ih14oc256oh14kh3ph1"),
    "1x1 256 -> 512, 56 -> 28": ("mb1ic256ih56oc512oh28kh1sh2ph0", "mb1ic256ih28oc512oh28kh1ph0"),
}
CHEAP = {
    "bias": "--dir=FWD_B", "relu": "--attr-post-ops=relu", "clip": "--attr-post-ops=clip:0:6",
    "sum": "--attr-post-ops=sum", "add per channel": "--attr-post-ops=add:f32:per_oc",
    "mul per element": "--attr-post-ops=mul:f32:per_tensor",
}  # fmt: skip
LONG = {
    alg: f"--attr-post-ops={alg}"
    for alg in ("tanh", "logistic", "gelu_erf", "gelu_tanh", "swish:1", "elu:1", "mish", "exp")
}
UNDER = {name: SQUARE[name] for name in ("3x3 128 @ 28", "3x3 256 @ 14")}
DEPTHWISE = {
    "32 @ 112": "g32mb1ic32ih112oc32oh112kh3ph1",
    "96 @ 112, s2": "g96mb1ic96ih112oc96oh56kh3sh2ph1",
    "144 @ 56": "g144mb1ic144ih56oc144oh56kh3ph1",
    "144 @ 56, s2": "g144mb1ic144ih56oc144oh28kh3sh2ph1",
    "192 @ 28": "g192mb1ic192ih28oc192oh28kh3ph1",
    "192 @ 28, s2": "g192mb1ic192ih28oc192oh14kh3sh2ph1",
    "384 @ 14": "g384mb1ic384ih14oc384oh14kh3ph1",
    "576 @ 14": "g576mb1ic576ih14oc576oh14kh3ph1",
    "576 @ 14, s2": "g576mb1ic576ih14oc576oh7kh3sh2ph1",
    "960 @ 7": "g960mb1ic960ih7oc960oh7kh3ph1",
}
POINTS = {
    "none": "--dt=u8:s8:u8",
    "of the source": "--dt=u8:s8:u8 --attr-zero-points=src:common:3",
    "of source and weights": "--dt=u8:s8:u8 --attr-zero-points=src:common:3+wei:common:2",
    "s8 source": "--dt=s8:s8:u8",
    "u8 weights": "--dt=u8:u8:u8",
}
OTHERS = ("f16", "s8:s8:s32", "f64", "f32:bf16:f32")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Kinds of problems on one thread, beside the peak of their types.")
    parser.parse_args(arguments)
    lines: dict[tuple[str, str], str] = {}
    for name, layer in RESNET.items():
        lines["int8", name] = f"--dt=u8:s8:s32 {LAST} {layer}"
        lines["bf16", name] = f"--dt=bf16 {LAST} {layer}"
        lines["data", name] = f"--dir=BWD_D {LAST} {layer}"
        lines["weights", name] = f"--dir=BWD_W {LAST} --wtag=axb {layer}"
    lines |= {("groups", name): f"{LAST} {layer}" for name, layer in GROUPS.items()}
    for name, pair in STRIDES.items():
        for kind, layer in zip(("strided", "unit"), pair, strict=True):
            lines[kind, name] = f"--dir=BWD_D {LAST} {layer}"
    for name, layer in UNDER.items():
        lines["bare", name] = f"{LAST} {layer}"
        for post, options in (CHEAP | LONG).items():
            lines[post, name] = f"{options} {LAST} {layer}"
    lines |= {("depthwise", name): f"{LAST} {layer}" for name, layer in DEPTHWISE.items()}
    for name, layer in UNDER.items():
        lines |= {(points, name): f"{options} {LAST} {layer}" for points, options in POINTS.items()}
    lines |= {("types", dt): f"--dt={dt} {LAST} {SQUARE['3x3 128 @ 28']}" for dt in OTHERS}
    fused = {
        "alone": f"{LAST} mb1ic24ih56oc144oh56kh1ph0",
        "with a depthwise 3x3": f"--attr-post-ops=dw:k3s1p1 {LAST} mb1ic24ih56oc144oh56kh1ph0",
    }
    lines |= {("fused", name): line for name, line in fused.items()}
    run = bench(list(lines.values()), "--threads", "1", "--vs", "torch,onnxruntime")
    rows: dict[tuple[str, str], Row] = dict(zip(lines, run["rows"], strict=True))

    report = Report("kinds", "Kinds of problems on one thread: share of the peak of their types")
    report.data = {"runs": [run], "kinds": [list(key) for key in lines]}
    report.note(
        "Batch 1, channels-last. The peak is that of the instruction for the types, measured beside each kernel; taps "
        "that meet padding count as work. +- is half the distance of the quartiles; `vs` is a library's time divided "
        "by ours."
    )
    columns = ["what", "problem", "config", "us", "GOP/s", "% of peak", "verified", "vs torch", "vs onnxruntime"]

    def cells(kind: str, name: str) -> list[str]:
        row = rows[kind, name]
        return [
            name, f"`{row['problem']}`", f"`{row['config']}`", f"{row['seconds']['median'] * 1e6:.1f}",
            f"{row['gflops']['median']:.1f}", percent(row["of_peak"]), "yes" if row["verified"] else "NO",
            ratio(row, "torch"), ratio(row, "onnxruntime"),
        ]  # fmt: skip

    headings = {
        "int8": "Forward, u8 x s8 -> s32", "bf16": "Forward, bf16", "data": "Backward by data, f32",
        "weights": "Backward by weights, f32",
    }  # fmt: skip
    for kind, heading in headings.items():
        report.table(heading, columns, [cells(kind, name) for name in RESNET])
    report.table("Forward, f32, 32 groups", columns, [cells("groups", name) for name in GROUPS])
    report.table("Forward, f32, depthwise (MobileNetV2)", columns, [cells("depthwise", name) for name in DEPTHWISE])
    report.table(
        "Forward, bytes: zero points and signs", ["zero points, types", "layer", "us", "more time, %"],
        [
            [points, name, f"{rows[points, name]['seconds']['median'] * 1e6:.1f}",
             f"{(rows[points, name]['seconds']['median'] / rows['none', name]['seconds']['median'] - 1) * 100:.1f}"]
            for name in UNDER for points in POINTS
        ],
    )  # fmt: skip
    strided = []
    for name in STRIDES:
        share = rows["strided", name]["gflops"]["median"] / rows["unit", name]["gflops"]["median"]
        strided.append([*cells("strided", name), f"{rows['unit', name]['gflops']['median']:.1f}", f"{share * 100:.1f}"])
    report.table(
        "Backward by data, stride 2: useful multiplications", [*columns, "stride 1, GOP/s", "% of stride 1"], strided
    )
    posts = []
    for post in CHEAP | LONG:
        shares = [
            rows[post, name]["of_peak"]["median"] / rows["bare", name]["of_peak"]["median"] for name in UNDER
        ]
        posts.append([post, *(f"{(1 - share) * 100:.1f}" for share in shares)])
    report.table("What post-ops cost, % of the bare layer, f32", ["post-op", *UNDER], posts)
    report.table("Other types, 3x3 128 @ 28", columns, [cells("types", dt) for dt in OTHERS])
    report.table("1x1 24 -> 144 @ 56, f32", columns, [cells("fused", name) for name in fused])
    report.write()


if __name__ == "__main__":
    main()
