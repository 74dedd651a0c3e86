"""Quantised PyTorch programs, with conversions as `torch.export` quantisation writes them, as functions on bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")

import torch
from torch import Tensor, nn
from torch.nn import functional

import convsmith as cs
import convsmith.torch as ct

_OPS: Any = torch.ops.quantized_decomposed


class _Quantised(nn.Module):
    """A residual block, a pool and a product: values are bytes of `dtype`, weights s8 with a scale for each channel.
    Scales are powers of two.
    """

    def __init__(self, dtype: torch.dtype = torch.uint8) -> None:
        super().__init__()
        self.dtype = dtype
        rng = np.random.default_rng(0)
        for name, shape in (("first", (8, 4, 3, 3)), ("second", (8, 8, 1, 1)), ("last", (5, 8))):
            self.register_buffer(name, torch.tensor(rng.integers(-3, 4, shape).astype(np.int8)))
            scales = rng.choice(np.float32([0.25, 0.5, 1]), shape[0])
            self.register_buffer(f"{name}_scales", torch.tensor(scales, dtype=torch.float32))
            self.register_buffer(f"{name}_points", torch.zeros(shape[0], dtype=torch.int64))
            bias = (rng.integers(-9, 10, shape[0]) * scales / 4).astype(np.float32)
            self.register_buffer(f"{name}_bias", torch.tensor(bias))

    def value(self, x: Tensor, scale: float, point: int) -> Tensor:
        """The value after a conversion to bytes and back."""
        limits = torch.iinfo(self.dtype)
        given = (scale, point if self.dtype == torch.uint8 else point - 128, limits.min, limits.max, self.dtype)
        return _OPS.dequantize_per_tensor(_OPS.quantize_per_tensor(x, *given), *given)

    def weights(self, name: str) -> Tensor:
        """Weights, converted from bytes."""
        held = (getattr(self, f"{name}{end}") for end in ("", "_scales", "_points"))
        return _OPS.dequantize_per_channel(*held, 0, -127, 127, torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.value(x, 0.25, 100)
        y = functional.relu(functional.conv2d(x, self.weights("first"), self.first_bias, 1, 1))
        y = self.value(y, 1, 0)
        z = functional.conv2d(y, self.weights("second"), self.second_bias)
        y = self.value(functional.relu(z + y), 4, 0)
        y = self.value(functional.adaptive_avg_pool2d(y, 1), 0.5, 0)
        return self.value(functional.linear(y.flatten(1), self.weights("last"), self.last_bias), 0.5, 128)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_quantised_programs_equal_pytorch(dtype: torch.dtype) -> None:
    model = _Quantised(dtype).eval()
    x = torch.tensor(np.random.default_rng(1).integers(-20, 30, (2, 4, 8, 8)).astype(np.float32))
    net = ct.compile(model, (x,), threads=1)
    expected = model(x)
    assert len(torch.unique(expected)) > 4
    torch.testing.assert_close(net(x), expected, rtol=0, atol=0)
    lines = [step.work for step in net.image.steps]
    problems = [line for line in lines if ":s8:" in line]
    assert len(problems) == 3 and sum("--bia-dt=s32" in line for line in problems) == 1, "the others are no multiples"
    assert sum("add:u8:per_tensor" in line or "sum" in line for line in lines) == 1, "the residual is part of a kernel"


def test_narrow_limits_are_clips() -> None:
    class Narrow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            given = (0.5, 3, 0, 15, torch.uint8)
            return _OPS.dequantize_per_tensor(_OPS.quantize_per_tensor(x, *given), *given)

    x = torch.arange(-20, 21, dtype=torch.float32)
    net = ct.compile(Narrow().eval(), (x,), threads=1)
    torch.testing.assert_close(net(x), Narrow()(x), rtol=0, atol=0)


def test_types_without_kernels_are_named() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            given = (0.5, 3, -9, 9, torch.int16)
            return _OPS.dequantize_per_tensor(_OPS.quantize_per_tensor(x, *given), *given)

    with pytest.raises(cs.UnsupportedError, match=r"bytes are torch.int16; available are uint8 and int8"):
        ct.compile(Wide().eval(), (torch.ones(4),), threads=1)
