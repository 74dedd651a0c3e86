"""Leading lanes of vectors: stores in parts without a mask, and loads of a word."""

from __future__ import annotations

import pytest

from convsmith.codegen.parts_of_stores import parts_of_store
from convsmith.codegen.word_loads import fills_word
from convsmith.compiler.driver import lower
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.ir.intern import interning
from convsmith.ir.types import dtype
from convsmith.ir.value import strided
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.planned import plan_for
from convsmith.tune.candidates import default_config

LAYER = "--stag=axb --dtag=axb mb1ic3ih5oc{}oh5kh1ph0"


@pytest.mark.parametrize(("name", "updated", "most"), [("f32", False, 2), ("u8", False, 1), ("u8", True, 4)])
def test_parts_are_the_active_lanes(name: str, updated: bool, most: int) -> None:
    t = dtype(name)
    for active in range(1, 16):
        parts = parts_of_store(t, strided(16, 1, active), updated)
        assert not parts or (sum(parts) == active and all(n & (n - 1) == 0 for n in parts))
        assert bool(parts) == (active.bit_count() <= most)
    assert parts_of_store(t, strided(16, 1), updated) == []


@pytest.mark.parametrize(
    ("name", "active", "fills"), [("f32", 1, True), ("f32", 2, True), ("f32", 3, False), ("f32", 4, False),
                                  ("bf16", 1, False), ("bf16", 4, True), ("u8", 8, True), ("u8", 3, False)]
)  # fmt: skip
def test_lanes_that_fill_a_word(name: str, active: int, fills: bool) -> None:
    assert fills_word(dtype(name), strided(16, 1, active)) == fills


def text_of(line: str) -> str:
    problem, level = parse_problem(line), target("avx512")
    with interning():
        return lower(plan_for(problem.canonical(), default_config(problem, level), level)).text


def test_only_sums_avoid_masks_of_many_parts() -> None:
    assert "masked.store" in text_of(LAYER.format(7))
    assert "masked.store" not in text_of("--attr-post-ops=sum " + LAYER.format(7))
    assert "masked.store" not in text_of(LAYER.format(6))


@pytest.mark.sampled(36)
@pytest.mark.parametrize("level", [t.name for t in host_targets()])
@pytest.mark.parametrize("dt", ["f32", "bf16", "u8:s8:u8"])
@pytest.mark.parametrize("channels", [1, 2, 3, 6, 7, 13, 15, 22, 31])
def test_results_are_exact(level: str, dt: str, channels: int) -> None:
    """Whole arrays are compared, so that a part that stores a lane too many is found."""
    line = f"--dt={dt} --attr-post-ops=sum " + LAYER.format(channels)
    assert verify_kernel(compile_kernel(line, target=level, threads=1)).ok
