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
    "channels last": (
        operators.weight_gradient, (real(2, 4, 5, 6), real(2, 6, 2, 6), [3, 2], False, True, *STEPS)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_torch_finds_no_fault(name: str) -> None:
    operator, arguments = CALLS[name]
    assert set(torch.library.opcheck(operator.seen, arguments).values()) == {"SUCCESS"}


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


class Layers(torch.nn.Module):  # type: ignore[misc]
    """A convolution and a transposed one with an activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = torch.nn.Parameter(W.clone()), torch.nn.Parameter(B.clone())

    def forward(self, x: Any) -> Any:
        y = ct.conv2d(x, self.w, self.b, stride=2, padding=1).relu()
        return ct.conv_transpose2d(y, self.w, stride=2, padding=1) + 1


def reference(model: Any, x: Any) -> Any:
    y = torch.nn.functional.conv2d(x, model.w, model.b, stride=2, padding=1).relu()
    return torch.nn.functional.conv_transpose2d(y, model.w, stride=2, padding=1) + 1


def assert_close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: Any) -> None:
    model, theirs = Layers(), Layers()
    with torch.autocast("cpu", dtype):
        ours, wanted = model(X), reference(theirs, X)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(X)
        assert ct.conv2d(X.double(), W.double()).dtype == torch.float64, "as in torch, doubles stay"
    assert ours.dtype == compiled.dtype == wanted.dtype == dtype
    torch.testing.assert_close(ours, wanted, rtol=0.05, atol=0.5)
    ours.float().sum().backward()
    wanted.float().sum().backward()
    assert model.w.grad.dtype == torch.float32
    torch.testing.assert_close(model.w.grad, theirs.w.grad, rtol=0.05, atol=8.0)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_without_a_break(backend: str, last: bool) -> None:
    torch._dynamo.reset()
    model = Layers()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for batch in (2, 3, 5):  # the second one makes the size a symbol
        x = torch.randn(batch, 4, 9, 8)
        x = x.to(memory_format=torch.channels_last) if last else x
        model.zero_grad()
        ours, want = compiled(x), reference(model, x)
        assert_close(ours, want)
        grads = [torch.autograd.grad(y.sum(), (model.w, model.b)) for y in (ours, want)]
        assert_close(*grads)
        with torch.no_grad():
            assert_close(compiled(x), want)


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict: bool) -> None:
    model = Layers()
    sizes = {0: torch.export.Dim("n", min=2, max=64), 2: torch.export.Dim("h", min=5, max=65)}
    program = torch.export.export(model, (X,), dynamic_shapes=(sizes,), strict=strict)
    called = [str(node.target) for node in program.graph.nodes if "convsmith" in str(node.target)]
    assert called == ["convsmith.conv.default", "convsmith.conv_transpose.default"]
    for x in (X, torch.randn(5, 4, 15, 8)):
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
