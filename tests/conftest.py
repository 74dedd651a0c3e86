"""All tests share one cache of compiled kernels, made for the run: the user's own stays as it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

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
