"""Calls on arrays in the memory of a device: they are copied there once, and launches are queued."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx.driver import InterpretedDriver

import convsmith as cs
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.registry import target
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.timing import Sampler
from convsmith.problem import parse_problem, reference
from convsmith.problem.data import random_arrays
from convsmith.runtime import cuda
from convsmith.runtime.device_library import OpenedOnce
from convsmith.runtime.resident import ResidentCall
from convsmith.schedule.config import Config

KINDS = {
    "one": ("--stag=axb --dtag=axb mb1ic4iw6oc8ow6kw3pw1",
            "--lane=oc --realise=mask --group=oc:8,ow:2"),
    "chain": ("--stag=axb mb1ic2iw4oc4ow4kw1 -> --dtag=axb mb1ic4iw4oc2ow4kw3pw1",
              "--lane=oc --realise=mask --group=oc:4 / --target=sm_80 --pack= --lane=oc --realise=mask --group=oc:2"),
    "parts": ("--dir=BWD_W --dtag=axb mb2ic2iw4oc4ow4kw1",
              "--lane=oc --realise=mask --group=oc:4 --split=mb:2"),
}  # fmt: skip


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> InterpretedDriver:
    made = InterpretedDriver()
    monkeypatch.setattr(cuda, "_driver", lambda: made)
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    monkeypatch.setattr(cuda, "code_for", lambda artifact, _: artifact.notes["ptx"].encode())
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_copied_once_and_launches_are_queued(kind: str, driver: InterpretedDriver) -> None:
    """A second entry reads what the first one wrote in memory of the device."""
    line, words = KINDS[kind]
    problem = parse_problem(line)
    kernel = CompiledKernel(problem, target("sm_80"), Config.parse(f"--target=sm_80 --pack= {words}"))
    arrays = random_arrays(problem)
    call, results = bound_call(problem, kernel, aligned_inputs(problem, arrays))
    assert isinstance(call, ResidentCall)
    (out,) = (t for t in problem.tensors if t.role == "out")
    place = driver.arrays[call.addresses[out.name]].view(results[out.name].dtype)
    place[:] = 0
    driver.calls.clear()
    call()
    assert driver.calls.count("cuLaunchKernel") == len(kernel.artifact.steps)
    assert not {"cuStreamSynchronize", "cuMemcpyHtoD", "cuMemcpyDtoH"} & {*driver.calls}
    call.finish()
    assert driver.calls.count("cuStreamSynchronize") == 1
    written = np.sort(place[place != 0])
    truth = np.sort(reference(problem, arrays)[out.name].ravel())
    np.testing.assert_array_equal(written, truth[truth != 0])


def test_a_sample_ends_when_queued_work_has_ended() -> None:
    order: list[str] = []

    class Queued:
        def __call__(self) -> None:
            order.append("call")

        def finish(self) -> None:
            order.append("finish")

    sampler = Sampler(Queued(), 1e-9)
    order.clear()
    sampler()
    assert order[-1] == "finish" and order.count("finish") == 2


def test_without_a_device_nothing_is_resident() -> None:
    kernel = cs.compile("mb1ic2iw4oc2ow4kw1")
    x: Any = np.ones((1, 2, 4), np.float32)
    assert kernel.resident({"src": x}) is None
