"""Aligned vectors: divisors of the variables of a kernel, and machine code of Hexagon that relies on them."""

from __future__ import annotations

import re

import pytest

from convsmith.codegen import llvm_bind
from convsmith.codegen.aligned_places import AlignedPlaces
from convsmith.compiler.driver import lower
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.fusion import stages_of
from convsmith.schedule.plan import plan
from convsmith.tune.chains import config_of
from convsmith.tune.compile import choose
from convsmith.tune.stage_configs import StageConfigs

LEVEL = target("hexagon+v73")


def alignments(kernel: Kernel) -> list[int]:
    """Return the alignment of each load of ``a`` in the body and the functions, with buffers at multiples of 128."""
    places = AlignedPlaces(kernel, [b for b in kernel.params if b.name == "a"], 128)
    loads = [x for body in (kernel.body, *(f.body for f in kernel.functions)) for x in walk(body)]
    return [places.bytes_of(x) for x in loads if isinstance(x, Load)]


@pytest.mark.parametrize(
    "index, expected",
    [
        ("0", 128), ("i * 32", 128), ("i * 96 + 32", 128), ("i * 8", 32), ("i * 32 + 1", 4), ("i", 4),
        ("i // 2 * 64", 128),
    ],
)
def test_the_divisor_of_an_index_is_the_alignment(index: str, expected: int) -> None:
    text = f"kernel k(a: s32[512], dst: s32[512])\n  for i in 0 .. 4:\n    dst[i * 32]{{32}} = a[{index}]{{32}}\n"
    assert alignments(parse_kernel(text)) == [expected]
    assert alignments(parse_kernel(text.replace("a: s32", "b: s32").replace("= a", "= b"))) == [4]
    # An alignment beyond the vector's own bytes gains nothing.
    assert alignments(parse_kernel(text.replace("{32} =", "{8} =").replace("]{32}", "]{8}"))) == [min(expected, 32)]


@pytest.mark.parametrize(
    "start, step, expected", [("0", 32, 128), ("i * 32", 64, 128), ("0", 48, 64), ("i * 32 + 16", 32, 64), ("i", 32, 4)]
)
def test_pointers_that_loops_carry(start: str, step: int, expected: int) -> None:
    text = (
        "kernel k(a: s32[512], dst: s32[512])\n"
        "  for i in 0 .. 2:\n"
        f"    for j in 0 .. 4 carrying p: a = {start} step {step}:\n"
        "      dst[j * 32]{32} = a[p]{32}\n"
    )
    assert alignments(parse_kernel(text)) == [expected]


@pytest.mark.parametrize("second, expected", [("64", 128), ("8", 32), ("i", 4)])
def test_every_call_of_a_function_counts(second: str, expected: int) -> None:
    text = (
        "function tile(x: a, y: dst)\n"
        "  dst[y]{{32}} = a[x]{{32}}\n"
        "kernel k(a: s32[512], dst: s32[512])\n"
        "  for i in 0 .. 2:\n"
        "    call tile(a @ {}, dst @ 0)\n"
        "    call tile(a @ {}, dst @ 32)\n"
    )
    for places in (("i * 32", second), (second, "i * 32")):
        assert alignments(parse_kernel(text.format(*places))) == [expected]


def test_weights_and_buffers_of_a_kernel_are_aligned_and_other_arrays_are_not() -> None:
    line = "--dt=u8:s8:u8 --stag=axb mb1ic128ih2oc128kh1 -> --dt=u8:s8:s32 --dtag=axb mb1ic128ih2oc128kh1"
    problem = parse_problem(line).canonical()
    low = lower(plan(problem, choose(problem, LEVEL, 1, False), LEVEL))
    code = llvm_bind.assembly(low.text, LEVEL.triple, LEVEL.cpu, LEVEL.features)
    functions = {name: body for name, body in re.findall(r"^(\w+):(.*?)^\.Lfunc_end", code, re.MULTILINE | re.DOTALL)}
    main = "".join(body for name, body in functions.items() if "pack" not in name)
    assert re.search(r"= vmem\(r", main) and not re.search(r"= vmemu\(r", main)
    assert re.search(r"vmemu\(r[^)]*\) = ", main)


def test_private_buffers_begin_at_the_alignment() -> None:
    """Four rows of eight pixels with two channels have 64 bytes; buffers of them lie apart by multiples of 128."""
    stages = [f"--dt=u8:s8:u8 {tag} mb1ic2ih8oc2kh3ph1" for tag in ("--stag=axb", "", "--dtag=axb")]
    problem = parse_problem(" -> ".join(stages)).canonical()
    found = stages_of(problem)
    assert found is not None
    config = config_of(found, StageConfigs(LEVEL), 1, (True, True))
    low = lower(plan(problem, config, LEVEL))
    starts = [int(n) for n in re.findall(r"getelementptr i8, ptr %\S+, i32 (\d+)$", low.text, re.MULTILINE)]
    assert len(starts) > 1 and any(starts) and not any(start % 128 for start in starts) and low.scratch % 128 == 0
