"""Signalled loops: the interpreter runs copies and products at once, and misses every statement that orders them."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.diag.errors import InternalError
from convsmith.interp import run
from convsmith.interp.memory import InterpError
from convsmith.ir.equal import first_mismatch
from convsmith.ir.instruction import SHARED, FragmentLayout, Instruction, Operand
from convsmith.ir.parse import parse_kernel
from convsmith.ir.verify import verify
from convsmith.passes.signal_steps import signal_steps

_HELD = FragmentLayout(("l", "e"), 2, elements=2)
ROW = Instruction(
    "product",
    (Operand("c", "f32", (2, 2), _HELD, "lane", "fragment"), Operand("a", "f32", (2, 2), _HELD, SHARED, "shared"),
     Operand("b", "f32", (2, 2), _HELD, SHARED, "shared")),
    "  for m in 0 .. 2:\n    for l in 0 .. 2:\n      for k in 0 .. 2:\n        c[m, l] = c[m, l] + a[m, k] * b[l, k]\n",
    "", "", (), "",
)  # fmt: skip
"""An instruction that reads its factors from shared memory while its threads go on."""
ROUNDS = """\
kernel k(a: f32[24], b: f32[4], c: f32[12])
  for g in 0 .. 1 #grid:
    alloc s: f32[8] @shared:
      alloc f: f32[4] @shared:
        for w in 0 .. 1 #warp:
          for l in 0 .. 4 #lane:
            f[l] = b[l]
        for x in 0 .. 3:
          alloc acc: f32[2, 2] @fragment:
            for w in 0 .. 1 #warp:
              for l in 0 .. 2 #lane:
                acc[l, 0] = 0.0
                acc[l, 1] = 0.0
            fence barriers
            for i in 0 .. 6 #signalled:
              tensor s[i % 2 * 4] = a[0] dims(4:1, 6:4) box(4, 1) at(0, i)
              receive
              fence registers
              fence shared
              for w in 0 .. 1 #warp:
                product(acc[0, 0]{4}, s[i % 2 * 4]{4}, f[0]{4})
              commit products
              wait 1 products
              release step i - 1
            wait 0 products
            release step 5
            for w in 0 .. 1 #warp:
              for l in 0 .. 2 #lane:
                c[l * 2 + x * 4] = acc[l, 0]
                c[l * 2 + x * 4 + 1] = acc[l, 1]
"""
"""A group that computes three tiles, with one factor that a copy engine brings and one that threads store."""


def results(text: str, seed: int) -> np.ndarray:
    """Return ``c`` after a kernel has run on small integers."""
    kernel = parse_kernel(text)
    verify(kernel)
    arrays = {"a": np.arange(24, dtype=np.float32) - 9, "b": np.float32([1, 2, -3, 5]), "c": np.zeros(12, np.float32)}
    run(kernel, arrays, {ROW.name: ROW.kernel}, seed=seed)
    return arrays["c"]


def pipelined() -> str:
    """Return the kernel before the pass that makes the loop a signalled one."""
    words = ("fence", "receive", "commit", "wait", "release")
    lines = [x for x in ROUNDS.splitlines() if not x.strip().startswith(words)]
    return "\n".join(lines).replace("#signalled", "#pipelined") + "\n"


def test_products_are_exact_in_any_order_of_copies() -> None:
    steps = (np.arange(24, dtype=np.float32) - 9).reshape(6, 2, 2)
    wanted = np.tile((steps @ np.float32([[1, 2], [-3, 5]]).T).sum(0).ravel(), 3)
    for text in (ROUNDS, pipelined()):
        for seed in range(6):
            np.testing.assert_array_equal(results(text, seed), wanted)


def test_the_text_is_parsed_to_the_same_kernel_and_the_pass_makes_it() -> None:
    kernel = parse_kernel(ROUNDS)
    assert str(kernel) == ROUNDS and first_mismatch(kernel, parse_kernel(str(kernel))) is None
    for old, new in (("fence shared", "fence registers"), ("release step 5", "release step 4"),
                     ("wait 0 products", "wait 0"), ("commit products", "commit")):  # fmt: skip
        assert first_mismatch(kernel, parse_kernel(ROUNDS.replace(old, new))) is not None
    assert str(signal_steps(parse_kernel(pipelined()), (ROW,))) == ROUNDS


def test_one_slot_waits_for_its_own_products() -> None:
    text = pipelined().replace("s: f32[8]", "s: f32[4]").replace("i % 2 * 4", "0")
    made = str(signal_steps(parse_kernel(text), (ROW,)))
    assert "wait 0 products\n              release step i\n" in made and "release step 5" not in made
    np.testing.assert_array_equal(results(made, 0), results(ROUNDS, 0))


MISSING = {
    "fence barriers": "no fence of barriers stands before the loop",
    "receive": "a product reads element 0 of s before step 0 is received",
    "fence registers": "a product adds to element 0, and no fence of registers stands before it",
    "fence shared": "a product reads element 0 of f, and no fence of shared memory orders it",
    "commit products": "step 0 is released while a product reads element 0 of s",
    "wait 1 products": "step 0 is released while a product reads element 0 of s",
    "release step i - 1": "the copies of step 2 of i wait for a slot, and no step is released",
    "release step 5": "1 steps of the loop before were not released",
    "wait 0 products": "step 5 is released while a product reads element 4 of s",
}
"""Statements, and what the interpreter says without them."""


@pytest.mark.parametrize("line", MISSING)
def test_each_statement_is_missed(line: str) -> None:
    (here,) = (x for x in ROUNDS.splitlines(keepends=True) if x.strip() == line)
    for seed in range(4):
        with pytest.raises(InterpError) as caught:
            results(ROUNDS.replace(here, ""), seed)
        assert MISSING[line] in str(caught.value)


@pytest.mark.parametrize(("old", "new", "why"), [
    ("release step i - 1", "release step i", "step 0 is released while a product reads element 0 of s"),
    ("release step i - 1", "release step i - 2", "wait for a slot"),
    ("release step 5", "release step 4", "step 4 is released; the next one to release is 5"),
    ("wait 0 products\n            release step 5", "wait 1 products", "is accessed while a product adds to it"),
    ("wait 0 products\n            release step 5\n", "pass\n", "is accessed while a product adds to it"),
    ("receive\n", "receive\n              for w in 0 .. 1 #warp:\n                for l in 0 .. 1 #lane:\n"
     "                  s[(i + 1) % 2 * 4] = 1.0\n", "is accessed before step|while a product reads it|was released"),
    ("              receive\n", "              for w in 0 .. 1 #warp:\n                for l in 0 .. 1 #lane:\n"
     "                  c[0] = s[i % 2 * 4]\n              receive\n", "is accessed before step 0 is received"),
    ("              commit", "              for w in 0 .. 1 #warp:\n                for l in 0 .. 1 #lane:\n"
     "                  f[0] = 1.0\n              commit", "element 0 is written while a product reads it"),
])  # fmt: skip
def test_misplaced_statements_are_found(old: str, new: str, why: str) -> None:
    assert ROUNDS.count(old) == 1
    with pytest.raises(InterpError, match=why):
        results(ROUNDS.replace(old, new), 1)


@pytest.mark.parametrize(("old", "new", "why"), [
    ("fence shared", "fence memory", "a fence orders registers or shared or barriers, not memory"),
    ("                c[l * 2 + x * 4] =", "                receive\n                c[l * 2 + x * 4] =",
     "`receive` stands in loops over threads, all of which execute it"),
    ("release step 5", "release step j", "j"),
    ("              tensor", "              receive\n              tensor", "begins with all of its copies"),
])  # fmt: skip
def test_rules(old: str, new: str, why: str) -> None:
    with pytest.raises(InternalError, match=why):
        verify(parse_kernel(ROUNDS.replace(old, new)))


def test_products_of_other_kernels_end_at_once() -> None:
    """Only a signalled loop has statements that order them."""
    with pytest.raises(InterpError, match="`receive` stands in a kernel without a signalled loop"):
        results(ROUNDS.replace("#signalled", "#pipelined").replace("fence barriers", "pass"), 0)
