"""Gathers as machine code: every lane is right, and nothing is read before the first or after the last of them."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from guarded import PageEnd
from natives import assert_same_bits, llvm_text, run_native

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.types import DTYPES
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, target


def offsets(lanes: int, rng: random.Random) -> dict[str, list[int]]:
    """Lane maps by what they are made of."""
    groups = {f"{c}-of-{step}": [n // c * step for n in range(lanes)] for c, step in ((2, 2), (3, 3), (3, 5), (6, 6))}
    return groups | {
        "every-second": [n * 2 for n in range(lanes)],
        "every-third": [n * 3 for n in range(lanes)],
        "adjacent": [*range(lanes)],
        "one": [0] * lanes,
        "backwards": [-n for n in range(lanes)],
        "rows": [n // (lanes // 2) * 50 + n % (lanes // 2) for n in range(lanes)],
        "four rows": [n // (lanes // 4 or 1) * 33 + n % (lanes // 4 or 1) for n in range(lanes)],
        "any": [0, *(rng.randrange(-lanes, lanes) for _ in range(lanes - 1))],
    }


@pytest.mark.sampled(7, "name")
@pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "u8"])
def test_gathers(name: str, target: Machine) -> None:
    rng, end, t = random.Random(0), PageEnd(), DTYPES[name].numpy
    params, lines, inputs, outputs = [], [], {}, {}
    cases = [
        (n, p, first, end) for n in (4, 16) for p in offsets(n, rng).values()
        for first, end in ((0, n), (0, n - 1), (0, n // 2 + 1), (1, n), (n // 2, n - 1))
    ]  # fmt: skip
    for n, (lanes, places, first, active) in enumerate(cases):
        used = places[first:active]
        inputs[f"a{n}"] = end(np.arange(1, max(used) - min(used) + 2).astype(t))
        outputs[f"out{n}"] = np.zeros(lanes, t)
        params.append(f"a{n}: {name}[{len(inputs[f'a{n}'])}], out{n}: {name}[{lanes}]")
        where = f"[{-min(used)}]{{({', '.join(map(str, places))})/{first}:{active}}}"
        lines.append(f"  out{n}[0]{{{lanes}}} = a{n}{where}\n")
    kernel = parse_kernel(f"kernel k({', '.join(params)})\n{''.join(lines)}")
    expected = {x: out.copy() for x, out in outputs.items()}
    run(kernel, {**inputs, **expected})
    run_native(kernel, {**inputs, **outputs}, target)
    for x, out in outputs.items():
        assert_same_bits(out, expected[x])


@pytest.mark.parametrize("active", [16, 13])
@pytest.mark.parametrize(("step", "single"), [(2, False), (3, True)])
def test_two_vectors_hold_what_is_read(step: int, single: bool, active: int) -> None:
    """Beyond that, rows of adjacent lanes are read one by one."""
    places = ", ".join(str(n // 2 * 2 * step + n % 2) for n in range(16))
    kernel = parse_kernel(f"kernel k(a: f32[64], out: f32[16])\n  out[0]{{16}} = a[0]{{({places})/{active}}}")
    assert ("load <2 x float>" in llvm_text(kernel, host_targets()[0])) is single


@pytest.mark.parametrize(("name", "whole"), [("u8", 2), ("bf16", 2), ("f32", 1)])
def test_the_second_vector_ends_with_what_is_read(name: str, whole: int) -> None:
    """Types without masked loads have two whole vectors in place of parts of the second one."""
    kernel = parse_kernel(f"kernel k(a: {name}[15], out: {name}[8])\n  out[0]{{8}} = a[0]{{8:2}}")
    text = llvm_text(kernel, target("avx2"))
    assert len(re.findall(r"= load <8 x ", text)) == whole and ("masked.load" in text) is (whole == 1)


@pytest.mark.parametrize("target", host_targets(), ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["f32", "bf16", "u8"])
def test_stores_of_rows(name: str, target: Machine) -> None:
    t, params, lines, outputs = DTYPES[name].numpy, [], [], {}
    cases = [(rows, active) for rows in (2, 4) for active in (16, 15, 8, 5, 1)]
    for n, (rows, active) in enumerate(cases):
        width = 16 // rows
        outputs[f"out{n}"] = np.zeros(33 * (rows - 1) + width, t)
        places = ", ".join(str(lane // width * 33 + lane % width) for lane in range(16))
        params.append(f"out{n}: {name}[{len(outputs[f'out{n}'])}]")
        lines.append(f"  out{n}[0]{{({places})/{active}}} = a[0]{{16}}\n")
    kernel = parse_kernel(f"kernel k(a: {name}[16], {', '.join(params)})\n{''.join(lines)}")
    inputs, expected = {"a": np.arange(1, 17).astype(t)}, {x: out.copy() for x, out in outputs.items()}
    run(kernel, {**inputs, **expected})
    run_native(kernel, {**inputs, **outputs}, target)
    for x, out in outputs.items():
        assert_same_bits(out, expected[x])


def test_a_row_is_one_access() -> None:
    """Blocks of 8 channels in vectors of 16 lanes: two loads and two stores, of any distance."""
    places = ", ".join(str(n // 8 * 784 + n % 8) for n in range(16))
    kernel = parse_kernel(
        f"kernel k(a: f32[792], out: f32[792])\n  out[0]{{({places})}} = a[0]{{({places})}}\n"
    )  # fmt: skip
    text = llvm_text(kernel, host_targets()[0])
    assert text.count("load <8 x float>") == 2 == text.count("store <8 x float>")
    assert "insertelement" not in text and "extractelement" not in text
