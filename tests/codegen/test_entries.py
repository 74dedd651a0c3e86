"""The arguments that an entry must have beside others."""

from __future__ import annotations

import pytest

from convsmith.codegen.artifact import Argument, Entry
from convsmith.diag.errors import UsageError

SRC = Argument("src", "in", "f32", (4,), "a", 4)
TABLE = Argument("src_table", "table", "ptr", (4,), "a", 4, of="src")
ZERO = Argument("src_0", "zero", "f32", (4,), "a", 4, of="src")
SIZE = Argument("mb", "size", "s64", (), "", 1)


def test_a_table_needs_its_tensor_and_its_zeros() -> None:
    Entry("k", (SRC, TABLE, ZERO))
    for others in ((SRC,), (ZERO,), ()):
        with pytest.raises(UsageError, match="entry k: src_table needs src and its zero argument beside it"):
            Entry("k", (*others, TABLE))


def test_sizes_come_last() -> None:
    Entry("k", (SRC, SIZE))
    with pytest.raises(UsageError, match="sizes come last"):
        Entry("k", (SIZE, SRC))
