"""Operators of ONNX on the order of elements along an axis, and on numbers of places, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, prod

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChangeType, ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pad import Pad
from convsmith.network.operators.pointwise import Pointwise, broadcast
from convsmith.network.operators.reduce import Reduce
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise

__all__ = ["ORDERS"]

_MOST = 128
"""Largest number of elements that TopK selects."""


def _axis(node: GraphNode, default: int, rank: int | None = None) -> int:
    """Return the axis of a node as a number from 0. UsageError if it does not exist."""
    given = int(node.attribute("axis", default))
    count = len(node.shape()) if rank is None else rank
    if not -count <= given < count:
        raise UsageError(f"axis {given} of {count}; legal are {-count} to {count - 1}", code="axis")
    return given % count


def _places(node: GraphNode, axis: int) -> str:
    """Return the numbers of the elements along an axis, which broadcast to the source."""
    shape = node.shape()
    numbers = np.arange(shape[axis], dtype=node.reader.numpy_of(node.type()))
    return node.held(numbers.reshape([-1 if n == axis else 1 for n in range(len(shape))]))


def _first_place(node: GraphNode, x: str, extreme: str, axis: int, is_last: bool = False) -> tuple[str, str]:
    """Return the extreme along an axis, and the number of its first element, or of its last one."""
    shape, t = node.shape(), node.type()
    one = tuple(1 if n == axis else size for n, size in enumerate(shape))
    along = tuple(size if n == axis else 1 for n, size in enumerate(shape))
    best = node.between(Reduce(extreme, t, shape, (axis,)), {"src": x})
    mask = node.between(Compare(t, (shape, one), "eq"), {"src_0": x, "src_1": best})
    beyond = np.full((1,) * len(shape), -1 if is_last else shape[axis], node.reader.numpy_of(t))
    masks = {"mask": mask, "yes": _places(node, axis), "no": node.held(beyond)}
    numbers = node.between(ChooseByMask(t, (shape, along, beyond.shape)), masks)
    return best, node.between(Reduce("max" if is_last else "min", t, shape, (axis,)), {"src": numbers})


def _arg(extreme: str, node: GraphNode) -> None:
    """Add the number of an extreme along an axis."""
    shape, axis = node.shape(), _axis(node, 0)
    _, place = _first_place(node, node.inputs[0], extreme, axis, bool(node.attribute("select_last_index", 0)))
    one = tuple(1 if n == axis else size for n, size in enumerate(shape))
    less = tuple(size for n, size in enumerate(shape) if n != axis)
    work = ChangeType(node.type(), "s32", one)
    node.add(work, {"src": place}, one if node.attribute("keepdims", 1) else less)


def _top(node: GraphNode) -> None:
    """Add the extremes one after the other: each replaces its element by one that is less than all others."""
    shape, t, axis, counts = node.shape(), node.type(), _axis(node, -1), node.constant(1)
    assert counts is not None
    count = int(counts.reshape(-1)[0])
    if not 1 <= count <= min(shape[axis], _MOST):
        raise UnsupportedError(f"k is {count} of {shape[axis]}; available are 1 to {_MOST}", code="k")
    extreme = "max" if node.attribute("largest", 1) else "min"
    one = tuple(1 if n == axis else size for n, size in enumerate(shape))
    along = tuple(size if n == axis else 1 for n, size in enumerate(shape))
    least = np.full((1,) * len(shape), -inf if extreme == "max" else inf, node.reader.numpy_of(t))
    x, places, out = node.inputs[0], _places(node, axis), node.held(least)
    found: tuple[list[str], list[str]] = ([], [])
    for n in range(count):
        for made, name in zip(found, _first_place(node, x, extreme, axis)):
            made.append(name)
        if n + 1 < count:
            mask = node.between(Compare(t, (along, one), "eq"), {"src_0": places, "src_1": found[1][-1]})
            masks = {"mask": mask, "yes": out, "no": x}
            x = node.between(ChooseByMask(t, (shape, least.shape, shape)), masks)
    result = tuple(count if n == axis else size for n, size in enumerate(shape))
    for n, parts in enumerate(found):
        if n < len(node.outputs) and node.outputs[n]:
            name = parts[0]
            if count > 1:
                joined = Concat.of(t, (one,) * count, axis)
                name = node.between(joined, {f"src_{k}": part for k, part in enumerate(parts)})
            work = ChangeType(t, "s32", result) if n else Reshape(t, prod(result))
            node.add(work, {"src": name}, result, n)


def _products_so_far(node: GraphNode) -> None:
    """Add products of the elements up to each place: of pairs of neighbours, then of fours, and so on."""
    shape, t, axes = node.shape(), node.type(), node.constant(1)
    assert axes is not None
    axis, x = int(axes.reshape(-1)[0]) % len(shape), node.inputs[0]

    def shifted(name: str, count: int) -> str:
        """Return the array with so many ones before the first element, or behind the last one."""
        pads = tuple(count if n == axis else 0 for n in range(len(shape)))
        less = tuple(-n for n in pads)
        before, after = (less, pads) if node.attribute("reverse", 0) else (pads, less)
        return node.between(Pad(t, shape, before, after, "constant", 1.0), {"src": name})

    if node.attribute("exclusive", 0):
        x = shifted(x, 1)
    count = 1
    while count < shape[axis]:
        x = node.between(Pointwise(t, (shape, shape), "mul"), {"src_0": x, "src_1": shifted(x, count)})
        count *= 2
    node.add(Reshape(t, prod(shape)), {"src": x}, shape)


def _sums_so_far(node: GraphNode) -> None:
    """Add sums of the elements up to each place, as a product with a triangle of ones."""
    shape, kind, axes = node.shape(), node.any_type(), node.constant(1)
    assert axes is not None
    axis, t = int(axes.reshape(-1)[0]) % len(shape), "f64" if kind == "f64" else "f32"
    size = shape[axis]
    ones = np.triu(np.ones((size, size), node.reader.numpy_of(t)), int(bool(node.attribute("exclusive", 0))))
    if node.attribute("reverse", 0):
        ones = ones[::-1, ::-1]
    x = node.inputs[0] if t == kind else node.between(ChangeType(kind, t, shape), {"src": node.inputs[0]})
    order = (*(n for n in range(len(shape)) if n != axis), axis)
    turned = tuple(shape[n] for n in order)
    x = node.between(Transpose(t, shape, order), {"src": x})
    factors = {"src": x, "wei": node.held(np.ascontiguousarray(ones))}
    x = node.between(Matmul(src=(prod(turned[:-1]), size), wei=(size, size), dt=(t, t, t)), factors, turned)
    back = Transpose(t, turned, tuple(order.index(n) for n in range(len(shape))))
    if t == kind:
        node.add(back, {"src": x})
    else:
        node.add(ChangeType(t, kind, shape), {"src": node.between(back, {"src": x})})


def _one_hot(node: GraphNode) -> None:
    """Add the second of two values at the places of numbers, and the first elsewhere."""
    shape, depths, values = node.shape(), node.constant(1), node.constant(2)
    assert depths is not None and values is not None
    depth, axis = int(depths.reshape(-1)[0]), _axis(node, -1, len(shape) + 1)
    kind = node.any_type()
    numbers = node.inputs[0]
    if kind != "f32":
        numbers = node.between(ChangeType(kind, "f32", shape or (1,)), {"src": numbers}, shape)
    wide = (*shape[:axis], 1, *shape[axis:])
    along = tuple(depth if n == axis else 1 for n in range(len(wide)))
    every = broadcast((wide, along))
    places = np.arange(depth, dtype=np.float32).reshape(along)
    hits = [node.between(Compare("f32", (wide, along), "eq"), {"src_0": numbers, "src_1": node.held(places + start)})
            for start in (0, -depth)]  # fmt: skip
    mask = node.between(Pointwise("u8", (every, every), "max"), {"src_0": hits[0], "src_1": hits[1]})
    off, on = (node.held(x.reshape(1)) for x in values)
    made = ChooseByMask(node.reader.value(on).type, (every, (1,), (1,)))
    node.add(made, {"mask": mask, "yes": on, "no": off}, every)


def _sign(node: GraphNode) -> None:
    """Add 1, 0 or -1."""
    shape, t = node.shape(), node.type()
    zero = node.held(np.zeros((1,), node.reader.numpy_of(t)))
    ends = []
    for word in ("gt", "lt"):
        mask = node.between(Compare(t, (shape, (1,)), word), {"src_0": node.inputs[0], "src_1": zero}, shape)
        ends.append(node.between(ChangeType("u8", t, shape), {"src": mask}, shape))
    node.add(Pointwise(t, (shape, shape), "sub"), {"src_0": ends[0], "src_1": ends[1]}, shape)


def _is_infinite(node: GraphNode) -> None:
    """Add whether elements are infinite, of one sign or of either."""
    shape, t, x = node.shape(), node.type(), node.inputs[0]
    signs = [sign for sign in ("positive", "negative") if node.attribute(f"detect_{sign}", 1)]
    if len(signs) == 2:
        x = node.between(Pointwise(t, (shape,), "", (Eltwise("abs"),)), {"src_0": x}, shape)
    wanted = {"positive": inf, "negative": -inf}[signs[0]] if signs else np.nan  # no element equals NaN
    bound = node.held(np.full((1,), wanted, node.reader.numpy_of(t)))
    node.add(Compare(t, (shape, (1,)), "eq"), {"src_0": x, "src_1": bound}, shape)


def _log_of_sum(node: GraphNode) -> None:
    """Add the logarithm of the sum of exponentials: of the distances from the largest element, plus that."""
    shape, t, given = node.shape() or (1,), node.type(), node.numbers(1, "axes")
    rank = len(node.shape())
    every = () if node.attribute("noop_with_empty_axes", 0) else range(rank)
    if any(not -rank <= n < rank for n in given or ()):
        raise UsageError(f"axes are {given}; legal are {-rank} to {rank - 1}", code="axis")
    axes = tuple(sorted(n % rank for n in given or every))
    one = tuple(1 if n in axes else size for n, size in enumerate(shape))
    most = node.between(Reduce("max", t, shape, axes), {"src": node.inputs[0]})
    away = node.between(Pointwise(t, (shape, one), "sub", (Eltwise("exp"),)), {"src_0": node.inputs[0], "src_1": most})
    total = node.between(Reduce("sum", t, shape, axes), {"src": away})
    log = node.between(Pointwise(t, (one,), "", (Eltwise("log"),)), {"src_0": total})
    keeps = node.attribute("keepdims", 1)
    result = [1 if n in axes else size for n, size in enumerate(node.shape()) if keeps or n not in axes]
    node.add(Pointwise(t, (one, one), "add"), {"src_0": log, "src_1": most}, result)


ORDERS: dict[str, Callable[[GraphNode], None]] = {
    "ArgMax": partial(_arg, "max"), "ArgMin": partial(_arg, "min"), "TopK": _top, "CumSum": _sums_so_far,
    "CumProd": _products_so_far,
    "OneHot": _one_hot, "Sign": _sign, "IsInf": _is_infinite, "ReduceLogSumExp": _log_of_sum,
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""
