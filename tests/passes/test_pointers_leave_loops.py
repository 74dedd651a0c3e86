"""Entries of tables are read outside of the loops in which they are the same, and in no others."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.layout.block import ABSENT
from convsmith.passes.hoist_pointers import hoist_pointers


def reading(entry: str, also: str = "") -> Kernel:
    """Through an entry of a table, in a loop within a loop."""
    text = "kernel k(t: ptr[4], a: f32[32], z: f32[4], d: f32[64])\n  for n in 0 .. 3:\n    for i in 0 .. 4:\n"
    text += f"      at {entry} as p: f32[4]:\n        d[n * 4 + i] = p[i]\n"
    text += f"      at {also} as p: f32[4]:\n        d[n * 4 + i + 32] = p[i]\n" if also else ""
    return parse_kernel(text)


def results(kernel: Kernel) -> np.ndarray:
    verify(kernel)
    d = np.zeros(64, np.float32)
    arrays = {"a": np.arange(32, dtype=np.float32), "z": np.arange(4, dtype=np.float32) - 9, "d": d}
    run(kernel, {"t": np.array([3, ABSENT, 0, 5]), **arrays})
    return d


def test_an_entry_that_stays_leaves_the_loop() -> None:
    kernel = reading("t[n] + n * 2 in a or z[0]")
    made = hoist_pointers(kernel)
    assert str(made).index("at t") < str(made).index("for i in")
    assert (results(made) == results(kernel)).all()


@pytest.mark.parametrize("entry", ["t[i] + 1 in a or z[0]", "t[n] + i in a or z[0]", "t[n] + 1 in a or z[i]"])
def test_pointers_that_vary_stay(entry: str) -> None:
    kernel = parse_kernel(str(reading(entry)).replace("d[i + n * 4] = p[i]", "d[i + n * 4] = p[0]"))
    assert hoist_pointers(kernel) is kernel


def test_entries_of_other_offsets_are_others() -> None:
    kernel = reading("t[n] + 1 in a or z[0]", "t[n] + 4 in a or z[0]")
    made = hoist_pointers(kernel)
    assert str(made).count("at t[n]") == 2
    assert (results(made) == results(kernel)).all()


def test_an_entry_leaves_the_names_of_indices_within_the_loop() -> None:
    text = str(reading("t[n] + n * 2 in a or z[0]", "t[n] + 1 in a or z[0]"))
    head, *body = text.splitlines()
    at = next(n for n, line in enumerate(body) if line.strip().startswith("for i in")) + 1
    named = [*body[:at], "      let j = i + 0:", *("  " + line for line in body[at:])]
    kernel = parse_kernel("\n".join([head, *named]).replace("p[i]", "p[j]") + "\n")
    made = hoist_pointers(kernel)
    assert "let j" in str(made)
    assert str(made).index("at t") < str(made).index("for i in") < str(made).index("let j")
    assert (results(made) == results(kernel)).all()
    varying = parse_kernel(str(kernel).replace("at t[n]", "at t[j]"))
    assert hoist_pointers(varying) is varying
