"""The loss by local search: its best configs beside those of exhaustive searches, for layers with small spaces.

    python benchmarks/exhaustive.py ROWS.json --seconds 150    # measure layers that the file lacks, for that long
    python benchmarks/exhaustive.py ROWS.json --page           # write the page of all layers in the file

Each layer is searched twice, in databases of their own: as `convsmith tune` does, and as `convsmith tune --exhaustive`
does. Both best configs are then timed in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from minute import share_of
from report import Report

from convsmith.machine.registry import target
from convsmith.problem.lines import parse_problem
from convsmith.tune.records.database import IN_MEMORY, Database
from convsmith.tune.search.reach import Reach
from convsmith.tune.search.search import search
from convsmith.tune.search.workers import Workers

LAYERS = """
2x64:64x32 2x64:64x16 4x64:64x16 1x64:64x16 1x256:256x16 2x128:128x16 2x32:32x48 2x64:64x48 3x64:64x16 2x128:128x32
4x128:128x16 2x512:512x16 4x256:256x16 2x256:256x16 3x128:128x16 1x128:128x32 3x64:64x32 4x512:512x16 1x64:64x32
1x512:512x16
""".split()
"""Products of bytes whose spaces have some hundreds of configs that the model does not rule out."""
LINE = "--matmul --dt=u8:s8:s32 "
SHARES = 5
"""Comparisons of both best configs, whose median counts: kernels of microseconds differ by some percent from one to the
next.
"""
LOCAL_SECONDS, EVERY_SECONDS = 60.0, 150.0
"""Time of a local search, which ends sooner after three rounds without a gain, and of an exhaustive one, which ends
sooner when it has measured every config.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="a JSON file of measured layers")
    parser.add_argument("--seconds", type=float, default=150.0, help="time after which no further layer is begun")
    parser.add_argument("--page", action="store_true", help="write the page, and measure nothing")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = json.loads(options.rows.read_text()) if options.rows.exists() else []
    if options.page:
        write_page(rows)
        return
    end = time.perf_counter() + options.seconds
    with Workers() as workers:
        for shape in LAYERS:
            if time.perf_counter() < end and shape not in {row["layer"] for row in rows}:
                rows.append(measured(shape, workers))
                print(json.dumps(rows[-1]), flush=True)
                options.rows.write_text(json.dumps(rows))


def measured(shape: str, workers: Workers) -> dict[str, Any]:
    """Return the row of a layer: configs and seconds of both searches, and the share of the local one's speed."""
    problem = parse_problem(LINE + shape).canonical()
    level = target(None, problem.types)
    with Database(IN_MEMORY) as database:
        local = search(problem, level, 1, LOCAL_SECONDS, database, workers)
    with Database(IN_MEMORY) as database:
        every = search(problem, level, 1, EVERY_SECONDS, database, workers, exhaustive=Reach())
    assert local.best is not None and every.best is not None
    shares = [share_of(problem, local, every, workers) for _ in range(SHARES)]
    return {
        "layer": shape, "share": median(shares), "shares": shares, "local": local.tried.total(),
        "every": every.tried.total(), "ended": every.ended, "local seconds": local.seconds,
        "seconds": every.seconds, "config": local.best.config, "best": every.best.config,
        "first": 1 / local.best.ratio, "first of every": 1 / every.best.ratio,
    }  # fmt: skip


def write_page(rows: Sequence[dict[str, Any]]) -> None:
    """Write the page of results."""
    report = Report("exhaustive", "Local searches beside exhaustive ones")
    report.note(
        "Products of bytes (`--matmul --dt=u8:s8:s32`) on one thread. An exhaustive search measures every config in "
        "reach that the model expects to take at most 1.8 of the least time. The share is the speed of the local "
        "search's best config relative to that of the exhaustive one's, both timed in the same rounds, the median of "
        f"{SHARES} comparisons; 1 if they are the same. The gain is that over the model's first choice."
    )
    table = [
        [
            row["layer"], f"{row['share']:.3f}", str(row["local"]), str(row["every"]), f"{row['local seconds']:.1f}",
            f"{row['seconds']:.1f}", f"{row['first']:.2f}", f"{row['first of every']:.2f}", row["ended"],
        ]
        for row in rows
    ]  # fmt: skip
    columns = ["layer", "share", "configs", "of all", "seconds", "of all", "gain", "of all", "end of the search of all"]
    report.table("Layers", columns, table)
    shares = [row["share"] for row in rows]
    mean = geometric_mean(shares)
    report.table("Summary", ["layers", "geometric mean of shares", "least"],
                 [[str(len(rows)), f"{mean:.3f}", f"{min(shares):.3f}"]])  # fmt: skip
    report.data = {"rows": list(rows)}
    report.write()


if __name__ == "__main__":
    main()
