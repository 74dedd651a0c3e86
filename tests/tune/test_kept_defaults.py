"""Default configs that the cache on disk keeps: they are the model's, and damaged entries are made anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from convsmith.compiler.cache import CacheWarning, cache_key, disk_cache
from convsmith.diag.settings import settings
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import Problem, parse_problem
from convsmith.tune.candidates import default_config
from convsmith.tune.kept_defaults import kept_default

LEVEL = next(level for level in LEVELS if level.name == "avx512")
PROBLEMS = [
    parse_problem(line).canonical()
    for line in (
        "--stag=axb --dtag=axb mb1ic16ih14oc32kh3ph1",
        "--stag=axb --dtag=axb g32mb1ic32ih14oc32kh3ph1",
        "--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih7oc64kh1",
        "--stag=axb --dtag=axb mb1ic128ih28oc128kh3ph1",
    )
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with settings.scope(cache=tmp_path / "cache"):
        yield


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_the_choice_of_the_model(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [default_config(problem, LEVEL, threads) for threads in (1, 2)]
    assert [kept_default(problem, LEVEL, threads) for threads in (1, 2)] == expected
    monkeypatch.setattr("convsmith.tune.kept_defaults.default_config", None)
    assert [kept_default(problem, LEVEL, threads) for threads in (1, 2)] == expected


def test_another_machine_has_a_choice_of_its_own() -> None:
    problem, scarce = PROBLEMS[0], replace(LEVEL, vectors=replace(LEVEL.vectors, count=12))
    kept_default(problem, LEVEL)
    assert kept_default(problem, scarce) == default_config(problem, scarce) != default_config(problem, LEVEL)


@pytest.mark.parametrize("content", [b"\xff", b"--lane=oc", b"--target=avx512 --lane=oc --depth=3"])
def test_a_malformed_entry_is_made_anew(content: bytes) -> None:
    cache = disk_cache()
    assert cache is not None
    key = cache_key("default config of", str(PROBLEMS[0]), "1", LEVEL.key)
    cache.put(key, content)
    with pytest.warns(CacheWarning, match="is damaged"):
        assert kept_default(PROBLEMS[0], LEVEL) == default_config(PROBLEMS[0], LEVEL)
    assert kept_default(PROBLEMS[0], LEVEL) == default_config(PROBLEMS[0], LEVEL)


def test_without_a_cache() -> None:
    with settings.scope(cache="off"):
        assert kept_default(PROBLEMS[0], LEVEL) == default_config(PROBLEMS[0], LEVEL)
