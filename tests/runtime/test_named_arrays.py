"""Kernels on arrays by name: inputs, outputs, defaults, several entries, packed operands, and every refusal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from callers import on_threads
from llvm_kernels import (
    QUANTISED_SHAPE,
    channels_last,
    data,
    depthwise,
    expected,
    gradients,
    quantised,
    tensor,
    weights,
)

from convsmith.codegen.artifact import FINITE, Argument
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.ir import types
from convsmith.runtime.arrays import ArraySpec, is_within, magnitude, numpy_dtype
from convsmith.runtime.border import Border
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.packed import Packed

SHAPE = (2, 5, 3, 7)
X, W, B = channels_last(SHAPE), weights(5), data((5,), 9)
Q, ONE = data(QUANTISED_SHAPE), np.full((1, 1, 1), 3, np.float32)
CHANNELS = np.array([1, 2, 3], np.float32).reshape(1, 3, 1)
G = {"src": data((1, 2, 3), 1), "diff_dst": data((1, 2, 3), 2)}


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_run_is_what_a_call_is(bias: bool, in_place: bool) -> None:
    kernel = HostKernel(depthwise(SHAPE, bias=bias, in_place=in_place))
    truth = expected(X, W, B if bias else None)
    packed = kernel.pack(W, B if bias else None)
    plain = {"src": X, "wei": W, **({"bia": B} if bias else {})}
    for arrays in (plain, {"src": np.ascontiguousarray(X), "wei": packed}):
        results = kernel.run(arrays)
        assert list(results) == ["dst"] and (results["dst"] == truth).all()
        assert results["dst"].strides == X.strides
        for out in (np.full_like(X, np.nan), np.full(SHAPE, np.nan, np.float32)):
            assert kernel.run({**arrays, "dst": out})["dst"] is out
            assert (out == truth).all()


# -- defaults
def test_defaults_stand_where_nothing_is_given() -> None:
    kernel = HostKernel(quantised())
    truth = Q * 3 * 2 * CHANNELS
    assert (kernel.run({"src": Q, "wei": ONE})["dst"] == truth).all()
    given = {"scales_src": f32(5), "scales_wei": f32(1, 1, -4), "zero_points_dst": np.array([7], np.int32)}
    want = Q * 3 * 5 * f32(1, 1, -4).reshape(1, 3, 1) + 7
    assert (kernel.run({"src": Q, "wei": ONE, **given})["dst"] == want).all()
    # What one call gives is not the next one's: frames are kept.
    assert (kernel.run({"src": Q, "wei": ONE})["dst"] == truth).all()
    packed, out = kernel.pack(ONE), np.empty_like(Q)
    assert (kernel(Q, packed, out=out) == truth).all()
    kernel.run({"src": Q, "wei": packed, **given})
    for y in (kernel(Q, packed, out=np.empty_like(Q)), kernel(Q, packed), kernel(Q, ONE)):
        assert (y == truth).all()


def test_numbers_stand_for_scales_and_zero_points_of_one_element() -> None:
    kernel = HostKernel(quantised())
    for scale, zero in ((0.5, -3), (np.float64(0.5), np.int64(-3)), (np.float32(0.5), np.int8(-3))):
        y = kernel.run({"src": Q, "wei": ONE, "scales_src": scale, "zero_points_dst": zero})["dst"]
        assert (y == Q * 3 * 0.5 * CHANNELS - 3).all()


def test_defaults_bound_to_frames_of_many_threads() -> None:
    kernel = HostKernel(quantised())
    packed = kernel.pack(ONE)

    def work(scale: float) -> None:
        for turn in range(200):
            given = {"scales_src": scale} if turn % 2 else {}
            y = kernel.run({"src": Q, "wei": packed, **given})["dst"]
            assert (y == Q * 3 * (scale if turn % 2 else 2) * CHANNELS).all()
            assert (kernel(Q, packed, out=np.empty_like(Q)) == Q * 6 * CHANNELS).all()

    on_threads(work, (4.0, 8.0, 16.0))


def test_a_call_needs_run_where_an_array_has_no_default() -> None:
    kernel = HostKernel(quantised(default=None, bias=True))
    packed, b = kernel.pack(ONE, f32(1, 2, 3)), f32(1, 2, 3)
    for call in (
        lambda: kernel(Q, packed, out=np.empty_like(Q)),
        lambda: kernel(Q, packed),
        lambda: kernel(Q, ONE, b),
    ):
        with pytest.raises(UsageError) as caught:
            call()
        assert caught.value.code == "missing"
        assert str(caught.value) == (
            "scales_src: missing, without a default: legal is k.run(src=..., wei=..., bia=..., scales_src=...)"
        )
    truth = Q * 3 * 4 * CHANNELS + b.reshape(1, 3, 1)
    assert (kernel.run({"src": Q, "wei": packed, "scales_src": 4.0})["dst"] == truth).all()
    assert (kernel.run({"src": Q, "wei": ONE, "bia": b, "scales_src": 4.0})["dst"] == truth).all()


# -- inout
@pytest.mark.parametrize("form", ["exact", "strided", "subclass"])
def test_an_inout_array_is_read_then_written(form: str) -> None:
    kernel = HostKernel(quantised(add=True))
    packed = kernel.pack(ONE)
    truth = Q * 6 * CHANNELS
    for call in (
        lambda out: kernel.run({"src": Q, "wei": ONE, "dst": out})["dst"],
        lambda out: kernel(Q, packed, out=out),
        lambda out: kernel(Q, ONE, out=out),
    ):
        old = {
            "exact": data(QUANTISED_SHAPE, 5),
            "strided": np.repeat(data(QUANTISED_SHAPE, 5), 2, axis=2)[..., ::2],
            "subclass": data(QUANTISED_SHAPE, 5).view(type("Tagged", (np.ndarray,), {})),
        }[form]
        assert call(old) is old
        assert (old == truth + data(QUANTISED_SHAPE, 5)).all()


def test_an_inout_array_must_be_given() -> None:
    kernel = HostKernel(quantised(add=True))
    packed = kernel.pack(ONE)
    for weights_ in (packed, ONE):
        with pytest.raises(UsageError) as caught:
            kernel(Q, weights_)
        assert caught.value.code == "missing"
        assert str(caught.value) == "dst: missing; legal is out= with the values that the kernel reads"
        with pytest.raises(UsageError, match=r"dst: missing; legal is .*\(2, 3, 4\).* with the values that the kernel"):
            kernel.run({"src": Q, "wei": weights_})


# -- entries
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_entries_run_one_after_the_other(packed: bool, both: bool) -> None:
    kernel = HostKernel(gradients(packed, both))
    diff_wei = G["src"] * G["diff_dst"] * (2 if packed else 1)
    diff_bia = diff_wei + (G["diff_dst"] if both else 1)
    for _ in range(3):
        results = kernel.run(G)
        assert list(results) == ["diff_wei", "diff_bia"]
        assert (results["diff_wei"] == diff_wei).all() and (results["diff_bia"] == diff_bia).all()
    outs = {"diff_wei": np.zeros((1, 2, 3), np.float32), "diff_bia": np.zeros((1, 2, 6), np.float32)[..., ::2]}
    results = kernel.run({**outs, **G})
    assert results["diff_wei"] is outs["diff_wei"] and results["diff_bia"] is outs["diff_bia"]
    assert (outs["diff_wei"] == diff_wei).all() and (outs["diff_bia"] == diff_bia).all()


def test_what_an_entry_reads_and_a_later_one_writes_is_inout() -> None:
    artifact = gradients()
    turned = dict(reversed(artifact.entries.items()))
    kernel = HostKernel(dataclasses.replace(artifact, entries=turned))
    diff_wei = data((1, 2, 3), 8)
    old = diff_wei.copy()
    results = kernel.run({**G, "diff_wei": diff_wei})
    assert (results["diff_bia"] == old + 1).all() and (diff_wei == G["src"] * G["diff_dst"]).all()
    with pytest.raises(UsageError, match="diff_wei: missing"):
        kernel.run(G)


def test_another_operand_than_weights_is_packed() -> None:
    kernel = HostKernel(gradients(packed=True))
    packed = kernel.pack(G["diff_dst"])
    assert packed.key == kernel.packing == "twice" and (packed.buffer == 2 * G["diff_dst"].ravel()).all()
    assert (kernel.run({"src": G["src"], "diff_dst": packed})["diff_wei"] == 2 * G["src"] * G["diff_dst"]).all()
    with pytest.raises(
        UsageError, match=r"diff_dst: packed for another kernel: packing backwards, .* legal is packing"
    ):
        kernel.run({"src": G["src"], "diff_dst": HostKernel(depthwise(SHAPE)).pack(W)})
    with pytest.raises(UsageError, match="diff_dst: dtype is float64"):
        kernel.pack(G["diff_dst"].astype(float))
    with pytest.raises(UsageError, match="bia: this problem has no bias"):
        kernel.pack(G["diff_dst"], B)


@pytest.mark.parametrize("artifact", [gradients(), gradients(packed=True, both=True)], ids=["plain", "read plain too"])
def test_nothing_to_pack(artifact: object) -> None:
    kernel = HostKernel(artifact)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        kernel.pack(G["diff_dst"])
    assert caught.value.code == "packing"
    assert str(caught.value) == ("this kernel packs nothing: legal is k.run(src=..., diff_dst=...) with plain arrays")
    with pytest.raises(UsageError, match="diff_dst: expected an array, got Packed"):
        kernel.run({"src": G["src"], "diff_dst": HostKernel(gradients(packed=True)).pack(G["diff_dst"])})


def test_a_call_by_position_is_for_forward_problems() -> None:
    kernel = HostKernel(gradients(packed=True))
    with pytest.raises(UsageError) as caught:
        kernel(G["src"], kernel.pack(G["diff_dst"]), out=np.zeros((1, 2, 3), np.float32))
    assert caught.value.code == "positional"
    assert str(caught.value) == (
        "a call takes src, wei and bia and gives dst; this kernel takes src, diff_dst and gives diff_wei, diff_bia: "
        "legal is k.run(src=..., diff_dst=...)"
    )


@pytest.mark.parametrize("packed", [False, True])
def test_operands_that_are_not_finite(packed: bool) -> None:
    made: list[HostKernel] = []

    def fallback() -> HostKernel:
        made.append(HostKernel(gradients()))
        return made[0]

    kernel = HostKernel(gradients(packed, needs_finite=True), fallback)
    kernel.run(G)
    assert not made
    bad = G["diff_dst"].copy()
    bad[0, 1, 1] = np.inf
    outs = {"diff_wei": np.zeros((1, 2, 3), np.float32)}
    with np.errstate(invalid="ignore"):
        results = kernel.run({**G, **outs, "diff_dst": bad})
        np.testing.assert_array_equal(results["diff_wei"], G["src"] * bad)
    assert results["diff_wei"] is outs["diff_wei"] and len(made) == 1
    kernel.run({**G, "src": np.full((1, 2, 3), np.inf, np.float32)})
    assert len(made) == 1
    with pytest.raises(UnsupportedError, match="diff_dst: holds infinities or NaN"):
        HostKernel(gradients(packed, needs_finite=True)).run({**G, "diff_dst": bad})


# -- refusals
FORM = "rank 3, shape (2, 3, 4) (shapes are logical; the layout only fixes strides)"
SHARED = np.zeros((2, 2, 3, 4), np.float32)
REFUSED: dict[str, tuple[dict[str, object], str, str]] = {
    "nothing": ({"src": ...}, "missing", f"src: missing; legal is an array of {FORM}"),
    "no weights": ({"wei": ...}, "missing", "wei: missing; legal is an array of rank 3, shape (1, 1, 1)"),
    "unknown": (
        {"weights": ONE}, "unknown-argument",
        "weights is unknown: legal are src, wei, scales_src, scales_wei, zero_points_dst, dst; did you mean 'wei'?",
    ),
    "close": ({"scale_src": f32(1)}, "unknown-argument", "scale_src is unknown: legal are src, wei, scales_src, "
              "scales_wei, zero_points_dst, dst; did you mean 'scales_src'?"),
    "far": ({"qqq": f32(1)}, "unknown-argument", "qqq is unknown: legal are src, wei, scales_src, scales_wei, "
            "zero_points_dst, dst"),
    "bias": ({"bia": B}, "unknown-argument", "bia is unknown"),
    "dtype": ({"src": Q.astype(float)}, "dtype", "src: dtype is float64; legal is float32"),
    "none": ({"src": None}, "not-an-array", "src: expected an array, got NoneType"),
    "number": ({"wei": 3.0}, "not-an-array", "wei: expected an array, got float"),
    "0-d": ({"scales_src": np.array(1, np.float32)}, "rank", "scales_src: rank is 0, shape (); legal is rank 1"),
    "length": ({"scales_wei": f32(1, 2)}, "shape", "scales_wei: dim 0 is 2, shape (2,); legal is 3: rank 1"),
    "number for many": (
        {"scales_wei": 2.0}, "shape",
        "scales_wei: one number, 2.0, stands for one element; legal is an array of rank 1, shape (3,)",
    ),
    "zero": ({"scales_wei": f32(1, 0, 2)}, "value", "scales_wei[1] is 0.0; legal are finite numbers other than 0"),
    "infinite": ({"scales_wei": f32(1, 1, -np.inf)}, "value", "scales_wei[2] is -inf; legal are finite numbers"),
    "nan": ({"scales_src": f32(np.nan)}, "value", "scales_src[0] is nan; legal are finite numbers"),
    "zero number": ({"scales_src": 0}, "value", "scales_src is 0.0; legal are finite numbers other than 0"),
    "large number": ({"scales_src": 1e300}, "value", "scales_src is inf; legal are finite numbers other than 0"),
    "fraction": (
        {"zero_points_dst": 1.5}, "value",
        "zero_points_dst is 1.5; legal are whole numbers from -2147483648 to 2147483647",
    ),
    "too large": ({"zero_points_dst": 2**31}, "value", "zero_points_dst is 2147483648; legal are whole numbers"),
    "dst shape": ({"dst": np.zeros((2, 3, 5), np.float32)}, "shape", "dst: dim 2 is 5, shape (2, 3, 5); legal is 4"),
    "dst dtype": ({"dst": np.zeros((2, 3, 4))}, "dtype", "dst: dtype is float64"),
    "dst none": ({"dst": None}, "not-an-array", "dst: expected an array, got NoneType"),
    "read-only": (
        {"dst": np.broadcast_to(np.float32(1), (2, 3, 4))}, "read-only",
        "dst: is read-only; legal is a writeable array",
    ),
    "itself": (
        {"dst": np.lib.stride_tricks.as_strided(np.zeros(24, np.float32), (2, 3, 4), (0, 16, 4))}, "overlap",
        "dst: has strides (0, 16, 4) with shape (2, 3, 4): elements share memory",
    ),
    "shared": (
        {"src": SHARED[0], "dst": SHARED[0]}, "overlap", "dst: shares memory with src; legal is memory of its own",
    ),
    "shared scales": (
        {"scales_wei": SHARED[1, 0, 0, :3], "dst": SHARED[1]}, "overlap", "dst: shares memory with scales_wei",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    changes, code, text = REFUSED[case]
    SHARED[...] = 1
    arrays = {"src": Q, "wei": ONE, "dst": np.full(QUANTISED_SHAPE, 5, np.float32)} | changes
    arrays = {name: array for name, array in arrays.items() if array is not ...}
    with pytest.raises(UsageError) as caught:
        HostKernel(quantised()).run(arrays)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert text in str(caught.value)
    assert (SHARED == 1).all()
    if "dst" not in changes:
        assert (arrays["dst"] == 5).all()


def test_outputs_must_not_share_memory() -> None:
    memory = np.zeros(9, np.float32)
    outs = {"diff_wei": memory[:6].reshape(1, 2, 3), "diff_bia": memory[3:].reshape(1, 2, 3)}
    with pytest.raises(UsageError, match="diff_bia: shares memory with diff_wei; legal is memory of its own"):
        HostKernel(gradients()).run({**G, **outs})
    assert not memory.any()


def test_packed_weights_hold_their_bias() -> None:
    kernel = HostKernel(depthwise(SHAPE, bias=True))
    packed = kernel.pack(W, B)
    with pytest.raises(UsageError, match="bia: packed weights hold the bias") as caught:
        kernel.run({"src": X, "wei": packed, "bia": B})
    assert caught.value.code == "bias"
    with pytest.raises(UsageError, match=r"bia: missing; legal is an array of rank 1, shape \(5,\) = \(oc\)"):
        kernel.run({"src": X, "wei": W})
    with pytest.raises(UsageError, match=r"wei: packed for another kernel: .* no bias; legal is"):
        kernel.run({"src": X, "wei": HostKernel(depthwise(SHAPE)).pack(W)})
    with pytest.raises(UsageError, match="src: expected an array, got Packed"):
        kernel.run({"src": packed, "wei": packed})


# -- data types
def test_bfloat16_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    bf16 = np.dtype(ml_dtypes.bfloat16)
    monkeypatch.setitem(types.DTYPES, "bf16", types.DType("bf16", "float", 16, "bfloat16", "bfloat"))
    assert numpy_dtype("bf16") is bf16 and numpy_dtype("f32") is np.dtype(np.float32)
    spec = ArraySpec(Argument("src", "in", "bf16", (2, 3, 4), "abc", 24))
    with pytest.raises(UsageError, match="src: dtype is float32; legal is bfloat16"):
        spec.check(Q)
    with pytest.raises(UsageError, match="src: dtype is uint16; legal is bfloat16"):
        spec.check(Q.astype(bf16).view(np.uint16))
    x = Q.astype(bf16)[..., ::-1]
    ready = spec.prepare(spec.check(x))
    assert ready.dtype is bf16 and spec.fits(ready) and (ready == x).all()
    assert (spec.filled((0.5,)) == bf16.type(0.5)).all()


@pytest.mark.parametrize("name", ["float16", "float32", "bfloat16", "float64"])
def test_magnitude_of_every_float(name: str) -> None:
    array = np.ones(3, name)
    assert is_within(array, FINITE) and magnitude(array) == magnitude(-array) == 1
    most = np.finfo(np.float16).max
    for given in ([most, -0.0], [-most, 0.0], [1, -most], [-0.0, most]):
        assert magnitude(np.array(given, name)) == np.array(most, name)
    assert magnitude(np.array([-0.0, -0.0], name)) == magnitude(np.array([], name)) == 0
    for value in (np.inf, -np.inf, np.nan, -np.nan):
        array[1] = value
        assert not is_within(array, FINITE) and magnitude(array) == np.inf


@pytest.mark.parametrize("values, found", [([-128, 127], 128), ([-127, 126], 127), ([5, -4], 5), ([0], 0), ([], 0)])
def test_magnitude_of_integers(values: list[int], found: int) -> None:
    array = np.array(values, np.int8)
    assert magnitude(array) == found and is_within(array, found) and is_within(array, FINITE)
    assert not found or not is_within(array, found - 1)
    assert magnitude(np.abs(array.astype(np.int16)).astype(np.uint8)) == found


def test_a_border_knows_what_a_call_may_leave_out() -> None:
    border = Border([tensor("src", "in", (1,)), tensor("wei", "in", (1,)), tensor("dst", "inout", (1,))], "wei")
    assert border.inputs == ("src", "wei", "dst") and border.outputs == ("dst",)
    assert border.forward and not border.takes_bias and not border.without_default
    scales = Argument("scales_dst", "in", "f32", (2, 2), "ab", 4, default=(1, 2, 3, 4))
    assert (Border([scales], "").defaults["scales_dst"] == [[1, 2], [3, 4]]).all()


def test_saved_operands(tmp_path: object) -> None:
    kernel = HostKernel(gradients(packed=True))
    path = f"{tmp_path}/operand"
    kernel.pack(G["diff_dst"]).save(path)
    results = kernel.run({"src": G["src"], "diff_dst": Packed.load(path)})
    assert (results["diff_wei"] == 2 * G["src"] * G["diff_dst"]).all()


def test_empty_outputs_run_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Callable[..., object]] = []
    monkeypatch.setattr("convsmith.runtime.prepared_call.PreparedCall.frame", lambda *_: called.append(called.append))
    kernel = HostKernel(depthwise((0, 5, 3, 7)))
    x = np.zeros((0, 5, 3, 7), np.float32)
    assert kernel.run({"src": x, "wei": W})["dst"].shape == x.shape
    assert not called
