"""A split reduction on a device: parts with memory of their own are added up by a kernel, atomic additions by none."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import in_parts
from convsmith.schedule.planned import plan_for
from convsmith.statement.parts import PART, part_loop, splits_of_loops, sum_of_parts
from convsmith.statement.views import statement
from convsmith.tune.devices.device import device_config
from convsmith.tune.search.device_space import DeviceSpace


@pytest.mark.parametrize(
    ("words", "statements"),
    [
        ("", [("conv", "main")]), ("--split=mb:2", [("conv", "main"), ("sums", "after")]),
        ("--split=mb:4 --join=ordered", [("conv", "main"), ("sums", "after")]),
        ("--split=mb:2 --join=atomic", [("conv", "main")]),
        ("--split=mb:2,ow:3", [("conv", "main"), ("sums", "after")]),
        ("--split=mb:2,ow:3 --join=atomic", [("conv", "main")]),
    ],
)  # fmt: skip
def test_kernels_of_a_split_reduction(words: str, statements: list[tuple[str, str]]) -> None:
    config = Config.parse(
        f"--target=opencl --pack= --lane=oc --register=ic:2 --realise=mask --group=oc:4,ic:2 --shared=src {words}"
    )
    with interning():
        plan = plan_for(parse_problem("--dir=BWD_W mb4ic2iw4oc4kw2"), config, target("opencl"))
        assert [(k.statement.name, k.statement.when) for k in plan.kernels] == statements


def test_parts_of_several_loops_are_counted_together() -> None:
    """The results of the parts have one dim more than the sums; one statement adds up all of them."""
    problem, machine = parse_problem("mb1ic8iw5oc4kw3"), target("sm_80")
    config = Config.parse("--target=sm_80 --pack= --lane=oc --realise=mask --group=oc:4 --split=kw:3,ic:4")
    with interning():
        st = in_parts(statement(problem, machine), config, machine)
        assert [(d.name, d.size) for d in st.dims[:2]] == [(PART, 3), (part_loop(1), 4)]
        assert str(st.c.coords[0]) == "part * 4 + part2"
        assert st.c.layout.shape == (12, 1, 4, 3)
        assert {d.name: d.size for d in st.of("k")} == {"ic": 2, "kw": 1}
        added = sum_of_parts(st)
        assert [(d.name, d.size) for d in added.of("k")] == [(PART, 12)]
        assert added.whole is st.whole and not st.whole.part_of


def test_splits_of_several_loops_have_other_numbers_of_parts() -> None:
    found = list(splits_of_loops({"kh": (3,), "kw": (3,), "ic": (2, 4)}, 16))
    assert found == [
        (("kh", 3),), (("kw", 3),), (("ic", 2),), (("ic", 4),), (("kh", 3), ("kw", 3)), (("kh", 3), ("ic", 2)),
        (("kh", 3), ("ic", 4)),
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["--split=kw:3,ic:5", "--split=kw:3,oc:2", "--split=kw:3,ic:5 --join=atomic"])
def test_each_loop_has_equal_parts(words: str) -> None:
    config = Config.parse(f"--target=sm_80 --pack= --lane=oc --realise=mask --group=oc:4 {words}")
    with interning(), pytest.raises(ConfigError, match=r"--split=\w+:\d: legal is a reduction loop and a divisor"):
        plan_for(parse_problem("mb1ic8iw5oc4kw3"), config, target("sm_80"))


@pytest.mark.parametrize("words", ["--dir=FWD_B", "--attr-post-ops=clip:-3:5", "--attr-scales=src:common:0.5"])
def test_results_of_whole_sums_are_not_added_atomically(words: str) -> None:
    """The plan refuses the config, and the tuner has no step to one."""
    problem, machine = parse_problem(f"{words} mb1ic8iw5oc4kw3").canonical(), target("sm_80")
    config = Config.parse("--target=sm_80 --pack= --lane=oc --realise=mask --group=oc:4 --split=ic:2")
    with interning():
        near = {c.join for c in DeviceSpace(problem, machine).neighbours(config, "parts")}
        with pytest.raises(ConfigError, match="--join=atomic: dst is computed from whole sums") as raised:
            plan_for(problem, config.changed(join="atomic"), machine)
    assert raised.value.code == "join" and near == {"ordered"}
    with interning():
        plain = parse_problem("mb1ic8iw5oc4kw3").canonical()
        assert {c.join for c in DeviceSpace(plain, machine).neighbours(config, "parts")} == {"ordered", "atomic"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("level", "line", "split"),
    [
        ("sm_90a", "mb1ic128ih7oc128kh3ph1", (("kh", 3), ("kw", 3))),
        ("sm_80", "mb1ic64ih14oc64kh3ph1", (("kh", 3), ("ic", 2))),
        ("sm_80", "--dir=BWD_D mb1ic64ih7oc64kh3ph1", (("kh", 3), ("kw", 3), ("oc", 2))),
        ("sm_80", "--dir=BWD_W mb2ic96ih28oc96kh3ph1", (("mb", 2), ("oh", 4))),
    ],
)  # fmt: skip
def test_few_channels_have_parts_along_several_loops(level: str, line: str, split: tuple[tuple[str, int], ...]) -> None:
    problem = parse_problem(f"--stag=axb --wtag=axb --dtag=axb --dt=bf16 {line}")
    assert device_config(problem, target(level)).tiles_at("split") == split


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
