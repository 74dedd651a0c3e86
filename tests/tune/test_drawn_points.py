"""A point of a space that the plan accepts makes a kernel: no pass refuses it later.

The problems are drawn: layers, chains, and problems of every kind and attribute, on every level of a CPU and of a
device. From a candidate of the model, each draw walks along random dimensions of its space. Points pass through the
plan and all rewrites, up to the text of the kernel; no machine code is made. `draw(kind, number)` gives a failure's
problem, level and threads again.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from drawn_layers import random_chain, random_layer, random_machine
from legal import legal_problem
from tune.test_every_default import CLASSES, classes

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.frontend.nothing import has_empty_tensor
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import device_targets, target
from convsmith.plan.config import Config
from convsmith.plan.planned import plan_for
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.tune.config_space import ConfigSpace
from convsmith.tune.device_space import space_of

KINDS = {"layers": random_layer, "chains": random_chain, "legal": legal_problem}
ON_DEVICES = "on devices"
ALL_KINDS = (*KINDS, *(f"{kind} {ON_DEVICES}" for kind in KINDS))
POINTS = 6
"""Points of a walk."""
TRIED = 8
"""Neighbours of a point of which the walk takes the first that is legal."""
SECONDS = 15
"""Seconds of the processor after which a draw of very large kernels ends."""


class _TooLong(BaseException):
    """The draw has taken its time."""


def draw(kind: str, number: int) -> tuple[random.Random, Problem, Machine, int]:
    """A source of random numbers, a problem, a level and a number of threads."""
    rng = random.Random(f"points {kind} {number}")
    while True:
        problem = KINDS[kind.removesuffix(f" {ON_DEVICES}")](rng)
        if not has_empty_tensor(problem) and classes(problem) <= CLASSES:
            break
    machine = rng.choice(device_targets()) if kind.endswith(ON_DEVICES) else random_machine(rng)[1]
    return rng, problem.canonical(), machine, rng.choice((1, 2, 4))


def walked(of: ConfigSpace, rng: random.Random) -> Iterator[tuple[str, Config]]:
    """Yield dimensions and the legal points to which they lead, from random candidates of the model."""
    at = rng.choice(of.seeds)
    for n in range(POINTS):
        if n % 3 == 2:
            at = rng.choice(of.seeds)
        dimension = rng.choice(of.dimensions)
        near = list(of.neighbours(at, dimension))
        rng.shuffle(near)
        at = next((c for c in near[:TRIED] if of.fits(c) and of.cycles(c) >= 0 and not of.refusal(c)), at)
        yield dimension, at


@contextmanager
def limited() -> Iterator[None]:
    """End the block after `SECONDS` of the processor."""

    def end(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    except _TooLong:
        pass
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def refusals_of_points(kind: str, numbers: range) -> tuple[list[str], int]:
    """Walk through the space of each draw; return the points that fail after they were planned, and count all."""
    failures: list[str] = []
    found = 0
    for number in numbers:
        rng, problem, machine, threads = draw(kind, number)
        step: tuple[str, Config | None] = "", None
        with limited(), llvm_bind.no_collection(), interning():
            try:
                of = space_of(problem, machine, threads)
            except (ConfigError, UnsupportedError):
                continue  # the default's own tests hold which problems have none
            try:
                for step in walked(of, rng):
                    found += 1
                    lower(plan_for(problem, step[1], machine))
            except Exception as error:
                words = f"--target {machine.name} --threads {threads} {problem}\n    {step[0]} --config '{step[1]}'"
                failures.append(f"{kind} {number}: {type(error).__name__}: {str(error)[:300]}\n    {words}")
    return failures, found


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_points_that_are_planned_make_kernels(kind: str) -> None:
    failures, found = refusals_of_points(kind, range(5))
    assert not failures, "\n".join(failures)
    assert found >= POINTS


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(20))
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_points_that_are_planned_make_kernels_at_length(kind: str, chunk: int) -> None:
    failures, _ = refusals_of_points(kind, range(100 * chunk + 5, 100 * chunk + 105))
    assert not failures, "\n".join(failures)


LISTED = (
    ("xe_lp", "--dt=f16 --stag=aBcd8b --dtag=aBcd8b mb8ic32ih17oc3oh9kh5sh2ph2",
     "--lane=oh --register=oh:2,oc:4 --reduce=kh,kw,ic --realise=pad_copy --pack= "
     "--group=oh:16,oc:4,ow:4,kh:5,kw:5,ic:8 --shared=src,wei --swizzle=src:8 --vectors=ic:8", "divisors of a row"),
    ("opencl", "--deconv --dt=u8:s8:f32 --stag=axb --dtag=axb g2mb8ic34ih7oc66oh3kh3ph3",
     "--lane=oc --register=oc:8,ow:4,oh:2 --reduce=kh,kw,ic --realise=mask --pack= --group=oc:64,ow:4,oh:4",
     r"bind\(g, oc.g, mb, oh.g, ow.g, grid\)"),
    ("aarch64+bf16", "--dir=BWD_D --stag=aBcd16b --dtag=aBcd16b g24mb1ic24ih7oc24oh3kh3sh2ph0",
     "--lane=g --register=iw:3,g:4 --reduce=kh,kw,oc --pack=diff_dst,wei", "loop ih ends at .* do not index diff_dst"),
    ("avx512", "--dt=f16 --stag=axb --dtag=axb g24mb1ic24id1oc48od1kd4sd2pd4",
     "--lane=oc --register=oc:16 --stream=wei", "--stream=wei: legal are"),
    ("sm_90a", "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb2ic128ih9oc64oh9kh3ph1",
     "--lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:32 --reduce=kh,kw,ic --pack= --realise=hardware "
     "--instruction=wgmma_m64n32k16_bf16 --group=mb_oh_ow:64,oc:32,ic:128 --shared=src,wei", "legal is at most 64"),
    ("sm_90a", "--dir=BWD_W --stag=axb --wtag=axb --dtag=axb --dt=bf16 mb4ic64ih8oc64oh8kh3ph1",
     "--lane=oc --fuse=mb+oh,mb_oh+ow --register=ic:64,oc:32 --reduce=mb_oh_ow --pack= --realise=hardware --split=mb:4 "
     "--instruction=wgmma_m64n32k16_bf16_mn_mn --group=ic:64,oc:32,mb_oh_ow:128 --shared=src,diff_dst",
     "64 terms of a part .* found 128"),
    ("avx512", "--stag=axb mb2ic8ih9oc40oh9kh1 -> --dtag=axb --dir=FWD_B g40mb2ic40ih9oc40oh9kh3ph1",
     "--lane=oc --fuse=mb+oh --register=ow:5,oc:48 --order=mb_oh,ow,oc --reduce=kh,kw,ic --at=oh / --target=avx512 "
     "--lane=g --register=oh:1,ow:3,g:32,kh:3,kw:3 --order=mb,oh,g,oc,ow --reduce=ic,kh,kw", "oh to a constant"),
)  # fmt: skip
"""Configs that passes refused after the plan had accepted them: level, problem, config, and the plan's words."""


@pytest.mark.parametrize(("level", "line", "words", "text"), LISTED)
def test_the_plan_asks_what_the_passes_ask(level: str, line: str, words: str, text: str) -> None:
    with interning(), pytest.raises(ConfigError, match=text):
        plan_for(parse_problem(line).canonical(), Config.parse(f"--target={level} {words}"), target(level))
