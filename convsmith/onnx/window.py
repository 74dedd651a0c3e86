"""The attributes of ONNX's convolutions, and the problems that attributes and input shapes describe."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_word, integer, integers
from convsmith.frontend.transposed import transposed_problem, whole_size
from convsmith.problem.conv import Conv

__all__ = ["Numbers", "OnnxWindow", "OperandNames", "convolution", "transposed", "window"]

Numbers: TypeAlias = Sequence[int] | None

_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_MAX_RANK = 3
_KEPT = 1024


class OperandNames(NamedTuple):
    """An operator's names for its source and weights, for messages."""

    x: str
    w: str


class OnnxWindow(NamedTuple):
    """The attributes of a call; None for attributes that it omits."""

    auto_pad: str
    dilations: tuple[int, ...] | None
    group: int
    kernel_shape: tuple[int, ...] | None
    pads: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    output_padding: tuple[int, ...] | None
    output_shape: tuple[int, ...] | None

    def per_axis(self, name: str, rank: int, least: int, default: int) -> tuple[int, ...]:
        """Return the attribute `name`, which has one number per axis. UsageError if it has another count or a number
        below `least`.
        """
        value = getattr(self, name)
        return (default,) * rank if value is None else _counted(name, value, rank, least)

    def front_and_back(self, rank: int) -> list[tuple[int, int]]:
        """Return the explicit pads of each axis."""
        pads = (0,) * 2 * rank if self.pads is None else _counted("pads", self.pads, 2 * rank, 0)
        return list(zip(pads[:rank], pads[rank:]))


def window(
    auto_pad: str, dilations: Numbers, group: int, kernel_shape: Numbers, pads: Numbers, strides: Numbers,
    output_padding: Numbers = None, output_shape: Numbers = None,
) -> OnnxWindow:  # fmt: skip
    """Return the attributes of a call. UsageError if one is illegal irrespective of the input shapes."""
    name = auto_pad.decode(errors="replace") if isinstance(auto_pad, bytes) else auto_pad
    expect_word("auto_pad", name, _AUTO_PADS, "bad-padding")
    if pads is not None and name != "NOTSET":
        raise UsageError(f"auto_pad={name} and pads are both given; legal is one of them", code="bad-padding")
    if pads is not None and output_shape is not None:
        raise UsageError("output_shape and pads are both given; legal is one of them", code="bad-padding")
    groups = integer("group", group)
    if groups < 1:
        raise UsageError(f"group={groups} is not legal: expected at least 1", code="bad-groups")
    return OnnxWindow(
        name, _numbers("dilations", dilations), groups, _numbers("kernel_shape", kernel_shape),
        _numbers("pads", pads), _numbers("strides", strides), _numbers("output_padding", output_padding),
        _numbers("output_shape", output_shape),
    )  # fmt: skip


@lru_cache(_KEPT)
def convolution(
    names: OperandNames, x_shape: tuple[int, ...], w_shape: tuple[int, ...], window: OnnxWindow, **options: Any
) -> Conv:
    """Return the convolution of sources (N, C, *) with weights (M, C / group, *); `options` are further fields of
    `Conv`.
    """
    rank, k = _kernel(names, x_shape, w_shape, window)
    n, c, *i = x_shape
    m, per_group = w_shape[:2]
    g = window.group
    _check_channels(names, c, g, per_group * g, f"{names.w} has {per_group} for each of {g} groups")
    if m % g:
        raise UsageError(f"group={g} does not divide the {m} output channels of {names.w} (dim 0)", code="bad-groups")
    s, d = window.per_axis("strides", rank, 1, 1), window.per_axis("dilations", rank, 1, 1)
    pads = window.front_and_back(rank)
    o = []
    for axis, (size, taps, step, hole) in enumerate(zip(i, k, s, d)):
        span = (taps - 1) * hole + 1
        front, back = pads[axis]
        if window.auto_pad.startswith("SAME"):
            o.append(-(-size // step))
            front, back = pads[axis] = _split(max((o[-1] - 1) * step + span - size, 0), window.auto_pad == "SAME_UPPER")
        else:
            o.append((size + front + back - span) // step + 1)
        if o[-1] < 0 or (o[-1] == 0 and size > 0):
            raise UsageError(
                f"axis {axis}: the kernel spans {span} elements, {names.x} with its padding only "
                f"{size + front + back} ({front} + {size} + {back}); legal is a kernel that fits",
                code="bad-output-size",
            )
    return Conv(
        mb=n, ic=c, oc=m, i=tuple(i), o=tuple(o), k=k, s=s, d=tuple(hole - 1 for hole in d),
        p=tuple(front for front, _ in pads), g=g, has_groups=g > 1, **options,
    )  # fmt: skip


@lru_cache(_KEPT)
def transposed(
    names: OperandNames, x_shape: tuple[int, ...], w_shape: tuple[int, ...], window: OnnxWindow, **options: Any
) -> tuple[Conv, tuple[int, ...]]:
    """Return the deconvolution of sources (N, C, *) with weights (C, M / group, *), and the spatial shape of its
    output.
    """
    rank, k = _kernel(names, x_shape, w_shape, window)
    c, *i = x_shape[1:]
    g = window.group
    _check_channels(names, c, g, w_shape[0], f"{names.w} has {w_shape[0]} (dim 0)")
    s, d = window.per_axis("strides", rank, 1, 1), window.per_axis("dilations", rank, 1, 1)
    pads = window.front_and_back(rank)
    extra, shape = window.per_axis("output_padding", rank, 0, 0), window.per_axis("output_shape", rank, 1, 0)
    o, p = [], []
    for axis in range(rank):
        full = whole_size(i[axis], k[axis], s[axis], d[axis])
        limit = max(s[axis], d[axis])
        if extra[axis] >= limit:
            raise UsageError(
                f"output_padding={window.output_padding}: {extra[axis]} on axis {axis} is not below its stride "
                f"{s[axis]} or its dilation {d[axis]}; legal are 0 to {limit - 1}",
                code="bad-output-size",
            )
        front, back = pads[axis]
        size = full + extra[axis] - front - back
        if window.output_shape is not None or window.auto_pad.startswith("SAME"):
            size = i[axis] * s[axis] if window.output_shape is None else shape[axis]
            front, _ = _split(max(full + extra[axis] - size, 0), window.auto_pad == "SAME_UPPER")
        if size >= full + limit:
            raise UsageError(
                f"output_shape={window.output_shape}: {size} on axis {axis} is more than any padding explains; legal "
                f"are 1 to {full + limit - 1} ({full} without padding, and output padding below {limit})",
                code="bad-output-size",
            )
        if size < 1 and i[axis]:
            raise UsageError(
                f"axis {axis}: pads {front} and {back} leave nothing of {full + extra[axis]} elements; legal are pads "
                "that sum to less",
                code="bad-output-size",
            )
        o.append(size)
        p.append(front)
    return transposed_problem(x_shape, w_shape, g, s, d, p, o, **options), tuple(o)


def _kernel(
    names: OperandNames, x_shape: tuple[int, ...], w_shape: tuple[int, ...], window: OnnxWindow
) -> tuple[int, tuple[int, ...]]:
    """Return the number of spatial axes, and the extents of the kernel."""
    rank = len(x_shape) - 2
    if not 1 <= rank <= _MAX_RANK:
        raise UsageError(
            f"{names.x}: rank is {len(x_shape)}, shape {x_shape}; legal are 3 to {_MAX_RANK + 2}: (N, C, *spatial)",
            code="rank",
        )
    if len(w_shape) != len(x_shape):
        raise UsageError(
            f"{names.w}: rank is {len(w_shape)}, shape {w_shape}; legal is the rank of {names.x}, {len(x_shape)}",
            code="rank",
        )
    k = w_shape[2:]
    if window.kernel_shape is not None and window.kernel_shape != k:
        raise UsageError(
            f"kernel_shape={window.kernel_shape} is not that of {names.w}, shape {w_shape}; legal is {k}, or none",
            code="shape",
        )
    return rank, k


def _check_channels(names: OperandNames, channels: int, group: int, wanted: int, why: str) -> None:
    if channels % group:
        raise UsageError(f"group={group} does not divide the {channels} channels of {names.x}", code="bad-groups")
    if channels != wanted:
        raise UsageError(
            f"{names.x} has {channels} channels (dim 1), but {why}; legal are {wanted} channels of {names.x}",
            code="shape",
        )


def _split(total: int, upper: bool) -> tuple[int, int]:
    """Return front and back padding; `upper` puts the odd element at the back."""
    return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)


def _counted(name: str, value: tuple[int, ...], count: int, least: int) -> tuple[int, ...]:
    if len(value) != count:
        raise UsageError(f"{name}={value} has {len(value)} entries; legal are {count}", code="bad-dim")
    if min(value) < least:
        raise UsageError(f"{name}={value} is not legal: expected at least {least} everywhere", code="bad-dim")
    return value


def _numbers(name: str, value: Numbers) -> tuple[int, ...] | None:
    return None if value is None else integers(name, value)
