"""A search measures what the model proposes, survives kernels that kill their process, and goes on after an interrupt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import candidates
from convsmith.tune.records.database import Database
from convsmith.tune.search import search as search_module
from convsmith.tune.search.process import WorkerDied, WorkerProcess
from convsmith.tune.search.reach import Reach
from convsmith.tune.search.search import Outcome, _Race, search
from convsmith.tune.search.space import Space
from convsmith.tune.search.worker import Worker
from convsmith.tune.search.workers import Workers

PROBLEM = parse_problem("--stag=axb --dtag=axb mb1ic8ih6oc40oh6kh3ph1").canonical()
MACHINE = target(None, PROBLEM.types)
CONFIGS = [str(c.config) for c in candidates(PROBLEM, MACHINE, 1)]

FAKE = """if True:
    import json, os, signal, sys, time
    times = json.loads(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        config = request.get("config", "")
        found = next((value for text, value in times.items() if text in config + "$"), 1.0)
        if request["op"] == "open":
            answer = {}
        elif found == "segfault " + request["op"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        elif found == "hang " + request["op"]:
            time.sleep(60)
        elif request["op"] == "compile":
            answer = {"status": "ok", "artifact": ""}
        elif request["op"] == "make":
            answer = {"status": "ok"} if found != "wrong" else {"status": "wrong", "note": "differs"}
        else:
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            answer = {"seconds": (found if isinstance(found, float) else 1.0) * 1e-6}
        print(json.dumps(answer), flush=True)
"""
"""A worker with the times of configs that contain a text ("$" is their end), or one time for each of their first
samples, and others of 1 us.
"""


def fake(times: str, seconds: float = 60.0) -> Workers:
    return Workers((sys.executable, "-c", FAKE, times), seconds)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "m.db") as opened:
        yield opened


def searched(database: Database, workers: Workers, seconds: float = 20.0) -> Outcome:
    with workers:
        return search(PROBLEM, MACHINE, 1, seconds, database, workers)


def test_the_fastest_config_wins(database: Database) -> None:
    outcome = searched(database, fake(f'{{"{CONFIGS[1]}": 0.5}}'))
    assert outcome.best is not None
    assert (outcome.best.config, outcome.best.ratio, outcome.ended) == (CONFIGS[1], 0.5, "nothing better")


def test_samples_that_something_disturbed_do_not_rule_a_config_out(database: Database) -> None:
    outcome = searched(database, fake(f'{{"{CONFIGS[1]}": [5.0, 5.0, 0.5]}}'))
    assert outcome.best is not None
    assert (outcome.best.config, outcome.best.ratio) == (CONFIGS[1], 0.5)


def test_a_config_that_was_compiled_gets_its_samples_after_the_time_is_over(database: Database) -> None:
    times = f'{{"{CONFIGS[1]}": [5.0, 0.5, 5.0, 0.5]}}'
    with fake(times) as workers:
        outcome = search(PROBLEM, MACHINE, 1, 1e-3, database, workers, [Config.parse(CONFIGS[1])])
    assert outcome.best is not None and outcome.ended == "budget"
    assert (outcome.best.config, outcome.best.ratio) == (CONFIGS[1], 0.5)


def test_a_step_that_no_candidate_of_the_model_takes_is_found(database: Database) -> None:
    """Another order of the reduction is no candidate; the space has it."""
    assert not any("--reduce=ic,kh,kw" in config for config in CONFIGS)
    outcome = searched(database, fake('{"--reduce=ic,kh,kw": 0.5}'))
    assert outcome.best is not None and "--reduce=ic,kh,kw" in outcome.best.config


def test_steps_from_a_transform(database: Database) -> None:
    """Steps along some dimensions are illegal for transforms; the search goes on to others."""
    problem = parse_problem("--stag=axb --dtag=axb mb1ic64ih28oc64oh28kh3ph1")
    with interning():
        first = candidates(problem, MACHINE, 1)[0].config
    assert first.tiles_at("winograd")
    with fake(f'{{"{first}": 1.0}}') as workers:
        outcome = search(problem, MACHINE, 1, 20.0, database, workers)
        rows = database.rows()
    assert outcome.ended == "nothing better" and outcome.tried["ok"] > 10
    tried = [Config.parse(row.config) for row in rows]
    assert len({c.tiles_at("winograd") for c in tried}) > 1 and len({c.tiles_at("block") for c in tried}) > 1


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "status", "note"), [
    ("segfault compile", "crashed", "its process was killed by SIGSEGV"),
    ("segfault make", "crashed", "its process was killed by SIGSEGV"),
    ("segfault sample", "crashed", "its process was killed by SIGSEGV"),
    ("hang compile", "stuck", "no answer in 4 seconds"),
    ("hang sample", "stuck", "no answer in 4 seconds"),
    ("wrong", "wrong", "differs"),
])  # fmt: skip
def test_a_config_that_fails_is_recorded_and_skipped(database: Database, kind: str, status: str, note: str) -> None:
    times = f'{{"{CONFIGS[1]}$": "{kind}", "{CONFIGS[2]}": 0.5}}'
    seconds = 4.0 if status == "stuck" else 60.0
    outcome = searched(database, fake(times, seconds))
    assert outcome.best is not None and outcome.best.config == CONFIGS[2]
    failed = [row for row in database.rows() if row.status != "ok"]
    assert [(row.config, row.status, row.note) for row in failed] == [(CONFIGS[1], status, note)]
    again = searched(database, fake(times, seconds))
    assert again.tried[status] == 0


def test_a_config_that_ends_the_worker_is_sampled_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    died = _Race.died

    def record(self: _Race, candidate: Any, death: WorkerDied) -> None:
        ended.append(str(candidate.config))
        died(self, candidate, death)

    monkeypatch.setattr(_Race, "died", record)
    searched(database, fake(f'{{"{CONFIGS[1]}$": "segfault sample", "{CONFIGS[2]}": 0.5}}'))
    assert ended == [CONFIGS[1]]


def test_an_interrupt_loses_no_measurement(database: Database) -> None:
    class Interrupted(WorkerProcess):
        asked = 0

        def ask(self, **request: object) -> dict[str, object]:
            self.asked += 1
            if self.asked > 60:
                raise KeyboardInterrupt
            return super().ask(**request)

    workers = fake("{}")
    workers.timing = Interrupted((sys.executable, "-c", FAKE, "{}"))
    with pytest.raises(KeyboardInterrupt):
        searched(database, workers)
    assert len([row for row in database.rows() if row.status == "ok"]) > 2


def test_configs_are_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two compilers share four configs; after the end of the time only the first config is compiled."""
    monkeypatch.setattr("convsmith.tune.search.workers.available_cpus", lambda: 2)
    both = "{'artifact': os.getpid()}"
    command = (sys.executable, "-c", f"import os, sys, time\nfor line in sys.stdin: time.sleep(.2); print(str({both})"
               ".replace(chr(39), chr(34)), flush=True)")  # fmt: skip
    with Workers(command) as workers:
        answers = workers.compiled("", "", 1, ["a", "b", "c", "d"])
        assert len({answer["artifact"] for answer in answers if isinstance(answer, dict)}) == 2
        late = workers.compiled("", "", 1, ["a", "b", "c"], end=0.0)
    assert isinstance(late[0], dict) and late[1:] == [None, None]


def test_no_budget_measures_nothing(database: Database) -> None:
    outcome = searched(database, Workers(("/nonexistent",)), seconds=0.0)
    assert (outcome.best, outcome.tried.total(), outcome.ended) == (None, 0, "budget")


def test_real_kernels_are_timed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convsmith.tune.search.search.FIRST_ROUND", 3)
    with Workers() as workers:
        outcome = search(PROBLEM, MACHINE, 1, 60.0, database, workers, patience=0)
    assert outcome.best is not None and 0 < outcome.best.seconds < 0.1
    assert outcome.tried["ok"] >= 2 and not outcome.tried["wrong"]


def test_a_kernel_whose_results_differ_is_wrong() -> None:
    worker = Worker()
    worker.answer({"op": "open", "problem": str(PROBLEM), "target": MACHINE.name})
    of = {"op": "compile", "problem": str(PROBLEM), "target": MACHINE.name, "threads": 1}
    first, second = (
        {"op": "make", "config": config, "artifact": worker.answer({**of, "config": config})["artifact"]}
        for config in CONFIGS[:2]
    )
    assert worker.answer(first)["status"] == worker.answer(second)["status"] == "ok"
    assert worker._expected is not None
    worker._expected["dst"] += 1
    assert worker.answer(second) == {"status": "wrong", "note": "its results differ from those of the first config"}


def test_a_worker_that_cannot_start_says_why() -> None:
    with pytest.raises(WorkerDied, match="its process ended with status 3"), WorkerProcess(
        (sys.executable, "-c", "raise SystemExit(3)")
    ) as worker:
        worker.ask(op="open")


@pytest.mark.parametrize("line", [
    "--stag=axb --dtag=axb mb16ic512ih7oc512oh7kh3ph1",
    "--dir=BWD_W --stag=axb --dtag=axb mb2ic16ih8oc24oh8kh3ph1",
    "--stag=axb --dtag=axb g32mb1ic32ih8oc32oh8kh3ph1",
    "--dt=s8:s8:s32 --stag=axb --dtag=axb mb1ic64ih8oc64oh8kh3ph1",
    "--matmul 64x64:64x64",
])  # fmt: skip
def test_the_space_refuses_illegal_configs_by_reason(line: str) -> None:
    """Neighbours that are not refused make a plan, and all refusals are counted."""
    problem = parse_problem(line).canonical()
    with interning():
        space = Space(problem, target(None, problem.types), 2)
        legal = 0
        for name in ("tile", "order", "cache", "resident", "realise"):
            for config in list(space.neighbours(space.seeds[0], name))[:20]:
                legal += not space.refusal(config)
                assert space.refusal(config) or space.cycles(config) > 0
        assert legal > 10
        assert not space.refused or min(space.refused.values()) > 0


def within_reach(space: Space) -> set[Config]:
    """Return the configs that `reach` visits, found by steps in any order."""
    least = min(map(space.cycles, space.seeds))
    queue, found = [*space.seeds], set[Config]()
    while queue:
        config = queue.pop()
        if config in found or not space.fits(config) or space.refusal(config):
            continue
        if space.cycles(config) <= search_module.MAX_PREDICTED_RATIO * least:
            found.add(config)
            queue += [near for d in space.dimensions for near in space.neighbours(config, d)]
    return found


def test_an_exhaustive_search_measures_every_config_within_reach(database: Database) -> None:
    """One that is fast is found where a search by steps has given up before it."""
    problem = parse_problem("--matmul 2x2:2x2").canonical()
    with interning():
        every = {*map(str, within_reach(Space(problem, MACHINE, 1)))}
    with fake("{}") as workers:
        search(problem, MACHINE, 1, 60, database, workers)
    missed = sorted(every - {row.config for row in database.rows()})
    assert len(missed) > 50
    with fake(json.dumps({f"{missed[-1]}$": 0.5})) as workers:
        part = search(problem, MACHINE, 1, 60, database, workers, exhaustive=Reach(along=("code",)))
        assert part.ended == "every config" and not every <= {row.config for row in database.rows()}
        outcome = search(problem, MACHINE, 1, 60, database, workers, exhaustive=Reach())
    assert outcome.ended == "every config" and outcome.best is not None and outcome.best.config == missed[-1]
    assert every <= {row.config for row in database.rows()}
