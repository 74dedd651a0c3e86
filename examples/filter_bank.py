"""A photograph through a bank of filters, all of them one convolution.

    pip install '.[examples]'
    python examples/filter_bank.py

Gabor filters of four orientations and two wavelengths and the two Sobel filters look at the luminance, Gaussians of
three sizes at each colour: 19 filters of 25 x 25 pixels over 3 channels. Writes a contact sheet, and compares result
and time with `scipy.signal.correlate`, which runs filter by filter (and picks the Fourier transform where that is
faster).

The tails of the narrowest Gaussian are denormal numbers, which slow many CPUs several times and show in no picture:
`denormals="flush"` takes them as zero.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy.signal import correlate
from sklearn.datasets import load_sample_image

import convsmith as cs

Array = NDArray[np.float32]

SIZE = 25
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
ANGLES = (0, 45, 90, 135)
WAVELENGTHS = (6, 12)
SIGMAS = (1, 2, 4)


def coordinates() -> tuple[Array, Array]:
    """x (to the right) and y (downwards) of each tap, zero in the middle."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(np.float32) - SIZE // 2
    return x, y


def gaussian(sigma: float) -> Array:
    """Blurs; the taps add up to 1."""
    x, y = coordinates()
    taps = np.exp(-(x**2 + y**2) / (2 * sigma**2))
    return taps / taps.sum()


def gabor(wavelength: float, angle: float) -> Array:
    """Answers to waves of that length (pixels) that travel in that direction (degrees), and not to flat areas."""
    x, y = coordinates()
    along = x * math.cos(math.radians(angle)) + y * math.sin(math.radians(angle))
    envelope = gaussian(wavelength / 3)
    wave = envelope * np.cos(2 * math.pi / wavelength * along)
    return wave - envelope * wave.sum()


def sobel(axis: int) -> Array:
    """The slope along x (axis 1) or y (axis 0), from the 3 x 3 pixels in the middle."""
    taps = np.outer([1, 2, 1], [-1, 0, 1]).astype(np.float32) / 8
    return np.pad(taps if axis == 1 else taps.T, SIZE // 2 - 1)


def filter_bank() -> tuple[dict[str, slice], Array]:
    """Which output channels each filter has, and the weights of all: (19, 3, SIZE, SIZE)."""
    grey = {f"Gabor {w} px, {a} deg": gabor(w, a) for w in WAVELENGTHS for a in ANGLES}
    grey |= {"Sobel x": sobel(1), "Sobel y": sobel(0)}
    colour = {f"Gaussian {sigma} px": gaussian(sigma) for sigma in SIGMAS}
    channels, weights = {}, []
    for name, taps in grey.items():
        channels[name] = slice(len(weights), len(weights) + 1)
        weights.append(LUMINANCE[:, None, None] * taps)
    for name, taps in colour.items():
        channels[name] = slice(len(weights), len(weights) + 3)
        weights.extend(np.eye(3, dtype=np.float32)[:, :, None, None] * taps)
    return channels, np.ascontiguousarray(weights, np.float32)


def with_scipy(image: Array, weights: Array) -> NDArray[np.float64]:
    """Return the same convolution in double precision, filter by filter; channels without taps are left out."""
    return np.stack(
        [
            sum(
                correlate(image[channel].astype(np.float64), taps[channel].astype(np.float64), mode="valid")
                for channel in range(3)
                if taps[channel].any()
            )
            for taps in weights
        ]
    )


def seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def contact_sheet(photo: NDArray[np.uint8], result: Array, channels: dict[str, slice], columns: int = 5) -> Image.Image:
    """The photograph and what each filter made of it, labelled. Grey is zero where filters answer with a sign."""
    tiles = {"photograph": photo}
    for name, where in channels.items():
        picture = result[where].transpose(1, 2, 0)
        if picture.shape[2] == 1:
            picture = np.repeat(picture / max(np.abs(picture).max(), 1e-6) + 0.5, 3, axis=2)
        tiles[name] = (picture.clip(0, 1) * 255).astype(np.uint8)
    slope = np.hypot(result[channels["Sobel x"]], result[channels["Sobel y"]])[0]
    tiles["Sobel magnitude"] = np.repeat((slope / max(slope.max(), 1e-6) * 255).astype(np.uint8)[..., None], 3, axis=2)
    height, width, _ = photo.shape
    title, gap = 16, 4
    rows = math.ceil(len(tiles) / columns)
    sheet = Image.new("RGB", (columns * (width + gap) + gap, rows * (height + title + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    for n, (name, picture) in enumerate(tiles.items()):
        x, y = gap + n % columns * (width + gap), gap + n // columns * (height + title + gap)
        draw.text((x, y), name, fill="black")
        sheet.paste(Image.fromarray(picture), (x, y + title))
    return sheet


def run(photo: NDArray[np.uint8], output: Path) -> float:
    """Filter the photograph (height, width, 3), write the contact sheet, and return the largest error."""
    channels, weights = filter_bank()
    margin = SIZE // 2
    padded = np.pad(photo / np.float32(255), ((margin, margin), (margin, margin), (0, 0)), mode="reflect")
    x = padded[None].transpose(0, 3, 1, 2)  # (1, 3, H, W), channels last in memory as photographs are
    start = time.perf_counter()
    y = cs.conv2d(x, weights, denormals="flush")
    first = time.perf_counter() - start
    ours = seconds(lambda: cs.conv2d(x, weights, denormals="flush"))
    start = time.perf_counter()
    truth = with_scipy(x[0], weights)
    theirs = time.perf_counter() - start
    error = float(np.abs(y[0] - truth).max())
    contact_sheet(photo, y[0], channels).save(output)
    work = 2 * y.size * weights[0].size
    print(f"{weights.shape[0]} filters of {SIZE} x {SIZE} x 3 on {photo.shape[1]} x {photo.shape[0]} pixels")
    print(f"convsmith  {ours * 1e3:7.1f} ms  ({work / ours * 1e-9:.0f} GFLOP/s; first call {first * 1e3:.0f} ms)")
    print(f"scipy      {theirs * 1e3:7.1f} ms")
    print(f"largest error {error:.1e}; written: {output}")
    return error


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A photograph through a bank of filters, as one convolution.")
    parser.add_argument("--output", type=Path, default=Path("filter_bank.png"), help="the contact sheet (PNG)")
    run(load_sample_image("china.jpg"), parser.parse_args(arguments).output)


if __name__ == "__main__":
    main()
