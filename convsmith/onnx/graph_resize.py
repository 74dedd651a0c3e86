"""Resizes of ONNX as nodes of a graph: by places of elements, or as products with matrices of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChooseByMask
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.resize import ROUNDINGS, Resize
from convsmith.onnx.graph_expansions import OUTER
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.matmul import Matmul

__all__ = ["RESIZES"]

_MAX_PERIOD = 1 << 12
"""Largest denominator of a factor of sizes."""
_MODES = ("nearest", "linear", "cubic")
_CROP = "tf_crop_and_resize"


class _ResizedAxis(NamedTuple):
    """An axis of `old` elements that becomes one of `new`, by a `factor`; `crop` is the region of the source that is
    resized, from 0, its first element, to 1, its last one.
    """

    old: int
    new: int
    factor: Fraction
    crop: tuple[float, float] = (0.0, 1.0)


def _half_pixel(a: _ResizedAxis, x: int) -> float:
    return (x + 0.5) / float(a.factor) - 0.5


def _symmetric(a: _ResizedAxis, x: int) -> float:
    return _half_pixel(a, x) + a.old / 2 - a.new / (2 * float(a.factor))


def _cropped(a: _ResizedAxis, x: int) -> float:
    start, end = a.crop
    if a.new == 1:
        return (start + end) / 2 * (a.old - 1)
    return start * (a.old - 1) + x * (end - start) * (a.old - 1) / (a.new - 1)


_PLACES: dict[str, Callable[[_ResizedAxis, int], float]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda a, x: _half_pixel(a, x) if a.new > 1 else 0.0,
    "asymmetric": lambda a, x: x / float(a.factor),
    "align_corners": lambda a, x: x * (a.old - 1) / (a.new - 1) if a.new > 1 else 0.0,
    _CROP: _cropped,
}
"""The place of element x of the result in the source, by the mode of coordinates."""


def _resize(node: GraphNode) -> None:
    mode, way = node.attribute("mode", "nearest"), node.attribute("coordinate_transformation_mode", "half_pixel")
    if mode not in _MODES:
        raise UnsupportedError(f"mode {mode!r}; available are {', '.join(_MODES)}", code="mode")
    if way not in _PLACES:
        legal = ", ".join(_PLACES)
        raise UnsupportedError(f"coordinate_transformation_mode {way!r}; available are {legal}", code="mode")
    axes = _resized_axes(node, way)
    if mode == "cubic" or way == _CROP or node.attribute("antialias", 0):
        _resize_by_matrices(node, axes, way)
        return
    rounding = node.attribute("nearest_mode", "round_prefer_floor") if mode == "nearest" else "linear"
    above = [rounding == OUTER and a.factor < 1 for a in axes]
    if rounding == OUTER:
        rounding = "floor"
    if rounding not in (*ROUNDINGS, "linear"):
        raise UsageError(f"nearest_mode is {rounding!r}; legal are {', '.join(ROUNDINGS)}", code="mode")
    exact = (_exact_place(way, a) for a in axes)
    places = tuple((a, b + (c - 1) * is_above, c) for (a, b, c), is_above in zip(exact, above))
    sizes = tuple(a.new for a in axes)
    node.add_for_any(lambda t: Resize(t, node.shape(), sizes, places, rounding))


def _resized_axes(node: GraphNode, way: str) -> list[_ResizedAxis]:
    """Return all axes with their sizes and factors. The node may state those of some `axes` alone."""
    shape, scales, wanted = node.shape(), node.constant(2), node.numbers(3, "sizes")
    rank = len(shape)
    given = node.attribute("axes", None)
    own = [int(n) for n in (range(rank) if given is None else given)]
    if any(not -rank <= n < rank for n in own) or len({n % rank for n in own}) < len(own):
        raise UsageError(f"axes are {own}; legal are different ones from {-rank} to {rank - 1}", code="axis")
    found = [_ResizedAxis(i, i, Fraction(1)) for i in shape]
    crops = _crops(node, len(own)) if way == _CROP else [(0.0, 1.0)] * len(own)
    if wanted and len(wanted) == len(own):
        pairs = [(o, Fraction(o, shape[n])) for o, n in zip(wanted, own)]
        if (policy := node.attribute("keep_aspect_ratio_policy", "stretch")) != "stretch":
            pairs = _with_one_factor(policy, [shape[n] for n in own], [factor for _, factor in pairs])
    elif scales is not None and scales.size == len(own):
        if not all(0 < float(x) < np.inf for x in scales):
            raise UsageError(f"scales are {scales.tolist()}; legal are positive numbers", code="scales")
        factors = [Fraction(float(x)).limit_denominator(_MAX_PERIOD) for x in scales]
        spans = [end - start for start, end in crops]
        pairs = [(int(shape[n] * (float(x) * span)), f) for n, x, f, span in zip(own, scales, factors, spans)]
    else:
        raise UnsupportedError(
            f"it has neither scales nor sizes, one for each of {len(own)} axes, that are constants", code="constant"
        )
    for n, (new, factor), crop in zip(own, pairs, crops):
        found[n] = _ResizedAxis(shape[n], new, factor, crop)
    return found


def _with_one_factor(policy: str, old: Sequence[int], factors: Sequence[Fraction]) -> list[tuple[int, Fraction]]:
    """Return sizes and factors by the least, or the most, of several factors; halves of elements are rounded up."""
    ways: dict[str, Callable[[Sequence[Fraction]], Fraction]] = {"not_larger": min, "not_smaller": max}
    if policy not in ways:
        raise UsageError(
            f"keep_aspect_ratio_policy is {policy!r}; legal are stretch, {', '.join(ways)}", code="attribute"
        )
    factor = ways[policy](factors)
    return [(int(i * factor + Fraction(1, 2)), factor) for i in old]


def _crops(node: GraphNode, count: int) -> list[tuple[float, float]]:
    """Return the start and the end of the region that is resized, for each axis."""
    region = node.constant(1)
    if region is None or region.size != 2 * count:
        raise UsageError(f"roi has no {2 * count} numbers; legal are starts, then ends, of each axis", code="roi")
    numbers = [float(x) for x in region.reshape(-1)]
    return list(zip(numbers[:count], numbers[count:]))


def _exact_place(way: str, axis: _ResizedAxis) -> tuple[int, int, int]:
    """Return the numbers a, b and c with which element x lies at (a * x + b) / c of the source."""
    q, p = axis.factor.denominator, axis.factor.numerator
    if axis.old == axis.new and axis.factor == 1:
        return 1, 0, 1
    if way == "asymmetric":
        return q, 0, p
    if way == "half_pixel_symmetric":
        return 2 * q, q - p + axis.old * p - axis.new * q, 2 * p
    if way == "half_pixel" or (way == "pytorch_half_pixel" and axis.new > 1):
        return 2 * q, q - p, 2 * p
    return (axis.old - 1, 0, axis.new - 1) if way == "align_corners" and axis.new > 1 else (0, 0, 1)


# -- matrices ---------------------------------------------------------------------------------------------------------


def _resize_by_matrices(node: GraphNode, axes: Sequence[_ResizedAxis], way: str) -> None:
    """Add a resize as a product with a matrix along each axis that changes. Elements beyond the source of a region that
    is cut out have a value of their own.
    """
    shape, t, x = node.shape(), node.type(), node.inputs[0]
    beyond = np.zeros([a.new for a in axes], bool)
    for axis, a in enumerate(axes):
        places = [_PLACES[way](a, n) for n in range(a.new)]
        if places == [*range(a.old)]:
            continue
        order = (*(n for n in range(len(shape)) if n != axis), axis)
        turned = tuple(shape[n] for n in order)
        if order != tuple(range(len(shape))):
            x = node.between(Transpose(t, shape, order), {"src": x})
        wei = _weights(node, a, places).astype(node.reader.numpy_of(t))
        shape = (*shape[:axis], a.new, *shape[axis + 1 :])
        made = (*turned[:-1], a.new)
        work = Matmul(src=(prod(turned[:-1]), a.old), wei=(a.old, a.new), dt=(t, t, t))
        x = node.between(work, {"src": x, "wei": node.held(wei)}, made)
        if order != tuple(range(len(shape))):
            x = node.between(Transpose(t, made, tuple(order.index(n) for n in range(len(shape)))), {"src": x})
        if way == _CROP:
            outside = np.array([not 0 <= place <= a.old - 1 for place in places])
            beyond |= outside.reshape([-1 if n == axis else 1 for n in range(len(axes))])
    if beyond.any():
        value = np.full((1,), node.attribute("extrapolation_value", 0.0), node.reader.numpy_of(t))
        masks = {"mask": node.held(beyond), "yes": node.held(value), "no": x}
        node.add(ChooseByMask(t, (shape, (1,), shape)), masks)
    else:
        node.add(Reshape(t, prod(shape)), {"src": x}, shape)


def _weights(node: GraphNode, axis: _ResizedAxis, places: Sequence[float]) -> np.ndarray[Any, Any]:
    """Return the matrix with which a product resizes rows along an axis."""
    mode, excludes = node.attribute("mode", "nearest"), node.attribute("exclude_outside", 0)
    wide = max(1.0, 1 / float(axis.factor)) if node.attribute("antialias", 0) else 1.0
    reach = (2 if mode == "cubic" else 1) * wide
    found = np.zeros((axis.old, axis.new))
    for x, place in enumerate(places):
        if mode == "nearest":
            near, weights = np.array([_nearest(node, place)]), np.ones(1)
        else:
            near = np.arange(int(np.floor(place - reach)) + 1, int(np.floor(place + reach)) + 1)
            d = np.abs(near - place) / wide
            weights = _cubic(d, node.attribute("cubic_coeff_a", -0.75)) if mode == "cubic" else np.maximum(1 - d, 0)
        if excludes:
            weights = np.where((near >= 0) & (near < axis.old), weights, 0)
        np.add.at(found[:, x], np.clip(near, 0, axis.old - 1), weights / weights.sum())
    return found


def _nearest(node: GraphNode, place: float) -> int:
    ways: dict[str, float] = {
        "floor": np.floor(place), "ceil": np.ceil(place), "round_prefer_floor": np.ceil(place - 0.5),
        "round_prefer_ceil": np.floor(place + 0.5),
    }  # fmt: skip
    way = node.attribute("nearest_mode", "round_prefer_floor")
    if way not in ways:
        raise UsageError(f"nearest_mode is {way!r}; legal are {', '.join(ways)}", code="mode")
    return int(ways[way])


def _cubic(d: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """Return the weights of elements at distances `d`."""
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, inner, np.where(d < 2, outer, 0))


RESIZES: dict[str, Callable[[GraphNode], None]] = {"Resize": _resize}
"""By ONNX's name, the function that adds the nodes of an operator."""
