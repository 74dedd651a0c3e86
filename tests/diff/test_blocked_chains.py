"""TVM's 16 pairs of convolutions over blocked layouts compute what the reference does, and leave tails at zero.

They run in f32 and in bytes, whose sums are converted with saturation after each stage. The interpreter runs them with
smaller blocks, since TVM's sizes take a thousand times as many products.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from blocked_chains import BYTES, SMALL, TILED, Sizes, blocked_chain, cases, config, line, name
from guarded import Compiled, check_result, expected, memories

import convsmith as cs
from convsmith.compiler.blocked_chain import blocked_chain_artifact
from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.machine.generic.level import level
from convsmith.machine.registry import host_target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.problem.chain import Chain
from convsmith.problem.data import random_arrays
from convsmith.schedule.blocked_chain import BlockedChain
from convsmith.tune.compile import compile_problem

IN_TYPES = [
    pytest.param(case, options, id=f"{name(case)}-{kind}")
    for kind, options in (("f32", ("", "")), ("bytes", BYTES)) for case in cases()
]  # fmt: skip
IN_TILES = [
    pytest.param(case, options, words, target, id=f"{name(case)}-{kind}")
    for kind, options, words, target in (
        ("f32", ("", ""), "", "avx2"), ("bytes", BYTES, "", "avx2"),
        ("dot products", ("--dt=u8:s8:u8", "--dt=u8:s8:s32"), "--terms=ic:4 --instruction=vpmaddubsw_256", "avx2"),
    )
    for case in cases()
]  # fmt: skip


@pytest.mark.parametrize("case, options, words, target", IN_TILES)
def test_splits_are_cache_tiles_of_both_stages(
    case: dict[str, Any], options: tuple[str, str], words: str, target: str
) -> None:
    """A config like any other makes the nest: both stages run under common loops, and read their operands in copies."""
    text = config(case, target, TILED.blocks, words)
    kernel = cs.compile(line(case, TILED, options), target=target, config=text, threads=1)
    assert kernel.verify().ok


EPILOGUES = (
    "--dt=u8:s8:u8 --attr-scales=wei:per_oc+dst:common:0.5 --attr-post-ops=relu",
    "--dt=u8:s8:u8 --attr-zero-points=src:common:3+dst:common:2",
)
"""Options of stages whose sums are scaled, clipped and shifted."""
TINY = Sizes(8, 6, 4, (2, 3, 2))
"""Blocks of two rows: so few products that the kernel runs after every pass in a few seconds."""


def interpret(plan: BlockedChain, kernel: Kernel) -> None:
    """Run a kernel of any stage, and compare every element of the result's memory."""
    whole = plan.stages.whole
    arrays = random_arrays(whole)
    memory = memories(whole, arrays)
    verify(kernel)
    run(kernel, {b.name: memory[b.name] for b in kernel.params})
    check_result(whole, memory, expected(whole, arrays))


def test_there_are_sixteen() -> None:
    assert len(cases()) == 16


@pytest.mark.parametrize("case, options", IN_TYPES)
def test_a_case_with_small_blocks_is_interpreted(case: dict[str, Any], options: tuple[str, str]) -> None:
    with interning():
        plan = blocked_chain(case, level(), SMALL, options)
        interpret(plan, run_steps(plan.naive(), plan.pipeline))


@pytest.mark.parametrize(
    "options", [pytest.param(("", ""), id="f32"), pytest.param(BYTES, id="bytes", marks=pytest.mark.slow)]
)
def test_every_pass_keeps_the_values(options: tuple[str, str]) -> None:
    """The kernel runs after every pass, once for several steps of one pass in a row."""
    case = next(c for c in cases() if name(c) == "3-3-2-2")
    with interning():
        plan = blocked_chain(case, level(), TINY, options)
        kernel = plan.naive()
        interpret(plan, kernel)
        for _, steps in groupby(plan.pipeline, lambda step: step.run):
            before, kernel = kernel, run_steps(kernel, steps)
            if kernel is not before:
                interpret(plan, kernel)


@pytest.mark.parametrize("case, options", IN_TYPES)
def test_a_case_with_small_blocks_is_compiled(case: dict[str, Any], options: tuple[str, str]) -> None:
    compare(blocked_chain(case, host_target(), SMALL, options))


@pytest.mark.parametrize(
    "options", [EPILOGUES, ("--dir=FWD_B --attr-post-ops=relu", "--dir=FWD_B --attr-post-ops=sum:2")]
)
def test_the_epilogues_of_both_stages_finish_their_sums(options: tuple[str, str]) -> None:
    case = next(c for c in cases() if name(c) == "3-1-2-1")
    compare(blocked_chain(case, host_target(), SMALL, options))


WINDOWS = (
    ((3, 2), (3, 2)), ((3, 2), (1, 1)), ((1, 2), (2, 3)), ((3, 1), (1, 2)), ((3, 3), (2, 3)), ((1, 1), (3, 2))
)  # fmt: skip
"""Kernel size and stride of both stages."""
STRIDED = [(window, rest, blocks) for window in WINDOWS for rest in (0, 1) for blocks in ((2, 2, 4), (5, 3, 2))]


@pytest.mark.sampled(3, "window")
@pytest.mark.parametrize(("window", "rest", "blocks"), STRIDED, ids=str)
def test_a_row_that_no_tap_reads_is_left_over(
    window: tuple[tuple[int, int], ...], rest: int, blocks: tuple[int, int, int]
) -> None:
    """With strides in both stages, the last rows and columns of a source may be beyond all taps."""
    (rows, columns, channels), sizes = blocks, (10 + 10 * rest, 24)
    terms, stages = min(channels, 4), []
    tags = f"--wtag=OIHW{channels // terms}i{channels}o{terms}i --dtag=NHWC{rows}h{columns}w{channels}c"
    for k, s in window:
        out = tuple((size - k) // s + 1 for size in sizes)
        axes = (f"i{x}{i}o{x}{o}k{x}{k}s{x}{s}p{x}0" for x, i, o in zip("hw", sizes, out))
        stages.append(f"{tags} mb1ic8oc8_{'_'.join(axes)}")
        sizes = out
    chain = parse_problem(f"--stag=axb {' -> '.join(stages)}")
    assert isinstance(chain, Chain)
    compare(BlockedChain(chain, host_target()))


def test_a_chain_of_strides_prints_its_whole_form() -> None:
    text = "mb1ic32ih64oc32oh31kh3sh2ph0 -> mb1ic32ih31oc32oh15kh3sh2ph0"
    chain = parse_problem(text)
    assert isinstance(chain, Chain)
    with interning():
        plan = BlockedChain(chain, level(), whole=True)
        assert run_steps(plan.naive(), plan.nest_steps)


@pytest.mark.parametrize("blocks", [(5, 3, 2), (2, 2, 8)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_default_config_serves_results_in_blocks(threads: int, blocks: tuple[int, int, int]) -> None:
    """Blocks of the result between two stages are not full: no kernel reads what lies beyond the results."""
    case = next(c for c in cases() if name(c) == "3-3-1-1")
    whole = parse_problem(line(case, Sizes(20, 6, 6, blocks)))
    arrays = random_arrays(whole)
    memory = Compiled(whole, compile_problem(whole, target=host_target(), config=None, threads=threads))(arrays)
    check_result(whole, memory, expected(whole, arrays))


@pytest.mark.slow
@pytest.mark.parametrize("case, options", IN_TYPES)
def test_a_case_is_compiled(case: dict[str, Any], options: tuple[str, str]) -> None:
    compare(blocked_chain(case, host_target(), None, options))


def compare(plan: BlockedChain) -> None:
    """Run the compiled kernel between canaries, and compare every element of the result's memory."""
    whole = plan.stages.whole
    arrays = random_arrays(whole)
    memory = Compiled(whole, blocked_chain_artifact(plan))(arrays)
    check_result(whole, memory, expected(whole, arrays))


def refused(text: str, k_split: int = 1, h_split: int = 1) -> str:
    """The message of the error for a chain."""
    chain = parse_problem(text)
    assert isinstance(chain, Chain)
    with pytest.raises(ConfigError) as caught:
        BlockedChain(chain, level(), k_split, h_split)
    return str(caught.value)


def test_splits_that_divide_no_number_of_blocks_are_refused() -> None:
    text = line(cases()[0])
    assert refused(text, k_split=3) == (
        "--k-split=3 divides no number of blocks of output channels of both convolutions; legal are 1, 2, 4"
    )
    assert refused(text, h_split=5) == (
        "--h-split=5 divides no number of blocks of rows of the result; legal are 1, 2, 4, 8"
    )
    assert refused(text, k_split=0).endswith("legal are 1, 2, 4")


def test_chains_of_another_form_are_refused() -> None:
    one = "mb1ic32ih8oc32oh8kh1"
    three = f"{one} -> {one} -> {one}"
    assert refused(three).endswith("has 3 stages; legal are two convolutions")
    assert "stage 1 is --matmul" in refused("--matmul 4x8:8x4 -> --matmul 4x4:4x4")
    assert "has padding" in refused("mb1ic32ih8oc32oh8kh3ph1 -> mb1ic32ih8oc32oh8kh1")
    depthwise = f"--attr-post-ops=dw:k3s1p1 {one} -> {one}"
    assert refused(depthwise).endswith("legal are post-ops that are no convolution")
    assert "legal is that of NHWC8h8w32c, of any sizes" in refused(f"--dtag=axb {one} -> {one}")
    assert "oc of stage 1 is 40; legal are multiples of 32" in refused("mb1ic32ih8oc40oh8kh1 -> mb1ic40ih8oc32oh8kh1")
    rows = "mb1ic32ih10oc32oh8kh3ph0 -> mb1ic32ih8oc32oh8kh1"
    assert "ih of stage 1 is 10; legal are multiples of 8" in refused(rows)
