"""TVM's 16 pairs of convolutions over blocked layouts compute what the reference does, and leave tails at zero.

They run by an ordinary config, whose cache tiles are TVM's splits, and by the schedule of the library that makes the
nest of TVM's document: in f32 and in bytes, whose sums are converted with saturation after each stage. Blocks are
smaller, since TVM's sizes take a thousand times as many products.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from blocked_chains import BYTES, SMALL, TILED, Sizes, cases, chain, config, line, name, schedule
from guarded import Compiled, check_result, expected, memories

import convsmith as cs
from convsmith.diag.errors import ConfigError
from convsmith.frontend.annotated_nest import annotated_nest
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
from convsmith.problem.problem import Problem
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.planned import plan_for
from convsmith.tune.compile import compile_problem

PLAIN = ("", "")
IN_TYPES = [
    pytest.param(case, options, id=f"{name(case)}-{kind}")
    for kind, options in (("f32", PLAIN), ("bytes", BYTES)) for case in cases()
]  # fmt: skip
DOT_PRODUCTS = ("--dt=u8:s8:u8", "--dt=u8:s8:s32")
IN_TILES = [
    *(pytest.param(*p.values, "", id=p.id) for p in IN_TYPES),
    *(
        pytest.param(case, DOT_PRODUCTS, "--k_step=ic:4 --instruction=vpmaddubsw_256", id=f"{name(case)}-dot-products")
        for case in cases()
    ),
]
EPILOGUES = (
    "--dt=u8:s8:u8 --attr-scales=wei:per_oc+dst:common:0.5 --attr-post-ops=relu",
    "--dt=u8:s8:u8 --attr-zero-points=src:common:3+dst:common:2",
)
"""Options of stages whose sums are scaled, clipped and shifted."""
TINY = Sizes(8, 6, 4, (2, 3, 2))
"""Blocks of two rows: so few products that the kernel runs after every pass in a few seconds."""


def compare(problem: Problem, **choices: Any) -> None:
    """Run the compiled kernel between canaries, and compare every element of the result's memory."""
    artifact = cs.compile(str(problem), target="avx2", threads=1, **choices).artifact
    assert artifact is not None
    arrays = random_arrays(problem)
    check_result(problem, Compiled(problem, artifact)(arrays), expected(problem, arrays))


def interpret(problem: Problem, kernel: Kernel) -> None:
    """Run a kernel of any stage, and compare every element of the result's memory."""
    arrays = random_arrays(problem)
    memory = memories(problem, arrays)
    verify(kernel)
    run(kernel, {b.name: memory[b.name] for b in kernel.params})
    check_result(problem, memory, expected(problem, arrays))


def case_of(text: str) -> dict[str, Any]:
    """The case of a name."""
    return next(case for case in cases() if name(case) == text)


def test_there_are_sixteen() -> None:
    assert len(cases()) == 16


@pytest.mark.parametrize("case, options, words", IN_TILES)
def test_splits_are_cache_tiles_of_both_stages(case: dict[str, Any], options: tuple[str, str], words: str) -> None:
    """A config like any other makes the nest: both stages run under common loops, and read their operands in copies."""
    compare(chain(case, TILED, options), config=config(case, "avx2", TILED.blocks, words))


@pytest.mark.parametrize("tile", ["oc:16", "oh:5", "mb"])
@pytest.mark.parametrize("text", ["1-1-1-1", "3-3-1-1"])
def test_a_tile_of_all_blocks_has_no_word(text: str, tile: str) -> None:
    """The loop around such a tile is the place where the first stage is computed, and where operands are packed."""
    cache = f"--cache={tile}" if ":" in tile else ""
    own = f"--target=avx2 --lane=oc --register=ow:3,oc:8 --order=mb,oc,oh,ow {cache} --pack= --pack_at=wei+{tile}"
    joined = f"{own} --realise=pad_copy --compute_at={tile} --halo=recompute / {own}"
    compare(chain(case_of(text), TILED), config=joined)


@pytest.mark.parametrize("case, options", IN_TYPES)
def test_the_schedule_of_the_library_computes_a_case(case: dict[str, Any], options: tuple[str, str]) -> None:
    compare(chain(case, SMALL, options), schedule=schedule(case))


@pytest.mark.parametrize(
    "options", [pytest.param(PLAIN, id="f32"), pytest.param(BYTES, id="bytes", marks=pytest.mark.slow)]
)
def test_every_pass_keeps_the_values(options: tuple[str, str]) -> None:
    """The kernel runs after every pass, once for several steps of one pass in a row."""
    case = case_of("3-3-2-2")
    problem = chain(case, TINY, options)
    with interning():
        made = plan_for(problem, GivenSchedule(schedule(case), "generic"), level())
        kernel = made.naive()
        interpret(problem, kernel)
        for _, steps in groupby(made.pipeline, lambda step: step.run):
            before, kernel = kernel, run_steps(kernel, steps)
            if kernel is not before:
                interpret(problem, kernel)


@pytest.mark.parametrize(
    "options", [EPILOGUES, ("--dir=FWD_B --attr-post-ops=relu", "--dir=FWD_B --attr-post-ops=sum:2")]
)
def test_the_epilogues_of_both_stages_finish_their_sums(options: tuple[str, str]) -> None:
    case = case_of("3-1-2-1")
    compare(chain(case, SMALL, options), schedule=schedule(case))
    compare(chain(case, TILED, options), config=config(case, "avx2", TILED.blocks))


WINDOWS = (
    ((3, 2), (3, 2)), ((3, 2), (1, 1)), ((1, 2), (2, 3)), ((3, 1), (1, 2)), ((3, 3), (2, 3)), ((1, 1), (3, 2))
)  # fmt: skip
"""Kernel size and stride of both stages."""
STRIDED = [(window, rest, blocks) for window in WINDOWS for rest in (0, 1) for blocks in ((2, 2, 8), (5, 3, 2))]


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
        stages.append(f"{tags} mb1ic16oc16_{'_'.join(axes)}")
        sizes = out
    case = {"kernel_size1": window[0][0], "kernel_size2": window[1][0], "k_split_factor": 1, "h_split_factor": 1}
    problem = parse_problem(f"--stag=axb {' -> '.join(stages)}")
    compare(problem, schedule=schedule(case))
    if channels == 8 and sizes[0] > rows:
        compare(problem, config=config(case, "avx2", blocks))


def test_a_chain_of_strides_prints_its_whole_form() -> None:
    assert "// conv2d #2" in nest("mb1ic32ih64oc32oh31kh3sh2ph0 -> mb1ic32ih31oc32oh15kh3sh2ph0")


@pytest.mark.parametrize("blocks", [(5, 3, 2), (2, 2, 8)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_default_config_serves_results_in_blocks(threads: int, blocks: tuple[int, int, int]) -> None:
    """Blocks of the result between two stages are not full: no kernel reads what lies beyond the results."""
    whole = chain(case_of("3-3-1-1"), Sizes(20, 6, 6, blocks))
    arrays = random_arrays(whole)
    memory = Compiled(whole, compile_problem(whole, target=host_target(), config=None, threads=threads))(arrays)
    check_result(whole, memory, expected(whole, arrays))


@pytest.mark.slow
@pytest.mark.parametrize("case, options", IN_TYPES)
def test_a_case_is_compiled(case: dict[str, Any], options: tuple[str, str]) -> None:
    sizes = Sizes(64, 64, 128, (8, 8, 32))
    compare(chain(case, sizes, options), config=config(case, "avx2"))
    compare(chain(case, sizes, options), schedule=schedule(case))


def nest(text: str, k_split: int = 1, h_split: int = 1) -> str:
    """The annotated nest of a chain."""
    problem = parse_problem(text)
    assert isinstance(problem, Chain)
    return annotated_nest(problem, level(), k_split, h_split)


def refused(text: str, k_split: int = 1, h_split: int = 1) -> str:
    """The message of the error for a chain."""
    with pytest.raises(ConfigError) as caught:
        nest(text, k_split, h_split)
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
