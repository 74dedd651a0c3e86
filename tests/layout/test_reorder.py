from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.layout import Layout, from_layout, reorder


def test_plain_to_blocked_and_back() -> None:
    x = np.arange(2 * 20 * 3 * 3, dtype=np.float64).reshape(2, 20, 3, 3)
    blocked = reorder(x, "nchw", "nChw16c")
    assert blocked.shape == (2, 2, 3, 3, 16)
    assert np.array_equal(blocked[1, 1, 2, 0, :4], x[1, 16:20, 2, 0])
    assert not blocked[:, 1, :, :, 4:].any()
    assert np.array_equal(reorder(blocked, "nChw16c", "abx", shape=x.shape), x)
    last = reorder(blocked, "aBx16b", "nhwc", shape=x.shape)
    assert np.array_equal(last, x)
    assert last.transpose(0, 2, 3, 1).flags.c_contiguous


def test_without_a_shape_blocks_are_full() -> None:
    x = np.ones((1, 2, 3, 16), np.int8)
    assert reorder(x, "nCw16c", "ncw").shape == (1, 32, 3)
    assert reorder(np.ones((4, 2, 7, 7, 32, 32)), "4n2c7h7w32n32c", "nchw").shape == (128, 64, 7, 7)


def test_strided_input() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)[:, ::-1, ::2]
    assert np.array_equal(from_layout(reorder(x, "any", "axb"), Layout.from_tag("axb", x.shape)), x)


@pytest.mark.parametrize(
    ("shape", "from_tag", "logical"),
    [((2, 3, 4), "axb", (2, 3, 5)), ((2, 1, 3, 3, 8), "nChw16c", (2, 16, 3, 3)), ((2, 1, 3), "4n2c7h7w32n32c", None)],
)
def test_wrong_shapes_are_refused(shape: tuple[int, ...], from_tag: str, logical: tuple[int, ...] | None) -> None:
    with pytest.raises(UsageError) as error:
        reorder(np.zeros(shape), from_tag, "abx", shape=logical)
    assert error.value.code == "bad-shape"
