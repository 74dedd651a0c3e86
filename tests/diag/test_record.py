"""A record compares, hashes and prints as a frozen dataclass of the same fields does."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
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


@record(frozen=True, kw_only=True)
class Named:
    first: int
    rest: dict[str, int] = field(default_factory=dict)


@record(frozen=True)
class Checked(Named):
    place: int

    def __post_init__(self) -> None:
        if self.place < 0:
            raise ValueError("negative")


def test_records_are_frozen() -> None:
    two = classes(record)[0](1)
    with pytest.raises(FrozenInstanceError, match="assign to field 'a'"):
        two.a = 2
    with pytest.raises(FrozenInstanceError, match="delete field 'a'"):
        del two.a


def test_fields_by_name_alone_stand_behind_the_others_and_each_instance_has_its_own_new_value() -> None:
    made, other = Checked(5, first=1), Checked(5, first=1, rest={"a": 2})
    assert (made.place, made.first, made.rest, other.rest) == (5, 1, {}, {"a": 2})
    assert made.rest is not Checked(5, first=1).rest
    assert pickle.loads(pickle.dumps(other)) == other
    assert str(inspect.signature(Checked)) == "(place: 'int', *, first: 'int', rest: 'dict[str, int]' = Ellipsis)"
    with pytest.raises(ValueError, match="negative"):
        Checked(-1, first=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Checked(1), "Checked has no value of first"),
        (lambda: Checked(1, place=1, first=2), "Checked has two values of place"),
        (lambda: Checked(1, first=1, last=2), "Checked has no field last"),
        (lambda: Checked(1, 2, first=3), "Checked takes fewer values by position than 2"),
        (lambda: Checked(1, last=3), "Checked has no value of first; Checked has no field last"),
    ],
)
def test_values_that_are_not_those_of_the_fields_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        make()
