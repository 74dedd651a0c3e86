"""Counts the calls of functions, by whatever name a module imports them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def noting_calls(note: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Call ``note`` at every call and return in the ``with`` block, as `sys.setprofile` does."""
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def counting(*functions: Callable[..., Any]) -> Iterator[Counter[str]]:
    """Count the calls of ``functions`` in the ``with`` block, by name, and those of all Python functions as "all"."""
    names = {f.__code__: f.__name__ for f in functions}
    found = Counter[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found["all"] += 1
            name = names.get(frame.f_code)
            if name is not None:
                found[name] += 1

    with noting_calls(note):
        yield found
