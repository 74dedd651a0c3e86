"""`gemm_lowp` against exact integers, gemmlowp's known answers, and every order of storage."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

import convsmith as cs
from convsmith.machine.registry import host_targets
from convsmith.problem import reference
from convsmith.problem.data import random_arrays
from convsmith.problem.low_precision import FULL, low_precision_reference
from convsmith.problem.output_stages import staged
from convsmith.statement.epilogue import DIVIDE

DATA = Path(__file__).parents[1] / "data"
PRODUCTS = np.load(DATA / "gemmlowp_products.npz")
TYPES = (np.uint8, np.int8)
OFFSETS: dict[str, tuple[Any, Any]] = {
    "none": (0, 0),
    "both": (-75, -91),
    "rows": (np.arange(13) * 7 - 20, 5),
    "columns": (5, np.arange(37) - 100),
    "each": (np.arange(13), np.arange(37)),
}


def matrix(rows: int, columns: int, dtype: Any, seed: int = 0) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, (rows, columns), dtype, endpoint=True)


def exact(lhs: np.ndarray, rhs: np.ndarray, lhs_offset: Any = 0, rhs_offset: Any = 0) -> np.ndarray:
    return (lhs + np.reshape(lhs_offset, (-1, 1))) @ (rhs + np.reshape(rhs_offset, (1, -1)))


@pytest.mark.sampled(2, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["small", "rows", "network"])
def test_known_answers(name: str, threads: int) -> None:
    given = {key.partition(".")[2]: PRODUCTS[key] for key in PRODUCTS if key.startswith(name + ".")}
    product = (given["lhs"], given["rhs"], given["lhs_offset"], given["rhs_offset"])
    assert np.array_equal(cs.gemm_lowp(*product, threads=threads), given["acc_int32"])
    offset, mult = (np.reshape(given[key], (-1, 1)) for key in ("result_offset", "result_mult_int"))
    stages = [("scale", offset, mult, int(given["result_shift"])), ("saturate_u8",)]
    assert np.array_equal(cs.gemm_lowp(*product, output_stages=stages, threads=threads), given["expected"])


@pytest.mark.sampled(6, "left+right", wide=1, every="offsets")
@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize(("left", "right"), list(itertools.product(TYPES, TYPES)))
def test_types_and_offsets(left: Any, right: Any, offsets: str) -> None:
    lhs, rhs = matrix(13, 70, left), matrix(70, 37, right, 1)
    acc = exact(lhs, rhs, *OFFSETS[offsets])
    for order in ("row", "column"):
        result = cs.gemm_lowp(lhs, rhs, *OFFSETS[offsets], order=order, threads=1)
        assert result.dtype == np.int32
        assert np.array_equal(result, acc)
        assert result.flags.c_contiguous == (order == "row")
    shift = max(int(acc.std() / 40).bit_length(), 0)
    stages = [("bias", -int(np.median(acc))), ("fixed_point", 1518500250, shift, 128), ("saturate_u8",)]
    bytes_ = cs.gemm_lowp(lhs, rhs, *OFFSETS[offsets], output_stages=stages, threads=1)
    assert bytes_.dtype == np.uint8
    assert np.array_equal(bytes_, staged(acc, stages))
    assert np.unique(bytes_).size > 50


@pytest.mark.sampled(2, "left", "right", "result")
@pytest.mark.parametrize(("left", "right", "result"), list(itertools.product("CF", repeat=3)))
def test_storage_orders(left: str, right: str, result: str) -> None:
    lhs, rhs = np.asarray(matrix(9, 33, np.uint8), order=left), np.asarray(matrix(33, 20, np.uint8, 1), order=right)
    out = np.zeros((9, 20), np.uint8, order=result)
    stages = [("bias", np.arange(9)[:, None]), ("bias", np.arange(20)), ("scale", 100, 17, 12), ("truncate_u8",)]
    found = cs.gemm_lowp(lhs, rhs, 12, -34, output_stages=stages, out=out, threads=2)
    assert found is out
    assert np.array_equal(out, staged(exact(lhs, rhs, 12, -34), stages))


def test_arrays_with_other_strides() -> None:
    lhs, rhs = matrix(18, 66, np.uint8)[::2, ::-2], matrix(33, 40, np.int8, 1)[:, ::2]
    out = np.zeros((9, 60), np.int32)[:, ::3]
    lhs.flags.writeable = False
    assert cs.gemm_lowp(lhs, rhs, 3, 4, out=out) is out
    assert np.array_equal(out, exact(lhs, rhs, 3, 4))


STAGES: list[list[tuple[Any, ...]]] = [
    [("scale", 74980, 123, 20)],
    [("fixed_point_exponent", 1518500250, -9, 3), ("saturate_s8",)],
    [("fixed_point_exponent", np.array([[1 << 30], [3 << 29]] * 4), np.arange(-4, 4)[:, None], 3), ("saturate_s16",)],
    [("fixed_point_exponent", 1 << 30, np.arange(-10, 10), 3), ("saturate_s16",)],
    [("bias", np.arange(160).reshape(8, 20)), ("tanh", 5, 100_000)],
    [("scale", np.arange(20) * 100, np.arange(20) + 1, 12), ("clamp", -3, 3), ("bias", 100), ("saturate_u8",)],
    [("truncate_u8",)],
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stages", STAGES, ids=lambda s: "-".join(stage[0] for stage in s))
@pytest.mark.parametrize("order", ["row", "column"])
def test_output_stages(stages: list[tuple[Any, ...]], order: str) -> None:
    lhs, rhs = matrix(8, 40, np.uint8), matrix(40, 20, np.int8, 1)
    result = cs.gemm_lowp(lhs, rhs, -7, 9, output_stages=stages, order=order)
    expected = staged(exact(lhs, rhs, -7, 9), stages)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)


def fewer_bits(
    lhs: np.ndarray, rhs: np.ndarray, offsets: tuple[int, int], bits: tuple[int, int], seed: int | None
) -> list[list[int]]:
    """The formulae one number at a time; s8 entries as u8, 128 more."""
    rng = None if seed is None else np.random.default_rng(seed)
    entries = []
    tops = [2**b - 1 for b in bits]
    offs = list(offsets)
    for n, x in enumerate((lhs, rhs)):
        values = x.astype(int)
        if x.dtype == np.int8:
            values, offs[n] = values + 128, offs[n] - 128
        r = np.full(x.shape, 127) if rng is None or bits[n] == 8 else rng.integers(0, 255, x.shape)
        entries.append((values * tops[n] + r) // 255 if bits[n] < 8 else values)
    left, right = entries
    depth = lhs.shape[1]

    def nearest(x: Fraction) -> int:
        return floor(abs(x) + Fraction(1, 2)) * (1 if x >= 0 else -1)

    def element(row: np.ndarray, column: np.ndarray) -> int:
        total = nearest(Fraction(int(row @ column) * 255 * 255, tops[0] * tops[1]))
        total += nearest(Fraction(int(row.sum()) * offs[1] * 255, tops[0]))
        total += nearest(Fraction(int(column.sum()) * offs[0] * 255, tops[1]))
        return total + offs[0] * offs[1] * depth

    return [[element(row, column) for column in right.T] for row in left]


@pytest.mark.sampled(10, "left+right")
@pytest.mark.parametrize("rounding", ["nearest", "probabilistic"])
@pytest.mark.parametrize(("left", "right"), list(itertools.product(TYPES, TYPES)))
@pytest.mark.parametrize("bits", [(7, 5), (1, 8), (8, 4), (1, 1), (3, 2)])
def test_fewer_bits(bits: tuple[int, int], left: Any, right: Any, rounding: str) -> None:
    lhs, rhs = matrix(5, 30, left), matrix(30, 7, right, 1)
    found = cs.gemm_lowp(lhs, rhs, -75, 13, bits=bits, rounding=rounding, seed=3)
    expected = fewer_bits(lhs, rhs, (-75, 13), bits, 3 if rounding == "probabilistic" else None)
    assert found.tolist() == expected
    stages = [("scale", 5, 17, 14), ("saturate_u8",)]
    result = cs.gemm_lowp(lhs, rhs, -75, 13, bits=bits, rounding=rounding, seed=3, output_stages=stages)
    assert np.array_equal(result, staged(np.array(expected), stages))


def test_fewer_bits_with_offsets_for_rows_and_columns() -> None:
    lhs, rhs = matrix(3, 30, np.uint8), matrix(30, 4, np.uint8, 1)
    rows, columns = np.array([-5, 0, 70]), np.array([1, -2, 3, 4])
    found = cs.gemm_lowp(lhs, rhs, rows, columns, bits=(7, 5))
    for (i, a), (j, b) in itertools.product(enumerate(rows.tolist()), enumerate(columns.tolist())):
        assert found[i, j] == fewer_bits(lhs[i : i + 1], rhs[:, j : j + 1], (a, b), (7, 5), None)[0][0]


@pytest.mark.sampled(3, "types")
@pytest.mark.parametrize("isa", [t.name for t in host_targets()])
@pytest.mark.parametrize("types", ["u8:u8:s32", "s8:s8:s32"])
def test_entries_are_requantised_while_packing(isa: str, types: str) -> None:
    """The packing kernels of both sides take the entries as they are, and what is added to each."""
    points = "--attr-zero-points=src:per_dim_0+wei:per_oc"
    line = f"--matmul --bits=7:5 --rounding=probabilistic --dt={types} {points} 19x70:70x37"
    kernel = cs.compile(line, target=isa, threads=1)
    assert kernel.config.staged("pack") == ("src", "wei") and kernel.config.offsets == "sums"
    arrays = random_arrays(kernel.problem, 1)
    for name in ("src", "wei"):
        limits = np.iinfo(arrays[name].dtype)
        arrays[name] = matrix(*arrays[name].shape, arrays[name].dtype)
        assert arrays[name].max() == limits.max
    truth = reference(kernel.problem, arrays)["dst"]
    assert np.array_equal(kernel.run(**arrays)["dst"], truth)
    assert set(kernel.artifact.steps) == {"main"}
    with pytest.raises(
        cs.UsageError, match=r"wei is packed with rounding_wei: legal is k\.run\(src=\.\.\., rounding_src"
    ) as e:
        kernel.pack(arrays["wei"])
    assert e.value.code == "packing"
    with pytest.raises(cs.ConfigError, match="legal are --offsets=sums and --pack=src,wei") as error:
        cs.compile(line, config="--target=generic --lane=n --register=n:4,m:2 --offsets=sums")
    assert error.value.code == "bits"


def test_division_by_255_is_exact() -> None:
    """As the packing kernel does it, for each entry, each number of bits, and whatever is added."""
    x = np.arange(255 * 127 + 255, dtype=np.int64)
    assert np.array_equal(x // FULL, x * ((1 << DIVIDE) // FULL + 1) >> DIVIDE)
    assert int(x[-1]) * ((1 << DIVIDE) // FULL + 1) < 2**31


def test_terms_that_leave_32_bits_are_refused() -> None:
    lhs, rhs = np.zeros((2, 300), np.uint8), np.zeros((300, 2), np.uint8)
    assert cs.gemm_lowp(lhs, rhs, -128, -40_000)[0, 0] == 300 * 128 * 40_000
    with pytest.raises(cs.UsageError, match=r"300 \* 255 \* 40000 = 3060000000, beyond 32 bits"):
        cs.gemm_lowp(lhs, rhs, -128, -40_000, bits=(7, 7))


def test_probabilistic_rounding_is_the_better_one_for_deep_sums() -> None:
    """Entries that all round the same way: their error adds up, unless it is drawn."""
    lhs, rhs = np.full((4, 5000), 100, np.uint8), np.full((5000, 4), 100, np.uint8)
    true = exact(lhs, rhs)
    errors = [
        np.abs(cs.gemm_lowp(lhs, rhs, bits=(5, 5), rounding=r) - true).max() for r in ("nearest", "probabilistic")
    ]
    assert errors[1] * 4 < errors[0]
    assert np.array_equal(*(cs.gemm_lowp(lhs, rhs, bits=(5, 5), rounding="probabilistic", seed=7) for _ in range(2)))


@examples(25)
@given(
    st.tuples(*[st.sampled_from([1, 2, 3, 5, 8, 17, 33])] * 3), st.sampled_from(TYPES), st.sampled_from(TYPES),
    st.integers(-300, 300), st.integers(-300, 300), st.integers(0, 99),
)  # fmt: skip
def test_random_products(sizes: tuple[int, int, int], left: Any, right: Any, a: int, b: int, seed: int) -> None:
    m, k, n = sizes
    lhs, rhs = matrix(m, k, left, seed), matrix(k, n, right, seed + 1)
    assert np.array_equal(cs.gemm_lowp(lhs, rhs, a, b), exact(lhs, rhs, a, b))


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_empty(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    lhs, rhs = matrix(m, k, np.uint8), matrix(k, n, np.uint8)
    stages = [("bias", 300), ("saturate_u8",)]
    assert np.array_equal(cs.gemm_lowp(lhs, rhs, 1, 2, output_stages=stages), np.full((m, n), 255, np.uint8))
    assert cs.gemm_lowp(lhs, rhs, 1, 2, bits=(3, 3)).shape == (m, n)


CALLS: list[dict[str, Any]] = [
    {},
    {"lhs_offset": -5, "rhs_offset": -3},
    {"lhs_offset": -5, "rhs_offset": -3, "order": "column"},
    {"rhs_offset": np.arange(37) - 9},
    {"lhs_offset": np.arange(13) - 9, "rhs_offset": 4},
    {"lhs_offset": np.arange(13) - 9, "rhs_offset": np.arange(37) - 9},
    {"lhs_offset": 7, "rhs_offset": np.arange(37) - 9, "bits": (7, 5)},
    {"lhs_offset": 7, "bits": (5, 8), "rounding": "probabilistic", "seed": 5},
    {"rhs_offset": 7, "bits": (8, 5), "rounding": "probabilistic", "seed": 6},
    {"lhs_offset": 7, "output_stages": [("bias", np.arange(37)), ("fixed_point", 1518500250, 8, 3), ("saturate_u8",)]},
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("arguments", CALLS)
@pytest.mark.parametrize("storage", ["C", "F"])
def test_a_later_call_finds_its_plan(arguments: dict[str, Any], storage: Any) -> None:
    """Other entries, then other numbers: each result is that of its own arguments."""
    for seed in range(3):
        lhs, rhs = matrix(13, 70, np.uint8, seed), np.asarray(matrix(70, 37, np.uint8, seed + 9), order=storage)
        meaning = {name: value for name, value in arguments.items() if name != "order"}
        expected = low_precision_reference(lhs, rhs, **meaning)
        assert np.array_equal(cs.gemm_lowp(lhs, rhs, threads=1, **arguments), expected)
        product = cs.pack_lowp(13, rhs, threads=1, **arguments)
        assert np.array_equal(product(lhs), expected)
        out = np.zeros_like(expected)
        assert product(lhs, out=out) is out and np.array_equal(out, expected)


def test_another_seed_is_another_plan() -> None:
    lhs, rhs = matrix(9, 40, np.uint8), matrix(40, 7, np.uint8)
    for seed in (1, 2, 1):
        found = cs.gemm_lowp(lhs, rhs, bits=(4, 4), rounding="probabilistic", seed=seed)
        words = {"bits": (4, 4), "rounding": "probabilistic", "seed": seed}
        assert np.array_equal(found, low_precision_reference(lhs, rhs, **words))


def test_numbers_that_change_are_seen() -> None:
    lhs, rhs, bias = matrix(3, 20, np.uint8), matrix(20, 5, np.uint8), np.arange(5)
    for step in range(3):
        bias += step
        found = cs.gemm_lowp(lhs, rhs, step, output_stages=[("bias", bias)], threads=1)
        assert np.array_equal(found, exact(lhs, rhs, step) + bias)


def test_errors_after_a_call_that_was_right() -> None:
    """A kernel that is found again still has its arguments checked."""
    lhs, rhs = matrix(3, 20, np.uint8), matrix(20, 5, np.uint8)
    cs.gemm_lowp(lhs, rhs)
    for arguments in ({"rounding": "up"}, {"order": "none"}, {"lhs_offset": 1.0}, {"output_stages": [("none",)]}):
        with pytest.raises(cs.UsageError):
            cs.gemm_lowp(lhs, rhs, **arguments)
    for wrong in (lhs[:2], lhs.astype(np.int8), lhs.T, [[1]]):
        with pytest.raises(cs.UsageError, match=r"legal is uint8 of shape \(3, 20\)"):
            cs.pack_lowp(3, rhs)(wrong)
    with pytest.raises(cs.UsageError, match="rows=-1 is not legal"):
        cs.pack_lowp(-1, rhs)
    with pytest.raises(cs.UsageError, match="lhs_type='f4' is not legal: expected uint8 or int8"):
        cs.pack_lowp(3, rhs, lhs_type="f4")
    with pytest.raises(cs.UsageError, match="each 1 to 8"):
        cs.pack_lowp(3, rhs, bits=(8, 9))
