"""Random layers on fragments, channels first and last, under a config on fragments that the model tries: exact, nothing
else touched.

All memory that belongs to no logical element holds what spoils a sum, and a canary surrounds every buffer.
"""

from __future__ import annotations

import random

import pytest
from amx import AMX, needs_amx
from guarded import Compiled, check_result, expected

from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ConfigError
from convsmith.problem import Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.tune.candidates import candidates

SCALES = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
TYPES = (
    f"--dt=u8:s8:u8 {SCALES}", f"--dt=s8:s8:s8 {SCALES} --attr-post-ops=relu", "--dt=u8:s8:s32", "--dt=u8:s8:f32",
    "--dt=bf16", "--dt=bf16:bf16:f32 --attr-post-ops=sum+relu", "--dt=bf16 --attr-post-ops=sum",
)  # fmt: skip
CHANNELS = (3, 16, 24, 32, 48, 64, 65, 96, 128, 192)
RESULTS = (1, 7, 16, 24, 33, 48, 64, 80, 96)
ROUNDS = 12


def layer(rng: random.Random) -> Problem:
    """Return a layer of a few million products whose results fill several tiles, some of them in part."""
    layout, kernel, stride = rng.choice(("axb", "abx")), rng.choice((1, 1, 3, 3, 5)), rng.choice((1, 1, 2))
    size, pad = rng.randint(kernel, 20), rng.randint(0, kernel // 2)
    shape = f"mb{rng.choice((1, 1, 2))}ic{rng.choice(CHANNELS)}ih{size}iw{rng.randint(kernel, 40)}"
    taps = f"kh{kernel}kw{kernel}sh{stride}sw{stride}ph{pad}pw{pad}"
    return parse_problem(f"{rng.choice(TYPES)} --stag={layout} --dtag={layout} {shape}oc{rng.choice(RESULTS)}{taps}")


@needs_amx
@pytest.mark.parametrize("chunk", range(4))
def test_results_are_exact(chunk: int) -> None:
    on_fragments = 0
    for seed in range(chunk * ROUNDS, (chunk + 1) * ROUNDS):
        rng = random.Random(seed)
        problem = layer(rng)
        configs = [c.config for c in candidates(problem, AMX, 1, 4) if c.config.instruction.startswith("tdp")]
        if not configs:
            continue
        config = rng.choice(configs[:12])
        try:
            artifact = build_artifact(problem, config, AMX)
        except ConfigError as error:
            assert error.code, f"seed {seed}: {problem} under {config}"
            continue
        arrays = random_arrays(problem, seed)
        try:
            check_result(problem, Compiled(problem, artifact)(arrays), expected(problem, arrays))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {problem} under {config}: {error}") from error
        on_fragments += 1
    assert on_fragments > ROUNDS // 2
