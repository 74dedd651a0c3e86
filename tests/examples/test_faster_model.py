"""The example makes its network faster or leaves it, and computes the same; the README shows how."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from convsmith.cli.main import main

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def faster_model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faster_model", ROOT / "examples" / "faster_model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_small_network_computes_the_same(faster_model: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model, x = faster_model.small_network().eval(), torch.randn(2, 3, 16, 16)
    threads = torch.get_num_threads()
    try:
        fast, ratio = faster_model.run(model, x, 1)
    finally:
        torch.set_num_threads(threads)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x))
    assert ratio > 0
    out = capsys.readouterr().out
    assert "of 9 convolutions run on convsmith" in out and "norm+add+relu" in out
    assert "eager, channels last" in out


def test_bench_takes_the_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr("convsmith.torch.profiling._TRIAL_SECONDS", 1e-4)
    monkeypatch.chdir(ROOT / "examples")
    threads = torch.get_num_threads()
    try:
        result = CliRunner().invoke(
            main, ["bench", "--torch", "faster_model:example", "--threads", "1", "--rounds", "1", "--wide"]
        )
    finally:
        torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    assert "2.first and 7 more" in result.output and "9 convolutions and products take torch" in result.output


def test_the_readme_shows_the_same_calls() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_screen = readme.partition("\n## ")[0]
    for line in ("import convsmith.torch as ct", "fast = ct.optimize(model.eval(), x)", "print(fast.convsmith_report)"):
        assert line in first_screen
        assert line in (ROOT / "examples" / "faster_model.py").read_text(encoding="utf-8")
