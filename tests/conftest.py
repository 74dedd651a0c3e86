"""All tests share one cache of compiled kernels, made for the run, and see no measurements: the user's own stay as they
are. The compiler chooses as on one micro-architecture, whatever the host is: that which the environment names, or the
default below.

Tests marked ``wide`` or ``slow`` run where `-m` selects them; ``--update-golden`` rewrites the texts of tests/golden.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from draws import register_profiles, seed_generators
from older_click import separate_streams
from opencl_driver import load_first
from tiers import mark_torch_cases, mark_wide_cases

from convsmith.diag.settings import settings

register_profiles()
gc.disable()  # until all tests are collected, which live on

MICRO_ARCHITECTURE = "intel-server"
"""The micro-architecture whose choices the expected texts and the outputs of the pages show."""
# Before tests are collected: some make kernels for their parameters.
if not os.environ.get("CONVSMITH_MICRO_ARCHITECTURE"):
    os.environ["CONVSMITH_MICRO_ARCHITECTURE"] = MICRO_ARCHITECTURE
    settings.reload()
separate_streams()


@pytest.fixture(scope="session", autouse=True)
def _own_cache() -> Iterator[None]:
    directory = tempfile.mkdtemp(prefix="convsmith-tests-")
    own = {"CONVSMITH_CACHE": directory, "CONVSMITH_DATABASE": "off"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    settings.reload()
    yield
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
    settings.reload()
    shutil.rmtree(directory, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing them")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_wide_cases(items)
    mark_torch_cases(items)


@pytest.hookimpl(tryfirst=True)  # before fixtures draw
def pytest_runtest_setup() -> None:
    seed_generators()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # a collection would look at all modules and tests, for a second
    gc.enable()
    if any(hasattr(getattr(item, "module", None), "require_opencl") for item in session.items):
        load_first()
