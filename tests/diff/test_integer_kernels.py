"""Kernels that finish their sums in s32 arithmetic, against numpy, bit for bit, on every level of this machine."""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.machine.registry import host_targets
from convsmith.problem.data import random_arrays
from convsmith.problem.reference import reference

LINES = (
    "--matmul --dt=u8:s8:u8 --attr-post-ops="
    "s32_add:per_oc+s32_mulh:common:1518500250+s32_rshift:common:20+s32_add:common:128 37x55:55x73",
    "--matmul --dt=u8:s8:s16 --attr-post-ops=s32_rshift:common:9+s32_tanh:0:1000 9x40:40x33",
    "--matmul --dt=s8:s8:s32 --attr-post-ops=s32_shl:per_dim_0+s32_mulh:per_dim_0+s32_rshift:per_dim_0 17x9:9x33",
    "--matmul --dt=u8:s8:u8 --dtag=ba --attr-post-ops=s32_and:common:255+s32_max:common:3+s32_min:common:250 20x9:9x33",
    "--matmul --dt=u8:u8:s32 --attr-zero-points=src:common:7+wei:common:200 --attr-post-ops=s32_add:3 2x5x9:2x9x17",
    "--matmul --dt=u8:s8:s32 --attr-post-ops=s32_rescale:65025:225+s32_add:per_tensor 8x300:300x20",
    "--dir=FWD_D --dt=u8:s8:u8 --attr-post-ops=s32_mul:common:17+s32_rshift:common:9 mb1ic16ih7oc20oh7kh3ph1",
    "--dir=FWD_D --dt=u8:s8:s8 --attr-post-ops=s32_scale:per_oc+s32_max:common:-131+s32_min:common:124+"
    "s32_add:common:3 mb1ic9iw7oc20ow7kw3pw1",
    "--matmul --dt=s8:s8:u8 --attr-post-ops=s32_scale_up:common:0.0078125+s32_add:common:128 17x19:19x33",
)


@pytest.mark.sampled(12, "line")
@pytest.mark.parametrize("isa", [t.name for t in host_targets()])
@pytest.mark.parametrize("line", LINES)
def test_same_bits(line: str, isa: str) -> None:
    kernel = cs.compile(line, target=isa)
    arrays = random_arrays(kernel.problem, 1)
    expected = reference(kernel.problem, arrays)["dst"]
    assert np.array_equal(kernel.run(**arrays)["dst"], expected)
    assert np.unique(expected).size > 4


@pytest.mark.sampled(8, "line")
@pytest.mark.parametrize("isa", [t.name for t in host_targets()])
@pytest.mark.parametrize(
    "line", ["--stag=axb --dtag=axb g20mb1ic20ih7oc20oh4kh3sh2ph1", "--stag=abx g4mb1ic4ih19oc4oh19kh5ph2"]
)
@pytest.mark.parametrize(("types", "weight"), [("u8:s8:s32", -128), ("u8:u8:s32", 255), ("s8:u8:s32", 255)])
def test_products_of_bytes_at_their_limits(types: str, weight: int, line: str, isa: str) -> None:
    kernel = cs.compile(f"--dt={types} {line}", target=isa, threads=1)
    arrays = random_arrays(kernel.problem, 1)
    arrays["src"][...] = 255 if types.startswith("u8") else -128
    arrays["wei"][...] = weight
    assert np.array_equal(kernel.run(**arrays)["dst"], reference(kernel.problem, arrays)["dst"])
