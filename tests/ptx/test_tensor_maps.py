"""Tensor maps reach the functions of the driver that encode them: memory, addresses, types and numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from convsmith.codegen.artifact import MapArgument
from convsmith.diag.errors import ToolchainError
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.types import DTYPES
from convsmith.runtime import cuda
from convsmith.runtime.tensor_maps import TensorMaps
from ptx.driver import InterpretedDriver, Status


def gpu(driver: InterpretedDriver) -> Any:
    """Return what encodes maps with a driver."""
    check = SimpleNamespace(driver=driver, text=lambda status: status.name)
    check.check = lambda answer, what: cuda._OpenedGpu.check(check, answer, what)
    return check


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "s32", "s8", "u8", "f8_e4m3", "f8_e5m2"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_the_driver_writes_maps_where_it_may(rank: int, dtype: str) -> None:
    """The addresses are multiples of 64, and the arguments those of the map, for maps of all ranks and types."""
    driver, nbytes = InterpretedDriver((9, 0)), DTYPES[dtype].bytes
    dims, strides = (64, 5, 7, 9, 3)[:rank], (1, *(64 * 4**n for n in range(rank - 1)))
    maps, inner = [], rank - 2
    for swizzle in (0, 32, 64, 128):
        row = (swizzle or 16) // nbytes
        maps.append(MapArgument("src", dtype, swizzle, TensorMap(dims, strides, (row, 2, 1, 3, 2)[:rank])))
        if inner > 0:
            columns = TensorMap(dims, strides, (row,), 32, (-1,) * inner, (-2,) * inner, (2, 1, 3)[:inner])
            maps.append(MapArgument("src", dtype, swizzle, columns))
    encoded = TensorMaps(maps).at(gpu(driver), [4096 * n for n in range(1, 1 + len(maps))])
    numbers = [row.view(np.uint64)[0] for row in encoded]
    for n, made in enumerate(maps, 1):
        address, found = driver.maps[numbers[n - 1]]
        m = made.map
        assert address == 4096 * n and (found.dims, found.box, found.swizzle) == (m.dims, m.box, made.swizzle)
        assert found.itemsize == nbytes and found.strides == tuple(step * nbytes for step in m.strides[1:])
        assert (found.pixels, found.lower, found.upper, found.steps) == (m.pixels, m.lower, m.upper, m.steps)
    assert len(driver.maps) == len(maps)


def test_maps_are_encoded_once_for_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each map of an entry has addresses of its own; the maps that were encoded first are dropped."""
    driver, maps = InterpretedDriver((9, 0)), [MapArgument("src", "f32", 0, TensorMap((64, 5), (1, 64), (16, 2)))] * 2
    kept = TensorMaps(maps)
    first = kept.at(gpu(driver), [4096, 8192])
    assert all(a is b for a, b in zip(first, kept.at(gpu(driver), [4096, 8192]))) and len(driver.maps) == 2
    again = kept.at(gpu(driver), [8192, 8192])
    assert again[1] is first[1] and again[0] is not first[0] and len(driver.maps) == 3
    monkeypatch.setattr("convsmith.runtime.tensor_maps._MAX_MAPS", 3)
    kept.at(gpu(driver), [8192, 4096])
    assert kept.at(gpu(driver), [8192, 8192])[0] is again[0] and len(driver.maps) == 4
    kept.at(gpu(driver), [4096, 8192])
    assert len(driver.maps) == 5


def test_maps_that_the_driver_refuses_or_does_not_know() -> None:
    driver = InterpretedDriver((9, 0))
    made = MapArgument("src", "f32", 0, TensorMap((64, 5), (1, 64), (16, 2)))
    with pytest.raises(ToolchainError, match="the tensor map of src: CUDA_ERROR_INVALID_VALUE"):
        TensorMaps([made]).at(gpu(driver), [4096 + 8])
    driver._functions.clear()
    with pytest.raises(ToolchainError, match="the driver has no function cuTensorMapEncodeTiled"):
        TensorMaps([made]).at(gpu(driver), [4096])


def test_the_driver_of_the_tests_has_the_numbers_of_the_binding() -> None:
    real = pytest.importorskip("cuda.bindings.driver")
    ours = InterpretedDriver((9, 0))
    kinds = ("CUtensorMapDataType", "CUtensorMapInterleave", "CUtensorMapSwizzle", "CUtensorMapL2promotion",
             "CUtensorMapFloatOOBfill", "CUstreamCaptureMode", "CUmemorytype")  # fmt: skip
    for kind in kinds:
        for name, number in vars(getattr(ours, kind)).items():
            assert int(getattr(getattr(real, kind), name)) == number, name
    assert all(int(getattr(real.CUresult, status.name)) == status for status in Status)
