"""TVM's 16 pairs of convolutions over blocked layouts compute what the reference does, and leave tails at zero.

They run by an ordinary config, whose cache tiles are TVM's splits, and by the schedule of the library that makes the
nest of TVM's document: in f32 and in bytes, whose sums are converted with saturation after each stage. Blocks are
smaller, since TVM's sizes take a thousand times as many products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from blocked_chains import BYTES, SMALL, TILED, Sizes, cases, chain, config, line, name, printed, schedule
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
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.problem.chain import Chain
from convsmith.problem.data import random_arrays
from convsmith.problem.problem import Problem
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.library.blocked_chain import blocked_chain
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


@pytest.mark.sampled(8)
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


@pytest.mark.sampled(32, "ring")
@pytest.mark.parametrize("ring", [False, True], ids=["window", "ring"])
@pytest.mark.parametrize("case, options", IN_TYPES)
def test_the_schedule_of_the_library_computes_a_case(
    case: dict[str, Any], options: tuple[str, str], ring: bool
) -> None:
    compare(chain(case, SMALL, options), schedule=schedule(case, ring))
    compare(chain(case, TILED, options), schedule=schedule(case, ring))


@pytest.mark.sampled(11)
@pytest.mark.parametrize("case, options", IN_TYPES)
def test_the_nest_that_is_printed_computes_a_case(case: dict[str, Any], options: tuple[str, str]) -> None:
    compare(chain(case, SMALL, options), schedule=printed(case))


_PARAMETERS = {
    "pads of the first": "mb1ic32ih20iw6oc32oh20ow6kh3kw3ph1pw1 -> mb1ic32ih20iw6oc32oh18ow4kh3kw3ph0pw0",
    "pads of both": "mb2ic32ih20iw6oc32oh20ow6kh3kw3ph1pw1 -> mb2ic32ih20iw6oc32oh20ow6kh3kw3ph1pw1",
    "pads of one side": "mb1ic32ih20iw6oc32oh20ow5kh3kw2ph2pw0 -> mb1ic32ih20iw5oc32oh20ow5kh1kw1ph0pw0",
    "strides of the first": "mb1ic32ih21iw7oc32oh10ow3kh3kw3sh2sw2ph0pw0 -> mb1ic32ih10iw3oc32oh10ow3kh1kw1ph0pw0",
    "strides of the second": "mb1ic32ih20iw6oc32oh20ow6kh1kw1ph0pw0 -> mb1ic32ih20iw6oc32oh9ow2kh3kw3sh2sw2ph0pw0",
    "both of both": "mb1ic32ih41iw13oc32oh21ow7kh3kw3sh2sw2ph1pw1 -> mb1ic32ih21iw7oc32oh11ow4kh3kw3sh2sw2ph1pw1",
    "dilations": "mb1ic32ih20iw8oc32oh16ow4kh3kw3dh1dw1ph0pw0 -> mb1ic32ih16iw4oc32oh16ow4kh1kw1ph0pw0",
}


@pytest.mark.sampled(7, "ring", wide=1, every="splits kind")
@pytest.mark.parametrize("ring", [False, True], ids=["window", "ring"])
@pytest.mark.parametrize("splits", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("kind", _PARAMETERS)
def test_pads_and_strides_are_parameters(kind: str, splits: tuple[int, int], ring: bool) -> None:
    tags = "--wtag=OIHW2i8o4i --dtag=NHWC5h3w8c"
    one, two = _PARAMETERS[kind].split(" -> ")
    problem = parse_problem(f"--stag=axb {tags} {one} -> {tags} {two}")
    compare(problem, schedule=partial(blocked_chain, k_split=splits[0], h_split=splits[1], ring=ring))


def loads(problem: Problem, made: Callable[[KernelSchedule], None], array: str) -> Counter[int]:
    """The number of times that a kernel loads each element of an array, by its offset."""
    found: Counter[int] = Counter()

    class Counted(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, tuple | int | np.integer):
                found[int(np.ravel(key)[0])] += 1
            return super().__getitem__(key)

    with interning():
        plan = plan_for(problem, GivenSchedule(made, "generic"), level())
        flat = next(n for n, step in enumerate(plan.pipeline) if step.run is flatten)
        kernel = run_steps(plan.naive(), plan.pipeline[: flat + 1])
        memory = memories(problem, random_arrays(problem))
        memory[array] = memory[array].view(Counted)
        run(kernel, {b.name: memory[b.name] for b in kernel.params})
    return found


def test_a_ring_loads_each_row_once_for_each_tile_of_channels() -> None:
    """Without it, rows that two tiles of rows read are loaded for both: the document's second To Do."""
    case = case_of("3-3-2-1")
    problem = chain(case, TINY)
    kept, again = (loads(problem, schedule(case, ring), "src") for ring in (True, False))
    assert kept.keys() == again.keys() and set(kept.values()) == {1}
    assert set(again.values()) == {1, 2}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(PLAIN, id="f32", marks=pytest.mark.wide),
        pytest.param(BYTES, id="bytes", marks=pytest.mark.slow),
    ],
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


@pytest.mark.sampled(8)
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
    assert "stage 2 has padding" in refused("mb1ic32ih8oc32oh8kh1 -> mb1ic32ih8oc32oh8kh3ph1")
    padded = refused("mb1ic32ih8oc32oh8kh3ph1 -> mb1ic32ih8oc32oh8kh1")
    assert padded.endswith("ih of stage 1 is 10, with its padding; legal are multiples of 8")
    depthwise = f"--attr-post-ops=dw:k3s1p1 {one} -> {one}"
    assert refused(depthwise).endswith("legal are post-ops that are no convolution")
    assert "legal is that of NHWC8h8w32c, of any sizes" in refused(f"--dtag=axb {one} -> {one}")
    assert "oc of stage 1 is 40; legal are multiples of 32" in refused("mb1ic32ih8oc40oh8kh1 -> mb1ic40ih8oc32oh8kh1")
    rows = "mb1ic32ih10oc32oh8kh3ph0 -> mb1ic32ih8oc32oh8kh1"
    assert "ih of stage 1 is 10, with its padding; legal are multiples of 8" in refused(rows)


def test_the_printed_nest_reads_a_source_that_is_padded_before() -> None:
    two, note = "mb1ic32ih62oc32oh60kh3ph0", "// the source of 62x62 pixels is padded to 64x64 before\n"
    padded = nest(f"mb1ic32ih62oc32oh62kh3ph1 -> {two}")
    assert padded.count(note) == 1
    assert padded.replace(note, "") == nest(f"mb1ic32ih64oc32oh62kh3ph0 -> {two}")


def test_pixels_in_blocks_are_no_result_of_a_transform() -> None:
    """The default config of such a problem sums products."""
    text = "--stag=axb --dtag={} --wtag=any mb1ic64ih18iw18oc64oh16ow16kh3kw3ph0pw0"
    whole = cs.compile(text.format("axb"), target="avx2", threads=1)
    assert whole.transforms
    assert not cs.compile(text.format("NHWC8h8w32c"), target="avx2", threads=1).transforms
    with pytest.raises(ConfigError, match="the pixels of dst are in blocks"):
        cs.compile(text.format("NHWC8h8w32c"), target="avx2", threads=1, config=str(whole.config))
