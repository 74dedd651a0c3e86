"""The model's first choices beside the fastest configs that searches measured, replayed from committed measurements.

    python benchmarks/first_choice.py                 # all tables: mean and worst loss by kind and level
    python benchmarks/first_choice.py znver4 --list   # with each problem whose first choice loses 5 % or more
    python benchmarks/first_choice.py znver4 --table EXPORT.json    # make the table of an export of a database

Nothing is measured: the model chooses as on the table's micro-architecture, and the times of that config and of the
fastest one are looked up. So a change of the model shows in seconds, on any machine, for each that was measured. A
first choice that no search measured counts as `unknown` and has no loss.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from convsmith.machine.micro_architectures import MicroArchitecture, named
from convsmith.machine.registry import known_targets
from convsmith.problem.lines import parse_problem
from convsmith.tune.candidates import candidates
from convsmith.tune.records.measured import DOUBTED_FRACTION, KEPT_RATIO, MIN_SPREAD

FOLDER = Path(__file__).parent / "measurements"
DISTURBED = 0.2
"""Difference of a ratio's quartiles, relative to the ratio, above which another program disturbed the rounds."""
MIN_ROUNDS = 5
"""Minimum number of rounds of a config that may be called the fastest."""
SHOWN = 1.05
"""Minimum loss, as a ratio of times, of a problem that --list shows."""


class Sample(NamedTuple):
    """The time of a config as a ratio to that of the search's reference, with the spread of ``rounds`` such ratios."""

    ratio: float
    spread: float
    rounds: int

    @property
    def bound(self) -> float:
        """Ratio that is surely not exceeded."""
        return self.ratio * (1 + DOUBTED_FRACTION * max(self.spread, MIN_SPREAD) / max(self.rounds, 1) ** 0.5)


class Question(NamedTuple):
    """A problem at a level, with all configs of it that were measured on one thread."""

    line: str
    level: str
    samples: Mapping[str, Sample]

    @property
    def kind(self) -> str:
        """The kind of the problem: its direction, or the type of a forward one that is not f32."""
        if "--dir=BWD" in self.line:
            return "gradients"
        return self.line.partition("--dt=")[2].partition(" ")[0] or "forward f32"

    @property
    def best(self) -> float:
        """The ratio of the fastest config, 1 where none is surely faster than the reference."""
        known = [x for x in self.samples.values() if x.rounds >= MIN_ROUNDS]
        fastest = min(known, key=lambda x: x.bound, default=None)
        return 1.0 if fastest is None or fastest.bound > KEPT_RATIO else fastest.ratio

    def loss(self, config: str) -> float | None:
        """Return the time of ``config`` by that of the fastest one; None where it was not measured."""
        sample = self.samples.get(config)
        return None if sample is None else max(sample.ratio / self.best, 1.0)


class Table(NamedTuple):
    """The measurements of one machine, whose micro-architecture has this name."""

    name: str
    machine: str
    source: str
    questions: tuple[Question, ...]


class Answer(NamedTuple):
    """The model's first choice for a question, with its loss; None where it was not measured."""

    question: Question
    config: str
    loss: float | None


class Summary(NamedTuple):
    """Losses of first choices: their geometric mean and the worst, less 1, of the ``known`` ones of ``count``."""

    count: int
    known: int
    mean: float
    worst: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="micro-architectures (default: all that have a table)")
    parser.add_argument("--list", action="store_true", help="show each problem whose first choice loses 5 %% or more")
    parser.add_argument("--table", type=Path, metavar="EXPORT", help="write the table from an export of a database")
    options = parser.parse_args(arguments)
    if options.table is not None:
        (name,) = options.names
        write_table(name, json.loads(options.table.read_text()))
        return
    for name in options.names or tables():
        table = read_table(name)
        print(f"{table.name}: {table.machine}; {table.source}")
        answers = list(first_choices(table, named(name)))
        for line in lines_of(answers):
            print(f"  {line}")
        losses = [x for x in answers if x.loss is not None and x.loss >= SHOWN] if options.list else []
        for x in sorted(losses, key=lambda x: x.loss or 0.0, reverse=True):
            fastest = min(x.question.samples, key=lambda config: x.question.samples[config].bound)
            print(f"  {x.loss:.2f} {x.question.level} {x.question.line}")
            print(f"       first {x.config}\n       best  {fastest}")


def tables() -> list[str]:
    """Return the names of the micro-architectures that have measurements."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read_table(name: str) -> Table:
    """Return the measurements of a micro-architecture, without the disturbed ones."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    questions = []
    for line, level, rows in content["questions"]:
        samples = {f"--target={level} {config}": Sample(*numbers) for config, *numbers in rows}
        questions.append(Question(line, level, {k: x for k, x in samples.items() if x.spread <= DISTURBED}))
    return Table(name, content["machine"], content["source"], tuple(questions))


def write_table(name: str, export: Mapping[str, object]) -> None:
    """Write the table of a micro-architecture from an export of a database that one machine measured."""
    rows, machines = export["rows"], export["machines"]
    assert isinstance(rows, list) and isinstance(machines, dict) and len(machines) == 1
    found: dict[tuple[str, str], list[tuple[str, float, float, int]]] = defaultdict(list)
    for row in rows:
        if row["status"] == "ok" and row["threads"] == 1:
            config = row["config"].removeprefix(f"--target={row['target']} ")
            sample = (config, round(row["ratio"], 4), round(row["spread"], 3), row["rounds"])
            found[row["problem"], row["target"]].append(sample)
    source = f"`convsmith tune` on one thread, {max(row['date'] for row in rows)}"
    head = json.dumps({"machine": next(iter(machines.values())), "source": source})[:-1]
    every = [json.dumps([*key, sorted(x, key=lambda x: x[1])]) for key, x in sorted(found.items())]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(f'{head}, "questions": [\n' + ",\n".join(every) + "\n]}\n")


def first_choices(table: Table, micro_architecture: MicroArchitecture) -> Iterator[Answer]:
    """Yield the model's first choice for each question by the costs of ``micro_architecture``."""
    levels = {level.name: micro_architecture.of(level) for level in known_targets("generic")}
    for question in table.questions:
        config = str(candidates(parse_problem(question.line), levels[question.level], 1)[0].config)
        yield Answer(question, config, question.loss(config))


def summaries(answers: Iterable[Answer]) -> dict[tuple[str, str], Summary]:
    """Return the summary of each kind of problems at each level."""
    found: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for x in answers:
        found[x.question.kind, x.question.level].append(x.loss)
    return {key: _summary(losses) for key, losses in sorted(found.items())}


def _summary(losses: Sequence[float | None]) -> Summary:
    known = [x for x in losses if x is not None]
    mean = math.exp(sum(map(math.log, known)) / max(len(known), 1))
    return Summary(len(losses), len(known), mean - 1, max(known, default=1.0) - 1)


def lines_of(answers: Iterable[Answer]) -> Iterator[str]:
    """Yield a line for each kind of problems at each level."""
    for (kind, level), x in summaries(answers).items():
        unknown = f", {x.count - x.known} unknown" if x.known < x.count else ""
        yield f"{kind:12} {level:12} {x.count:3} problems{unknown}: mean {x.mean:.1%}, worst {x.worst:.0%}"


if __name__ == "__main__":
    main()
