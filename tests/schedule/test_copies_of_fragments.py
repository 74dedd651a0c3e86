"""The copies that fragments of tensor cores are loaded from: the axis along which their elements are neighbours."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.ir.types import dtype
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.group_limits import innermost
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.nest import Nest
from convsmith.schedule.nest_builders import nest_of
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement

ROWS = {"bf16": ("mma_m16n8k16_bf16", 16), "f16": ("mma_m16n8k16_f16", 16), "s8:s8:s32": ("mma_m16n8k32_s8", 32)}
"""Types of a problem -> instruction, and its terms."""


def nested(types: str, tags: str, tile: int) -> tuple[Statement, Config, Nest]:
    """A product of matrices, and the nest of warps that have fragments of so many rows."""
    name, terms = ROWS[types]
    machine = target("sm_80")
    st = statement(parse_problem(f"--matmul --dt={types} {tags} 64x64:64x64"), machine)
    config = Config.parse(
        f"--target=sm_80 --lane=n --register=m:{tile},n:16 --reduce=k --instruction={name} "
        f"--group=m:{tile},n:64,k:{terms} --shared=src,wei"
    )
    loops = loops_after_fusing(st, config)
    return st, config, nest_of(Schedule(), st, loops, config, machine)


@pytest.mark.parametrize("types", ROWS)
@pytest.mark.parametrize(
    ("tags", "transposed"),
    [
        ("--stag=ab --wtag=ab", (1, 1)), ("--stag=ba --wtag=ab", (0, 1)), ("--stag=ab --wtag=ba", (1, 0)),
        ("--stag=ba --wtag=ba", (0, 0)),
    ],
)  # fmt: skip
def test_a_copy_keeps_the_axis_of_memory_where_loads_transpose(
    types: str, tags: str, transposed: tuple[int, int]
) -> None:
    """Loads transpose matrices whose elements have two bytes; neighbours of other types are terms of a sum."""
    with interning():
        st, config, nest = nested(types, tags, 16)
        assert nest.warp is not None and nest.warp.loads and nest.warp.transposed == {"bf16": 8, "f16": 8}
        is_transposed = dtype(types.partition(":")[0]).bytes == 2
        found = tuple(innermost(st, view, nest, config) for view in st.factors)
        assert found == (transposed if is_transposed else (1, 0))
