"""The script that measures layers on a GPU: it runs on a device of OpenCL, goes on where it was interrupted, and runs
dry for CUDA.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opencl_driver import require_opencl
from ptx.driver import InterpretedDriver

from convsmith.runtime import cuda
from convsmith.runtime.device_library import OpenedOnce

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    require_opencl()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu")
    monkeypatch.setattr(module.report, "RESULTS", module.report.RESULTS)
    return module


def test_small_layers_are_measured(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "opencl", "--small", "--rounds", "1", "--out", str(tmp_path)]
    gpu.main([*words, "--only", "int8,weights,depthwise"])
    file = tmp_path / "gpu-opencl.json"
    rows = json.loads(file.read_text())["rows"]
    assert [row["kind"] for row in rows] == ["int8", "int8", "weights", "weights", "depthwise"]
    assert all(row["right"] and row["seconds"] > 0 and row["bytes"] > 0 for row in rows)
    page = next(tmp_path.glob("gpu-opencl-*.md")).read_text()
    assert page in capsys.readouterr().out and page.count("| yes |") == len(rows)
    file.write_text(json.dumps({"rows": rows[:-1]}))
    gpu.main([*words, "--resume", str(file), "--only", "depthwise"])
    assert json.loads(file.read_text())["rows"][:-1] == rows[:-1]


def test_layers_are_those_of_the_networks(gpu: Any) -> None:
    found = [problem for _, problem in gpu.layers("bf16", small=False)]
    assert {p.mb for p in found} == {32, 128} and {t.dtype for p in found for t in p.tensors} == {"bf16"}
    assert len(found) == 2 * (23 + 9) and all(p.g > 1 for _, p in gpu.layers("depthwise", small=False))


class DryGraph:
    """A graph, a stream or an event of a GPU that there is not: calls run at once, and each sample takes a second."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def elapsed_time(self, _: object) -> float:
        return 1e3

    def nothing(self, *_: object) -> None:
        pass

    record = replay = synchronize = wait_stream = nothing


class DryTorch(ModuleType):
    """PyTorch whose tensors of a GPU are tensors of the host."""

    def __init__(self, torch: Any) -> None:
        super().__init__("torch")
        self.torch = torch
        names = ("Stream", "Event", "CUDAGraph", "graph", "stream", "current_stream")
        self.cuda = SimpleNamespace(
            is_available=lambda: True, get_device_name=lambda: "dry", synchronize=lambda: None,
            **dict.fromkeys(names, DryGraph),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.torch, name)
        if name not in ("empty", "empty_strided", "randn", "randint"):
            return found
        return lambda *sizes, device, **options: found(*sizes, **options)


def test_the_way_of_cuda_runs_dry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels of sm_90a beside PyTorch's, on the host: the interpreter of PTX runs the launches."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module, subjects = (importlib.import_module(name) for name in ("gpu", "gpu_subjects"))
    monkeypatch.setattr(module.report, "RESULTS", module.report.RESULTS)
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    driver = InterpretedDriver((9, 0))
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(cuda, "code_for", lambda artifact, _: artifact.notes["ptx"].encode())
    monkeypatch.setitem(sys.modules, "torch", DryTorch(torch))
    monkeypatch.setattr(subjects, "SIDE", 16)
    monkeypatch.setattr(subjects, "COPIED", 1 << 10)
    module.main(["--small", "--rounds", "1", "--out", str(tmp_path), "--only", "bf16,int8"])
    found = json.loads((tmp_path / "gpu-sm_90a.json").read_text())
    assert (found["device"], found["bandwidth"]) == ("dry", 2 << 10) and found["product"] > 0
    assert [row["kind"] for row in found["rows"]] == ["bf16", "bf16", "int8", "int8"]
    assert all(row["right"] and row["seconds"] == 1 for row in found["rows"])
    assert [row.get("speedup") for row in found["rows"]] == [1, 1, None, None]
