"""Arrays that a kernel takes as they are."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.codegen.artifact import Argument
from convsmith.diag.errors import UsageError
from convsmith.runtime.arrays import ALIGNMENT, ArraySpec, address_of, aligned_copy, aligned_empty

SPEC = ArraySpec(Argument("dst", "out", "f32", (2, 3), "ab", 6))


def misaligned(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(int(np.prod(shape)) * 4 + 1, np.uint8)[1:].view(np.float32).reshape(shape)


def test_what_fits() -> None:
    good = np.zeros((2, 3), np.float32)
    assert SPEC.fits(good)
    for other in (
        good.astype(np.float64), good.T, np.zeros((3, 2), np.float32), np.zeros((2, 6), np.float32)[:, ::2],
        np.zeros((2, 4), np.float32)[:, :3], misaligned((2, 3)), good[::-1], np.ma.masked_array(good),
    ):  # fmt: skip
        assert not SPEC.fits(other), (other.dtype, other.shape, other.strides)


def test_what_an_output_is() -> None:
    good = np.zeros((2, 3), np.float32)
    assert SPEC.check_output(good) is good
    good.flags.writeable = False
    shared = np.broadcast_to(np.float32(1), (2, 3))
    for bad, code in ((good, "read-only"), (shared, "read-only"), (good.astype(np.float64), "dtype")):
        with pytest.raises(UsageError) as error:
            SPEC.check_output(bad)
        assert error.value.code == code


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 1000])
def test_memory_is_aligned(nbytes: int) -> None:
    for _ in range(10):
        made = aligned_empty(nbytes)
        assert made.nbytes == nbytes and address_of(made) % ALIGNMENT == 0
        made[:] = 1
    copy = aligned_copy(np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2])
    assert address_of(copy) % ALIGNMENT == 0 and copy.tolist() == [[0, 2], [4, 6], [8, 10]] and copy.strides == (16, 8)
