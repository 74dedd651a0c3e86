"""Specifications of instructions, computed on whole arrays: the values of their loops, in the same order."""

from __future__ import annotations

import re

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.interp.at_once import steps_at_once
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.machine.registry import target, target_names


def _cost(spec: Kernel) -> int:
    return spec.params[0].size * max(b.size for b in spec.params)


ROWS = [row for name in target_names() for row in target(name).instructions]
SPECS = sorted((row.kernel for row in ROWS), key=_cost, reverse=True)
FORMS = {re.sub(r"\d+(?=[,\]\n:])|\w+\(", "", str(spec)): spec for spec in SPECS}
"""The smallest specification of each form, and of each combination of types."""


def memories_of(spec: Kernel) -> dict[str, np.ndarray]:
    """Whole numbers of bytes, and floats of which every sum and product is rounded."""
    rng = np.random.default_rng(0)
    found = {}
    for b in spec.params:
        whole = b.dtype.kind != "float"
        x = rng.integers(*b.dtype.limits, b.size, endpoint=True) if whole else rng.normal(size=b.size)
        found[b.name] = x.astype(b.dtype.numpy)
    return found


@pytest.mark.parametrize("spec", [pytest.param(spec, id=spec.name) for spec in FORMS.values() if _cost(spec) <= 1024])
def test_steps_compute_what_the_loops_compute(spec: Kernel) -> None:
    found, wanted = memories_of(spec), memories_of(spec)
    steps = steps_at_once(spec, {})
    assert steps is not None
    steps.run({b: found[b.name] for b in spec.params})
    run(spec, wanted)
    assert found[spec.params[0].name].tobytes() == wanted[spec.params[0].name].tobytes()
    assert wanted[spec.params[0].name].tobytes() != memories_of(spec)[spec.params[0].name].tobytes()


HEAD = "kernel k(c: f32[4], a: f32[4])\n  for l in 0 .. 4:\n"
REFUSED = {
    "two iterations store to one element": "    c[l // 2] = c[l // 2] * a[l]",
    "an iteration reads what another stores": "    c[l] = c[-l + 3] * a[l]",
    "an element outside of an array": "    c[l] = c[l] * a[l + 1]",
    "two statements": "    c[l] = c[l] + a[l]\n    c[l] = c[l] * a[l]",
}


@pytest.mark.parametrize("name", REFUSED)
def test_loops_that_depend_on_their_order_stay_loops(name: str) -> None:
    assert steps_at_once(parse_kernel(f"{HEAD}    c[l] = c[l] * a[l]\n"), {}) is not None
    assert steps_at_once(parse_kernel(f"{HEAD}{REFUSED[name]}\n"), {}) is None
