"""Samples of images between their elements, at places of a run, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.network.operators.choice import ChangeType, ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.sample import WeightedElements
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.post_ops import Eltwise

__all__ = ["SAMPLES"]

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


SAMPLES: dict[str, Callable[[GraphNode], None]] = {"GridSample": _grid_sample}
"""By ONNX's name, the function that adds the nodes of an operator."""
