"""The machine's description."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from convsmith.machine import host
from convsmith.measure.description import describe


def test_description_is_json_and_names_what_matters() -> None:
    description = describe()
    assert json.loads(json.dumps(description)) == description
    for key in ("cpu", "llvm_cpu", "features", "caches", "os", "python", "numpy", "llvmlite", "llvm", "openmp"):
        assert description[key], key
    assert description["numpy"] == np.__version__


def test_cache_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "3", "1G"), ("Unified", "2", "2048K"))
    for number, values in enumerate(rows):
        folder = tmp_path / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, value in zip(("type", "level", "size"), values):
            (folder / name).write_text(value + "\n")
    (tmp_path / "cache" / "index9").mkdir()
    monkeypatch.setattr(host, "_CPU", tmp_path)
    assert host.cache_sizes.__wrapped__() == {"L1": 48 << 10, "L2": 2 << 20, "L3": 1 << 30}
    monkeypatch.setattr(host, "_CPU", tmp_path / "nowhere")
    assert host.cache_sizes.__wrapped__() == {}
