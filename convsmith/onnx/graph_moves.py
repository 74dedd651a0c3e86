"""The operators of ONNX that move elements, reduce axes, or convert types, as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.norm import FACTORS, GroupNorm, RowNorm
from convsmith.network.operators.pad import MODES, Pad
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.quantise import Dequantise, Quantise
from convsmith.network.operators.reduce import Reduce
from convsmith.network.operators.slice import Slice
from convsmith.network.operators.softmax import Softmax
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.post_ops import Eltwise
from convsmith.runtime.arrays import Array

__all__ = ["MOVES"]

_MAX_RANK = 6
"""Largest number of dims of an array of a kernel."""


def _axes(given: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return axes as numbers from 0. UsageError if one does not exist."""
    for axis in given:
        if not -rank <= axis < rank:
            raise UsageError(f"axis {axis} of {rank}; legal are {-rank} to {rank - 1}", code="axis")
    return tuple(axis % rank for axis in given)


# -- shapes -----------------------------------------------------------------------------------------------------------


def _reshaped(shape_of: Callable[[GraphNode], tuple[int, ...]], node: GraphNode) -> None:
    """Add a view of the same elements in another shape."""
    shape = shape_of(node)
    if prod(shape) != prod(node.shape()):
        raise UsageError(f"{node.shape()} does not become {shape}; legal are as many elements", code="shape")
    node.add(Reshape(node.any_type(), prod(shape)), {"src": node.inputs[0]}, shape)


def _flattened(node: GraphNode) -> tuple[int, ...]:
    shape, axis = node.shape(), node.attribute("axis", 1)
    if axis != len(shape):  # all axes may be rows
        (axis,) = _axes([axis], len(shape))
    return prod(shape[:axis]), prod(shape[axis:])


def _as_given(node: GraphNode) -> tuple[int, ...]:
    wanted = node.numbers(1, "shape") or ()
    old = node.shape()
    copies = not node.attribute("allowzero", 0)
    if copies and any(size == 0 and n >= len(old) for n, size in enumerate(wanted)):
        raise UsageError(f"the shape {wanted} copies a size that {old} lacks", code="shape")
    sizes = [old[n] if size == 0 and copies else size for n, size in enumerate(wanted)]
    if -1 in sizes:
        known = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = prod(old) // known if known else 0
    return tuple(sizes)


def _squeezed(node: GraphNode) -> tuple[int, ...]:
    shape = node.shape()
    axes = node.numbers(1, "axes")
    gone = [n for n, size in enumerate(shape) if size == 1] if axes is None else _axes(axes, len(shape))
    return tuple(size for n, size in enumerate(shape) if n not in gone)


def _unsqueezed(node: GraphNode) -> tuple[int, ...]:
    axes = node.numbers(1, "axes") or ()
    rank = len(node.shape()) + len(axes)
    new, old = {*_axes(axes, rank)}, iter(node.shape())
    return tuple(1 if n in new else next(old) for n in range(rank))


def _same(node: GraphNode) -> tuple[int, ...]:
    return node.shape()


def _dropped(node: GraphNode) -> tuple[int, ...]:
    training = node.constant(2)
    ratio = node.constant(1) if training is not None and training.any() else np.zeros(())
    if ratio is None or ratio.any():
        raise UnsupportedError("training_mode=1 drops elements at random; available is inference", code="training")
    if len(node.outputs) > 1 and node.outputs[1]:
        node.reader.constants[node.outputs[1]] = np.ones(node.shape(), bool)
    return node.shape()


# -- parts ------------------------------------------------------------------------------------------------------------


def _transpose(node: GraphNode) -> None:
    shape = node.shape()
    axes = _axes(node.attribute("perm", None) or tuple(reversed(range(len(shape)))), len(shape))
    if sorted(axes) != [*range(len(shape))]:
        raise UsageError(f"perm is {axes}; legal is each axis of {len(shape)} once", code="axis")
    result = tuple(shape[axis] for axis in axes)
    if not shape:
        shape, axes = (1,), (0,)
    if len(shape) > _MAX_RANK:
        shape, axes = _joined(shape, axes)
    node.add(Transpose(node.any_type(), shape, axes), {"src": node.inputs[0]}, result)


def _joined(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a shape and axes whose transpose moves elements in the same way: axes that stay adjacent are one."""
    series: list[list[int]] = []
    for axis in axes:
        if series and axis == series[-1][-1] + 1:
            series[-1].append(axis)
        else:
            series.append([axis])
    order = sorted(series)
    return tuple(prod(shape[axis] for axis in one) for one in order), tuple(order.index(one) for one in series)


def _concat(node: GraphNode) -> None:
    shapes = tuple(node.shape(n) for n in range(len(node.inputs)))
    (axis,) = _axes([node.attribute("axis", 0)], len(shapes[0]))
    for shape in shapes:
        if len(shape) != len(shapes[0]) or any(n != axis and a != b for n, (a, b) in enumerate(zip(shape, shapes[0]))):
            raise UsageError(f"shapes are {shapes[0]} and {shape}; legal are equal ones but along {axis}", code="shape")
    filled = [n for n, shape in enumerate(shapes) if shape[axis]]
    shapes = tuple(shapes[n] for n in filled)
    if len(shapes) == 1:
        node.add(Reshape(node.any_type(), prod(shapes[0])), {"src": node.inputs[filled[0]]}, shapes[0])
        return
    arguments = {f"src_{k}": node.inputs[n] for k, n in enumerate(filled)}
    node.add(Concat.of(node.any_type(), shapes, axis), arguments)


def _slice(node: GraphNode) -> None:
    shape = node.shape()
    starts, ends = node.numbers(1, "starts"), node.numbers(2, "ends")
    assert starts is not None and ends is not None
    axes = _axes(node.numbers(3, "axes", tuple(range(len(starts)))) or (), len(shape))
    steps = node.numbers(4, "steps", (1,) * len(starts)) or ()
    if 0 in steps:
        raise UsageError(f"steps are {steps}; legal are all numbers but 0", code="steps")
    whole = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps):
        whole[axis] = slice(start, None if step < 0 and end < -shape[axis] else end, step)
    ranges = [range(*s.indices(size)) for s, size in zip(whole, shape)]
    _part(node, 0, ranges)


def _part(node: GraphNode, n: int, ranges: Sequence[range]) -> None:
    """Add output `n`, the elements of the first input in `ranges`."""
    starts, steps, sizes = (tuple(f(r) for r in ranges) for f in (lambda r: r.start, lambda r: r.step, len))
    if 0 in sizes:  # a later concatenation leaves it out
        node.reader.constants[node.outputs[n]] = np.zeros(sizes, node.reader.numpy_of(node.any_type()))
        return
    work = Slice(node.any_type(), node.shape(), starts, steps, sizes)
    node.add(work, {"src": node.inputs[0]}, n=n)


def _split(node: GraphNode) -> None:
    shape, count = node.shape(), len(node.outputs)
    (axis,) = _axes([node.attribute("axis", 0)], len(shape))
    each = -(-shape[axis] // count)
    sizes = node.numbers(1, "split") or tuple(max(min(each, shape[axis] - n * each), 0) for n in range(count))
    if min(sizes) < 0 or sum(sizes) != shape[axis]:
        raise UsageError(f"sizes are {sizes}; legal are parts of {shape[axis]} elements, axis {axis}", code="split")
    start = 0
    for n, size in enumerate(sizes):
        _part(node, n, [range(start, start + size) if k == axis else range(i) for k, i in enumerate(shape)])
        start += size


def _pad(node: GraphNode) -> None:
    shape, pads, value = node.shape(), node.numbers(1, "pads"), node.constant(2)
    mode = node.attribute("mode", "constant")
    assert pads is not None
    axes = _axes(node.numbers(3, "axes", tuple(range(len(shape)))) or (), len(shape))
    if mode not in MODES:
        raise UnsupportedError(f"mode {mode!r}; available are {', '.join(MODES)}", code="mode")
    before, after = ([0] * len(shape) for _ in range(2))
    for n, axis in enumerate(axes):
        before[axis], after[axis] = pads[n], pads[n + len(axes)]
    limits = [size - (mode == "reflect") for size in shape]
    if mode in ("reflect", "wrap") and any(max(b, a) > most for b, a, most in zip(before, after, limits)):
        raise UnsupportedError(
            f"pads of mode {mode} exceed the sizes {shape}; available are pads within them", code="pads"
        )
    sizes = tuple(b + size + a for b, size, a in zip(before, shape, after))
    if min(sizes, default=0) < 0:
        raise UsageError(f"pads leave {sizes} of {shape}; legal are pads that leave 0 elements or more", code="pads")
    number = node.attribute("value", 0.0) if value is None else float(value.reshape(-1)[0])
    node.add_for_any(lambda t: Pad(t, shape, tuple(before), tuple(after), mode, number))


# -- reductions and norms ---------------------------------------------------------------------------------------------


def _reduced(
    kind: str, node: GraphNode, steps: tuple[Eltwise, ...] = (), before: tuple[Eltwise, ...] = ()
) -> None:  # fmt: skip
    """Add a reduction, and element-wise steps on its source and on its result."""
    shape, source = node.shape(), node.inputs[0]
    if before:
        source = node.between(Pointwise(node.type(), (shape,), "", before), {"src_0": source}, shape)
    axes = node.numbers(1, "axes")
    has_none = not axes and node.attribute("noop_with_empty_axes", 0)
    own = () if has_none else _axes(axes or tuple(range(len(shape))), len(shape))
    kept = tuple(1 if n in own else size for n, size in enumerate(shape))
    less = tuple(size for n, size in enumerate(shape) if n not in own)
    result = kept if node.attribute("keepdims", 1) else less
    work = Reduce(kind, node.type(), shape or (1,), tuple(sorted(own)))
    if not steps:
        node.add(work, {"src": source}, result)
        return
    inner = node.between(work, {"src": source}, result)
    node.add(Pointwise(node.type(), (result,), "", steps), {"src_0": inner}, result)


def _softmax(node: GraphNode) -> None:
    shape = node.shape()
    (axis,) = _axes([node.attribute("axis", -1)], len(shape))
    sizes = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    node.add(Softmax(node.type(), sizes, node.operator == "LogSoftmax"), {"src": node.inputs[0]}, shape)


def _row_norm(node: GraphNode) -> None:
    """Add the norm over the last axes."""
    if any(node.outputs[1:]):
        raise UnsupportedError("it returns means too; available is the normalised value alone", code="output")
    shape = node.shape()
    (first,) = _axes([node.attribute("axis", -1)], len(shape))
    sizes = (prod(shape[:first]), prod(shape[first:]))
    factors = _factors(node, lambda x: np.broadcast_to(x, shape[first:]).reshape(-1))
    work = RowNorm(node.type(), sizes, node.attribute("epsilon", 1e-5), tuple(factors))
    node.add(work, {"src": node.inputs[0], **factors}, shape)


def _channel_norm(node: GraphNode) -> None:
    """Add the norm of each channel, or of groups of them, over all pixels."""
    shape = node.shape()
    groups = node.attribute("num_groups", shape[1])
    factors = _factors(node, lambda x: np.repeat(x, shape[1] // x.size))
    work = GroupNorm(node.type(), shape, node.attribute("epsilon", 1e-5), tuple(factors), groups=groups)
    node.add(work, {"src": node.inputs[0], **factors})


def _factors(node: GraphNode, whole: Callable[[Array], Array]) -> dict[str, str]:
    """Return the arguments of a norm, whose factors become `whole`: one for each column or channel."""
    return {
        name: node.moved(n, lambda x: np.ascontiguousarray(whole(x)))
        for n, name in enumerate(FACTORS, 1)
        if node.constant(n) is not None
    }


# -- bytes ------------------------------------------------------------------------------------------------------------


def _converted(to_bytes: bool, node: GraphNode) -> None:
    """Add a conversion from or to bytes."""
    shape, scale, point = node.shape(), node.constant(1), node.constant(2)
    assert scale is not None
    byte = {"uint8": "u8", "int8": "s8"}
    kind = str(point.dtype) if point is not None else "uint8" if to_bytes else node.any_type()
    type_ = byte.get(kind, kind)
    if type_ not in byte.values() or scale.dtype != np.float32:
        raise UnsupportedError(
            f"bytes are {kind}, scales {scale.dtype}; available are u8 and s8, with scales of f32", code="dtype"
        )
    axis = 0
    if scale.size > 1:
        (axis,) = _axes([node.attribute("axis", 1)], len(shape))
        if scale.shape != (shape[axis],) or node.attribute("block_size", 0):
            raise UnsupportedError(f"scales are {scale.shape}; available are one, or {shape[axis]}", code="scales")
    zeros = np.zeros(scale.size, np.float32) if point is None else point.astype(np.float32).reshape(-1)
    arguments = {
        "src": node.inputs[0], "scale": node.held(scale.reshape(-1)),
        "zero_point": node.held(np.broadcast_to(zeros, (scale.size,)).copy()),
    }  # fmt: skip
    made = Quantise if to_bytes else Dequantise
    node.add(made(type_, shape or (1,), scale.size, axis), arguments, shape)


MOVES: dict[str, Callable[[GraphNode], None]] = {
    "Flatten": partial(_reshaped, _flattened), "Reshape": partial(_reshaped, _as_given),
    "Squeeze": partial(_reshaped, _squeezed), "Unsqueeze": partial(_reshaped, _unsqueezed),
    "Identity": partial(_reshaped, _same), "Dropout": partial(_reshaped, _dropped),
    "Transpose": _transpose, "Concat": _concat, "Slice": _slice, "Split": _split, "Pad": _pad,
    "ReduceMean": partial(_reduced, "mean"), "ReduceSum": partial(_reduced, "sum"),
    "ReduceMax": partial(_reduced, "max"), "ReduceMin": partial(_reduced, "min"),
    "ReduceProd": partial(_reduced, "prod"), "ReduceSumSquare": partial(_reduced, "sum_square"),
    "ReduceL2": partial(_reduced, "sum_square", steps=(Eltwise("sqrt"),)),
    "ReduceLogSum": partial(_reduced, "sum", steps=(Eltwise("log"),)),
    "ReduceL1": partial(_reduced, "sum", before=(Eltwise("abs"),)),
    "Softmax": _softmax, "LogSoftmax": _softmax,
    "LayerNormalization": _row_norm, "InstanceNormalization": _channel_norm, "GroupNormalization": _channel_norm,
    "QuantizeLinear": partial(_converted, True), "DequantizeLinear": partial(_converted, False),
}  # fmt: skip
"""By ONNX's name, the function that adds the nodes of an operator."""
