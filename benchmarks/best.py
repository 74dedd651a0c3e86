"""Every layer of three networks, and others, beside the best library of each layer, one thread.

Run: python benchmarks/best.py [--only resnet50,int8] [--vs torch,onednn] [--rounds 15]

Ours is the faster of channels last and blocks of 16 channels; the library's is its time in the rounds of that row. All
groups take some fifteen minutes. Tune first (`convsmith tune`), or the first choices are what is measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace

from report import Report, Row, bench, percent

from convsmith.measure.peers import PEERS
from convsmith.problem.suites import suite

LAYOUTS = ("axb", "aBx16b")
INT8, BF16 = "--dt=u8:s8:s32", "--dt=bf16"
KINDS_OF_LAYER = {
    "stem 64 @ 224": "mb1ic3ih224oc64oh112kh7sh2ph3",
    "1x1 64 -> 256 @ 56": "mb1ic64ih56oc256oh56kh1ph0",
    "3x3 64 @ 56": "mb1ic64ih56oc64oh56kh3ph1",
    "3x3 128 @ 28": "mb1ic128ih28oc128oh28kh3ph1",
    "1x1 1024 -> 256 @ 14": "mb1ic1024ih14oc256oh14kh1ph0",
    "3x3 256 @ 14": "mb1ic256ih14oc256oh14kh3ph1",
    "1x1 512 -> 2048 @ 7": "mb1ic512ih7oc2048oh7kh1ph0",
    "3x3 512 @ 7": "mb1ic512ih7oc512oh7kh3ph1",
}
GROUPS: dict[str, dict[str, str]] = {
    **{
        name: {p.name or str(p): str(replace(p, name=None)) for p in suite(name)}
        for name in ("resnet50", "mobilenet_v2", "vgg16")
    },
    "batch16": {
        "stem 64 @ 224": "mb16ic3ih224oc64oh112kh7sh2ph3",
        "3x3 64 @ 56": "mb16ic64ih56oc64oh56kh3ph1",
        "1x1 256 -> 64 @ 56": "mb16ic256ih56oc64oh56kh1ph0",
        "1x1 1024 -> 256 @ 14": "mb16ic1024ih14oc256oh14kh1ph0",
        "3x3 256 @ 14": "mb16ic256ih14oc256oh14kh3ph1",
        "3x3 512 @ 7": "mb16ic512ih7oc512oh7kh3ph1",
    },
    "3d": {
        "3x3x3 64 @ 16x28x28": "mb1ic64id16ih28iw28oc64od16oh28ow28kd3kh3kw3pd1ph1pw1",
        "3x7x7 s1x2x2 3 -> 64": "mb1ic3id16ih112iw112oc64od16oh56ow56kd3kh7kw7sd1sh2sw2pd1ph3pw3",
    },
    "groups": {
        "4 a group, 128 @ 56": "g32mb1ic128ih56oc128oh56kh3ph1",
        "8 a group, 256 @ 28": "g32mb1ic256ih28oc256oh28kh3ph1",
        "16 a group, 512 @ 14": "g32mb1ic512ih14oc512oh14kh3ph1",
    },
    "int8": {name: f"{INT8} {line}" for name, line in KINDS_OF_LAYER.items()},
    "bf16": {name: f"{BF16} {line}" for name, line in KINDS_OF_LAYER.items()},
    "channels-first": {name: f"--stag=abx --dtag=abx {line}" for name, line in KINDS_OF_LAYER.items()},
}
"""Layers by name; those without layouts are measured in both of `LAYOUTS`."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Every layer beside its best library, one thread.")
    parser.add_argument("--only", default=",".join(GROUPS), help=f"groups, of {', '.join(GROUPS)}")
    parser.add_argument("--vs", default=",".join(PEERS))
    parser.add_argument("--rounds", default="9")
    given = parser.parse_args(arguments)
    report = Report("best", "Every layer beside its best library, one thread")
    report.note(
        "The last column is the time of the best library of the layer divided by ours (above 1: convsmith is faster). "
        "The libraries were called in the same rounds; ours is the faster of channels last and blocks of 16 channels."
    )
    runs, summary = [], []
    for group in given.only.split(","):
        lines = {
            (name, layout): line if "--stag" in line else f"--stag={layout} --dtag={layout} {line}"
            for name, line in GROUPS[group].items() for layout in (LAYOUTS[:1] if "--stag" in line else LAYOUTS)
        }  # fmt: skip
        run = bench(list(lines.values()), "--threads", "1", "--vs", given.vs, "--rounds", given.rounds)
        runs.append({"group": group, **run})
        by_name: dict[str, list[Row]] = {}
        for (name, _), row in zip(lines, run["rows"], strict=True):
            by_name.setdefault(name, []).append(row)
        faster = {name: min(rows, key=_seconds) for name, rows in by_name.items()}
        report.table(
            group, ["layer", "problem", "config", "us", "% of peak", *given.vs.split(","), "best"],
            [_cells(name, row, given.vs.split(",")) for name, row in faster.items()],
        )  # fmt: skip
        ratios = {name: ratio for name, row in faster.items() if (ratio := best_ratio(row)) is not None}
        if ratios:
            least = min(ratios, key=ratios.__getitem__)
            mean = statistics.geometric_mean(ratios.values())
            summary.append([group, str(len(ratios)), f"{mean:.2f}", f"{ratios[least]:.2f} ({least})"])
    report.data = {"runs": runs}
    report.table("Summary", ["group", "layers", "geometric mean", "least"], summary)
    report.write()


def best_ratio(row: Row) -> float | None:
    """Return the time of the fastest library divided by ours; None where no library computes the layer."""
    return min((library["speedup"]["median"] for library in row["libraries"].values()), default=None)


def _cells(name: str, row: Row, libraries: Sequence[str]) -> list[str]:
    found = row["libraries"]
    ratios = [f"{found[each]['speedup']['median']:.2f}" if each in found else "-" for each in libraries]
    best = best_ratio(row)
    time = f"{row['seconds']['median'] * 1e6:.1f}"
    best_text = "-" if best is None else f"{best:.2f}"
    return [name, f"`{row['problem']}`", f"`{row['config']}`", time, percent(row["of_peak"]), *ratios, best_text]


def _seconds(row: Row) -> float:
    seconds: float = row["seconds"]["median"]
    return seconds


if __name__ == "__main__":
    main()
