"""Every layer of three networks, and others, beside the best library of each layer, one thread.

Run: python benchmarks/best.py [--only resnet50,int8] [--keep] [--vs torch,onednn] [--rounds 15]
     python benchmarks/best.py --target avx2 --pointwise --vs onednn --only resnet50,mobilenet_v2,batch16

Ours is the fastest of three layouts, as libraries choose theirs; the library's is its time in the rounds of that row.
All groups take some twenty minutes; with `--keep`, a run measures some groups of a page and leaves the others. Tune
first (`convsmith tune`), or the first choices are what is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from report import LIMITS, Report, Row, bench, percent

from convsmith.compiler.cache import compiler_source_hash
from convsmith.measure.peers import PEERS
from convsmith.problem import parse_problem
from convsmith.problem.suites import suite

LAYOUTS = ("axb", "aBx16b", "abx")
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
    parser.add_argument("--keep", action="store_true", help="keep the other groups of the last page of the day")
    parser.add_argument("--target", help="instruction set of ours, to which libraries are held")
    parser.add_argument("--pointwise", action="store_true", help="only the 1x1 layers of the groups")
    given = parser.parse_args(arguments)
    name = "-".join(["best", *filter(None, [given.target]), *["pointwise"] * given.pointwise])
    which, level = "1x1 layer" if given.pointwise else "layer", f" at level {given.target}" if given.target else ""
    report = Report(name, f"Every {which} beside its best library{level}, one thread")
    report.note(
        "The last column is the time of the best library of the layer divided by ours (above 1: convsmith is faster). "
        "The libraries were called in the same rounds, and choose their layouts; ours is the fastest of the layouts "
        "that the summary names. It also names the sources with which a group was measured."
    )
    groups = {group: _pointwise(layers) if given.pointwise else layers for group, layers in GROUPS.items()}
    runs = {group: run for group, run in _runs(report).items() if given.keep and group in groups}
    options = ["--threads", "1", "--vs", given.vs, "--rounds", given.rounds]
    options += ["--target", given.target] if given.target else []
    for group in given.only.split(","):
        named = [line for _, line in _lines(groups[group], LAYOUTS)]
        run = bench(named, *options, **LIMITS.get(given.target, {}))
        runs[group] = {"group": group, "sources": compiler_source_hash(), **run}
    libraries = given.vs.split(",")
    summary = [
        _add_table(report, group, layers, runs[group], libraries) for group, layers in groups.items() if group in runs
    ]
    report.data = {"runs": list(runs.values())}
    columns = ["group", "layers", "geometric mean", "least", "layouts", "sources"]
    report.table("Summary", columns, summary)
    report.write()


def _runs(report: Report) -> dict[str, dict[str, Any]]:
    """Return the runs that the report's file holds, by group."""
    file = report.stem.with_suffix(".json")
    if not file.exists():
        return {}
    page = json.loads(file.read_text(encoding="utf-8"))
    return {run["group"]: {"sources": page["sources"], **run} for run in page["runs"]}


def _pointwise(layers: Mapping[str, str]) -> dict[str, str]:
    """Return the layers whose kernels have one tap."""
    taps = {name: parse_problem(line).k for name, line in layers.items()}
    return {name: line for name, line in layers.items() if set(taps[name]) == {1}}


def _lines(layers: Mapping[str, str], layouts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names of a group's `layers`, each with its line in each of `layouts`, or in its own."""
    return [
        (name, line if "--stag" in line else f"--stag={layout} --dtag={layout} {line}")
        for name, line in layers.items() for layout in (layouts[:1] if "--stag" in line else layouts)
    ]  # fmt: skip


def _add_table(
    report: Report, group: str, layers: Mapping[str, str], run: Mapping[str, Any], libraries: Sequence[str]
) -> list[str]:
    """Add the table of a group's run to the report, and return its row of the summary."""
    count = len(run["rows"]) // len(layers)
    layouts = LAYOUTS[:count]
    by_name: dict[str, list[Row]] = {}
    for (name, _), row in zip(_lines(layers, layouts), run["rows"], strict=True):
        by_name.setdefault(name, []).append(row)
    faster = {name: min(rows, key=_seconds) for name, rows in by_name.items()}
    report.table(
        group, ["layer", "problem", "config", "us", "% of peak", *libraries, "best"],
        [_cells(name, row, libraries) for name, row in faster.items()],
    )  # fmt: skip
    ratios = {name: ratio for name, row in faster.items() if (ratio := best_ratio(row)) is not None}
    worst = min(ratios, key=ratios.__getitem__, default="-")
    mean = f"{statistics.geometric_mean(ratios.values()):.2f}" if ratios else "-"
    least = f"{ratios[worst]:.2f} ({worst})" if ratios else "-"
    own = any("--stag" in line for line in layers.values())
    return [group, str(len(ratios)), mean, least, "abx" if own else ", ".join(layouts), run["sources"][:12]]


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
