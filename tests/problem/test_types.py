"""The types of problems: every combination is legal, or the nearest legal one is named; and their conversions."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.types import (
    TYPES,
    array_type,
    check_types,
    checked_bias_type,
    convert,
    is_integer,
    print_f32,
    print_types,
)

SMALL = ("f8_e4m3", "f8_e5m2")
FLOATS = ("f32", "bf16", "f16", *SMALL)
BYTES = ("u8", "s8")
NARROW = ("s4", "u4")


def legal_factors(a: str, b: str, mixed: bool) -> bool:
    """Bytes with bytes; floats of one type, any float with f32 before it, two small floats, or `mixed` ones. Forward,
    weights of 4 bits with bytes and with floats of 16 bits at least.
    """
    if a in BYTES and b in BYTES:
        return True
    if b in NARROW and not mixed:
        return a in (*BYTES, "f32", "bf16", "f16")
    floats = a in FLOATS and b in FLOATS
    return floats and (mixed or a == b or a == "f32" or (a in SMALL and b in SMALL))


def is_legal(dt: tuple[str, ...], direction: str) -> bool:
    if "f64" in dt:
        return dt == ("f64",) * 3
    src, wei, dst = dt
    if dst in NARROW or src in NARROW:
        return False
    if direction.startswith("BWD_W"):
        return all(name in FLOATS for name in dt)
    a, b, out = (wei, dst, src) if direction == "BWD_D" else (src, wei, dst)
    return legal_factors(a, b, direction == "BWD_D") and (a in BYTES or out != "s32")


@pytest.mark.parametrize("direction", ["FWD_D", "FWD_I", "FWD_B", "BWD_D", "BWD_W", "BWD_WB"])
def test_every_combination_of_types(direction: str) -> None:
    for dt in product(TYPES, repeat=3):
        if is_legal(dt, direction):
            check_types(dt, direction)
            continue
        with pytest.raises(UnsupportedError, match=f"--dir={direction} is not available; the nearest is") as caught:
            check_types(dt, direction)
        nearest = str(caught.value).rpartition("--dt=")[2].split(":")
        other = tuple(nearest * 3 if len(nearest) == 1 else nearest)
        assert is_legal(other, direction) and caught.value.code == "unsupported-types"


@pytest.mark.parametrize(
    ("dt", "direction", "nearest"),
    [
        (("f32", "f32", "s32"), "FWD_D", "f32"), (("bf16", "f32", "s32"), "FWD_D", "bf16:bf16:f32"),
        (("bf16", "f16", "bf16"), "FWD_D", "bf16"), (("f8_e4m3", "bf16", "f32"), "FWD_D", "f8_e4m3:f8_e4m3:f32"),
        (("s32", "u8", "s32"), "FWD_D", "s8:u8:s32"), (("f32", "s8", "f32"), "FWD_D", "s8:s8:f32"),
        (("u8", "f32", "u8"), "FWD_D", "u8:s8:u8"), (("s32", "bf16", "s8"), "BWD_D", "s32:s8:s8"),
        (("s32", "bf16", "f32"), "BWD_D", "f32:bf16:f32"), (("s8", "f16", "s32"), "BWD_W", "f32:f16:f32"),
        (("f64", "f32", "f32"), "BWD_W", "f64"), (("u8", "s8", "f64"), "FWD_D", "f64"),
    ],
)  # fmt: skip
def test_the_nearest_types(dt: tuple[str, str, str], direction: str, nearest: str) -> None:
    with pytest.raises(UnsupportedError, match=f"the nearest is --dt={nearest}$"):
        check_types(dt, direction)


@pytest.mark.parametrize("dt", [("f32", "f32"), "f32", ("f32", "f32", 3), None, ("f32",) * 4])
def test_three_types_are_expected(dt: object) -> None:
    with pytest.raises(UsageError, match="expected the types of source, weights and destination"):
        check_types(dt, "FWD_D")  # type: ignore[arg-type]


def test_types_of_a_bias() -> None:
    for dt, acc in ((("f32",) * 3, "f32"), (("bf16",) * 3, "f32"), (("u8", "s8", "s32"), "s32"), (("f64",) * 3, "f64")):
        default = "f64" if "f64" in dt else "f32"
        assert checked_bias_type("", dt, acc) == checked_bias_type(default, dt, acc) == ""
        for name in TYPES.keys() - {default}:
            if name in NARROW:
                with pytest.raises(UnsupportedError, match=rf"--bia-dt: {name} is not available; available: f32"):
                    checked_bias_type(name, dt, acc)
            elif "f64" in (name, default) or (is_integer(name) and acc != "s32"):
                with pytest.raises(UnsupportedError, match=rf"--bia-dt={name} .* the nearest is {default}"):
                    checked_bias_type(name, dt, acc)
            else:
                assert checked_bias_type(name, dt, acc) == name


def test_names_of_types() -> None:
    for name, row in TYPES.items():
        assert array_type(name, "dt") is row and row.name == name and row.bits == 8 * np.zeros(1, row.numpy).nbytes
        assert is_integer(name) == (name in ("s32", "s16", "s8", "u8", "s4", "u4"))
    with pytest.raises(UnsupportedError, match="--dt: f4_e2m1 is not available"):
        array_type("f4_e2m1", "dt")
    with pytest.raises(UsageError, match=r"--bia-dt: 'float32' is unknown; .*f32"):
        array_type("float32", "bia-dt")
    assert print_types(("u8", "s8", "s32")) == "u8:s8:s32" and print_types(("f32", "f32", "f32")) == "f32"
    assert [print_f32(x) for x in (1.0, 0.1, -2.5, 1e39, 100.0)] == ["1", "0.1", "-2.5", "inf", "100"]


@pytest.mark.parametrize("name", TYPES)
def test_conversions_round_to_even_and_saturate(name: str) -> None:
    numbers = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300.0, -300.0, 1e30, -1e30, np.inf, -np.inf, np.nan])
    found = convert(numbers, name)
    assert found.dtype == TYPES[name].numpy
    if not is_integer(name):
        assert found.astype(np.float64)[:5].tolist() == numbers[:5].tolist() and np.isnan(found[-1])
        return
    low, high = ml_dtypes.iinfo(found.dtype).min, ml_dtypes.iinfo(found.dtype).max
    expected = [0, 2, 2, 0, -2, 300, -300, high, low, high, low, 0]
    assert found.tolist() == [min(max(x, low), high) for x in expected]
    whole = np.array([-(2**40), -129, -1, 0, 127, 128, 255, 256, 2**31, 2**40])
    assert convert(whole, name).tolist() == [min(max(x, low), high) for x in whole.tolist()]
