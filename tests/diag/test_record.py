"""A record compares, hashes and prints as a frozen dataclass of the same fields does."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from convsmith.diag.record import record


def classes(make: Any) -> tuple[type, type, type, type]:
    @make(frozen=True)
    class Two:
        a: int
        b: str = "x"
        hidden: int = field(default=3, repr=False, compare=False)

    @make(frozen=True)
    class One:
        a: int

    @make(frozen=True, eq=False)
    class Same(One):
        c: int = 1

    @make(frozen=True)
    class Own:
        a: int

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    return Two, One, Same, Own


def facts(make: Any) -> list[object]:
    two, one, same, own = classes(make)
    a, b = two(1, "y"), two(1, "y", hidden=4)
    first, second = same(1), same(1)
    return [
        repr(a).rpartition(".")[2], a == b, hash(a) == hash(b), a == two(2, "y"), a == one(1), one(1) == one(1),
        hash(a), hash(one(1)), repr(one(1)).rpartition(".")[2], {a: 5}[b], replace(a, a=9).a, a != b,
        first == second, first == first, hash(first) == hash(second), repr(first).rpartition(".")[2],
        hash(own(1)), repr(own(1)), own(1) == own(1), own(1) == own(2), one(1) == 1,
    ]  # fmt: skip


def test_records_behave_like_dataclasses() -> None:
    assert facts(record) == facts(dataclass)


def test_records_are_frozen() -> None:
    two = classes(record)[0](1)
    with pytest.raises(FrozenInstanceError):
        two.a = 2
