"""Shapes, parts, pads and resizes of PyTorch's programs, by operators of ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.torch.aten_call import AtenCall, AtenRow

__all__ = ["MOVES_OF_ATEN"]


def _reshape(call: AtenCall) -> None:
    """Emit a view in the shape of the result."""
    call.reshaped(call.source, call.result.shape)


def _permute(call: AtenCall) -> None:
    call.emit("Transpose", [call.source], perm=call.axes("dims"))


def _exchange(call: AtenCall) -> None:
    rank = len(call.shape)
    one, two = (call.get("dim0"), call.get("dim1")) if call.get("dim0") is not None else (rank - 2, rank - 1)
    axes = [*range(rank)]
    if rank > 1:
        axes[one], axes[two] = axes[two], axes[one]
    call.emit("Transpose", [call.source], perm=tuple(axes))


def _joined(call: AtenCall, names: Sequence[str], axis: int) -> None:
    if len(names) == 1:
        call.emit("Identity", names)
    else:
        call.emit("Concat", names, axis=axis)


def _cat(call: AtenCall) -> None:
    dtype = call.result.dtype
    names = [call.operand(x, dtype) for x in call.get("tensors") if x.meta["val"].numel()]
    _joined(call, names, call.get("dim") % len(call.result.shape))


def _stack(call: AtenCall) -> None:
    axis = call.get("dim") % len(call.result.shape)
    one = (*call.result.shape[:axis], 1, *call.result.shape[axis + 1 :])
    _joined(call, [call.reshaped(call.name(x), one, between=True) for x in call.get("tensors")], axis)


# -- parts ------------------------------------------------------------------------------------------------------------


def _slice(call: AtenCall, axis: int, start: int, end: int, step: int = 1, n: int | None = None, between: bool = False
) -> str:
    numbers = (call.whole([x]) for x in (start, end, axis, step))
    return call.emit("Slice", [call.source, *numbers], n=n, between=between)


def _sliced(call: AtenCall) -> None:
    (axis,) = call.axes()
    start, end, step = (call.get(name) for name in ("start", "end", "step"))
    size = call.shape[axis]
    if call.get("length") is not None:
        end, step = start + call.get("length"), 1
    _slice(call, axis, 0 if start is None else start, size if end is None else min(end, size), step)


def _select(call: AtenCall) -> None:
    (axis,) = call.axes()
    call.emit("Gather", [call.source, call.whole(call.get("index"))], axis=axis)


def _split(call: AtenCall) -> None:
    (axis,) = call.axes()
    ends = [0, *accumulate(x.shape[axis] for x in call.node.meta["val"])]
    for n, (start, end) in enumerate(pairwise(ends)):
        _slice(call, axis, start, end, n=n)


def _unbind(call: AtenCall) -> None:
    (axis,) = call.axes()
    for n in range(call.shape[axis]):
        call.emit("Gather", [call.source, call.whole(n)], axis=axis, n=n)


def _index(call: AtenCall) -> None:
    """Emit the selection by one array of constant numbers."""
    given = [(axis, x) for axis, x in enumerate(call.get("indices")) if x is not None]
    if len(given) != 1 or call.name(given[0][1]) not in call.reader.constants:
        raise UnsupportedError("available is one array of constant numbers", code="constant")
    ((axis, numbers),) = given
    held = call.reader.constants[call.name(numbers)]
    if held.dtype == np.bool_:
        raise UnsupportedError("numbers are truth values; available are whole numbers", code="dtype")
    call.emit("Gather", [call.source, call.name(numbers)], axis=axis)


def _index_select(call: AtenCall) -> None:
    (axis,) = call.axes()
    call.emit("Gather", [call.source, call.name(call.get("index"))], axis=axis)


def _rolled(call: AtenCall) -> None:
    name, shape = call.source, call.shape
    axes, moves = call.axes("dims"), call.get("shifts")
    pairs = [*zip(axes, moves if isinstance(moves, list | tuple) else [moves])]
    for n, (axis, move) in enumerate(pairs):
        numbers = call.held((np.arange(shape[axis]) - move) % shape[axis])
        name = call.emit("Gather", [name, numbers], axis=axis, between=n < len(pairs) - 1)


def _flipped(call: AtenCall) -> None:
    name, axes = call.source, call.axes("dims")
    for n, axis in enumerate(axes):
        numbers = call.held(np.arange(call.shape[axis])[::-1].copy())
        name = call.emit("Gather", [name, numbers], axis=axis, between=n < len(axes) - 1)


def _expand(call: AtenCall) -> None:
    call.emit("Expand", [call.source, call.whole(call.result.shape)])


def _repeat(call: AtenCall) -> None:
    times = call.get("repeats") or call.get("dims")
    wide = call.reshaped(call.source, (1,) * (len(times) - len(call.shape)) + call.shape, between=True)
    call.emit("Tile", [wide, call.whole(times)])


def _repeat_each(call: AtenCall) -> None:
    times, axes = call.get("repeats"), call.axes()
    if not isinstance(times, int) or call.get("dim") is None:
        raise UnsupportedError("available is one number of repeats, along a dim", code="operator")
    call.repeated(call.source, axes[0], times)


# -- pads and resizes -------------------------------------------------------------------------------------------------


def _padded(mode: str | None, call: AtenCall) -> None:
    pads, rank = call.get("pad") or call.get("padding"), len(call.shape)
    before, after = [0] * rank, [0] * rank
    for n in range(len(pads) // 2):
        before[rank - 1 - n], after[rank - 1 - n] = pads[2 * n], pads[2 * n + 1]
    kind = mode or {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[
        call.get("mode")
    ]
    inputs = [call.source, call.whole([*before, *after])]
    if kind == "constant":
        inputs.append(call.operand(call.get("value") or 0, call.result.dtype))
    call.emit("Pad", inputs, mode=kind)


def _resized(mode: str, rounding: str, call: AtenCall) -> None:
    """Emit a resize to the shape of the result; places follow from factors, if they are given, as in PyTorch."""
    sizes, factors = call.result.shape, call.get("scale_factors")
    if call.get("align_corners"):
        way = "align_corners"
    else:
        way = "half_pixel" if mode == "linear" or rounding == "round_prefer_ceil" else "asymmetric"
    nearest_mode = rounding if mode == "nearest" else None
    inputs = [call.source, "", "", call.whole(sizes)]
    if factors and all(f * i == o for f, i, o in zip(factors, call.shape[2:], sizes[2:])):
        inputs = [call.source, "", call.held(np.array([1, 1, *factors], np.float32))]
    elif factors:
        raise UnsupportedError(f"factors {factors} give no whole sizes; available are sizes", code="size")
    call.emit("Resize", inputs, mode=mode, coordinate_transformation_mode=way, nearest_mode=nearest_mode)


def _shuffled(call: AtenCall) -> None:
    call.emit("DepthToSpace", [call.source], blocksize=call.get("upscale_factor"), mode="CRD")


def _unshuffled(call: AtenCall) -> None:
    n, c, h, w = call.shape
    size = call.get("downscale_factor")
    apart = call.reshaped(call.source, (n, c, h // size, size, w // size, size), between=True)
    turned = call.emit("Transpose", [apart], perm=(0, 1, 3, 5, 2, 4), between=True)
    call.reshaped(turned, call.result.shape)


def _channels_shuffled(call: AtenCall) -> None:
    n, c, *pixels = call.shape
    groups = call.get("groups")
    apart = call.reshaped(call.source, (n, groups, c // groups, prod(pixels)), between=True)
    turned = call.emit("Transpose", [apart], perm=(0, 2, 1, 3), between=True)
    call.reshaped(turned, call.shape)


_SHAPES = ("view", "reshape", "_unsafe_view", "view_as", "flatten", "unflatten", "squeeze", "unsqueeze")

MOVES_OF_ATEN: dict[str, AtenRow] = {
    **dict.fromkeys(_SHAPES, _reshape), "permute": _permute, "transpose": _exchange, "t": _exchange, "mT": _exchange,
    "cat": _cat, "concat": _cat, "stack": _stack, "slice": _sliced, "narrow": _sliced, "select": _select,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split), "unbind": _unbind,
    "index": _index, "index_select": _index_select, "roll": _rolled, "flip": _flipped,
    "expand": _expand, "expand_as": _expand, "repeat": _repeat, "tile": _repeat,
    "repeat_interleave": _repeat_each,
    "constant_pad_nd": partial(_padded, "constant"), "pad": partial(_padded, None),
    **{f"reflection_pad{rank}d": partial(_padded, "reflect") for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d": partial(_padded, "edge") for rank in (1, 2, 3)},
    **{f"upsample_nearest{rank}d": partial(_resized, "nearest", "floor") for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d": partial(_resized, "nearest", "round_prefer_ceil") for rank in (1, 2, 3)},
    **{f"upsample_{name}": partial(_resized, "linear", "") for name in ("linear1d", "bilinear2d", "trilinear3d")},
    "pixel_shuffle": _shuffled, "pixel_unshuffle": _unshuffled, "channel_shuffle": _channels_shuffled,
}  # fmt: skip
"""By ATen's name, the function that emits a call."""
