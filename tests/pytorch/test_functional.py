"""`convsmith.torch.conv2d` and its like: exact on integers beside torch's functions, values and gradients."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

import convsmith as cs

torch = pytest.importorskip("torch")
ct = pytest.importorskip("convsmith.torch")

from convsmith.codegen.artifact import FINITE  # noqa: E402
from convsmith.frontend.window import ConvOptions, window_of  # noqa: E402
from convsmith.torch import convolve, operators  # noqa: E402
from convsmith.torch.calls import TensorForm, conv_problem, kept_kernel  # noqa: E402

FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def integers(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def in_memory(tensor: Any, last: bool) -> Any:
    return tensor.to(memory_format=FORMATS[tensor.ndim - 2]) if last else tensor


def assert_same(ours: Any, theirs: Any, leaves: list[Any], options: dict[str, Any]) -> None:
    """Results and gradients are equal, recorded or not, and results have one memory order."""
    with torch.no_grad():
        calls = [ours(*leaves, **options) for _ in range(3)]  # plain weights, weights packed now, and packed before
    want, got = theirs(*leaves, **options), ours(*leaves, **options)
    for y in (*calls, got):
        assert torch.equal(y, want) and y.stride() == got.stride()
    seed = integers(*want.shape, seed=5)
    known = [leaf for leaf in leaves if leaf is not None]
    grads = torch.autograd.grad(want, known, seed)
    for given in (seed, torch.empty_like(got).copy_(seed)):  # in plain memory, and in the order of the result
        for a, b in zip(torch.autograd.grad(got, known, given, retain_graph=True), grads):
            assert torch.equal(a, b)


FORWARD = [
    case
    for case in product((1, 2, 3), (1, 2), (0, 1, "same", "valid"), (1, 2), (1, 2, 4), (False, True), (False, True))
    if (case[2] != "same" or case[1] == 1) and (case[0] > 1 or not case[5])
]  # fmt: skip


@pytest.mark.sampled(120, "rank", "stride", "padding", "dilation", "groups", "last", "bias", wide=5)
@pytest.mark.parametrize("rank, stride, padding, dilation, groups, last, bias", FORWARD)
def test_convolutions(rank: int, stride: int, padding: Any, dilation: int, groups: int, last: bool, bias: bool) -> None:
    x, w = integers(2, 4, *(9, 8, 7)[:rank]), integers(8, 4 // groups, *(3, 2, 3)[:rank])
    leaves = [in_memory(x, last), in_memory(w, last), integers(8) if bias else None]
    for leaf in leaves:
        if leaf is not None:
            leaf.requires_grad_()
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    assert_same(getattr(ct, f"conv{rank}d"), getattr(torch.nn.functional, f"conv{rank}d"), leaves, options)


TRANSPOSED = [
    case for case in product((1, 2, 3), (1, 2), (0, 1), (0, 1, 2), (1, 3), (1, 2), (False, True), (False, True))
    if case[3] < max(case[1], case[4]) and (case[0] > 1 or not case[6])
]  # fmt: skip


@pytest.mark.sampled(90, "rank", "stride", "padding", "more", "dilation", "groups", "last", "bias", wide=5)
@pytest.mark.parametrize("rank, stride, padding, more, dilation, groups, last, bias", TRANSPOSED)
def test_transposed_convolutions(
    rank: int, stride: int, padding: int, more: int, dilation: int, groups: int, last: bool, bias: bool
) -> None:
    x, w = integers(2, 4, *(5, 4, 3)[:rank]), integers(4, 6 // groups, *(3, 2, 3)[:rank])
    leaves = [in_memory(x, last), in_memory(w, last), integers(6) if bias else None]
    for leaf in leaves:
        if leaf is not None:
            leaf.requires_grad_()
    options = {"stride": stride, "padding": padding, "output_padding": more, "dilation": dilation, "groups": groups}
    name = f"conv_transpose{rank}d"
    assert_same(getattr(ct, name), getattr(torch.nn.functional, name), leaves, options)


X, W, B = integers(2, 4, 9, 8, dtype=torch.float32), integers(8, 4, 3, 3, dtype=torch.float32), integers(8).float()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda t: t.repeat_interleave(2, -1)[..., ::2],
        lambda t: t.flip(-1).flip(-1),
        lambda t: t[:1].expand(t.shape),
        lambda t: torch.nn.functional.pad(t, (1, 0))[..., 1:],
        lambda t: torch._neg_view(-t),
        lambda t: t.to(memory_format=torch.channels_last),
    ],
)
def test_strides_of_every_kind(change: Any) -> None:
    b = torch.stack([B, B], 1)[:, 0]
    for x, w in ((change(X), W), (X, change(W)), (change(X), change(W))):
        want = torch.nn.functional.conv2d(x, w, b, padding=1)
        for _ in range(3):
            assert torch.equal(ct.conv2d(x, w, b, padding=1), want)
    assert torch.equal(ct.conv2d(x, w.requires_grad_(w.is_leaf), b, padding=1), want)


def test_results_are_channels_last_where_torch_has_them_so() -> None:
    last = torch.channels_last
    for x in (X, X.to(memory_format=last), X[:, :1], X[:, :1].to(memory_format=last), X[:, :, :1, :1]):
        for w in (W[:, : x.shape[1]].contiguous(), W[:, : x.shape[1]].contiguous().to(memory_format=last)):
            want, got = torch.nn.functional.conv2d(x, w, padding=1), ct.conv2d(x, w, padding=1)
            assert torch.equal(got, want)
            assert got.is_contiguous(memory_format=last) == want.is_contiguous(memory_format=last)


def test_inputs_without_a_batch() -> None:
    x = X[0].clone().requires_grad_()
    got, want = ct.conv2d(x, W, B, 2, 1), torch.nn.functional.conv2d(x, W, B, 2, 1)
    assert got.shape == want.shape and torch.equal(got, want)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, want)))
    with torch.no_grad():
        assert torch.equal(ct.conv2d(x, W, B, 2, 1), want)
        assert torch.equal(ct.conv_transpose2d(x, W.transpose(0, 1)), torch.conv_transpose2d(x, W.transpose(0, 1)))


def test_options_are_numbers_or_sequences() -> None:
    want = torch.nn.functional.conv2d(X, W, B, (2, 1), (1, 0), (1, 2))
    for options in (((2, 1), (1, 0), (1, 2)), ([2, 1], [1, 0], [1, 2]), (torch.Size((2, 1)), (1, 0), [1, 2])):
        assert torch.equal(ct.conv2d(X, W, B, *options), want)
    assert torch.equal(ct.conv2d(X, W, B, (2,), [1]), torch.nn.functional.conv2d(X, W, B, (2,), [1]))
    assert torch.equal(ct.conv2d(bias=B, weight=W, input=X), torch.nn.functional.conv2d(X, W, B))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(dtype: Any) -> None:
    x, w, b = (t.to(dtype).requires_grad_() for t in (X, W, B))
    got = ct.conv2d(x, w, b, padding=1)
    want = torch.nn.functional.conv2d(x.double(), w.double(), b.double(), padding=1)
    assert got.dtype == dtype and torch.equal(got, want.to(dtype))
    ours, theirs = (torch.autograd.grad(y.sum(), (x, w, b)) for y in (got, want))
    assert all(a.dtype == dtype and torch.equal(a, e.to(dtype)) for a, e in zip(ours, theirs))


def test_bytes_give_integers() -> None:
    x, w = X.to(torch.int8), W.to(torch.int8)
    got = ct.conv2d(x, w)
    assert got.dtype == torch.int32 and torch.equal(got, torch.nn.functional.conv2d(X, W).int())


def test_no_batch_and_no_gradient_of_it() -> None:
    x, w = X[:0].clone().requires_grad_(), W.clone().requires_grad_()
    y = ct.conv2d(x, w, B, padding=1)
    assert y.shape == (0, 8, 9, 8)
    of_x, of_w = torch.autograd.grad(y.sum(), (x, w))
    assert of_x.shape == x.shape and not of_w.any()


def test_weights_that_are_not_finite() -> None:
    w = W.clone()
    w[0, 0, 0, 0] = float("inf")
    x = X.clone().requires_grad_()
    want = torch.nn.functional.conv2d(X, w)
    for _ in range(3):
        assert torch.equal(ct.conv2d(X, w).isfinite(), want.isfinite())
    many, weights = integers(2, 64, 9, 8).float(), integers(64, 64, 3, 3).float()
    forms = [TensorForm(t.shape, t.stride(), t.dtype) for t in (many, weights)]
    problem = conv_problem(*forms, None, window_of((3, 3), ConvOptions(padding=1)))
    relaxed = kept_kernel(problem.with_accuracy("relaxed"), 1)
    weights[0, 0, 0, 0] = float("inf")
    assert relaxed.kernel.artifact.limits["wei"] < FINITE, "it adds up transformed weights"
    want = torch.nn.functional.conv2d(many, weights, padding=1)[:, 1:]
    for operand in (weights, relaxed.pack(weights)):
        torch.testing.assert_close(relaxed(many, operand)[:, 1:], want)
    weights[0, 0, 0, 0] = 3e38  # which sums of products hold
    ones = torch.ones_like(many)
    want = torch.nn.functional.conv2d(ones, weights, padding=1)
    for operand in (weights, relaxed.pack(weights)):
        found = relaxed(ones, operand)
        assert found.isfinite().all() and torch.equal(found[:, 0], want[:, 0])
    # Padding is absent: an infinite weight contributes nothing there, whatever kernel runs.
    padded = ct.conv2d(x, w, padding=1)
    assert not padded[:, 0, 0].isnan().any() and not torch.autograd.grad(padded.sum(), x)[0].isnan().all()


WRITES = {
    "in place": lambda w, n: w.view(-1)[n].add_(1),
    ".data": lambda w, n: w.data.view(-1)[n].add_(1),
    "numpy": lambda w, n: np.add.at(w.numpy().reshape(-1), n, 1),
    "another memory": lambda w, n: setattr(w, "data", w.data + 1),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("way", WRITES)
def test_kept_weights_follow_every_write(way: str, inference: bool) -> None:
    x, taken = integers(1, 16, 5, 5).float(), convolve._KEPT
    with torch.inference_mode(inference):
        w = integers(32, 16, 3, 3).float()
        for element in (0, 1, 1002, 2003, w.numel() - 1):
            for _ in range(3):
                assert torch.equal(ct.conv2d(x, w), torch.nn.functional.conv2d(x, w))
            assert any(entry.tensor() is w and entry.packed for entry in taken._entries.values()), "packed weights ran"
            WRITES[way](w, element)
        assert torch.equal(ct.conv2d(x, w), torch.nn.functional.conv2d(x, w))


def test_kept_weights_go_with_their_tensor() -> None:
    gc.collect()
    before = convolve._KEPT.bytes
    w = integers(64, 4, 3, 3, dtype=torch.float32)
    for _ in range(2):
        ct.conv2d(X, w)
    held = convolve._KEPT.bytes - before
    assert held >= w.nbytes
    other = integers(32, 4, 3, 3, dtype=torch.float32)
    for _ in range(2):
        ct.conv2d(X, other)
    del w
    gc.collect()
    assert convolve._KEPT.bytes - before < held


def test_threads_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    make = convolve.kept_kernel
    monkeypatch.setattr(convolve, "kept_kernel", lambda problem, n, at: (seen.append(n), make(problem, n, at))[1])
    x, before = integers(1, 4, 11, 13, dtype=torch.float32), torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            ct.conv2d(x, W)
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


M = torch.empty(2, 4, 9, 8, device="meta")
REFUSED = {
    "array": (lambda: ct.conv2d(X.numpy(), W), "not-an-array", "input: expected a tensor of torch, got ndarray"),
    "none": (lambda: ct.conv2d(None, W), "not-an-array", "input: expected a tensor of torch, got NoneType"),
    "type": (lambda: ct.conv2d(X, W.double()), "dtype", "weight: dtype is torch.float64; legal: torch.float32"),
    "complex": (lambda: ct.conv2d(X.to(torch.cfloat), W), "dtype", "input: dtype is torch.complex64; legal"),
    "layout": (lambda: ct.conv2d(X.to_sparse(), W), "layout", "input: layout is torch.sparse_coo; legal is"),
    "mkldnn": (lambda: ct.conv2d(X, W.to_mkldnn()), "layout", "weight: layout is torch._mkldnn; legal is"),
    "device": (lambda: ct.conv2d(X, OnGpu()), "device", "weight: is on cuda:0; legal is cpu, where input is"),
    "second GPU": (
        lambda: ct.conv2d(OnSecondGpu(), W), "device", "input: is on cuda:1; legal is memory of the CPU or of cuda:0"
    ),
    "rank": (lambda: ct.conv2d(X[0, 0], W), "rank", "input: rank is 2, shape (9, 8); legal is rank 4, or 3"),
    "rank of w": (lambda: ct.conv3d(X, W), "rank", "weight: rank is 4, shape (8, 4, 3, 3); legal is rank 5"),
    "channels": (lambda: ct.conv2d(X, W[:, :3]), "shape", "input has 4 channels (dim 1 of (2, 4, 9, 8)), but weight"),
    "groups": (lambda: ct.conv2d(X, W, groups=3), "bad-groups", "groups=3 does not divide the 8 output channels"),
    "bias": (lambda: ct.conv2d(X, W, B[:3]), "shape", "bias: shape is (3,); legal is (8,)"),
    "padding": (lambda: ct.conv2d(X, W, padding="full"), "bad-padding", "padding='full' is unknown: legal are"),
    "same": (lambda: ct.conv2d(X, W, stride=2, padding="same"), "bad-padding", 'padding="same" needs stride 1'),
    "kernel": (lambda: ct.conv2d(X[:, :, :2], W), "bad-output-size", "axis h: the kernel spans 3 elements"),
    "output": (
        lambda: ct.conv_transpose2d(X, W[:4], output_padding=1), "bad-output-size", "output_padding=(1, 1): 1 on axis"
    ),
    "shape alone": (lambda: ct.conv2d(M, W[:, :3]), "shape", "input has 4 channels"),
}  # fmt: skip


class OnGpu(torch.Tensor):  # type: ignore[misc]
    """A tensor that says that it is on a GPU; this build of torch has none."""

    device = torch.device("cuda:0")


class OnSecondGpu(OnGpu):
    """A tensor that says that it is on another GPU."""

    device = torch.device("cuda:1")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    call, code, text = REFUSED[name]
    with pytest.raises(cs.UsageError) as caught:
        call()
    assert caught.value.code == code and text in str(caught.value)


def freed(*shape: int, **options: Any) -> Any:
    """Return a tensor whose storage was freed, as sharded training does between two uses."""
    tensor = torch.ones(*shape, **options)
    tensor.untyped_storage().resize_(0)
    return tensor


NO_MEMORY = {
    "input": lambda: ct.conv2d(freed(*X.shape), W),
    "weight": lambda: ct.conv2d(X, freed(*W.shape)),
    "bias": lambda: ct.conv2d(X, W, freed(8)),
    "input of a transposed one": lambda: ct.conv_transpose2d(freed(2, 8, 6, 6), W),
    "input, recorded": lambda: ct.conv2d(freed(*X.shape, requires_grad=True), W),
}


@pytest.mark.parametrize("name", NO_MEMORY)
def test_tensors_without_memory_are_refused(name: str) -> None:
    argument = name.split()[0].rstrip(",")
    with pytest.raises(cs.UsageError, match=rf"{argument}: has \d+ elements, but its memory was freed"):
        NO_MEMORY[name]()


def test_memory_may_go_after_weights_were_packed_and_before_the_gradient() -> None:
    x, w = X.clone(), W.clone().requires_grad_()
    with torch.no_grad():
        for _ in range(3):
            ct.conv2d(x, w)
    y = ct.conv2d(x, w)
    x.untyped_storage().resize_(0)
    with pytest.raises(cs.UsageError, match="input: has 576 elements, but its memory was freed"):
        y.sum().backward()
    w.untyped_storage().resize_(0)
    with pytest.raises(cs.UsageError, match="weight: has 288 elements, but its memory was freed"):
        ct.conv2d(X, w)


def test_negated_views_are_computed_with_as_they_read() -> None:
    x, w, b = (torch._neg_view(-t).requires_grad_() for t in (X, W, B))
    assert x.is_neg() and x.stride() == X.stride()
    y = ct.conv2d(x, w, b, padding=1)
    assert torch.equal(y, torch.nn.functional.conv2d(X, W, B, padding=1))
    plain = [t.clone().requires_grad_() for t in (X, W, B)]
    want = torch.autograd.grad(torch.nn.functional.conv2d(*plain, padding=1), plain, torch.ones_like(y))
    got = torch.autograd.grad(y, (x, w, b), torch._neg_view(-torch.ones_like(y)))
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_shapes_without_data() -> None:
    y = ct.conv2d(M, torch.empty(8, 4, 3, 3, device="meta"), padding=1)
    assert y.device.type == "meta" and y.shape == (2, 8, 9, 8)


def test_a_missing_torch_is_named_with_the_extra() -> None:
    command = (
        "import sys; sys.modules['torch'] = None\n"
        "import convsmith as cs\n"
        "try:\n    cs.torch\nexcept cs.UnsupportedError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "pip install 'convsmith[torch]'" in said


def test_the_package_imports_no_torch() -> None:
    command = "import sys, convsmith as cs; cs.conv2d; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.strip() == "False"


def test_operators_are_those_of_the_package() -> None:
    assert torch.ops.convsmith.conv.default is operators.conv.seen


def test_a_compiler_traces_a_call_without_a_warning() -> None:
    def layer(x: Any) -> Any:
        return ct.conv2d(x, w, stride=2)

    x, w = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.compile(layer, backend="eager", fullgraph=True)(x)
    assert torch.equal(found, layer(x))
