"""Kernels that only add up, step by step; registers and fused loops of configs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.index import Var, true
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import dtype
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of
from convsmith.layout.layout import Layout
from convsmith.machine.generic.level import level
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import kernel_plan
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import check_config, filled_lanes, registers
from convsmith.schedule.sums import config_of_sums
from convsmith.statement.naive import naive
from convsmith.statement.statement import Dim, Statement, View
from convsmith.statement.views import statement


def sums_of(columns: int, depth: int, of: str, acc: str) -> Statement:
    """The sums of columns."""
    dims = (Dim("n", columns, "m"), Dim("k", depth, "k"))
    source = View("a", of, Layout.from_tag("any", (depth, columns)), (Var("k"), Var("n")), (true(), true()))
    result = View("sums", acc, Layout.from_tag("any", (columns,)), (Var("n"),), (true(),))
    return Statement(dims, (source,), result, ("k",), acc, name="add", when="after", finish="sum")


def stages(columns: int, depth: int, of: str, acc: str) -> list[Kernel]:
    """Sums of columns, after each step, in vectors of the portable level."""
    st = sums_of(columns, depth, of, acc)
    found = [naive(parse_problem(LAYER), st)]
    for step in kernel_plan(st, config_of_sums(st, level(), 1), level()).pipeline:
        found.append(step(found[-1]))
    return found


@pytest.mark.parametrize("columns", [1, 4, 7, 19])
@pytest.mark.parametrize(("of", "acc"), [("f32", "f32"), ("s8", "s32")])
def test_every_step_adds_the_same(columns: int, of: str, acc: str) -> None:
    with interning():
        a = np.random.default_rng(0).integers(-9, 10, (5, columns))
        for kernel in stages(columns, 5, of, acc):
            verify(kernel)
            sums = np.full(columns, 77, dtype(acc).numpy)
            run(kernel, {"a": a.astype(dtype(of).numpy).ravel(), "sums": sums})
            np.testing.assert_array_equal(sums, a.sum(0), err_msg=str(kernel))


@pytest.mark.parametrize(("columns", "threads"), [(64, 1), (1 << 16, 4)])
def test_threads_share_sums_that_take_longer_than_their_meeting(columns: int, threads: int) -> None:
    with interning():
        assert config_of_sums(sums_of(columns, 16, "s8", "s32"), level(), 4).threads == threads


def test_as_many_vectors_at_once() -> None:
    """Four vectors stay in registers under one loop over the terms."""
    with interning():
        last = stages(32, 5, "f32", "f32")[-1]
    around = [loop for loop in loops_of(last.body) if loop.var.name != "k"]
    assert [loop.hi.const for loop in around] == [2] and str(last).count("f32[4, 4] @register") == 1


@pytest.mark.parametrize(
    ("order", "unknown", "flipped", "lane"),
    [("ab", (), False, "n"), ("ba", (), False, "k"), ("ab", ("n",), False, "m"), ("ba", ("n",), False, "k"),
     ("ba", (), True, "n"), ("ba", ("n",), True, "m")],
)  # fmt: skip
def test_lanes_lie_along_neighbours_that_are_there(
    order: str, unknown: tuple[str, ...], flipped: bool, lane: str
) -> None:
    """A dim of unknown size and terms that a flipped zero would change have no lanes."""
    dims = (Dim("m", 8, "m"), Dim("n", 16, "m"), Dim("k", 16, "k"))
    source = View("a", "u8", Layout.from_tag(order, (16, 16)), (Var("k"), Var("n")), (true(), true()), flipped)
    result = View("sums", "s32", Layout.from_tag("ab", (8, 16)), (Var("m"), Var("n")), (true(), true()))
    with interning():
        st = Statement(dims, (source,), result, ("k",), "s32", name="add", when="after", finish="sum")
        assert config_of_sums(st, level(), 1, frozenset(unknown)).lane == lane


LAYER = "mb2ic8ih6oc32oh6kh3ph1"
SIGNED = f"--dt=s8:s8:s32 {LAYER}"
GROUPS = "g4mb2ic12ih6oc12oh6kh3ph1"


@pytest.mark.parametrize(
    ("problem", "words", "need", "text"),
    [
        (LAYER, "--lane=oc --register=oc:8,ow:3", 10, "3x2: 6 accumulators + 2 weights + 1 source + 1 temporary"),
        (LAYER, "--lane=oc --register=oc:4,ow:3,oh:2", 9, "6x1: 6 accumulators + 1 weights + 1 source + 1 temporary"),
        (LAYER, "--lane=oc --register=oc:8 --k_step=ic:4", 12,
         "1x2: 2 accumulators + 8 weights + 1 source + 1 temporary"),
        (LAYER, "--lane=ic --register=oc:3,ow:2", 11, "2x3: 6 accumulators + 3 weights + 1 source + 1 temporary"),
        (GROUPS, "--fuse=g+oc --lane=g_oc --register=g_oc:6,ow:3", 10,
         "3x2: 6 accumulators + 2 weights + 1 source + 1 temporary"),
        (SIGNED, "--lane=oc --register=oc:8,ow:3 --offsets=sums --flip=src", 11,
         "3x2: 6 accumulators + 2 weights + 1 source + 2 temporary"),
        (SIGNED, "--lane=oc --register=oc:8,ow:3 --offsets=sums --flip=src --pack=src,wei", 10,
         "3x2: 6 accumulators + 2 weights + 1 source + 1 temporary"),
    ],
)  # fmt: skip
def test_registers_of_a_tile(problem: str, words: str, need: int, text: str) -> None:
    with interning():
        st = statement(parse_problem(problem))
        config = Config.parse(f"--target=generic {words}")
        loops = loops_after_fusing(st, config)
        target, unit = level(), ProductShape(4, 1, False)
        found = registers(loops, config, target, unit, filled_lanes(st, loops.dims[config.lane], unit))
        assert (found.needed, found.text) == (need, text)
        check_config(st, loops, config, target, unit)


@pytest.mark.parametrize(
    ("problem", "words", "text"),
    [
        (LAYER, "mb+ow", "--fuse=mb+ow: no such neighbours among "), (LAYER, "ow+oh", "no such neighbours"),
        (LAYER, "oh+oh", "--fuse=oh+oh: no such neighbours"), (LAYER, "oh+q", "no such neighbours"),
        (LAYER, "ow+kh", "a reduction loop and another cannot be one"),
        ("--deconv mb1ic2ih3oc2oh5kh3sh2ph1", "oh+ow", "a loop that a stride must divide cannot be fused"),
    ],
)  # fmt: skip
def test_fusing_that_is_refused(problem: str, words: str, text: str) -> None:
    with interning(), pytest.raises(ConfigError, match=re.escape(text)) as error:
        config = Config.parse(f"--target=generic --lane=oc --fuse={words}")
        loops_after_fusing(statement(parse_problem(problem)), config)
    assert error.value.code == "fuse"


def test_fused_loops() -> None:
    with interning():
        loops = loops_after_fusing(statement(parse_problem(LAYER)), Config.parse("--target=x --lane=oc --fuse=oh+ow"))
    assert loops.extents["oh_ow"] == 36 and loops.kinds["oh_ow"] == "m" and loops.axes["oh_ow"] == "hw"
