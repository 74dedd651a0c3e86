"""Means and maxima over the bins of regions of images, whose corners are values of a run, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChangeType, ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise, broadcast
from convsmith.network.operators.range_maximum import RangeMaximum
from convsmith.network.operators.sample import WeightedElements
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.post_ops import Eltwise

__all__ = ["REGIONS"]

_SHIFTS = {"half_pixel": -0.5, "output_half_pixel": 0.0}
"""Offsets of corners by the mode of their coordinates."""
_WITH_OFFSETS = 16
"""The first opset in which corners have an offset by default."""


class _RegionValues:
    """Adds element-wise nodes of a `node` on values with shapes, all of the type of its images."""

    def __init__(self, node: GraphNode) -> None:
        self._node, self.type = node, node.type()

    def shape(self, x: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self._node.reader.value(x).shape

    def held(self, numbers: object) -> str:
        """Return a constant."""
        return self._node.held(np.asarray(numbers, self._node.reader.numpy_of(self.type)))

    def steps(self, x: str, *steps: Eltwise) -> str:
        """Add element-wise steps."""
        return self._node.between(Pointwise(self.type, (self.shape(x),), "", steps), {"src_0": x})

    def two(self, alg: str, x: str, y: str) -> str:
        """Add an operation on two values, which broadcast."""
        work = Pointwise(self.type, (self.shape(x), self.shape(y)), alg)
        return self._node.between(work, {"src_0": x, "src_1": y})

    def where(self, comparison: str, x: str, y: str, yes: str, no: str) -> str:
        """Add the choice of `yes` where a comparison of two values holds."""
        shapes = (self.shape(x), self.shape(y))
        mask = self._node.between(Compare(self.type, shapes, comparison), {"src_0": x, "src_1": y})
        work = ChooseByMask(self.type, (broadcast(shapes), self.shape(yes), self.shape(no)))
        return self._node.between(work, {"mask": mask, "yes": yes, "no": no})


def _roi_align(node: GraphNode) -> None:
    """Add weighted sums of the elements around the samples in each bin of a region."""
    shape, rois = node.shape(), node.shape(1)
    height, width = node.attribute("output_height", 1), node.attribute("output_width", 1)
    ratio, mode = node.attribute("sampling_ratio", 0), node.attribute("mode", "avg")
    if len(shape) != 4 or len(rois) != 2 or rois[1] != 4 or node.shape(2) != rois[:1]:
        raise UsageError(
            f"shapes are {shape}, {rois} and {node.shape(2)}; legal are images, (regions, 4) and (regions,)",
            code="shape",
        )
    if mode != "avg" or ratio < 1:
        raise UnsupportedError(
            f"mode {mode!r} with sampling_ratio {ratio}; available are means with a sampling_ratio from 1 on",
            code="mode",
        )
    (n, c, h, w), count, values = shape, rois[0], _RegionValues(node)
    axes = [_samples(node, values, *row) for row in ((1, h, height, ratio), (0, w, width, ratio))]
    wide = (count, height, 1, ratio, 1), (count, 1, width, 1, ratio)
    numbered = ChangeType(node.any_type(2), values.type, (count,))
    first = node.between(numbered, {"src": node.inputs[2]}, (count, 1, 1, 1, 1))
    first = values.steps(first, Eltwise("linear", h * w))
    whole, places, weights = (count, height, width, ratio, ratio), list[str](), list[str]()
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            down, right, down_weight, right_weight = (
                node.between(Reshape(values.type, prod(part)), {"src": x}, part)
                for x, part in zip((row, column, row_weight, column_weight), wide * 2)
            )
            place = values.two("add", values.two("add", values.steps(down, Eltwise("linear", w)), right), first)
            places.append(place)
            weights.append(values.steps(values.two("mul", down_weight, right_weight), Eltwise("linear", ratio**-2)))
    terms, points = len(places) * ratio * ratio, count * height * width
    one = (1, terms, points)
    numbers = node.between(ChangeType(values.type, "s32", one), {"src": _terms_first(node, values, places, whole)}, one)
    factors = node.between(Reshape(values.type, prod(one)), {"src": _terms_first(node, values, weights, whole)}, one)
    images = node.inputs[0]
    if n > 1:
        images = node.between(Transpose(values.type, (n, c, h * w), (1, 0, 2)), {"src": images}, (1, c, n * h * w))
    work = WeightedElements(values.type, 1, c, n * h * w, points, terms)
    arguments = {"src": images, "places": numbers, "weights": factors}
    found = node.between(work, arguments, (c, count, height * width))
    node.add(Transpose(values.type, (c, count, height * width), (1, 0, 2)), {"src": found}, (count, c, height, width))


def _samples(
    node: GraphNode, values: _RegionValues, axis: int, size: int, bins: int, ratio: int
) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the two elements around each sample of an axis, of (regions, bins * ratio), and their weights, which are 0
    for samples more than one element outside of the image.
    """
    default = "half_pixel" if node.opset >= _WITH_OFFSETS else "output_half_pixel"
    mode = node.attribute("coordinate_transformation_mode", default)
    if mode not in _SHIFTS:
        words = f"coordinate_transformation_mode {mode!r}; available are {', '.join(_SHIFTS)}"
        raise UnsupportedError(words, code="mode")
    count, scale = node.shape(1)[0], node.attribute("spatial_scale", 1.0)
    corners = []
    for place in (axis, axis + 2):
        column = Slice(values.type, (count, 4), (0, place), (1, 1), (count, 1))
        corner = node.between(column, {"src": node.inputs[1]})
        corners.append(values.steps(corner, Eltwise("linear", scale, _SHIFTS[mode])))
    low, high = corners
    extent = values.two("sub", high, low)
    if mode == "output_half_pixel":
        extent = values.two("max", extent, values.held([1.0]))
    within = (np.arange(bins)[:, None] + (np.arange(ratio) + 0.5) / ratio).reshape(1, -1) / bins
    x = values.two("add", values.two("mul", extent, values.held(within)), low)
    zero, last, one = values.held([0.0]), values.held([size - 1]), values.held([1.0])
    is_inside = values.where("lt", x, values.held([-1.0]), zero, one)
    is_inside = values.where("gt", x, values.held([size]), zero, is_inside)
    x = values.two("min", values.two("max", x, zero), last)
    down = values.steps(x, Eltwise("floor"))
    up = values.two("min", values.steps(down, Eltwise("linear", 1, 1)), last)
    part = values.two("sub", x, down)
    rest = values.steps(part, Eltwise("linear", -1, 1))
    return (down, values.two("mul", rest, is_inside)), (up, values.two("mul", part, is_inside))


def _terms_first(node: GraphNode, values: _RegionValues, parts: list[str], whole: tuple[int, ...]) -> str:
    """Return values for each sample of each bin, of the shape `whole`, with the samples before the bins."""
    joined = Concat.of(values.type, ((1, *whole),) * len(parts), 0)
    x = node.between(joined, {f"src_{n}": part for n, part in enumerate(parts)}, (len(parts), *whole))
    return node.between(Transpose(values.type, (len(parts), *whole), (0, 4, 5, 1, 2, 3)), {"src": x})


def _max_roi_pool(node: GraphNode) -> None:
    """Add the maxima over rows, then over columns, of each bin of a region."""
    shape, rois, sizes = node.shape(), node.shape(1), node.attribute("pooled_shape", ())
    if len(shape) != 4 or len(rois) != 2 or rois[1] != 5 or len(sizes) != 2 or min(sizes) < 1:
        raise UsageError(
            f"shapes are {shape} and {rois}, with pooled_shape {sizes}; legal are images, (regions, 5) and two sizes",
            code="shape",
        )
    (n, c, h, w), count, values, (rows, columns) = shape, rois[0], _RegionValues(node), sizes
    t = values.type
    images = node.between(Slice(t, rois, (0, 0), (1, 1), (count, 1)), {"src": node.inputs[1]})
    numbers = node.between(ChangeType(t, "s32", (count,)), {"src": images}, (count,))
    down, right = (_ranges(node, values, *row) for row in ((2, h, rows), (1, w, columns)))
    by_rows = RangeMaximum(t, n, c, h, w, count, rows)
    arguments = {"src": node.inputs[0], "places": numbers, "first": down[0], "last": down[1]}
    found = node.between(by_rows, arguments)
    by_columns = RangeMaximum(t, count, c * rows, w, 1, count, columns)
    own = node.held(np.arange(count, dtype=np.int32))
    arguments = {"src": found, "places": own, "first": right[0], "last": right[1]}
    node.add(by_columns, arguments, (count, c, rows, columns))


def _ranges(node: GraphNode, values: _RegionValues, axis: int, size: int, bins: int) -> tuple[str, str]:
    """Return the first element of each bin of a region along an axis of `size` elements, and the one behind the last,
    of (regions, bins). A region has the elements of both corners, which are rounded, halves away from zero.
    """
    count, scale, corners = node.shape(1)[0], node.attribute("spatial_scale", 1.0), list[str]()
    zero, half = values.held([0.0]), values.held([0.5])
    for place in (axis, axis + 2):
        column = Slice(values.type, (count, 5), (0, place), (1, 1), (count, 1))
        x = values.steps(node.between(column, {"src": node.inputs[1]}), Eltwise("linear", scale))
        far = values.steps(x, Eltwise("abs"))
        whole = values.steps(far, Eltwise("floor"))
        next_whole = values.steps(whole, Eltwise("linear", 1, 1))
        far = values.where("ge", values.two("sub", far, whole), half, next_whole, whole)
        corners.append(values.where("lt", x, zero, values.steps(far, Eltwise("linear", -1)), far))
    low, high = corners
    extent = values.two("max", values.steps(values.two("sub", high, low), Eltwise("linear", 1, 1)), values.held([1.0]))
    step = values.two("div", extent, values.held([bins]))
    ends = []
    for first, rounded in ((0, ()), (1, (Eltwise("linear", -1),))):
        along = values.two("mul", step, values.held([np.arange(first, bins + first)]))
        along = values.steps(along, *rounded, Eltwise("floor"), *rounded)  # upwards for the end
        ends.append(values.steps(values.two("add", along, low), Eltwise("clip", 0, size)))
    return ends[0], ends[1]


REGIONS: dict[str, Callable[[GraphNode], None]] = {"RoiAlign": _roi_align, "MaxRoiPool": _max_roi_pool}
"""By ONNX's name, the function that adds the nodes of an operator."""
