"""The operators of ONNX that select elements by numbers, or regroup channels and pixels, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChangeType, ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.expand import Expand
from convsmith.network.operators.gather import GatherElements, GatherRows
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode

__all__ = ["GATHERS", "numbers_of", "runs"]

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
    """Add the elements along an axis by their numbers. Constant numbers select parts of the array, which are joined."""
    shape, t, axis = node.shape(), node.any_type(), _axis(node)
    rank, picked = len(shape), node.reader.constants.get(node.inputs[1])
    if picked is None:
        _gather_in_a_run(node, axis)
        return
    numbers = [int(x) for x in picked.reshape(-1)]
    if wrong := [x for x in numbers if not -shape[axis] <= x < shape[axis]]:
        raise UsageError(f"number {wrong[0]} of {shape[axis]} elements along axis {axis}", code="index")
    parts = runs([x % shape[axis] for x in numbers])
    if not numbers:
        raise UnsupportedError("it selects no element; available are selections of some", code="numbers")
    if len(parts) > _MOST:
        _gather_in_a_run(node, axis)
        return
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


def _axis(node: GraphNode) -> int:
    """Return the axis of a node as a number from 0. UsageError if it does not exist."""
    given, rank = int(node.attribute("axis", 0)), len(node.shape())
    if not -rank <= given < rank:
        raise UsageError(f"axis {given} of {rank}; legal are {-rank} to {rank - 1}", code="axis")
    return given % rank


def numbers_of(node: GraphNode, n: int = 1) -> str:
    """Return input `n` as whole numbers of 32 bits."""
    t, shape = node.any_type(n), node.shape(n)
    if t == "s32":
        return node.inputs[n]
    return node.between(ChangeType(t, "s32", shape or (1,)), {"src": node.inputs[n]}, shape)


def _gather_in_a_run(node: GraphNode, axis: int) -> None:
    """Add rows that whole numbers of a run select."""
    shape, picked = node.shape(), node.shape(1)
    work = GatherRows(node.any_type(), prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), prod(picked))
    result = (*shape[:axis], *picked, *shape[axis + 1 :])
    node.add(work, {"src": node.inputs[0], "places": numbers_of(node)}, result)


def _gather_elements(node: GraphNode) -> None:
    """Add the element at each number along an axis."""
    shape, picked, axis = node.shape(), node.shape(1), _axis(node)
    if len(shape) != len(picked) or any(n != axis and b > a for n, (a, b) in enumerate(zip(shape, picked))):
        raise UsageError(f"shapes are {shape} and {picked}; legal are numbers within the array", code="shape")
    work = GatherElements(node.any_type(), shape, picked, axis)
    node.add(work, {"src": node.inputs[0], "places": numbers_of(node)})


def _reversed(node: GraphNode) -> None:
    """Add the elements of each sample in reverse order along the axis of time, up to the length of the sample."""
    shape, axes = node.shape(), (node.attribute("time_axis", 0), node.attribute("batch_axis", 1))
    if sorted(axes) != [0, 1] or len(shape) < 2 or node.shape(1) != (shape[axes[1]],):
        raise UsageError(
            f"shapes are {shape} and {node.shape(1)}, axes {axes}; legal are the first two axes, and one length for "
            "each sample", code="shape",
        )  # fmt: skip
    time, batch = axes
    along, one = ([1] * len(shape) for _ in range(2))
    along[time], one[batch] = shape[time], shape[batch]
    whole = tuple(max(a, b) for a, b in zip(along, one))
    places = node.held(np.arange(shape[time], dtype=np.int32).reshape(along))
    lengths = node.between(Reshape("s32", shape[batch]), {"src": numbers_of(node)}, one)
    last = node.between(Pointwise("s32", (tuple(one), (1,)), "sub"), _two(lengths, node.held(np.ones(1, np.int32))))
    back = node.between(Pointwise("s32", (tuple(one), tuple(along)), "sub"), _two(last, places))
    is_within = node.between(Compare("s32", (whole, (1,)), "ge"), _two(back, node.held(np.zeros(1, np.int32))))
    masks = {"mask": is_within, "yes": back, "no": places}
    own = node.between(ChooseByMask("s32", (whole, whole, tuple(along))), masks)
    every = node.between(Expand("s32", whole, shape), {"src": own}) if whole != shape else own
    node.add(GatherElements(node.any_type(), shape, shape, time), {"src": node.inputs[0], "places": every})


def _gather_nd(node: GraphNode) -> None:
    """Add the parts at several coordinates each, which become one number."""
    shape, picked, batch = node.shape(), node.shape(1), node.attribute("batch_dims", 0)
    count = picked[-1] if picked else 0
    if not 1 <= count <= len(shape) - batch or shape[:batch] != picked[:batch]:
        raise UsageError(f"coordinates are {picked} of {shape}; legal are 1 to {len(shape) - batch}", code="shape")
    sizes, rest, result = shape[batch : batch + count], shape[batch + count :], (*picked[:-1], *shape[batch + count :])
    if batch and prod(shape[:batch]) > 1:
        raise UnsupportedError("batch_dims have several elements; available is one", code="batch")
    numbers, each = numbers_of(node), prod(picked[:-1])
    total = ""
    for n, size in enumerate(sizes):
        part = node.between(Slice("s32", (each, count), (0, n), (1, 1), (each, 1)), {"src": numbers}, (each,))
        whole = node.held(np.full(1, size, np.int32))
        behind = node.between(Pointwise("s32", ((each,), (1,)), "add"), _two(part, whole))
        zero = node.held(np.zeros(1, np.int32))
        below = node.between(Compare("s32", ((each,), (1,)), "lt"), _two(part, zero))
        masks = {"mask": below, "yes": behind, "no": part}
        own = node.between(ChooseByMask("s32", ((each,),) * 3), masks)
        step = node.held(np.full(1, prod(sizes[n + 1 :]), np.int32))
        own = node.between(Pointwise("s32", ((each,), (1,)), "mul"), _two(own, step))
        total = own if not total else node.between(Pointwise("s32", ((each,), (each,)), "add"), _two(total, own))
    work = GatherRows(node.any_type(), 1, prod(sizes), prod(rest), each)
    node.add(work, {"src": node.inputs[0], "places": total}, result)


def _two(first: str, second: str) -> dict[str, str]:
    return {"src_0": first, "src_1": second}


def _regrouped(to_pixels: bool, node: GraphNode) -> None:
    """Add the move of blocks of channels to blocks of pixels, or back."""
    shape, t, size = node.shape(), node.any_type(), node.attribute("blocksize", 0)
    if len(shape) != 4 or size < 1:
        raise UsageError(f"blocksize {size} of {shape}; legal are blocks of two axes of images", code="attribute")
    n, c, h, w = shape
    if c % size**2 if to_pixels else h % size or w % size:
        raise UsageError(f"{shape} does not consist of whole blocks of {size}", code="shape")
    is_depth_first = node.attribute("mode", "DCR") == "DCR"
    if to_pixels:
        c //= size**2
        split = (n, size, size, c, h, w) if is_depth_first else (n, c, size, size, h, w)
        axes = (0, 3, 4, 1, 5, 2) if is_depth_first else (0, 1, 4, 2, 5, 3)
        result = (n, c, h * size, w * size)
    else:
        split = (n, c, h // size, size, w // size, size)
        axes = (0, 3, 5, 1, 2, 4) if is_depth_first else (0, 1, 3, 5, 2, 4)
        result = (n, c * size**2, h // size, w // size)
    apart = node.between(Reshape(t, prod(shape)), {"src": node.inputs[0]}, split)
    turned = node.between(Transpose(t, split, axes), {"src": apart})
    node.add(Reshape(t, prod(shape)), {"src": turned}, result)


def _scatter(by_element: bool, node: GraphNode) -> None:
    """Add an array with rows of another one at constant places: a selection among the rows of both."""
    shape, t, places = node.shape(), node.any_type(), node.constant(1)
    assert places is not None
    numbered: Any = places
    if wrong := [int(x) for x in numbered.reshape(-1) if not -max(shape) <= x < max(shape)]:
        raise UsageError(f"number {wrong[0]} of {shape}", code="index")
    if node.attribute("reduction", "none") != "none":
        words = "it reduces elements at one place; available are elements that replace"
        raise UnsupportedError(words, code="reduction")
    every = np.arange(prod(shape)).reshape(shape)
    if by_element:
        axis = _axis(node)
        at: list[Any] = list(np.indices(numbered.shape))
        at[axis] = np.where(numbered < 0, numbered + shape[axis], numbered)
        size, rows = 1, every[tuple(at)].reshape(-1)
    else:
        depth = places.shape[-1]
        size = prod(shape[depth:])
        rows = every[tuple(np.moveaxis(places, -1, 0))].reshape(-1, size)[:, 0] // size
    count = prod(shape) // size
    numbers = np.arange(count)
    numbers[rows] = count + np.arange(len(rows))
    joined = Concat.of(t, ((count, size), (len(rows), size)), 0)
    both = node.between(joined, {"src_0": node.inputs[0], "src_1": node.inputs[2]})
    work = GatherRows(t, 1, count + len(rows), size, count)
    node.add(work, {"src": both, "places": node.held(numbers)}, shape)


GATHERS: dict[str, Callable[[GraphNode], None]] = {
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "ReverseSequence": _reversed,
    "ScatterND": partial(_scatter, False), "ScatterElements": partial(_scatter, True),
    "DepthToSpace": partial(_regrouped, True), "SpaceToDepth": partial(_regrouped, False),
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""
