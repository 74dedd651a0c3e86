"""Kernels that are compiled side by side lie in the cache, where `compile` finds them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import convsmith as cs
from convsmith.codegen.child import in_children
from convsmith.frontend import side_by_side
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.registry import target
from convsmith.problem.lines import parse_problem
from convsmith.tune.compile import compile_problem, is_ready

PROBLEMS = [parse_problem(f"--stag=axb --dtag=axb mb1ic{n}ih5oc{n}kh3ph1") for n in (8, 16, 24)]


@pytest.fixture
def empty_cache(tmp_path: Path) -> Iterator[None]:
    with cs.settings.scope(cache=str(tmp_path / "cache")):
        yield


def test_children_share_the_work_and_leave_out_what_fails(tmp_path: Path) -> None:
    def work(n: int) -> None:
        if n == 2:
            raise ValueError("no such file")
        if n == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / str(n)).write_text(str(os.getpid()))

    done = [*in_children(work, 9, 3)]
    made = {int(file.name): int(file.read_text()) for file in tmp_path.iterdir()}
    assert {*made} == {*range(9)} - {2, 5} and os.getpid() not in made.values() and len(done) == 7


def test_an_interrupt_ends_the_children(tmp_path: Path) -> None:
    pids: list[int] = []

    def interrupt() -> None:
        pids.extend(int(file.read_text()) for file in tmp_path.iterdir())
        raise KeyboardInterrupt

    def work(n: int) -> None:
        (tmp_path / str(n)).write_text(str(os.getpid()))
        if n:
            signal.pause()

    with pytest.raises(KeyboardInterrupt), closing(in_children(work, 2, 2)) as calls:
        for _ in calls:
            interrupt()
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.usefixtures("empty_cache")
def test_compile_finds_what_was_compiled_ahead(cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "available_cpus", lambda: cpus)
    level = target("avx2")

    def compile_one(n: int) -> None:
        compile_problem(PROBLEMS[n], target=level, threads=3)

    with cs.settings.scope(target="avx2"):
        assert not any(is_ready(problem, level, 3) for problem in PROBLEMS)
        assert side_by_side.not_cached([*PROBLEMS, PROBLEMS[0]], 3) == PROBLEMS
        assert len([*side_by_side.called_side_by_side(compile_one, 3)]) == 3
        assert all(is_ready(problem, level, 3) for problem in PROBLEMS)
        assert side_by_side.not_cached(PROBLEMS, 3) == []
    for problem in PROBLEMS:
        artifact = CompiledKernel(problem, level, None, 3).artifact
        assert artifact is not None and artifact.plan is None, "it is loaded, not compiled"


def test_nothing_is_compiled_ahead_without_a_cache() -> None:
    with cs.settings.scope(cache="off"):
        assert side_by_side.not_cached(PROBLEMS, 3) == [], "there is nowhere to leave kernels"
