"""Zero points of source and weights on every level: all kinds of problems, borders, values at the ends of ranges."""

from __future__ import annotations

import numpy as np
import pytest
from guarded import Array, Compiled, check_result, expected

from convsmith.compiler.driver import build_artifact
from convsmith.machine.registry import host_targets
from convsmith.problem import Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.types import TYPES
from convsmith.tune.candidates import candidates, default_config

TARGETS = {t.name: t for t in host_targets()}

BOTH = "--attr-zero-points=src:common:3+wei:common:2"
CHANNELS = "--attr-zero-points=src:common:-300+wei:per_oc+dst:per_oc"
LAST = "--stag=axb --dtag=axb"
KINDS = {
    "1x1": f"{LAST} --attr-zero-points=src:common:7 mb2ic20ih3iw5oc33oh3ow5kh1kw1",
    "1x1-stride": f"{LAST} {BOTH} mb2ic20ih7iw5oc33oh4ow3kh1kw1sh2sw2ph0pw0",
    "padded": f"{LAST} {BOTH} mb2ic20ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "plain": f"{BOTH} mb2ic20ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "blocked": f"--stag=aBcd16b --dtag=aBcd16b {CHANNELS} mb1ic20ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "weights-last": f"--wtag=acdb {LAST} {CHANNELS} mb1ic40ih5iw6oc33oh5ow6kh3kw3ph1pw1",
    "strided": f"{LAST} {CHANNELS} mb1ic20ih9iw8oc16oh5ow4kh3kw3sh2sw2ph1pw1",
    "dilated": f"{LAST} {BOTH} mb1ic20ih9iw9oc16oh9ow9kh3kw3ph3pw3dh2dw2",
    "few-channels": f"{LAST} {BOTH} mb1ic3ih12iw12oc32oh6ow6kh7kw7sh2sw2ph3pw3",
    "beyond-both-borders": f"{BOTH} mb1ic8iw3oc20ow7kw5pw4",
    "only-padding": f"{BOTH} mb1ic8iw3oc20ow2kw1sw9pw4",
    "partly-padding": f"{BOTH} mb1ic8iw9oc20ow3kw1sw9pw9",
    "pads-beyond-the-kernel": f"{BOTH} mb1ic8iw3oc20ow15kw3pw5",
    "pads-beyond-the-kernel-2d": f"{LAST} {BOTH} mb1ic8ih2iw3oc20oh9ow4kh2kw3sh1sw2ph4pw4",
    "stride-beyond-the-kernel": f"{LAST} {BOTH} mb1ic8ih7iw9oc20oh3ow3kh1kw2sh3sw5ph1pw4dw1",
    "one-pixel": f"{LAST} {CHANNELS} mb1ic8ih1iw1oc20oh3ow3kh3kw3ph2pw2",
    "one-output": f"{BOTH} mb1ic8ih3iw3oc20oh1ow1kh1kw3sh4sw4ph0pw1",
    "pads-beyond-a-dilated-kernel": f"{CHANNELS} mb1ic8iw4oc20ow12kw2pw6dw2",
    "depthwise-beyond-the-kernel": f"{LAST} {CHANNELS} g16mb1ic16ih3iw2oc16oh11ow10kh3kw3ph6pw6",
    "deconvolution-beyond-the-kernel": f"--deconv {LAST} {BOTH} mb1ic8ih5iw3oc12oh7ow3kh2kw3sh3sw4ph4pw4",
    "negative-back-pads": f"{BOTH} mb1ic8ih6iw7oc20oh2ow3kh2kw1sh3sw3",
    "groups": f"{LAST} --attr-zero-points=src:common:3+wei:per_dim_0 g2mb2ic16ih4iw5oc64oh4ow5kh3kw3ph1pw1",
    "narrow-groups": f"{LAST} {CHANNELS} g8mb1ic32ih4iw5oc32oh4ow5kh3kw3ph1pw1",
    "depthwise": f"{LAST} {CHANNELS} g32mb1ic32ih4iw5oc32oh4ow5kh3kw3ph1pw1",
    "each-source-channel": f"{LAST} --attr-zero-points=src:per_dim_1+wei:per_oc mb1ic12iw6oc20ow6kw3pw1",
    "each-source-channel-per-oc": f"{LAST} --attr-zero-points=src:per_oc+wei:per_oc mb1ic12iw6oc20ow6kw3pw1",
    "1d": f"{LAST} {BOTH} mb2ic12iw9oc20ow9kw3pw1",
    "3d": f"{CHANNELS} mb1ic8id4ih3iw4oc16od4oh3ow4kd3kh3kw3pd1ph1pw1",
    "deconvolution": f"--deconv {LAST} {BOTH} mb1ic12ih4iw3oc20oh4ow3kh3kw3ph1pw1",
    "deconvolution-stride": f"--deconv {CHANNELS} mb1ic12ih4iw3oc20oh8ow6kh3kw3sh2sw2ph1pw1",
    "deconvolution-dilated": f"--deconv {BOTH} mb1ic12iw5oc20ow11kw2sw2dw1",
    "one-pixel-of-a-stride": f"--deconv {LAST} {BOTH} mb1ic12ih2iw1oc20oh4ow3kh1kw1sh3sw3ph0pw0",
    "epilogue": f"--dir=FWD_B {LAST} {BOTH} --attr-scales=wei:per_oc --attr-post-ops=sum:0.5+relu mb1ic8iw6oc20kw3pw1",
    "product": "--matmul --attr-zero-points=src:common:3+wei:per_oc 9x20:20x40",
    "product-of-columns": "--matmul --wtag=ba --attr-zero-points=src:common:3+wei:common:4 9x70:70x1",
    "product-of-rows": "--matmul --attr-zero-points=src:per_dim_0+wei:per_oc 9x70:70x40",
    "products": f"--matmul {BOTH} 3x9x20:3x20x40",
    "products-shared": f"--matmul {BOTH} 3x2x20:1x20x40",
    "one-product": f"--matmul {BOTH} 1x9x20:1x20x40",
    "products-repeated": f"--matmul {BOTH} 1x2x20:3x20x40",
}  # fmt: skip
TYPES_OF_KINDS = ("u8:s8:s32", "u8:u8:u8", "s8:s8:f32", "s8:u8:s32")


def at_the_ends(problem: Problem, seed: int) -> dict[str, Array]:
    """Arrays over the whole range of their types, and zero points at the ends of those of bytes, and beyond."""
    rng = np.random.default_rng(seed)
    arrays = random_arrays(problem, seed)
    for t in problem.inputs:
        if t.name in ("src", "wei"):
            limits = np.iinfo(TYPES[t.dtype].numpy)
            arrays[t.name] = rng.integers(limits.min, limits.max, t.shape, TYPES[t.dtype].numpy, endpoint=True)
        elif t.name.startswith("zero_points"):
            arrays[t.name] = rng.choice(np.int32([-128, -1, 0, 127, 255, 300]), t.shape)
    return arrays


@pytest.mark.sampled(23, "isa")
@pytest.mark.parametrize("isa", list(TARGETS))
@pytest.mark.parametrize("name", KINDS)
def test_kind(name: str, isa: str) -> None:
    """With two threads each, other types for each level."""
    target = TARGETS[isa]
    number = list(KINDS).index(name) + list(TARGETS).index(isa)
    dt = TYPES_OF_KINDS[number % len(TYPES_OF_KINDS)]
    problem = parse_problem(KINDS[name].replace("--matmul", f"--matmul --dt={dt}") if "--matmul" in KINDS[name]
                            else f"--dt={dt} {KINDS[name]}")  # fmt: skip
    kernel = Compiled(problem, build_artifact(problem, default_config(problem, target, 2), target))
    for seed in (0, 1):
        arrays = at_the_ends(problem, seed)
        check_result(problem, kernel(arrays), expected(problem, arrays))
        check_result(problem, kernel(arrays, chunks=2), expected(problem, arrays))


@pytest.mark.sampled(3, "dt", "isa")
@pytest.mark.parametrize("isa", list(TARGETS))
@pytest.mark.parametrize("dt", ["u8:s8:s32", "u8:u8:s32", "s8:s8:s32"])
def test_parts_that_do_not_fit_32_bits(dt: str, isa: str) -> None:
    """Weights cancel each other; the sums of either sign alone wrap around."""
    line = f"--dt={dt} {LAST} --attr-zero-points=src:common+wei:common mb1ic64iw4oc16ow4kw3pw1"
    problem, target = parse_problem(line.replace("common+wei:common", "common:1+wei:common:1")), TARGETS[isa]
    arrays = random_arrays(problem)
    signs = np.where(np.arange(64) % 2, 64, 2).reshape(1, 64, 1)
    arrays["wei"] = np.broadcast_to(signs, arrays["wei"].shape).astype(arrays["wei"].dtype)
    arrays["zero_points_wei"] = np.int32([33])
    arrays["zero_points_src"] = np.int32([40_000_000])
    truth = expected(problem, arrays)
    assert 31 * 40_000_000 * 32 * 2 > 2**31 > abs(truth["dst"]).max() > 0
    check_result(
        problem, Compiled(problem, build_artifact(problem, default_config(problem, target), target))(arrays), truth
    )


@pytest.mark.parametrize("offsets", ["each", "sums"])
def test_both_ways_give_the_same_bits(offsets: str) -> None:
    problem, target = parse_problem(f"--dt=u8:s8:s32 {KINDS['padded']}"), host_targets()[0]
    best = next(c.config for c in candidates(problem, target, 1) if c.config.realise != "window_copy")
    config = best.changed(offsets=offsets)
    if offsets == "each":
        config = config.changed(instruction="", k_step=())
    arrays = at_the_ends(problem, 2)
    check_result(problem, Compiled(problem, build_artifact(problem, config, target))(arrays), expected(problem, arrays))
