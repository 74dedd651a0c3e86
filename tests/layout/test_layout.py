from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UsageError
from convsmith.layout.block import LayoutBlock
from convsmith.layout.layout import Layout
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.layout.tags import TagForm, print_tag

SHAPE = (2, 20, 5, 3)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts of small tensors: tags with up to three inner blocks, and strides with gaps."""
    ndims = draw(st.integers(1, 4))
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=ndims, max_size=ndims)))
    order = tuple(draw(st.permutations(range(ndims))))
    inner = tuple(draw(st.lists(st.tuples(st.integers(0, ndims - 1), st.integers(1, 4)), max_size=3)))
    layout = Layout.from_tag(print_tag(TagForm(order, inner)), shape)
    if draw(st.booleans()):
        gap = draw(st.integers(1, 3))
        layout = Layout(shape, tuple(LayoutBlock(b.dim, b.size, b.stride * gap) for b in layout.blocks))
    return layout


@given(layouts())
def test_offsets_are_distinct_and_inside(layout: Layout) -> None:
    coordinates = list(itertools.product(*map(range, layout.padded_shape)))
    offsets = {layout.offset(c) for c in coordinates}
    assert len(offsets) == len(coordinates)
    assert all(0 <= offset < layout.size for offset in offsets)
    if layout.is_dense:
        assert len(offsets) == layout.size


@given(layouts())
def test_print_and_parse_are_inverse(layout: Layout) -> None:
    assert Layout.parse(str(layout), layout.shape) == layout


@given(layouts())
def test_arrays_go_there_and_back_and_lie_at_their_offsets(layout: Layout) -> None:
    x = np.arange(1, 1 + int(np.prod(layout.shape)), dtype=np.float32).reshape(layout.shape)
    physical = to_layout(x, layout)
    assert np.array_equal(from_layout(physical, layout), x)
    if layout.is_plain:
        assert physical.shape == layout.shape
        assert all(p == 4 * s for p, s, n in zip(physical.strides, layout.strides, x.shape, strict=True) if n > 1)
        return
    assert physical.shape == layout.physical_shape
    assert np.count_nonzero(physical) == x.size
    flat = np.lib.stride_tricks.as_strided(physical, (layout.size,), (4,))
    for coordinates in itertools.product(*map(range, layout.shape)):
        assert flat[layout.offset(coordinates)] == x[coordinates]


def test_channels_last() -> None:
    layout = Layout.from_tag("axb", SHAPE)
    assert layout == Layout.from_tag("nhwc", SHAPE)
    assert str(layout) == "acdb"
    assert layout.is_plain and layout.is_dense
    assert layout.strides == (300, 1, 60, 20)
    assert [s * 8 for s in layout.strides] == list(np.zeros((2, 5, 3, 20)).transpose(0, 3, 1, 2).strides)
    assert (layout.size, layout.physical_shape) == (600, (2, 5, 3, 20))


def test_channel_blocks_round_up() -> None:
    layout = Layout.from_tag("nChw16c", SHAPE)
    assert str(layout) == "aBcd16b"
    assert not layout.is_plain
    assert layout.physical_shape == (2, 2, 5, 3, 16)
    assert layout.padded_shape == (2, 32, 5, 3)
    assert layout.size == 2 * 32 * 15
    assert layout.offset((1, 17, 2, 1)) == np.ravel_multi_index((1, 1, 2, 1, 1), layout.physical_shape)
    with pytest.raises(UsageError, match="aBcd16b is blocked"):
        _ = layout.strides


def test_blocks_with_sizes() -> None:
    layout = Layout.from_tag("4n2c7h7w32n32c", (128, 64, 7, 7))
    assert layout == Layout.from_tag("NChw32n32c", (128, 64, 7, 7))
    assert str(layout) == "ABcd32a32b"
    roomy = Layout.from_tag("4n2c7h7w32n32c", (100, 33, 7, 7))
    assert roomy.padded_shape == (128, 64, 7, 7)
    split = Layout.from_tag("2a2a3b", (4, 3))
    assert (split.is_dense, str(split)) == (True, "a:2:6_a:2:3_b:3:1")


def test_strides_with_gaps() -> None:
    layout = Layout.plain((2, 20, 5, 3), (6400, 1, 320, 32))
    assert str(layout) == "a:2:6400_c:5:320_d:3:32_b:20:1"
    assert layout.strides == (6400, 1, 320, 32)
    assert not layout.is_dense
    assert layout.size == 6400 + 4 * 320 + 2 * 32 + 19 + 1


def test_any_is_plain_order() -> None:
    assert Layout.from_tag("any", SHAPE) == Layout.from_tag("abcd", SHAPE)


def test_sizes_beyond_32_bits() -> None:
    layout = Layout.from_tag("nChw16c", (3, 70000, 1000, 1000))
    assert layout.size == 3 * 70000 * 10**6
    assert layout.offset((2, 69999, 999, 999)) == layout.size - 1


def test_zero_extents_occupy_nothing() -> None:
    assert Layout.from_tag("nhwc", (2, 3, 0, 4)).size == 0
    assert Layout.from_tag("nChw16c", (0, 3, 5, 4)).physical_shape == (0, 1, 5, 4, 16)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1a8b5c3d", "dim b have sizes [8], which cannot hold 20 elements"),
        ("a:2:300_b:20:15_c:5:2_d:3:1", "stride 2 of the block of 5 along dim c makes elements share memory"),
        ("a:2:0_b:20:15_c:5:3_d:3:1", "must be above 0"),
    ],
)
def test_illegal_blocks(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        Layout.parse(text, (1, 20, 5, 3) if text.startswith("1") else SHAPE)
    assert error.value.code == "bad-layout"
    assert why in str(error.value)


def test_offset_refuses_what_lies_outside() -> None:
    layout = Layout.from_tag("nChw16c", SHAPE)
    with pytest.raises(UsageError, match="outside"):
        layout.offset((0, 32, 0, 0))
    with pytest.raises(UsageError, match="3 coordinates are given for 4 dims"):
        layout.offset((0, 0, 0))


@pytest.mark.parametrize("tag", [None, 3, b"axb", ["a", "x", "b"], ("axb",)])
def test_a_tag_is_a_text(tag: object) -> None:
    for call in (Layout.from_tag, Layout.parse):
        with pytest.raises(UsageError, match="expected a text") as caught:
            call(tag, (2, 3, 4, 5))  # type: ignore[arg-type]
        assert caught.value.code == "bad-tag" and str(caught.value).startswith("tag: ")
