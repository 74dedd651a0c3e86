"""A plugin of pytest for the processes of mutants: the tests of a list in its order, and the CPU time of each test.

The directory that `CONVSMITH_MUTANT` names holds the list as `order.json`, with the seconds of CPU time after which the
process ends. Without a list every test runs. Tests that pass are written to `took.json`, with their seconds.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Generator
from pathlib import Path

import pytest

_took: dict[str, float] = {}
_failed: set[str] = set()


def _directory() -> Path:
    return Path(os.environ["CONVSMITH_MUTANT"])


def _order() -> dict[str, int]:
    path = _directory() / "order.json"
    return {test: n for n, test in enumerate(json.loads(path.read_text())["tests"])} if path.exists() else {}


def pytest_configure(config: pytest.Config) -> None:
    path = _directory() / "order.json"
    if path.exists():
        seconds = json.loads(path.read_text())["seconds"]
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    else:
        config.option.maxfail = 0  # what fails without a change is not asked of a mutant


@pytest.hookimpl(trylast=True)  # after `-m` has selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if order := _order():
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = sum(os.times()[:4])
    result = yield
    _took[item.nodeid] = sum(os.times()[:4]) - before
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    passed = {test: seconds for test, seconds in _took.items() if test not in _failed}
    (_directory() / "took.json").write_text(json.dumps(passed))
