"""A minute for a network: the speed that its searches reach, relative to that of longer searches of the same layers.

    python benchmarks/minute.py                            # six layers of ResNet-50, in about three minutes
    python benchmarks/minute.py --layers 23 --limit 260    # all of them, each as long as a hundred minutes allow

Each layer is searched for its share of the budget, as `convsmith tune NETWORK --budget 60s` does, in a database of its
own. The long search goes on from there. Both best configs are then timed in the same rounds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

from report import Report

from convsmith.cli.problems import with_layout
from convsmith.machine.registry import host_target, target
from convsmith.problem.problem import Problem
from convsmith.problem.suites import suite
from convsmith.runtime.threads import available_cpus
from convsmith.schedule.config import Config
from convsmith.tune.records.database import IN_MEMORY, Database
from convsmith.tune.search.hints import hints
from convsmith.tune.search.search import Outcome, compare, search
from convsmith.tune.search.workers import Workers


@dataclass(frozen=True)
class Layer:
    """A layer with both searches, and the time of the long one's best config by that of the short one's."""

    problem: Problem
    short: Outcome
    long: Outcome
    share: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", default="resnet50", help="a network of `convsmith bench`")
    parser.add_argument("--layers", type=int, default=6, help="number of layers, evenly chosen")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for all layers of the network")
    parser.add_argument("--times", type=float, default=100.0, help="length of the long search, in shares of a layer")
    parser.add_argument("--limit", type=float, default=25.0, help="maximum number of seconds of a long search")
    parser.add_argument("--patience", type=int, default=12, help="rounds without a gain after which it ends")
    options = parser.parse_args(arguments)
    every = suite(options.network)
    count = min(options.layers, len(every))
    chosen = [every[n * len(every) // count] for n in range(count)]
    seconds = options.budget / len(every)
    length = min(seconds * options.times, options.limit)
    with Workers() as workers:
        layers = []
        for problem in chosen:
            layers.append(measured(problem, seconds, length, options.patience, workers))
            print(f"{problem.descriptor()}: {layers[-1].share:.3f}", flush=True)
    write_page(options.network, options.budget, length, layers)


def measured(problem: Problem, seconds: float, length: float, patience: int, workers: Workers) -> Layer:
    """Return the layer ``problem``, searched for ``seconds``, and then for at most ``length`` more."""
    problem = with_layout(problem, "axb").canonical()
    level = target(None, problem.types)
    with Database(IN_MEMORY) as database:
        short = search(problem, level, 1, seconds, database, workers, hints(problem, level, 1, database))
        long = search(problem, level, 1, length, database, workers, patience=patience)
    return Layer(problem, short, long, share_of(problem, short, long, workers))


def share_of(problem: Problem, short: Outcome, long: Outcome, workers: Workers) -> float:
    """Return the time of the long search's best config by that of the short one's, measured in the same rounds."""
    if short.best is None or long.best is None or short.best.config == long.best.config:
        return 1.0
    configs = {outcome.best.config: Config.parse(outcome.best.config) for outcome in (short, long) if outcome.best}
    with Database(IN_MEMORY) as database:
        compare(problem, host_target(short.best.target), 1, list(configs.values()), database, workers)
        ratio = {row.config: row.ratio for row in database.rows(status="ok")}
    return ratio.get(long.best.config, 1.0) / ratio.get(short.best.config, 1.0)


def write_page(network: str, budget: float, length: float, layers: Sequence[Layer]) -> None:
    """Write the page of results."""
    report = Report("minute", f"{network}: searches of {budget:g} seconds beside longer ones")
    report.note(
        f"One thread, {available_cpus()} CPUs. A layer has its share of {budget:g} seconds; the long search goes on "
        f"for {length:g} seconds at most. The share is the speed of the first best config relative to that of the "
        "second, both timed in the same rounds."
    )
    shares = [min(layer.share, 1.0) for layer in layers]
    mean = math.exp(sum(map(math.log, shares)) / len(shares))
    table = [
        [
            layer.problem.descriptor(), f"{layer.share:.3f}", f"{layer.short.seconds:.1f}",
            str(layer.short.tried.total()), f"{layer.long.seconds:.1f}", str(layer.long.tried.total()),
            layer.long.ended,
        ]
        for layer in layers
    ]  # fmt: skip
    columns = ["layer", "share", "seconds", "configs", "seconds of the long search", "its configs", "its end"]
    report.table("Layers", columns, table)
    summary = [[str(len(shares)), f"{mean:.3f}", f"{min(shares):.3f}"]]
    report.table("Summary", ["layers", "geometric mean of shares", "least"], summary)
    report.data = {"rows": [dict(zip(columns, row)) for row in table], "mean": mean}
    report.write()


if __name__ == "__main__":
    main()
