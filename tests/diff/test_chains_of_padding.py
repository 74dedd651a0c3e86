"""Chains with stages that read padding alone, in all of their elements or in those that later stages need.

Such a stage has no row that another one computes for it. It is fused with none, and every argument of the chain is one
of its kernel.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from convsmith.diag.errors import ConfigError, UsageError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.nothing import has_empty_tensor
from convsmith.machine.registry import target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import Chain, Conv, Problem, parse_problem
from convsmith.problem.descriptor import output_size
from convsmith.problem.fusion import Stages, reads_padding_alone, stages_of
from convsmith.problem.post_ops import parse_post_ops
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.chains import are_fusible, config_of, stages_config
from convsmith.tune.search.stages_space import StagesSpace
from convsmith.tune.stage_configs import StageConfigs


def chain(rng: random.Random) -> Chain:
    """A chain of few pixels, with pads and strides beyond its kernels."""
    while True:
        channels, sizes = rng.choice((2, 4)), (rng.choice((1, 2, 3)), rng.choice((1, 2, 3)))
        stages: list[Problem] = []
        try:
            for n in range(rng.choice((2, 3, 3, 4))):
                k, s, d = (tuple(rng.choice(x) for _ in sizes) for x in ((1, 1, 2, 3), (1, 1, 2, 3, 5), (0, 0, 1)))
                p = tuple(rng.choice((0, 1, 2, 3, 4)) for _ in k)
                o = tuple(min(output_size(*axis), rng.choice((1, 2, 9))) for axis in zip(sizes, k, s, d, p, p))
                is_depthwise = rng.random() < 0.3
                oc = channels if is_depthwise else rng.choice((2, 3, 4))
                stages.append(
                    Conv(mb=1, ic=channels, oc=oc, i=sizes, o=o, k=k, s=s, d=d, p=p,
                         g=channels if is_depthwise else 1, has_groups=is_depthwise, dir=rng.choice(("FWD_D", "FWD_B")),
                         post_ops=parse_post_ops(rng.choice(("", "relu", "add:f32:per_oc"))),
                         stag=rng.choice(("axb", "any")) if n == 0 else "any")
                )  # fmt: skip
                channels, sizes = oc, o
            found = Chain(stages=tuple(stages)).canonical()
        except UsageError:
            continue
        if not has_empty_tensor(found):
            return found


def of(problem: Problem) -> Stages:
    stages = stages_of(problem)
    assert stages is not None
    return stages


def configs(problem: Problem, threads: int) -> list[Config]:
    """The default config, and the one with most stages fused."""
    stages, machine = of(problem), target()
    ways = [way for way in product((True, False), repeat=len(stages) - 1) if are_fusible(stages, way)]
    fused = max(ways, key=sum)
    return [stages_config(problem, machine, threads), config_of(stages, StageConfigs(machine), threads, fused)]


def check(numbers: range) -> tuple[int, int]:
    """Run the draws; return how many have a stage that reads padding alone, and how many of these have fused stages."""
    alone = beside = 0
    for number in numbers:
        rng = random.Random(number)
        problem, threads = chain(rng), rng.choice((1, 2))
        for config in configs(problem, threads):
            verdict = verify_kernel(CompiledKernel(problem, target(), config, threads))
            assert verdict.ok, f"draw {number}: {config} of {problem}: {verdict.detail}"
        if reads_padding_alone(of(problem).problems) is not None:
            alone += 1
            beside += "--compute_at=" in str(config)
    return alone, beside


def test_chains_whose_stages_read_padding() -> None:
    alone, beside = check(range(16))
    assert alone >= 4 and beside >= 1


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_chains_whose_stages_read_padding_at_length(chunk: int) -> None:
    check(range(chunk * 100, (chunk + 1) * 100))


LISTED = (
    "mb1ic4ih2oc4kh1 -> mb1ic4ih2oc3oh1kh1sh3ph1 -> mb1ic3ih1oc2kh1",
    "--stag=axb mb1ic4ih1iw3oc4oh2ow1kh1kw1sh5sw3ph4pw0 -> --dir=FWD_B g4mb1ic4ih2iw1oc4oh4ow1kh1kw1sh1sw2ph1pw0",
    "--stag=axb mb1ic4ih2iw3oc2oh2ow2kh2kw3sw2ph1pw1dh1dw0 -> --dir=FWD_B mb1ic2ih2oc2oh1kh1sh5ph1",
    "mb1ic2ih6oc2kh1 -> g2mb1ic2ih6oc2oh3kh1sh5ph4 -> mb1ic2ih3oc4oh4kh1sh2ph2",
    "--dir=FWD_B --attr-post-ops=dw:k1s2p1 mb1ic4ih1oc8oh1kh1", "--attr-post-ops=dw:k3s1p1 mb1ic4ih1oc8oh1kh1sh3ph1",
)  # fmt: skip
"""The second stage reads padding alone; the first does; both have arguments of their own; the second reads one row,
which the third does not need; a depthwise convolution and one before it."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", LISTED)
def test_every_argument_is_taken(line: str, threads: int) -> None:
    problem = parse_problem(line)
    assert reads_padding_alone(of(problem).problems) is not None
    kernel = CompiledKernel(problem.canonical(), target(), None, threads)
    assert verify_kernel(kernel).ok
    space = StagesSpace(problem.canonical(), target(), threads)
    for config in space.seeds:
        assert not space.refusal(config)


@pytest.mark.parametrize(("line", "stage", "end"), [(LISTED[0], 2, 3), (LISTED[3], 2, 3), (LISTED[4], 2, 2)])
def test_a_fused_stage_that_reads_padding_alone_is_refused(line: str, stage: int, end: int) -> None:
    problem = parse_problem(line).canonical()
    fused = config_of(of(problem), StageConfigs(target()), 1, [True] * (len(of(problem)) - 1))
    words = f"stage {stage}, .*, reads padding alone where it computes what stage {end} needs.* legal is a kernel of"
    with pytest.raises(ConfigError, match=words):
        plan(problem, fused, target())


def test_padding_is_told_from_elements_as_by_following_every_tap() -> None:
    seen: set[int | None] = set()
    for number in range(150):
        stages = [problem for problem in chain(random.Random(number)).stages if isinstance(problem, Conv)]
        alone = []
        for first in range(len(stages)):
            for axis in range(2):
                needed = set(range(stages[-1].o[axis]))
                for x in reversed(stages[first:]):
                    places = (o * x.s[axis] + k * (x.d[axis] + 1) - x.p[axis] for o in needed for k in range(x.k[axis]))
                    needed = {place for place in places if 0 <= place < x.i[axis]}
                alone += [first] * (not needed)
        assert reads_padding_alone(stages) == max(alone, default=None)
        seen.add(reads_padding_alone(stages))
    assert seen >= {None, 0, 1, 2}
