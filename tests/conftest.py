"""All tests share one cache of compiled kernels, made for the run: the user's own stays as it is.

Tests marked ``wide`` or ``slow`` run where `-m` selects them; ``--update-golden`` rewrites the texts of tests/golden.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from tiers import mark_wide_cases

from convsmith.diag.settings import settings


@pytest.fixture(scope="session", autouse=True)
def _own_cache() -> Iterator[None]:
    directory = tempfile.mkdtemp(prefix="convsmith-tests-")
    before = os.environ.get("CONVSMITH_CACHE")
    os.environ["CONVSMITH_CACHE"] = directory
    settings.reload()
    yield
    os.environ.pop("CONVSMITH_CACHE")
    if before is not None:
        os.environ["CONVSMITH_CACHE"] = before
    settings.reload()
    shutil.rmtree(directory, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing them")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_wide_cases(items)
