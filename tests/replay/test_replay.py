"""Kernels stay as they are, byte by byte, unless a change says which of them it means to change."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from kernels import Row, generate, llvm_version, read_rows

LLVM, ROWS = read_rows()


@pytest.mark.sampled(75)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.target}-{row.line[-60:]}")
def test_every_kernel(row: Row) -> None:
    now = generate(row)
    assert now.config == row.config and now.text == row.text, f"{row}\n{now}"
    if llvm_version() == LLVM:
        assert now.code == row.code, f"LLVM makes other code of the same text: {row}"


def test_rows_are_of_every_kind() -> None:
    assert len(ROWS) == len({(r.kind, r.line, r.target, r.threads, r.config) for r in ROWS}) >= 500
    assert {r.kind for r in ROWS} == {"fixed", "dynamic", "config", "micro"}
    for text in ("--dir=BWD_D", "--dir=BWD_W", "--deconv", "--matmul", "--dt=bf16", "--dt=u8:s8", "zero-points",
                 "post-ops", "axb", "B", "g", "->"):  # fmt: skip
        assert any(text in row.line for row in ROWS), text
