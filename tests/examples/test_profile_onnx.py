"""The example profiles the block that it makes, and a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[2] / "examples" / "profile_onnx.py"


@pytest.mark.parametrize("is_file", [False, True])
def test_the_block_is_profiled(
    is_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    spec = importlib.util.spec_from_file_location("profile_onnx", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    onnx.save(example.block(8, 16, 6), str(tmp_path / "block.onnx"))
    example.main([*([str(tmp_path / "block.onnx")] if is_file else []), "--rounds", "1"])
    page = capsys.readouterr().out
    for name in ("expand", "depthwise", "project"):
        assert any(line.startswith(name) and line.endswith("yes") for line in page.splitlines()), page
    assert "3 convolutions and products take onnxruntime" in page
    example.main(["--save", str(tmp_path / "saved.onnx")])
    assert onnx.load(str(tmp_path / "saved.onnx")) == example.block() and not capsys.readouterr().out
