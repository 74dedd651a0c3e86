"""Sums that `vdpbf16ps` makes are never denormal, so that one instruction converts them to bf16."""

from __future__ import annotations

import ml_dtypes  # noqa: F401
import numpy as np
import pytest

import convsmith as cs
from convsmith.compiler.driver import lower
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.intern import interning
from convsmith.machine.micro_architectures import named
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import candidates, default_config

LEVEL = next(t for t in LEVELS if t.name == "avx512_bf16")
TILE = "--target=avx512_bf16 --lane=n --register=m:4,n:16 --order=m,n --reduce=k"
CONFIG = f"{TILE} --instruction=vdpbf16ps_512 --k_step=k:2"
has_level = pytest.mark.skipif("avx512_bf16" not in [t.name for t in host_targets()], reason="needs AVX512_BF16")


@pytest.mark.parametrize(("options", "converts"), [("", True), ("--attr-post-ops=relu", True), ("--bia-dt=f32", False)])
def test_sums_are_converted_by_one_instruction(options: str, converts: bool) -> None:
    """The instruction takes a denormal number for zero; a sum and a bias may add up to one."""
    with interning():
        text = lower(plan(parse_problem(f"--dt=bf16 {options} --matmul 16x32:32x16"), Config.parse(CONFIG), LEVEL)).text
    assert ("to <16 x bfloat>" in text) == converts and ("lshr <16 x i32>" in text) != converts


@has_level
@pytest.mark.parametrize("terms", [2, 4])
def test_the_instruction_flushes_denormal_sums(terms: int) -> None:
    """A product is denormal, or the difference of two normal products, which are of one or of two steps."""
    kernel = cs.compile(f"--dt=bf16:bf16:f32 --matmul 4x{terms}:{terms}x16", config=CONFIG, threads=1)
    x, w = np.zeros((4, terms), "f4"), np.ones((terms, 16), "f4")
    x[0, 0] = 2.0**-130
    x[1, 0], x[1, -1] = 1.5 * 2.0**-126, -(2.0**-126)
    x[2, :] = 2.0**-126
    w[:, 8:] *= 2.0
    got = kernel.run(src=x.astype("bfloat16"), wei=w.astype("bfloat16"))["dst"]
    assert not got[0].any() and not got[1, :8].any(), "a denormal number"
    np.testing.assert_array_equal(got[2, :8], np.full(8, terms * 2.0**-126, "f4"))


@has_level
def test_conversions_of_sums_round_to_even() -> None:
    kernel = cs.compile("--dt=bf16 --matmul 64x32:32x16", config=CONFIG, threads=1)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-16, 17, shape).astype("bfloat16") for shape in ((64, 32), (32, 16)))
    exact = x.astype(np.float32) @ w.astype(np.float32)
    assert (np.abs(exact) > 256).any(), "sums that bf16 does not hold"
    np.testing.assert_array_equal(kernel.run(src=x, wei=w)["dst"], exact.astype("bfloat16"))


ZEN4 = named("znver4").of(LEVEL)
DEPTHWISE = "--dt=bf16 --stag=axb --dtag=axb g32mb1ic32ih6oc32oh6kh3ph1"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "line",
    [
        DEPTHWISE, f"--dir=BWD_D {DEPTHWISE}", f"--deconv {DEPTHWISE}", DEPTHWISE.replace("axb", "abx"),
        DEPTHWISE.replace("32", "24"), f"{DEPTHWISE}dh1", f"{DEPTHWISE.replace('oh6', 'oh3')}sh2",
        "--dt=bf16 g32mb3ic32ih7oc32oh6kh2ph0",
    ],
)  # fmt: skip
def test_channels_of_their_own_are_multiplied_without_conversions(line: str) -> None:
    """Neither a factor nor a sum is converted by arithmetic on words."""
    problem = parse_problem(line)
    config = default_config(problem, LEVEL)
    assert config.instruction == "vdpbf16ps_512_single"
    with interning():
        text = lower(plan(problem, config, LEVEL)).text
    assert "dpbf16ps.512(" in text and "lshr <16 x i32>" not in text and "llvm.fma" not in text
    for host in (t for t in host_targets() if t.name == LEVEL.name):
        assert CompiledKernel(problem, host, config, 1).verify().ok


@pytest.mark.parametrize("name", ["avx2", "avx512_vnni"])
def test_levels_without_the_instruction_convert_factors(name: str) -> None:
    level = next(t for t in LEVELS if t.name == name)
    assert default_config(parse_problem(DEPTHWISE), level).instruction == ""


def test_a_slow_instruction_is_not_chosen() -> None:
    level = named("intel-server").of(LEVEL)
    assert default_config(parse_problem(DEPTHWISE), level).instruction == ""


@has_level
def test_absent_words_add_nothing_to_infinite_factors() -> None:
    """The other word of a pair is zero in both factors, so that neighbours of an infinite element stay finite."""
    kernel = cs.compile("--dt=bf16:bf16:f32 --stag=axb --dtag=axb g16mb1ic16iw4oc16ow4kw1", threads=1)
    x, w = np.ones((1, 16, 4), "bfloat16"), np.full((16, 1, 1), 2, "bfloat16")
    x[0, 5, 2], w[7] = np.inf, np.nan
    got = kernel.run(src=x, wei=w)["dst"]
    expected = np.full((1, 16, 4), 2.0, "f4")
    expected[0, 5, 2], expected[0, 7] = np.inf, np.nan
    np.testing.assert_array_equal(got, expected)


WIDE = DEPTHWISE.replace("32", "64")


@pytest.mark.sampled(3, "threads", "line")
@has_level
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "line",
    [
        WIDE, f"--dir=BWD_D {WIDE}", f"--deconv {WIDE}", WIDE.replace("mb1", "mb3"),
        WIDE.replace("ih6", "ih9").replace("oh6", "oh9").replace("kh3ph1", "kh5ph2"), WIDE.replace("64", "96"),
        "--dt=bf16 --stag=axb --dtag=axb g64mb1ic64ih7oc64oh6kh2ph0", WIDE.replace("64", "72"), f"{WIDE}dh1",
        f"{WIDE.replace('oh6', 'oh3')}sh2", "--dt=bf16 --stag=axb --dtag=axb g64ic64id5oc64od5kd3pd1",
    ],
)  # fmt: skip
def test_products_of_taps_are_added_up(line: str, threads: int) -> None:
    """Two taps of a channel are terms of one instruction where straight-line code reads both."""
    problem = parse_problem(line)
    (host,) = (t for t in host_targets() if t.name == LEVEL.name)
    configs = [c.config for c in candidates(problem, ZEN4, threads, 100) if merges(c.config)][:2]
    assert configs
    for config in configs:
        assert CompiledKernel(problem, host, config, threads).verify().ok


def merges(config: Config) -> bool:
    return config.instruction == "vdpbf16ps_512" and not config.tiles_at("k_step")


def test_products_of_taps_are_added_up_where_that_has_a_price() -> None:
    problem = parse_problem("--dt=bf16 --stag=axb --dtag=axb g144mb1ic144ih56oc144oh56kh3ph1")
    assert merges(default_config(problem, ZEN4)) and not merges(default_config(problem, LEVEL))
    far = parse_problem(f"{problem}".replace("mb1", "mb64"))
    assert not merges(default_config(far, ZEN4)), "memory is slower than products"
    first = parse_problem(f"{problem}".replace("axb", "abx"))
    assert not merges(default_config(first, ZEN4)), "channels are no lanes"
