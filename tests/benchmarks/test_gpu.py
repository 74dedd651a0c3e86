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

from convsmith.machine.registry import target
from convsmith.runtime import cuda
from convsmith.runtime.device_library import OpenedOnce
from convsmith.schedule.config import Config
from convsmith.tune.search.process import WorkerProcess

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    require_opencl()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("gpu")
    monkeypatch.setattr(module.report, "RESULTS", module.report.RESULTS)
    return module


def test_small_layers_are_measured(
    gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = gpu.rows
    monkeypatch.setattr(gpu, "rows", lambda kind, small: [*every(kind, small)][:1])
    words = ["--target", "opencl", "--small", "--rounds", "1", "--out", str(tmp_path)]
    gpu.main([*words, "--only", "int8,depthwise"])
    file = tmp_path / "gpu-opencl.json"
    rows = json.loads(file.read_text())["rows"]
    assert [row["kind"] for row in rows] == ["int8", "depthwise"]
    assert all(not row["wrong"] and row["seconds"] > 0 and row["bytes"] > 0 for row in rows)
    page = next(tmp_path.glob("gpu-opencl-*.md")).read_text()
    assert page in capsys.readouterr().out and page.count("--target=opencl") == len(rows)
    file.write_text(json.dumps({"rows": rows[:-1]}))
    gpu.main([*words, "--resume", str(file), "--only", "depthwise"])
    assert json.loads(file.read_text())["rows"][:-1] == rows[:-1]


FAULTS = {
    "ends": ("os._exit(3)", "its process ended with status 3"), "hangs": ("time.sleep(60)", "no answer in 4 s"),
    "raises": ("raise RuntimeError('an illegal address')", "RuntimeError: an illegal address"),
}
"""By what a process does at the first row that it times: the statement, and part of the row's error."""


class Impatient(WorkerProcess):
    """Waits four seconds for the answer of the first row that is timed."""

    timed = 0

    def ask(self, **request: object) -> dict[str, Any]:
        self.timed += request["op"] == "time"
        self._seconds = 4.0 if request["op"] == "time" and self.timed == 1 else 60.0
        return super().ask(**request)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_row_that_ends_its_process_is_the_only_one_lost(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    statement, error = FAULTS[fault]
    worker, once = tmp_path / "worker.py", tmp_path / "once"
    worker.write_text(
        f"import os, sys, time, pathlib; sys.path.insert(0, {str(BENCHMARKS)!r}); import gpu_worker\n"
        f"once, time_row = pathlib.Path({str(once)!r}), gpu_worker.GpuWorker._time\n"
        "def broken(self, **request):\n"
        "    if not once.exists():\n"
        f"        once.touch(); {statement}\n"
        "    return time_row(self, **request)\n"
        "gpu_worker.GpuWorker._time = broken\n"
        "gpu_worker.main()\n"
    )
    monkeypatch.setattr(gpu, "WORKER", worker)
    monkeypatch.setattr(gpu, "WorkerProcess", Impatient if fault == "hangs" else WorkerProcess)
    gpu.main(["--target", "opencl", "--small", "--rounds", "1", "--out", str(tmp_path), "--only", "int8"])
    first, second = json.loads((tmp_path / "gpu-opencl.json").read_text())["rows"]
    assert error in first["error"] and second["seconds"] > 0 and not second["wrong"]


def test_layers_are_those_of_the_networks(gpu: Any) -> None:
    found = [row.problem for row in gpu.rows("bf16")]
    assert {p.mb for p in found} == {32, 256} and {t.dtype for p in found for t in p.tensors} == {"bf16"}
    assert len(found) == 2 * 23 and all(row.problem.g > 1 for row in gpu.rows("depthwise"))
    assert all([*gpu.rows(kind)] and [*gpu.rows(kind, small=True)] for kind in gpu.KINDS)


def test_choices_are_compared_with_configs_that_lack_them(gpu: Any) -> None:
    """Each config is legal, and a layer's rows differ in their names and configs."""
    module = importlib.import_module("gpu_choices")
    lines = ("mb32ic64ih56oc64oh56kh3ph1", "mb32ic256ih56oc256oh56kh3ph1")
    layers = [row for row in gpu.rows("choices") if row.name.endswith(lines) and "BWD" not in row.name]
    found = [*module.with_choices(layers, target("sm_90a"))]
    assert len(layers) == 2 and len({row.name for row in found}) == len(found)
    assert len({(row.problem, row.config) for row in found}) == len(found)
    resident, *others = (row.config for row in found if row.problem == layers[0].problem)
    assert "--resident=wei" in resident and any("--resident" not in text for text in others)
    assert any(Config.parse(text).staged("shared") == ("src", "wei") for text in others)
    assert {"teams", "pairs of groups along the rows"} <= {row.name.rpartition(", ")[2] for row in found}


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
    """PyTorch whose tensors of a GPU are tensors of the host, which a driver takes as memory of its device."""

    def __init__(self, torch: Any, driver: InterpretedDriver) -> None:
        super().__init__("torch")
        self.torch, self.driver = torch, driver
        names = ("Stream", "Event", "CUDAGraph", "graph", "stream", "current_stream")
        self.cuda = SimpleNamespace(
            is_available=lambda: True, get_device_name=lambda: "dry", synchronize=lambda: None, clock_rate=lambda: 1980,
            get_device_properties=lambda: SimpleNamespace(L2_cache_size=1 << 12),
            **dict.fromkeys(names, DryGraph),
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.torch, name)
        if name not in ("clone", "zeros", "empty_strided", "randn", "randint"):
            return found

        def make(*sizes: Any, device: str = "", **options: Any) -> Any:
            made = found(*sizes, **options)
            self.driver.take(made.data_ptr(), made.untyped_storage().nbytes(), made)
            return made

        return make


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The worker for sm_90a, whose launches the interpreter of PTX runs."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    worker, subjects = (importlib.import_module(name) for name in ("gpu_worker", "gpu_subjects"))
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    driver = InterpretedDriver((9, 0))
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(cuda, "code_for", lambda artifact, _: artifact.notes["ptx"].encode())
    monkeypatch.setitem(sys.modules, "torch", DryTorch(torch, driver))
    monkeypatch.setattr(subjects, "SIDE", 16)
    monkeypatch.setattr(subjects, "COPIED", 1 << 10)
    monkeypatch.setattr(subjects, "IN_CACHE", 1 << 9)
    return worker.GpuWorker("sm_90a")


LINES = {
    "bf16": "--dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic16ih4oc16oh4kh3ph1",
    "data": "--dir=BWD_D --dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic16ih4oc16oh4kh1",
    "weights": "--dir=BWD_W --dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic16ih4oc16oh4kh1",
    "groups": "--dt=bf16 --stag=axb --wtag=abxc --dtag=axb g2mb1ic32ih4oc32oh4kh1",
    "int8": "--dt=s8:s8:s32 --stag=axb --wtag=axb --dtag=axb mb1ic16ih4oc16oh4kh1",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", LINES)
def test_the_way_of_cuda_runs_dry(dry: Any, kind: str) -> None:
    """Kernels of sm_90a beside PyTorch's, on the host: several sets of tensors, packed weights, exact results."""
    answer = dry.answer("time", problem=LINES[kind], config="", rounds=1)
    assert (answer["wrong"], answer["seconds"], answer["clock"]) == ("", 1, 1980)
    assert answer.get("speedup") == (None if kind == "int8" else 1)


def test_the_ceilings_and_versions_of_cuda_are_asked_for(dry: Any) -> None:
    found = dry.answer("facts")
    assert (found["device"], found["bandwidth"], found["cached"]) == ("dry", 2 << 10, 2 << 9) and found["product"] > 0
    assert {"torch", "cuda", "cudnn"} <= found.keys()


def test_wrong_results_are_seen(dry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = type(dry.subjects)._computed
    monkeypatch.setattr(type(dry.subjects), "_computed", lambda *given: computed(*given) + 1)
    answer = dry.answer("time", problem=LINES["bf16"], config="", rounds=1)
    assert answer["wrong"] == "256 of 256 elements of set 0 of 2 differ"
