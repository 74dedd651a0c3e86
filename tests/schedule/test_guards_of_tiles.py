"""Pixels of a register tile that lack a tap are left out when the kernel is made, not tested in its innermost loop."""

from __future__ import annotations

import pytest

from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.ir.stmt import If
from convsmith.ir.walk import statements_of
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan


@pytest.mark.parametrize(
    ("line", "tile"),
    [
        ("mb1ic8ih9oc32oh5kh5sh2ph2", "oh:2,ow:5,oc:32"),
        ("mb1ic8ih9oc16oh5kh5sh2ph2", "oh:5,ow:5,oc:16"),
        ("mb1ic8ih7oc32oh7kh3ph1", "ow:7,oc:32"),
        ("mb1ic8ih9oc32oh11kh1ph1", "ow:6,oc:32"),
        ("mb1ic8ih9iw9oc32oh11ow9kh1kw3ph1pw1", "ow:7,oc:32"),
        ("mb1ic8ih9iw9oc32oh6ow11kh1kw1sh2ph1pw1", "ow:5,oc:32"),
    ],
)
def test_no_multiply_add_is_guarded(line: str, tile: str) -> None:
    words = f"--target=avx512 --lane=oc --register={tile} --order=mb,oh,ow,oc --reduce=kh,kw,ic --pieces=32"
    problem, avx512 = parse_problem(f"--stag=axb --dtag=axb {line}"), target("avx512")
    with interning():
        kernel = lower(plan(problem, Config.parse(words), avx512)).kernel
    bodies = (kernel.body, *(f.body for f in kernel.functions))
    assert not any(isinstance(s, If) for body in bodies for s in statements_of(body))
