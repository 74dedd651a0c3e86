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
from dataclasses import replace

import pytest
from drawn_layers import random_chain, random_layer, random_machine
from legal import legal_problem
from tune.test_every_default import CLASSES, classes

from convsmith.compiler.driver import lower
from convsmith.compiler.rewritten import Lowered
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.frontend.nothing import has_empty_tensor
from convsmith.ir.intern import interning
from convsmith.ir.shared import ALIGNMENT, SLOTS, barrier_bytes, taken_bytes
from convsmith.machine.base import Machine
from convsmith.machine.registry import device_targets, target
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from convsmith.tune.search.config_space import ConfigSpace
from convsmith.tune.search.device_space import space_of

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
        if not of.refusal(at):
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


def uncounted_bytes(plan: Plan, low: Lowered) -> int:
    """Return the bytes of shared memory that the main kernel of a plan takes beyond those that the plan counts."""
    if not isinstance(plan, Plan):
        return 0
    slots = SLOTS if plan.main.config.realise == "hardware" else ALIGNMENT
    counted = sum(taken_bytes(nbytes, slots) for nbytes in plan.main.shared.values())
    if plan.main.config.realise == "hardware":
        counted += barrier_bytes(plan.main.config.buffers)
    return max(low.launched[plan.symbol()][1].shared - counted, 0)


def refusals_of_points(kind: str, numbers: range) -> tuple[list[str], int]:
    """Walk through the space of each draw; return the points that fail after they were planned, and count all."""
    failures: list[str] = []
    found = 0
    for number in numbers:
        rng, problem, machine, threads = draw(kind, number)
        step: tuple[str, Config | None] = "", None
        with limited(), no_collection(), interning():
            try:
                of = space_of(problem, machine, threads)
            except (ConfigError, UnsupportedError):
                continue  # the default's own tests hold which problems have none
            try:
                for step in walked(of, rng):
                    found += 1
                    plan = plan_for(problem, step[1], machine)
                    uncounted = uncounted_bytes(plan, lower(plan))
                    assert not uncounted, f"the plan leaves out {uncounted} bytes of shared memory"
            except Exception as error:
                words = f"--target {machine.name} --threads {threads} {problem}\n    {step[0]} --config '{step[1]}'"
                failures.append(f"{kind} {number}: {type(error).__name__}: {str(error)[:300]}\n    {words}")
    return failures, found


@pytest.mark.sampled(6)
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


@pytest.mark.parametrize("level", ["avx512", "xe_lp", "sm_80"])
def test_a_problem_that_no_kernel_computes_has_no_space(level: str) -> None:
    problem = parse_problem("--dt=f64 --attr-post-ops=swish:0.5 mb1ic16ih7oc16oh7kh1").canonical()
    with interning(), pytest.raises(UnsupportedError, match="swish on f64 is not available"):
        assert not space_of(problem, target(level), 1).seeds


def test_a_copy_engine_that_brings_sums_of_no_packed_operand_leaves_the_other_candidates() -> None:
    line = "--matmul --bits=2:2 --dt=s8:u8:f32 --stag=abcd --wtag=abcd --dtag=abdc --attr-zero-points=wei:per_oc "
    with interning():
        of = space_of(parse_problem(f"{line} 24x1x96x1:24x3x1x128").canonical(), target("sm_90a"), 1)
    assert of.seeds and all(c.realise != "hardware" for c in of.seeds)


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
    ("avx512", "--dir=BWD_D --stag=aBcde8b --dtag=aBcde8b mb1ic48id28oc64od14kd3sd2pd0",
     "--lane=ic --register=iw:8,ic:48 --cache=ih:7,kh:1 --realise=indirection", "a stride must divide the loop"),
    ("sm_90a", "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb2ic128ih9oc64oh9kh3ph1",
     "--lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:32 --reduce=kh,kw,ic --pack= --realise=hardware "
     "--instruction=wgmma_m64n32k16_bf16 --group=mb_oh_ow:64,oc:32,ic:128 --shared=src,wei", "of which a copy brings"),
    ("sm_90a", "--dir=BWD_W --stag=axb --wtag=axb --dtag=axb --dt=bf16 mb4ic64ih8oc64oh8kh3ph1",
     "--lane=oc --fuse=mb+oh,mb_oh+ow --register=ic:64,oc:32 --reduce=mb_oh_ow --pack= --realise=hardware --split=mb:4 "
     "--instruction=wgmma_m64n32k16_bf16_mn_mn --group=ic:64,oc:32,mb_oh_ow:128 --shared=src,diff_dst",
     "64 terms of a part .* found 128"),
)  # fmt: skip
"""Configs that passes refused after the plan had accepted them: level, problem, config, and the plan's words."""
COPIES = {
    "a part of a dim of a fused loop": (
        "sm_70", "--deconv --dir=FWD_B --dt=u8:s8:f32 --stag=aBcd16b --dtag=aBcd16b "
        "g3mb8ic192ih12iw27oc6oh8ow56kh3kw3sh1sw2ph3pw0",
        "--lane=ow --fuse=mb+oh --register=oc:2,mb_oh:2 --reduce=kh,kw,ic --realise=pad_copy --pack= "
        "--group=ow:16,oc:2,ic:32,mb_oh:4,g:2 --shared=src,wei --pad=src:1 --vectors=ic:4"),
    "a fused loop with a dim of one iteration": (
        "sm_80", "--dir=BWD_W --stag=abcd --dtag=aBcd8b mb1ic1ih7oc1oh13kh3ph6dh2",
        "--lane=kh --fuse=oh+ow --register=kw:4 --reduce=mb,oh_ow --split=oh:13 --realise=pad_copy --pack= "
        "--group=kh:4,kw:4,oh_ow:169 --shared=src,diff_dst --pad=src:1 --buffers=2"),
    "copies that fill no whole rows of the banks": (
        "xe_hpc", "--dir=BWD_W --stag=aBcd16b --dtag=aBcd16b mb3ic3ih1oc3oh1kh1sh2ph0",
        "--lane=oc --register=oc:4,ic:4 --reduce=mb,oh,ow --realise=pad_copy --pack= --group=oc:4,ic:4 "
        "--shared=src,diff_dst"),
    "neighbours beside a dim of one element": (
        "opencl", "--dir=FWD_B --dt=u8:s8:f32 --stag=abc --dtag=acb mb1ic24iw1oc16ow3kw3sw3pw7dw2",
        "--lane=oc --register=oc:4,ow:2 --order=ow,oc --reduce=kw,ic --realise=pad_copy --pack= "
        "--group=oc:16,ow:4,ic:8 --shared=src,wei --pad=wei:4 --vectors=oc:4,ic:4"),
    "slots of a copy engine": (
        "sm_90a", "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb2ic128ih9oc64oh9kh3ph1",
        "--lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:32 --reduce=kh,kw,ic --pack= --realise=hardware "
        "--instruction=wgmma_m64n32k16_bf16 --group=mb_oh_ow:64,oc:32,ic:64 --shared=src,wei"),
}  # fmt: skip
"""Configs whose copies in shared memory the plan counted as other bytes than the kernel takes, or the passes refused:
level, problem, config.
"""


@pytest.mark.parametrize("what", COPIES)
def test_the_plan_counts_the_shared_memory_that_the_kernel_takes(what: str) -> None:
    level, line, words = COPIES[what]
    with interning():
        plan = plan_for(parse_problem(line).canonical(), Config.parse(f"--target={level} {words}"), target(level))
        low = lower(plan)
    assert low.launched[plan.symbol()][1].shared > 0
    assert not uncounted_bytes(plan, low)


@pytest.mark.parametrize("what", COPIES)
def test_the_plan_refuses_a_group_that_takes_one_byte_more_than_a_machine_has(what: str) -> None:
    level, line, words = COPIES[what]
    machine, problem = target(level), parse_problem(line).canonical()
    config = Config.parse(f"--target={level} {words}")
    with interning():
        plan = plan_for(problem, config, machine)
        taken = lower(plan).launched[plan.symbol()][1].shared
        plan_for(problem, config, with_shared(machine, taken))
        with pytest.raises(ConfigError, match=f"needs {taken} bytes of shared memory"):
            plan_for(problem, config, with_shared(machine, taken - 1))


def with_shared(machine: Machine, nbytes: int) -> Machine:
    """Return ``machine`` with ``nbytes`` of shared memory for a group."""
    assert machine.device is not None
    return replace(machine, device=replace(machine.device, shared=replace(machine.device.shared, bytes=nbytes)))


FILLINGS = {
    "zeroing what blocks add to dst": (
        "xe_lp", "--stag=abcd --dtag=aBcd8b mb16384ic1ih4096oc1oh4096kh1",
        "--realise=mask --lane=ow --reduce=ic,kh,kw --pack= --group=ow:256"),
    "packing wei": (
        "sm_80", "--stag=abcd --dtag=abcd mb1ic1048576ih1oc1048576oh1kh1",
        "--realise=mask --lane=oc --reduce=ic,kh,kw --pack=wei --group=oc:256"),
    "zeroing diff_wei": (
        "sm_80", "--dir=BWD_W --stag=abcd --wtag=abcd --dtag=abcd mb2ic1048576ih1oc1048576oh1kh1",
        "--realise=mask --lane=ic --register=oc:32 --reduce=mb,oh,ow --pack= --split=mb:2 --join=atomic "
        "--group=ic:256,oc:32"),
}  # fmt: skip
"""Problems that a grid of the main kernel covers and that of a kernel around it does not: level, problem, config."""


@pytest.mark.parametrize("what", FILLINGS)
def test_the_plan_refuses_grids_of_kernels_around_the_main_one(what: str) -> None:
    level, line, words = FILLINGS[what]
    config = f"--target={level} {words}"
    with interning(), pytest.raises(ConfigError, match=f"{what} needs .* groups along a dim of the grid, {level} has"):
        plan_for(parse_problem(line).canonical(), Config.parse(config), target(level))


@pytest.mark.parametrize(("level", "line", "words", "text"), LISTED)
def test_the_plan_asks_what_the_passes_ask(level: str, line: str, words: str, text: str) -> None:
    with interning(), pytest.raises(ConfigError, match=text):
        plan_for(parse_problem(line).canonical(), Config.parse(f"--target={level} {words}"), target(level))
