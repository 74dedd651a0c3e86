"""`Layout`: the memory offset of each element of a tensor.

A layout is a logical shape and a list of blocks (dim, size, stride), outermost first. A dim may have several blocks:
its coordinate is split into digits, and its last block holds the fastest digit. The product of a dim's block sizes is
at least its extent; elements beyond the extent are padding and hold zero. Strides and offsets count elements; a layout
has no data type. Sizes are Python integers, so nothing overflows at 2**31.

Offsets are injective: two coordinates never share an element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text, integers, limit_digits
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.layout.block import LayoutBlock
from convsmith.layout.tags import ANY, MAX_DIMS, SizedBlock, TagForm, parse_sized, parse_tag, print_strided, print_tag

__all__ = ["Layout"]


@record(frozen=True)
class Layout:
    """A logical `shape` and its `blocks`, outermost first."""

    shape: tuple[int, ...]
    blocks: tuple[LayoutBlock, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= MAX_DIMS:
            raise _fail(f"a tensor has 1 to {MAX_DIMS} dims, not {len(self.shape)}")
        for dim, extent in enumerate(self.shape):
            sizes = [block.size for block in self.blocks if block.dim == dim]
            if extent < 0 or not sizes or math.prod(sizes) < extent:
                name = "abcdef"[dim]
                raise _fail(f"the blocks of dim {name} have sizes {sizes}, which cannot hold {extent} elements")
        if any(not 0 <= block.dim < len(self.shape) or block.size < 0 or block.stride < 0 for block in self.blocks):
            raise _fail(f"blocks {self.blocks} must have dims below {len(self.shape)}, sizes and strides of at least 0")
        reach = 0
        for block in sorted((b for b in self.blocks if b.size > 1 and self.size), key=lambda b: b.stride):
            if block.stride <= reach:
                name = "abcdef"[block.dim]
                raise _fail(
                    f"stride {block.stride} of the block of {block.size} along dim {name} makes elements share memory: "
                    f"it must be above {reach}"
                )
            reach += (block.size - 1) * block.stride

    @staticmethod
    def from_tag(tag: str, shape: Sequence[int]) -> Layout:
        """Return the dense layout that `tag` (`axb`, `nChw16c`, `any`, ...) describes for a tensor of `shape`.

        `any` is row-major. Spellings with sizes are legal too. UsageError if the tag is malformed or has another rank.
        """
        expect_text("tag", tag, "bad-tag")
        return _from_tag(tag, integers("shape", shape))

    parse = from_tag

    @staticmethod
    def of_tag(tag: str, shape: tuple[int, ...]) -> Layout:
        """Return the layout like `from_tag`, for a shape of whole numbers."""
        return _from_tag(tag, shape)

    @staticmethod
    def plain(shape: Sequence[int], strides: Sequence[int]) -> Layout:
        """Return a layout with one block per dim and the given strides in elements."""
        order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
        return Layout(tuple(shape), tuple(LayoutBlock(dim, shape[dim], strides[dim]) for dim in order))

    @staticmethod
    def _from_form(form: TagForm, shape: tuple[int, ...]) -> Layout:
        inner_size = [1] * len(shape)
        for dim, size in form.inner:
            inner_size[dim] *= size
        outer = [SizedBlock(dim, -(-shape[dim] // inner_size[dim]), None) for dim in form.order]
        return _from_sized((*outer, *(SizedBlock(dim, size, None) for dim, size in form.inner)), shape)

    def tag(self) -> str:
        """Return the `aBcd16b` spelling of a dense layout, otherwise `dim:size:stride` blocks; `parse` reads both."""
        return self._tag

    @cached_property
    def _tag(self) -> str:
        ndims = len(self.shape)
        order = tuple(block.dim for block in self.blocks[:ndims])
        if len(set(order)) == ndims:
            form = TagForm(order, tuple((block.dim, block.size) for block in self.blocks[ndims:]))
            tag = print_tag(form)
            if all(size > 0 for _, size in form.inner) and _from_tag(tag, self.shape).blocks == self.blocks:
                return tag
        return print_strided(self.blocks)

    def __str__(self) -> str:
        return self.tag()

    @cached_property
    def size(self) -> int:
        """Number of elements from the first to the last in memory, padding included."""
        if any(block.size == 0 for block in self.blocks):
            return 0
        return 1 + sum((block.size - 1) * block.stride for block in self.blocks)

    @property
    def is_plain(self) -> bool:
        """Whether every dim has one block, so that each logical axis has one stride."""
        return len(self.blocks) == len(self.shape)

    @property
    def contiguous(self) -> LayoutBlock | None:
        """The block whose elements are contiguous in memory; None if none has several."""
        return next((b for b in self.blocks if b.stride == 1 and b.size > 1), None)

    @property
    def is_dense(self) -> bool:
        """Whether the blocks nest without gaps, in the order in which they are listed."""
        return self.blocks == _dense(self.blocks)

    @property
    def strides(self) -> tuple[int, ...]:
        """Stride of each logical dim in elements. UsageError if the layout is blocked."""
        if not self.is_plain:
            raise _fail(f"{self} is blocked: a coordinate has no single stride")
        return tuple([block.stride for block in sorted(self.blocks)])

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape rounded up to the product of each dim's block sizes."""
        return tuple(math.prod(b.size for b in self.blocks if b.dim == dim) for dim in range(len(self.shape)))

    @property
    def physical_shape(self) -> tuple[int, ...]:
        """The sizes of the blocks, outermost first: (N, ceil(C / 16), H, W, 16) for nChw16c."""
        return tuple(block.size for block in self.blocks)

    def repeated(self, count: int) -> Layout:
        """Return the layout of `count` tensors of this shape, each dense and in this order, one after the other."""
        if len(self.shape) == MAX_DIMS:
            raise _fail(f"a tensor of {MAX_DIMS} dims cannot get another dim; legal are {MAX_DIMS} at most")
        inner = (LayoutBlock(block.dim + 1, block.size, 0) for block in self.blocks)
        return Layout((count, *self.shape), _dense((LayoutBlock(0, count, 0), *inner)))

    def spread(self, line: int) -> Layout:
        """Return the dense layout with its outermost dim an odd number of lines of `line` elements apart, so that the
        same element at each of its coordinates lies in another set of a cache.
        """
        outer, *inner = self.blocks
        lines = -(-outer.stride // line) | 1
        return Layout(self.shape, (LayoutBlock(outer.dim, outer.size, lines * line), *inner))

    def offset(self, coordinates: Sequence[int]) -> int:
        """Return the offset in elements of `coordinates`, which may lie in the padding."""
        if len(coordinates) != len(self.shape):
            raise _fail(f"{len(coordinates)} coordinates are given for {len(self.shape)} dims")
        outer = list(coordinates)
        offset = 0
        for block in reversed(self.blocks):
            outer[block.dim], digit = divmod(outer[block.dim], block.size)
            offset += digit * block.stride
        if any(outer):
            raise _fail(f"coordinates {tuple(coordinates)} lie outside {self.padded_shape}")
        return offset


def _dense(blocks: Sequence[LayoutBlock | SizedBlock]) -> tuple[LayoutBlock, ...]:
    """Return blocks of the same dims and sizes, packed without gaps, the last one innermost."""
    out = []
    stride = 1
    for block in reversed(blocks):
        out.append(LayoutBlock(block.dim, block.size, stride))
        stride *= max(block.size, 1)
    return tuple(reversed(out))


@lru_cache(1 << 10)
def _from_tag(tag: str, shape: tuple[int, ...]) -> Layout:
    if tag == ANY:
        tag = "abcdef"[: len(shape)]
    limit_digits(tag, "bad-tag")
    sized = parse_sized(tag, len(shape))
    return Layout._from_form(parse_tag(tag, len(shape)), shape) if sized is None else _from_sized(sized, shape)


def _from_sized(sized: tuple[SizedBlock, ...], shape: tuple[int, ...]) -> Layout:
    strided = tuple(LayoutBlock(b.dim, b.size, b.stride) for b in sized if b.stride is not None)
    return Layout(shape, strided or _dense(sized))


def _fail(message: str) -> UsageError:
    return UsageError(f"layout: {message}", code="bad-layout")
