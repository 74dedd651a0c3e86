"""Make the blocks of a buffer's layout its dims: a coordinate becomes one digit for each block.

The memory stays as it is. Where loops are tiled as the layout is blocked, each digit is the variable of one loop, and
the footprint of a tile is a number of whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import floordiv, mod
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.walk import statements_of
from convsmith.layout.block import LayoutBlock
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Place, Relocate
from convsmith.passes.scope import with_body

Digit = tuple[int, int]
"""A dim of the buffer, and the number of values of one digit of its coordinates."""


def _place(index: Place, digits: Sequence[Digit]) -> Place:
    """Return the digits of the coordinates ``index``."""
    out = []
    for n, (dim, size) in enumerate(digits):
        digit = floordiv(index[dim], _weight(digits, n))
        out.append(mod(digit, size) if any(d == dim for d, _ in digits[:n]) else digit)
    return tuple(out)


def _weight(digits: Sequence[Digit], n: int) -> int:
    """Return the distance of two coordinates whose digits differ by one in digit ``n``."""
    return prod(size for dim, size in digits[n + 1 :] if dim == digits[n][0])


def _blocked(old: Buffer, digits: Sequence[Digit]) -> Buffer:
    """Return the buffer with one dim for each digit, in the memory of ``old``."""
    extents = tuple(prod(size for d, size in digits if d == dim) for dim in range(len(old.shape)))
    if extents != old.shape:
        raise ConfigError(
            "block-dims", f"block_dims: blocks {list(digits)} of {old.name} hold {list(extents)} elements; legal are "
            f"those that hold {list(old.shape)}",
        )  # fmt: skip
    own = [(b.dim, b.size) for b in old.blocks]
    blocks = []
    for n, (dim, size) in enumerate(digits):
        weight = _weight(digits, n)
        held = [
            b.stride * (weight // step)
            for m, b in enumerate(old.blocks)
            for step in [_weight(own, m)]
            if b.dim == dim and weight % step == 0 and step * b.size % (weight * size) == 0
        ]
        if not held:
            raise ConfigError(
                "block-dims", f"block_dims: {size} blocks of {weight} along dim {dim} of {old.name} are no part of one "
                f"block of its layout {own}",
            )  # fmt: skip
        blocks.append(LayoutBlock(n, size, held[0]))
    by_stride = sorted(blocks, key=lambda b: (-b.stride, b.dim))
    return Buffer(old.name, old.dtype, tuple(size for _, size in digits), tuple(by_stride), old.scope)


@stages(*LOOPS)
def block_dims(kernel: Kernel, buffer: str, digits: Sequence[Digit]) -> Kernel:
    """Give ``buffer`` one dim for each of ``digits``, pairs of a dim and a size; the first digit of a dim is outermost.

    Before::

        kernel k(a: f32[6, 8], b: f32[6, 8])
          for i in 0 .. 6:
            for j.o in 0 .. 2:
              for j.i in 0 .. 4:
                b[i, j.i + j.o * 4] = a[i, j.i + j.o * 4]

    After ``block_dims("a", ((1, 2), (0, 6), (1, 4)))``::

        kernel k(a: f32[2, 6, 4] = 1:6:8 0:2:4 2:4:1, b: f32[6, 8])
          for i in 0 .. 6:
            for j.o in 0 .. 2:
              for j.i in 0 .. 4:
                b[i, j.i + j.o * 4] = a[j.o + j.i // 4, i, j.i % 4]
    """
    allocated = [s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc)]
    found = {b for b in (*kernel.params, *allocated) if b.name == buffer}
    if len(found) != 1:
        raise ConfigError(
            "buffer-name", f"block_dims: kernel {kernel.name} has {len(found)} buffers {buffer}; legal is one"
        )
    (old,) = found
    new = _blocked(old, digits)
    made = with_body(kernel, Relocate(old, new, lambda index: _place(index, digits)).stmt(kernel.body))
    return replace(made, params=tuple(new if b is old else b for b in kernel.params))
