"""The pools of ONNX as nodes of a graph: maxima and their places, means, norms, and their inverses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChooseByMask, Compare
from convsmith.network.operators.gather import GatherRows
from convsmith.network.operators.move import Reshape
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.pool import Pool
from convsmith.network.operators.pool_places import LARGEST_IMAGE, PoolPlaces
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.window import OnnxWindow, window
from convsmith.problem.post_ops import Eltwise

__all__ = ["POOLS", "window_of"]


def window_of(node: GraphNode) -> OnnxWindow:
    """Return the window that the attributes of a node state."""
    names = ("dilations", "kernel_shape", "pads", "strides", "output_padding", "output_shape")
    given = {name: node.attribute(name, None) for name in names}
    return window(auto_pad=node.attribute("auto_pad", "NOTSET"), group=node.attribute("group", 1), **given)


def _pool(kind: str, node: GraphNode) -> None:
    shape, sizes = node.shape(), _windows(node)
    if len(node.outputs) > 1 and node.outputs[1]:
        _max_pool_with_places(node, Pool(kind, node.type(), shape, *sizes))
    elif kind == "max":
        node.add_for_any(lambda t: Pool(kind, t, shape, *sizes))
    else:
        node.add(Pool(kind, node.type(), shape, *sizes), {"src": node.inputs[0]})


def _norm_pool(node: GraphNode) -> None:
    """Add the p-th root of the sum of the p-th powers of the sizes in each window."""
    shape, t, p = node.shape(), node.type(), float(node.attribute("p", 2))
    if p < 1:
        raise UsageError(f"p is {p:g}; legal are numbers from 1 on", code="attribute")
    size = (Eltwise("abs"),)
    before, after = {
        1.0: (size, ()), 2.0: ((Eltwise("square"),), (Eltwise("sqrt"),)),
    }.get(p, ((*size, Eltwise("pow", 1, p)), (Eltwise("pow", 1, 1 / p),)))  # fmt: skip
    powers = node.between(Pointwise(t, (shape,), "", before), {"src_0": node.inputs[0]}, shape)
    pool = Pool("sum", t, shape, *_windows(node))
    if not after:
        node.add(pool, {"src": powers})
        return
    sums = node.between(pool, {"src": powers})
    node.add(Pointwise(t, (pool.result.shape,), "", after), {"src_0": sums})


_Sizes = tuple[int, ...]


def _windows(node: GraphNode) -> tuple[_Sizes, _Sizes, _Sizes, _Sizes, _Sizes, _Sizes, bool]:
    """Return the sizes of a pool by its window: those of the result, the window, its strides and dilations, the pads
    before and behind, and whether pads count.
    """
    shape, w = node.shape(), window_of(node)
    rank = len(shape) - 2
    k = w.kernel_shape
    if k is None or len(k) != rank:
        raise UsageError(f"kernel_shape is {k}; legal are {rank} sizes", code="attribute")
    if min(k) < 1:
        raise UsageError(f"kernel_shape is {k}; legal are sizes of at least 1", code="attribute")
    s, d = w.per_axis("strides", rank, 1, 1), w.per_axis("dilations", rank, 1, 1)
    pads, o = w.front_and_back(rank), []
    for axis, (size, taps, step, hole) in enumerate(zip(shape[2:], k, s, d)):
        span = (taps - 1) * hole + 1
        front, back = pads[axis]
        if w.auto_pad.startswith("SAME"):
            o.append(-(-size // step))
            total = max((o[-1] - 1) * step + span - size, 0)
            front = total // 2 if w.auto_pad == "SAME_UPPER" else total - total // 2
            pads[axis] = front, total - front
            continue
        free = size + front + back - span
        count = free // step + 1
        if node.attribute("ceil_mode", 0) and free % step and count * step < size + front:
            count += 1  # a window that begins in the source, or in the pad before it
        if count < 1:
            raise UsageError(f"axis {axis}: the window spans {span} elements of {size}", code="bad-output-size")
        o.append(count)
    fronts, backs = (tuple(pair[n] for pair in pads) for n in (0, 1))
    counts = bool(node.attribute("count_include_pad", 0))
    return tuple(o), k, s, d, fronts, backs, counts


def _max_pool_with_places(node: GraphNode, pool: Pool) -> None:
    """Add the maxima of windows, and the numbers of their elements in the source."""
    elements, order = prod(pool.shape[2:]), node.attribute("storage_order", 0)
    if elements > LARGEST_IMAGE or order:
        raise UnsupportedError(
            f"places in images of {elements} elements with storage_order {order}; available are {LARGEST_IMAGE} "
            "elements with storage_order 0", code="places",
        )  # fmt: skip
    node.add(pool, {"src": node.inputs[0]})
    node.add(PoolPlaces(pool), {"src": node.inputs[0], "maxima": node.outputs[0]}, n=1)


def _global_pool(kind: str, node: GraphNode) -> None:
    shape = node.shape()
    rank = len(shape) - 2
    ones, none = (1,) * rank, (0,) * rank
    node.add(Pool(kind, node.type(), shape, ones, shape[2:], ones, ones, none, none), {"src": node.inputs[0]})


def _unpool(node: GraphNode) -> None:
    """Add an image with the elements of a smaller one at the places of maxima, and zeros elsewhere."""
    shape, t, w, given = node.shape(), node.any_type(), window_of(node), node.constant(2)
    rank, k = len(shape) - 2, w.kernel_shape
    if k is None or len(k) != rank or node.shape(1) != shape:
        raise UsageError(
            f"kernel_shape is {k}, shapes are {shape} and {node.shape(1)}; legal are {rank} sizes, and as many places "
            "as elements", code="attribute",
        )  # fmt: skip
    s, pads = w.per_axis("strides", rank, 1, 1), w.front_and_back(rank)
    result = (*shape[:2], *((i - 1) * step + taps - sum(pad) for i, step, taps, pad in zip(shape[2:], s, k, pads)))
    if given is not None and tuple(int(x) for x in given) != result:
        raise UnsupportedError(
            f"its output is {given.tolist()}; available is the size of its windows, {result}", code="shape"
        )
    places = node.reader.constants.get(node.inputs[1])
    if places is not None:
        _unpool_to_known(node, places, result)
    elif rank <= 2 and _finds_places(node, result, k):
        _unpool_by_windows(node, t, shape, result)
    else:
        raise UnsupportedError(
            "its places are values of a run; available are constants, and the places of a MaxPool of one or two axes "
            "in the same model, whose windows are these, lie side by side and cover its source", code="places",
        )  # fmt: skip


def _finds_places(node: GraphNode, result: Sequence[int], k: Sequence[int]) -> bool:
    """Return whether the places are those of a pool of images of the shape `result` with windows of `k` elements, which
    lie side by side.
    """
    for other in node.reader.nodes:
        if other.output == node.inputs[1] and isinstance(other.work, PoolPlaces):
            pool = other.work.pool
            sizes = (pool.shape, pool.k, pool.s, {*pool.d}, {*pool.p})
            return sizes == (tuple(result), tuple(k), tuple(k), {1}, {0})
    return False


def _unpool_to_known(node: GraphNode, places: Any, result: tuple[int, ...]) -> None:
    """Add the elements, selected by constant numbers; a number beyond the source selects zero."""
    count, size = prod(node.shape()), prod(result)
    if places.min() < 0 or places.max() >= size:
        raise UsageError(f"places are {places.min()} to {places.max()}; legal are 0 to {size - 1}", code="index")
    numbers = np.full(size, count, np.int32)
    numbers[places.reshape(-1)] = np.arange(count)
    work = GatherRows(node.any_type(), 1, count, 1, size)
    node.add(work, {"src": node.inputs[0], "places": node.held(numbers)}, result)


def _unpool_by_windows(node: GraphNode, t: str, shape: tuple[int, ...], result: tuple[int, ...]) -> None:
    """Add each window's element where its number is that of the place, and zeros elsewhere."""
    images = prod(shape[:2])
    near = (images, *(size for i in shape[2:] for size in (i, 1)))
    whole = (images, *(size for i, o in zip(shape[2:], result[2:]) for size in (i, o // i)))
    x, places = (
        node.between(Reshape(kind, prod(shape)), {"src": name}, near) for name, kind in zip(node.inputs, (t, "s32"))
    )
    numbers = node.held(np.arange(prod(result), dtype=np.int32).reshape(whole))
    zero = node.held(np.zeros((1,), node.reader.numpy_of(t)))
    mask = node.between(Compare("s32", (whole, near), "eq"), {"src_0": numbers, "src_1": places})
    node.add(ChooseByMask(t, (whole, near, (1,))), {"mask": mask, "yes": x, "no": zero}, result)


POOLS: dict[str, Callable[[GraphNode], None]] = {
    "MaxPool": partial(_pool, "max"), "AveragePool": partial(_pool, "mean"), "LpPool": _norm_pool,
    "GlobalMaxPool": partial(_global_pool, "max"), "GlobalAveragePool": partial(_global_pool, "mean"),
    "MaxUnpool": _unpool,
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""
