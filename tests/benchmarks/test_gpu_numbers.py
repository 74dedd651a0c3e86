"""The script that compares a GPU's numbers with the interpreter's runs, and says what differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ptx.driver import InterpretedDriver

from convsmith.codegen.device_text import ThreadEmitter
from convsmith.runtime import cuda
from convsmith.runtime.device_library import OpenedOnce


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    monkeypatch.setattr(cuda, "_driver", lambda: InterpretedDriver((9, 0)))
    monkeypatch.setattr(ThreadEmitter, "may_call", True)  # which the script changes
    with np.errstate(all="ignore"):
        yield


@pytest.mark.usefixtures("_interpreted")
def test_all_numbers_are_those_of_the_interpreter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gpu_numbers

    some = [x for x in gpu_numbers.cases(256) if not x[0].startswith(("f16", "bf16"))]
    monkeypatch.setattr(gpu_numbers, "cases", lambda count: iter(some))
    assert gpu_numbers.main(["--ptx"]) == 0
    said = capsys.readouterr().out
    assert said.count(" 0 differ") == len(some) and "NaN is 0x7fff" in said


@pytest.mark.usefixtures("_interpreted")
def test_a_difference_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_numbers

    arrays = gpu_numbers.results({"a": np.full(512, 2.5, np.float32)}, "s32")
    wanted = np.full(512, 3, np.int32)
    monkeypatch.setattr(gpu_numbers, "cases", lambda count: iter([("a case", "cast(s32, a@)", arrays, wanted)]))
    assert gpu_numbers.main(["--ptx"]) == 1
    assert "512 differ" in capsys.readouterr().out
