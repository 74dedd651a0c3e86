"""Teams of warps that take turns, as statements of the IR."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError, InternalError
from convsmith.interp import run
from convsmith.interp.memory import InterpError
from convsmith.ir.equal import first_mismatch
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify
from convsmith.passes.take_turns import take_turns

ROUNDS = """kernel k(a: f32[24], c: f32[24])
  for g in 0 .. 1 #grid:
    for x in 0 .. 3:
      alloc s: f32[4] @shared:
        fence barriers
        for i in 0 .. 4 #signalled:
          tensor s[i % 2 * 2] = a[0] dims(2:1, 12:2) box(2, 1) at(0, i + x * 4)
          receive
          for w in 0 .. 1 #warp:
            for l in 0 .. 2 #lane:
              c[i * 2 + l + x * 8] = s[l + i % 2 * 2]
          release step i
"""
TEXT = str(take_turns(parse_kernel(ROUNDS), 2))


def results(text: str) -> np.ndarray:
    kernel = parse_kernel(text)
    verify(kernel)
    arrays = {"a": np.arange(24, dtype=np.float32), "c": np.zeros(24, np.float32)}
    run(kernel, arrays, {}, seed=0)
    return arrays["c"]


def test_rounds_without_a_tile_take_no_turn() -> None:
    assert "if -x + 2 >= 0:" in TEXT
    assert results(TEXT).tolist() == results(ROUNDS).tolist() == [*range(24)]


def test_turns_are_parsed_and_compared() -> None:
    kernel = parse_kernel(TEXT)
    assert str(kernel) == TEXT
    assert first_mismatch(kernel, parse_kernel(TEXT.replace("turn take", "turn pass"))) is not None


@pytest.mark.parametrize(("old", "new", "why"), [
    ("turn take", "fence barriers", "the loop stands before its turn"),
    ("turn pass", "fence barriers", "ends behind its loop, and passes it to no other"),
    ("turn take", "turn pass", "turn pass stands before its turn; legal is a place behind its loop"),
    ("turn pass", "turn take", "turn take stands behind its loop; legal is a place before its turn"),
])  # fmt: skip
def test_a_turn_that_is_left_out_raises(old: str, new: str, why: str) -> None:
    with pytest.raises(InterpError, match=why):
        results(TEXT.replace(old, new))


@pytest.mark.parametrize(("old", "new", "why"), [
    ("turn take", "turn over", "legal is turn take or pass, in a team loop"),
    (" #team", "", "legal is turn take or pass, in a team loop"),
    ("#grid", "#cluster", "a team loop carries no pointers, and stands in grid loops and serial loops only"),
])  # fmt: skip
def test_turns_stand_in_teams(old: str, new: str, why: str) -> None:
    with pytest.raises(InternalError, match=why):
        verify(parse_kernel(TEXT.replace(old, new)))


@pytest.mark.parametrize(("old", "new", "teams", "why"), [
    ("3", "3", 1, "1 teams; legal are two and more"),
    ("for x in 0 .. 3:", "for x in 0 .. 3 #grid:", 2, "a group computes one tile"),
    ("for x in 0 .. 3:", "for x in 1 .. 3:", 2, "legal is one loop from 0"),
    ("at(0, i + x * 4)", "at(0, i + x * 4) if -x >= 0", 2, "copies that serve several rounds"),
    ("          receive", "          receive\n          fence shared", 2, "threads meet in steps of loop x"),
])  # fmt: skip
def test_other_rounds_are_refused(old: str, new: str, teams: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        take_turns(parse_kernel(ROUNDS.replace(old, new)), teams)
