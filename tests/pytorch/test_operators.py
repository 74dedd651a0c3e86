"""The operators of `torch.library`: torch's own checks of them, second-order gradients, autocast, compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest

import convsmith as cs

torch = pytest.importorskip("torch")
ct = pytest.importorskip("convsmith.torch")

from convsmith.torch import operators  # noqa: E402

STEPS = ([2, 1], [1, 0, 1, 1], [1, 2], 2)
"""Stride, padding (front and back of each axis), dilation and groups."""
LINE, VOLUME = ([2], [1, 0], [1], 2), ([2, 1, 1], [1, 0, 1, 1, 0, 1], [1, 2, 1], 1)
"""Steps of signals and volumes."""


def real(*shape: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


CALLS = {
    "conv": (operators.conv, (real(2, 4, 5, 6), real(6, 2, 3, 2), real(6), *STEPS)),
    "conv without bias": (operators.conv, (real(2, 4, 5, 6), real(6, 2, 3, 2), None, *STEPS)),
    "conv_transpose": (operators.conv_transpose, (real(2, 6, 2, 6), real(6, 2, 3, 2), real(4), [4, 6], *STEPS)),
    "weight_gradient": (
        operators.weight_gradient, (real(2, 4, 5, 6), real(2, 6, 2, 6), [3, 2], True, False, *STEPS)
    ),
    "conv of signals": (operators.conv, (real(2, 4, 7), real(6, 2, 3), real(6), *LINE)),
    "conv_transpose of signals": (operators.conv_transpose, (real(2, 6, 3), real(6, 2, 3), real(4), [7], *LINE)),
    "weight_gradient of signals": (
        operators.weight_gradient, (real(2, 4, 7), real(2, 6, 3), [3], True, False, *LINE)
    ),
    "conv of volumes": (operators.conv, (real(1, 2, 4, 4, 3), real(3, 2, 3, 2, 2), real(3), *VOLUME)),
    "conv_transpose of volumes": (
        operators.conv_transpose, (real(1, 3, 1, 4, 3), real(3, 2, 3, 2, 2), real(2), [4, 4, 3], *VOLUME)
    ),
    "weight_gradient of volumes": (
        operators.weight_gradient, (real(1, 2, 4, 4, 3), real(1, 3, 1, 4, 3), [3, 2, 2], True, False, *VOLUME)
    ),
    "channels last": (
        operators.weight_gradient, (real(2, 4, 5, 6), real(2, 6, 2, 6), [3, 2], False, True, *STEPS)
    ),
}  # fmt: skip


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", CALLS)
def test_torch_finds_no_fault(name: str) -> None:
    operator, arguments = CALLS[name]
    assert set(torch.library.opcheck(operator.seen, arguments).values()) == {"SUCCESS"}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "channels last"])
def test_gradients_of_first_and_second_order(name: str, seen: bool) -> None:
    operator, arguments = CALLS[name]
    call_of = operator.seen if seen else operator
    leaves = [a for a in arguments if isinstance(a, torch.Tensor)]

    def call(*tensors: Any) -> Any:
        rest = iter(tensors)
        return call_of(*(next(rest) if isinstance(a, torch.Tensor) else a for a in arguments))

    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


X, W, B = (real(*shape).detach().float() for shape in ((2, 4, 9, 8), (8, 4, 3, 3), (8,)))
SIZES = (9, 8, 7)


def sources(rank: int, batch: int = 2) -> Any:
    return torch.randn(batch, 4, *SIZES[:rank])


class Layers(torch.nn.Module):  # type: ignore[misc]
    """A convolution and a transposed one of one rank, with an activation between them; `functions` computes them."""

    def __init__(self, rank: int = 2, functions: Any = ct) -> None:
        super().__init__()
        self.w, self.b = torch.nn.Parameter(real(8, 4, *[3] * rank).detach().float()), torch.nn.Parameter(B.clone())
        self.conv = getattr(functions, f"conv{rank}d")
        self.conv_transpose = getattr(functions, f"conv_transpose{rank}d")

    def forward(self, x: Any) -> Any:
        y = self.conv(x, self.w, self.b, stride=2, padding=1).relu()
        return self.conv_transpose(y, self.w, stride=2, padding=1) + 1


def reference(model: Any, x: Any) -> Any:
    theirs = Layers(x.ndim - 2, torch.nn.functional)
    theirs.w, theirs.b = model.w, model.b
    return theirs(x)


def assert_close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


AUTOCAST = [(2, torch.float16), *((rank, torch.bfloat16) for rank in (1, 2, 3))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rank, dtype", AUTOCAST)
def test_autocast(rank: int, dtype: Any) -> None:
    model, theirs, x = Layers(rank), Layers(rank, torch.nn.functional), sources(rank)
    with torch.autocast("cpu", dtype):
        ours, wanted = model(x), theirs(x)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        assert model.conv(x.double(), model.w.double()).dtype == torch.float64, "as in torch, doubles stay"
    assert ours.dtype == compiled.dtype == wanted.dtype == dtype
    torch.testing.assert_close(ours, wanted, rtol=0.05, atol=0.5)
    torch.testing.assert_close(compiled, wanted, rtol=0.05, atol=0.5)
    ours.float().sum().backward()
    wanted.float().sum().backward()
    assert model.w.grad.dtype == torch.float32
    torch.testing.assert_close(model.w.grad, theirs.w.grad, rtol=0.05, atol=8.0)


COMPILED = [
    *(("aot_eager", rank, False, True) for rank in (1, 2, 3)),
    *(("aot_eager", 2, last, None) for last in (False, True)),
    *(pytest.param("inductor", 2, last, None, marks=pytest.mark.slow) for last in (False, True)),
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend, rank, last, dynamic", COMPILED)
def test_compiled_without_a_break(backend: str, rank: int, last: bool, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = Layers(rank)
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    for batch in (2, 3, 5):  # unless sizes are symbols from the first call, the second one makes this size a symbol
        x = sources(rank, batch)
        x = x.to(memory_format=torch.channels_last) if last else x
        model.zero_grad()
        ours, want = compiled(x), reference(model, x)
        assert_close(ours, want)
        grads = [torch.autograd.grad(y.sum(), (model.w, model.b)) for y in (ours, want)]
        assert_close(*grads)
    with torch.no_grad():
        assert_close(compiled(x), want)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == (2 if dynamic else 3), "one for calls with a gradient and one without, whatever the batch"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rank, strict", [(1, False), (2, False), (2, True), (3, False)])
def test_exported(rank: int, strict: bool) -> None:
    model = Layers(rank)
    sizes = {0: torch.export.Dim("n", min=2, max=64), 2: torch.export.Dim("h", min=5, max=65)}
    program = torch.export.export(model, (sources(rank),), dynamic_shapes=(sizes,), strict=strict)
    called = [str(node.target) for node in program.graph.nodes if "convsmith" in str(node.target)]
    assert called == ["convsmith.conv.default", "convsmith.conv_transpose.default"]
    for x in (sources(rank), torch.randn(5, 4, 15, *SIZES[1:rank])):
        assert_close(program.module()(x), reference(model, x))


def test_traced_and_transformed_calls_are_seen() -> None:
    assert any("convsmith" in node.kind() for node in torch.jit.trace(lambda x: ct.conv2d(x, W), X).graph.nodes())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ct.conv2d(X, W)
    assert "convsmith::conv" in [event.name for event in profile.events()]
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda x: ct.conv2d(x, W))(X)
    assert "convsmith.conv" in graph.code
    with pytest.raises(RuntimeError, match="functorch"):  # torch.library has no gradients for torch.func
        torch.func.grad(lambda w: ct.conv2d(X, w).sum())(W)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, torch.ones_like(X))
        with pytest.raises(cs.UsageError, match="input: has a tangent"):
            ct.conv2d(dual, W)
        assert_close(ct.conv2d(X, W), torch.nn.functional.conv2d(X, W))


def test_a_call_is_seen_under_a_mode_alone() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    from convsmith.torch.network_operator import is_traced

    assert not is_traced()
    with TorchDispatchMode():
        assert is_traced()
    assert not is_traced()
