"""A split reduction on a device: parts with memory of their own are added up by a kernel, atomic additions by none."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import ConfigError
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


def test_adjacent_threads_add_up_adjacent_sums() -> None:
    """The channels of the source are contiguous in a gradient of weights, where those of the result are as many."""
    config = Config.parse(
        "--target=sm_80 --pack= --lane=oc --register=ic:2 --realise=mask --group=oc:4,ic:2 --shared=src --split=mb:2"
    )
    with interning():
        plan = plan_for(parse_problem("--dir=BWD_W --wtag=axb mb4ic64iw4oc64kw2"), config, target("sm_80"))
    (threads,) = plan.kernels[-1].nest.threads
    assert (threads.of, threads.extent) == ("ic", 64)


def test_a_packed_operand_has_no_more_dims_than_an_array() -> None:
    config = Config.parse(
        "--target=sm_80 --lane=oc --realise=mask --group=oc:8 --pack=wei --split=kd:2"
    )
    line = "g2mb1ic8id4ih4iw4oc16od3oh3ow3kd2kh2kw2"
    with interning(), pytest.raises(ConfigError, match=r"--pack=wei: part, g, .* index it"):
        plan_for(parse_problem(line), config, target("sm_80"))
