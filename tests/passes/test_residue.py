"""Residue classes of a loop cover it once, whatever its length; a loop that starts elsewhere is refused."""

from __future__ import annotations

from itertools import product

import pytest
from oracles import assert_same_results

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Store
from convsmith.ir.walk import loops_of
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


@pytest.mark.parametrize(("tiles", "groups"), list(product((5, 6, 8, 9, 12, 17), (1, 2, 3, 4, 5))))
def test_groups_that_turn_take_each_tile_once(tiles: int, groups: int) -> None:
    """In a round, the groups have consecutive tiles, and the last group of a round is the first of the next."""
    text = f"kernel k(a: f32[32], d: f32[32])\n  for x in 0 .. {tiles} #grid:\n    d[x] = a[x]\n"
    kernel = parse_kernel(text)
    made = residue(kernel, "x", groups, "g", True)
    assert_same_results(kernel, made)
    over_groups, rounds = loops_of(made.body)
    taken = []
    for g in range(groups):
        store = rounds.body
        assert isinstance(store, Store)
        for x in range(int(evaluate(rounds.hi, {Var("g"): g}))):
            taken.append((int(evaluate(store.index[0], {Var("g"): g, Var("x"): x})), g, x))
    order = [n % groups if n // groups % 2 == 0 else groups - 1 - n % groups for n in range(tiles)]
    assert sorted(taken) == [(n, g, n // groups) for n, g in enumerate(order)] and over_groups.kind == "grid"


@pytest.mark.parametrize("loop", ["x in 0 .. 2 #grid", "x in 0 .. 8"])
def test_groups_that_turn_need_a_tile_each(loop: str) -> None:
    kernel = parse_kernel(f"kernel k(a: f32[32], d: f32[32])\n  for {loop}:\n    d[x] = a[x]\n")
    with pytest.raises(ConfigError, match="legal for turning groups is a loop over groups of at least 3"):
        residue(kernel, "x", 3, "g", True)


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
