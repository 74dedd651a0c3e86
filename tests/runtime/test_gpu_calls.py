"""Repeated calls on arrays of a GPU: what they ask of the driver, and which of them take the general way.

The library of the arrays is a fake one, whose memory of a GPU is memory of the host.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ptx.driver import InterpretedDriver

import convsmith as cs
from convsmith.problem import reference
from convsmith.runtime import array_readers, cuda
from convsmith.runtime.array_readers import ArrayReader
from convsmith.runtime.device_library import OpenedOnce

HOPPER = "--dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic16ih4oc16oh4kh3ph1"
PLAIN = "--stag=axb --dtag=axb mb1ic4ih6oc8oh6kh3ph1"
POINT = "--stag=axb --dtag=axb mb1ic4ih6oc4kh1"
"""A kernel for any weights, which do not meet padding."""
STREAM = 0x5150
IN_CONTEXT = ["cuCtxGetCurrent", "cuLaunchKernel"]


class OnGpu:
    """An array of the library `fake_library`."""

    __module__ = "fake_library"

    def __init__(self, driver: InterpretedDriver, values: np.ndarray, stream: int = STREAM) -> None:
        self.driver, self.values, self.stream = driver, values, stream
        base = values if values.base is None else values.base
        driver.take(values.ctypes.data, np.asarray(base).nbytes, values)
        self.protocols = 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.protocols += 1
        v = self.values
        return {"data": (v.ctypes.data, False), "shape": v.shape, "strides": v.strides, "typestr": v.dtype,
                "stream": self.stream, "version": 3}  # fmt: skip


def last(values: np.ndarray) -> np.ndarray:
    """Return an array with its channels last in memory."""
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> InterpretedDriver:
    made = InterpretedDriver((9, 0))
    monkeypatch.setattr(cuda, "_driver", lambda: made)
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    monkeypatch.setattr(cuda, "code_for", lambda artifact, _: artifact.notes["ptx"].encode())
    monkeypatch.setitem(sys.modules, "fake_library", ModuleType("fake_library"))

    def new(like: OnGpu, shape: Any, strides: Any, dtype: str) -> OnGpu:
        room = np.zeros(int(np.prod(shape)), dtype)
        steps = [stride * room.itemsize for stride in strides]
        return OnGpu(made, np.lib.stride_tricks.as_strided(room, shape, steps))

    reader = ArrayReader(
        lambda x: (x.values.shape, x.values.strides, x.values.dtype), lambda x: x.values.ctypes.data,
        lambda x: x.stream, new,
    )  # fmt: skip
    monkeypatch.setitem(array_readers.READERS, "fake_library", lambda _: {OnGpu: reader})
    monkeypatch.setattr(array_readers, "_by_class", {})
    return made


def arrays(driver: InterpretedDriver, k: Any, seed: int = 0) -> SimpleNamespace:
    """Return source, weights of the host, and destination of a kernel, with the true destination."""
    shapes = {t.name: (t.shape, k.host.border.specs[t.name].dtype) for t in k.problem.tensors}
    rng = np.random.default_rng(seed)
    x, w, y = (rng.integers(-3, 4, shape).astype(dtype) for shape, dtype in (shapes[n] for n in ("src", "wei", "dst")))
    wanted = reference(k.problem, {"src": x, "wei": w})["dst"]
    return SimpleNamespace(x=OnGpu(driver, last(x)), w=last(w), out=OnGpu(driver, last(y)), wanted=wanted)


def unloaded(line: str, target: str) -> Any:
    """Return a kernel whose code no driver has loaded."""
    k = cs.compile(line, target=target, threads=1)
    return cs.CompiledKernel(k.problem, k.target, k.config)


@pytest.mark.parametrize("line, target, maps", [(HOPPER, "sm_90a", 2), (PLAIN, "sm_80", 0), (POINT, "sm_80", 0)])
def test_a_repeated_call_only_launches(driver: InterpretedDriver, line: str, target: str, maps: int) -> None:
    """The driver is asked for the current context, and launches; tensor maps are those of the first call."""
    k = unloaded(line, target)
    given = arrays(driver, k)
    packed = k.pack(given.w)
    driver.streams.clear()
    driver.contexts.append("context")
    protocols: tuple[int, ...] = ()
    for n in range(3):
        given.out.values[...] = 0
        driver.calls.clear()
        assert k(given.x, packed, out=given.out) is given.out
        np.testing.assert_array_equal(given.out.values, given.wanted)
        encoded = [name for name in driver.calls if name.startswith("cuTensorMapEncode")]
        assert len(encoded) == (0 if n else maps)
        protocols = protocols or (given.x.protocols, given.out.protocols)
    assert (given.x.protocols, given.out.protocols) == protocols
    assert driver.calls == IN_CONTEXT and {*driver.streams} == {STREAM}
    driver.contexts.pop()
    driver.calls.clear()
    k(given.x, packed, out=given.out)
    assert driver.calls == ["cuCtxGetCurrent", "cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]


def test_calls_on_addresses_examine_new_ones_only(driver: InterpretedDriver) -> None:
    """Alternating arrays encode each map once."""
    k = unloaded(HOPPER, "sm_90a")
    several = [arrays(driver, k, seed) for seed in (0, 1)]
    call, memory = k.host.addressed(("src", "wei", "dst")), cuda.CudaMemory()
    weights = [OnGpu(driver, given.w) for given in several]
    counts = []
    for _ in range(2):
        driver.calls.clear()
        for given, w in zip(several, weights):
            given.out.values[...] = 0
            with memory.on_stream(7, resident=True):
                call.run([x.values.ctypes.data for x in (given.x, w, given.out)], given)
            np.testing.assert_array_equal(given.out.values, given.wanted)
        counts.append(sum(name.startswith("cuTensorMapEncode") for name in driver.calls))
        assert "cuPointerGetAttribute" not in driver.calls
    assert counts == [4, 0] and {*driver.streams} == {7}


def test_a_call_with_known_forms_uses_no_protocol(driver: InterpretedDriver) -> None:
    """A new result has memory of its library; arrays of the host, and of another form, take the general way."""
    k = unloaded(PLAIN, "sm_80")
    given = arrays(driver, k)
    packed = k.pack(given.w)
    first = k(given.x, packed)
    assert type(first) is OnGpu and "cuMemFree" not in driver.calls
    used = given.x.protocols
    again = k(given.x, packed)
    np.testing.assert_array_equal(again.values, given.wanted)
    np.testing.assert_array_equal(first.values, given.wanted)
    assert given.x.protocols == used and again.values.ctypes.data != first.values.ctypes.data
    np.testing.assert_array_equal(k(given.x.values, packed), given.wanted)
    given.x.stream = STREAM + 1
    k(given.x, packed)
    assert driver.streams[-1] == STREAM + 1
    with pytest.raises(cs.UsageError, match="x: has strides"):
        k(OnGpu(driver, np.ascontiguousarray(given.x.values)), packed)
    with pytest.raises(cs.UsageError, match="packed for another kernel"):
        k(given.x, cs.compile("mb1ic4ih6oc16oh6kh3ph1", threads=1).pack(np.ones((16, 4, 3, 3), np.float32)))


def test_results_that_share_memory_are_refused_in_every_call(driver: InterpretedDriver) -> None:
    k = unloaded(POINT, "sm_80")
    given = arrays(driver, k)
    packed = k.pack(given.w)
    for _ in range(2):
        k(given.x, packed, out=given.out)
        with pytest.raises(cs.UsageError, match="out: shares memory with x"):
            k(given.x, packed, out=given.x)


def test_packed_weights_that_are_not_finite_run_on_another_kernel(driver: InterpretedDriver) -> None:
    k = unloaded(PLAIN, "sm_80")
    assert k.artifact is not None and "wei" in k.artifact.limits
    given = arrays(driver, k)
    finite, w = k.pack(given.w), given.w.copy()
    w[0, 0, 0, 0] = np.inf
    infinite = k.pack(w)
    for _ in range(2):
        np.testing.assert_array_equal(k(given.x, finite).values, given.wanted)
        y = k(given.x, infinite).values
        np.testing.assert_array_equal(y[:, 1:], given.wanted[:, 1:])
        assert not np.isnan(y[:, 0, 0]).any(), "padding is absent"


def test_default_arrays_are_copied_to_the_device_once(driver: InterpretedDriver) -> None:
    """A call omits the scale of the destination."""
    k = unloaded(f"--attr-scales=dst:common:0.5 {PLAIN}", "sm_80")
    given = arrays(driver, k)
    packed = k.pack(given.w)
    copies = []
    for _ in range(2):
        driver.calls.clear()
        np.testing.assert_array_equal(k.run(src=given.x, wei=packed, dst=given.out)["dst"].values, given.wanted)
        copies.append(driver.calls.count("cuMemcpyHtoD"))
    assert copies == [2, 0]
