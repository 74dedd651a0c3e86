"""The operator of ONNX that writes keys and values of a step to their cache, as nodes of a graph: a selection among the
rows of two arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.network.operators.choice import ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.division import WholeDivision
from convsmith.network.operators.gather import GatherRows
from convsmith.network.operators.move import Reshape
from convsmith.network.operators.pointwise import Pointwise
from convsmith.onnx.graph_gather import numbers_of
from convsmith.onnx.graph_node import GraphNode

__all__ = ["CACHES"]

_MODES = ("linear", "circular")


def _written(node: GraphNode) -> None:
    """Add the cache with the rows of an update from a place on, one for each sample, or from the first row on."""
    shape, new, t = node.shape(), node.shape(1), node.any_type()
    axis, mode = int(node.attribute("axis", -2)), node.attribute("mode", _MODES[0])
    rank = len(shape)
    if not -rank < axis < rank or axis % rank == 0 or mode not in _MODES:
        raise UsageError(
            f"axis {axis} of {shape}, mode {mode!r}; legal are axes after the first one, and {', '.join(_MODES)}",
            code="attribute",
        )
    axis %= rank
    size, count = shape[axis], new[axis] if len(new) == rank else 0
    if new != (*shape[:axis], count, *shape[axis + 1 :]) or not 0 < count <= size:
        raise UsageError(f"an update of {new} for {shape}; legal are up to {size} rows, axis {axis}", code="shape")
    rows, rest = prod(shape[:axis]), prod(shape[axis + 1 :])
    samples, each = shape[0], rows // shape[0]
    joined = Concat.of(t, ((rows * size, rest), (rows * count, rest)), 0)
    both = node.between(joined, {"src_0": node.inputs[0], "src_1": node.inputs[1]})
    whole, one, first = (samples, each, size), (samples, 1, size), (samples, 1, 1)

    def between(work: Pointwise | Compare | WholeDivision, one: str, two: str) -> str:
        return node.between(work, {"src_0": one, "src_1": two})

    def number(n: int) -> str:
        return node.held(np.full((1, 1, 1), n, np.int32))

    kept = np.arange(rows * size, dtype=np.int32).reshape(whole)
    starts = rows * size + count * np.arange(rows, dtype=np.int32).reshape(samples, each, 1)
    at = node.held(np.zeros(first, np.int32))
    if node.has(2):
        at = node.between(Reshape("s32", samples), {"src": numbers_of(node, 2)}, first)
    along = node.held(np.arange(size, dtype=np.int32).reshape(1, 1, size))
    place = between(Pointwise("s32", ((1, 1, size), first), "sub"), along, at)
    if mode == "circular":
        place = between(WholeDivision("s32", (one, (1, 1, 1)), True, True), place, number(size))
    written = between(Pointwise("s32", (starts.shape, one), "add"), node.held(starts), place)
    below = between(Compare("s32", (one, (1, 1, 1)), "lt"), place, number(0))
    beyond = between(Compare("s32", (one, (1, 1, 1)), "ge"), place, number(count))
    for mask in (below, beyond):
        choice = {"mask": mask, "yes": node.held(kept), "no": written}
        written = node.between(ChooseByMask("s32", (one, whole, whole)), choice)
    numbers = node.between(Reshape("s32", rows * size), {"src": written}, (rows * size,))
    work = GatherRows(t, 1, rows * (size + count), rest, rows * size)
    node.add(work, {"src": both, "places": numbers}, shape)


CACHES: dict[str, Callable[[GraphNode], None]] = {"TensorScatter": _written}
"""By ONNX's name, the function that adds the nodes of an operator."""
