"""Fits the costs of a micro-architecture to measurements: those by which the model's first choices lose least time.

    python benchmarks/fit.py znver4 --level avx512                # try every cost, one after the other
    python benchmarks/fit.py znver4 --level avx2 --costs call,turn    # only these costs
    python benchmarks/fit.py znver4 --level avx512 --write        # keep the page in results/
    python benchmarks/fit.py znver4 --level avx512 --held-out     # fit to one half of the problems, judge on the other

Nothing is measured: `first_choice.py` replays the choices on the table of `measurements/`. From the costs in
`convsmith/machine/`, each cost is tried at multiples of its value, and the best one stays where the mean loss falls by
enough, and where it falls for neither half of the problems at the expense of the other one: a value that serves half of
them alone is an accident. Passes over all costs follow each other until none changes.

The features of the measured configs are counted once, and timed with each value of a price. The model chooses anew only
with the values by which it would choose a faster one of these configs, and with all values of a limit, such as the
bytes of weights that stay in a cache, which decides what features are.

With --held-out, the fit begins from the reference costs, because those of the micro-architecture were fitted to the
same problems. A problem belongs to the same half at each level and with each cost.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any
from zlib import crc32

from first_choice import Answer, Question, Sample, Table, first_choices, lines_of, read_table
from report import Report

from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.machine.costs import Costs
from convsmith.machine.micro_architectures import MicroArchitecture, named
from convsmith.machine.prices import LIMITS
from convsmith.machine.registry import known_targets
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.costs.expected import expected_features
from convsmith.tune.costs.features import Features, cycles

__all__ = ["Fit", "Question", "Sample", "Table", "first_choices", "mean_loss", "numeric_costs", "values"]

FACTORS = (0.5, 0.7, 0.85, 1.2, 1.4, 2.0)
"""Multiples of a cost that are tried."""
SIZES = (1 << 17, 1 << 18, 1 << 19, 1 << 20, 3 << 19, 1 << 21, 1 << 23)
"""Bytes that are tried for a cost that is 0, which says that nothing of any size has its effect."""
OFF = (
    "prefetched", "prefetched_transforms", "prefetched_pixels", "prefetched_results", "fetched_pixels",
    "fetched_blocks", "prefetched_copies", "page_turn",
    "extend", "copied_line", "interrupted", "far_run", "fragment_row", "memory_line", "memory_part", "memory_run",
    "memory_wait", "memory_page", "added_ways",
    "interleave", "memory_weight", "row_wait", "part_load", "broadcast_pair", "fetched_weights",
    "pack_channels", "columns", "interleaved", "waited_near", "widen", "arriving_line", "late_line", "crossed_line",
    "late_result",
    "result_step", "turned_pages", "streamed_weights", "channel_line",
    "fragment_run", "fragment_line",
)  # fmt: skip
"""Costs whose 0 means that the effect does not exist, or that it has the price of another cost."""
CYCLES = {
    "page_turn": (1.0, 3.0, 6.0), "extend": (0.5, 1.0, 2.0), "copied_line": (0.5, 1.5, 3.0),
    "interrupted": (1.0, 4.0, 16.0), "far_run": (2.0, 8.0, 30.0), "fragment_row": (1, 2, 4),
    "memory_line": (5.0, 10.0, 20.0), "memory_part": (20.0, 40.0, 80.0), "memory_run": (15.0, 30.0, 60.0),
    "memory_wait": (120.0, 250.0, 500.0), "memory_page": (400.0, 800.0, 1600.0), "added_ways": (2, 4, 8),
    "interleave": (0.5, 1.0, 2.0), "memory_weight": (0.04, 0.08, 0.16),
    "row_wait": (15.0, 35.0, 70.0), "part_load": (0.15, 0.3, 0.6), "broadcast_pair": (0.5, 0.75, 1.0),
    "pack_channels": (0.15, 0.25, 0.5), "columns": (0.5, 1.0, 2.0), "interleaved": (0.5, 1.0, 1.5),
    "waited_near": (0.2, 0.5, 1.0, 1.5), "widen": (0.15, 0.25, 0.5), "arriving_line": (4.0, 8.0, 16.0),
    "late_line": (10.0, 20.0, 40.0), "late_result": (15.0, 30.0, 60.0), "crossed_line": (0.5, 1.0, 2.0),
    "result_step": (0.1, 0.25, 0.4),
    "turned_pages": (16, 32, 64), "channel_line": (6.0, 13.0, 20.0),
    "fragment_run": (20.0, 45.0, 90.0), "fragment_line": (5.0, 10.0, 20.0),
}  # fmt: skip
"""The values that are tried for those of them that are no sizes in bytes."""
GIVEN = ("page", "temporaries", "weights_byte")
"""Costs that follow from other facts: the system's pages, the instructions, and the price of a streamed byte."""
MIN_GAIN = 0.0015
"""Minimum fall of the mean logarithm of losses for which a cost changes."""
TOLERANCE = 0.0005
"""Maximum rise of that mean over half of the problems."""
UNKNOWN = 0.02
"""The amount that a first choice that was not measured adds to the logarithm of the loss of the search's reference."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="micro-architecture with a table in measurements/")
    parser.add_argument("--level", required=True, help="level whose problems count")
    parser.add_argument("--costs", default="", help="costs to try, in this order (default: all)")
    parser.add_argument("--passes", type=int, default=3, help="maximum number of passes (default: %(default)s)")
    parser.add_argument("--held-out", action="store_true", help="judge a fit to each half of the problems on the other")
    parser.add_argument("--write", action="store_true", help="keep the result beside those of benchmarks")
    options = parser.parse_args(arguments)
    table = read_table(options.name)
    table = table._replace(questions=tuple(x for x in table.questions if x.level == options.level))
    if not table.questions:
        sys.exit(f"{options.name} has no measurements at level {options.level}")
    names = options.costs.split(",") if options.costs else numeric_costs()
    if options.held_out:
        found = held_out(table, named(options.name), options.level, names, options.passes)
        for title, answers in found.items():
            print(title, *lines_of(answers), sep="\n  ")
        if options.write:
            write_held_out(table, options.level, found)
        return
    fit = Fit(table, named(options.name), options.level)
    before = list(fit.answers)
    for line in lines_of(before):
        print(line, flush=True)
    fit.run(names, options.passes, lambda text: print(text, flush=True))
    for line in lines_of(fit.answers):
        print(line)
    print("costs", fit.changed)
    if options.write:
        write_page(fit, before)


def numeric_costs() -> list[str]:
    """Return the names of the costs that are numbers and that a fit may change."""
    return [x.name for x in fields(Costs) if x.type in ("float", "int") and x.name not in GIVEN]


def mean_loss(answers: Sequence[Answer]) -> float:
    """Return the mean logarithm of the losses; a choice that was not measured is worse than the search's reference."""
    return sum(map(_log_loss, answers)) / max(len(answers), 1)


def _log_loss(answer: Answer) -> float:
    if answer.loss is not None:
        return math.log(answer.loss)
    return math.log(1 / answer.question.best) + UNKNOWN


@dataclass
class Fit:
    """The costs of ``micro_architecture`` at a level that fit a table of measurements of that level.

    ``changed`` are the costs that differ from those that it began with.
    """

    table: Table
    micro_architecture: MicroArchitecture
    level: str
    changed: dict[str, Any] = field(default_factory=dict)
    answers: list[Answer] = field(init=False)
    features: list[dict[str, Features]] = field(init=False)

    def __post_init__(self) -> None:
        self.answers = self.asked({})
        self.features = [features_of(question, self._machine({})) for question in self.table.questions]

    def value(self, name: str) -> Any:
        """Return the value of a cost as it is now."""
        return getattr(self._machine({}).costs, name)

    def _with(self, changes: dict[str, Any]) -> MicroArchitecture:
        """Return the micro-architecture with the costs found so far and with ``changes``."""
        own, bits = self.micro_architecture, next(x.vector_bits for x in known_targets() if x.name == self.level)
        costs = {**dict(own.costs_of(bits)), **self.changed, **changes}
        return replace(own, costs=tuple(costs.items()), by_bits=())

    def _machine(self, changes: dict[str, Any]) -> Machine:
        return self._with(changes).of(next(x for x in known_targets("generic") if x.name == self.level))

    def asked(self, changes: dict[str, Any], table: Table | None = None) -> list[Answer]:
        """Return the first choices with ``changes`` of the costs, for the problems of ``table`` or of its own one."""
        return list(first_choices(table or self.table, self._with(changes)))

    def ranked(self, changes: dict[str, Any]) -> float:
        """Return the mean logarithm of the losses of the measured configs of fewest cycles with ``changes``."""
        machine, found = self._machine(changes), []
        for question, known in zip(self.table.questions, self.features):
            if known:
                least = min(known, key=lambda config: cycles(known[config], machine))
                found.append(Answer(question, least, question.loss(least)))
        return mean_loss(found)

    def promising(self, name: str) -> Iterator[Any]:
        """Yield the values of a cost with which the model chooses anew."""
        tried = values(name, self.value(name))
        now = self.ranked({})
        yield from (x for x in tried if name in LIMITS or self.ranked({name: x}) < now)

    def run(self, names: Sequence[str], passes: int, tell: Callable[[str], None]) -> None:
        """Try the costs in their order, at most ``passes`` times; ``tell`` is given each change as text."""
        for _ in range(passes):
            if not any([self.improve(name, tell) for name in names]):
                return

    def improve(self, name: str, tell: Callable[[str], None]) -> bool:
        """Give a cost the value of least loss; return whether that is another one."""
        found = [(self.asked({name: value}), value) for value in self.promising(name)]
        legal = [(mean_loss(answers), value, answers) for answers, value in found if self._is_better(answers)]
        if not legal:
            return False
        loss, value, answers = min(legal, key=lambda x: x[0])
        tell(f"{name}: {self.value(name)} -> {value}: mean {mean_loss(self.answers):.4f} -> {loss:.4f}")
        self.changed[name], self.answers = value, answers
        if name in LIMITS:
            self.features = [features_of(question, self._machine({})) for question in self.table.questions]
        return True

    def _is_better(self, answers: Sequence[Answer]) -> bool:
        halves = (slice(0, None, 2), slice(1, None, 2))
        rises = [mean_loss(answers[x]) - mean_loss(self.answers[x]) for x in halves]
        return max(rises) <= TOLERANCE and mean_loss(self.answers) - mean_loss(answers) >= MIN_GAIN


def features_of(question: Question, machine: Machine) -> dict[str, Features]:
    """Return the features of the measured configs of a problem that are legal."""
    problem, found = parse_problem(question.line), {}
    for config in question.samples:
        with suppress(ConfigError):
            found[config] = expected_features(problem, Config.parse(config), machine)
    return found


def values(name: str, value: Any) -> Iterator[Any]:
    """Yield the values that are tried for a cost."""
    if name in OFF and not value:
        yield from CYCLES.get(name, SIZES)
        return
    if name in OFF:
        yield 0
    tried = (round(value * factor) if isinstance(value, int) else round(value * factor, 4) for factor in FACTORS)
    yield from dict.fromkeys(x for x in tried if x != value)


def held_out(
    table: Table, micro_architecture: MicroArchitecture, level: str, names: Sequence[str], passes: int
) -> dict[str, list[Answer]]:
    """Return the first choices for all problems of a table: those of the costs that the micro-architecture has, of the
    reference costs, of costs that are fitted to all problems, and of those fitted to the half that lacks the problem.
    """
    reference = replace(micro_architecture, costs=(), by_bits=())
    own, plain, whole = (Fit(table, x, level) for x in (micro_architecture, reference, reference))
    whole.run(names, passes, lambda text: print("all:", text, flush=True))
    judged: list[Answer] = []
    halves = [table._replace(questions=tuple(x for x in table.questions if half(x) == n)) for n in (0, 1)]
    for n, known in enumerate(halves):
        fit = Fit(known, reference, level)
        fit.run(names, passes, lambda text, n=n: print(f"half {n}:", text, flush=True))  # type: ignore[misc]
        judged += fit.asked({}, halves[1 - n])
    return {
        "the micro-architecture's costs": own.answers, "reference costs": plain.answers,
        "costs fitted to all problems": whole.answers, "costs fitted to the other half": judged,
    }  # fmt: skip


def half(question: Question) -> int:
    """Return the half, 0 or 1, that a problem belongs to."""
    return crc32(question.line.encode()) & 1


def write_held_out(table: Table, level: str, found: dict[str, list[Answer]]) -> None:
    """Write the page of first choices with costs fitted to other problems."""
    report = Report(f"fit-held-out-{table.name}-{level}", f"Costs of {table.name} fitted to half of the problems")
    report.note(
        f"Measurements: {table.machine}; {table.source}. {len(table.questions)} problems. Fits begin from the "
        "reference costs, not from those of the micro-architecture, which were fitted to the same problems."
    )
    rows = [[title, line] for title, answers in found.items() for line in lines_of(answers)]
    report.table("First choices", ["costs", "mean and worst loss"], rows)
    report.data |= {title: {_key(x.question): x.loss for x in answers} for title, answers in found.items()}
    report.write()


def write_page(fit: Fit, before: Sequence[Answer]) -> None:
    """Write the page of a fit, and the first choices before and after it."""
    report = Report(f"fit-{fit.micro_architecture.name}-{fit.level}", f"Costs of {fit.micro_architecture.name} fitted")
    report.note(f"Measurements: {fit.table.machine}; {fit.table.source}. {len(fit.table.questions)} problems.")
    costs = [[name, value] for name, value in fit.changed.items()]
    report.table("Costs that change", ["cost", "value"], [[str(x) for x in row] for row in costs])
    report.table("First choices", ["before", "after"], [list(x) for x in zip(lines_of(before), lines_of(fit.answers))])
    report.data |= {"costs": costs, "losses": {_key(x.question): [x.loss, y.loss] for x, y in zip(before, fit.answers)}}
    report.write()


def _key(question: Question) -> str:
    return f"--target={question.level} {question.line}"


if __name__ == "__main__":
    main()
