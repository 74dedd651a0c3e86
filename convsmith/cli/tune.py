"""`convsmith tune`: search for the fastest configs, and keep what was measured."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import click

from convsmith.cli.models import ModelInputs, input_option, models_or_problems
from convsmith.cli.options import Duration
from convsmith.cli.output import Rows, error_line, note, progress
from convsmith.cli.problems import ProblemCommand, check_choices, problem_options
from convsmith.cli.table import Column
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import MAX_THREADS, settings
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_target
from convsmith.machine.registry import target as known_target
from convsmith.problem.problem import Problem
from convsmith.runtime.threads import default_threads
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import best_of
from convsmith.tune.records.origin import machine_key, machine_text
from convsmith.tune.records.recall import database_path
from convsmith.tune.records.report import model_errors
from convsmith.tune.search.cluster import ClusterOutcome, search_on_cluster
from convsmith.tune.search.device_space import space_of
from convsmith.tune.search.hints import hints
from convsmith.tune.search.reach import MAX_PREDICTED_RATIO, Reach, configs_in_reach
from convsmith.tune.search.search import Outcome, search
from convsmith.tune.search.workers import Workers
from convsmith.tune.vector_width import machine_of

__all__ = ["opened", "time_text", "tune"]


@click.command(cls=ProblemCommand, epilog="Example: convsmith tune resnet50 --budget 1m")
@click.argument("source", metavar="NETWORK|DESCRIPTOR|FILE|MODEL.onnx|-", default="")
@click.option("--budget", type=Duration(), default="30s", show_default=True, help="Time for all problems together.")
@click.option("--threads", type=click.IntRange(1, MAX_THREADS), metavar="N", help="Threads; by default all CPUs.")
@click.option("--target", metavar="NAME", help="Instruction set (see `convsmith machine`).")
@click.option("--layout", default="axb", show_default=True, help="Layout where a line leaves it open.")
@click.option("--cluster", metavar="ADDRESS", help="Search on the machines of a Dask cluster.")
@click.option("--report", is_flag=True, help="Print the model's error against all measurements, and measure nothing.")
@click.option(
    "--space", is_flag=True, help="Print the space around the model's choice, with --wide all configs; measure none.",
)
@click.option("--exhaustive", is_flag=True, help="Measure every config within reach that the model does not rule out.")
@click.option(
    "--within", type=click.FloatRange(1.0), metavar="RATIO",
    help=f"Expected time, relative to the least, that rules a config out; by default {MAX_PREDICTED_RATIO}.",
)
@click.option("--along", metavar="DIMENSION,...", help="Dimensions of the steps (see --space); by default all.")
@click.option("--wide", is_flag=True, help="All columns and names, whatever the width.")
@problem_options
@input_option
def tune(
    source: str, budget: float, threads: int | None, target: str | None, layout: str, cluster: str | None, report: bool,
    space: bool, exhaustive: bool, within: float | None, along: str | None, wide: bool, inputs: ModelInputs,
    **options: str | bool | None,
) -> None:  # fmt: skip
    """Search for the fastest config of each problem: a network (resnet50, mobilenet_v2, vgg16), a descriptor, a file of
    descriptors, or the convolutions of an ONNX model.

    Every measurement is kept in the database (CONVSMITH_DATABASE), and every later `compile` on this machine uses the
    best one. An interrupted search keeps what it has measured, and a later one goes on from there. An exhaustive search
    measures every config that steps reach through configs which the model expects to take at most 1.8 of the least
    time (--within), along all dimensions of the space (--along); the budget ends it too. With --space, it counts them.
    """
    if report:
        _report()
        return
    if exhaustive and cluster is not None:
        why = "--exhaustive searches on this machine; legal with --cluster is a search without it"
        raise UsageError(why, code="bad-option")
    if not exhaustive and (within is not None or along is not None):
        raise UsageError("--within and --along are for --exhaustive", code="bad-option")
    reach = Reach(within or MAX_PREDICTED_RATIO, tuple(along.split(",")) if along else ()) if exhaustive else None
    if not source:
        raise UsageError("tune needs a network, a descriptor or a file, or --report", code="no-problem")
    check_choices(target, None, runs=cluster is None and not space)
    listed = models_or_problems(source, options, layout, inputs)
    texts = {p.canonical(): listed.text(p) for p in listed.problems}
    count = threads or default_threads()
    named = known_target(target or settings.target) if target or settings.target else None
    if named is not None and named.device is not None:
        count = 1  # one thread of the host launches a kernel
    if space:
        for p in listed.problems:
            _space(p.canonical(), listed.text(p), target, count, wide, reach)
        return
    if budget == 0:
        note(f"budget 0: nothing is measured, and the model's choices stay ({len(texts)} problems)")
        return
    rows = Rows(_columns(max(map(len, texts.values()))), wide=wide)
    with opened() as database:
        if cluster is not None:
            _on_cluster(cluster, texts, count, budget, target, database, rows)
            return
        outcomes: list[Outcome] = []
        start, interrupted = time.perf_counter(), False
        with Workers() as workers, progress(len(texts)) as bar:
            database.name_machine(machine_key(named), machine_text(named))
            with bar.aside():
                rows.text(f"{machine_text(named)}, {count} thread{'s' * (count > 1)}, database {database.path}")
                rows.head()
            try:
                for number, (problem, text) in enumerate(texts.items()):
                    bar.start(text)
                    share = (start + budget - time.perf_counter()) / (len(texts) - number)
                    level = host_target(target or machine_of(problem).name)

                    def tell(state: str, text: str = text) -> None:
                        bar.start(f"{text}: {state}")

                    near = hints(problem, level, count, database)
                    left = max(share, 0.0)
                    outcomes.append(
                        search(problem, level, count, left, database, workers, near, tell, exhaustive=reach)
                    )
                    with bar.aside():
                        rows.row(_cells(text, outcomes[-1]))
                        if refused := outcomes[-1].refused:
                            rows.text(f"    {_reasons(refused)}")
                    bar.advance()
            except KeyboardInterrupt:
                interrupted = True
    _foot(rows, outcomes)
    if interrupted:
        error_line(f"interrupted: {len(outcomes)} of {len(texts)} problems are finished; measurements are kept")
        click.get_current_context().exit(130)


def _on_cluster(
    address: str, texts: Mapping[Problem, str], threads: int, budget: float, target: str | None, database: Database,
    rows: Rows,
) -> None:  # fmt: skip
    """Search on a cluster, and print the outcomes as they come."""
    rows.head()
    failed = 0

    def tell(outcome: ClusterOutcome) -> None:
        nonlocal failed
        own = database.rows(problem=str(outcome.problem), machine=outcome.machine, status="ok", threads=threads)
        best, cells = best_of(own), {"problem": texts[outcome.problem], "tried": str(len(own))}
        if best is not None:
            cells |= {"time": time_text(best.seconds), "of first": f"{best.ratio:.2f}", "config": best.config}
        rows.row(cells | {"seconds": ""})
        failed += bool(outcome.failed)
        if outcome.failed:
            error_line(f"{texts[outcome.problem]} on {outcome.machine}: {outcome.failed}")

    search_on_cluster(address, list(texts), threads, budget, target, database, tell)
    for machine, text in database.machines().items():
        rows.text(f"{machine}: {text}")
    click.get_current_context().exit(1 if failed else 0)


def _space(
    problem: Problem, text: str, target: str | None, threads: int, wide: bool, reach: Reach | None
) -> None:  # fmt: skip
    """Print the number of configs one step away from the model's choice along each dimension, and the refused configs;
    if ``wide``, each config that makes a kernel. With a ``reach``, print the number of configs in it, or each of them.
    """
    level = known_target(target) if target else machine_of(problem)
    with interning():
        made = space_of(problem, level, threads)
        note(f"{text}\nfrom {made.seeds[0]}, one of {len(made.seeds)} candidates of the model")
        if reach is not None:
            every = list(configs_in_reach(made, reach, (), lambda config: not made.refusal(config)))
            note(f"    {len(every)} configs that are expected to take at most {reach.ratio:g} of the least time")
            for config in every if wide else ():
                note(f"        {config}")
            return
        steps = made.census(made.seeds[0])
    total: Counter[str] = Counter()
    for dimension, (legal, refused) in steps.items():
        total += refused
        note(f"    {dimension:12}{len(legal):5}" + (f"   {_reasons(refused)}" if refused else ""))
        for config in legal if wide else ():
            note(f"        {config}")
    count = sum(len(legal) for legal, _ in steps.values())
    note(f"    {'all':12}{count:5}" + (f"   {_reasons(total)}" if total else ""))


def _reasons(refused: Counter[str]) -> str:
    """Return the number of refused configs, and their reasons."""
    return f"{refused.total()} refused: " + ", ".join(f"{count} {code}" for code, count in refused.most_common())


def _report() -> None:
    """Print the model's error on each machine."""
    with opened(create=False) as database:
        errors, machines = model_errors(database.rows()), database.machines()
    if not errors:
        note("no problem has two measured configs")
        return
    rows = Rows(
        [
            Column("machine, compiler", 40, left=True), Column("problems", 8), Column("configs", 7),
            Column("error", 6), Column("first choice", 12), Column("worst", 6),
        ]
    )  # fmt: skip
    rows.head()
    for e in errors:
        rows.row({
            "machine, compiler": f"{e.machine} {e.compiler}", "problems": str(e.problems), "configs": str(e.configs),
            "error": f"{e.error:.0%}", "first choice": f"+{e.loss:.0%}", "worst": f"+{e.worst:.0%}",
        })  # fmt: skip
        rows.text(f"    {machines.get(e.machine, 'a machine without a description')}; worst: {e.worst_problem}")
    rows.text("error: typical difference of a predicted and a measured ratio of two configs of a problem")
    rows.text("first choice: its time beyond that of the best measured config, geometric mean and worst")


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
    """Print refused configs and failures of all problems together, each by its reason."""
    tried: Counter[str] = sum((o.tried for o in outcomes), Counter())
    refused: Counter[str] = sum((o.refused for o in outcomes), Counter())
    if refused and len(outcomes) > 1:
        rows.text(f"all problems: {_reasons(refused)}")
    failed = ", ".join(f"{count} {status}" for status, count in tried.most_common() if status != "ok")
    rows.text(f"{tried.total()} compiled" + (f": {tried['ok']} measured, {failed}" if failed else " and measured"))


def time_text(seconds: float) -> str:
    """Return a time as text with three digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.3g} ns"
