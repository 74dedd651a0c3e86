"""The conditions under which XNNPACK tests each depthwise micro-kernel, as plain numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

DATA = json.loads((Path(__file__).parents[1] / "data" / "XNNPACK_dwconv.json").read_text())


@dataclass(frozen=True)
class Case:
    """``step`` is the distance of outputs in pointers (1: a kernel's), ``pitch`` that of outputs in elements."""

    test: str
    channels: int
    kernel_size: int
    width: int = 1
    step: int = 1
    pitch: int = 0
    offset: int = 0
    zero_index: int | None = None
    low: float = 0.0
    high: float = 1.0
    points: tuple[int, int] = (1, 2)


def next_prime(n: int) -> int:
    n += 1
    while n < 2 or any(n % q == 0 for q in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def unipass(tile: int, taps: int, zero_points: bool = False) -> Iterator[Case]:
    div = range(2 * tile, tile * 16, tile * 3)
    above = range(tile + 1, 10 if tile == 1 else 2 * tile)
    multi = range(1, tile * 5 + 1, max(1, tile - 1))

    def each(test: str, channels: Iterable[int], **more: object) -> Iterator[Case]:
        for c in channels:
            yield replace(Case(test, c, taps), **more)  # type: ignore[arg-type]

    yield from each("c_eq", [tile])
    yield from each("c_div", div)
    yield from each("c_div_qmin", div, low=0.5)
    yield from each("c_div_qmax", div, high=0.5)
    yield from each("c_lt", range(1, tile))
    yield from each("c_gt", above)
    yield from each("c_gt_qmin", above, low=0.5)
    yield from each("c_gt_qmax", above, high=0.5)
    yield from each("multipixel", multi, width=3)
    for step in range(2, taps + 1):
        yield from each("multipixel_step", multi, width=3, step=step)
    yield from each("multipixel_output_stride", multi, width=5, pitch=next_prime(tile * 5 + 1))
    yield from each("multipixel_qmin", multi, width=3, low=0.5)
    yield from each("multipixel_qmax", multi, width=3, high=0.5)
    if zero_points:
        yield from each("input_zero_point_only", multi, width=3, points=(255, 0))
        yield from each("kernel_zero_point_only", multi, width=3, points=(0, 255))
    offset = next_prime(tile + 1) * 16
    yield from each("input_offset", div, offset=offset)
    for index in range(0, taps, max(1, taps // 3)):
        yield from each("zero", div, offset=offset, zero_index=index)
    for size in {1, taps // 2, taps - 1} - {0}:
        for c in multi:
            yield Case("smaller_kernel", c, size, width=3)


def multipass(first: int, middle: int, last: int, tile: int) -> Iterator[Case]:
    sizes = {
        "first_pass_plus_one": [first + 1], "first_and_last_pass": [first + last],
        "multipass": range(first + middle + last, first + 2 * middle + last + 1),
    }  # fmt: skip
    div = range(2 * tile, tile * 16 + 1, tile * 3)
    above = range(tile + 1, (10 if tile == 1 else 2 * tile) + 1)
    multi = range(1, tile * 5 + 2, max(1, tile - 1))

    def each(test: str, channels: Iterable[int], kernels: Iterable[int], **more: object) -> Iterator[Case]:
        for k in kernels:
            for c in channels:
                yield replace(Case(test, c, k), **more)  # type: ignore[arg-type]

    for name, kernels in sizes.items():
        yield from each(f"c_eq_{name}", [tile], kernels)
        yield from each(f"c_div_{name}", div, kernels)
        yield from each(f"c_gt_{name}", above, kernels)
        yield from each(f"multipixel_{name}", multi, kernels, width=3)
    yield from each("c_div_qmin", div, [first + last], low=0.5)
    yield from each("c_div_qmax", div, [first + last], high=0.5)
    for step in range(2, first + 2):
        yield from each("multipixel_step", multi, sizes["multipass"], width=3, step=step)
    yield from each("multipixel_output_stride", multi, sizes["multipass"], width=5, pitch=next_prime(tile * 5 + 1))
    yield from each("input_offset", div, sizes["multipass"], offset=next_prime(tile + 1) * 16)
    yield from each("one_tap", multi, [1], width=2)
