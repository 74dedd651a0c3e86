"""Arrays of other libraries: seen without a copy, refused in words, and results in the caller's library."""

from __future__ import annotations

import ctypes
import gc
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.runtime.arrays import as_array

Array = np.ndarray[Any, Any]
LINE = "mb2ic4ih6oc8oh6kh3ph1"


def integers(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


# -- a library that has nothing but the protocols --------------------------------------------------------------------


class Legacy:
    """An exporter of DLPack from before version 1.0."""

    def __init__(self, array: Array, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.shape, self.where = array, array.shape, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where

    def __dlpack__(self, stream: object = None) -> object:
        return self.array.__dlpack__()


class Versioned(Legacy):
    """An exporter of DLPack 1.0, which says what must not be written."""

    def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] = (0, 0), **_: object) -> object:
        return self.array.__dlpack__(max_version=max_version)


class Interface:
    """An exporter of numpy's array interface."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = array.__array_interface__
        self.shape, self.array = array.shape, array


class Immutable(Legacy):
    """An array of a library that writes nothing, which DLPack before version 1.0 cannot say."""

    def __array__(self, *_: object, **__: object) -> Array:
        view = self.array.view()
        view.flags.writeable = False
        return view


class OnGpu:
    """An exporter of CUDA's array interface."""

    __cuda_array_interface__: dict[str, Any] = {}
    device = "cuda:0"


class Broken(Legacy):
    def __dlpack__(self, stream: object = None) -> object:
        raise RuntimeError("has no storage")


class Tracer(Legacy):
    """An array under a transform, as JAX has them: it has neither memory nor a device."""

    def __init__(self) -> None:
        super().__init__(np.ones(3))

    def __getattribute__(self, name: str) -> Any:
        if name in ("device", "__dlpack_device__"):
            raise RuntimeError(f"a tracer has no {name}")
        return super().__getattribute__(name)


class OnMeta(Legacy):
    """An array that has a device, but no memory there."""

    device = "meta"

    def __dlpack_device__(self) -> tuple[int, int]:
        raise RuntimeError("has no storage")


class Freed(Legacy):
    """An exporter whose capsule has elements and no address, as torch makes of a tensor with a freed storage."""

    def __dlpack__(self, stream: object = None) -> object:
        capsule = self.array.__dlpack__()
        ctypes.c_void_p.from_address(_pointer(capsule)).value = None
        return capsule


class NoCapsule(Legacy):
    def __dlpack__(self, stream: object = None) -> object:
        return 3


HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether numpy exports DLPack 1.0."""
needs_versions = pytest.mark.skipif(not HAS_VERSIONS, reason=f"numpy {np.__version__} exports no DLPack 1.0")
FORMS = [Legacy, pytest.param(Versioned, marks=needs_versions), Interface]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i2", "i1", "u1", "c8", "?"])
def test_memory_is_shared_whatever_the_strides(form: Any, dtype: str) -> None:
    whole = integers((5, 4, 6), dtype=dtype)
    for array in (whole, whole.transpose(2, 0, 1), whole[1:4, ::2], whole[:0], whole[0, 0, 0, ...], whole[:, ::-1]):
        seen = as_array("x", form(array))
        assert type(seen) is np.ndarray and seen.dtype == array.dtype and seen.shape == array.shape
        np.testing.assert_array_equal(seen, array)
        if array.size:
            assert seen.ctypes.data == array.ctypes.data and seen.strides == array.strides


@pytest.mark.parametrize("form", FORMS)
def test_memory_lives_as_long_as_what_is_seen_of_it(form: Any) -> None:
    seen = as_array("x", form(np.full(1 << 16, 7, np.float32)))
    gc.collect()
    others = [np.zeros(1 << 16, np.float32) for _ in range(8)]
    assert (seen == 7).all() and not any(other.any() for other in others)


def test_what_must_not_be_written_is_read_only() -> None:
    frozen = integers((2, 8, 6, 6))
    frozen.flags.writeable = False
    k, x, w = cs.compile(LINE, threads=1), integers((2, 4, 6, 6)), integers((8, 4, 3, 3))
    forms = (Versioned, Interface) if HAS_VERSIONS else (Interface,)
    for out in (*(form(frozen) for form in forms), Immutable(integers((2, 8, 6, 6)))):
        with pytest.raises(cs.UsageError, match="out: is read-only"):
            k(x, w, out=out)
    np.testing.assert_array_equal(k(forms[0](x), Interface(w)), k(x, w))


@pytest.mark.parametrize("form", FORMS)
def test_out_is_written_in_place_and_returned(form: Any) -> None:
    x, w = integers((2, 4, 6, 6)), integers((8, 4, 3, 3), 1)
    out = np.zeros((2, 8, 6, 6), np.float32)
    given = form(out)
    assert cs.conv2d(form(x), form(w), padding=1, out=given, threads=1) is given
    np.testing.assert_array_equal(out, cs.conv2d(x, w, padding=1, threads=1))
    with pytest.raises(cs.UsageError, match="out: shares memory with x"):
        cs.compile("mb2ic4ih6oc4kh1")(form(x), integers((4, 4, 1, 1)), out=form(x))


REFUSED = {
    "device": (Legacy(np.ones(3), (2, 0)), "device", "x: is on another device than the CPU; legal is memory of"),
    "cuda": (OnGpu(), "device", "x: is on cuda:0; legal is memory of the CPU"),
    "broken": (Broken(np.ones(3)), "not-an-array", "x: no array can be read from this Broken: has no storage"),
    "no capsule": (NoCapsule(np.ones(3)), "not-an-array", "x: no array can be read from this NoCapsule"),
    "tracer": (Tracer(), "not-an-array", "from this Tracer: its library gives no memory of it, as under a transform"),
    "meta": (OnMeta(np.ones(3)), "device", "x: is on meta; legal is memory of the CPU"),
    "freed": (Freed(np.ones(3)), "not-an-array", "x: no array can be read from this Freed: its memory was freed, or"),
    "masked": (np.ma.masked_equal(np.float32([[1, 2, 2]]), 2), "masked", "x: 2 of 3 elements are masked; legal is an"),
    "list": ([1.0], "not-an-array", "x: expected an array, got list; legal is one of numpy, or of a library"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    given, code, text = REFUSED[name]
    w = integers((8, 4, 3, 3))
    calls = [lambda: cs.conv2d(given, w), lambda: cs.compile(LINE)(given, w), lambda: as_array("x", given)]
    for call in calls:
        with pytest.raises(cs.UsageError) as caught:
            call()
        assert caught.value.code == code and text in str(caught.value)


def _pointer(capsule: object) -> int:
    """The address of the `DLTensor` in a capsule."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, b"dltensor"))


def test_types_that_no_kernel_takes() -> None:
    class Odd(Legacy):
        dtype = "odd8"

        def __dlpack__(self, stream: object = None) -> object:
            capsule = self.array.__dlpack__()
            ctypes.c_uint8.from_address(_pointer(capsule) + 20).value = 11  # behind data, device and number of axes
            return capsule

    with pytest.raises(cs.UsageError, match="x: dtype is odd8, which no kernel takes"):
        as_array("x", Odd(np.ones(3, np.uint8)))


def test_data_may_begin_behind_its_address() -> None:
    class Behind(Legacy):
        def __dlpack__(self, stream: object = None) -> object:
            capsule = self.array.__dlpack__()
            start = _pointer(capsule)
            ctypes.c_uint64.from_address(start).value -= 8
            ctypes.c_uint64.from_address(start + 40).value = 8  # behind addresses of shape and strides
            return capsule

    array = integers((3, 4))
    assert as_array("x", Behind(array)).ctypes.data == array.ctypes.data


def test_a_result_goes_to_the_library_of_the_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("a_library")

    class Tensor(Legacy):
        pass

    Tensor.__module__ = "a_library.tensors"
    library.from_dlpack = Tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_library", library)
    x, w = integers((2, 4, 6, 6)), integers((8, 4, 3, 3), 1)
    want = cs.conv2d(x, w, padding=1, threads=1)
    k = cs.compile(LINE, threads=1)
    results = [
        cs.conv2d(Tensor(x), w, padding=1, threads=1), cs.conv2d(w=Tensor(w), x=Tensor(x), padding=1, threads=1),
        k(Tensor(x), w), k(Tensor(x), k.pack(Tensor(w))), k.run(wei=w, src=Tensor(x))["dst"],
    ]  # fmt: skip
    for result in results:
        assert type(result) is Tensor
        np.testing.assert_array_equal(result.array, want)
    for result in (cs.conv2d(x, Tensor(w), padding=1, threads=1), k.run(src=x, wei=Tensor(w))["dst"]):
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, want)
    assert type(cs.conv2d(Legacy(x), w)) is np.ndarray  # its module takes no arrays
    back = cs.compile(f"--dir=BWD_D {LINE}", threads=1)
    assert type(back.run(wei=w, diff_dst=Tensor(want))["diff_src"]) is Tensor
    assert type(back.run(wei=Tensor(w), diff_dst=want)["diff_src"]) is np.ndarray


# -- torch -----------------------------------------------------------------------------------------------------------


# -- tensors whose memory does not hold their elements ----------------------------------------------------------------


# -- masked arrays -----------------------------------------------------------------------------------------------------


def test_every_function_refuses_masked_elements() -> None:
    x, w, bias = (integers(s, n) for n, s in enumerate([(1, 4, 5, 5), (4, 4, 3, 3), (4,)]))
    lhs, rhs = integers((5, 4), dtype=np.uint8), integers((4, 6), dtype=np.int8)
    k, out = cs.compile("mb1ic4ih5oc4kh3", bias=True, threads=1), np.zeros((1, 4, 3, 3), np.float32)
    dynamic = cs.compile("mb1ic4ih5oc4kh3", dynamic="mb", threads=1)
    scaled = cs.compile("--attr-scales=dst:common:2 --dt=u8:s8:u8 mb1ic4ih5oc4kh3", threads=1)
    u, s = integers((1, 4, 5, 5), dtype=np.uint8), integers((4, 4, 3, 3), dtype=np.int8)
    packed = k.pack(w, bias)
    calls: list[tuple[Any, tuple[Array, ...]]] = [
        (cs.conv2d, (x, w, bias)), (cs.conv_transpose2d, (x, w, bias)), (cs.onnx.conv, (x, w, bias)),
        (lambda x, w, o: cs.conv2d(x, w, out=o), (x, w, out)), (k, (x, w, bias)), (k.pack, (w, bias)),
        (lambda x, o: k(x, packed, out=o), (x, out)), (lambda x, o: k.bind(x, packed, o), (x, out)), (dynamic, (x, w)),
        (lambda x, w, b: k.run(src=x, wei=w, bia=b), (x, w, bias)), (lambda x: cs.reorder(x, "abcd", "acdb"), (x,)),
        (lambda d: scaled.run(src=u, wei=s, scales_dst=d), (np.ones(1, np.float32),)), (cs.gemm_lowp, (lhs, rhs)),
        (lambda x: cs.onnx.conv_integer(u, s, x), (np.uint8([3]),)),
    ]  # fmt: skip
    for function, arrays in calls:
        for at in range(len(arrays)):
            masked = [np.ma.masked_array(a, mask=n == at) for n, a in enumerate(arrays)]
            with pytest.raises(cs.UsageError, match=r": \d+ of \d+ elements are masked; legal is an array without"):
                function(*masked)
        function(*(np.ma.masked_array(a, mask=False) for a in arrays))


# -- jax -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_arrays_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    x, w = (jax.numpy.asarray(integers(s, n), dtype=name) for n, s in enumerate([(2, 4, 6, 6), (8, 4, 3, 3)]))
    seen = as_array("x", x)
    assert seen.ctypes.data == x.unsafe_buffer_pointer() and seen.shape == x.shape
    y = cs.conv2d(x, w, padding=1)
    assert isinstance(y, jax.Array) and y.dtype == x.dtype
    want = cs.conv2d(np.asarray(x, np.float32), np.asarray(w, np.float32), padding=1)
    np.testing.assert_array_equal(np.asarray(y, np.float32), want.astype(y.dtype).astype(np.float32))
    k = cs.compile(f"--dt={'f32' if name == 'float32' else 'bf16'} {LINE}", threads=1)
    for result in (k(x, w), k(x, k.pack(w)), k.run(src=x, wei=w)["dst"]):
        assert isinstance(result, jax.Array) and (result == y).all()
    with pytest.raises(cs.UsageError, match="out: is read-only"):
        k(x, w, out=y)
    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
        with pytest.raises(cs.UsageError, match="Tracer: its library gives no memory of it, as under a transform or"):
            transform(lambda x: cs.conv2d(x, w))(x)
