"""`share_guards` tests a condition once, and keeps every value where statements cannot move."""

from __future__ import annotations

import random

import numpy as np
import pytest

from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.share_guards import share_guards

HEAD = """kernel k(a: f32[12], dst: f32[8])
  for i in 0 .. 4:
    alloc x: f32[3] @register:
"""


def _kernel(body: str) -> Kernel:
    return parse_kernel(HEAD + "".join(f"      {line}\n" for line in body.strip().splitlines()))


def _results(kernel: Kernel) -> list[float]:
    a, dst = np.arange(1, 13, dtype=np.float32), np.zeros(8, np.float32)
    run(kernel, {"a": a, "dst": dst})
    return dst.tolist()


@pytest.mark.parametrize("seed", range(8))
def test_every_statement_keeps_its_condition(seed: int) -> None:
    """Statements with any of three conditions compute the same, with one test of a condition or several."""
    r = random.Random(seed)
    parts = ("i - 1 >= 0", "-i + 2 >= 0", "i * 2 - 3 >= 0")
    guards = [" and ".join(r.sample(parts, r.randint(1, 3))) for _ in range(6)]
    loads = [f"x[{n}] = (a[i + {n * 3}] if {guard} else {n + 0.5})" for n, guard in enumerate(guards[:3])]
    stores = [line for n, guard in enumerate(guards[3:]) for line in (f"if {guard}:", f"  dst[i + {n}] = x[{n}]")]
    kernel = _kernel("\n".join([*loads, *stores]))
    made = share_guards(kernel)
    assert _results(made) == _results(kernel)
    assert str(made).count(" >= 0") <= str(kernel).count(" >= 0")


@pytest.mark.parametrize("second", ["a[i + 4] if i - 2 >= 0", "a[i + 4] if i - 1 >= 0 and -i + 2 >= 0"])
def test_a_register_that_is_loaded_twice_ends_a_run(second: str) -> None:
    """The second value of the register replaces the first one also where its condition is false."""
    kernel = _kernel(f"""
x[0] = (a[i] if i - 1 >= 0 else 0.0)
x[0] = ({second} else 0.0)
x[1] = (a[i + 8] if i - 1 >= 0 else 0.0)
dst[i] = x[0] + x[1]
""")
    assert _results(share_guards(kernel)) == _results(kernel)


def test_a_register_that_the_next_statement_reads_ends_a_run() -> None:
    kernel = _kernel("""
x[0] = (a[i] if i - 1 >= 0 else 0.0)
x[1] = (x[0] if i - 1 >= 0 else 2.0)
dst[i] = x[0] + x[1]
""")
    assert share_guards(kernel) is kernel


def test_statements_without_a_common_condition_stay() -> None:
    kernel = _kernel("""
x[0] = (a[i] if i - 1 >= 0 else 0.0)
x[1] = (a[i] if -i + 2 >= 0 else 0.0)
if i - 3 >= 0:
  dst[i] = x[0]
if -i + 2 >= 0:
  dst[i] = x[1]
""")
    assert share_guards(kernel) is kernel
