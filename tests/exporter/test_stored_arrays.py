"""The memory of an array in a kernel's layout: its own where nobody writes it, else a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convsmith.codegen.artifact import Argument
from convsmith.exporter.constants import stored
from convsmith.runtime.arrays import ArraySpec

ELEMENTS: Any = np.arange(30, dtype=np.float32).reshape(2, 3, 5)


@pytest.mark.parametrize(
    ("order", "writeable", "tag", "shares"),
    [("C", False, "abc", True), ("C", True, "abc", False), ("F", False, "abc", False), ("C", False, "acb", False)],
)
def test_memory_is_shared_if_nobody_writes_it(order: Any, writeable: bool, tag: str, shares: bool) -> None:
    array = np.array(ELEMENTS, order=order)
    array.flags.writeable = writeable
    found = stored(ArraySpec(Argument("t", "in", "f32", (2, 3, 5), tag, 30)), array)
    expected = ELEMENTS if tag == "abc" else ELEMENTS.transpose(0, 2, 1)
    assert np.shares_memory(found, array) == shares
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()
