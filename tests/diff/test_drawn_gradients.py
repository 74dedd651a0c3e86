"""Drawn gradients of the weights by instructions on pairs: long rows, borders on either side, few channels."""

from __future__ import annotations

import random

import pytest
from guarded import Compiled, check_result, expected

from convsmith.compiler.driver import build_artifact
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule import copy_nest
from convsmith.tune.candidates import candidates

LEVELS = [t for t in host_targets() if t.name == "avx512_bf16"]


def drawn_axis(rng: random.Random, axis: str, outputs: int) -> str:
    """Return the sizes of an axis, at whose end some taps may have no pixel, without padding at its beginning too."""
    kernel, stride, dilation = rng.choice((1, 2, 3, 3, 5, 7)), rng.choice((1, 2, 2, 3)), rng.choice((0, 0, 0, 1))
    reach = (kernel - 1) * (dilation + 1)
    padding = rng.choice((0, 0, reach // 2))
    read = (outputs - 1) * stride + reach + 1 - padding
    pixels = max(read - rng.randint(0, reach + stride), 1)
    return f"i{axis}{pixels}o{axis}{outputs}k{axis}{kernel}s{axis}{stride}d{axis}{dilation}p{axis}{padding}"


def drawn_line(rng: random.Random) -> str:
    source, result = rng.choice((("abx", "abx"), ("abx", "abx"), ("axb", "axb"), ("abx", "axb")))
    channels = f"mb{rng.randint(1, 2)}ic{rng.choice((rng.randint(1, 8), rng.randint(9, 40)))}oc{rng.randint(1, 40)}"
    height = drawn_axis(rng, "h", rng.randint(1, 5)) if rng.random() < 0.5 else ""
    width = drawn_axis(rng, "w", rng.randint(33, 80))
    return f"--dir=BWD_W --dt=bf16 --stag={source} --dtag={result} {channels}{height}{width}"


@pytest.mark.sampled(7)
@pytest.mark.parametrize("level", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize("seed", range(21))
def test_pairs_of_drawn_gradients(seed: int, level: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best config for each loop along the lanes is exact."""
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    rng = random.Random(seed)
    problem, threads = parse_problem(drawn_line(rng)), rng.choice((1, 1, 2))
    with interning():
        every = candidates(problem.canonical(), level, threads)
    configs = {c.config.lane: c.config for c in reversed(every) if c.config.instruction}
    arrays = random_arrays(problem)
    truth = expected(problem, arrays)
    assert configs
    for config in configs.values():
        check_result(problem, Compiled(problem, build_artifact(problem, config, level))(arrays), truth)
