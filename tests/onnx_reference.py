"""ONNX's convolutions and matrix products in numpy, written from its formulas: tap by tap, in f64 or int64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]


def conv(x: Array, w: Array, attributes: Attributes) -> Array:
    """Sums of (N, C, *) with (M, C / group, *)."""
    group, s, d = _attributes(attributes, x.ndim - 2)
    reach = [(k - 1) * dilation + 1 for k, dilation in zip(w.shape[2:], d)]
    sizes = x.shape[2:]
    if attributes.get("auto_pad", "NOTSET").startswith("SAME"):
        out = [-(-size // step) for size, step in zip(sizes, s)]
        totals = [max((o - 1) * step + r - size, 0) for o, step, r, size in zip(out, s, reach, sizes)]
        pads = [_split(total, attributes["auto_pad"]) for total in totals]
    else:
        pads = _pads(attributes, len(s))
        out = [(size + sum(p) - r) // step + 1 for size, p, r, step in zip(sizes, pads, reach, s)]
    # Further zeros behind, so that a slice of every tap has the output's size.
    padded = np.pad(x, [(0, 0), (0, 0), *((p[0], p[1] + r + step) for p, r, step in zip(pads, reach, s))])
    y = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
    m, c = w.shape[0] // group, w.shape[1]
    for g in range(group):
        for taps in itertools.product(*map(range, w.shape[2:])):
            at = tuple(slice(t * b, t * b + o * a, a) for t, o, a, b in zip(taps, out, s, d))
            patch = padded[(slice(None), slice(g * c, (g + 1) * c), *at)]
            y[:, g * m : (g + 1) * m] += np.einsum("nc...,mc->nm...", patch, w[(slice(g * m, (g + 1) * m), ..., *taps)])
    return y


def conv_transpose(x: Array, w: Array, attributes: Attributes) -> Array:
    """Sums of (N, C, *) with (C, M / group, *), scattered."""
    rank = x.ndim - 2
    group, s, d = _attributes(attributes, rank)
    extra = attributes.get("output_padding") or [0] * rank
    full = [a * (size - 1) + (k - 1) * b + 1 for a, size, k, b in zip(s, x.shape[2:], w.shape[2:], d)]
    pads = _pads(attributes, rank)
    out = [f + e - sum(p) for f, e, p in zip(full, extra, pads)]
    auto = attributes.get("auto_pad", "NOTSET")
    if attributes.get("output_shape") or auto.startswith("SAME"):
        out = attributes.get("output_shape") or [size * a for size, a in zip(x.shape[2:], s)]
        pads = [_split(max(f + e - o, 0), auto) for f, e, o in zip(full, extra, out)]
    c, m = w.shape[0] // group, w.shape[1]
    whole = np.zeros((x.shape[0], m * group, *(f + p[0] + o for f, p, o in zip(full, pads, out))), x.dtype)
    for g in range(group):
        for taps in itertools.product(*map(range, w.shape[2:])):
            at = tuple(slice(t * b, t * b + size * a, a) for t, b, size, a in zip(taps, d, x.shape[2:], s))
            part = np.einsum("nc...,cm->nm...", x[:, g * c : (g + 1) * c], w[(slice(g * c, (g + 1) * c), ..., *taps)])
            whole[(slice(None), slice(g * m, (g + 1) * m), *at)] += part
    return whole[(..., *(slice(p[0], p[0] + o) for p, o in zip(pads, out)))]


def requantised(sums: Array, scale: Array, y_scale: Array, y_zero_point: Array) -> Array:
    """saturate(round(sums * scale / y_scale) + y_zero_point), with steps in f32."""
    real = sums.astype(np.float32) * scale.astype(np.float32) / np.float32(y_scale)
    limits = np.iinfo(y_zero_point.dtype)
    return np.clip(np.rint(real) + y_zero_point, limits.min, limits.max).astype(y_zero_point.dtype)


def _attributes(attributes: Attributes, rank: int) -> tuple[int, list[int], list[int]]:
    return (
        attributes.get("group", 1),
        list(attributes.get("strides") or [1] * rank),
        list(attributes.get("dilations") or [1] * rank),
    )


def _pads(attributes: Attributes, rank: int) -> list[tuple[int, int]]:
    pads = attributes.get("pads") or [0] * 2 * rank
    return list(zip(pads[:rank], pads[rank:]))


def _split(total: int, auto_pad: str) -> tuple[int, int]:
    return (total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2)
