"""The nests of two convolutions are those that TVM prints, line by line."""

from __future__ import annotations

import re

import pytest
from blocked_chains import BYTES, DATA, blocked_chain, cases

from convsmith.diag.errors import ConfigError
from convsmith.frontend.annotated_nest import annotated_nest
from convsmith.machine.generic.level import level

SCHEDULES = ((1, 1, 1), (1, 2, 2), (3, 2, 2))
"""Kernel sizes, and splits of channels and rows: the baseline, the splits, the 3x3 convolutions without padding."""
ALLOCATIONS = ((65536, 65536, 4096), (131072, 131072, 8192), (196608, 196608, 73728))


def printed(kernel: int, k_split: int, h_split: int, options: tuple[str, str] = ("", ""), **choices: bool) -> str:
    """The nest of a case of TVM's test whose stages have ``options``."""
    wanted = (kernel, kernel, k_split, h_split)
    names = ("kernel_size1", "kernel_size2", "k_split_factor", "h_split_factor")
    case = next(c for c in cases() if tuple(c[n] for n in names) == wanted)
    return annotated_nest(blocked_chain(case, level(), None, options, **choices))


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
