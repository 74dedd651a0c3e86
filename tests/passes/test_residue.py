"""Residue classes of a loop cover it once, whatever its length; a loop that starts elsewhere is refused."""

from __future__ import annotations

from itertools import product

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.parse import parse_kernel
from convsmith.passes.residue import residue

BODY = "    d[i] = d[i] + a[i // 2] + i_of[i % 3]\n"


@pytest.mark.parametrize(("length", "modulus"), list(product((1, 2, 5, 6), (1, 2, 3, 7))))
def test_every_iteration_runs_once(length: int, modulus: int) -> None:
    kernel = parse_kernel(f"kernel k(a: f32[8], i_of: f32[3], d: f32[8])\n  for i in 0 .. {length}:\n{BODY}")
    assert_same_results(kernel, residue(kernel, "i", modulus, "i.r"))


def test_bounds_that_vary() -> None:
    text = "kernel k(a: f32[8], i_of: f32[3], d: f32[8])\n  for n in 0 .. 4:\n    for i in 0 .. min(n * 2, 5):\n  "
    kernel = parse_kernel(text + BODY)
    assert_same_results(kernel, residue(kernel, "i", 2, "i.r"))


@pytest.mark.parametrize("start", ["1", "-2", "n", "n + 1"])
def test_a_loop_that_does_not_start_at_zero_is_refused(start: str) -> None:
    text = f"kernel k(d: f32[8])\n  for n in 0 .. 2:\n    for i in {start} .. 5:\n      d[i + 2] = 1.0\n"
    kernel = parse_kernel(text)
    with pytest.raises(ConfigError) as error:
        residue(kernel, "i", 2, "i.r")
    assert str(error.value).startswith(f"residue: loop i starts at {start}; only loops from 0 are cut")
    assert error.value.code == "bounds"


def test_there_is_at_least_one_class() -> None:
    kernel = parse_kernel("kernel k(d: f32[8])\n  for i in 0 .. 5:\n    d[i] = 1.0\n")
    with pytest.raises(ConfigError, match="loop i modulo 0; there is at least one class"):
        residue(kernel, "i", 0, "i.r")
