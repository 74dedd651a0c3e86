"""Arrays at the border: what works through a copy, what is refused, and how the refusal reads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from llvm_kernels import channels_last, data, depthwise, expected, weights

from convsmith.codegen.artifact import Argument
from convsmith.diag.errors import UsageError
from convsmith.layout.layout import Layout
from convsmith.runtime import arrays
from convsmith.runtime.arrays import ArraySpec, address_of, overlap
from convsmith.runtime.host_kernel import HostKernel

SHAPE = (2, 5, 3, 7)


@pytest.fixture(scope="module")
def kernel() -> HostKernel:
    return HostKernel(depthwise(SHAPE))


class Tagged(np.ndarray):
    """A subclass."""


def misaligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


# Each gives an array of the same values in another form.
FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exact": lambda x: x,
    "channels first": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    "every other pixel": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "reversed": lambda x: np.ascontiguousarray(x[:, ::-1, :, ::-1])[:, ::-1, :, ::-1],
    "slice of more channels": lambda x: np.concatenate([x, x], axis=1)[:, :5],
    "read-only": lambda x: read_only(x.copy(order="K")),
    "misaligned": misaligned,
    "subclass": lambda x: x.copy(order="K").view(Tagged),
    "masked": lambda x: np.ma.masked_array(x, mask=False),
    "swapped axes": lambda x: np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_works(kernel: HostKernel, form: str) -> None:
    x, w = channels_last(SHAPE), weights(5)
    y = kernel(FORMS[form](x), w)
    assert type(y) is np.ndarray
    assert (y == expected(x, w)).all()
    assert y.strides == channels_last(SHAPE).strides
    assert address_of(y) % arrays.ALIGNMENT == 0


def test_every_form_of_weights_and_bias_works() -> None:
    kernel = HostKernel(depthwise(SHAPE, bias=True))
    x, w, b = channels_last(SHAPE), weights(5), data((5,), 7)
    for odd in (np.repeat(w, 3, axis=0)[::3], misaligned(w), w[::-1].copy()[::-1], read_only(w.copy()), w.view(Tagged)):
        assert (kernel(x, odd, np.repeat(b, 2)[::2]) == expected(x, w, b)).all()
        assert (kernel(x, kernel.pack(odd, misaligned(b))) == expected(x, w, b)).all()


def test_zero_stride_input(kernel: HostKernel) -> None:
    row = data((1, 5, 1, 1))
    x = np.broadcast_to(row, SHAPE)
    assert 0 in x.strides
    assert (kernel(x, weights(5)) == expected(x, weights(5))).all()


OUT_FORMS = ["exact", "channels first", "every other pixel", "slice of more channels", "misaligned", "subclass"]


@pytest.mark.parametrize("form", OUT_FORMS)
def test_every_form_of_out_works(kernel: HostKernel, form: str) -> None:
    x, w = channels_last(SHAPE), weights(5)
    out = FORMS[form](np.full_like(x, np.nan))
    result = kernel(x, w, out=out)
    assert result is out
    assert (out == expected(x, w)).all()


def test_out_is_written_in_place_where_it_fits(kernel: HostKernel) -> None:
    x, w = channels_last(SHAPE), kernel.pack(weights(5))
    guarded = np.full(x.size + 64, 77.0, np.float32)
    out = guarded[32:-32].reshape(2, 3, 7, 5).transpose(0, 3, 1, 2)
    kernel(x, w, out=out)
    assert (out == expected(x, weights(5))).all()
    assert (guarded[:32] == 77).all() and (guarded[-32:] == 77).all()


def test_slices_of_one_array_as_input_and_out(kernel: HostKernel) -> None:
    both = np.zeros((2, 10, 3, 7), np.float32)
    both[:, :5] = channels_last(SHAPE)
    expect = expected(both[:, :5], weights(5))
    kernel(both[:, :5], weights(5), out=both[:, 5:])
    assert (both[:, 5:] == expect).all()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shift", [0, 1, 100, -1])
def test_overlapping_out_is_refused(kernel: HostKernel, shift: int, packed: bool) -> None:
    size = int(np.prod(SHAPE))
    memory = np.arange(size + 200, dtype=np.float32)
    before = memory.copy()
    make = lambda at: memory[at : at + size].reshape(2, 3, 7, 5).transpose(0, 3, 1, 2)  # noqa: E731
    w = kernel.pack(weights(5)) if packed else weights(5)
    with pytest.raises(UsageError, match="dst: shares memory with src") as caught:
        kernel(make(100), w, out=make(100 + shift))
    assert caught.value.code == "overlap"
    assert (memory == before).all()


def test_out_that_overlaps_weights_is_refused() -> None:
    kernel = HostKernel(depthwise((1, 5, 1, 1)))
    w = weights(5)
    with pytest.raises(UsageError, match="shares memory with wei"):
        kernel(data((1, 5, 1, 1)), w, out=w.reshape(1, 5, 1, 1))


def test_touching_is_not_overlapping(kernel: HostKernel) -> None:
    size = int(np.prod(SHAPE))
    memory = np.zeros(2 * size, np.float32)
    halves = [memory[at : at + size].reshape(2, 3, 7, 5).transpose(0, 3, 1, 2) for at in (0, size)]
    halves[0][...] = channels_last(SHAPE)
    packed = kernel.pack(weights(5))
    kernel(halves[0], packed)  # so that the short way is open
    assert (kernel(halves[0], packed, out=halves[1]) == expected(halves[0], weights(5))).all()


X, W = channels_last(SHAPE), weights(5)
BAD_INPUTS = {
    "list": (X.tolist(), "not-an-array", "src: expected an array, got list"),
    "none": (None, "not-an-array", "src: expected an array, got NoneType"),
    "scalar": (np.float32(1), "not-an-array", "src: expected an array, got float32"),
    "double": (X.astype("f8"), "dtype", "src: dtype is float64; legal is float32 (arrays are never cast)"),
    "half": (X.astype("f2"), "dtype", "src: dtype is float16; legal is float32"),
    "integers": (X.astype("i4"), "dtype", "src: dtype is int32; legal is float32"),
    "big-endian": (X.astype(">f4"), "dtype", "src: dtype is >f4; legal is float32 in native byte order"),
    "complex": (X.astype("c8"), "dtype", "src: dtype is complex64; legal is float32"),
    "object": (X.astype(object), "dtype", "src: dtype is object; legal is float32"),
    "structured": (X.view([("a", "f4")]), "dtype", "legal is float32"),
    "rank 3": (X[0], "rank", "src: rank is 3, shape (5, 3, 7); legal is rank 4, shape (2, 5, 3, 7) = (mb, ic, ih, iw)"),
    "rank 5": (X[None], "rank", "src: rank is 5"),
    "rank 0": (np.array(1, "f4"), "rank", "src: rank is 0, shape ()"),
    "channels": (X[:, :4], "shape", "src: dim 1 (ic) is 4, shape (2, 4, 3, 7); legal is 5"),
    "width": (X[..., :6], "shape", "src: dim 3 (iw) is 6"),
    "batch": (X[:1], "shape", "src: dim 0 (mb) is 1, shape (1, 5, 3, 7); legal is 2"),
    "order": (np.ascontiguousarray(X.transpose(0, 2, 3, 1)), "shape", "shapes are logical"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_inputs(kernel: HostKernel, case: str, packed: bool) -> None:
    x, code, text = BAD_INPUTS[case]
    out = np.full_like(X, 5)
    with pytest.raises(UsageError) as caught:
        kernel(x, kernel.pack(W) if packed else W, out=out)
    assert caught.value.code == code
    assert text in str(caught.value)
    assert (out == 5).all()


BAD_OUTS = {
    "double": (np.zeros(SHAPE), "dtype", "dst: dtype is float64"),
    "shape": (np.zeros((2, 5, 3, 8), "f4"), "shape", "dst: dim 3 (ow) is 8, shape (2, 5, 3, 8); legal is 7"),
    "read-only": (read_only(np.zeros(SHAPE, "f4")), "read-only", "dst: is read-only; legal is a writeable array"),
    "zero stride": (
        np.lib.stride_tricks.as_strided(np.zeros(105, "f4"), SHAPE, (0, 4, 20, 60)), "overlap", "share memory"),
    "sliding": (
        np.lib.stride_tricks.as_strided(np.zeros(210, "f4"), SHAPE, (400, 80, 8, 4)), "overlap", "share memory"),
    "list": ([1.0], "not-an-array", "dst: expected an array, got list"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_OUTS)
def test_bad_outs(kernel: HostKernel, case: str) -> None:
    out, code, text = BAD_OUTS[case]
    with pytest.raises(UsageError) as caught:
        kernel(X, W, out=out)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert text in str(caught.value)


def test_read_only_exact_out_is_refused_with_packed_weights(kernel: HostKernel) -> None:
    out = kernel(X, W)
    packed = kernel.pack(W)
    kernel(X, packed, out=out)
    out.flags.writeable = False
    with pytest.raises(UsageError, match="read-only"):
        kernel(X, packed, out=out)


def test_interleaved_out_is_legal() -> None:
    """Dims that interleave in memory without sharing an element."""
    kernel = HostKernel(depthwise((1, 2, 1, 3)))
    memory = np.zeros(16, "f4")
    out = np.lib.stride_tricks.as_strided(memory, (1, 2, 1, 3), (0, 12, 0, 8))
    x, w = data((1, 2, 1, 3)), weights(2)
    assert (kernel(x, w, out=out) == expected(x, w)).all()


def test_weights_and_bias_are_named(kernel: HostKernel) -> None:
    with pytest.raises(UsageError, match=r"wei: dim 0 \(oc\) is 4, shape \(4, 1, 1, 1\); legal is 5"):
        kernel.pack(W[:4])
    with pytest.raises(UsageError, match="wei: dtype is float64"):
        kernel(X, W.astype("f8"))
    biased = HostKernel(depthwise(SHAPE, bias=True))
    with pytest.raises(UsageError, match=r"bia: missing; this problem has a bias of shape \(5,\)"):
        biased.pack(W)
    with pytest.raises(UsageError, match=r"bia: dim 0 \(oc\) is 6, shape \(6,\); legal is 5"):
        biased(X, W, np.zeros(6, "f4"))
    with pytest.raises(UsageError, match="bia: this problem has no bias"):
        kernel(X, W, np.zeros(5, "f4"))
    with pytest.raises(UsageError, match="packed weights hold the bias"):
        biased(X, biased.pack(W, data((5,))), data((5,)))


@pytest.mark.parametrize("layout", ["abx", "acb"])
def test_dims_have_the_names_of_the_manifest(layout: str) -> None:
    spec = ArraySpec(Argument("t", "in", "f32", (2, 3, 4), layout, 24, ("mb", "ic", "iw")))
    for dim, name in enumerate(("mb", "ic", "iw")):
        wrong = [2, 3, 4]
        wrong[dim] += 1
        with pytest.raises(UsageError, match=rf"t: dim {dim} \({name}\) is {wrong[dim]}, .* = \(mb, ic, iw\)"):
            spec.check(np.zeros(wrong, "f4"))
    with pytest.raises(UsageError, match=r"t: dim 0 is 1, shape \(1,\); legal is 2: rank 1, shape \(2,\) \(shapes"):
        ArraySpec(Argument("t", "in", "f32", (2,), "a", 2)).check(np.zeros(1, "f4"))


def test_blocked_arrays_have_the_physical_shape() -> None:
    kernel = HostKernel(depthwise((2, 5, 3, 7), layout="nChw16c"))
    x = np.full((2, 1, 3, 7, 16), np.nan, np.float32)  # whatever stands in lanes beyond C
    x[..., :5] = data((2, 1, 3, 7, 5))
    y = kernel(x, W)
    assert y.shape == x.shape
    assert (y[..., 5:] == 0).all()
    assert (y[..., :5] == x[..., :5] * W.reshape(5)).all()
    assert (kernel(np.asfortranarray(x), W, out=np.zeros((2, 1, 3, 7, 32), "f4")[..., ::2]) == y).all()
    with pytest.raises(UsageError) as caught:
        kernel(X, W)
    assert "src: rank is 4, shape (2, 5, 3, 7); legal is the physical shape (2, 1, 3, 7, 16)" in str(caught.value)
    with pytest.raises(UsageError, match="src: dim 4 is 8"):
        kernel(x[..., :8], W)


def test_padded_strides() -> None:
    """A plain layout with gaps between pixels: the array is a view of more memory."""
    layout = Layout.plain((1, 3, 2, 2), (32, 1, 16, 8)).tag()
    spec = ArraySpec(Argument("dst", "out", "f32", (1, 3, 2, 2), layout, 32))
    made = spec.empty()
    assert made.shape == (1, 3, 2, 2) and made.strides == (128, 4, 64, 32)
    assert spec.fits(made)
    assert spec.extent == (3 * 8 + 3) * 4


def test_strides_of_single_element_dims_do_not_matter() -> None:
    kernel = HostKernel(depthwise((1, 16, 1, 1)))
    x = data((1, 16, 1, 1))
    assert x.strides != kernel(x, weights(16)).strides
    assert kernel._src.fits(x)
    assert kernel._src.fits(np.lib.stride_tricks.as_strided(x, strides=(12345, 4, 7, -3)))


def test_address_of_is_right_for_every_form() -> None:
    for make in FORMS.values():
        array = make(channels_last(SHAPE))
        assert address_of(array) == array.ctypes.data


def test_address_of_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arrays._choose_address_of() is not arrays._attribute_address
    monkeypatch.setattr(arrays.sys.implementation, "name", "pypy")
    assert arrays._choose_address_of() is arrays._attribute_address
    monkeypatch.undo()
    monkeypatch.setattr(arrays, "_attribute_address", lambda array: array.ctypes.data + 1)
    assert arrays._choose_address_of() is arrays._attribute_address


def test_overlap_that_is_too_hard_counts_as_overlap() -> None:
    memory = np.zeros(1 << 20, np.int8)
    strided = np.lib.stride_tricks.as_strided
    a = strided(memory, (29, 31, 37, 41), (1103, 1009, 907, 811))
    b = strided(memory[1:], (31, 37, 41, 43), (1117, 1013, 911, 821))
    assert overlap(a, b)
    assert not overlap(np.zeros(4), np.zeros(4))
