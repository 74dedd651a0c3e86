"""A vocoder, a separator of music and a detector in plain PyTorch, with the layers of HiFi-GAN, Demucs and YOLO."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

__all__ = ["hifi_gan", "hybrid_demucs", "yolo"]


# -- HiFi-GAN ---------------------------------------------------------------------------------------------------------


class _Dilated(nn.Module):
    """Residual convolutions along time with growing dilations."""

    def __init__(self, channels: int, k: int, dilations: tuple[int, ...] = (1, 3, 5)) -> None:
        super().__init__()
        self.one = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, k, 1, d * (k - 1) // 2, d)) for d in dilations
        )
        self.two = nn.ModuleList(weight_norm(nn.Conv1d(channels, channels, k, 1, (k - 1) // 2)) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        for one, two in zip(self.one, self.two):
            x = two(functional.leaky_relu(one(functional.leaky_relu(x, 0.1)), 0.1)) + x
        return x


class _HifiGan(nn.Module):
    """A spectrogram becomes a waveform of 256 samples for each of its frames."""

    def __init__(self, mels: int = 80, width: int = 256, rates: tuple[int, ...] = (8, 8, 2, 2)) -> None:
        super().__init__()
        self.first = weight_norm(nn.Conv1d(mels, width, 7, 1, 3))
        sizes = [width >> n for n in range(len(rates) + 1)]
        self.up = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(ic, oc, 2 * r, r, r // 2)) for ic, oc, r in zip(sizes, sizes[1:], rates)
        )
        self.blocks = nn.ModuleList(nn.ModuleList(_Dilated(c, k) for k in (3, 7, 11)) for c in sizes[1:])
        self.last = weight_norm(nn.Conv1d(sizes[-1], 1, 7, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, blocks in zip(self.up, self.blocks):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


def hifi_gan() -> nn.Module:
    """Return a generator of HiFi-GAN, version 2, for 80 bands."""
    return _HifiGan()


# -- Demucs -----------------------------------------------------------------------------------------------------------


class _Demucs(nn.Module):
    """A U-Net over waveforms with gated convolutions; each of `sources` has two channels."""

    def __init__(self, widths: tuple[int, ...] = (2, 48, 96, 192, 384), sources: int = 4) -> None:
        super().__init__()
        self.sources, pairs = sources, list(pairwise(widths))
        self.down = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(ic, oc, 8, 4, 2), nn.GroupNorm(4, oc), nn.GELU(), nn.Conv1d(oc, 2 * oc, 1), nn.GLU(1)
            )
            for ic, oc in pairs
        )
        self.middle = nn.Sequential(nn.Conv1d(widths[-1], 2 * widths[-1], 3, 1, 1), nn.GLU(1))
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(oc, 2 * oc, 3, 1, 1), nn.GLU(1), nn.ConvTranspose1d(oc, ic if n else 2 * sources, 8, 4, 2)
            )
            for n, (ic, oc) in reversed([*enumerate(pairs)])
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
        x = self.middle(x)
        for n, layer in enumerate(self.up):
            x = layer(x + kept[-1 - n])
            x = functional.gelu(x) if n < len(self.up) - 1 else x
        return x.view(x.shape[0], self.sources, 2, -1)


def hybrid_demucs() -> nn.Module:
    """Return a separator with the layers of Demucs's branch over waveforms."""
    return _Demucs()


# -- YOLO -------------------------------------------------------------------------------------------------------------


def _conv(ic: int, oc: int, k: int = 1, s: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(ic, oc, k, s, k // 2, bias=False), nn.BatchNorm2d(oc), nn.SiLU())


class _Bottlenecks(nn.Module):
    """Half of the channels pass a series of bottlenecks, whose results are all kept, as in YOLO's C2f."""

    def __init__(self, ic: int, oc: int, count: int, adds: bool = True) -> None:
        super().__init__()
        half = oc // 2
        self.first, self.adds = _conv(ic, oc), adds
        self.inner = nn.ModuleList(nn.Sequential(_conv(half, half, 3), _conv(half, half, 3)) for _ in range(count))
        self.last = _conv((2 + count) * half, oc)

    def forward(self, x: Tensor) -> Tensor:
        parts = [*self.first(x).chunk(2, 1)]
        for layer in self.inner:
            parts.append(parts[-1] + layer(parts[-1]) if self.adds else layer(parts[-1]))
        return self.last(torch.cat(parts, 1))


class _Pyramid(nn.Module):
    """Maxima of growing windows beside each other, as in YOLO's SPPF."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = _conv(channels, channels // 2), _conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class _Yolo(nn.Module):
    """A detector at three scales: boxes as the mean of 16 distances for each side, and probabilities of classes."""

    def __init__(self, classes: int = 80, bins: int = 16) -> None:
        super().__init__()
        self.classes, self.bins, w = classes, bins, (16, 32, 64, 128, 256)
        self.stem = nn.Sequential(_conv(3, w[0], 3, 2), _conv(w[0], w[1], 3, 2), _Bottlenecks(w[1], w[1], 1))
        self.three = nn.Sequential(_conv(w[1], w[2], 3, 2), _Bottlenecks(w[2], w[2], 2))
        self.four = nn.Sequential(_conv(w[2], w[3], 3, 2), _Bottlenecks(w[3], w[3], 2))
        self.five = nn.Sequential(_conv(w[3], w[4], 3, 2), _Bottlenecks(w[4], w[4], 1), _Pyramid(w[4]))
        self.up = nn.Upsample(scale_factor=2)
        self.joined_four = _Bottlenecks(w[4] + w[3], w[3], 1, False)
        self.joined_three = _Bottlenecks(w[3] + w[2], w[2], 1, False)
        self.down_three = _conv(w[2], w[2], 3, 2)
        self.last_four = _Bottlenecks(w[2] + w[3], w[3], 1, False)
        self.down_four = _conv(w[3], w[3], 3, 2)
        self.last_five = _Bottlenecks(w[3] + w[4], w[4], 1, False)
        self.boxes = nn.ModuleList(
            nn.Sequential(_conv(c, 64, 3), _conv(64, 64, 3), nn.Conv2d(64, 4 * bins, 1)) for c in w[2:]
        )
        self.kinds = nn.ModuleList(
            nn.Sequential(_conv(c, 80, 3), _conv(80, 80, 3), nn.Conv2d(80, classes, 1)) for c in w[2:]
        )

    def forward(self, x: Tensor) -> Tensor:
        three = self.three(self.stem(x))
        four = self.four(three)
        five = self.five(four)
        up_four = self.joined_four(torch.cat((self.up(five), four), 1))
        up_three = self.joined_three(torch.cat((self.up(up_four), three), 1))
        down_four = self.last_four(torch.cat((self.down_three(up_three), up_four), 1))
        down_five = self.last_five(torch.cat((self.down_four(down_four), five), 1))
        found, steps = [], (8, 16, 32)
        for y, boxes, kinds, step in zip((up_three, down_four, down_five), self.boxes, self.kinds, steps):
            b, _, h, w = y.shape
            sides = boxes(y).view(b, 4, self.bins, h * w).softmax(2)
            sides = (sides * torch.arange(self.bins, dtype=sides.dtype).view(1, 1, -1, 1)).sum(2)
            rows, columns = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
            centres = torch.stack((columns, rows)).view(1, 2, -1)
            near, far = centres - sides[:, :2], centres + sides[:, 2:]
            box = torch.cat(((near + far) / 2, far - near), 1) * step
            found.append(torch.cat((box, kinds(y).view(b, self.classes, -1).sigmoid()), 1))
        return torch.cat(found, 2)


def yolo() -> nn.Module:
    """Return a detector with the layers of YOLOv8, in its smallest size."""
    return _Yolo()
