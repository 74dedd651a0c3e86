"""Commands print as they do without a terminal: whoever runs the tests may have set the width of one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
