"""A chain's own sizes are those of its first stage's source and of its last stage's result."""

from __future__ import annotations

import numpy as np
import pytest

from convsmith.problem import Chain, parse_problem, reference
from convsmith.problem.data import random_arrays
from convsmith.problem.reference import is_exact

LINES = (
    "mb2ic4ih5iw6oc8kh1kw1 -> g8mb2ic8ih5iw6oc8kh3kw3ph1pw1 -> mb2ic8ih5iw6oc16kh1kw1",
    "--matmul 4x8:8x6 -> --matmul 4x6:6x10",
)


@pytest.mark.parametrize("line", LINES)
def test_sizes(line: str) -> None:
    chain = parse_problem(line)
    assert isinstance(chain, Chain)
    first, last = chain.stages[0], chain.stages[-1]
    assert chain.src_shape == first.src_shape != last.src_shape
    assert chain.product_shape == last.dst_shape != first.dst_shape and chain.wei_shape == last.wei_shape
    assert chain.rank == last.rank and chain.bias_shape == last.bias_shape and chain.dir == "FWD_D"
    assert (chain.channels, chain.source_channels) == (last.channels, first.source_channels)
    assert chain.flops_dense == sum(x.flops_dense for x in chain.stages)
    assert chain.flops_real == sum(x.flops_real for x in chain.stages)
    for n, stage in enumerate(chain.stages, start=1):
        for dim, size in stage.dims.items():
            assert chain.dims[f"{dim}_{n}"] == size
    assert len(chain.dims) == sum(len(x.dims) for x in chain.stages)


def test_the_stage_with_most_operations_says_types() -> None:
    chain = parse_problem("--dt=f32 mb1ic2ih3oc2kh1 -> --dt=f32:f32:f32 mb1ic2ih3oc64kh3ph1")
    assert isinstance(chain, Chain)
    assert (chain.acc, chain.factors) == (chain.stages[1].acc, chain.stages[1].factors)
    bytes_ = parse_problem("--dt=u8:s8:f32 mb1ic2ih3oc2kh1 -> --dt=f32 mb1ic2ih3oc64kh3ph1")
    assert bytes_.acc == "f32"
    bytes_ = parse_problem("--dt=u8:s8:f32 mb1ic64ih3oc64kh3ph1 -> --dt=f32 mb1ic64ih3oc2kh1")
    assert bytes_.acc == "s32"


def test_a_chain_is_exact_where_each_stage_is() -> None:
    assert is_exact(parse_problem(LINES[0]))
    for stages in (("--attr-post-ops=exp ", ""), ("", "--attr-post-ops=tanh ")):
        assert not is_exact(parse_problem(f"{stages[0]}mb1ic2ih3oc2kh1 -> {stages[1]}mb1ic2ih3oc2kh1"))
    assert is_exact(parse_problem("--attr-post-ops=relu mb1ic2ih3oc2kh1 -> mb1ic2ih3oc2kh1"))


def test_a_fused_depthwise_convolution_is_two_convolutions() -> None:
    """In the reference, with the rounding of what lies between."""
    line = "mb2ic4ih6oc8kh1"
    for stride, padding in ((1, 1), (2, 1)):
        fused = parse_problem(f"--attr-post-ops=relu+dw:k3s{stride}p{padding} {line}")
        arrays = random_arrays(fused)
        (found,) = reference(fused, arrays).values()
        one = parse_problem(f"--attr-post-ops=relu {line}")
        (between,) = reference(one, {name: arrays[name] for name in ("src", "wei")}).values()
        size = (6 + 2 * padding - 3) // stride + 1
        two = parse_problem(f"g8mb2ic8ih6oc8oh{size}kh3sh{stride}ph{padding}")
        (weights,) = (x for name, x in arrays.items() if name not in ("src", "wei"))
        (wanted,) = reference(two, {"src": between, "wei": weights.reshape(two.wei_shape)}).values()
        assert np.array_equal(found, wanted)
