"""Kernels of WGSL run in a browser, on the software adapter of WebGPU, and give exactly what the reference gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pytest
from chain_problems import random_chain
from devices import KINDS, fragment_config, random_group_config
from emulated import skip_without_emulator
from problems import random_problem

import convsmith as cs
from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.emulate.browser import BROWSER
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import Problem, parse_problem
from convsmith.schedule.config import Config

LEVEL, QUADS = target("webgpu"), target("webgpu+subgroups")


@pytest.fixture(autouse=True)
def browser() -> None:
    """Skips where there is no Chromium."""
    skip_without_emulator(LEVEL)


def is_stored(problem: Problem) -> bool:
    """Whether all arrays have types of WGSL."""
    return all(t.dtype in LEVEL.stored for t in problem.tensors)


def check(problem: Problem, config: Config | None, seed: int, level: Machine = LEVEL) -> str:
    """Verify a kernel, and return its text."""
    kernel = CompiledKernel(problem, level, config, load=BROWSER.load)
    verdict = verify_kernel(kernel, seed)
    assert verdict.ok and kernel.artifact is not None, f"{problem} {kernel.config}: {verdict.detail}"
    assert {e.launch.runtime for e in kernel.artifact.entries.values()} == {"webgpu"}
    return kernel.artifact.code.decode()


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str) -> None:
    """Kernels with arrays of f64, which WGSL lacks, are refused by name."""
    line, words = KINDS[kind]
    problem, config = parse_problem(line), Config.parse(f"--target=webgpu --pack= {words}")
    if is_stored(problem):
        check(problem, config, 0)
        return
    with pytest.raises(UnsupportedError, match="legal on webgpu are arrays of f32 and s32 and s8"):
        CompiledKernel(problem, LEVEL, config)


def stored_problems() -> Iterator[tuple[int, Problem]]:
    """Random problems with types of WGSL, each with its seed."""
    for seed in count():
        problem = random_problem(random.Random(seed), 20_000)
        if is_stored(problem):
            yield seed, problem


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", [0, 10, pytest.param(20, marks=pytest.mark.wide)])
def test_random_problems(first: int) -> None:
    """Every second one under a random config, if that is legal."""
    for n, (seed, problem) in enumerate(islice(stored_problems(), first, first + 10 if first < 20 else 100)):
        config = None
        if n % 2:
            with interning():
                config = random_group_config(random.Random(seed), problem, LEVEL)
        try:
            check(problem, config, seed)
        except ConfigError:
            if config is None:
                raise
            check(problem, None, seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(4))
def test_random_chains(seed: int) -> None:
    check(random_chain(random.Random(seed), kind="f32", macs=10_000), None, seed)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("line", [
    "--dt=s8:s8:s8 mb1ic5ih5oc7kh3ph1", "--dt=s8:u8:s8 --dir=BWD_D mb1ic6ih6oc4kh3ph1sh2oh3",
    "--dt=u8:s8:u8 --attr-post-ops=s32_add:per_oc+s32_mulh:common:1518500250+s32_rshift:common:7 mb1ic9ih5oc6kh3ph1",
    "--dt=u8:s8:u8 --attr-zero-points=src:common:3 g4mb1ic8ih6oc4kh3ph1",
    "--dt=bf16:bf16:f32 --dir=BWD_W mb2ic3ih5oc4kh3ph1",
    "--dt=bf16:bf16:bf16 --attr-post-ops=sum+relu g6mb1ic6ih7oc6kh3ph1",
    "--dt=f16:f16:f16 --dir=FWD_B --attr-post-ops=swish:1 mb1ic8ih6oc10kh3ph1", "--dt=f16:f16:f32 g2mb1ic6ih5oc4kh3",
])
@pytest.mark.parametrize("layout", ["abx", "axb"])
def test_elements_that_share_words(line: str, layout: str) -> None:
    check(parse_problem(f"--stag={layout} --dtag={layout} {line}"), None, 0)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("line", [
    "--dt=s8:s8:s32 mb1ic32ih6oc8kh3ph1", "--dt=u8:u8:s32 mb1ic20ih6oc8kh1", "--dt=s8:u8:s32 mb1ic16ih6oc9kh3ph1",
    "--dt=u8:s8:u8 --attr-post-ops=relu mb1ic36ih8oc16kh3ph1", "mb2ic8ih6oc12kh3ph1", "--dir=BWD_D mb1ic16ih8oc32kh1",
    "--dir=BWD_W mb2ic8ih8oc12kh3ph1", "g2mb1ic16ih6oc16kh3ph1",
    "--dir=FWD_B --attr-post-ops=sum+relu mb1ic8ih7oc16kh1",
])
@pytest.mark.parametrize("layout", ["abx", "axb"])
def test_quads_multiply_by_default(line: str, layout: str) -> None:
    skip_without_emulator(QUADS)
    text = check(parse_problem(f"--stag={layout} --dtag={layout} {line}"), None, 0, QUADS)
    assert "quadBroadcast(" in text
    assert ("dot4" in text) is ("--dt=" in line)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60))])
def test_random_configs_of_quads(seed: int) -> None:
    skip_without_emulator(QUADS)
    rng = random.Random(seed)
    while True:
        problem = random_problem(rng, 20_000)
        config = fragment_config(problem, QUADS, rng) if is_stored(problem) else None
        if config is not None:
            break
    check(problem, config, seed, QUADS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("post_op", ["tanh", "logistic", "gelu_erf", "swish:1", "clip:-2:6", "sum"])
def test_epilogues(post_op: str) -> None:
    check(parse_problem(f"--attr-post-ops={post_op} mb1ic3ih5oc4kh3ph1"), None, 0)


def test_a_call_says_where_kernels_run() -> None:
    kernel = cs.compile("mb1ic3ih5oc4kh3ph1", target="webgpu")
    assert "@compute" in kernel.wgsl()
    with pytest.raises(UnsupportedError, match="launched by a browser"):
        kernel(np.zeros((1, 3, 5, 5), np.float32), np.zeros((4, 3, 3, 3), np.float32))
