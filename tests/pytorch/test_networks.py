"""Networks as users have them: all convolutions on our kernels, outputs within 1e-5 of eager's largest one."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from torch_networks import NETWORKS, network  # noqa: E402

from convsmith.torch import optimize  # noqa: E402
from convsmith.torch.sources import OtherSizesWarning  # noqa: E402

CONVOLUTIONS = {
    "resnet18": 20, "resnet50": 53, "mobilenet_v2": 52, "mobilenet_v3": 62, "efficientnet_b0": 81, "convnext_tiny": 22,
    "unet": 18, "resnet3d_18": 20,
}  # fmt: skip
PARAMETERS = {
    "resnet18": 11689512, "resnet50": 25557032, "mobilenet_v2": 3504872, "mobilenet_v3": 5483032,
    "efficientnet_b0": 5288548, "convnext_tiny": 28589128, "resnet3d_18": 33371472,
}  # fmt: skip
"""Numbers of parameters of torchvision's networks."""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_networks_compute_what_eager_computes(name: str, threads: int) -> None:
    """All networks: 130 s."""
    model, x = network(name)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS.get(name, 1927042)
    made = optimize(model, x, threads=threads, keep_faster=False)
    assert (made.convsmith_report.ours, made.convsmith_report.convolutions) == (CONVOLUTIONS[name],) * 2
    assert made.convsmith_report.difference < 1e-5
    # One thread shows another batch and image size too, on kernels for them.
    others = [x.shape, (2, *x.shape[1:-2], 96, 96)][: 1 + (threads == 1)]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error", OtherSizesWarning)
        for shape in others:
            other = torch.randn(shape)
            expected = model(other)
            assert (made(other) - expected).abs().max() / expected.abs().max() < 1e-5
