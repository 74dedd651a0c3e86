"""Instructions with a form for a factor that is the same for all sums: it is used for that factor, and no other."""

from __future__ import annotations

import re

import pytest
from natives import llvm_text

from convsmith.ir.instruction import Instruction
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target

LEVEL = target("hexagon+v68")
ROWS = {row.name: row for row in LEVEL.instructions if row.repeated is not None}


def calls(row: Instruction, values: list[str]) -> set[str]:
    """The intrinsics that the text of a kernel with this instruction calls."""
    (_, a, b), n = row.operands, row.lanes
    kernel = parse_kernel(
        f"kernel k(a: {a.dtype}[{a.size}], b: {b.dtype}[{b.size}], out: s32[{n}])\n  alloc c: s32[{n}] @register:\n"
        f"    c[0]{{{n}}} = s32(0)\n    {row.name}(c[0]{{{n}}}, {', '.join(values)})\n    out[0]{{{n}}} = c[0]{{{n}}}"
    )
    return set(re.findall(r"call .* (@llvm\.hexagon\.V6\.v\w+\.acc\S*?)\(", llvm_text(kernel, LEVEL)))


@pytest.mark.parametrize("name", ROWS)
def test_the_form_is_used_for_its_factor_alone(name: str) -> None:
    row = ROWS[name]
    assert row.repeated is not None
    whole = [f"{x.name}[0]{{{x.size}}}" for x in row.operands[1:]]
    plain = calls(row, whole)
    for n, (x, once) in enumerate(zip(row.operands[1:], row.repeated.operands[1:])):
        values = list(whole)
        values[n] = f"repeat({x.name}[0]{{{row.terms}}}, {x.size // row.terms})"
        found = calls(row, values)
        assert len(found) == len(plain) == 1
        assert (found != plain) == (once.size < x.size)
        values[n] = f"repeat({x.name}[0]{{{2 * row.terms}}}, {x.size // row.terms // 2})"
        assert calls(row, values) == plain
