"""Arrays in the memory of a GPU, without a GPU: a fake driver executes launches by the interpreter of PTX.

The memory of the fake GPU is memory of the host, which the arrays below do not show: all that convsmith sees of them
are the protocols.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.emulate.ptx.launch import run as run_ptx
from convsmith.runtime import cuda
from convsmith.runtime.dlpack import _exports
from convsmith.runtime.foreign import tensor_of
from convsmith.runtime.gpu_arrays import stream_of

Array = np.ndarray[Any, Any]
LINE = "--stag=axb --dtag=axb mb1ic4ih6oc8oh6kh3ph1"
STREAM = 0x5150


def integers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def last(array: Array) -> Array:
    """The same array with its channels last in memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


class FakeDriver:
    """The functions of the CUDA driver that convsmith calls; `streams` are those of the launches."""

    CUresult = SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=2)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN="shared",
    )  # fmt: skip
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE=2)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self) -> None:
        self.memory: dict[int, Array] = {}
        self.waits: list[str] = []
        self.mode = 0
        self.streams: list[int] = []
        self.copies = 0
        self.captured: tuple[int, ...] = ()

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        self.waits.append("cuStreamSynchronize")
        return (0,)

    def cuStreamGetId(self, stream: int) -> tuple[int, int]:
        return 0, stream

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[int, int]:
        before, self.mode = self.mode, mode
        return 0, before

    def cuStreamIsCapturing(self, stream: int) -> tuple[int, int]:
        return 0, int(stream in self.captured)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: (0, {"cuDeviceGetName": b"fake\0"}.get(name, 1))

    def cuDeviceGetAttribute(self, kind: str, _: object) -> tuple[int, int]:
        return 0, {"major": 9, "minor": 0, "shared": 1 << 17}[kind]

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        if self.captured and self.mode != 2:
            return 900, 0
        raw = np.zeros(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        self.memory[raw.ctypes.data + start] = raw[start : start + nbytes]
        return 0, raw.ctypes.data + start

    def cuMemFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (0,)

    def _home(self, address: int) -> tuple[Array, int] | None:
        for start, array in self.memory.items():
            if start <= address < start + array.nbytes:
                return array, address - start
        return None

    def cuPointerGetAttribute(self, _: object, address: int) -> tuple[int, int]:
        return (0, 2) if self._home(address) else (1, 0)

    def cuMemcpyHtoD(self, to: int, address: int, nbytes: int) -> tuple[int]:
        ctypes.memmove(to, address, nbytes)
        self.copies += 1
        return (0,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuModuleLoadData(self, code: bytes) -> tuple[int, str]:
        return 0, code.rstrip(b"\0").decode()

    def cuModuleGetFunction(self, text: str, name: bytes) -> tuple[int, Any]:
        return 0, (text, name.decode())

    def cuLaunchKernel(self, function: Any, *launch: Any) -> tuple[int]:
        (text, name), (*extents, shared, stream, places, _) = function, launch
        parameters = re.search(rf"\.entry {name}\((.*?)\)", text, re.DOTALL)
        assert parameters is not None
        count = len(re.findall(r"\.param", parameters[1]))
        words = [ctypes.c_uint64.from_address(p).value for p in (ctypes.c_void_p * count).from_address(places)]
        arrays = []
        for word in words:
            home = self._home(word)
            assert home is not None, "a kernel of a GPU reads memory of the host"
            arrays.append(home[0][home[1] :].view(np.float32))
        after = run_ptx(text, name, extents[:3], [a.copy() for a in arrays], extents[3:], shared)
        for array, result in zip(arrays, after):
            array[...] = result
        self.streams.append(stream)
        return (0,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(cuda, "_driver", lambda: fake)
    monkeypatch.setattr(cuda, "_opened", cuda.OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    monkeypatch.setattr(cuda, "code_for", lambda artifact, _: artifact.notes["ptx"].encode())
    module = ModuleType("fake_gpu")
    module.from_dlpack = lambda exported: Taken(fake, exported)  # type: ignore[attr-defined]
    module.isfinite = lambda array: Answer(fake, np.isfinite(array.values()))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_gpu", module)
    return fake


class Answer:
    """Truth values on the fake GPU, for which the host has to wait."""

    def __init__(self, driver: FakeDriver, values: Any) -> None:
        self.driver, self.values = driver, values

    def all(self) -> Answer:
        return Answer(self.driver, self.values.all())

    def __bool__(self) -> bool:
        self.driver.waits.append("bool")
        return bool(self.values)


class OnGpu:
    """An array on the fake GPU that speaks DLPack, and remembers the streams that it was asked for."""

    __module__ = "fake_gpu.arrays"

    def __init__(self, driver: FakeDriver, values: Array, device: int = 0, negated: bool = False) -> None:
        self.negated = negated
        self.driver, self.shape, self.strides, self.number = driver, values.shape, values.strides, device
        span = sum((n - 1) * stride for n, stride in zip(values.shape, values.strides)) + 4
        _, self.address = driver.cuMemAlloc(span)
        self.values()[...] = values
        self.asked: list[int] = []

    def values(self) -> Array:
        return np.ndarray(self.shape, np.float32, self.driver.memory[self.address], 0, self.strides)

    def is_neg(self) -> bool:
        return self.negated

    def resolve_neg(self) -> OnGpu:
        return OnGpu(self.driver, -self.values())

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.number

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int] = (0, 0)) -> object:
        self.asked.append(stream)
        return self.values().__dlpack__()


class Interface:
    """An array on the fake GPU that speaks CUDA's array interface, of a library that works on `STREAM`."""

    __module__ = "fake_gpu.arrays"

    def __init__(self, array: OnGpu) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "data": (array.address, False), "shape": array.shape, "strides": array.strides, "typestr": "<f4",
            "stream": STREAM, "version": 3,
        }  # fmt: skip

    def values(self) -> Array:
        return self.array.values()


class Taken:
    """A result in the library of the fake GPU."""

    def __init__(self, driver: FakeDriver, exported: Any) -> None:
        assert exported.__dlpack_device__() == (2, 0)
        self.tensor, _, self.capsule = tensor_of("result", exported)
        self.driver, self.shape = driver, exported.shape
        self.strides = tuple(4 * n for n in self.tensor.strides[: self.tensor.ndim])

    def values(self) -> Array:
        return np.ndarray(self.shape, np.float32, self.driver.memory[self.tensor.data], 0, self.strides)


@pytest.fixture(scope="module")
def kernel() -> Any:
    return cs.compile(LINE, target="sm_80", threads=1)


X, W = last(integers(1, 4, 6, 6)), integers(8, 4, 3, 3, seed=1)
WANT = cs.conv2d(X, W, padding=1, threads=1)


@pytest.mark.parametrize("form", [lambda array: array, Interface], ids=["DLPack", "interface"])
def test_results_stay_on_the_gpu(driver: FakeDriver, kernel: Any, form: Any) -> None:
    k = cs.CompiledKernel(kernel.problem, kernel.target, kernel.config)
    x, w = (OnGpu(driver, values) for values in (X, W))
    for call in (lambda: k(form(x), form(w)), lambda: k.run(src=form(x), wei=form(w))["dst"]):
        y = call()
        assert type(y) is Taken and y.strides == WANT.strides
        np.testing.assert_array_equal(y.values(), WANT)
    assert not driver.copies, "no array is copied"
    assert set(driver.streams) == {STREAM if form is Interface else 1}
    if form is not Interface:
        assert set(x.asked) == {1}, "the library is told on which stream its arrays are read"
    count = len(driver.memory)
    del y
    gc.collect()
    assert len(driver.memory) == count - 1, "a result's memory is freed with it"


PACKED = "--target=sm_80 --lane=oc --pack=wei --realise=mask --group=oc:8,ow:4,ic:4 --shared=src,wei"


def test_packed_weights_stay_on_the_gpu(driver: FakeDriver) -> None:
    """Plain weights of the GPU are packed there in each call; packed ones are copied to it once."""
    k = cs.compile(LINE, config=PACKED, threads=1)
    x, w = OnGpu(driver, X), OnGpu(driver, W)
    np.testing.assert_array_equal(k(x, w).values(), WANT)
    assert not driver.copies and len(driver.streams) == 2
    packed = k.pack(W)
    np.testing.assert_array_equal(k(x, packed).values(), WANT)
    count = driver.copies
    np.testing.assert_array_equal(k(x, packed).values(), WANT)
    assert driver.copies == count
    with pytest.raises(cs.UsageError, match="legal is memory of the CPU"):
        k.pack(w)


def test_a_packed_bias_stays_on_the_gpu(driver: FakeDriver) -> None:
    k = cs.compile(f"--dir=FWD_B {LINE}", config=PACKED, threads=1)
    x, b = OnGpu(driver, X), integers(8, seed=2)
    packed = k.pack(W, b)
    np.testing.assert_array_equal(k(x, packed).values(), WANT + b[:, None, None])
    count = driver.copies
    np.testing.assert_array_equal(k(x, packed).values(), WANT + b[:, None, None])
    assert driver.copies == count


def test_out_is_written_in_place(driver: FakeDriver, kernel: Any) -> None:
    k = cs.CompiledKernel(kernel.problem, kernel.target, kernel.config)
    x, w, out = (OnGpu(driver, values) for values in (X, W, np.zeros_like(WANT)))
    assert k(x, w, out=out) is out
    np.testing.assert_array_equal(out.values(), WANT)
    out.values()[...] = 0
    k.bind(x, w, out)()
    np.testing.assert_array_equal(out.values(), WANT)
    out.values()[...] = 0
    k.bind_each(src=x, wei=w, dst=out)()
    np.testing.assert_array_equal(out.values(), WANT)


def test_arrays_of_the_host_stand_beside(driver: FakeDriver, kernel: Any) -> None:
    k = cs.CompiledKernel(kernel.problem, kernel.target, kernel.config)
    np.testing.assert_array_equal(k(OnGpu(driver, X), W).values(), WANT)
    assert driver.copies
    np.testing.assert_array_equal(k(X, W), WANT)


def test_the_stream_of_torch_is_that_of_the_caller(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["fake_gpu"]
    current = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(module, "cuda", SimpleNamespace(current_stream=lambda: current), raising=False)
    x, w = OnGpu(driver, X), OnGpu(driver, W)
    cs.compile(LINE, target="sm_80", threads=1)  # made before
    cs.CompiledKernel(*(getattr(cs.compile(LINE, target="sm_80", threads=1), n) for n in ("problem", "target")))(x, w)
    assert {*driver.streams} == {STREAM} and x.asked == [STREAM]


def test_the_default_stream_of_torch_is_named_as_dlpack_names_it(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's number of it is 0, which DLPack forbids for CUDA."""
    current = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(
        sys.modules["fake_gpu"], "cuda", SimpleNamespace(current_stream=lambda: current), raising=False
    )
    x = OnGpu(driver, X)
    unloaded(cs.compile(LINE, target="sm_80", threads=1))(x, OnGpu(driver, W))
    assert x.asked == [1] and {*driver.streams} == {1}


def test_weights_that_are_not_finite_run_on_another_kernel(driver: FakeDriver, kernel: Any) -> None:
    k = cs.CompiledKernel(kernel.problem, kernel.target, kernel.config)
    assert k.artifact is not None and "wei" in k.artifact.limits
    w = W.copy()
    w[0, 0, 0, 0] = np.inf
    y = k(OnGpu(driver, X), OnGpu(driver, w)).values()
    np.testing.assert_array_equal(y[:, 1:], WANT[:, 1:])
    assert not np.isnan(y[:, 0, 0]).any(), "padding is absent"


class Counted(OnGpu):
    """An array on the fake GPU whose library counts the writes to it, as PyTorch does."""

    __module__ = "fake_gpu.arrays"
    _version = 0

    def write(self, values: Array) -> None:
        self.values()[...] = values
        self._version += 1


def unloaded(k: Any) -> Any:
    """The same kernel, whose code no driver has loaded."""
    return cs.CompiledKernel(k.problem, k.target, k.config)


PACKED_IN_EACH_CALL = "--target=sm_80 --lane=oc --pack=wei --realise=pad_copy --group=oc:8,ow:4,ic:4 --shared=src,wei"


PLAIN = PACKED_IN_EACH_CALL.replace("--pack=wei", "--pack=")


@pytest.mark.parametrize("config", [PLAIN, PACKED_IN_EACH_CALL], ids=["plain", "packs"])
def test_calls_with_plain_weights_do_not_wait(driver: FakeDriver, config: str) -> None:
    """The first call with an array asks whether it is finite, and each one after a write; no other call waits."""
    k = unloaded(cs.compile(LINE, threads=1, config=config))
    assert k.artifact is not None and "wei" in k.artifact.limits and bool(k.artifact.packs) is (config != PLAIN)
    x, w = OnGpu(driver, X), Counted(driver, W)
    waits = []
    infinite = W.copy()
    infinite[0, 0, 0, 0] = np.inf
    for values in (W, infinite, -W):
        w.write(values)
        wanted = cs.conv2d(X, values, padding=1, threads=1)
        for _ in range(2):
            before = len(driver.waits)
            np.testing.assert_array_equal(k(x, w).values(), wanted)
            waits.append(driver.waits[before:])
    assert waits == [["bool"], []] * 3


def test_another_array_is_not_taken_for_the_last_one(driver: FakeDriver, kernel: Any) -> None:
    """A new array may have the identity, the place and the count of one that is gone."""
    k = cs.CompiledKernel(kernel.problem, kernel.target, kernel.config)
    x, w = OnGpu(driver, X), Counted(driver, W)
    k(x, w)
    for other, count in ((Counted(driver, W), 1), (OnGpu(driver, W), 2)):
        before = len(driver.waits)
        k(x, other)
        k(x, other)
        assert len(driver.waits) == before + count
    address, w.address = w.address, other.address
    before = len(driver.waits)
    k(x, w)
    assert len(driver.waits) == before + 1, "the array lies elsewhere"
    w.address = address
    assert len(k._host._finite._known) == 1  # type: ignore[union-attr]
    del w, other
    gc.collect()
    assert not k._host._finite._known, "nothing is kept of arrays that are gone"  # type: ignore[union-attr]


@pytest.mark.parametrize("captured", [False, True])
def test_memory_between_entries_is_that_of_one_stream(driver: FakeDriver, captured: bool) -> None:
    """Calls that may overlap share no memory: those on several streams, and those that graphs replay."""
    k = unloaded(cs.compile(LINE, config=PACKED, threads=1))
    x, w = OnGpu(driver, X), Counted(driver, W)
    out = OnGpu(driver, np.zeros_like(WANT))
    k(x, w, out=out)
    module = sys.modules["fake_gpu"]
    counts = []
    for stream in (0x10, 0x20, 0x10, 0x20):
        current = SimpleNamespace(cuda_stream=stream)
        module.cuda = SimpleNamespace(current_stream=lambda current=current: current)
        driver.captured = (stream,) if captured else ()
        before = len(driver.memory)
        k(x, w, out=out)
        counts.append(len(driver.memory) - before)
        np.testing.assert_array_equal(out.values(), WANT)
        assert driver.streams[-2:] == [stream, stream]
    assert counts == ([1, 1, 1, 1] if captured else [1, 1, 0, 0])
    assert not driver.waits and not driver.mode


def test_memory_is_kept_for_the_streams_used_last(driver: FakeDriver) -> None:
    k = unloaded(cs.compile(LINE, config=PACKED, threads=1))
    x, w, out = OnGpu(driver, X), OnGpu(driver, W), OnGpu(driver, np.zeros_like(WANT))
    k(x, w, out=out)
    before, module = len(driver.memory), sys.modules["fake_gpu"]
    for stream in range(100, 118):
        current = SimpleNamespace(cuda_stream=stream)
        module.cuda = SimpleNamespace(current_stream=lambda current=current: current)
        k(x, w, out=out)
    gc.collect()
    assert len(driver.memory) == before + 15, "16 streams have memory"


def test_weights_of_a_captured_call_are_packed(driver: FakeDriver, kernel: Any) -> None:
    """Whether plain weights are finite is known when the GPU has looked, for which a captured call cannot wait."""
    k = cs.CompiledKernel(kernel.problem, kernel.target, kernel.config)
    x, w, packed = OnGpu(driver, X), OnGpu(driver, W), k.pack(W)
    driver.captured = (stream_of(x),)
    launches = len(driver.streams)
    with pytest.raises(cs.UnsupportedError, match=r"weights: a graph is captured, .* available are packed weights"):
        k(x, w)
    assert len(driver.streams) == launches
    np.testing.assert_array_equal(k(x, packed).values(), WANT)


def test_an_array_that_its_library_negates_is_computed_first(driver: FakeDriver, kernel: Any) -> None:
    k = cs.CompiledKernel(kernel.problem, kernel.target, kernel.config)
    w = OnGpu(driver, W)
    np.testing.assert_array_equal(k(OnGpu(driver, -X, negated=True), w).values(), WANT)
    with pytest.raises(cs.UsageError, match="out: is read-only"):
        k(OnGpu(driver, X), w, out=OnGpu(driver, WANT, negated=True))


def test_an_array_without_memory_is_refused(driver: FakeDriver, kernel: Any) -> None:
    x = Interface(OnGpu(driver, X))
    x.__cuda_array_interface__["data"] = (0, False)
    with pytest.raises(cs.UsageError, match="x: no array can be read from this Interface: its memory was freed"):
        kernel(x, OnGpu(driver, W))


def refusals(driver: FakeDriver) -> dict[str, tuple[Any, Any, dict[str, Any], str, str]]:
    x, w = OnGpu(driver, X), OnGpu(driver, W)
    first = OnGpu(driver, np.ascontiguousarray(X))
    return {
        "strides": (first, w, {}, "strides", "x: has strides of (576, 144, 24, 4) bytes; legal are (576, 4, 96, 16)"),
        "shape": (OnGpu(driver, X[:, :3]), w, {}, "shape", "x: shape is (1, 3, 6, 6); legal is rank 4"),
        "device": (OnGpu(driver, X, device=1), w, {}, "device", "x: is on GPU 1; legal is GPU 0"),
        "shape of out": (x, w, {"out": x}, "shape", "out: shape is (1, 4, 6, 6)"),
        "host": (x, w.values().astype(np.float64), {}, "dtype", "weights: dtype is float64"),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["strides", "shape", "device", "shape of out", "host"])
def test_what_is_refused(driver: FakeDriver, kernel: Any, name: str) -> None:
    x, w, options, code, text = refusals(driver)[name]
    with pytest.raises(cs.UsageError) as caught:
        kernel(x, w, **options)
    assert caught.value.code == code and text in str(caught.value)
    with pytest.raises(cs.UsageError, match="legal is memory of the CPU"):
        cs.compile(LINE, threads=1)(OnGpu(driver, X), W)


def test_a_result_shares_no_memory_with_an_input(driver: FakeDriver) -> None:
    x = OnGpu(driver, X)
    with pytest.raises(cs.UsageError, match="out: shares memory with x"):
        cs.compile("--stag=axb --dtag=axb mb1ic4ih6oc4kh1", target="sm_80", threads=1)(x, integers(4, 4, 1, 1), out=x)


def test_exported_memory_lives_as_long_as_its_consumer() -> None:
    torch = pytest.importorskip("torch")
    from convsmith.runtime.dlpack import ExportedMemory

    before = len(_exports)
    for dtype in ("float32", "bfloat16", "int8"):
        array = np.arange(24).reshape(2, 3, 4).astype(dtype).transpose(0, 2, 1)
        exported = ExportedMemory(array.ctypes.data, array.shape, array.strides, array.dtype, array)
        taken = torch.from_dlpack(exported)
        assert taken.dtype == getattr(torch, dtype) and taken.data_ptr() == array.ctypes.data
        assert torch.equal(taken.double(), torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4).transpose(1, 2))
        assert len(_exports) == before + 1
        del taken
        gc.collect()
        assert len(_exports) == before
        exported.__dlpack__()  # nobody takes it
        assert len(_exports) == before
