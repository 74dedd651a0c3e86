"""Every legal problem has a default config, and a kernel comes out of it: on every level, for 1 to 4 threads.

Each problem passes through the choice of the config, the schedule, every rewrite of the kernel and of the kernels
around it (packing, sums, bias, a depthwise convolution behind it), LLVM's text, and LLVM's parser. LLVM makes machine
code for some of them. Nothing is run, so levels that this machine lacks take part.

A failure names the number of its draw: `draw(number)` gives problem, level and threads again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from math import prod

import pytest
from drawn_layers import ON_X86, random_chain, random_layer, random_machine
from legal import legal_problem, types_of

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import UnsupportedError
from convsmith.frontend.nothing import has_empty_tensor
from convsmith.ir.intern import interning, one_table
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import Conv, Problem
from convsmith.problem.fusion import stages_of
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import DIRECTIONS
from convsmith.schedule.plan import plan
from convsmith.schedule.planned import plan_for
from convsmith.tune.candidates import default_config
from convsmith.tune.compile import choose

TARGETS = (*LEVELS, level())
FEW, CHUNK = 500, 25
"""Draws of the normal tier, and of one test there."""
ALL, LONG_CHUNK = 20_500, 250
"""Draws of the slow tier."""
CODE = 25
"""For one problem in so many, LLVM makes machine code."""
CLASSES = 16
"""Most residue classes of a problem of the normal tier: each is compiled on its own."""
UNAVAILABLE = 0.02
"""The part of the draws for which an UnsupportedError may say at compilation that they are not available."""


def draw(number: int, most: int | None = None) -> tuple[Problem, Machine, int]:
    """A problem, of ``most`` residue classes where that is given, a level and a number of threads."""
    rng = random.Random(number)
    while True:
        problem = legal_problem(rng)
        if most is None or classes(problem) <= most:
            return problem, rng.choice(TARGETS), rng.randint(1, 4)


def classes(problem: Problem) -> int:
    """Residue classes of pixels where strides must divide."""
    scatters = isinstance(problem, Conv) and problem.deconv != (problem.dir == "BWD_D")
    return prod(problem.s) if scatters and not problem.dir.startswith("BWD_W") else 1


def parts(problem: Problem) -> list[Problem]:
    """The problems of the kernels that run, one after the other."""
    stages = stages_of(problem)
    return [problem] if stages is None else list(stages.problems)


def compile_default(problem: Problem, target: Machine, threads: int, code: bool) -> None:
    """Compile the problem's default config, up to machine code or to LLVM's module."""
    for part in parts(problem):
        with no_collection():
            config = default_config(part.canonical(), target, threads)
            with interning():
                text = lower(plan(part.canonical(), config, target)).text
            make = llvm_bind.object_code if code else llvm_bind.parse
            make(text, target.triple, target.cpu, target.features)


def check(numbers: range, most: int | None = None) -> None:
    """All draws of those numbers compile; each that does not is reported."""
    failures, unavailable = [], 0
    for number in numbers:
        problem, target, threads = draw(number, most)
        try:
            compile_default(problem, target, threads, number % CODE == 0)
        except UnsupportedError:
            unavailable += 1
        except Exception as error:
            words = f"--target {target.name} --threads {threads} {problem}"
            failures.append(f"draw {number}: {type(error).__name__}: {str(error)[:300]}\n    {words}")
    assert not failures, "\n".join(failures)
    assert unavailable <= 1 + UNAVAILABLE * len(numbers)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("chunk", range(FEW // CHUNK))
def test_a_default_config_makes_a_kernel(chunk: int) -> None:
    check(range(chunk * CHUNK, (chunk + 1) * CHUNK), CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(ALL // LONG_CHUNK))
def test_a_default_config_makes_a_kernel_at_length(chunk: int) -> None:
    check(range(chunk * LONG_CHUNK, (chunk + 1) * LONG_CHUNK))


# -- layers and chains, whole, under the costs of every micro-architecture
KINDS = {"layers": random_layer, "chains": random_chain}


def refusals_of(kind: str, numbers: range) -> tuple[list[str], Counter[str]]:
    """Choose and lower the default of each draw of ``kind``; return those that are refused, and counts of the others'
    traits.
    """
    failures, found = [], Counter[str]()
    for number in numbers:
        rng = random.Random(f"{kind}{number}")
        problem, (costs, target), threads = KINDS[kind](rng), random_machine(rng), rng.choice((1, 2))
        if has_empty_tensor(problem):
            continue
        try:
            with no_collection():
                config = choose(problem.canonical(), target, threads, dynamic=False)
                with one_table():
                    lower(plan_for(problem.canonical(), config, target))
        except Exception as error:
            words = f"--target {target.name} (costs of {costs}) --threads {threads} {problem}"
            failures.append(f"{kind} {number}: {type(error).__name__}: {str(error)[:300]}\n    {words}")
            continue
        found["transform"] += config.has_transform
        found["fused"] += "--compute_at=" in str(config)
    return failures, found


@pytest.mark.parametrize("kind, count, trait", [("layers", 40, "transform"), ("chains", 10, "fused")])
def test_the_default_of_a_layer_or_chain_makes_a_kernel(kind: str, count: int, trait: str) -> None:
    failures, found = refusals_of(kind, range(count))
    assert not failures, "\n".join(failures)
    assert found[trait]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_the_default_of_a_layer_or_chain_makes_a_kernel_at_length(kind: str, chunk: int) -> None:
    failures, _ = refusals_of(kind, range(chunk * 250, (chunk + 1) * 250))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("number", [864, 1410])
def test_stages_of_a_chain_lose_what_no_later_stage_can_have(number: int) -> None:
    """Draws in which a stage, were it alone, splits its reduction among threads, or packs what it reads."""
    failures, _ = refusals_of("chains", range(number, number + 1))
    assert not failures, "\n".join(failures)


LISTED = (
    "--stag=aBcd16b --dtag=aBcd16b mb1ic64ih56oc1kh3ph1",
    "--deconv --stag=aBcd16b --dtag=aBcd16b mb1ic32ih28oh56oc1kh4sh2ph1",
    "--stag=aBc16b --dtag=aBc16b mb8ic128iw1000oc1kw3pw1", "--stag=aBcd16b --dtag=aBcd16b g3mb1ic51oc3ih17kh3ph1",
    "--dir=BWD_D --stag=aBcd16b --dtag=aBcd16b mb4ic1ih28oc128kh5ph2",
    "--dir=BWD_D mb2_ic1oc64_ih17oh8kh3sh2ph1_iw2ow2kw3sw1pw2",
    "--deconv --stag=axb --dtag=axb g3mb3_ic9oc3_ih8oh14kh7sh1ph0_iw3ow4kw4pw1",
    "g4mb1ic16ih7oc4oh3kh3sh3ph1 -> g2mb1ic4ih3oc4oh3kh1",
)  # fmt: skip
"""Results of one channel, whose lanes have no places of their own in memory between the nests of a kernel."""


@pytest.mark.sampled(12)
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("line", LISTED)
def test_one_channel_of_a_result_within_a_kernel(line: str, part: int) -> None:
    problem = parse_problem(line).canonical()
    for _, target in ON_X86[part::3]:
        config = choose(problem, target, 2, dynamic=False)
        with interning():
            assert lower(plan_for(problem, config, target)).text


# -- the draws
def traits(problem: Problem, target: Machine, threads: int) -> Iterator[str]:
    """Return the traits of a draw among the traits that draws are to cover."""
    yield from (target.name, f"{threads} threads", *(type(op).__name__ for op in problem.post_ops))
    yield from (q.policy for q in (*problem.scales, *problem.zero_points))
    yield from (f"zero point of {q.argument}" for q in problem.zero_points)
    layouts = (problem.src_layout, problem.wei_layout, problem.dst_layout)
    yield from ("plain" if layout.is_plain else "blocked" for layout in layouts)
    if not isinstance(problem, Conv):
        yield f"matrices of {len(problem.src_shape)} dims"
        return
    yield f"{'deconvolution' if problem.deconv else 'convolution'} {problem.dir} {problem.rank}d"
    for k, s, p, fine, reach in zip(problem.k, problem.s, problem.p, problem.fine, problem.keff):
        yield from ("kernel beyond the image",) * (reach > fine) + ("stride beyond the kernel",) * (s > k > 1)
        yield from ("pad beyond the kernel",) * (p > reach) + ("long kernel",) * (k > 100)
        yield from ("size of 1",) * (fine == 1)
    if "axb" in (problem.stag, problem.dtag):
        yield "channels last"
    if problem.g > 1:
        yield "depthwise" if problem.g == problem.ic == problem.oc else "groups"


COMMON = {
    *(t.name for t in TARGETS), *(f"{n} threads" for n in range(1, 5)), "Eltwise", "BinaryPostOp", "Prelu", "SumPostOp",
    "Depthwise", "Integer", "common", "per_oc", "per_dim_0", "per_dim_1", "zero point of src", "zero point of wei",
    "zero point of dst", "plain", "blocked", "channels last", "depthwise", "groups", "matrices of 2 dims",
    "matrices of 3 dims", "matrices of 4 dims",
    "kernel beyond the image", "stride beyond the kernel", "pad beyond the kernel", "size of 1", "long kernel",
}  # fmt: skip
SHAPES = {f"{kind} {d} {rank}d" for kind in ("convolution", "deconvolution") for d in DIRECTIONS for rank in (1, 2, 3)}


def test_few_draws_have_what_all_have() -> None:
    draws = [draw(number, CLASSES) for number in range(FEW)]
    assert len({str(d) for d in draws}) > FEW * 0.99
    found = Counter(trait for d in draws for trait in traits(*d))
    assert COMMON - found.keys() == set()
    assert len(SHAPES - found.keys()) <= 3


@pytest.mark.slow
def test_all_draws_are_distinct_and_have_all_types() -> None:
    found: Counter[str] = Counter()
    distinct, types = set(), set()
    for number in range(ALL):
        problem, target, threads = draw(number)
        distinct.add(f"{problem} {target.name} {threads}")
        types.add((problem.dir, problem.dt))
        found.update(traits(problem, target, threads))
    assert len(distinct) >= 20_000
    assert (COMMON | SHAPES) - found.keys() == set()
    assert {(d, dt) for d in DIRECTIONS for dt in types_of(d)} - types == set()


def test_a_gradient_of_residue_classes_is_not_packed() -> None:
    """Loops of a class end where its residue says, which no packed operand has a dim for."""
    line = "--dir=BWD_D --dt=f64 --stag=abx --wtag=axb --dtag=axb g16mb2ic16ih8iw31oc16oh3ow34kh1kw1sh3sw1ph0pw2"
    problem, machine = parse_problem(line).canonical(), next(t for t in LEVELS if t.name == "avx512_bf16")
    with interning():
        config = default_config(problem, machine, 1)
        assert "diff_dst" not in config.staged("pack") and lower(plan(problem, config, machine)).text
