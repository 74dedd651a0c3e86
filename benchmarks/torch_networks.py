"""Networks of images and volumes in plain PyTorch, with random weights: the layers and sizes of torchvision's.

    model, x = network("resnet50", batch=1)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["NETWORKS", "network"]


def network(name: str, batch: int = 1) -> tuple[nn.Module, Tensor]:
    """Return the network `name` of `NETWORKS` with random weights, in eval mode, and an input of `batch` samples."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = make().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm3d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.2)
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.uniform_(module.bias, -0.1, 0.1)
    return model, torch.randn(batch, *shape)


def _conv(
    ic: int, oc: int, k: int, s: int = 1, groups: int = 1, act: Callable[[], nn.Module] | None = None, rank: int = 2
) -> nn.Sequential:
    """Return a convolution with padding (k - 1) / 2, a batch norm, and an activation."""
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if rank == 2 else (nn.Conv3d, nn.BatchNorm3d)
    layers: list[nn.Module] = [conv(ic, oc, k, s, (k - 1) // 2, groups=groups, bias=False), norm(oc)]
    return nn.Sequential(*layers, *([act()] if act else []))


# -- residual networks ------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """A block of a residual network: `main`, and a convolution of the source where the shapes differ."""

    def __init__(self, main: nn.Module, short: nn.Module | None) -> None:
        super().__init__()
        self.main, self.short, self.relu = main, short, nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.main(x)
        y += x if self.short is None else self.short(x)
        return self.relu(y)


def _residual(ic: int, width: int, s: int, wide: int, rank: int) -> Residual:
    relu = lambda: nn.ReLU(inplace=True)  # noqa: E731
    if wide == 1:
        main = [_conv(ic, width, 3, s, act=relu, rank=rank), _conv(width, width, 3, rank=rank)]
    else:
        main = [
            _conv(ic, width, 1, act=relu, rank=rank), _conv(width, width, 3, s, act=relu, rank=rank),
            _conv(width, wide * width, 1, rank=rank),
        ]  # fmt: skip
    short = None if s == 1 and ic == wide * width else _conv(ic, wide * width, 1, s, rank=rank)
    return Residual(nn.Sequential(*main), short)


def _resnet(depths: tuple[int, ...], wide: int, rank: int = 2, classes: int = 1000) -> nn.Sequential:
    if rank == 2:
        stem = [_conv(3, 64, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    else:
        first = nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
        stem = [nn.Sequential(first, nn.BatchNorm3d(64), nn.ReLU(inplace=True))]
    layers: list[nn.Module] = [*stem]
    ic = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for n in range(depth):
            layers.append(_residual(ic, width, 2 if stage and not n else 1, wide, rank))
            ic = wide * width
    pool = nn.AdaptiveAvgPool2d(1) if rank == 2 else nn.AdaptiveAvgPool3d(1)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(ic, classes))


# -- inverted residuals -----------------------------------------------------------------------------------------------


class SqueezeExcitation(nn.Module):
    """Scales channels by a function of their means."""

    def __init__(self, channels: int, squeezed: int, act: Callable[[], nn.Module], gate: Callable[[], nn.Module]):
        super().__init__()
        self.pool, self.act, self.gate = nn.AdaptiveAvgPool2d(1), act(), gate()
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.fc2(self.act(self.fc1(self.pool(x))))) * x


class Inverted(nn.Module):
    """Expansion, depthwise convolution and projection, with the source added where the shapes agree."""

    def __init__(
        self, ic: int, wide: int, oc: int, k: int, s: int, act: Callable[[], nn.Module],
        squeeze: Callable[[], nn.Module] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: list[nn.Module] = [] if wide == ic else [_conv(ic, wide, 1, act=act)]
        layers += [_conv(wide, wide, k, s, wide, act), *([squeeze()] if squeeze else []), _conv(wide, oc, 1)]
        self.main, self.adds = nn.Sequential(*layers), s == 1 and ic == oc

    def forward(self, x: Tensor) -> Tensor:
        return x + self.main(x) if self.adds else self.main(x)


def _mobilenet_v2() -> nn.Sequential:
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    layers: list[nn.Module] = [_conv(3, 32, 3, 2, act=nn.ReLU6)]
    ic = 32
    for t, oc, count, s in rows:
        for n in range(count):
            layers.append(Inverted(ic, ic * t, oc, 3, 1 if n else s, nn.ReLU6))
            ic = oc
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, _conv(320, 1280, 1, act=nn.ReLU6), *head)


def _multiple_of_8(v: float) -> int:
    rounded = max(8, int(v + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * v else rounded


def _mobilenet_v3() -> nn.Sequential:
    """Return the large one."""
    re, hs = nn.ReLU, nn.Hardswish
    rows = (
        (3, 16, 16, False, re, 1), (3, 64, 24, False, re, 2), (3, 72, 24, False, re, 1), (5, 72, 40, True, re, 2),
        (5, 120, 40, True, re, 1), (5, 120, 40, True, re, 1), (3, 240, 80, False, hs, 2), (3, 200, 80, False, hs, 1),
        (3, 184, 80, False, hs, 1), (3, 184, 80, False, hs, 1), (3, 480, 112, True, hs, 1), (3, 672, 112, True, hs, 1),
        (5, 672, 160, True, hs, 2), (5, 960, 160, True, hs, 1), (5, 960, 160, True, hs, 1),
    )  # fmt: skip
    layers: list[nn.Module] = [_conv(3, 16, 3, 2, act=hs)]
    ic = 16
    for k, wide, oc, squeezes, act, s in rows:
        def squeeze(wide: int = wide) -> nn.Module:
            return SqueezeExcitation(wide, _multiple_of_8(wide / 4), nn.ReLU, nn.Hardsigmoid)

        layers.append(Inverted(ic, wide, oc, k, s, act, squeeze if squeezes else None))
        ic = oc
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), hs(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, _conv(160, 960, 1, act=hs), *head)


def _efficientnet_b0() -> nn.Sequential:
    rows = (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )  # fmt: skip
    layers: list[nn.Module] = [_conv(3, 32, 3, 2, act=nn.SiLU)]
    ic = 32
    for t, k, s, oc, count in rows:
        for n in range(count):
            def squeeze(wide: int = ic * t, ic: int = ic) -> nn.Module:
                return SqueezeExcitation(wide, ic // 4, nn.SiLU, nn.Sigmoid)

            layers.append(Inverted(ic, ic * t, oc, k, 1 if n else s, nn.SiLU, squeeze))
            ic = oc
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, _conv(320, 1280, 1, act=nn.SiLU), *head)


# -- ConvNeXt ---------------------------------------------------------------------------------------------------------


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        y = functional.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return y.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and two products over channels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm, self.gelu = nn.LayerNorm(c, 1e-6), nn.GELU()
        self.fc1, self.fc2 = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.full((c, 1, 1), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.scale * self.fc2(self.gelu(self.fc1(y))).permute(0, 3, 1, 2)


def _convnext_tiny() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, 1e-6)]
    widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)
    for n, (c, depth) in enumerate(zip(widths, depths)):
        if n:
            layers += [ChannelNorm(widths[n - 1], 1e-6), nn.Conv2d(widths[n - 1], c, 2, 2)]
        layers += [ConvNeXtBlock(c) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), ChannelNorm(768, 1e-6), nn.Flatten(), nn.Linear(768, 1000))


# -- U-Net ------------------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """A U-Net whose way up uses transposed convolutions."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256), classes: int = 2) -> None:
        super().__init__()
        twice = lambda ic, oc: nn.Sequential(_conv(ic, oc, 3, act=nn.ReLU), _conv(oc, oc, 3, act=nn.ReLU))  # noqa: E731
        self.down = nn.ModuleList(twice(ic, oc) for ic, oc in zip((3, *widths), widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(ic, oc, 2, 2) for ic, oc in pairs)
        self.joined = nn.ModuleList(twice(2 * oc, oc) for _, oc in pairs)
        self.last = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Any] = []
        for n, layer in enumerate(self.down):
            x = layer(x if not n else functional.max_pool2d(x, 2))
            kept.append(x)
        for up, layer, y in zip(self.up, self.joined, kept[-2::-1]):
            x = layer(torch.cat([y, up(x)], 1))
        return self.last(x)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda: _resnet((2, 2, 2, 2), 1), (3, 224, 224)),
    "resnet50": (lambda: _resnet((3, 4, 6, 3), 4), (3, 224, 224)),
    "mobilenet_v2": (_mobilenet_v2, (3, 224, 224)),
    "mobilenet_v3": (_mobilenet_v3, (3, 224, 224)),
    "efficientnet_b0": (_efficientnet_b0, (3, 224, 224)),
    "convnext_tiny": (_convnext_tiny, (3, 224, 224)),
    "unet": (UNet, (3, 192, 192)),
    "resnet3d_18": (lambda: _resnet((2, 2, 2, 2), 1, 3, 400), (3, 8, 112, 112)),
}
"""Networks by name, with the shape of a sample."""
