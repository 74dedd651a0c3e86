"""`convsmith tune`: search for the fastest configs, and keep what was measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import click

from convsmith.cli.output import Rows, error_line, note, progress
from convsmith.cli.problems import ProblemCommand, check_choices, problem_options, read_problems
from convsmith.cli.table import Column
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import MOST_THREADS, settings
from convsmith.machine.registry import host_target
from convsmith.machine.registry import target as known_target
from convsmith.runtime.threads import default_threads
from convsmith.tune.database import Database
from convsmith.tune.origin import machine_key, machine_text
from convsmith.tune.process import WorkerProcess
from convsmith.tune.recall import database_path
from convsmith.tune.search import Outcome, search

__all__ = ["opened", "time_text", "tune"]

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}
"""Units of a budget, in seconds."""


class _Budget(click.ParamType[float]):
    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds of a text such as 30s, 500ms, 2m or 0."""
        text = str(value).strip()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        try:
            seconds = float(number) * _SECONDS[text[len(number) :]]
        except (ValueError, KeyError):
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            self.fail(f"{text!r} is no time; legal are 0, 30s, 500ms, 2m and the like", param, ctx)
        return seconds


@click.command(cls=ProblemCommand)
@click.argument("source", metavar="NETWORK|DESCRIPTOR|FILE|-")
@click.option("--budget", type=_Budget(), default="30s", show_default=True, help="Time for all problems together.")
@click.option("--threads", type=click.IntRange(1, MOST_THREADS), metavar="N", help="Threads; by default all CPUs.")
@click.option("--target", metavar="NAME", help="Instruction set (see `convsmith machine`).")
@click.option("--layout", default="axb", show_default=True, help="Layout where a line leaves it open.")
@click.option("--wide", is_flag=True, help="All columns and names, however wide the terminal is.")
@problem_options
def tune(
    source: str, budget: float, threads: int | None, target: str | None, layout: str, wide: bool,
    **options: str | bool | None,
) -> None:  # fmt: skip
    """Search for the fastest config of each problem: a network, a descriptor, or a file of descriptors.

    Every measurement is kept in the database (CONVSMITH_DATABASE), and every later `compile` on this machine uses the
    best one. An interrupted search keeps what it has measured, and a later one goes on from there.
    """
    check_choices(target, None, runs=True)
    listed = read_problems(source, options, layout)
    problems = list(dict.fromkeys(p.canonical() for p in listed.problems))
    count = threads or default_threads()
    if budget == 0:
        note(f"budget 0: nothing is measured, and the model's choices stay ({len(problems)} problems)")
        return
    rows = Rows(_columns(max(len(listed.text(p)) for p in problems)), wide=wide)
    outcomes: list[Outcome] = []
    start, interrupted = time.perf_counter(), False
    with opened() as database, WorkerProcess() as worker, progress(len(problems)) as bar:
        database.name_machine(machine_key(), machine_text())
        with bar.aside():
            rows.text(f"{machine_text()}, {count} thread{'s' * (count > 1)}, database {database.path}")
            rows.head()
        try:
            for number, problem in enumerate(problems):
                text = listed.text(problem)
                bar.start(text)
                share = (start + budget - time.perf_counter()) / (len(problems) - number)
                level = host_target(target or settings.target or known_target(None, problem.types).name)

                def tell(state: str, text: str = text) -> None:
                    bar.start(f"{text}: {state}")

                outcomes.append(search(problem, level, count, max(share, 0.0), database, worker, tell=tell))
                with bar.aside():
                    rows.row(_cells(text, outcomes[-1]))
                bar.advance()
        except KeyboardInterrupt:
            interrupted = True
    _foot(rows, outcomes)
    if interrupted:
        error_line(f"interrupted: {len(outcomes)} of {len(problems)} problems are finished; measurements are kept")
        click.get_current_context().exit(130)


def opened(create: bool = True) -> Database:
    """Return the database that the settings name, open."""
    path = database_path()
    if path is None:
        raise UsageError("CONVSMITH_DATABASE=off: there is no database; legal is a file, or 'default'", code="off")
    return Database(path, create)


def _columns(longest: int) -> list[Column]:
    return [
        Column("problem", longest, left=True), Column("time", 9), Column("of first", 8), Column("tried", 5),
        Column("seconds", 7, 3), Column("config", 40, 5, left=True),
    ]  # fmt: skip


def _cells(text: str, outcome: Outcome) -> dict[str, str]:
    best = outcome.best
    cells = {"problem": text, "tried": str(outcome.tried.total()), "seconds": f"{outcome.seconds:.1f}"}
    if best is None:
        return cells | {"time": "-", "of first": "-", "config": outcome.ended}
    return cells | {"time": time_text(best.seconds), "of first": f"{best.ratio:.2f}", "config": best.config}


def _foot(rows: Rows, outcomes: Sequence[Outcome]) -> None:
    """Print what was refused and what failed, each by its reason."""
    tried: Counter[str] = sum((o.tried for o in outcomes), Counter())
    refused: Counter[str] = sum((o.refused for o in outcomes), Counter())
    if refused:
        reasons = ", ".join(f"{count} {code}" for code, count in refused.most_common())
        rows.text(f"{refused.total()} refused: {reasons}")
    failed = ", ".join(f"{count} {status}" for status, count in tried.most_common() if status != "ok")
    rows.text(f"{tried.total()} compiled" + (f": {tried['ok']} measured, {failed}" if failed else " and measured"))


def time_text(seconds: float) -> str:
    """Return a time as text with three digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"
