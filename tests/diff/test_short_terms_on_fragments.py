"""Channels that no instruction on fragments divides: the padded copy of the source has zeros for the terms it lacks."""

from __future__ import annotations

import numpy as np
import pytest
from amx import AMX, needs_amx
from guarded import Compiled, check_result, expected

import convsmith as cs
from convsmith.compiler.driver import build_artifact
from convsmith.diag.errors import ConfigError
from convsmith.ir.intern import interning
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.problem.conv import Conv
from convsmith.problem.data import random_arrays
from convsmith.problem.reference import conv_reference
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

FIRST, LAST = (f"--stag={t} --dtag={t}" for t in ("abx", "axb"))
BF16, INT8 = (
    f"--target=avx512_amx --lane=oc --register=ow:13,oc:32 --realise=pad_copy --instruction={words}"
    for words in ("tdpbf16ps_16 --k_step=ic:32", "tdpbusd_16 --k_step=ic:64")
)


@needs_amx
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("line", "config"),
    [
        (f"--dt=bf16 {FIRST} mb2ic29ih13oc65oh13kh3ph1", BF16),
        (f"--dt=bf16 {LAST} mb2ic37ih13oc40oh13kh3ph1", BF16),
        (f"--dt=bf16 {LAST} mb1ic24ih13oc40oh13kh3ph1", BF16),
        (f"--dt=bf16 {FIRST} mb1ic50ih14oc40oh14kh1ph0", ""),
        ("--dt=bf16 --stag=aBx16b --dtag=aBx16b mb1ic50ih14oc40oh14kh3ph1", ""),
        (f"--dt=bf16:bf16:f32 {FIRST} mb2ic37iw40oc33ow20kw5sw2pw2", ""),
        (f"--dt=u8:s8:f32 {FIRST} mb1ic70ih14oc40oh14kh3ph1", ""),
        (f"--dt=u8:s8:s32 {LAST} mb1ic70ih13oc40oh13kh3ph1", INT8),
        (
            f"--dt=s8:s8:s32 --attr-zero-points=src:common:3 {LAST} mb1ic70ih13oc40oh13kh3ph1",
            INT8.replace("tdpbusd", "tdpbssd") + " --offsets=sums",
        ),
        (f"--dir=BWD_D --dt=bf16 {LAST} mb1ic37ih28oc50oh14kh3sh2ph1", ""),
    ],
)
def test_short_terms_are_exact(line: str, config: str) -> None:
    kernel = cs.compile(line, target="avx512_amx", config=config or None)
    assert kernel.config.instruction.startswith("tdp") and kernel.config.realise == "pad_copy"
    verdict = verify_kernel(kernel)
    assert verdict.ok, f"{kernel.config}: {verdict.detail}"


@needs_amx
@pytest.mark.parametrize(
    "line",
    [
        "--dt=bf16 --stag=aBx16b --dtag=axb mb1ic50ih14oc40oh14kh3ph1",
        "--dir=BWD_D --dt=bf16 --stag=axb --dtag=aBx16b mb1ic7ih1iw31oc17oh1ow28kh1kw5ph0pw0",
    ],
)
def test_elements_that_blocks_add_fill_no_terms(line: str) -> None:
    problem = parse_problem(line).canonical()
    with interning():
        config = default_config(problem, AMX)
    assert config.instruction.startswith("tdp") and config.realise == "pad_copy"
    arrays = random_arrays(problem, 0)
    memory = Compiled(problem, build_artifact(problem, config, AMX))(arrays)  # NaN between the elements of the arrays
    check_result(problem, memory, expected(problem, arrays))


@needs_amx
def test_the_next_group_fills_no_terms() -> None:
    """Its elements would be multiplied by zeros, which an infinity among them survives."""
    line = f"--dt=bf16 {FIRST} --accuracy=strict g2mb1ic74ih9oc66oh9kh3ph1"
    p = Conv.parse(line)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in (p.src_shape, p.wei_shape))
    x[0, 37] = np.inf
    with np.errstate(invalid="ignore"):
        expected = conv_reference(p, x, w).astype("bfloat16").astype(np.float32)
    found = cs.compile(line, target="avx512_amx")(x.astype("bfloat16"), w.astype("bfloat16")).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert np.isfinite(found[:, :33]).all()


def test_few_channels_leave_most_terms_empty() -> None:
    with interning(), pytest.raises(ConfigError, match="its 32 terms do not divide loop ic, which runs 23 times"):
        plan(parse_problem(f"--dt=bf16 {LAST} mb1ic23ih13oc40oh13kh3ph1"), Config.parse(BF16), AMX)


@pytest.mark.parametrize(
    ("channels", "instruction"), [(48, "tdpbf16ps_12"), (64, "tdpbf16ps_16"), (80, "tdpbf16ps_16")]
)
def test_the_instruction_with_the_fewest_products_is_preferred(channels: int, instruction: str) -> None:
    """A product takes as long with fewer terms: 80 channels as 3 of 32, some of them zeros, take 0.70 of the time of 5
    of 16 on an Emerald Rapids. Of equal numbers, the instruction with fewer terms copies fewer zeros.
    """
    with interning():
        config = default_config(parse_problem(f"--dt=bf16 {LAST} mb1ic{channels}ih28oc64oh28kh3ph1"), AMX)
    assert config.instruction == instruction
