"""PyTorch models as one function, through PyTorch's export to ONNX: results beside eager's."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")

import torch
from torch import nn

import convsmith as cs


class _Block(nn.Module):
    """An inverted residual block with a gate of its channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = channels * 4
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        depth = nn.Conv2d(wide, wide, 3, padding=1, groups=wide)
        self.depth = nn.Sequential(depth, nn.BatchNorm2d(wide), nn.Hardswish())
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, 8, 1), nn.ReLU(), nn.Conv2d(8, wide, 1), nn.Sigmoid()
        )
        self.project = nn.Conv2d(wide, channels, 1)

    def forward(self, x: Any) -> Any:
        y = self.depth(self.expand(x))
        return x + self.project(y * self.gate(y))


def _models() -> dict[str, tuple[Any, tuple[int, ...]]]:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10), nn.Softmax(1))
    tokens = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))
    up = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.ConvTranspose2d(8, 2, 2, 2))
    return {
        "blocks": (nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), _Block(8), _Block(8), *head), (2, 3, 16, 16)),
        "tokens": (tokens, (2, 7, 24)),
        "upsampled": (up, (1, 3, 9, 9)),
    }


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["blocks", "tokens", "upsampled"])
def test_models_of_torch_are_networks(name: str) -> None:
    torch.manual_seed(0)
    model, shape = _models()[name]
    model.eval()
    x = torch.randn(shape)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), file, dynamo=False, opset_version=17)
    net = cs.onnx.compile(file.getvalue(), threads=1)
    with torch.inference_mode():
        expected = model(x)
    y = net(x)
    assert isinstance(y, torch.Tensor) and y.shape == expected.shape
    assert float((y - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    if name == "blocks":
        assert any("swish" in step.work for step in net.image.steps)
