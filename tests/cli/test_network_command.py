"""`convsmith network`: what its commands print, write and refuse."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from commands import run

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder, residual_net

import convsmith as cs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    path.write_bytes(residual_net(16, real=True).SerializeToString())
    return path


def test_run_prints_and_writes_the_outputs(model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    done = run("network", "run", str(model), "--input", f"x={tmp_path / 'x.npy'}", "-o", str(tmp_path / "y.npz"))
    assert done.exit_code == 0, done.output
    expected = cs.onnx.compile(model)(x)
    with np.load(tmp_path / "y.npz") as written:
        np.testing.assert_array_equal(written["v21"], expected)
    assert f"v21: float32 1 x 10, {expected.min():.6g} to" in done.stdout


def test_a_saved_network_runs(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "small.cs"
    assert run("network", "save", str(model), "-o", str(saved)).exit_code == 0
    first, second = (run("network", "run", str(source)) for source in (model, saved))
    assert first.exit_code == second.exit_code == 0 and first.stdout == second.stdout


def test_inner_values_of_bf16(model: Path, tmp_path: Path) -> None:
    """Results and the saved file are those of `compile` with the type, and steps compute with it."""
    saved, option = tmp_path / "small.cs", ("--dtype", "bf16")
    assert run("network", "save", str(model), "-o", str(saved), *option).exit_code == 0
    first, second = run("network", "run", str(model), *option), run("network", "run", str(saved))
    assert first.exit_code == second.exit_code == 0 and first.stdout == second.stdout
    assert first.stdout != run("network", "run", str(model)).stdout
    assert "--dt=bf16" in run("network", "explain", str(model), *option).stdout
    done = run("network", "run", str(saved), *option)
    assert done.exit_code == 2 and "is compiled already" in done.stderr


def test_verify_says_what_is_right_and_what_is_not(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("network", "verify", str(model), "--threads", "1")
    assert done.exit_code == 0 and done.stdout.startswith("right: v21: off by ")
    wrong = cs.Network.run
    monkeypatch.setattr(cs.Network, "run", lambda self, arrays: {n: y + 1 for n, y in wrong(self, arrays).items()})
    done = run("network", "verify", str(model), "--threads", "1")
    assert done.exit_code == 1 and "mismatch: v21" in done.stderr


def test_bench_compares_with_onnx_runtime(model: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = run("network", "bench", str(model), "--threads", "1", "--rounds", "2")
    assert done.exit_code == 0, done.output
    assert "ms on 1 thread" in done.stdout and "onnxruntime: " in done.stdout and "ratio" in done.stdout
    assert "ratio" not in run("network", "bench", str(model), "--rounds", "1", "--vs", "none").stdout


def test_explain_lists_steps_and_memory(model: Path) -> None:
    page = run("network", "explain", str(model), "--threads", "1").stdout
    assert "input      x: f32 1 x 3 x 16 x 16" in page and "as much as is alive in one step" in page
    assert "Conv_6 + Add_7 + Relu_8" in page


def test_explain_states_the_time_of_each_step(model: Path) -> None:
    page = run("network", "explain", str(model), "--threads", "1", "--time").stdout
    steps = re.findall(r"^ +\d+  \S.*\n     ([\d.]+) ms, ([\d.]+)%(.*)\n     (.*)$", page, re.M)
    shares = [float(share) for _, share, *_ in steps]
    assert len(steps) == len(re.findall(r"^ +\d+  ", page, re.M)) > 3 and abs(sum(shares) - 100) < len(shares) * 0.06
    for milliseconds, _, rate, work in steps:
        assert (" GFLOP/s, its " in rate) == work.startswith("--") or float(milliseconds) == 0
    slowest = re.search(r"^slowest    step (\d+) ([\d.]+)%, step (\d+) ([\d.]+)%, step \d+ [\d.]+%$", page, re.M)
    assert slowest is not None and float(slowest[2]) == max(shares) == shares[int(slowest[1]) - 1]


def test_export_writes_a_library(model: Path, tmp_path: Path) -> None:
    done = run("network", "export", str(model), "-o", str(tmp_path), "--threads", "1", "--name", "tiny")
    assert done.exit_code == 0, done.output
    files = {"libtiny.a", "tiny.h", "tiny.rs", "tiny.json", "example.c", "example.cpp", "example.rs"}
    assert {path.name for path in tmp_path.iterdir()} == files
    assert "workspace " in done.stdout


def test_illegal_requests(model: Path, tmp_path: Path) -> None:
    b = NetworkBuilder(0)
    unknown = tmp_path / "unknown.onnx"
    unknown.write_bytes(b.model(b.op("Bernoulli", b.input("x", 1, 4, 4))).SerializeToString())
    cases = {
        ("verify", str(tmp_path / "none.onnx")): "cannot be read", ("run", "x.txt"): "is no model",
        ("run", str(unknown)): "node Bernoulli_0", ("run", str(tmp_path / "none.cs")): "there is no such file",
        ("bench", str(model), "--vs", "torch"): "legal are onnxruntime and none",
        ("export", str(model), "-o", str(tmp_path), "--name", "int"): "name 'int'",
        ("save", str(model), "-o", str(tmp_path / "no" / "x.cs")): "cannot be written",
    }  # fmt: skip
    for arguments, words in cases.items():
        done = run("network", *arguments)
        assert done.exit_code == 2 and words in done.stderr, (arguments, done.output)


def test_quantize_writes_a_model_of_bytes_and_prints_losses(model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 3, 16, 16))
    np.savez(tmp_path / "samples.npz", x=x)
    command = ["network", "quantize", str(model), "-o", str(tmp_path / "int8.onnx"), "--samples"]
    done = run(*command, str(tmp_path / "samples.npz"), "--method", "percentile")
    assert done.exit_code == 0, done.output
    assert re.search(r"^Gemm_21 +[0-9.]+ dB$", done.stdout, re.MULTILINE) and "int8.onnx  " in done.stdout
    made = cs.onnx.compile(tmp_path / "int8.onnx", threads=1)
    expected, y = cs.onnx.compile(model, threads=1)(x[:1].astype(np.float32)), made(x[:1].astype(np.float32))
    assert np.abs(y - expected).max() < 0.1 * np.abs(expected).max()
    done = run("network", "verify", str(tmp_path / "int8.onnx"), "--threads", "1")
    assert done.exit_code == 0, done.output
    np.savez(tmp_path / "wrong.npz", x=x[:, :2])
    done = run(*command, str(tmp_path / "wrong.npz"))
    assert done.exit_code == 2 and "x has (3, 2, 16, 16); legal is a multiple of 1 rows of (3, 16, 16)" in done.stderr
    done = run(*command, str(model))
    assert done.exit_code == 2 and "is no file of numpy.savez" in done.stderr
