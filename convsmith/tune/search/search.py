"""The search for the fastest config of a problem: the model proposes, measurements decide.

The first rounds compare the model's best candidates and hints. Then each round compares the best config so far with
configs one step away from it, the most promising of each dimension first. All configs of a round alternate, and times
are compared within a round only, as ratios to the model's first choice. A ratio is the median of its samples; a config
near the best is sampled again until its quartiles are close. The search ends after `PATIENCE` rounds without a better
config, or when its time is over.

An exhaustive search measures every config in reach (`tune/search/reach.py`), the most promising ones first.

Each config that was tried immediately becomes a row of the database, even if it makes no kernel, gives a wrong result
or kills the process. Existing rows are not measured again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.measure.timing import spread
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.records.database import ANY, Database
from convsmith.tune.records.measured import Measured, Status, best_of, sums_in_order
from convsmith.tune.records.origin import compiler_key, machine_key
from convsmith.tune.records.recall import keeps_bits
from convsmith.tune.search.device_space import space_of
from convsmith.tune.search.process import WorkerDied
from convsmith.tune.search.reach import MAX_PREDICTED_RATIO, Reach, configs_in_reach
from convsmith.tune.search.workers import Workers

__all__ = ["Outcome", "compare", "search"]

FIRST_ROUND = 4
"""Number of candidates of the model in the first round, besides its first choice."""
CHALLENGERS = 6
"""Number of configs of a later round, besides the best so far."""
PATIENCE = 3
"""Number of rounds without a better config after which a search ends."""
FEW_SAMPLES = 3
"""Number of samples of a config that is far from the best in each of them."""
SAMPLES = 5
"""Number of samples of a config whose ratio is not far from the best."""
MAX_SAMPLES = 15
"""Number of samples after which a config is accepted although its quartiles are far apart."""
FINAL_SAMPLES = 9
"""Number of samples of the best config, besides the first choice, at the end."""
FINALISTS = 4
"""Maximum number of configs that get this many samples at the end, one after the other, while an unproven config looks
best.
"""
HINTS = 3
"""Maximum number of configs of earlier searches that are measured again."""
FAR_RATIO = 1.15
"""Ratio to the best of a config's best sample above which it is not sampled again."""
MAX_SPREAD = 0.04
"""Difference of a ratio's quartiles, relative to the ratio, above which it is sampled again."""
BETTER_RATIO = 0.99
"""Maximum ratio to the best so far at which a config counts as better."""
LOST_STEP_RATIO = 1.03
"""Minimum ratio to the best so far at which a step along a dimension counts as lost."""


@dataclass
class Outcome:
    """The result of a search: the row of the best config, and counts.

    ``tried`` counts configs by status, ``refused`` counts configs that were never compiled, by the code of their error.
    """

    problem: Problem
    best: Measured | None
    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    ended: str = ""


@dataclass
class _Candidate:
    """A config in the race, with its samples and its ratios to the reference in the same rounds."""

    config: Config
    predicted: float
    artifact: str | None = None
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    is_stored: bool = False

    @property
    def ratio(self) -> float:
        return median(self.ratios or (1.0,))

    @property
    def width(self) -> float:
        """Difference of the quartiles, relative to the ratio."""
        if len(self.ratios) < 2:
            return 1.0
        quartiles = spread(self.ratios)
        return (quartiles.high - quartiles.low) / quartiles.median


def search(
    problem: Problem, target: Machine, threads: int, seconds: float, database: Database, workers: Workers,
    hints: Sequence[Config] = (), tell: Callable[[str], None] = lambda text: None, patience: int = PATIENCE,
    exhaustive: Reach | None = None,
) -> Outcome:  # fmt: skip
    """Search for at most about ``seconds``, and return the outcome; ``hints`` are tried in the first round.

    It ends sooner after ``patience`` rounds without a better config, or, if it is ``exhaustive``, when every config in
    reach has been measured. ``tell`` receives the state of the search as text.
    With 0 seconds, no config is measured.
    """
    start = time.perf_counter()
    with interning():
        race = _Race(problem, target, threads, start + seconds, database, workers, tell)
        if seconds <= 0:
            ended = "budget"
        else:
            ended = race.run(hints, patience) if exhaustive is None else race.run_all(hints, exhaustive)
    rows = [row for row in database.rows(**race.origin) if row.status == "ok"]
    took = time.perf_counter() - start
    return Outcome(problem, best_of(rows), race.tried, race.space.refused, took, ended)


def compare(
    problem: Problem, target: Machine, threads: int, configs: Sequence[Config], database: Database,
    workers: Workers,
) -> None:  # fmt: skip
    """Measure ``configs`` alongside the model's first choice, and write their rows."""
    with interning():
        race = _Race(problem, target, threads, float("inf"), database, workers, lambda text: None)
        if race.make(race.reference):
            race.round(race.reference, [c for c in configs if race.is_legal(c) and c != race.reference.config])


class _Race:
    """The state of a search: the candidates that are ready in the worker, and the configs seen so far."""

    def __init__(
        self, problem: Problem, target: Machine, threads: int, end: float, database: Database, workers: Workers,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.target, self.threads, self.end = target, threads, end
        self.database, self.workers, self.tell = database, workers, tell
        self.space = space_of(problem, target, threads)
        self.line = str(problem)
        self.origin: dict[str, str | int] = {
            "problem": self.line, "machine": machine_key(target), "compiler": compiler_key(), "target": target.name,
            "threads": threads,
        }  # fmt: skip
        self.tried: Counter[str] = Counter()
        self.reference = self.candidate(self.space.seeds[0])
        self.ready: set[Config] = set()
        self.seen: set[Config] = {self.reference.config}
        self.required_order: tuple[object, ...] | None = None
        self.is_open = False
        self.dimensions: dict[Config, str] = {}
        self.losses: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self.end

    def run(self, hints: Sequence[Config], patience: int) -> str:
        """Search, and return the reason why the search ended."""
        known = self.known()
        if not self.make(self.reference):
            return "the model's first choice fails"
        first = [c for c in dict.fromkeys((*known, *hints, *self.varied())) if c not in self.seen and self.is_legal(c)]
        best = self.round(self.reference, first[: FIRST_ROUND + len(known) + len(hints)])
        waited = 0
        while waited < patience and not self.is_over and (near := self.near(best)):
            winner = self.round(best, near)
            waited = waited + 1 if winner is best else 0
            best = winner
        ended = "budget" if self.is_over else "nothing better"
        self.final(best)
        return ended

    def run_all(self, hints: Sequence[Config], reach: Reach) -> str:
        """Measure every config in ``reach``, and return the reason why the search ended."""
        known = self.known()
        if not self.make(self.reference):
            return "the model's first choice fails"
        every = configs_in_reach(self.space, reach, (*known, *hints), self.is_legal)
        best, missing = self.reference, (c for c in every if c not in self.seen)
        while not self.is_over and (some := list(islice(missing, CHALLENGERS))):
            best = self.round(best, some)
        ended = "budget" if self.is_over else "every config"
        self.final(best)
        return ended

    def candidate(self, config: Config) -> _Candidate:
        return _Candidate(config, self.space.cycles(config))

    # -- proposals
    def known(self) -> list[Config]:
        """Return the best configs that the database has from earlier searches; configs that failed are excluded."""
        rows = self.database.rows(**{**self.origin, "threads": ANY})
        self.seen |= {Config.parse(row.config) for row in rows if row.status != "ok"}
        good = [row for row in rows if row.status == "ok"]
        least = min((row.threads for row in good), default=self.threads)
        if least < self.threads and keeps_bits(self.space.problem):
            lead = best_of(row for row in good if row.threads == least)
            self.required_order = sums_in_order(Config.parse(lead.config)) if lead is not None else None
        own = [Config.parse(row.config) for row in good if row.threads == self.threads]
        self.seen |= set(own[HINTS:])
        return own[:HINTS]

    def varied(self) -> list[Config]:
        """Return the model's candidates; the best of two kinds and other tiles of the first one come first."""
        kinds: dict[object, list[Config]] = {}
        for c in self.space.seeds:
            kinds.setdefault(
                (c.lane, c.fuse, c.instruction, c.staged("resident"), c.order, c.realise, bool(c.tiles_at("cache"))), []
            ).append(c)
        heads = [group[0] for group in kinds.values()]
        others = [c for c in self.space.seeds if c not in heads]
        return [*heads[:2], *others[:2], *heads[2:3], *others[2:], *heads[3:]]

    def near(self, best: _Candidate) -> list[Config]:
        """Return the configs of the next round: from each dimension in turn, the configs that the model expects to be
        fastest.

        Dimensions along which the last steps were not faster come last; among the others, dimensions with fewer steps
        come first.
        """
        chosen: dict[Config, str] = {}
        queues = {dimension: self.promising(best, dimension) for dimension in self.space.dimensions}
        taken = Counter(self.dimensions.values())
        turns = sorted(self.space.dimensions, key=lambda d: (self.losses[d], taken[d]))
        while turns and len(chosen) < CHALLENGERS:
            dimension = turns.pop(0)
            config = next(queues[dimension], None)
            if config is not None:
                chosen.setdefault(config, dimension)
                turns.append(dimension)
        self.dimensions |= chosen
        return list(chosen)

    def promising(self, best: _Candidate, dimension: str) -> Iterator[Config]:
        """Yield the legal, unseen configs one step from the best along a dimension, best expected first."""
        scored: list[tuple[float, int, Config]] = []
        for c in self.space.neighbours(best.config, dimension):
            if c not in self.seen and self.space.fits(c):
                cycles = self.space.cycles(c)
                if cycles <= MAX_PREDICTED_RATIO * best.predicted:
                    scored.append((cycles, len(scored), c))
        # A plan takes longer than an estimate, and most configs are not reached.
        return (c for _, _, c in sorted(scored) if self.is_legal(c))

    def is_legal(self, config: Config) -> bool:
        """Return whether ``config`` makes a kernel, for this number of threads and with the required order of sums."""
        if config.threads != self.threads or config.target != self.target.name:
            return False
        if self.required_order is not None and sums_in_order(config) != self.required_order:
            return False
        return not self.space.refusal(config)

    # -- measurements
    def round(self, best: _Candidate, configs: Sequence[Config]) -> _Candidate:
        """Measure ``configs`` alongside the best so far, and return the best of all."""
        candidates = [self.candidate(config) for config in configs]
        self.compile(candidates)
        racers = [candidate for candidate in candidates if candidate.artifact is not None and self.make(candidate)]
        self.sample([best, *racers], FEW_SAMPLES)
        # Other processes make samples slower, never faster.
        close = [c for c in racers if c.ratios and min(c.ratios) <= best.ratio * FAR_RATIO]
        while again := [c for c in close if self.needs_samples(c)]:
            self.sample([best, *again], 1)
            close = [c for c in close if c.config in self.ready]
        for candidate in racers:
            self.store(candidate)
            if dimension := self.dimensions.get(candidate.config):
                if candidate.ratio < best.ratio * BETTER_RATIO:
                    self.losses[dimension] = 0
                self.losses[dimension] += candidate.ratio > best.ratio * LOST_STEP_RATIO
        found = min(close, key=lambda c: c.ratio, default=best)
        winner = found if found.ratio < best.ratio * BETTER_RATIO else best
        self.tell(f"{self.tried.total()} tried, the best takes {winner.ratio:.2f} of the first choice's time")
        return winner

    def needs_samples(self, candidate: _Candidate) -> bool:
        """Return whether to sample a candidate near the best again; compiled candidates get their samples in any case.
        """
        count = len(candidate.ratios)
        return count < SAMPLES or (count < MAX_SAMPLES and candidate.width > MAX_SPREAD and not self.is_over)

    def final(self, winner: _Candidate) -> None:
        """Compare the best configs with the first choice once more, until the best one has enough samples.

        The ``winner`` of the last round is compared too, because it may rest on few and scattered samples.
        """
        if winner is not self.reference and len(winner.ratios) < FINAL_SAMPLES:
            self.sample([winner], FINAL_SAMPLES)
            self.store(winner)
        for _ in range(FINALISTS):
            rows = [row for row in self.database.rows(**self.origin) if row.status == "ok"]
            best = best_of(rows)
            if best is None or best.ratio == 1 or best.rounds >= FINAL_SAMPLES:
                break
            candidate = self.candidate(Config.parse(best.config))
            self.sample([candidate], FINAL_SAMPLES)
            self.store(candidate)

    def compile(self, candidates: Sequence[_Candidate]) -> None:
        """Compile candidates while there is time, and keep their artifacts. A failure becomes a row."""
        texts = [str(candidate.config) for candidate in candidates]
        answers = self.workers.compiled(self.line, self.target.name, self.threads, texts, self.end)
        for candidate, answer in zip(candidates, answers, strict=True):
            if answer is None:
                continue
            self.seen.add(candidate.config)
            if isinstance(answer, WorkerDied):
                self.record_death(candidate, answer)
            elif answer["status"] != "ok":
                self.record(candidate, answer["status"], answer["note"])
            else:
                candidate.artifact = answer["artifact"]

    def make(self, candidate: _Candidate) -> bool:
        """Compare the results of a candidate; return whether it can be timed. A failure becomes a row."""
        if candidate.artifact is None:
            self.compile([candidate])
        if candidate.artifact is None:
            return False
        try:
            if not self.is_open:
                self.workers.timing.ask(op="open", problem=self.line, target=self.target.name)
                self.is_open, self.ready = True, set()
                if candidate is not self.reference and not self.make(self.reference):
                    return False
            answer = self.workers.timing.ask(op="make", config=str(candidate.config), artifact=candidate.artifact)
        except WorkerDied as death:
            self.died(candidate, death)
            return False
        if answer["status"] != "ok":
            self.record(candidate, answer["status"], answer["note"])
            return False
        self.ready.add(candidate.config)
        return True

    def sample(self, racers: Sequence[_Candidate], rounds: int) -> None:
        """Sample the reference and the racers ``rounds`` times, in alternation; a racer that ends the worker is
        dropped.
        """
        for turn in range(rounds):
            seconds: dict[int, float] = {}
            order = [self.reference, *(c for c in racers if c is not self.reference)]
            for candidate in order[turn % len(order) :] + order[: turn % len(order)]:
                try:
                    if candidate.config in self.ready or self.make(candidate):
                        answer = self.workers.timing.ask(op="sample", config=str(candidate.config))
                        seconds[id(candidate)] = answer["seconds"]
                except WorkerDied as death:
                    self.died(candidate, death)
                    racers = [racer for racer in racers if racer is not candidate]
            for candidate in order:
                if id(candidate) in seconds and id(self.reference) in seconds:
                    candidate.seconds.append(seconds[id(candidate)])
                    candidate.ratios.append(seconds[id(candidate)] / seconds[id(self.reference)])
        self.store(self.reference)

    def died(self, candidate: _Candidate, death: WorkerDied) -> None:
        """Record the config that ended the timing worker; the next request starts another one."""
        self.is_open, self.ready = False, set()
        self.record_death(candidate, death)

    def record_death(self, candidate: _Candidate, death: WorkerDied) -> None:
        """Write the row of a config that ended its process."""
        self.record(candidate, "stuck" if death.is_stuck else "crashed", str(death))

    def store(self, candidate: _Candidate) -> None:
        """Write the row of a candidate that was timed."""
        if candidate.ratios:
            self.record(candidate, "ok", "")

    def record(self, candidate: _Candidate, status: Status, note: str) -> None:
        """Write a candidate's row."""
        times = (0.0, 0.0, 0.0, 0)
        if status == "ok":
            times = (candidate.ratio, median(candidate.seconds), candidate.width, len(candidate.ratios))
        row = Measured(
            self.line, str(candidate.config), str(self.origin["machine"]), compiler_key(), self.target.name,
            self.threads, status, *times, candidate.predicted, note,
        )
        self.tried[status] += not candidate.is_stored
        candidate.is_stored = True
        self.database.put([row.dated()])
