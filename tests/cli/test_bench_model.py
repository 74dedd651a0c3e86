"""`bench`, `explain` and `tune` take an ONNX model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from commands import documented_titles

from convsmith.cli.main import main

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of two convolutions."""
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    helper = onnx.helper
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["one"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["one"], ["two"]),
        helper.make_node("Conv", ["two", "b"], ["y"], "second"),
    ]
    weights = {"a": np.ones((8, 4, 3, 3), np.float32), "b": np.ones((4, 8, 1, 1), np.float32)}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["N", 4, 6, 6])], [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(w, name) for name, w in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save(model, str(tmp_path / "m.onnx"))
    return str(tmp_path / "m.onnx")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_bench_prints_rows_and_a_summary(path: str, tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "rows.json"), "--html", str(tmp_path / "rows.html"))
    result = run("bench", path, "--threads", "1", "--rounds", "1", "--wide", *files)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "rows.html").read_text(encoding="utf-8")
    assert "could be won: " in page and 'data-value="first"' in page and "<svg" in page
    for text in ("first", "--stag=axb --dtag=axb mb1ic4ih6oc8oh6kh3ph1", "could be won: ", "other operators stay with"):
        assert text in result.output
    data = json.loads((tmp_path / "rows.json").read_text())
    assert data["complete"] and [row["names"] for row in data["nodes"]] == [["first"], ["second"]]
    assert data["threads"] == 1 and data["machine"]["cpu"]
    assert all(0 < row["cpu_share"] < 1.2 for row in data["nodes"])


def test_a_pipe_prints_the_columns_that_the_documentation_shows(path: str) -> None:
    lines = run("bench", path, "--threads", "1", "--rounds", "1").output.splitlines()
    assert documented_titles("node") == {line for line in lines if line.startswith("node ")}


def test_a_narrow_terminal_keeps_nodes_and_times(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("bench", path, "--threads", "1", "--rounds", "1", "--layout", "abx").output.splitlines()
    (head,) = {line for line in lines if line.startswith("node ")}
    assert "time us" in head and "ratio" in head and "problem" not in head and len(head) <= 80


def test_a_spent_budget_is_said(path: str) -> None:
    result = run("bench", path, "--threads", "1", "--budget", "0s")
    assert "the budget is spent: 0 of 2 problems measured" in result.output and result.exit_code == 0


@pytest.mark.parametrize("option", ["--vs=torch", "--resume", "--dt=bf16"])
def test_options_that_a_model_sets_itself_are_refused(path: str, option: str) -> None:
    result = run("bench", path, option)
    assert result.exit_code == 2 and f"legal is no {option.partition('=')[0]}" in result.output


def test_explain_takes_a_node(path: str) -> None:
    result = run("explain", path, "second", "--threads", "1")
    assert result.exit_code == 0 and "mb1ic8ih6oc4oh6kh1" in result.output
    wrong = run("explain", path, "third")
    assert wrong.exit_code == 2 and "has no convolution 'third'; legal are first, second" in wrong.output
    assert "the name of a node is missing; legal are first, second" in run("explain", path).output
    assert "takes 'second' with a model only" in run("explain", "ic8ih6oc4kh1", "second").output
    assert "kernel conv(src: f32[1, 8, 6, 6]" in run("show", path, "second", "--after", "naive").output


def test_sizes_of_inputs(path: str, tmp_path: Path) -> None:
    sized = run("bench", path, "--input", "x=3x4x6x6", "--threads", "1", "--rounds", "1", "--wide")
    assert sized.exit_code == 0 and "mb3ic4ih6oc8oh6kh3ph1" in sized.output
    np.save(tmp_path / "x.npy", np.ones((5, 4, 6, 6), np.float32))
    assert "mb5ic8ih6oc4" in run("explain", path, "second", "--input", f"x={tmp_path / 'x.npy'}").output
    for text, why in (
        ("x", "legal is NAME=SHAPE or NAME=FILE.npy"), ("x=1x0x2", "no shape, and no file"),
        ("x=n.npy", "No such file"), ("y=1x2", "has no 'y'; legal are x"),
    ):  # fmt: skip
        wrong = run("explain", path, "second", "--input", text)
        assert wrong.exit_code == 2 and why in wrong.output, wrong.output
    assert "--input is legal with a model only" in run("verify", "ic8ih6oc4kh1", "--input", "x=1").output


def test_verify_and_export_take_all_convolutions(path: str, tmp_path: Path) -> None:
    assert "2 of 2 right" in run("verify", path, "--threads", "1").output
    result = run("export", path, "-o", str(tmp_path / "out"), "--threads", "1", "--target", "generic")
    assert result.exit_code == 0, result.output
    header = (tmp_path / "out" / "kernels_m.h").read_text(encoding="utf-8")  # libm.a is the system's
    assert all(f"void kernels_m_{name}(const float *src" in header for name in ("first", "second"))
    wrong = run("verify", path, "--dt=bf16")
    assert wrong.exit_code == 2 and "which sets its problems: legal is no --dt" in wrong.output


def test_tune_takes_the_same_problems(path: str) -> None:
    assert "(2 problems)" in run("tune", path, "--budget", "0s").output
