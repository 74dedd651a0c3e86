"""PyTorch models as one native function: every operator of a program, whole networks, and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

import convsmith as cs
import convsmith.torch as ct

S = (2, 8, 4, 6)
Function = Callable[..., Any]


class _Called(nn.Module):
    """A model that computes a function of its inputs and of parameters, which are small whole numbers."""

    def __init__(self, function: Function, shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.function = function
        rng = np.random.default_rng(1)
        arrays = (rng.integers(-2, 3, shape).astype(np.float32) for shape in shapes)
        self.held = nn.ParameterList(nn.Parameter(torch.tensor(x)) for x in arrays)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, *self.held)


def _numbers(*shape: int, seed: int = 0) -> Any:
    return torch.tensor(np.random.default_rng(seed).integers(-3, 4, shape or S).astype(np.float32))


def _check(model: nn.Module, inputs: tuple[Any, ...], exact: bool = False, **options: Any) -> cs.Network:
    """Compile a model, and compare its outputs with the model's."""
    net = ct.compile(model.eval(), inputs, threads=1, **options)
    with torch.no_grad():
        expected = model(*inputs)
    found = net(*(x for x in inputs if isinstance(x, torch.Tensor)))
    assert isinstance(found, tuple) == isinstance(expected, tuple)
    for x, y in zip(found, expected) if isinstance(found, tuple) else [(found, expected)]:
        assert x.shape == y.shape and isinstance(x, torch.Tensor)
        if exact:
            np.testing.assert_array_equal(x.numpy(), y.numpy())
        else:
            assert (x - y).abs().max() <= 1e-5 * y.abs().max()
    return net


def _of(function: Function, *shapes: tuple[int, ...], held: tuple[tuple[int, ...], ...] = ()) -> Any:
    return function, shapes or (S,), held


F: Any = functional
EXACT: dict[str, Any] = {
    "conv1d": _of(lambda x, w, b: F.conv1d(x, w, b, 2, 1), (2, 4, 9), held=((6, 4, 3), (6,))),
    "conv2d": _of(lambda x, w: F.conv2d(x, w, None, (1, 2), "valid", 1, 2), held=((6, 4, 3, 3),)),
    "conv2d same": _of(lambda x, w: F.conv2d(x, w, None, 1, "same"), held=((6, 8, 3, 3),)),
    "conv3d": _of(lambda x, w: F.conv3d(x, w, padding=1), (1, 4, 3, 4, 5), held=((6, 4, 3, 3, 3),)),
    "conv_transpose2d": _of(lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1), held=((8, 4, 3, 3), (4,))),
    "linear": _of(F.linear, held=((5, 6), (5,))), "linear without bias": _of(F.linear, (3, 6), held=((5, 6),)),
    "matmul": _of(lambda x: x @ x.mT), "bmm": _of(torch.bmm, (3, 4, 5), (3, 5, 2)),
    "addmm": _of(lambda x, b, w: torch.addmm(b, x, w), (3, 6), held=((5,), (6, 5))),
    "add": _of(lambda x, y: x + y, S, (8, 1, 6)), "number": _of(lambda x: 2 * x - 1), "rsub": _of(lambda x: 1 - x),
    "bits of whole numbers": _of(lambda x: ((x.int() + 7) & 5) + ((x.int() | 9) ^ 3) + ~x.int()),
    "bits of truth": _of(lambda x: ((x > 0) & ~(x > 2) ^ (x < -1)).float()),
    "remainders": _of(lambda x: x % 2.5 + torch.fmod(x, 2.5) + (x.int() % 3) + torch.fmod(x.int(), 3)),
    "addcmul": _of(lambda x, y: torch.addcmul(x, y, y), S, (8, 1, 6)),
    "a mask of the shape of a value": _of(lambda x: x + torch.zeros_like(x).fill_(2.0) * x.new_ones(6).cumsum(0)),
    "div": _of(lambda x: x / 4), "floor of a quotient": _of(lambda x: x.div(4, rounding_mode="floor")),
    "maximum": _of(lambda x: torch.maximum(x, -x)), "minimum": _of(lambda x, y: torch.minimum(x, y), S, (6,)),
    "relu": _of(F.relu), "relu6": _of(F.relu6), "leaky_relu": _of(lambda x: F.leaky_relu(x, 0.25)),
    "hardtanh": _of(lambda x: F.hardtanh(x, -2, 1)), "clamp": _of(lambda x: x.clamp(min=-1)), "abs": _of(torch.abs),
    "prelu": _of(F.prelu, held=((8,),)), "square": _of(lambda x: x**2), "cubes": _of(lambda x: torch.pow(x, 3)),
    "powers of two tensors": _of(lambda x: torch.pow(x.abs(), x)),
    "powers of a number": _of(lambda x: torch.pow(1.5, x)),
    "where": _of(lambda x: torch.where(x > 1, x, 0.0)), "both": _of(lambda x: ((x > -1) & (x < 2)).float()),
    "either": _of(lambda x: ((x == 1) | (x != 2)).to(torch.float32)), "not": _of(lambda x: (~(x >= 1)).float()),
    "masked_fill": _of(lambda x: x.masked_fill(x <= 0, -7.0)),
    "a constant mask": _of(lambda x: x.masked_fill(torch.ones(4, 6).triu(1).bool(), -9.0)),
    "whole numbers": _of(lambda x: (x * 1.25).to(torch.int64).float()),
    "isnan": _of(lambda x: x.sqrt().isnan().float()),
    "sum": _of(lambda x: x.sum((1, 3))), "sum of all": _of(lambda x: x.sum()), "amax": _of(lambda x: x.amax(1, True)),
    "amin": _of(lambda x: x.amin(-1)), "mean": _of(lambda x: x.mean((0, 1))),
    "max_pool2d": _of(lambda x: F.max_pool2d(x, 3, 2, 1)), "max_pool1d": _of(lambda x: F.max_pool1d(x, 2), (2, 4, 9)),
    "ceil_mode": _of(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True)),
    "avg_pool2d": _of(lambda x: F.avg_pool2d(x, 2, 1, 1, count_include_pad=True)),
    "adaptive_avg_pool2d": _of(lambda x: F.adaptive_avg_pool2d(x, (2, 3)) * 4),
    "adaptive_max_pool2d": _of(lambda x: F.adaptive_max_pool2d(x, 1)),
    "view": _of(lambda x: x.view(2, 4, -1)), "flatten": _of(lambda x: torch.flatten(x, 1)),
    "unflatten": _of(lambda x: x.unflatten(1, (2, 4))), "squeeze": _of(lambda x: x[:, :1].squeeze(1).unsqueeze(-1)),
    "permute": _of(lambda x: x.permute(0, 2, 3, 1)), "transpose": _of(lambda x: x.transpose(1, -1)),
    "t": _of(lambda x: x.t() + 0, (3, 5)), "cat": _of(lambda x: torch.cat([x, x.relu(), x], 1)),
    "stack": _of(lambda x: torch.stack([x, x.relu()], -1)), "slice": _of(lambda x: x[:, 1:7:2, -3:]),
    "narrow": _of(lambda x: x.narrow(1, 2, 3)), "select": _of(lambda x: x[:, -1] + x.select(1, 0)),
    "split": _of(lambda x: x.split([3, 5], 1)), "chunk": _of(lambda x: x.chunk(3, -1)[2]),
    "unbind": _of(lambda x: torch.cat(x.unbind(1)[1:3])), "index": _of(lambda x: x[:, torch.tensor([3, 1, 1, 0])]),
    "index_select": _of(lambda x: x.index_select(2, torch.tensor([2, 0]))),
    "roll": _of(lambda x: x.roll((1, -2), (2, 3))),
    "flip": _of(lambda x: x.flip((1, 3))), "expand": _of(lambda x: x[:, :1].expand(2, 5, 4, 6) + 0),
    "repeat": _of(lambda x: x.repeat(3, 1, 1, 2, 1)), "repeat_interleave": _of(lambda x: x.repeat_interleave(3, 2)),
    "pad": _of(lambda x: F.pad(x, (1, 2, 0, 3), value=1.5)),
    "reflected": _of(lambda x: F.pad(x, (1, 2, 0, 1), "reflect")),
    "replicated": _of(lambda x: F.pad(x, (2, 1, 1, 0), "replicate")),
    "a number of a constant": _of(lambda x, w: x.clamp(max=w.sum().item()) * w[0].item(), held=((3,),)),
    "circular": _of(lambda x: F.pad(x, (1, 2, 1, 1), "circular")),
    "upsample_nearest2d": _of(lambda x: F.interpolate(x, scale_factor=2)),
    "nearest to a size": _of(lambda x: F.interpolate(x, (7, 9))),
    "nearest-exact": _of(lambda x: F.interpolate(x, (7, 9), mode="nearest-exact")),
    "pixel_shuffle": _of(lambda x: F.pixel_shuffle(x, 2)), "pixel_unshuffle": _of(lambda x: F.pixel_unshuffle(x, 2)),
    "channel_shuffle": _of(lambda x: F.channel_shuffle(x, 4)), "dropout": _of(lambda x: F.dropout(x, 0.5, False) + 0),
    "two results": _of(lambda x: (x.relu(), x.mean(1))),
    "a result inside of another": _of(lambda x: (x.relu(), x.relu() + 1)),
    "weights of a function": _of(lambda x, w: F.conv2d(x, w * w.abs().amax((1, 2, 3), True)), held=((4, 8, 3, 3),)),
}  # fmt: skip

CLOSE: dict[str, Any] = {
    **{name: _of(getattr(torch, name)) for name in ("sigmoid", "tanh", "erf", "exp", "sin", "cos", "atan")},
    **{name: _of(getattr(F, name)) for name in ("silu", "hardswish", "hardsigmoid", "mish", "softplus", "elu")},
    "gelu": _of(F.gelu), "gelu by tanh": _of(lambda x: F.gelu(x, approximate="tanh")),
    "glu": _of(lambda x: F.glu(x, 1)),
    "rsqrt": _of(lambda x: (x.abs() + 1).rsqrt()), "reciprocal": _of(lambda x: 1 / (x.abs() + 1)),
    "softmax": _of(lambda x: x.softmax(1)), "log_softmax": _of(lambda x: x.log_softmax(-1)),
    "var": _of(lambda x: x.var((1, 2), keepdim=True)), "norm": _of(lambda x: torch.linalg.vector_norm(x, 2, (2, 3))),
    "layer_norm": _of(lambda x, w, b: F.layer_norm(x, (6,), w, b), held=((6,), (6,))),
    "layer_norm alone": _of(lambda x: F.layer_norm(x, (4, 6))),
    "rms_norm": _of(lambda x, w: F.rms_norm(x, (6,), w), held=((6,),)),
    "group_norm": _of(lambda x, w, b: F.group_norm(x, 4, w, b), held=((8,), (8,))),
    "instance_norm": _of(lambda x: F.instance_norm(x)),
    "attention": _of(F.scaled_dot_product_attention, (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)),
    "causal attention": _of(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (2, 3, 5, 8)),
    "attention with shared keys": _of(
        lambda q, k: F.scaled_dot_product_attention(q, k, k.abs(), enable_gqa=True), (2, 6, 5, 8), (2, 2, 7, 8)
    ),
    "attention with a mask": _of(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, m, scale=0.5), (2, 3, 5, 8), held=((5, 5),)
    ),
    "bilinear": _of(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "aligned": _of(lambda x: F.interpolate(x, (7, 9), mode="bilinear", align_corners=True)),
}  # fmt: skip


@pytest.mark.sampled(21)
@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_operators_compute_what_torch_computes(name: str) -> None:
    function, shapes, held = {**EXACT, **CLOSE}[name]
    inputs = tuple(_numbers(*shape, seed=n) for n, shape in enumerate(shapes))
    _check(_Called(function, held), inputs, name in EXACT)


class _Block(nn.Module):
    """A residual block, attention over its pixels, and a head, with an argument by name and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any, factor: float = 1.0, shift: Any = None) -> Any:
        y = torch.relu(self.norm(self.conv(x)) * factor + x)
        pixels = y.flatten(2).transpose(1, 2)
        pixels = pixels + self.attention(pixels, pixels, pixels, need_weights=False)[0]
        found = self.head(pixels.mean(1))
        return {"scores": found if shift is None else found + shift, "image": y}


def _block() -> nn.Module:
    torch.manual_seed(0)
    return _Block().eval()


def test_a_model_with_arguments_by_name(tmp_path: Path) -> None:
    model, x, shift = _block(), torch.randn(2, 8, 6, 6), torch.randn(5)
    net = ct.compile(model, (x, 2.0), example_kwargs={"shift": shift}, threads=1)
    assert list(net.inputs) == ["x", "shift"]
    with torch.no_grad():
        expected = model(x, 2.0, shift=shift)
    net.save(tmp_path / "block.cs")
    for found in (net, cs.load(tmp_path / "block.cs")):
        results = found(shift=shift, x=x)
        for y, wanted in zip(results, expected.values()):
            assert (y - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert any("post-ops" in step.work for step in net.image.steps), "the norm and the residual are part of the layer"


def test_an_exported_program_and_a_mapping() -> None:
    model, x = _block(), torch.randn(1, 8, 5, 4)
    program = torch.export.export(model, (x,), strict=False)
    one, two = ct.compile(program, threads=1), ct.compile(model, {"x": x}, threads=1)
    for a, b in zip(one(x), two(x)):
        assert torch.equal(a, b)
    with pytest.raises(cs.UsageError, match="legal is 5"):
        one(torch.randn(1, 8, 6, 4))


def test_whole_numbers_and_constants() -> None:
    def function(x: Any, step: Any, w: Any) -> Any:
        return x * torch.cos(step.float() * torch.arange(6)) + w.abs().sum()

    model = _Called(function, ((3, 3),)).eval()
    x, step = _numbers(), torch.tensor([3])
    net = ct.compile(model, (x, step), threads=1)
    torch.testing.assert_close(net(x, step.int()), model(x, step).detach(), rtol=1e-5, atol=1e-5)


def test_errors() -> None:
    x = _numbers()
    with pytest.raises(cs.UnsupportedError, match=r"node cumsum \(aten.cumsum.default\): no kernel.*conv2d"):
        ct.compile(_Called(lambda x: x.cumsum(1).relu(), ()).eval(), x)
    with pytest.raises(cs.UnsupportedError, match=r"torch.export does not state it.*optimize"):
        ct.compile(_Called(lambda x: x if x.sum() > 0 else -x, ()).eval(), x)
    with pytest.raises(cs.UsageError, match="does not run on example_inputs"):
        ct.compile(_Called(lambda x: x.view(7), ()).eval(), x)
    with pytest.raises(cs.UsageError, match="training mode"):
        ct.compile(_Block(), x)
    with pytest.raises(cs.UnsupportedError, match="output inputs_0 is a constant, an input"):
        ct.compile(_Called(lambda x: (x, x + 1), ()).eval(), x)


def test_results_have_the_types_of_torch() -> None:
    """Truth values and whole numbers of 64 bits, which kernels compute as bytes and in 32 bits."""
    model = _Called(lambda x: (x > 0, x.long(), x * 2), ()).eval()
    x = _numbers()
    for given in (x, x.numpy()):
        ours = [torch.as_tensor(y) for y in ct.compile(model, x, threads=1)(given)]
        assert all(y.dtype is z.dtype and torch.equal(y, z) for y, z in zip(ours, model(x), strict=True))


def test_a_model_with_effects_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * self.count

    with pytest.raises(cs.UnsupportedError, match="it changes count"):
        ct.compile(Counts().eval(), _numbers())


def test_open_sizes_are_refused() -> None:
    size = torch.export.Dim("rows", min=2, max=9)
    program = torch.export.export(nn.ReLU(), (torch.randn(4, 3),), dynamic_shapes=({0: size},))
    with pytest.raises(cs.UnsupportedError, match="the size of input is open"):
        ct.compile(program)
