"""Gains of tuning: the model's first choices, the nearest problem's configs, and the best configs, from a database.

Measure first, in as many runs as you like; every run goes on from the last:

    export CONVSMITH_DATABASE=tuning.db
    for network in resnet50 mobilenet_v2 vgg16; do convsmith tune $network --threads 1 --budget 60s; done
    python benchmarks/tuning.py --neighbours 60    # measure the configs of the nearest problems as well, for 60 seconds
    python benchmarks/tuning.py                    # write the page
    python benchmarks/tuning.py --table            # write the package's table of this micro-architecture
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from report import Report

from convsmith.cli.tune import opened
from convsmith.machine.micro_architectures import preferred
from convsmith.machine.registry import host_target
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.records import shipped
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import Measured, best_of
from convsmith.tune.records.origin import compiler_key, machine_key, machine_text
from convsmith.tune.records.report import model_errors
from convsmith.tune.search.neighbours import nearest, transferred
from convsmith.tune.search.search import compare
from convsmith.tune.search.workers import Workers

WORTH = 0.97
"""Ratio to the first choice above which a config is not worth a row of the table."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbours", type=float, metavar="SECONDS", help="measure the nearest problems' configs")
    parser.add_argument("--table", action="store_true", help="write the table of this micro-architecture")
    options = parser.parse_args(arguments)
    with opened(create=False) as database:
        rows = database.rows(machine=machine_key(), threads=1, status="ok")
        if options.neighbours is not None:
            own = [row for row in rows if row.compiler == compiler_key()]
            measure_neighbours(database, own, options.neighbours)
        elif options.table:
            write_table(rows)
        else:
            write_page(rows)


def measure_neighbours(database: Database, rows: Sequence[Measured], seconds: float) -> None:
    """Measure, for each problem, the config that its nearest neighbour suggests, where that is not measured yet."""
    end = time.perf_counter() + seconds
    known = {(row.problem, row.config) for row in rows}
    with Workers() as workers:
        for best, config in suggestions(rows):
            if config is not None and (best.problem, str(config)) not in known and time.perf_counter() < end:
                problem = parse_problem(best.problem)
                compare(problem, host_target(best.target), 1, [config], database, workers)


def suggestions(rows: Sequence[Measured]) -> Iterator[tuple[Measured, Config | None]]:
    """Yield the best row of each problem with the config that is best for its nearest neighbour, if it has one."""
    best = list(best_rows(rows))
    for row in best:
        same = (other for other in best if (other.target, other.compiler) == (row.target, row.compiler))
        known = [(other.problem, other.config) for other in same]
        problem, level = parse_problem(row.problem), host_target(row.target)
        legal = (transferred(text, problem, level, 1) for text in nearest(row.problem, known))
        yield row, next((config for config in legal if config is not None), None)


def best_rows(rows: Sequence[Measured]) -> Iterator[Measured]:
    """Yield the best row of each problem, target and compiler."""
    for _, group in groupby(sorted(rows, key=_question), _question):
        best = best_of(group)
        if best is not None:
            yield best


def write_table(rows: Sequence[Measured]) -> None:
    """Write the table that comes with convsmith."""
    best = list(best_rows(rows))
    firsts = {_question(row): row.config for row in rows if row.ratio == 1}
    worth = {
        (row.problem, firsts[_question(row)]): [row.problem, firsts[_question(row)], row.config, round(row.ratio, 3)]
        for row in sorted(best, key=lambda row: -row.bound)
        if row.ratio <= WORTH and _question(row) in firsts
    }
    content = {"schema": shipped.SCHEMA, "machine": machine_text(), "date": max(row.date for row in best)}
    lines = ",\n".join(json.dumps(row) for _, row in sorted(worth.items()))
    head = json.dumps(content | {"measured": len(best)})[:-1]
    path = Path(shipped.__file__).parent / "tables" / f"{preferred().name}.json"
    path.write_text(f'{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{path.name}: {len(worth)} of {len(best)} problems")


def write_page(rows: Sequence[Measured]) -> None:
    """Write the page of results."""
    report = Report("tuning", "Tuned configs beside the model's first choice")
    report.note(
        "One thread. A ratio is the time of a config by that of the model's first choice, both sampled in the same "
        "rounds (below 1: faster). The neighbour's config is the best of the nearest other problem of the same kind, "
        "whose own measurements are left out."
    )
    ratios = {(row.problem, row.config, row.compiler): row.ratio for row in rows}
    table, gains, near = [], [], []
    for best, config in suggestions(rows):
        neighbour = None if config is None else ratios.get((best.problem, str(config), best.compiler))
        gains.append(best.ratio)
        if neighbour is not None:
            near.append((neighbour, best.ratio))
        tried = sum(_question(row) == _question(best) for row in rows)
        cells = [best.problem, best.target, f"{best.ratio:.2f}", "-" if neighbour is None else f"{neighbour:.2f}"]
        table.append([*cells, str(tried), f"{best.rounds}", f"`{best.config}`"])
    beyond_best = [1 / gain for gain in gains]
    summary = [
        ["first choice beyond the best", f"{mean(beyond_best) - 1:.1%}", f"{max(beyond_best) - 1:.0%}", f"{len(gains)}"]
    ]
    if near:
        ahead = mean([n for n, _ in near])
        beyond = [n / best for n, best in near]
        summary += [
            ["neighbour's config beyond the first choice", f"{ahead - 1:+.1%}", f"{max(n for n, _ in near) - 1:+.0%}",
             f"{len(near)}"],
            ["neighbour's config beyond the best", f"{mean(beyond) - 1:.1%}", f"{max(beyond) - 1:.0%}", f"{len(near)}"],
        ]  # fmt: skip
    report.table("Summary", ["time", "geometric mean", "worst", "problems"], summary)
    errors = model_errors(rows)
    report.table(
        "Error of the model", ["machine, compiler", "problems", "configs", "typical error of a ratio of two configs"],
        [[f"{e.machine} {e.compiler}", str(e.problems), str(e.configs), f"{e.error:.0%}"] for e in errors],
    )  # fmt: skip
    columns = ["problem", "target", "best / first", "neighbour / first", "configs", "samples", "best config"]
    report.table("Problems", columns, table)
    report.data = {"rows": [asdict(row) for row in best_rows(rows)], "errors": [e._asdict() for e in errors]}
    report.write()


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _question(row: Measured) -> tuple[str, ...]:
    return row.problem, row.target, row.compiler


if __name__ == "__main__":
    main()
