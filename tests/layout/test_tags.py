from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UsageError
from convsmith.layout.layout import Layout
from convsmith.layout.tags import TagForm, infer_ndims, parse_tag, print_tag

# Spellings of oneDNN's format tags, by number of dims, with their letter form.
SPELLINGS = {
    1: {"a": "a", "x": "a", "abx": None},
    2: {"ab": "ab", "ba": "ba", "nc": "ab", "cn": "ba", "oi": "ab", "io": "ba", "abx": "ab", "axb": "ab", "xba": "ba"},
    3: {
        "ncw": "abc", "nwc": "acb", "nCw16c": "aBc16b", "nCw8c": "aBc8b", "aBx16b": "aBc16b", "axb": "acb",
        "abx": "abc",
        "oiw": "abc", "owi": "acb", "wio": "cba", "woi": "cab", "OIw16i16o": "ABc16b16a", "Owi16o": "Acb16a",
        "xba": "cba", "NCw16n16c": "ABc16a16b", "IOw16o16i": "BAc16a16b",
    },
    4: {
        "nchw": "abcd", "nhwc": "acdb", "chwn": "bcda", "nChw16c": "aBcd16b", "nChw8c": "aBcd8b", "nChw4c": "aBcd4b",
        "NChw32n32c": "ABcd32a32b", "abx": "abcd", "axb": "acdb", "xba": "cdba", "aBx16b": "aBcd16b",
        "ABx16a16b": "ABcd16a16b", "oihw": "abcd", "hwio": "cdba", "ihwo": "bcda", "ohwi": "acdb", "iohw": "bacd",
        "OIhw16i16o": "ABcd16b16a", "OIhw4i16o4i": "ABcd4b16a4b", "OIhw8o16i2o": "ABcd8a16b2a", "Ohwi16o": "Acdb16a",
        "OhwI16o4i": "AcdB16a4b", "goiw": "abcd", "wigo": "dcab", "gOIw16i16o": "aBCd16c16b", "Goiw16g": "Abcd16a",
    },
    5: {
        "ncdhw": "abcde", "ndhwc": "acdeb", "nCdhw16c": "aBcde16b", "axb": "acdeb", "abx": "abcde", "aBx8b": "aBcde8b",
        "oidhw": "abcde", "dhwio": "cdeba", "odhwi": "acdeb", "OIdhw16i16o": "ABcde16b16a",
        "goihw": "abcde", "hwigo": "decab", "giohw": "acbde", "gOIhw16i16o": "aBCde16c16b", "Goihw16g": "Abcde16a",
        "gOhwi16o": "aBdec16b",
    },
    6: {
        "goidhw": "abcdef", "dhwigo": "defcab", "gOIdhw4i16o4i": "aBCdef4c16b4c", "Goidhw16g": "Abcdef16a",
        "abx": "abcdef",
    },
}  # fmt: skip
CASES = [(ndims, tag, form) for ndims, tags in SPELLINGS.items() for tag, form in tags.items() if form]


@pytest.mark.parametrize(("ndims", "tag", "letters"), CASES)
def test_every_spelling_is_an_order_of_letters(ndims: int, tag: str, letters: str) -> None:
    form = parse_tag(tag, ndims)
    assert print_tag(form) == letters
    assert parse_tag(letters, ndims) == form
    assert infer_ndims(letters, ndims + len(form.inner)) == ndims
    shape = (5, 7, 3, 4, 2, 3)[:ndims]
    layout = Layout.from_tag(tag, shape)
    assert layout == Layout.from_tag(letters, shape)
    assert str(layout) == letters


@pytest.mark.parametrize(("ndims", "tag"), [(ndims, tag) for ndims, tag, _ in CASES if "x" not in tag])
def test_all_dims_may_be_capitals(ndims: int, tag: str) -> None:
    dims, inner = re.fullmatch("([A-Za-z]+)(.*)", tag).groups()  # type: ignore[union-attr]
    assert parse_tag(dims.upper() + inner, ndims) == parse_tag(tag, ndims)


@pytest.mark.parametrize(
    ("tag", "shape", "physical"),
    [
        ("NHWC8h8w32c", (1, 128, 64, 64), (1, 8, 8, 4, 8, 8, 32)),
        ("NHWC8h8w32c", (1, 128, 62, 62), (1, 8, 8, 4, 8, 8, 32)),
        ("OIHW8i32o4i", (128, 128, 1, 1), (4, 4, 1, 1, 8, 32, 4)),
        ("OIHW8i32o4i", (128, 128, 3, 3), (4, 4, 3, 3, 8, 32, 4)),
        ("NHWC", (1, 128, 64, 64), (1, 64, 64, 128)),
        ("OIHW", (128, 128, 3, 3), (128, 128, 3, 3)),
    ],
)
def test_the_layouts_of_hexagon(tag: str, shape: tuple[int, ...], physical: tuple[int, ...]) -> None:
    layout = Layout.from_tag(tag, shape)
    assert layout.physical_shape == physical
    assert infer_ndims(tag, len(physical)) == 4
    assert Layout.from_tag(str(layout), shape) == layout


@pytest.mark.parametrize(
    ("tag", "axes", "ndims"),
    [
        ("a:2:16_b:2:8_b:8:1", 3, 2), ("a:2:6_b:3:2_c:2:1", 3, 3), ("a:4:1", 1, 1), ("a:2:8_a:2:4_a:4:1", 3, 1),
        ("4n2c7h7w32n32c", 6, 4), ("2a3b", 2, 2), ("8a4a", 2, 1), ("nChw16c", 5, 4), ("OIhw16i16o", 6, 4),
        ("OIhw8o16i2o", 7, 4), ("abcd", 4, 4), ("abx", 3, 3), ("aBx16b", 5, 4), ("any", 4, 4),
    ],
)  # fmt: skip
def test_dims_of_a_physical_array(tag: str, axes: int, ndims: int) -> None:
    """Several blocks of a dim are several axes, in every spelling."""
    assert infer_ndims(tag, axes) == ndims


@st.composite
def forms(draw: st.DrawFn) -> TagForm:
    ndims = draw(st.integers(1, 6))
    order = tuple(draw(st.permutations(range(ndims))))
    inner = draw(st.lists(st.tuples(st.integers(0, ndims - 1), st.integers(1, 64)), max_size=4))
    return TagForm(order, tuple(inner))


@given(forms())
def test_print_and_parse_are_inverse(form: TagForm) -> None:
    assert parse_tag(print_tag(form), len(form.order)) == form


@pytest.mark.parametrize(
    ("tag", "ndims", "why"),
    [
        ("nwc", 4, "names the dims cnw"),
        ("nhwc", 3, "names the dims"),
        ("nchhw", 4, "twice"),
        ("nChw", 4, "capital letters"),
        ("nHWc8h8w32c", 4, "capital letters"),
        ("NHWc8h8w", 4, "capital letters"),
        ("nchw16c", 4, "capital letters"),
        ("nChw16w", 4, "capital letters"),
        ("nChw16k", 4, "16k"),
        ("nChw0c", 4, "0c"),
        ("", 4, "does not name an order"),
        ("undef", 4, "does not name an order"),
        ("n-chw", 4, "does not name an order"),
        ("4n2c7h7w32n32q", 4, "names the dims"),
        ("a:1:2_b:3", 2, "'b:3' is not dim:size:stride"),
    ],
)
def test_malformed_tags_are_named_with_what_is_legal(tag: str, ndims: int, why: str) -> None:
    with pytest.raises(UsageError) as error:
        Layout.from_tag(tag, (32,) * ndims)
    assert error.value.code == "bad-tag"
    assert repr(tag) in str(error.value) and why in str(error.value) and "aBx16b" in str(error.value)
