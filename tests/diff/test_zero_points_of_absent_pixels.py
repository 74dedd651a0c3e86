"""Zero points where absent pixels are pointers to stored ones: every kind of problem, in guarded memory."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Array, Compiled, check_result, expected
from oracles import Oracle, small_target
from problems import with_instruction

import convsmith as cs
from convsmith.compiler.driver import build_artifact
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.passes.manager import run_steps
from convsmith.problem import Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.types import TYPES
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.plan import plan
from convsmith.statement.views import statement
from convsmith.tune.candidates import candidates

LAST = "--stag=axb --dtag=axb"
BOTH = "--attr-zero-points=src:common:3+wei:common:2"
KINDS = {
    "padded": f"{LAST} --attr-zero-points=src:common:7 mb2ic20ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "both": f"{LAST} {BOTH} mb2ic20ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "plain": f"{BOTH} mb2ic20ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "blocked": f"--stag=aBcd16b --dtag=aBcd16b {BOTH} mb1ic20ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "strided": f"{LAST} {BOTH} mb1ic20ih9iw8oc16oh5ow4kh3kw3sh2sw2ph1pw1",
    "beyond-both-borders": f"{BOTH} mb1ic8iw3oc20ow7kw5pw4",
    "pads-beyond-the-kernel": f"{BOTH} mb1ic8iw3oc20ow15kw3pw5",
    "pads-beyond-the-kernel-2d": f"{LAST} {BOTH} mb1ic8ih2iw3oc20oh9ow4kh2kw3sh1sw2ph4pw4",
    "stride-beyond-the-kernel": f"{LAST} {BOTH} mb1ic8ih7iw9oc20oh3ow3kh1kw2sh3sw5ph1pw4dw1",
    "one-pixel": f"{LAST} {BOTH} mb1ic8ih1iw1oc20oh3ow3kh3kw3ph2pw2",
    "each-source-channel": f"{LAST} --attr-zero-points=src:per_dim_1+wei:per_oc mb1ic12iw6oc20ow6kw3pw1",
    "each-channel-blocked": "--stag=aBc8b --attr-zero-points=src:per_dim_1 mb1ic12iw6oc20ow6kw3pw1",
    "groups": f"{LAST} --attr-zero-points=src:common:3+wei:per_dim_0 g2mb2ic16ih4iw5oc64oh4ow5kh3kw3ph1pw1",
    "depthwise": f"{LAST} --attr-zero-points=src:common:9 g32mb1ic32ih4iw5oc32oh4ow5kh3kw3ph1pw1",
    "no-padding": f"{LAST} {BOTH} mb2ic20ih5iw6oc33oh3ow4kh3kw3ph0pw0",
    "3d": "--attr-zero-points=src:common:3 mb1ic8id4ih3iw4oc16od4oh3ow4kd3kh3kw3pd1ph1pw1",
    "deconvolution": f"--deconv {BOTH} mb1ic12ih4iw3oc20oh8ow6kh3kw3sh2sw2ph1pw1",
    "epilogue": f"--dir=FWD_B {LAST} {BOTH} --attr-scales=wei:per_oc --attr-post-ops=relu mb1ic8iw6oc20kw3pw1",
}  # fmt: skip
TYPES_OF_KINDS = ("u8:s8:s32", "u8:u8:u8", "s8:s8:f32", "s8:u8:s32")


def arrays_of(problem: Problem, seed: int) -> dict[str, Array]:
    """Arrays over the whole range of their types; zero points of the source are any that it has, others any."""
    rng = np.random.default_rng(seed)
    arrays = random_arrays(problem, seed)
    source = np.iinfo(TYPES[problem.tensor("src").dtype].numpy)
    for t in problem.inputs:
        if t.name in ("src", "wei"):
            limits = np.iinfo(TYPES[t.dtype].numpy)
            arrays[t.name] = rng.integers(limits.min, limits.max, t.shape, TYPES[t.dtype].numpy, endpoint=True)
        elif t.name == "zero_points_src":
            arrays[t.name] = rng.choice(np.int32([source.min, source.max, 0, 5]), t.shape)
        elif t.name.startswith("zero_points"):
            arrays[t.name] = rng.choice(np.int32([-128, -1, 0, 127, 255, 300]), t.shape)
    return arrays


def through_a_table(problem: Problem, target: Machine, table: str = "sections") -> list[Config]:
    """The best config that copies no windows, reading through a table: with zero points taken off each factor, and off
    the sums.
    """
    best = next(c.config for c in candidates(problem, target, 2) if c.config.realise != "window_copy")
    config = best.changed(realise="indirection", table=table, pieces=8)
    each = config.changed(offsets="each", flip=(), instruction="", k_step=())
    return [config, each] if config.offsets == "sums" else [each]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str, number: int) -> None:
    """On two levels, which differ from kind to kind, and with other types on each."""
    number += 2 * list(KINDS).index(name)
    target = host_targets()[number % len(host_targets())]
    dt = TYPES_OF_KINDS[(number + number // 4) % len(TYPES_OF_KINDS)]
    problem = parse_problem(f"--dt={dt} {KINDS[name]}")
    for config in through_a_table(problem, target, ("row", "column", "compressed", "sections")[number % 4]):
        kernel = Compiled(problem, build_artifact(problem, config, target))
        for seed in (0, 1):
            arrays = arrays_of(problem, seed)
            check_result(problem, kernel(arrays), expected(problem, arrays))
            check_result(problem, kernel(arrays, chunks=2), expected(problem, arrays))


SUMS = f"--dt=s8:s8:s32 {LAST} --attr-zero-points=src:common:-5 mb1ic5iw5oc6ow5kw3pw1"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "line, words",
    [
        (SUMS, "--offsets=each"), (SUMS, "--offsets=sums --pack=wei"), (SUMS, "--offsets=sums --pack=wei --flip=src"),
        (SUMS.replace("src:common:-5", "src:common:-5+wei:common:3"), "--offsets=sums --pack=wei --flip=src"),
        ("--dt=u8:u8:s32 --stag=axb mb1ic5iw4oc6ow6kw3pw2", "--offsets=sums --pack=wei --flip=wei"),
        ("--dt=s8:s8:s32 --stag=axb mb1ic5iw4oc6ow6kw3pw2", "--offsets=sums --pack=wei --flip=src"),
    ],
)  # fmt: skip
def test_every_step_computes_the_same(line: str, words: str) -> None:
    target, problem = small_target(), parse_problem(line)
    with interning():
        for terms in ("", "--k_step=ic:4"):
            lane = f"--target=generic --lane=oc --register=oc:4,ow:2 --realise=indirection {words}"
            config = with_instruction(Config.parse(f"{lane} {terms}"), problem, target)
            if terms and not config.instruction:
                continue
            made = plan(problem, config, target)
            run_steps(made.program.naive(), made.pipeline, [Oracle(problem, target)])


def test_one_sum_of_weights_serves_all_pixels() -> None:
    problem, target = parse_problem(SUMS), small_target()
    with interning():
        config = Config.parse("--target=generic --lane=oc --register=oc:4 --offsets=sums --pack=wei")
        shapes = [
            scheduled(problem, config.changed(realise=realise), target).sums[0].layout.shape
            for realise in ("peel", "indirection")
        ]
        assert statement(problem, target).sums == () and shapes == [(4, 6), (6,)]


def kernel(line: str) -> cs.CompiledKernel:
    return cs.compile(line, threads=1, config=str(through_a_table(parse_problem(line), host_targets()[0])[0]))


def test_zero_points_are_those_of_the_call() -> None:
    k = kernel(f"--dt=u8:s8:s32 {LAST} --attr-zero-points=src:common:3 mb1ic9ih4iw5oc6oh4ow5kh3kw3ph1pw1")
    arrays = random_arrays(k.problem, 1)
    packed = k.pack(arrays["wei"])
    for point in (3, 250, 0, 250, 255):
        given = {"src": arrays["src"], "zero_points_src": np.int32([point])}
        truth = expected(k.problem, {**arrays, **given})["dst"]
        assert (k.run(wei=packed, **given)["dst"] == truth).all()
    truth = expected(k.problem, {**arrays, "zero_points_src": np.int32([3])})["dst"]
    assert (k(arrays["src"], packed) == truth).all()


@pytest.mark.parametrize(
    "dt, policy, points, text",
    [
        ("u8:s8:s32", "common:3", [-5], "zero_points_src is -5: .* stores it as u8, from 0 to 255; .*--realise=mask"),
        ("s8:s8:s32", "common:3", [128], "zero_points_src is 128: .* stores it as s8, from -128 to 127"),
        ("u8:s8:s32", "per_dim_1", [1, 2, 256, 4], r"zero_points_src\[2\] is 256: .* from 0 to 255"),
    ],
)
def test_zero_points_that_the_source_has_no_room_for(dt: str, policy: str, points: list[int], text: str) -> None:
    k = kernel(f"--dt={dt} {LAST} --attr-zero-points=src:{policy} mb1ic4ih4iw5oc6oh4ow5kh3kw3ph1pw1")
    arrays = {n: x for n, x in random_arrays(k.problem, 1).items() if n != "zero_points_src"}
    out = np.full((1, 6, 4, 5), 77, np.int32)
    with pytest.raises(cs.UsageError, match=text) as error:
        k.run(**arrays, zero_points_src=np.int32(points), dst=out)
    assert error.value.code == "value" and (out == 77).all()
    good = np.int32([7] * len(points))
    truth = expected(k.problem, {**arrays, "zero_points_src": good})["dst"]
    assert (k.run(**arrays, zero_points_src=good)["dst"] == truth).all()
