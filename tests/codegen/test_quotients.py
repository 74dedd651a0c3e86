"""Quotients by one number that are rounded to bytes: exact products and fused steps, and divisions elsewhere."""

from __future__ import annotations

import re

import numpy as np
import pytest

import convsmith as cs
from convsmith.codegen.quotients import MAX_ADDED, MAX_DIVISOR
from convsmith.compiler.driver import lower
from convsmith.diag.errors import UnsupportedError
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.reference import reference
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

Longs = np.ndarray[tuple[int], np.dtype[np.int64]]
UNIT = 1 << 23
"""The fraction of an f32 counts these parts of 1."""


def nearest(number: Longs, divisor: Longs | np.int64) -> Longs:
    """Return whole quotients, rounded to nearest even."""
    whole, rest = np.divmod(number, divisor)
    rounded: Longs = whole + ((2 * rest > divisor) | ((2 * rest == divisor) & (whole % 2 == 1)))
    return rounded


def by_products(a: Longs, b: Longs) -> tuple[Longs, Longs]:
    """Return the quotients of fractions by a product and two fused steps, and as they are rounded, in the same parts.
    """
    reciprocal = nearest(np.full_like(b, 1 << 47), b)
    above = a * reciprocal >= 1 << 47
    q = np.where(above, nearest(a * reciprocal, np.int64(1 << 24)), nearest(a * reciprocal, np.int64(1 << 23)))
    number = np.where(above, a * UNIT, a * UNIT * 2)
    rest = number - q * b
    assert np.abs(rest).max() < 1 << 25
    size = np.abs(rest)
    rest = np.sign(rest) * np.where(size < 1 << 24, size, nearest(size, np.int64(2)) * 2)  # f32 has 24 bits
    product = rest * reciprocal
    return q + nearest(product, np.int64(1 << 47)), nearest(number, b)


def near_middles(b: Longs, above: bool) -> tuple[Longs, Longs]:
    """Return fractions and divisors, among ``b``, whose quotient is close to the middle between two numbers.

    With quotients of 24 bits, ``2 * a * 2**shift`` differs from an odd multiple of ``b`` by a small multiple of the
    power of two in ``b``; the error before the last rounding is less than 8 such differences of 1.
    """
    shift = 24 if above else 25
    found: list[tuple[Longs, Longs]] = []
    for power in range(5):
        some = b[b % (2 << power) == 1 << power]
        odd, bits = some >> power, shift - power
        inverse = odd.copy()
        for _ in range(5):
            inverse = inverse * (2 - odd * inverse) % (1 << bits)
        for apart in range(1, (16 >> power) + 1, 2):
            for sign in (-1, 1):
                for more in range(1 << 25 - bits):
                    twice = -sign * apart * inverse % (1 << bits) + (more << bits)
                    whole = twice * some + sign * apart * (1 << power)
                    a = whole >> shift
                    good = (twice % 2 == 1) & (a << shift == whole) & (a >= UNIT) & (a < 2 * UNIT)
                    good &= (a >= some) if above else (a < some)
                    found.append((a[good], some[good]))
    return np.concatenate([a for a, _ in found]), np.concatenate([d for _, d in found])


@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize("part", range(64))
@pytest.mark.sampled(96, "above")
def test_a_product_and_two_fused_steps_divide_exactly(part: int, above: bool) -> None:
    divisors = np.arange(UNIT + part * (UNIT // 64), UNIT + (part + 1) * (UNIT // 64), dtype=np.int64)
    a, b = near_middles(divisors, above)
    others, _ = near_middles(divisors, not above)  # many, where there are few numerators on this side of a divisor
    assert len(a) and len(a) + len(others) > len(divisors) / 2
    made, rounded = by_products(a, b)
    assert np.array_equal(made, rounded)


SCALES = [
    2.0, 0.3, -0.7, 1.0 / 3, 1e-3, 3e5, MAX_DIVISOR, 1 / MAX_DIVISOR, 1.0000002 * MAX_DIVISOR, 0.9 / MAX_DIVISOR,
    1e-38, -1e-45, 3e38, 1.7e38,
]  # fmt: skip
POINTS = [0, 3, 255, -128, int(MAX_ADDED), -int(MAX_ADDED), int(MAX_ADDED) + 1, 1 << 22, -(1 << 24) - 1, 2**31 - 1]


@pytest.mark.sampled(5, "level", "types", "bias")
@pytest.mark.parametrize("level", ["avx512", "avx2", "generic", "avx512, alone", "avx2, alone"])
@pytest.mark.parametrize("types", ["u8:s8:u8", "u8:s8:s8"])
@pytest.mark.parametrize("bias", [False, True])
def test_all_scales_and_zero_points_give_the_references_bytes(level: str, types: str, bias: bool) -> None:
    """Registers of results are stored alone, or with adjacent ones."""
    level, _, alone = level.partition(", ")
    attributes = "--attr-scales=src:common:1+wei:per_oc+dst:common:1 --attr-zero-points=dst:common:1"
    options = f"--dir={'FWD_B' if bias else 'FWD_D'} --dt={types} {attributes} --stag=axb --dtag=axb"
    line = f"{options} mb1ic4ih5iw7oc32kh1kw1"
    try:
        words = f"--lane=oc --register=ow:4,oc:{target(level).lanes(32)}" if alone else None
        kernel = cs.compile(line, target=level, threads=1, config=words)
        kernel.run(**arrays(line, 1.0, 0))
    except UnsupportedError as error:
        pytest.skip(str(error))
    for scale in SCALES:
        for point in POINTS:
            given = arrays(line, scale, point)
            with np.errstate(all="ignore"):
                expected = reference(kernel.problem, given, np.float32)["dst"]
            result = kernel.run(**given)["dst"]
            assert np.array_equal(result, expected), (scale, point)


@pytest.mark.parametrize("channels", [24, 40, 7])
def test_vectors_that_are_not_full_divide_only_by_far_numbers(channels: int) -> None:
    """The lanes that are not stored need no quotient; 8 pixels by 24 channels share the branches."""
    attributes = "--attr-scales=wei:per_oc+dst:common:2 --attr-zero-points=dst:common:4"
    problem = parse_problem(f"--dt=u8:s8:u8 {attributes} --stag=axb --dtag=axb mb1ic4ih1iw8oc{channels}kh1kw1")
    words = "--lane=oc --register=ow:8,oc:32 --order=mb,oh,oc,ow --reduce=kh,kw,ic"
    config = Config.parse(f"--target=avx512_vnni {words} --instruction=vpdpbusd_512 --k_step=ic:4")
    with interning():
        text = lower(plan_for(problem.canonical(), config, target("avx512_vnni"))).text
    blocks = re.split(r"^([\w.]+):$", text, flags=re.MULTILINE)
    labels = [label for label, code in zip(blocks[1::2], blocks[2::2]) if "fdiv <16 x float>" in code]
    assert labels and all(label.startswith("far") for label in labels)


def arrays(line: str, scale: float, point: int) -> dict[str, np.ndarray]:
    """Return arrays whose results are spread around the bytes' limits and between them, ties and infinities included.
    """
    problem, rng = parse_problem(line), np.random.default_rng(abs(point) % 1000)
    given = {
        "src": rng.integers(0, 256, (1, 4, 5, 7), np.uint8), "wei": rng.integers(-128, 128, (32, 4, 1, 1), np.int8),
        "scales_src": np.array([1], np.float32), "scales_dst": np.array([scale], np.float32),
        "zero_points_dst": np.array([point], np.int32),
    }  # fmt: skip
    near = np.float32(abs(scale))
    sizes = np.array([1 / 256, 0.5 / 256, 1 / 1024, 1, 2**-10, 300, 1e30, 1e-30]) * float(near) * (1 + abs(point) / 1e5)
    given["scales_wei"] = np.tile(np.clip(sizes, 1e-45, 3e38), 4).astype(np.float32)
    if problem.bias:
        with np.errstate(all="ignore"):
            given["bia"] = (near * rng.integers(-300, 300, 32) / 2 - near * np.float32(point)).astype(np.float32)
        given["bia"][-4:] = np.inf, -np.inf, np.nan, -0.0
    return given


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mb1ic64ih8oc32oh8kh1", "--fuse=oh+ow --register=oh_ow:32,oc:32 --order=mb,oh_ow,oc"),
        ("mb1ic64ih7oc64oh7kh1", "--register=ow:7,oc:32 --order=mb,oh,ow,oc"),
        ("mb1ic64ih8iw34oc64oh6ow32kh3kw3ph0pw0", "--register=ow:32,oc:32 --order=mb,oh,ow,oc"),
    ],
    ids=["whole fragments", "rows of a part of a fragment", "between products"],
)
def test_a_loop_that_writes_results_computes_constant_values_once(line: str, words: str) -> None:
    attributes = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
    problem = parse_problem(f"--dt=u8:s8:u8 {attributes} --stag=axb --dtag=axb {line}").canonical()
    level, offsets = target("avx512_amx"), "--instruction=tdpbusd_16 --k_step=ic:64 --offsets=sums"
    config = Config.parse(f"--target=avx512_amx --lane=oc {words} --reduce=kh,kw,ic {offsets}")
    with interning():
        text = lower(plan_for(problem, config, level)).text
    tiles = [x for x in text.split("\ndefine ")[1:] if "_tile" in x.splitlines()[0] and "fmul <16 x float>" in x]
    assert tiles
    for tile in tiles:
        loops = tile[tile.index(" = phi ") :]
        assert "fmul <16 x float>" in loops and "sub <16 x i32>" in loops
        assert not any(x in loops for x in (" mul <16 x i32>", "fdiv float", "load float", "load <16 x float>"))


@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_quotients_half_way_between_two_bytes_are_rounded_to_even(level: str) -> None:
    """A product by the reciprocal is above the middle, or below it, for some of the numerators."""
    options = "--dir=FWD_B --dt=u8:s8:u8 --attr-scales=dst:common:1 --stag=axb --dtag=axb"
    kernel = cs.compile(f"{options} mb1ic4ih1iw3oc256kh1kw1", target=level, threads=1)
    middles = np.arange(256, dtype=np.float32) - np.float32(0.5)
    differ = 0
    for divisor in map(np.float32, (3, 41, 49, 123, 1025, 0.75, 1.3125)):
        bias = divisor * middles
        given = {
            "src": np.zeros((1, 4, 1, 3), np.uint8), "wei": np.zeros((256, 4, 1, 1), np.int8), "bia": bias,
            "scales_dst": np.array([divisor], np.float32),
        }  # fmt: skip
        try:
            result = kernel.run(**given)["dst"]
        except UnsupportedError as error:
            pytest.skip(str(error))
        assert np.array_equal(result[0, :, 0, 0], np.rint(middles).clip(0, 255).astype(np.uint8)), divisor
        differ += int(np.count_nonzero(np.rint(bias * (np.float32(1) / divisor)) != np.rint(middles)))
    assert differ > 20


@pytest.mark.parametrize("channels", [16, 32, 48])
@pytest.mark.parametrize("types", ["u8:s8:u8", "u8:s8:s8"])
def test_one_clamp_suffices_where_words_are_rounded(types: str, channels: int) -> None:
    """Two registers whose bytes are stored together are saturated as signed words, a register of u8 without a sign."""
    line = f"--dt={types} --attr-scales=dst:common:2 --stag=axb --dtag=axb mb1ic64ih8oc{2 * channels}oh8kh1"
    with interning():
        config = Config.parse(f"--target=avx512_vnni --lane=oc --register=ow:4,oc:{channels} --reduce=kh,kw,ic")
        text = lower(plan_for(parse_problem(line).canonical(), config, target("avx512_vnni"))).text
    near = "\n".join(block.partition("\n  br ")[0] for block in text.split("\nnear")[1:])
    steps = sum(block.partition("\n  br ")[0].count("llvm.fma") for block in text.split("\nother")[1:])
    quotients, vectors = steps // 2, channels // 16
    limits = re.findall(r"fcmp ogt <16 x float> %[\w.]+, (%[\w.]+)\n.*, <16 x float> (%[\w.]+), ", near)
    upper = [limit for limit, first in limits if first == limit]
    joined = quotients * (vectors // 2 * 2) // vectors
    assert len(limits) == quotients > vectors  # several share their branches
    assert len(upper) == (quotients if types == "u8:s8:s8" else joined) and "fcmp olt" not in near
    assert near.count("fcmp ord") == (quotients if types == "u8:s8:s8" else 0)
    assert text.count("call <32 x i16> @llvm.x86.avx512.packssdw.512") == joined // 2
