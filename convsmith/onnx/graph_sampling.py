"""Samples of images between their elements, as nodes of a graph: at places of a run, and by matrices of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChangeType, ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.sample import WeightedElements
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise

__all__ = ["SAMPLES", "resize_by_matrices"]

_PADS = ("zeros", "border")
_MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest"}
"""Modes of GridSample, of which opset 20 renamed one."""


class _Points:
    """Adds element-wise nodes on the `count` points of each sample of a `node`."""

    def __init__(self, node: GraphNode, batch: int, count: int) -> None:
        self._node, self.type, self.shape = node, node.type(), (batch, 1, count)

    def steps(self, x: str, *steps: Eltwise) -> str:
        """Add element-wise steps on one value."""
        return self._node.between(Pointwise(self.type, (self.shape,), "", steps), {"src_0": x})

    def two(self, alg: str, x: str, y: str) -> str:
        """Add an operation on two values."""
        return self._node.between(Pointwise(self.type, (self.shape,) * 2, alg), {"src_0": x, "src_1": y})

    def axis(self, n: int, size: int, corners: bool) -> str:
        """Return the places along axis `n` of the images, which has so many elements."""
        batch, _, count = self.shape
        part = Slice(self.type, (batch, count, 2), (0, 0, n), (1, 1, 1), (batch, count, 1))
        grid = self._node.between(part, {"src": self._node.inputs[1]}, self.shape)
        half = (size - 1) / 2 if corners else size / 2
        return self.steps(grid, Eltwise("linear", half, half if corners else half - 0.5))

    def inside(self, x: str, clipped: str) -> str:
        """Return the mask of places within the image."""
        return self._node.between(Compare(self.type, (self.shape,) * 2, "eq"), {"src_0": x, "src_1": clipped})


def _grid_sample(node: GraphNode) -> None:
    """Add weighted sums of the elements around each place of a grid."""
    shape, grid = node.shape(0), node.shape(1)
    mode, pad = node.attribute("mode", "linear"), node.attribute("padding_mode", "zeros")
    if len(shape) != 4 or len(grid) != 4 or grid[3] != 2:
        raise UnsupportedError(f"shapes are {shape} and {grid}; available are images of two axes", code="shape")
    if mode not in _MODES or pad not in _PADS:
        modes = " and ".join(_MODES)
        raise UnsupportedError(
            f"mode {mode!r} with padding_mode {pad!r}; available are {modes}, with {' and '.join(_PADS)}", code="mode"
        )
    (n, c, h, w), count = shape, grid[1] * grid[2]
    corners = bool(node.attribute("align_corners", 0))
    points = _Points(node, n, count)
    ways = [_along(points, points.axis(k, size, corners), size, _MODES[mode], pad) for k, size in ((1, h), (0, w))]
    beyond = node.held(np.full((1,), h * w, node.reader.numpy_of(points.type)))
    places, weights = [], []
    for row, row_weight, is_row in ways[0]:
        for column, column_weight, is_column in ways[1]:
            place = points.two("add", points.steps(row, Eltwise("linear", w)), column)
            if pad == "zeros":
                both = node.between(Pointwise("u8", (points.shape,) * 2, "min"), {"src_0": is_row, "src_1": is_column})
                masks = {"mask": both, "yes": place, "no": beyond}
                place = node.between(ChooseByMask(points.type, (points.shape, points.shape, (1,))), masks)
            places.append(place)
            is_near = not row_weight
            weights.append("" if is_near else points.two("mul", row_weight, column_weight))
    terms = len(places)
    t = points.type
    numbers = node.between(ChangeType(t, "s32", (n, terms, count)), {"src": _joined(node, points, places)})
    ones = np.ones((n, 1, count), node.reader.numpy_of(t))
    factors = _joined(node, points, weights) if weights[0] else node.held(ones)
    work = WeightedElements(t, n, c, h * w, count, terms)
    node.add(work, {"src": node.inputs[0], "places": numbers, "weights": factors}, (n, c, *grid[1:3]))


def _along(points: _Points, x: str, size: int, mode: str, pad: str) -> Sequence[tuple[str, str, str]]:
    """Return the elements near the places `x` of an axis: their numbers, weights, and masks of those that exist."""
    within = Eltwise("clip", 0, size - 1)
    if pad == "border":
        x = points.steps(x, within)
    if mode == "nearest":
        near = points.steps(x, Eltwise("round"))
        clipped = points.steps(near, within)
        return [(clipped, "", points.inside(near, clipped))]
    low = points.steps(x, Eltwise("floor"))
    part = points.two("sub", x, low)
    found = []
    rest, high = points.steps(part, Eltwise("linear", -1, 1)), points.steps(low, Eltwise("linear", 1, 1))
    for place, weight in ((low, rest), (high, part)):
        clipped = points.steps(place, within)
        found.append((clipped, weight, points.inside(place, clipped)))
    return found


def _joined(node: GraphNode, points: _Points, parts: Sequence[str]) -> str:
    """Return values side by side."""
    if len(parts) == 1:
        return parts[0]
    whole = Concat.of(points.type, (points.shape,) * len(parts), 1)
    return node.between(whole, {f"src_{n}": name for n, name in enumerate(parts)})


def resize_by_matrices(node: GraphNode, sizes: Sequence[int], factors: Sequence[float]) -> None:
    """Add a resize as a product with a matrix along each axis that changes."""
    shape, t, x = node.shape(), node.type(), node.inputs[0]
    if len(sizes) != len(shape):
        raise UsageError(f"sizes are {tuple(sizes)} of {shape}; legal is one for each axis", code="shape")
    for axis, (old, new) in enumerate(zip(shape, sizes)):
        if old == new:
            continue
        order = (*(n for n in range(len(shape)) if n != axis), axis)
        turned = tuple(shape[n] for n in order)
        if order != tuple(range(len(shape))):
            x = node.between(Transpose(t, shape, order), {"src": x})
        wei = _weights(node, old, new, factors[axis]).astype(node.reader.numpy_of(t))
        shape = (*shape[:axis], new, *shape[axis + 1 :])
        made = (*turned[:-1], new)
        work = Matmul(src=(prod(turned[:-1]), old), wei=(old, new), dt=(t, t, t))
        x = node.between(work, {"src": x, "wei": node.held(wei)}, made)
        if order != tuple(range(len(shape))):
            x = node.between(Transpose(t, made, tuple(order.index(n) for n in range(len(shape)))), {"src": x})
    node.add(Reshape(t, prod(shape)), {"src": x}, shape)


def _weights(node: GraphNode, old: int, new: int, factor: float) -> np.ndarray[Any, Any]:
    """Return the matrix with which a product resizes rows of `old` elements."""
    way = node.attribute("coordinate_transformation_mode", "half_pixel")
    if way not in _WAYS:
        raise UnsupportedError(f"coordinate_transformation_mode {way!r}; available are {', '.join(_WAYS)}", code="mode")
    a, excludes = node.attribute("cubic_coeff_a", -0.75), node.attribute("exclude_outside", 0)
    is_cubic = node.attribute("mode", "nearest") == "cubic"
    wide = max(1.0, 1 / factor) if node.attribute("antialias", 0) else 1.0
    reach = (2 if is_cubic else 1) * wide
    found = np.zeros((old, new))
    for x in range(new):
        place = _WAYS[way](x, factor, old, new)
        near = np.arange(int(np.floor(place - reach)) + 1, int(np.floor(place + reach)) + 1)
        weights = _cubic(np.abs(near - place) / wide, a) if is_cubic else np.maximum(1 - np.abs(near - place) / wide, 0)
        if excludes:
            weights = np.where((near >= 0) & (near < old), weights, 0)
        np.add.at(found[:, x], np.clip(near, 0, old - 1), weights / weights.sum())
    return found


def _cubic(d: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """Return the weights of elements at distances `d`."""
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0))


_WAYS: dict[str, Callable[[int, float, int, int], float]] = {
    "half_pixel": lambda x, factor, old, new: (x + 0.5) / factor - 0.5,
    "pytorch_half_pixel": lambda x, factor, old, new: (x + 0.5) / factor - 0.5 if new > 1 else 0.0,
    "asymmetric": lambda x, factor, old, new: x / factor,
    "align_corners": lambda x, factor, old, new: x * (old - 1) / (new - 1) if new > 1 else 0.0,
}  # fmt: skip
"""The place of element x of the result in the source."""


SAMPLES: dict[str, Callable[[GraphNode], None]] = {"GridSample": _grid_sample}
"""By ONNX's name, the function that adds the nodes of an operator."""
