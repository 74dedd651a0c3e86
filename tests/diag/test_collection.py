"""Pauses of the garbage collector: it resumes as it was, and imported objects are old."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from convsmith.diag.collection import importing, no_collection

OLDEST = 2


@pytest.fixture(autouse=True)
def resumed() -> Iterator[None]:
    """The collector of a test that has frozen nothing; afterwards it is as the other tests have it."""
    gc.unfreeze()
    yield
    gc.enable()
    gc.freeze()


@pytest.mark.parametrize("pause", [importing, no_collection])
@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_as_it_was(pause: Any, is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    with pytest.raises(ZeroDivisionError), pause():
        assert not gc.isenabled()
        raise ZeroDivisionError
    with pause():
        assert not gc.isenabled()
    assert gc.isenabled() is is_on


def test_imported_objects_are_old_and_are_still_collected() -> None:
    with importing():
        held: list[Any] = [[]]
        held[0].append(held)
        before = id(held)
    assert before in map(id, gc.get_objects(OLDEST)) and not gc.get_freeze_count()
    del held
    gc.collect()
    assert before not in map(id, gc.get_objects())


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with importing():
        pass
    assert gc.get_freeze_count() == count
