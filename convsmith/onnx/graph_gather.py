"""The operators of ONNX that select elements by constant numbers, or regroup channels and pixels, as nodes of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode

__all__ = ["GATHERS", "runs"]

_MOST = 64
"""Maximum number of parts that a selection of elements joins."""


def runs(numbers: Sequence[int]) -> list[range]:
    """Return the series of equal steps, as long as possible, of which whole numbers consist.

    >>> runs([0, 2, 4, 5, 6])
    [range(0, 6, 2), range(5, 7)]
    """
    found: list[range] = []
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 1
        if step == 0:
            found.append(range(numbers[at], numbers[at] + 1))
            at += 1
            continue
        end = at + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        found.append(range(numbers[at], numbers[end - 1] + (1 if step > 0 else -1), step))
        at = end
    return found


def _gather(node: GraphNode) -> None:
    """Add the elements along an axis with constant numbers: parts of the array, joined."""
    shape, t, picked = node.shape(), node.any_type(), node.constant(1)
    given, rank = node.attribute("axis", 0), len(shape)
    if picked is None or not -rank <= given < rank:
        raise UsageError(f"axis {given} of {rank}; legal are {-rank} to {rank - 1}", code="axis")
    axis = given % rank
    numbers = [int(x) for x in picked.reshape(-1)]
    if wrong := [x for x in numbers if not -shape[axis] <= x < shape[axis]]:
        raise UsageError(f"number {wrong[0]} of {shape[axis]} elements along axis {axis}", code="index")
    parts = runs([x % shape[axis] for x in numbers])
    if not numbers or len(parts) > _MOST:
        raise UnsupportedError(
            f"{len(numbers)} numbers are {len(parts)} series of equal steps; available are 1 to {_MOST}", code="numbers"
        )
    result = (*shape[:axis], *picked.shape, *shape[axis + 1 :])

    def part(r: range) -> Slice:
        starts, steps, sizes = ([fill] * rank for fill in (0, 1, 0))
        starts[axis], steps[axis] = r.start, r.step
        sizes = [len(r) if n == axis else size for n, size in enumerate(shape)]
        return Slice(t, shape, tuple(starts), tuple(steps), tuple(sizes))

    source = {"src": node.inputs[0]}
    works = [part(r) for r in parts]
    if len(works) == 1 and works[0].sizes == result:
        node.add(works[0], source)
        return
    made = [node.between(work, source) for work in works]
    joined = made[0]
    if len(works) > 1:
        whole = Concat.of(t, tuple(work.sizes for work in works), axis)
        joined = node.between(whole, {f"src_{n}": name for n, name in enumerate(made)})
    node.add(Reshape(t, prod(result)), {"src": joined}, result)


def _regrouped(to_pixels: bool, node: GraphNode) -> None:
    """Add the move of blocks of channels to blocks of pixels, or back."""
    shape, t, size = node.shape(), node.any_type(), node.attribute("blocksize", 0)
    if len(shape) != 4 or size < 1:
        raise UsageError(f"blocksize {size} of {shape}; legal are blocks of two axes of images", code="attribute")
    n, c, h, w = shape
    if c % size**2 if to_pixels else h % size or w % size:
        raise UsageError(f"{shape} does not consist of whole blocks of {size}", code="shape")
    if to_pixels:
        c //= size**2
        is_depth_first = node.attribute("mode", "DCR") == "DCR"
        split = (n, size, size, c, h, w) if is_depth_first else (n, c, size, size, h, w)
        axes = (0, 3, 4, 1, 5, 2) if is_depth_first else (0, 1, 4, 2, 5, 3)
        result = (n, c, h * size, w * size)
    else:
        split, axes = (n, c, h // size, size, w // size, size), (0, 3, 5, 1, 2, 4)
        result = (n, c * size**2, h // size, w // size)
    apart = node.between(Reshape(t, prod(shape)), {"src": node.inputs[0]}, split)
    turned = node.between(Transpose(t, split, axes), {"src": apart})
    node.add(Reshape(t, prod(shape)), {"src": turned}, result)


GATHERS: dict[str, Callable[[GraphNode], None]] = {
    "Gather": _gather, "DepthToSpace": partial(_regrouped, True), "SpaceToDepth": partial(_regrouped, False),
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""
