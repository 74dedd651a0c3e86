"""Problems on which PyTorch was faster than the default kernel, at the levels avx512 and avx2, one thread.

Run: python benchmarks/gaps.py [--before RESULTS.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from report import LIMITS, Report, bench, ratio

FIRST, LAST = "--stag=abx --dtag=abx", "--stag=axb --dtag=axb"
WEIGHTS = f"--dir=BWD_W {LAST} --wtag=axb"
PROBLEMS = {
    "avx512": [
        f"{WEIGHTS} g1056mb4ic1056ih30oc1056kh3ph1",
        f"{WEIGHTS} g144mb1ic144ih104oc144kh3ph1",
        f"{WEIGHTS} g256mb4ic256ih38oc256kh3ph1",
        f"--deconv {LAST} g1024mb1ic1024ih20oc1024oh43kh5sh2ph0",
        f"--deconv {LAST} g512mb1ic512ih21oc512oh43kh7sh2ph2",
        f"{LAST} g1024mb1ic1024ih32oc1024kh5ph2",
        f"{LAST} g512mb1ic512ih41oc512oh21kh7sh2ph3",
        f"{LAST} mb1ic256ih36iw29oc256kh1kw1ph1pw1",
        f"{FIRST} mb4ic32ih256iw480oc1kh1kw1",
        f"--dir=BWD_W {FIRST} mb1ic96ih28oc64kh1",
        f"{LAST} mb1ic144ih56oc24kh1",
        f"{LAST} mb1ic96ih56oc24kh1",
        f"{LAST} g32mb1ic256ih28oc256kh3ph1",
        f"{LAST} mb16ic256ih56oc64kh1",
        f"--accuracy=strict {FIRST} mb1ic256ih14oc256kh3ph1",
        f"--accuracy=strict {FIRST} mb1ic384ih13oc256kh3ph1",
    ],
    "avx512_bf16": [f"--dt=bf16 {LAST} mb1ic64ih56oc256kh1"],
    "avx2": [
        f"{LAST} mb1ic256ih36iw29oc256kh1kw1ph1pw1",
        f"{WEIGHTS} mb4ic24ih320iw512oc16kh1kw1",
        f"{LAST} g1024mb1ic1024ih32oc1024kh5ph2",
        f"{LAST} g1024mb1ic1024ih15oc1024kh11ph5",
        f"{LAST} g512mb1ic512ih41oc512oh21kh7sh2ph3",
        f"{FIRST} mb4ic1iw1500oc512kw10sw5",
        f"{FIRST} mb1ic256ih128oc3kh1",
        f"{WEIGHTS} mb1ic2048ih14oc320kh1",
        f"{LAST} mb1ic64ih56oc256kh1",
        f"{LAST} mb1ic2048ih7oc512kh1",
        f"{LAST} mb1ic576ih14oc96kh1",
        f"{LAST} mb1ic96ih14oc576kh1",
        f"{LAST} mb1ic192ih28oc32kh1",
        f"{LAST} mb1ic24ih56oc144kh1",
    ],
}
"""Problems by the level of both kernels."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Problems on which PyTorch was faster, one thread.")
    parser.add_argument("--before", type=Path, help="results of earlier sources on the same machine, for a column")
    parser.add_argument("--level", choices=[*PROBLEMS], action="append", help="only this level")
    options = parser.parse_args(arguments)
    before = json.loads(options.before.read_text(encoding="utf-8")) if options.before else {"runs": [], "levels": []}
    levels = options.level or [*PROBLEMS]
    name = "-".join(["gaps", *(options.level or ())])
    report = Report(name, "Problems on which PyTorch was faster, one thread")
    report.data = {"runs": [], "levels": levels}
    report.note(
        "`vs torch` is PyTorch's time divided by ours, from rounds in which both ran in turn; PyTorch has channels "
        "last in two dimensions, whatever ours has. At level avx2 PyTorch and oneDNN are held to AVX2."
    )
    if options.before:
        report.note(f"`before` are the sources {before['sources'][:12]}.")
    for level in levels:
        words = ("--threads", "1", "--target", level, "--vs", "torch")
        run = bench(PROBLEMS[level], *words, **LIMITS.get(level, {}))
        report.data["runs"].append(run)
        earlier_rows = dict(zip(before["levels"], before["runs"])).get(level, {"rows": []})["rows"]
        old = {row["problem"]: row for row in earlier_rows}
        rows = []
        for row in run["rows"]:
            was = old.get(row["problem"])
            earlier = [f"{was['seconds']['median'] * 1e6:.1f}", ratio(was, "torch")] if was else ["-", "-"]
            now = [f"{row['seconds']['median'] * 1e6:.1f}", ratio(row, "torch")]
            config = row["config"].partition(" ")[2]
            rows.append([f"`{row['problem']}`", f"`{config}`", *earlier, *now, "yes" if row["verified"] else "NO"])
        names = ["problem", "config", "us before", "vs torch before", "us", "vs torch", "verified"]
        report.table(f"Level {level}", names, rows)
        speedups = [row["libraries"]["torch"]["speedup"]["median"] for row in run["rows"] if row["libraries"]]
        report.note(f"Geometric mean {statistics.geometric_mean(speedups):.2f}, least {min(speedups):.2f}.")
    report.write()


if __name__ == "__main__":
    main()
