"""A split reduction on a device: parts with memory of their own are added up by a kernel, atomic additions by none."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for


@pytest.mark.parametrize(
    ("words", "statements"),
    [
        ("", [("conv", "main")]), ("--split=mb:2", [("conv", "main"), ("sums", "after")]),
        ("--split=mb:4 --join=ordered", [("conv", "main"), ("sums", "after")]),
        ("--split=mb:2 --join=atomic", [("conv", "main")]),
    ],
)  # fmt: skip
def test_kernels_of_a_split_reduction(words: str, statements: list[tuple[str, str]]) -> None:
    config = Config.parse(
        f"--target=opencl --pack= --lane=oc --register=ic:2 --realise=mask --group=oc:4,ic:2 --shared=src {words}"
    )
    with interning():
        plan = plan_for(parse_problem("--dir=BWD_W mb4ic2iw4oc4kw2"), config, target("opencl"))
        assert [(k.statement.name, k.statement.when) for k in plan.kernels] == statements
