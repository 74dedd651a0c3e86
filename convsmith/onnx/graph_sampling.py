"""Samples of images between their elements, at places of a run, and convolutions of such samples, as nodes of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChangeType, ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.sample import WeightedElements
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.graph_pools import window_of
from convsmith.onnx.window import OperandNames, convolution, window
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
    work, arguments = _sampled(node, points, node.inputs[0], (c, h, w), ways, pad)
    node.add(work, arguments, (n, c, *grid[1:3]))


_Near = Sequence[tuple[str, str, str]]
"""For elements near the places along an axis: their numbers, their weights, and masks of those that exist."""


def _sampled(
    node: GraphNode, points: _Points, images: str, sizes: tuple[int, int, int], ways: Sequence[_Near], pad: str,
    factor: str = "",
) -> tuple[WeightedElements, dict[str, str]]:  # fmt: skip
    """Return the sums of the elements near each point of images of (channels, rows, columns), and their arguments. A
    `factor` of each point multiplies the weights.
    """
    (channels, h, w), t, (n, _, count) = sizes, points.type, points.shape
    beyond = node.held(np.full((1,), h * w, node.reader.numpy_of(t)))
    places, weights = [], []
    for row, row_weight, is_row in ways[0]:
        for column, column_weight, is_column in ways[1]:
            place = points.two("add", points.steps(row, Eltwise("linear", w)), column)
            if pad == "zeros":
                both = node.between(Pointwise("u8", (points.shape,) * 2, "min"), {"src_0": is_row, "src_1": is_column})
                masks = {"mask": both, "yes": place, "no": beyond}
                place = node.between(ChooseByMask(t, (points.shape, points.shape, (1,))), masks)
            places.append(place)
            weight = points.two("mul", row_weight, column_weight) if row_weight else ""
            weights.append(points.two("mul", weight, factor) if weight and factor else weight)
    terms = len(places)
    numbers = node.between(ChangeType(t, "s32", (n, terms, count)), {"src": _joined(node, points, places)})
    ones = np.ones((n, 1, count), node.reader.numpy_of(t))
    factors = _joined(node, points, weights) if weights[0] else node.held(ones)
    work = WeightedElements(t, n, channels, h * w, count, terms)
    return work, {"src": images, "places": numbers, "weights": factors}


def _along(points: _Points, x: str, size: int, mode: str, pad: str) -> _Near:
    """Return the elements near the places `x` of an axis."""
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


def _deformed(node: GraphNode) -> None:
    """Add a product of the weights with samples of the source: each tap of each pixel lies beside its place by an
    offset of its own.
    """
    shape, weights, offsets, t, own = node.shape(), node.shape(1), node.shape(2), node.type(), window_of(node)
    if len(shape) != 4 or len(weights) != 4:
        raise UnsupportedError(f"shapes are {shape} and {weights}; available are images of two axes", code="shape")
    plain = convolution(OperandNames("X", "W"), shape, weights, own, dt=(t, t, t))
    (n, c, h, w), taps, groups = shape, prod(weights[2:]), node.attribute("offset_group", 1)
    is_whole = groups >= 1 and c % groups == 0
    if not is_whole or offsets != (n, 2 * groups * taps, *plain.o):
        raise UsageError(
            f"offsets are {offsets} in {groups} groups; legal are groups that divide {c} channels, and offsets of "
            f"{(n, f'{2 * taps} * groups', *plain.o)}", code="shape",
        )  # fmt: skip
    points = _Points(node, n * groups, taps * prod(plain.o))
    ways = [
        _along(points, _moved(node, points, *row), size, "linear", "zeros")
        for size, *row in zip((h, w), range(2), plain.k, plain.s, plain.d, plain.p, (plain.o,) * 2)
    ]
    factor = ""
    if node.has(4):
        if node.shape(4) != (n, groups * taps, *plain.o):
            raise UsageError(f"its mask is {node.shape(4)}; legal is {(n, groups * taps, *plain.o)}", code="shape")
        factor = node.between(Reshape(t, prod(node.shape(4))), {"src": node.inputs[4]}, points.shape)
    whole = node.between(Reshape(t, prod(shape)), {"src": node.inputs[0]}, (n * groups, c // groups, h * w))
    work, arguments = _sampled(node, points, whole, (c // groups, h, w), ways, "zeros", factor)
    columns = node.between(work, arguments, (n, c * taps, *plain.o))
    ones = window("NOTSET", dilations=None, group=own.group, kernel_shape=None, pads=None, strides=None)
    matrix = (weights[0], weights[1] * taps, 1, 1)
    product = convolution(OperandNames("X", "W"), (n, c * taps, *plain.o), matrix, ones, dt=(t, t, t))
    factors = node.between(Reshape(t, prod(weights)), {"src": node.inputs[1]}, product.wei_shape)
    put = node.between if node.has(3) else node.add
    found = put(product, {"src": columns, "wei": factors})
    if node.has(3):
        along = (weights[0], 1, 1)
        bias = node.between(Reshape(t, weights[0]), {"src": node.inputs[3]}, along)
        node.add(Pointwise(t, (product.dst_shape, along), "add"), {"src_0": found, "src_1": bias})


def _moved(
    node: GraphNode, points: _Points, axis: int, taps: int, step: int, hole: int, pad: int, pixels: tuple[int, ...]
) -> str:  # fmt: skip
    """Return the places along an axis of all taps of all pixels: those of a convolution, moved by the offsets."""
    kernel = node.shape(1)[2:]
    tap = np.arange(taps).reshape(-1, 1) if axis == 0 else np.arange(taps)
    pixel = np.arange(pixels[axis]).reshape(-1, 1) if axis == 0 else np.arange(pixels[axis])
    t, count, batch = points.type, prod(pixels), points.shape[0]
    taps_of = np.broadcast_to(tap, kernel).reshape(-1, 1) * (hole + 1)
    at = taps_of + np.broadcast_to(pixel, pixels).reshape(1, -1) * step - pad
    places = node.held(at.reshape(1, 1, -1).astype(node.reader.numpy_of(t)))
    both = (batch, prod(kernel), 2, count)
    whole = node.between(Reshape(t, prod(both)), {"src": node.inputs[2]}, both)
    part = Slice(t, both, (0, 0, axis, 0), (1,) * 4, (*both[:2], 1, count))
    offsets = node.between(part, {"src": whole}, points.shape)
    work = Pointwise(t, (points.shape, (1, 1, at.size)), "add")
    return node.between(work, {"src_0": offsets, "src_1": places})


SAMPLES: dict[str, Callable[[GraphNode], None]] = {"GridSample": _grid_sample, "DeformConv": _deformed}
"""By ONNX's name, the function that adds the nodes of an operator."""
