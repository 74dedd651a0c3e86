"""Random problem x random config, compiled: exact on integers, nothing else touched; or a ConfigError.

All memory that belongs to no logical element holds what spoils a sum, and a canary surrounds every buffer.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from guarded import Array, Compiled, check_result, expected, logical, memory_of
from problems import exact, random_config, random_convolution, random_problem, with_options, with_split

from convsmith.codegen.artifact import FINITE, Artifact
from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ConfigError, UsageError
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.problem import Conv, Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.reference import reference
from convsmith.problem.types import is_integer
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config

CHUNK = 25
ISAS = [t.name for t in host_targets()]
TARGETS = {t.name: t for t in host_targets()}


def case(seed: int, isa: str | None = None, macs: int = 60_000) -> tuple[Problem, Config, Machine]:
    """Any problem, with a config that is mostly legal."""
    rng = random.Random(seed)
    problem = random_problem(rng, macs)
    target = TARGETS[isa or rng.choice(ISAS)]
    return problem, random_config(rng, problem, target, rng.choice((1, 1, 1, 2, 4))), target


def convolution_case(seed: int) -> tuple[Conv, Config, Machine]:
    """The same of forward convolutions in f32."""
    rng = random.Random(seed)
    problem = with_options(random_convolution(rng), rng)
    target = TARGETS[rng.choice(ISAS)]
    return problem, random_config(rng, problem, target, rng.choice((1, 1, 1, 2, 4))), target


def build(problem: Problem, config: Config, target: Machine) -> Artifact | None:
    """None where the config is not legal; any other error is a fault."""
    try:
        return build_artifact(problem, config, target)
    except ConfigError as error:
        assert error.code and str(error), "an error without a code or a message"
        return None


def check_exact(seed: int, isa: str | None = None, macs: int = 60_000, split: bool = False) -> bool:
    problem, config, target = case(seed, isa, macs)
    if split:
        config = with_split(random.Random(seed), problem, config, target)
    artifact = build(problem, config, target)
    if artifact is None:
        return False
    arrays = random_arrays(problem, seed)
    try:
        check_result(problem, Compiled(problem, artifact)(arrays), expected(problem, arrays))
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {problem} under {config}: {error}") from error
    except UsageError as error:  # absent pixels hold the zero point, which the type of the source may not have
        assert error.code == "value" and config.realise == "indirection"
        return False
    return True


@pytest.mark.sampled(8, "isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("chunk", range(8))
def test_exact_or_refused(isa: str, chunk: int) -> None:
    legal = sum(check_exact(seed, isa) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK))
    assert legal > CHUNK // 4, f"only {legal} of {CHUNK} random configs are legal"


@pytest.mark.sampled(8, "isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("chunk", range(8))
def test_exact_in_parts_or_refused(isa: str, chunk: int) -> None:
    seeds = range(20_000 + chunk * CHUNK // 4, 20_000 + (chunk + 1) * CHUNK // 4)
    legal = sum(check_exact(seed, isa, 20_000, split=True) for seed in seeds)
    assert legal, f"only {legal} of {CHUNK // 4} random configs are legal"


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_exact_in_parts_or_refused_at_length(chunk: int) -> None:
    for seed in range(chunk * 100, (chunk + 1) * 100):
        check_exact(400_000 + seed, macs=20_000, split=True)


def test_an_operand_that_lanes_do_not_move_is_not_held() -> None:
    """One channel a group, along the lanes: all of them would read one element of a register of weights."""
    line = "--dir=BWD_D g4mb1ic4iw5oc4ow5kw1"
    config = f"--target={ISAS[-1]} --lane=ic --register=ic:8 --order=g,ic,mb,iw --resident=wei"
    with pytest.raises(ConfigError, match="all lanes along ic read one element of wei"):
        build_artifact(parse_problem(line), Config.parse(config), TARGETS[ISAS[-1]])


@pytest.mark.parametrize("chunk", range(2))
def test_larger(chunk: int) -> None:
    for seed in range(chunk * 20, (chunk + 1) * 20):
        check_exact(50_000 + seed, macs=2_000_000)


def check_default(seed: int, isa: str) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, 200_000)
    config = default_config(exact(problem), TARGETS[isa], rng.choice((1, 2)))
    arrays = random_arrays(problem, seed)
    try:
        memory = Compiled(problem, build_artifact(problem, config, TARGETS[isa]))(arrays)
        check_result(problem, memory, expected(problem, arrays))
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {problem} under {config}: {error}") from error


@pytest.mark.sampled(8, "isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("chunk", range(8))
def test_default_config(isa: str, chunk: int) -> None:
    for seed in range(chunk * 5, (chunk + 1) * 5):
        check_default(seed, isa)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("chunk", range(20))
def test_default_config_at_length(chunk: int, isa: str) -> None:
    for seed in range(chunk * 100, (chunk + 1) * 100):
        check_default(300_000 + seed, isa)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(100))
def test_exact_or_refused_at_length(chunk: int) -> None:
    for seed in range(chunk * 200, (chunk + 1) * 200):
        check_exact(100_000 + seed)


def test_illegal_configs_are_told_apart() -> None:
    codes, known = Counter[str](), {"registers", "fuse", "lanes", "stage"}
    for seed in range(120):
        if known <= codes.keys():
            break
        problem, config, target = case(seed)
        try:
            build_artifact(problem, config, target)
        except ConfigError as error:
            codes[error.code] += 1
    assert known <= codes.keys(), codes


def real_data(problem: Problem, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    floats = {t.name for t in problem.inputs if not is_integer(t.dtype)}
    arrays = random_arrays(problem, seed)
    return {n: rng.standard_normal(x.shape).astype(x.dtype) if n in floats else x for n, x in arrays.items()}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("chunk", range(8))
def test_same_bits_every_time_and_for_any_number_of_threads(chunk: int) -> None:
    compared = 0
    for seed in range(chunk * 20, (chunk + 1) * 20):
        problem, config, target = case(seed)
        one = build(problem, config.changed(threads=1), target)
        four = build(problem, config.changed(threads=4), target)
        if one is None or four is None:
            continue
        data = real_data(problem, seed)
        kernel, threaded = Compiled(problem, one), Compiled(problem, four)
        bits = {name: x.tobytes() for name, x in kernel(data).items()}
        runs = [kernel(data), threaded(data), threaded(data), *(threaded(data, chunks=n) for n in (1, 2, 3, 4))]
        for n, memory in enumerate(runs):
            same = {name: x.tobytes() for name, x in memory.items()} == bits
            assert same, f"seed {seed}: {problem} under {config}: run {n} differs"
        compared += 1
    assert compared > 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", range(2))
def test_real_data_within_the_stated_bound(chunk: int) -> None:
    """eps * (2 + sqrt(K)) * sum |a||b|, of which a post-op of slope at most one keeps no more."""
    for seed in range(chunk * 40, (chunk + 1) * 40):
        problem, config, target = convolution_case(seed)
        artifact = build(problem, config, target)
        if artifact is None:
            continue
        arrays = real_data(problem, seed)
        truth = reference(problem, arrays)["dst"]
        size = reference(replace(problem, post_ops=()), {name: abs(x) for name, x in arrays.items()})["dst"]
        terms = problem.ic // problem.g * int(np.prod(problem.k))
        bound = np.finfo(np.float32).eps * (2 + terms**0.5) * size
        got = logical(problem, Compiled(problem, artifact)(arrays))
        assert (abs(got - truth) <= bound).all(), f"seed {seed}: {problem} under {config}"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("chunk", range(6))
def test_infinities_and_nan_meet_no_padding(chunk: int) -> None:
    """A masked term is absent, and relu and clip hand NaN on; lanes beyond the channels stay zero."""
    compared = 0
    for seed in range(chunk * 30, (chunk + 1) * 30):
        problem, config, target = convolution_case(seed)
        artifact = build(problem, config, target)
        if artifact is None or artifact.limits:
            continue
        arrays = random_arrays(problem, seed)
        rng = np.random.default_rng(seed)
        for name in ["wei", "src"][: 1 + seed % 2] + (["bia"] if problem.bias and seed % 3 else []):
            array = arrays[name]
            array.flat[rng.integers(array.size, size=2)] = rng.choice([np.inf, -np.inf, np.nan], 2)
        check_result(problem, Compiled(problem, artifact)(arrays), expected(problem, arrays))
        compared += 1
    assert compared > 3


def test_pad_copy_asks_for_finite_weights() -> None:
    line = "--stag=axb --dtag=axb mb1ic3iw5oc4ow5kw3pw1"
    target = TARGETS["generic"]
    flags = {
        realise: build_artifact(Conv.parse(line), Config("generic", "oc", realise=realise), target).limits
        for realise in ("peel", "mask", "pad_copy")
    }
    assert flags == {"peel": {}, "mask": {}, "pad_copy": {"wei": FINITE}}


def test_canaries_work() -> None:
    """The guard itself: slack that is read, and a margin that is written, are noticed."""
    problem = Conv.parse("--stag=a:1:99_b:3:7_c:5:1 --dtag=abx mb1ic3iw5oc4ow5kw1")
    arrays = random_arrays(problem)
    memory = memory_of(arrays["src"], problem.src_layout)
    assert np.isnan(memory).sum() == problem.src_layout.size - arrays["src"].size > 0
    wrong = replace(problem, stag="a:1:99_b:3:6_c:5:1")
    artifact = build_artifact(wrong, Config("generic", "oc"), TARGETS["generic"])
    got = logical(problem, Compiled(problem, artifact)(arrays))
    assert np.isnan(got).any()
    overlong = replace(problem, o=(6,), p=(1,))
    artifact = build_artifact(overlong, Config("generic", "oc"), TARGETS["generic"])
    with pytest.raises(AssertionError, match=r"dst: elements .* beyond"):
        Compiled(problem, artifact)(arrays)
