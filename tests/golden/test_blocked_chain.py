"""The nests of two convolutions are those that TVM prints, line by line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from blocked_chains import BYTES, DATA, Sizes, cases, chain, config

from convsmith.arith.ranges import Range
from convsmith.diag.errors import ConfigError
from convsmith.frontend.annotated_nest import annotated_nest
from convsmith.ir.index import Var
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc, For, Stmt
from convsmith.ir.walk import children, statements_of
from convsmith.machine.generic.level import level
from convsmith.machine.registry import target
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import run_steps
from convsmith.passes.partition import partition
from convsmith.passes.scope import loop_range
from convsmith.passes.share_storage import plan_storage
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

SCHEDULES = ((1, 1, 1), (1, 2, 2), (3, 2, 2))
"""Kernel sizes, and splits of channels and rows: the baseline, the splits, the 3x3 convolutions without padding."""
WHOLE = Sizes(64, 64, 128, (8, 8, 32))
ALLOCATIONS = ((65536, 65536, 4096), (131072, 131072, 8192), (196608, 196608, 73728))


def printed(kernel: int, k_split: int, h_split: int, options: tuple[str, str] = ("", ""), **choices: bool) -> str:
    """The nest of a case of TVM's test whose stages have ``options``."""
    problem = chain(case_of(kernel, k_split, h_split), None, options)
    return annotated_nest(problem, level(), k_split, h_split, **choices)


def case_of(kernel: int, k_split: int, h_split: int) -> dict[str, Any]:
    """A case of TVM's test."""
    wanted = (kernel, kernel, k_split, h_split)
    names = ("kernel_size1", "kernel_size2", "k_split_factor", "h_split_factor")
    return next(c for c in cases() if tuple(c[n] for n in names) == wanted)


def lines(text: str) -> list[str]:
    """The lines up to the end of the function, without empty ones."""
    rows = [row.rstrip() for row in text.split("\n")]
    return [row for row in rows[: rows.index("}") + 1] if row]


@pytest.mark.parametrize("n", range(3), ids=["baseline", "splits", "3x3"])
def test_the_nest_is_that_of_the_document(n: int) -> None:
    """The document's comment on the layout of the output lacks a letter."""
    document = (DATA / "tvm_conv2d_conv2d_nests.txt").read_text().split("\n\nprimfn")[n].replace("nhw8h", "nhwc8h")
    document = document if n == 0 else "primfn" + document
    text = printed(*SCHEDULES[n])
    assert lines(text) == lines(document)
    assert tuple(map(int, re.findall(r"allocate.*\[(\d+)\]", text))) == ALLOCATIONS[n]


def test_the_printed_nest_says_where_it_reads_past_a_cache() -> None:
    assert "reads past" not in printed(1, 2, 2)
    text = printed(3, 2, 2)
    assert "// conv2d #1 has 62 x 62 results. This nest, as TVM prints it, computes 64 x 64, and reads past\n" in text
    assert "// conv2d #2 has 60 x 60 results." in text


def test_the_storage_plan_stands_below() -> None:
    *_, peak = printed(3, 2, 2).split("\n")
    assert peak == (
        "// peak 2424832 bytes before sharing, 1867776 after; 1867776 are alive at once, in 8 statements"
    )


def test_asynchronous_copies_keep_input_and_output_cache_apart() -> None:
    """No load of a slice waits for the store of the slice before it, and no filter for the one before it."""
    text = printed(1, 1, 1, asynchronous=True)
    sizes = dict(re.findall(r"allocate\((\S+):.*\[(\d+)\]", text))
    assert sizes == {
        "packed_input.global": "65536", "temp_output": "65536", "output.global": "16384",
        "packed_filter.global": "4096", "packed_filter_2.global": "4096",
    }  # fmt: skip
    assert "reusing" not in text


def test_sums_of_bytes_have_a_cache_of_their_own() -> None:
    """Those of the first stage fill a block of it, and those of the second all of it: they are the output cache."""
    text = printed(3, 2, 2, BYTES)
    sizes = re.findall(r"allocate\((\S+): Pointer\(global (\w+)\), \w+, \[(\d+)\]", text)
    assert sizes == [
        ("temp_output.global", "int32", "65536"), ("packed_input.global", "int8", "196608"),
        ("temp_output", "int8", "196608"), ("packed_filter.global", "int8", "73728"),
    ]  # fmt: skip
    assert "// convert temp output\n" in text and "cast(int8, (int32*)temp_output.global[" in text


def test_epilogues_are_not_printed() -> None:
    with pytest.raises(ConfigError) as caught:
        printed(1, 1, 1, ("--attr-post-ops=relu", ""))
    assert "legal are sums of f32, s32, s8, u8, f16, bf16 that are converted at most" in str(caught.value)


TILES_OF_CONFIGS = (
    "oc2.o 4, oh2.b 8, oh.b 1, oc.o 4, oh 8 | oc2.o 4, oh2.b 8, oh2 8",
    "oc2.b 2, oh2.b 4, oh.b 1, oc.b 2, oc.o 2, oh 16 | oc2.b 2, oh2.b 4, oc2.o 2, oh2 16",
    "oc2.b 2, oh2.b 4, oc.b 2, oh.b 2, oc.o 2, oh 16 | oc2.b 2, oh2.b 4, oc2.o 2, oh2 16",
)
"""The loops around both convolutions over channels and rows: ko.outer, ho.outer, ho.outer_1 and ko.outer_1, in another
order in the last nest, and those over the blocks and the rows of a tile. The document has none that runs once.
"""
CACHES_OF_CONFIGS = (
    {"mid": 65536, "src_n": 65536, "wei_1_n": 4096, "wei_2_n": 4096},
    {"mid": 131072, "src_n": 131072, "wei_1_n": 8192, "wei_2_n": 8192},
    {"mid": 18 * 62 * 128, "src_s": 18 * 66 * 128, "wei_1_n": 73728, "wei_2_n": 73728},
)
"""The temporary output and the caches of the input and of both filters. Where taps reach beyond a tile, two rows of the
next one are read, and not all of its rows.
"""


@pytest.mark.parametrize("n", range(3), ids=["baseline", "splits", "3x3"])
def test_a_config_makes_the_loops_and_caches_of_the_document(n: int) -> None:
    """The filter caches share memory, because the second filter is read when the first convolution is done."""
    case = case_of(*SCHEDULES[n])
    with interning():
        made = plan(chain(case, WHOLE), Config.parse(config(case, "avx512")), target("avx512"))
        rewrites = [step.run for step in made.pipeline]
        kernel = run_steps(made.naive(), made.pipeline[: rewrites.index(partition)])
        allocations = [s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc)]
        caches = {b.name: b.size for b in allocations if b.scope == "cache"}
        nests = " | ".join(around(kernel.body, sums) for sums in ("acc", "acc2"))
        groups = plan_storage(flatten(kernel)).groups
    assert caches == CACHES_OF_CONFIGS[n]
    assert nests == TILES_OF_CONFIGS[n]
    assert ["wei_1_n", "wei_2_n"] in [[x.buffer.name for x in group] for group in groups]


def around(s: Stmt, buffer: str) -> str:
    """The loops over channels and rows around the allocation of ``buffer``, with the iterations of a whole tile."""
    found: list[str] = []
    ranges: dict[Var, Range] = {}
    while not (isinstance(s, Alloc) and s.buffer.name == buffer):
        if isinstance(s, For):
            ranges[s.var] = loop_range(s, ranges)
            if s.var.name[:2] in ("oc", "oh"):
                found.append(f"{s.var} {ranges[s.var][1] + 1}")
        (s,) = (
            x for x in children(s)
            if isinstance(x, Stmt) and any(isinstance(y, Alloc) and y.buffer.name == buffer for y in statements_of(x))
        )  # fmt: skip
    return ", ".join(found)
