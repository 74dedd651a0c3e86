"""Arrays that a kernel takes as they are, tables that follow them, and what stands for absent pixels."""

from __future__ import annotations

import re

import numpy as np
import pytest

from convsmith.codegen.artifact import Argument
from convsmith.diag.errors import UsageError
from convsmith.layout.indirection import Axis, Window, table
from convsmith.runtime.arrays import ALIGNMENT, ArraySpec, address_of, aligned_copy, aligned_empty
from convsmith.runtime.pointers import MovingTable, absent_pixel

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


def test_tables_follow_their_tensor() -> None:
    zero = np.zeros(4, np.float32)
    moving = MovingTable(table(Window((Axis(3, 3, 3, p=1),), (1,)), "row"), zero)
    addresses = np.frombuffer((np.ctypeslib.ctypes.c_uint64 * 9).from_address(moving.address), np.uint64)
    away = address_of(zero)
    for base in (1000, 1000, 5000, 0, 1000):
        moving.follow(base)
        assert addresses.tolist() == [away, base, base + 4, base, base + 4, base + 8, base + 4, base + 8, away]


def test_zero_points_of_absent_pixels() -> None:
    argument = Argument("src_0", "zero", "s8", (4,), "a:2:1_a:2:3", 5, of="src", recipe="zero_points_src")
    assert absent_pixel(argument, "zero_points_src", np.int32([-7])).tolist() == [-7] * 5
    assert absent_pixel(argument, "zero_points_src", np.int32([1, 2, 3, 4])).tolist() == [1, 3, 0, 2, 4]
    for points, text in (([128], "zero_points_src is 128"), ([0, -129, 0, 0], "zero_points_src[1] is -129")):
        with pytest.raises(UsageError, match=re.escape(text)) as error:
            absent_pixel(argument, "zero_points_src", np.int32(points))
        assert error.value.code == "value"
