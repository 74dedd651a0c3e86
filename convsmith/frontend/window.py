"""`ConvOptions` holds the options of a convolution as PyTorch takes them, `ConvWindow` their values for each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import integer, shown
from convsmith.frontend.transposed import whole_size
from convsmith.problem.descriptor import AXES, output_size

__all__ = ["ConvOptions", "ConvWindow", "Ints", "coarse_sizes", "per_axis", "transposed_sizes", "window_of"]

Ints = tuple[int, ...]
_Pairs = tuple[tuple[int, int], ...]


class ConvOptions(NamedTuple):
    """The options of a call as they are passed; sequences must be tuples. A dilation of 1 is dense.

    `output_padding` applies to transposed convolutions.
    """

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: Any = 1
    activation: Any = None
    output_padding: Any = 0


class ConvWindow(NamedTuple):
    """Stride, padding, dilation and groups, with one entry for each spatial axis. A dilation of 1 is dense."""

    stride: Ints
    padding: _Pairs
    """(front, back) of each axis."""
    dilation: Ints
    groups: int


def window_of(kernel: Sequence[int], options: ConvOptions) -> ConvWindow:
    """Return the window of a call with weights of spatial shape `kernel`. UsageError names an option that is not legal.
    """
    rank, g = len(kernel), integer("groups", options.groups)
    if g < 1:
        raise UsageError(f"groups={g} is not legal: expected at least 1", code="bad-groups")
    s, d = per_axis("stride", options.stride, rank, 1), per_axis("dilation", options.dilation, rank, 1)
    return ConvWindow(s, _pads(options.padding, rank, s, d, kernel), d, g)


def coarse_sizes(sizes: Sequence[int], kernel: Sequence[int], window: ConvWindow) -> Ints:
    """Return the spatial shape of the convolution of a source of spatial shape `sizes`. UsageError if it is empty."""
    found = []
    for axis, (size, k, s, (front, back), d) in enumerate(zip(sizes, kernel, *window[:3])):
        extent = output_size(size, k, s, d - 1, front, back)
        if extent < 0 or (extent == 0 and size > 0):
            raise UsageError(
                f"axis {AXES[len(kernel)][axis]}: the kernel spans {(k - 1) * d + 1} elements, x with its padding only "
                f"{size + front + back} ({front} + {size} + {back}); legal is a kernel that fits",
                code="bad-output-size",
            )
        found.append(extent)
    return tuple(found)


def transposed_sizes(
    sizes: Sequence[int], kernel: Sequence[int], window: ConvWindow, options: ConvOptions
) -> Ints:
    """Return the spatial shape of the transposed convolution of a source of spatial shape `sizes`.

    UsageError if it is empty, or `options.output_padding` is not legal.
    """
    output_padding = per_axis("output_padding", options.output_padding, len(kernel), 0)
    found = []
    for axis, (size, k, s, (front, back), d, more) in enumerate(zip(sizes, kernel, *window[:3], output_padding)):
        letter = AXES[len(kernel)][axis]
        if more >= max(s, d):
            raise UsageError(
                f"output_padding={shown(output_padding)}: {more} on axis {letter} is not below its stride {s} or its "
                f"dilation {d}; legal are 0 to {max(s, d) - 1}",
                code="bad-output-size",
            )
        full = whole_size(size, k, s, d) + more
        if size and full - front - back < 1:
            raise UsageError(
                f"axis {letter}: padding {front} and {back} leaves nothing of {full} elements; legal is padding that "
                "sums to less",
                code="bad-output-size",
            )
        found.append(max(full - front - back, 0))
    return tuple(found)


def per_axis(name: str, value: Any, rank: int, least: int) -> Ints:
    """Return an argument as one integer for each axis. UsageError if one is below `least`, or their number is wrong."""
    values = value if isinstance(value, tuple) else (value,) * rank
    if len(values) != rank:
        raise UsageError(
            f"{name}={shown(value)} has {len(values)} entries; legal is a number, or {rank} of them", code="bad-dim"
        )
    numbers = tuple(integer(name, number) for number in values)
    if min(numbers) < least:
        raise UsageError(f"{name}={shown(value)} is not legal: expected at least {least} everywhere", code="bad-dim")
    return numbers


def _pads(padding: Any, rank: int, stride: Ints, dilation: Ints, kernel: Sequence[int]) -> _Pairs:
    """Return (front, back) padding of each axis."""
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * rank
        if padding != "same":
            message = f'padding={shown(padding)} is unknown: legal are "same", "valid", numbers'
            raise UsageError(message, code="bad-padding")
        if set(stride) != {1}:
            raise UsageError(f'padding="same" needs stride 1, not {stride}; legal are numbers', code="bad-padding")
        totals = [(k - 1) * d for k, d in zip(kernel, dilation)]
        return tuple((total // 2, total - total // 2) for total in totals)
    pairs = isinstance(padding, tuple) and any(isinstance(entry, tuple) for entry in padding)
    if not pairs:
        return tuple((p, p) for p in per_axis("padding", padding, rank, 0))
    if len(padding) != rank or any(not isinstance(entry, tuple) or len(entry) != 2 for entry in padding):
        raise UsageError(
            f"padding={shown(padding)} is not legal: expected a (front, back) pair for each of {rank} axes",
            code="bad-padding",
        )
    return tuple((front, back) for front, back in (per_axis("padding", pair, 2, 0) for pair in padding))
