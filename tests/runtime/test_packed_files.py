"""Files of packed weights: the format and the name of a file are checked, and a wrong one is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.runtime.arrays import aligned_empty
from convsmith.runtime.packed import Packed


def saved(path: Path) -> dict[str, Any]:
    """Write packed weights to a file, and return its parts."""
    buffer = aligned_empty(64).view(np.float32)
    buffer[:] = range(16)
    Packed("any", buffer, None).save(path)
    with np.load(path) as parts:
        return dict(parts)


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    parts = saved(path)
    assert np.array_equal(Packed.load(path).buffer.view(np.float32), np.arange(16, dtype=np.float32))
    with open(path, "wb") as file:
        np.savez(file, **{**parts, "format": parts["format"] + 1})
    with pytest.raises(UsageError, match=r"is not a file of packed weights: format \d+, not \d+") as caught:
        Packed.load(path)
    assert caught.value.code == "bad-packed"


@pytest.mark.parametrize("path", ["", "a\0b", b"bytes", 3, None])
def test_what_is_no_name_of_a_file_is_refused(path: Any) -> None:
    for call in (lambda: Packed.load(path), lambda: Packed("any", aligned_empty(64), None).save(path)):
        with pytest.raises(UsageError, match="is not legal: expected the name of a file") as caught:
            call()
        assert caught.value.code == "bad-path"
