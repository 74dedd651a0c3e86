"""Levels: the order in which they are tried, what they have, and which row serves which types."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine, dot, fragment_dot, multiply_add
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS

BYTES = ("u8", "s8", "s32")
FRAGMENTS = [fragment_dot(f"fragment_{k}", (2, k, 16, 4), BYTES, "", "", (), "") for k in (2, 8, 4)]


def with_rows(*rows: object) -> Machine:
    return replace(level(), vector_bits=512, instructions=rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.isa)
def test_a_vector_of_every_level_is_full(target: Machine) -> None:
    """Every row fills a vector of sums; of each type there are as many lanes as a vector holds."""
    for row in target.instructions:
        assert row.lanes * DTYPES[row.types[2]].bits == target.vector_bits, row.name
    assert [target.lanes(bits) for bits in (8, 16, 32, 64)] == [target.vector_bits // n for n in (8, 16, 32, 64)]


@pytest.mark.parametrize("target", LEVELS, ids=lambda t: t.isa)
def test_a_level_has_what_its_rows_need(target: Machine) -> None:
    for row in (*target.instructions, *target.transpositions):
        assert set(row.needs) <= set(target.needs), row.name
    assert set(target.features.split(",")) == {f"+{name}" for name in target.needs}


def test_a_level_comes_before_those_that_it_contains() -> None:
    for n, target in enumerate(LEVELS):
        for later in LEVELS[n + 1 :]:
            assert not set(target.needs) < set(later.needs), (target.isa, later.isa)


def test_fragments_of_most_terms_come_first() -> None:
    target = with_rows(*FRAGMENTS)
    assert [row.terms for row in target.fragment_rows(*BYTES)] == [32, 16, 8]


def test_a_row_of_vectors_is_none_of_fragments() -> None:
    vector = dot("dot", 16, 4, BYTES, "", "", (), "")
    target = with_rows(*FRAGMENTS, vector)
    assert target.row(*BYTES) is vector and vector not in target.fragment_rows(*BYTES)
    assert with_rows(*FRAGMENTS).row(*BYTES) is None


def test_the_nearest_row_adds_most_products() -> None:
    """Signed bytes may become unsigned ones where that row adds more; other types are converted to that of sums."""
    plain, words = multiply_add("fma", 16, "", "", (), ""), dot("words", 16, 2, ("s8", "s8", "s32"), "", "", (), "")
    whole = multiply_add("mul", 16, "", "", (), "", "s32")
    four = dot("four", 16, 4, BYTES, "", "", (), "")
    assert with_rows(plain, words, four).nearest("s8", "s8", "s32") is four
    assert with_rows(plain, words).nearest("s8", "s8", "s32") is words
    assert with_rows(plain, words, whole).nearest("u8", "u8", "s32") is whole
    assert with_rows(plain).nearest("bf16", "bf16", "f32") is plain
    assert with_rows(four).nearest("f32", "f32", "f32") is None
