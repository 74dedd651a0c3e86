"""A copy that reads one row of an image after the other loads the lines that rows share again, if channels are many."""

from __future__ import annotations

import pytest

from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.statement.views import statement
from convsmith.tune.copies import copied
from convsmith.tune.model import Model


@pytest.mark.parametrize(
    ("types", "size", "again"),
    [
        ("u8:s8:u8", "mb1ic1248ih14", 14 * 1248 * (1 + 13 / 64) - 14 * 14 * 1248 / 64),
        ("bf16", "mb2ic1248ih14", 2 * (14 * 1248 * (1 + 27 / 64) - 14 * 28 * 1248 / 64)),
        ("u8:s8:u8", "mb1ic2048ih7", 6 * 7 * 7 * 2048 / 64),  # each line has an element of each row
        ("u8:s8:u8", "mb1ic256ih14", 0),  # the lines of a row stay in the first-level cache
        ("u8:s8:u8", "mb1ic512ih7", 0),  # the whole image does
        ("u8:s8:u8", "mb1ic1248ih64", 0),  # no line has elements of two rows
    ],
)
def test_lines_that_rows_share_are_loaded_again(types: str, size: str, again: float) -> None:
    problem = parse_problem(f"--dt={types} --stag=abx --dtag=abx {size}oc32kh1")
    level = target("avx512_bf16" if types == "bf16" else "avx512_vnni")
    st = statement(problem, level)
    unit = next(x for x in ProductShape.choices(st, level) if x.dot)
    config = Config(level.name, "oc", register=(("ow", 7), ("oc", 32)), order=("mb", "oc", "oh", "ow"),
                    reduce=("kh", "kw", "ic"), realise="pad_copy")  # fmt: skip
    model = Model(problem, st, level, unit)
    events = dict(copied(model, loops_after_fusing(st, config), config))
    assert level.l1.bytes == 32768
    assert events["beyond_line"] == pytest.approx(again)
