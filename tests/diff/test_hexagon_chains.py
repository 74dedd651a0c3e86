"""TVM's pairs of convolutions, emulated on Hexagon: over blocked layouts in f32 and bytes, and as chains; exact."""

from __future__ import annotations

from typing import Any

import pytest
from blocked_chains import BYTES, SMALL, Sizes, cases, chain, config, name, schedule
from emulated import check_emulated, skip_without_emulator

import convsmith as cs
from convsmith.frontend.annotated_nest import annotated_nest
from convsmith.machine.generic.level import level
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.fusion import Stages, stages_of
from convsmith.tune.chains import joints
from convsmith.tune.stage_configs import StageConfigs

LEVEL = target("hexagon+v68")
OFTEN = (0, 15)
"""Numbers of the cases that run in every test run: one tap and one tile, windows and several tiles."""
KERNELS = sorted({(case["kernel_size1"], case["kernel_size2"]) for case in cases()})


def case_of(n: int, case: dict[str, Any]) -> object:
    return pytest.param(case, id=name(case), marks=() if n in OFTEN else pytest.mark.slow)


PAIRS = Sizes(20, 6, 8, (5, 3, 2))
"""Blocks of two channels, which scalar code sums up."""
VECTORS = Sizes(10, 5, 96, (2, 3, 32))
"""Blocks of 32 channels, as TVM has them, and three of them, so that the last tile of two is short."""
PRODUCTS = "--k_step=ic:4 --instruction=vrmpy_"
KINDS = (
    pytest.param(PAIRS, ("", ""), "", id="f32"), pytest.param(VECTORS, BYTES, f"{PRODUCTS}b_b", id="s8"),
    pytest.param(
        VECTORS, ("--dt=u8:s8:u8", "--dt=u8:s8:s32"), f"{PRODUCTS}ub_b", id="u8 to s32", marks=pytest.mark.slow
    ),
)  # fmt: skip


@pytest.mark.sampled(48)
@pytest.mark.parametrize("sizes, options, words", KINDS)
@pytest.mark.parametrize("case", [case_of(n, case) for n, case in enumerate(cases())])
def test_splits_are_cache_tiles_of_both_stages(
    case: dict[str, Any], sizes: Sizes, options: tuple[str, str], words: str
) -> None:
    """An ordinary config makes the nest, in which both convolutions add four products of bytes to each of 32 sums."""
    skip_without_emulator(LEVEL)
    problem = chain(case, sizes, options)
    text = config(case, LEVEL.name, sizes.blocks, words)
    kernel = cs.compile(str(problem), target=LEVEL.name, config=text, threads=1)
    assert kernel.artifact is not None and ("vrmpy" in kernel.asm()) == bool(words)
    check_emulated(problem, kernel.artifact, random_arrays(problem))


@pytest.mark.sampled(32)
@pytest.mark.parametrize("options", [("", ""), BYTES], ids=["f32", "s8"])
@pytest.mark.parametrize("case", [case_of(n, case) for n, case in enumerate(cases())])
def test_the_schedule_of_the_library_is_exact(case: dict[str, Any], options: tuple[str, str]) -> None:
    skip_without_emulator(LEVEL)
    problem = chain(case, SMALL, options)
    artifact = cs.compile(str(problem), target=LEVEL.name, schedule=schedule(case), threads=1).artifact
    assert artifact is not None
    check_emulated(problem, artifact, random_arrays(problem))


@pytest.mark.parametrize(
    "first, second", [pytest.param(*k, marks=() if k == KERNELS[-1] else pytest.mark.slow) for k in KERNELS]
)
def test_a_chain_of_bytes_is_exact(first: int, second: int) -> None:
    """The first result saturates; both stages run in one kernel or one after the other, as the compiler chooses."""
    skip_without_emulator(LEVEL)
    middle = 13 - first
    last = middle + 1 - second
    text = (
        f"--dt=u8:s8:u8 --stag=axb mb1ic32ih12oc32oh{middle}kh{first}ph0 -> "
        f"--dt=u8:s8:s32 --dtag=axb mb1ic32ih{middle}oc32oh{last}kh{second}ph0"
    )
    problem = parse_problem(text)
    artifact = cs.compile(text, target=LEVEL.name, threads=1).artifact
    assert artifact is not None
    check_emulated(problem, artifact, random_arrays(problem))


THREE = (
    "--dt=u8:s8:u8 --stag=axb mb1ic32ih10oc32oh8kh3ph0 -> --dt=u8:s8:u8 mb1ic32ih8oc32oh8kh1 -> "
    "--dt=u8:s8:s32 --dtag=axb mb1ic32ih8oc32oh6kh3ph0"
)
ROW = f"--target={LEVEL.name} --lane=oc --register=ow:8,oc:32 --order=mb,oh,ow,oc --instruction=vrmpy_ub_b "
ROW += "--k_step=ic:4"
FUSED = f"{ROW} --compute_at=oh3 / {ROW} --compute_at=oh / {ROW}"
"""A chain and its config: both results between stages are computed at a loop over rows of the last stage."""
PLACE = f"in {LEVEL.scratchpad}"


def test_a_fused_chain_of_bytes_is_exact() -> None:
    skip_without_emulator(LEVEL)
    problem = parse_problem(THREE)
    kernel = cs.compile(THREE, target=LEVEL.name, config=FUSED, threads=1)
    assert kernel.artifact is not None
    check_emulated(problem, kernel.artifact, random_arrays(problem))
    assert "vrmpy" in kernel.asm()


def test_the_plan_says_that_buffers_of_a_chain_lie_in_the_memory_of_the_vector_units() -> None:
    """Memory that is too small for them is named too."""
    page = cs.compile(THREE, target=LEVEL.name, config=FUSED, threads=1).explain()
    for result in ("mid, the result of stage 1", "mid2, the result of stage 2"):
        (line,) = (x for x in page.split("\n") if result in x)
        assert f" KiB for each thread {PLACE}, rows" in line
    assert f"these buffers lie {PLACE}\n" in page
    assert LEVEL.place(4 << 20) == "in VTCM of 4096 KiB"
    assert LEVEL.place((4 << 20) + 1) == "behind L2 of 1024 KiB, too large for VTCM of 4096 KiB"


def test_the_nest_in_blocks_says_where_its_caches_lie() -> None:
    problem = chain(cases()[0], SMALL, BYTES)
    assert annotated_nest(problem, LEVEL).endswith(f"\n// the caches lie {PLACE}")
    assert "the caches lie" not in annotated_nest(problem, level())


def stages(text: str) -> Stages:
    """The stages of a chain."""
    found = stages_of(parse_problem(text))
    assert found is not None
    return found


def test_results_between_stages_are_compared_with_the_memories_of_vectors() -> None:
    """The first-level cache holds scalars alone, and rows lie beside the caches."""
    assert [memory.name for memory in LEVEL.vector_memories] == ["L2"]
    types = "--dt=u8:s8:u8"
    beside = f"{types} mb1ic32ih80oc16oh80kh1 -> {types} mb1ic16ih80oc256oh80kh1 -> {types} mb1ic256ih80oc32oh80kh1"
    small, large = joints(stages(beside), StageConfigs(LEVEL))
    assert (small.fused, small.why) == (False, "it fits L2 of 1024 KiB")
    assert large.fused
    rows = f"{types} mb1ic32ih8iw1024oc256kh1kw1 -> {types} mb1ic256ih8iw1024oc32kh3kw3ph1pw1"
    (joint,) = joints(stages(rows), StageConfigs(LEVEL))
    assert (joint.held >> 10, joint.fused) == (1024, True)
    assert joint.why == "it is larger than L2 of 1024 KiB, and its rows fit VTCM of 4096 KiB"
