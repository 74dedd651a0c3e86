"""The digits example learns the same with convsmith's kernels as with torch's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_network_learns_as_with_torch() -> None:
    torch, ct = pytest.importorskip("torch"), pytest.importorskip("convsmith.torch")
    spec = importlib.util.spec_from_file_location("train_digits", EXAMPLES / "train_digits.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    ours, theirs = (example.train(functions, 2, 256) for functions in (ct, torch.nn.functional))
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-3) and ours.losses[1] < ours.losses[0]
    assert ours.accuracy == pytest.approx(theirs.accuracy, abs=0.05)
