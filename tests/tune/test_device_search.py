"""A search over candidates on a device: on a device of OpenCL, and on a GPU whose kernels are interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from opencl_driver import require_opencl
from ptx.driver import InterpretedDriver
from tune.test_search import fake

import convsmith as cs
from convsmith.cli.main import main
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.runtime import cuda
from convsmith.runtime.device_library import OpenedOnce
from convsmith.schedule.config import Config
from convsmith.tune.records import origin
from convsmith.tune.records.database import Database
from convsmith.tune.records.recall import recalled
from convsmith.tune.search.device_space import DeviceSpace
from convsmith.tune.search.search import search
from convsmith.tune.search.worker import Worker

LINE = "--stag=axb --dtag=axb mb1ic8iw12oc8ow12kw3pw1"
LAYER = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb8ic64ih28oc64oh28kh3ph1"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with cs.settings.scope(database=tmp_path / "m.db"):
        yield tmp_path / "m.db"


def test_a_search_on_a_device_of_opencl_is_recalled(path: Path) -> None:
    """The kernels run in another process; a later compile takes the config that was measured to be fastest."""
    require_opencl()
    result = CliRunner().invoke(main, ["tune", LINE, "--target", "opencl", "--budget", "4s"])
    assert result.exit_code == 0 and "compiled and measured" in result.output, result.output
    problem = parse_problem(LINE).canonical()
    with Database(path) as database:
        rows = database.rows()
    assert len(rows) > 1 and {row.status for row in rows} == {"ok"} and {row.threads for row in rows} == {1}
    assert {row.machine for row in rows} == {origin.machine_key(target("opencl"))} != {origin.machine_key()}
    config = recalled(problem, target("opencl"), 2)
    assert config is not None and str(config) in {row.config for row in rows}
    assert cs.compile(LINE, target="opencl", threads=2).config == config


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line, level", [(LAYER, "sm_80"), (LINE, "opencl"), (LAYER, "sm_90a")])
def test_the_fastest_config_of_a_space_wins(
    line: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a step away from the model's candidates, and the space has it."""
    monkeypatch.setattr(origin, "device_name", lambda runtime: "A GPU")
    problem, machine = parse_problem(line).canonical(), target(level)
    with interning():
        space = DeviceSpace(problem, machine)
        start = space.seeds[0] if level != "sm_90a" else next(c for c in space.seeds if c.realise != "hardware")
        near = [c for c in space.neighbours(start, "step") if not space.refusal(c) and c not in space.seeds]
    assert near and all(0 < space.cycles(c) for c in near)
    wanted = str(min(near, key=space.cycles))
    with Database(tmp_path / "m.db") as database, fake(f'{{"{wanted}": 0.5, "{start}": 0.9}}') as worker:
        outcome = search(problem, machine, 1, 20.0, database, worker)
    assert outcome.best is not None
    assert wanted in outcome.best.config and outcome.best.seconds == 0.5e-6


def test_parts_of_a_reduction_keep_its_vectors() -> None:
    """The first candidate makes a kernel, where a part of a loop would be shorter than a vector along it."""
    line = "--dir=BWD_W --stag=axb --dtag=axb mb64ic16iw64oc32ow64kw3pw1"
    with interning():
        space = DeviceSpace(parse_problem(line), target("sm_80"))
        assert (
            space.seeds[0].tiles_at("split")
            and space.seeds[0].tiles_at("vectors")
            and not any(map(space.refusal, space.seeds))
        )


DIMENSIONS = ("register", "group", "step", "copies", "rows", "shared", "vectors", "epilogue", "order", "parts")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_each_dimension_has_legal_steps(dimension: str) -> None:
    direction = "FWD_B --attr-post-ops=sum" if dimension == "epilogue" else "BWD_W"
    line = f"--dir={direction} --stag=axb --dtag=axb mb4ic8iw16oc16ow16kw3pw1"
    with interning():
        space = DeviceSpace(parse_problem(line), target("sm_80"))
        near = list(space.neighbours(space.seeds[0], dimension))
        legal = [c for c in near if not space.refusal(c)]
    assert legal and len(set(near)) == len(near) and space.seeds[0] not in near
    assert {*space.dimensions} >= {dimension}


def test_clusters_and_stored_results_are_steps_apart() -> None:
    """Groups of a cluster store from registers, so a step changes both."""
    line = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic64ih56oc256oh56kh1"
    with interning():
        space = DeviceSpace(parse_problem(line), target("sm_90a"))
        (stored,) = (c for c in space.seeds[:1] if "dst" in c.staged("shared"))
        pairs = [c for c in space.neighbours(stored, "order") if c.tiles_at("cluster") and not space.refusal(c)]
        assert pairs and all(c.staged("shared") == ("src", "wei") for c in pairs)
        assert stored in space.neighbours(pairs[0], "order")


def test_results_in_parts_and_parts_of_the_reduction_are_steps_apart() -> None:
    """A result leaves whole, in two parts or in four, that of a team of warps too, or parts of the reduction leave from
    registers.
    """
    line = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih56oc256oh56kh3ph1"
    with interning():
        space = DeviceSpace(parse_problem(line), target("sm_90a"))
        start = next(c for c in space.seeds if c.store_parts == 2)
        legal = {c.store_parts for c in space.neighbours(start, "order") if not space.refusal(c)}
        teams = [c for c in space.neighbours(start, "order") if c.teams > 1]
        assert legal >= {1, 4} and {c.store_parts for c in teams} == {1, 2, 4}
        assert all(c.store_parts == 1 for c in teams if "dst" not in c.staged("shared"))
        shared = [c for c in space.neighbours(start, "parts") if c.tiles_at("split") and not space.refusal(c)]
        assert shared and all(c.staged("shared") == ("src", "wei") for c in shared)


def test_candidates_are_timed_on_arrays_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker answers for CUDA as for other machines; samples copy nothing."""
    driver = InterpretedDriver()
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    monkeypatch.setattr(cuda, "code_for", lambda artifact, _: artifact.notes["ptx"].encode())
    worker = Worker()
    of = {"problem": "mb1ic2iw4oc4ow4kw1", "target": "sm_80", "threads": 1}
    worker.answer({"op": "open", **of})
    for words in ("--group=oc:4,ow:4 --realise=mask", "--group=oc:4,ow:2 --shared=src --realise=mask"):
        config = str(Config.parse(f"--target=sm_80 --lane=ow --pack= {words}"))
        artifact = worker.answer({"op": "compile", "config": config, **of})["artifact"]
        assert worker.answer({"op": "make", "config": config, "artifact": artifact})["status"] == "ok"
        driver.calls.clear()
        assert worker.answer({"op": "sample", "config": config})["seconds"] > 0
        assert "cuLaunchKernel" in driver.calls and "cuMemcpyHtoD" not in driver.calls


def test_without_a_device_there_is_nothing_to_measure(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(runtime: str) -> str:
        raise cs.UnsupportedError(f"no device of {runtime}", code=runtime)

    monkeypatch.setattr(origin, "device_name", without)
    result = CliRunner().invoke(main, ["tune", LINE, "--target", "sm_80"])
    assert result.exit_code == 2 and "no device of cuda" in result.stderr
    result = CliRunner().invoke(main, ["tune", LINE, "--target", "sm_80", "--space"])
    assert result.exit_code == 0 and "candidates of the model" in result.output


def test_a_wide_space_lists_its_configs() -> None:
    """Each dimension is followed by as many configs, one a line, as its number says."""
    wide = CliRunner().invoke(main, ["tune", LINE, "--target", "sm_80", "--space", "--wide"])
    plain = CliRunner().invoke(main, ["tune", LINE, "--target", "sm_80", "--space"])
    listed = [x.strip() for x in wide.output.splitlines() if x.startswith(" " * 8)]
    number = int(wide.output.splitlines()[-1].split()[1])
    assert len(listed) == len({*listed}) == number > 10 and all(str(Config.parse(x)) == x for x in listed)
    assert [x for x in wide.output.splitlines() if x.strip() not in listed] == plain.output.splitlines()
