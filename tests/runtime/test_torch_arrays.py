"""Tensors of PyTorch as arguments and results of kernels and functions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import convsmith as cs
from convsmith.runtime.arrays import as_array
from convsmith.runtime.foreign import like, speaks

Array = np.ndarray[Any, Any]

LINE = "mb2ic4ih6oc8oh6kh3ph1"


def integers(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


TYPES = ["float32", "float64", "float16", "bfloat16"]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("last", [False, True])
def test_torch_tensors_in_and_out(torch: Any, name: str, last: bool) -> None:
    dtype = getattr(torch, name)
    memory = {"memory_format": torch.channels_last if last else torch.contiguous_format}
    x, w, b = (torch.from_numpy(integers(s, n)).to(dtype) for n, s in enumerate([(2, 4, 6, 6), (8, 4, 3, 3), (8,)]))
    x = x.to(**memory)
    want = torch.nn.functional.conv2d(x.double(), w.double(), b.double(), stride=2, padding=1).to(dtype)
    y = cs.conv2d(x, w, b, stride=2, padding=1)
    assert type(y) is torch.Tensor and y.dtype == dtype and torch.equal(y, want)
    assert y.is_contiguous(**memory)
    seen = as_array("x", x)
    assert seen.ctypes.data == x.data_ptr() and seen.strides == tuple(n * x.element_size() for n in x.stride())
    out = torch.zeros_like(want).to(**memory)
    place = out.data_ptr()
    assert cs.conv2d(x, w, b, stride=2, padding=1, out=out) is out
    assert torch.equal(out, want) and out.data_ptr() == place


def test_kernels_take_torch_tensors(torch: Any) -> None:
    x, w, d = (torch.from_numpy(integers(s, n)) for n, s in enumerate([(2, 4, 6, 6), (8, 4, 3, 3), (2, 8, 6, 6)]))
    k = cs.compile(LINE, threads=1)
    want = torch.nn.functional.conv2d(x, w, padding=1)
    packed = k.pack(w)
    results = [k(x, w), k(x, packed), k(x.numpy(), packed), k.run(src=x, wei=packed)["dst"], k(x, w.numpy())]
    assert [type(y).__module__ for y in results] == ["torch", "torch", "numpy", "torch", "torch"]
    assert all(torch.equal(torch.as_tensor(y), want) for y in results)
    out = torch.zeros(want.shape)
    again = k.bind(x, packed, out)
    again()
    assert torch.equal(out, want)
    x.copy_(x.flip(0))
    again()
    assert torch.equal(out, want.flip(0))
    x.copy_(x.flip(0))
    for direction, given, name, truth in (
        ("BWD_D", {"wei": w, "diff_dst": d}, "diff_src", torch.nn.grad.conv2d_input(x.shape, w, d, padding=1)),
        ("BWD_W", {"src": x, "diff_dst": d}, "diff_wei", torch.nn.grad.conv2d_weight(x, w.shape, d, padding=1)),
    ):
        gradient = cs.compile(f"--dir={direction} {LINE}", threads=1).run(**given)[name]
        assert type(gradient) is torch.Tensor and torch.equal(gradient, truth)
    dynamic = cs.compile(LINE, dynamic="mb,ih,iw", threads=1)
    assert torch.equal(dynamic(x[:1], dynamic.pack(w)), want[:1])
    nothing = cs.compile("mb0ic4ih6oc8kh3")(x[:0], w)
    assert type(nothing) is torch.Tensor and nothing.shape == (0, 8, 4, 4)
    fused = cs.compile("--attr-post-ops=dw:k3s1p1 mb2ic4ih6oc8kh1", threads=1)
    depthwise = torch.ones(8, 1, 3, 3)
    middle = torch.nn.functional.conv2d(x, w[:, :, :1, :1])
    y = fused.run(src=x, wei=w[:, :, :1, :1], post_op_0=depthwise)["dst"]
    assert torch.equal(y, torch.nn.functional.conv2d(middle, depthwise, padding=1, groups=8))


def test_weights_that_are_not_finite_take_the_other_kernel(torch: Any) -> None:
    k = cs.compile(LINE, threads=1, config="--target=generic --lane=oc --realise=pad_copy")
    w = torch.ones(8, 4, 3, 3)
    w[0, 0, 0, 0] = float("inf")
    y = k(torch.ones(2, 4, 6, 6), w)
    assert type(y) is torch.Tensor and not torch.isnan(y).any() and torch.isinf(y[:, 0]).any()


def test_other_functions_take_torch_tensors(torch: Any) -> None:
    lhs, rhs = (torch.from_numpy(integers(s, n).astype(np.int8)) for n, s in enumerate([(5, 7), (7, 6)]))
    want = lhs.int() @ rhs.int()
    out = torch.zeros(5, 6, dtype=torch.int32)
    for y in (
        cs.gemm_lowp(lhs, rhs), cs.gemm_lowp(lhs, rhs, out=out), out, cs.onnx.matmul_integer(lhs, rhs),
        cs.pack_lowp(5, rhs, lhs_type=np.int8)(lhs),
    ):  # fmt: skip
        assert type(y) is torch.Tensor and y.dtype == torch.int32 and torch.equal(y, want)
    x, w = torch.from_numpy(integers((2, 4, 6, 6))), torch.from_numpy(integers((4, 8, 3, 3), 1))
    y = cs.onnx.conv_transpose(x, w, strides=(2, 2))
    assert type(y) is torch.Tensor and torch.equal(y, torch.nn.functional.conv_transpose2d(x, w, stride=2))
    blocked = cs.reorder(x, "abcd", "aBcd16b")
    assert type(blocked) is torch.Tensor and torch.equal(cs.reorder(blocked, "aBcd16b", "abcd", x.shape), x)
    u = torch.randint(0, 9, (1, 4, 5, 5), dtype=torch.uint8)
    point = torch.tensor(3, dtype=torch.uint8)
    v = torch.from_numpy(integers((2, 4, 3, 3)).astype(np.int8))
    y = cs.onnx.conv_integer(u, v, point)
    assert torch.equal(y, torch.nn.functional.conv2d(u.double() - 3, v.double()).int())


def test_torch_tensors_that_are_refused(torch: Any) -> None:
    x, w = torch.ones(1, 4, 6, 6), torch.ones(8, 4, 3, 3)
    k = cs.compile(LINE.replace("mb2", "mb1"), threads=1)
    cases = [
        (x.clone().requires_grad_(), "requires-grad", "x: requires a gradient, which no kernel records; legal is x.d"),
        (torch.ones(1, 4, 6, 6, device="meta"), "device", "x: is on meta; legal is memory of the CPU"),
        (x.to_sparse(), "not-an-array", "x: no array can be read from this Tensor"),
        (x.to(torch.complex64), "dtype", "x: dtype is complex64"),
        (x.to(torch.float8_e5m2fnuz), "dtype", "x: dtype is torch.float8_e5m2fnuz, which no kernel takes"),
    ]
    for given, code, text in cases:
        for call in (lambda given=given: k(given, w), lambda given=given: cs.conv2d(given, w)):
            with pytest.raises(cs.UsageError) as caught:
                call()
            assert caught.value.code == code and text in str(caught.value)
    with pytest.raises(cs.UsageError, match=r"x: no array can be read from this Tensor: .*, as under a transform"):
        torch.vmap(lambda one: cs.conv2d(one, w))(x[None])
    parameter = torch.nn.Parameter(w)
    with pytest.raises(cs.UsageError, match=r"weights: requires a gradient.*weights.detach\(\)"):
        k.pack(parameter)
    with pytest.raises(cs.UsageError, match=r"out: requires a gradient"):
        k(x, w, out=torch.zeros(1, 8, 6, 6, requires_grad=True))
    assert torch.equal(k(x, parameter.detach()), k(x, w))
    with pytest.raises(cs.UsageError, match=r"out: has strides .* elements share memory"):
        k(x, w, out=torch.zeros(1, 1, 6, 6).expand(1, 8, 6, 6))


def test_no_gradient_is_required_where_none_is_recorded(torch: Any) -> None:
    x, w = torch.ones(1, 4, 6, 6), torch.nn.Parameter(torch.ones(8, 4, 3, 3))
    k = cs.compile(LINE.replace("mb2", "mb1"), threads=1)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            y = cs.conv2d(x, w, padding=1)
            for other in (k(x, w), k(x, k.pack(w)), k.run(src=x, wei=w)["dst"]):
                assert torch.equal(y, other) and not other.requires_grad
    for call in (lambda: cs.conv2d(x, w), lambda: k(x, w), lambda: k.pack(w), lambda: cs.reorder(w, "abcd", "acdb")):
        with pytest.raises(cs.UsageError, match="or a function of convsmith"):
            call()


def test_every_function_refuses_a_gradient_that_it_would_not_record(torch: Any) -> None:
    plain = {rank: (torch.ones(1, 4, *[5] * rank), torch.ones(4, 4, *[3] * rank)) for rank in (1, 2, 3)}
    x, w = plain[2]
    bias, lhs, rhs = torch.ones(4), torch.ones(5, 4), torch.ones(4, 6)
    k = cs.compile("mb1ic4ih5oc4kh3", bias=True, threads=1)
    dynamic = cs.compile("mb1ic4ih5oc4kh3", dynamic="mb", threads=1)
    fused = cs.compile("--attr-post-ops=dw:k3s1p1 mb1ic4ih5oc4kh1", threads=1)
    packed, small, out = k.pack(w, bias), torch.ones(4, 4, 1, 1), torch.zeros(1, 4, 3, 3)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        *((getattr(cs, f"conv{rank}d"), given) for rank, given in plain.items()),
        *((getattr(cs, f"conv_transpose{rank}d"), given) for rank, given in plain.items()),
        (lambda b: cs.conv2d(x, w, b), (bias,)), (lambda b: cs.conv_transpose2d(x, w, b), (bias,)),
        (k.pack, (w, bias)), (lambda x: k.bind(x, packed, out), (x,)), (lambda y: k.bind(x, packed, y), (out,)),
        (lambda x, w, b: k.run(src=x, wei=w, bia=b), (x, w, bias)), (dynamic, (x, w)), (dynamic.pack, (w,)),
        (lambda d: fused.pack_each(post_op_0=d), (torch.ones(4, 1, 3, 3),)), (fused.pack, (small,)),
        (lambda x: cs.reorder(x, "abcd", "acdb"), (x,)), (cs.onnx.conv, (x, w)), (cs.onnx.conv_transpose, (x, w)),
        (cs.gemm_lowp, (lhs, rhs)), (lambda rhs: cs.pack_lowp(5, rhs), (rhs,)),
    ]  # fmt: skip
    for function, tensors in calls:
        for at in range(len(tensors)):
            given = [t.clone().requires_grad_() if n == at else t for n, t in enumerate(tensors)]
            with pytest.raises(cs.UsageError, match=r": requires a gradient, which no kernel records; legal is"):
                function(*given)


def negated(torch: Any, dense: Any) -> Any:
    """Return a tensor like `dense`, which torch negates as it reads it: its memory holds the opposite numbers."""
    found = torch._neg_view(-dense)
    assert found.is_neg() and found.stride() == dense.stride()
    return found


def test_torch_tensors_with_the_negative_bit(torch: Any) -> None:
    x, w, bias = (torch.from_numpy(integers(s, n)) for n, s in enumerate([(2, 4, 6, 6), (8, 4, 3, 3), (8,)]))
    k = cs.compile(LINE, bias=True, threads=1)
    nx, nw, nb = (negated(torch, t) for t in (x, w, bias))
    want = torch.nn.functional.conv2d(x, w, bias, padding=1)
    out = torch.zeros_like(want)
    calls = [
        cs.conv2d(nx, nw, nb, padding=1), k(nx, nw, nb), k(nx, k.pack(nw, nb)), k.run(src=nx, wei=nw, bia=nb)["dst"],
        cs.onnx.conv(nx, nw, nb, pads=(1, 1, 1, 1)), k(nx, k.pack(nw, nb), out=out),
    ]  # fmt: skip
    assert all(torch.equal(y, want) for y in calls)
    assert torch.equal(cs.reorder(nx, "abcd", "acdb"), cs.reorder(x, "abcd", "acdb"))
    imaginary = torch.complex(x, x).conj().imag
    assert imaginary.is_neg() and torch.equal(cs.conv2d(imaginary, w, padding=1), cs.conv2d(-x, w, padding=1))
    for call in (lambda out: k(x, w, bias, out=out), lambda out: cs.conv2d(x, w, bias, padding=1, out=out)):
        with pytest.raises(cs.UsageError, match=r"out: is (negated when it is read|read-only); legal"):
            call(negated(torch, out))


def test_a_bound_call_follows_a_negated_tensor(torch: Any) -> None:
    k, w = cs.compile(LINE, threads=1), torch.from_numpy(integers((8, 4, 3, 3), 1))
    x, out = torch.ones(2, 4, 6, 6), torch.zeros(2, 8, 6, 6)
    nx = negated(torch, x)
    bound = k.bind(nx, k.pack(w), out), k.bind_each(src=nx, wei=w, dst=out)
    for value in (2.0, 3.0):
        nx.fill_(value)
        for run in bound:
            out.zero_()
            run()
            assert torch.equal(out, torch.nn.functional.conv2d(torch.full_like(x, value), w, padding=1))


def test_torch_tensors_whose_memory_was_freed(torch: Any) -> None:
    def freed(*shape: int) -> Any:
        tensor = torch.ones(shape)
        tensor.untyped_storage().resize_(0)
        return tensor

    x, w = torch.ones(2, 4, 6, 6), torch.ones(8, 4, 3, 3)
    k = cs.compile(LINE, threads=1)
    calls = [
        lambda: cs.conv2d(freed(2, 4, 6, 6), w), lambda: cs.conv2d(x, freed(8, 4, 3, 3)), lambda: k(freed(*x.shape), w),
        lambda: k(x, w, out=freed(2, 8, 6, 6)), lambda: k.pack(freed(*w.shape)),
        lambda: cs.reorder(freed(2, 3), "ab", "ba"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(cs.UsageError, match="no array can be read from this Tensor: its memory was freed"):
            call()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_go_both_ways(torch: Any, name: str) -> None:
    dtype = getattr(torch, name)
    tensor = torch.arange(12.0).to(dtype).reshape(3, 4).T
    seen = as_array("x", tensor)
    assert seen.dtype == getattr(ml_dtypes, name) and seen.shape == (4, 3) and seen.ctypes.data == tensor.data_ptr()
    back = like(tensor, seen)
    assert back.dtype == dtype and back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back.float(), tensor.float())
    assert speaks(tensor) and not speaks(seen) and not speaks(torch.Tensor)
