"""Kernels as callables: packing, bias, scratch, non-finite weights, empty tensors, and calls from many threads."""

from __future__ import annotations

import gc
import math
import re
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from callers import on_threads
from llvm_kernels import channels_last, data, depthwise, expected, weights

import convsmith as cs
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.runtime import prepared_call
from convsmith.runtime.arrays import address_of
from convsmith.runtime.border import Border
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.packed import Packed

SHAPE = (2, 5, 3, 7)
X, W, B = channels_last(SHAPE), weights(5), data((5,), 9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("in_place", [False, True])
def test_calls(threads: int, bias: bool, scratch: bool, in_place: bool) -> None:
    kernel = HostKernel(depthwise(SHAPE, threads=threads, bias=bias, scratch=scratch, in_place=in_place))
    b = B if bias else None
    truth = expected(X, W, b)
    packed = kernel.pack(W, b)
    out = np.full_like(X, np.nan)
    for _ in range(3):
        assert (kernel(X, packed) == truth).all()
        assert (kernel(X, W, b) == truth).all()
        out[...] = np.nan
        assert kernel(X, packed, out=out) is out
        assert (out == truth).all()
    assert math.isnan(packed.magnitude), "weights without a limit are not examined"


@pytest.mark.parametrize("in_place", [False, True])
def test_a_call_with_plain_weights_that_fit_takes_its_arrays_as_they_are(
    in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = HostKernel(depthwise(SHAPE, scratch=True, in_place=in_place))
    x, w, out, truth = X.copy(order="K"), W.copy(), np.full_like(X, np.nan), expected(X, W, None)
    taken = []
    take = Border.take
    monkeypatch.setattr(Border, "take", lambda self, *given: taken.append(given) or take(self, *given))
    assert kernel(x, w, out=out) is out and (out == truth).all() and not taken
    w *= 2
    assert kernel(x, w, out=out) is out and (out == 2 * truth).all() and not taken
    for other in (x[:, ::-1], np.asfortranarray(x) + 0):
        assert kernel(other, w, out=out) is out and (out == expected(other, w, None)).all() and taken
        taken.clear()
    for bad in (x, x[...].view()):
        with pytest.raises(UsageError, match="shares memory"):
            kernel(x, w, out=bad)
    out.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        kernel(x, w, out=out)
    with pytest.raises(UsageError, match="bias"):
        kernel(x, w, B, out=np.empty_like(X))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_bound_call_computes_on_what_its_arrays_hold(threads: int, bias: bool) -> None:
    kernel = HostKernel(depthwise(SHAPE, threads=threads, bias=bias, scratch=True))
    b = B if bias else None
    x, out = X.copy(order="K"), np.full_like(X, np.nan)
    call = kernel.bind(x, kernel.pack(W, b), out)
    assert np.isnan(out).all()
    for factor in (1, 2):
        x[...] = X * factor
        out[...] = np.nan
        call()
        assert (out == expected(x, W, b)).all()
        assert (kernel(X, W, b) == expected(X, W, b)).all()


def test_arrays_of_another_order_and_weights_that_are_not_finite_can_be_bound_too() -> None:
    kernel = HostKernel(depthwise(SHAPE, needs_finite=True), Factory())
    x, out = np.ascontiguousarray(X), np.full(SHAPE, np.nan, np.float32)
    kernel.bind(x, kernel.pack(W), out)()
    assert (out == expected(X, W)).all()
    infinite = np.full_like(W, np.inf)
    kernel.bind(X, kernel.pack(infinite), out)()
    np.testing.assert_array_equal(out, expected(X, infinite))


def test_what_does_not_fit_is_not_bound() -> None:
    kernel = HostKernel(depthwise(SHAPE))
    with pytest.raises(UsageError, match="shape"):
        kernel.bind(X[:1], kernel.pack(W), np.empty_like(X))
    with pytest.raises(UsageError, match="memory"):
        kernel.bind(X, kernel.pack(W), X)


@pytest.mark.parametrize("shape", [(1, 3, 5), (1, 3, 2, 3, 4), (1, 1, 1), (3, 17, 1, 1)])
def test_ranks(shape: tuple[int, ...]) -> None:
    kernel = HostKernel(depthwise(shape))
    x, w = channels_last(shape), weights(shape[1], len(shape))
    assert (kernel(x, w) == expected(x, w)).all()


def test_packed_order_is_the_kernels() -> None:
    packed = HostKernel(depthwise(SHAPE)).pack(W)
    assert (packed.buffer == W.ravel()[::-1]).all()
    assert packed.buffer.ndim == 1 and packed.bias is None and packed.key == "backwards"
    with pytest.raises(ValueError, match="read-only"):
        packed.buffer[0] = 1


def test_packed_weights_are_a_copy() -> None:
    kernel = HostKernel(depthwise(SHAPE, bias=True))
    w, b = W.copy(), B.copy()
    packed = kernel.pack(w, b)
    w[:], b[:] = 99, 99
    assert b.flags.writeable
    assert (kernel(X, packed) == expected(X, W, B)).all()


def test_packed_weights_serve_every_kernel_of_equal_packing() -> None:
    packed = HostKernel(depthwise(SHAPE)).pack(W)
    other = channels_last((1, 5, 9, 9))
    assert (HostKernel(depthwise((1, 5, 9, 9), threads=2))(other, packed) == expected(other, W)).all()


def test_weights_of_several_stages_are_not_packed_beforehand() -> None:
    kernel = cs.compile("mb1ic4ih3oc8kh1 -> mb1ic8ih3oc4kh1", threads=1)
    with pytest.raises(UsageError, match=r"this kernel packs nothing: legal is k\.run"):
        kernel.pack(np.ones((8, 4, 1, 1), np.float32))


def test_packed_for_another_kernel() -> None:
    kernel = HostKernel(depthwise(SHAPE))
    for name, other, bias in (
        ("packing forwards, 5 float32, no bias", depthwise(SHAPE, packing="forwards"), None),
        ("packing backwards, 7 float32, no bias", depthwise((2, 7, 3, 5)), None),
        ("packing backwards, 5 float32, bias of 5 float32", depthwise(SHAPE, bias=True), B),
    ):
        packed = HostKernel(other).pack(weights(other.entries["main"].arguments[0].shape[1]), bias)
        with pytest.raises(UsageError) as caught:
            kernel(X, packed, out=np.empty_like(X))
        assert caught.value.code == "packing"
        assert f"packed for another kernel: {name}; legal is packing backwards, 5 float32, no bias" in str(caught.value)


@pytest.mark.parametrize("bias", [False, True])
def test_save_and_load(tmp_path: Path, bias: bool) -> None:
    kernel = HostKernel(depthwise(SHAPE, bias=bias))
    packed = kernel.pack(W, B if bias else None)
    packed.save(tmp_path / "weights")
    assert [file.name for file in tmp_path.iterdir()] == ["weights"]
    again = Packed.load(tmp_path / "weights")
    assert again.signature == packed.signature
    assert (again.buffer == packed.buffer).all()
    out = np.empty_like(X)
    assert (kernel(X, again, out=out) == expected(X, W, B if bias else None)).all()


def test_loading_something_else(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    with pytest.raises(FileNotFoundError):
        Packed.load(path)
    HostKernel(depthwise(SHAPE)).pack(W).save(path)
    whole = path.read_bytes()
    contents = [b"", b"junk" * 50, whole[: len(whole) // 2]]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is not a file of packed weights") as caught:
            Packed.load(path)
        assert caught.value.code == "bad-packed"
    np.save(path.with_suffix(".npy"), W)
    np.savez(path, buffer=W)
    np.savez(tmp_path / "objects.npz", format=np.array([{}], dtype=object))
    for other in (path, path.with_suffix(".npy"), tmp_path / "objects.npz"):
        with pytest.raises(UsageError, match="is not a file of packed weights"):
            Packed.load(other)


class Factory:
    """Counts how often the fallback is made."""

    def __init__(self, packing: str = "fallback's") -> None:
        self.made = 0
        self.packing = packing

    def __call__(self) -> HostKernel:
        self.made += 1
        return HostKernel(depthwise(SHAPE, packing=self.packing))


def test_arrays_bound_by_name_that_do_not_fit_are_copied() -> None:
    out = np.full(SHAPE, np.nan, np.float32)
    HostKernel(depthwise(SHAPE)).bind_each({"src": np.ascontiguousarray(X), "wei": W, "dst": out})()
    assert (out == expected(X, W)).all()


def test_empty_arrays_bound_by_name_call_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (0, *SHAPE[1:])
    monkeypatch.setattr(prepared_call.PreparedCall, "frame", lambda *_: pytest.fail("was called"))
    x, out = channels_last(shape), channels_last(shape)
    HostKernel(depthwise(shape)).bind_each({"src": x, "wei": W, "dst": out})()


def test_weights_bound_by_name_may_become_infinite() -> None:
    kernel = HostKernel(depthwise(SHAPE, needs_finite=True), Factory())
    w, out = W.copy(), np.full_like(X, np.nan)
    call = kernel.bind_each({"src": X, "wei": w, "dst": out})
    for value in (1, np.inf, 2):
        w[2] = value
        call()
        np.testing.assert_array_equal(out, expected(X, w))


@pytest.mark.parametrize("value", [3, np.inf, np.nan])
def test_a_placed_call_runs_the_kernel_of_its_weights(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = HostKernel(depthwise(SHAPE, needs_finite=True), Factory())
    asked, placed = list[HostKernel](), HostKernel.placed
    monkeypatch.setattr(HostKernel, "placed", lambda self, *given: asked.append(self) or placed(self, *given))
    w, out = W.copy(), np.full_like(X, np.nan)
    w[1] = value
    frame = kernel.placed({"wei": kernel.pack(w)}, ("src", "dst"), 0)
    assert len(asked) == (1 if np.isfinite(value) else 2), "weights that are not finite are the fallback's"
    for words, place, content in prepared_call.writers(frame.words):
        words[place] = content((address_of(X), address_of(out)))
    for run in frame.runs:
        run()
    np.testing.assert_array_equal(out, expected(X, w))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_weights_that_are_not_finite_run_through_the_fallback(value: float, tmp_path: Path) -> None:
    factory = Factory()
    kernel = HostKernel(depthwise(SHAPE, needs_finite=True), factory)
    assert kernel.pack(W).magnitude == np.abs(W).max()
    assert (kernel(X, W, out=np.empty_like(X)) == expected(X, W)).all()
    assert factory.made == 0
    w = W.copy()
    w[2] = value
    packed = kernel.pack(w)
    assert packed.magnitude == np.inf and packed.key == "fallback's"
    for weights_ in (packed, w):
        y = kernel(X, weights_, out=np.empty_like(X))
        np.testing.assert_array_equal(y, expected(X, w))
    packed.save(tmp_path / "w")
    np.testing.assert_array_equal(kernel(X, Packed.load(tmp_path / "w")), expected(X, w))
    assert factory.made == 1


def test_packed_elsewhere_and_not_finite() -> None:
    """Nobody looked at these weights when they were packed; their packing is the kernel's."""
    w = W.copy()
    w[0] = np.nan
    finite, not_finite = (HostKernel(depthwise(SHAPE)).pack(each) for each in (W, w))
    assert math.isnan(finite.magnitude)
    shared = HostKernel(depthwise(SHAPE, needs_finite=True), Factory("backwards"))
    np.testing.assert_array_equal(shared(X, finite), expected(X, W))
    np.testing.assert_array_equal(shared(X, not_finite), expected(X, w))
    assert (finite.magnitude, not_finite.magnitude) == (np.abs(W).max(), np.inf)
    other = HostKernel(depthwise(SHAPE, needs_finite=True), Factory())
    with pytest.raises(UsageError, match=r"packing backwards, .* legal is packing fallback's"):
        other(X, not_finite)


def test_no_fallback() -> None:
    kernel = HostKernel(depthwise(SHAPE, needs_finite=True))
    w = W.copy()
    w[1] = np.inf
    with pytest.raises(UnsupportedError, match="wei: holds infinities or NaN") as caught:
        kernel.pack(w)
    assert caught.value.code == "non-finite"


@pytest.mark.parametrize("shape", [(0, 5, 3, 7), (2, 5, 0, 7), (0, 5, 0, 0)])
@pytest.mark.parametrize("layout", ["axb", "aBx16b"])
def test_empty_tensors_call_nothing(shape: tuple[int, ...], layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = HostKernel(depthwise(shape, layout=layout))
    packed = kernel.pack(W)
    monkeypatch.setattr(prepared_call.PreparedCall, "frame", lambda *_: pytest.fail("was called"))
    physical = shape if layout == "axb" else (shape[0], 1, *shape[2:], 16)
    x = np.zeros(physical, np.float32)
    assert kernel(x, W).shape == physical
    out = np.zeros(physical, np.float32)
    assert kernel(x, packed, out=out) is out
    with pytest.raises(UsageError, match="rank is 1"):
        kernel(np.zeros(0, np.float32), packed)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_bound_call_keeps_the_code_that_it_runs(threads: int) -> None:
    kernel = HostKernel(depthwise(SHAPE, threads=threads))
    out = np.empty_like(X)
    call = kernel.bind(X, kernel.pack(W), out)
    code = weakref.ref(kernel._calls._steps[0].function._code)
    del kernel
    gc.collect()
    assert code() is not None
    call()
    assert (out == expected(X, W)).all()
    gc.disable()  # no cycle holds it
    try:
        del call
        assert code() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("threads", [1, 2])
def test_scratch_is_private_to_a_call(threads: int) -> None:
    """Many Python threads on one kernel, whose chunks go through scratch memory."""
    shape = (4, 16, 33, 33)
    x = channels_last(shape)
    kernel = HostKernel(depthwise(shape, threads=threads, scratch=True))
    sets = [weights(16, seed=seed) for seed in range(6)]

    def work(w: np.ndarray) -> None:
        truth, packed, out = expected(x, w), kernel.pack(w), np.empty_like(x)
        for turn in range(30):
            y = kernel(x, w) if turn % 3 == 0 else kernel(x, packed, out=out)
            assert (y == truth).all(), turn

    on_threads(work, sets)
    assert 1 <= len(kernel._on_packed._frames) <= len(sets)


def test_other_python_threads_run_during_a_call() -> None:
    shape = (1, 64, 512, 512)
    kernel = HostKernel(depthwise(shape))
    x = np.moveaxis(np.ones((1, 512, 512, 64), np.float32), -1, 1)
    packed, out = kernel.pack(weights(64)), np.empty_like(x)
    kernel(x, packed, out=out)
    finished = threading.Event()
    steps: list[float] = []

    def call() -> None:
        for _ in range(3):
            kernel(x, packed, out=out)
        finished.set()

    caller = threading.Thread(target=call)
    caller.start()
    while not finished.is_set():
        steps.append(time.perf_counter())
        time.sleep(0.0005)
    caller.join()
    # With the GIL held, this loop would turn about once for each of the three calls.
    assert len(steps) > 10


def test_a_damaged_file_of_packed_weights_is_one_error(tmp_path: Path) -> None:
    """Each byte of the headers and ends of the archive is changed in turn, in two ways."""
    path = tmp_path / "w.npz"
    HostKernel(depthwise(SHAPE)).pack(W).save(path)
    content = path.read_bytes()
    marks = [m.start() for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for m in re.finditer(mark, content)]
    for start in marks:
        for at in range(start, min(start + 46, len(content))):
            for change in (0x01, 0xFF):
                path.write_bytes(content[:at] + bytes([content[at] ^ change]) + content[at + 1 :])
                try:
                    Packed.load(path)
                except UsageError as error:
                    assert error.code == "bad-packed"


def test_the_file_of_packed_weights_is_not_believed(tmp_path: Path) -> None:
    """Weights are examined, whatever a file says of their magnitude."""
    path, w = tmp_path / "w.npz", W.copy()
    w[0] = np.inf
    packed = HostKernel(depthwise(SHAPE)).pack(w)
    with np.load(save(packed, path)) as parts:
        np.savez(path, **{**parts, "finite": 1, "magnitude": 1.0})
    factory = Factory("backwards")
    kernel = HostKernel(depthwise(SHAPE, needs_finite=True), factory)
    np.testing.assert_array_equal(kernel(X, Packed.load(path)), expected(X, w))
    assert factory.made == 1


def save(packed: Packed, path: Path) -> Path:
    packed.save(path)
    return path
