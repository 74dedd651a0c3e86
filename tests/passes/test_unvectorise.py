"""Statements on vectors as loops over lanes: the same elements, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import For
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of
from convsmith.passes.unvectorise import unvectorise

PARAMS = "a: s32[64], b: f32[64], dst: f32[64], out: u8[64]"
HALF = "cast(f32, a[2]{8}) * 0.5"
LOOPS = {
    "adjacent": f"dst[3]{{8}} = {HALF}",
    "some lanes": "dst[3]{8/5} = cast(f32, a[2]{8/5}) * 0.5",
    "a stride": f"dst[3]{{8:4}} = {HALF}",
    "two lanes of a stride": "dst[3]{2:4} = cast(f32, a[2]{2:7}) * 0.5",
    "one lane": "dst[3]{1} = cast(f32, a[2]{1}) * 0.5",
    "one factor for all": "dst[3]{8} = cast(f32, a[2]{8}) * b[5]",
    "a broadcast": "dst[3]{8} = cast(f32, a[2]{8}) * b[5]{8:0}",
    "rows": "dst[3]{(0, 2, 4, 6, 20, 22, 24, 26)} = cast(f32, a[2]{8}) * 0.5",
    "rows, some lanes": "dst[3]{(0, 2, 4, 6, 20, 22, 24, 24)/7} = cast(f32, a[2]{8/7}) * 0.5",
    "its own elements": "dst[3]{8} = dst[3]{8} + b[1]{8}",
    "a cast to an integer": "out[3]{8} = cast(u8, b[1]{8})",
    "bits": "dst[3]{8} = bits(f32, a[2]{8}) * 0.5",
}
LEFT = {
    "no arithmetic on floats": "dst[3]{8} = cast(f32, a[2]{8})",
    "a move": "dst[3]{8} = b[1]{8}",
    "other elements of the array": "dst[3]{8} = dst[4]{8} + b[1]{8}",
    "fewer lanes than are stored": "dst[3]{8} = b[1]{8/5} + 1.0",
    "a sum of lanes": "dst[3] = dst[3] + sum(b[1]{8}, 8)",
    "uneven lanes": "dst[3]{(0, 1, 3, 4, 9, 10, 30, 31)} = cast(f32, a[2]{8}) * 0.5",
}


@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS)
def test_the_same_elements(body: str) -> None:
    kernel = parse_kernel(f"kernel k({PARAMS})\n  {body}\n")
    new = unvectorise(kernel, ("f32",))
    verify(new)
    loops: list[For] = list(loops_of(new.body))
    assert loops and "{" not in str(new)
    rng = np.random.default_rng(0)
    arrays = {b.name: rng.integers(0, 99, 64).astype(b.dtype.numpy) for b in kernel.params}
    wanted = {name: x.copy() for name, x in arrays.items()}
    run(kernel, wanted)
    run(new, arrays)
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], wanted[name])


def test_lanes_along_the_last_of_several_dims() -> None:
    text = "kernel k(a: s32[4, 16], dst: f32[2, 3, 16])\n  dst[1, 2, 3]{8} = cast(f32, a[2, 5]{8}) * 0.5\n"
    new = unvectorise(parse_kernel(text), ("f32",))
    found, wanted = ({"a": np.arange(64, dtype=np.int32), "dst": np.zeros(96, np.float32)} for _ in range(2))
    run(new, found)
    run(parse_kernel(text), wanted)
    assert "{" not in str(new) and np.array_equal(found["dst"], wanted["dst"])


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_other_statements_stay(body: str) -> None:
    kernel = parse_kernel(f"kernel k({PARAMS})\n  {body}\n")
    assert unvectorise(kernel, ("f32",)) is kernel


def test_types_that_have_vectors_stay() -> None:
    kernel = parse_kernel(f"kernel k({PARAMS})\n  {LOOPS['adjacent']}\n")
    assert unvectorise(kernel, ("f64",)) is kernel
