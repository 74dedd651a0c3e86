from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem import Matmul, parse_problem, reference
from convsmith.problem.data import random_arrays


@st.composite
def problems(draw: st.DrawFn) -> Matmul:
    m, k, n = (draw(st.integers(0, 5)) for _ in range(3))
    batch = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("aslr")), max_size=2))
    src = tuple(1 if side == "s" else size for size, side in batch)
    wei = tuple(1 if side == "l" else size for size, side in batch)
    rank = len(batch) + 2
    integer = draw(st.booleans())
    tags = ["any", "abcd"[:rank], "abcd"[: rank - 2] + "dcba"[4 - rank : 6 - rank]]
    return Matmul(
        src=(*src, m, k), wei=(*wei, k, n), bia_mask=draw(st.none() | st.integers(0, (1 << rank) - 1)),
        dt=("u8", "s8", "f32") if integer else ("f32", "f32", "f32"), stag=draw(st.sampled_from(tags)),
        wtag=draw(st.sampled_from(tags)), dtag=draw(st.sampled_from(tags)), name=draw(st.none() | st.just("a:b")),
    )  # fmt: skip


@given(problems(), st.integers(0, 9))
def test_lines_and_products(problem: Matmul, seed: int) -> None:
    assert parse_problem(str(problem)) == problem
    canonical = problem.canonical()
    assert parse_problem(str(canonical)) == canonical == canonical.canonical()
    arrays = random_arrays(problem, seed)
    expected = arrays["src"].astype(float) @ arrays["wei"].astype(float) + arrays.get("bia", np.zeros(1))
    dst = reference(problem, arrays)["dst"]
    assert dst.shape == problem.dst_shape == expected.shape
    np.testing.assert_array_equal(dst, expected)
    assert problem.flops_real == 2 * dst.size * problem.dims["k"]


def test_the_fields_of_a_line() -> None:
    line = (
        "--matmul --dt=u8:s8:bf16 --stag=acb --bia_dt=bf16 --bia_mask=6 --attr-scales=wei:per_oc "
        '--attr-zero-points=src:per_dim_2 --attr-post-ops=add:f32:per_oc 7x3x4:1x4x5n"x"'
    )
    problem = parse_problem(line)
    assert isinstance(problem, Matmul)
    assert problem.dir == "FWD_B" and problem.bias and problem.acc == "s32" and problem.name == "x"
    assert [(t.name, t.role, t.dtype, t.shape) for t in problem.tensors] == [
        ("src", "in", "u8", (7, 3, 4)), ("wei", "in", "s8", (1, 4, 5)), ("bia", "in", "bf16", (1, 3, 5)),
        ("scales_wei", "in", "f32", (5,)), ("zero_points_src", "in", "s32", (4,)),
        ("post_op_0", "in", "f32", (1, 1, 5)), ("dst", "out", "bf16", (7, 3, 5)),
    ]  # fmt: skip
    assert problem.dims == {"b0": 7, "m": 3, "n": 5, "k": 4}
    assert problem.src_layout.strides == (12, 1, 3)
    assert str(problem) == (
        "--matmul --bia-mask=6 --dt=u8:s8:bf16 --bia-dt=bf16 --stag=acb --attr-scales=wei:per_oc "
        '--attr-zero-points=src:per_dim_2 --attr-post-ops=add:f32:4 7x3x4:1x4x5n"x"'
    )


def test_without_a_mask_the_bias_varies_along_n() -> None:
    assert parse_problem("--matmul --bia-dt=f32 2x10x30:2x30x20").tensor("bia").shape == (1, 1, 20)
    assert not parse_problem("--matmul --bia-dt=undef 10x30:30x20").bias


def test_strides_and_a_destination_of_its_own() -> None:
    problem = parse_problem("--matmul --strides=8x4x1:24x6x1:21x7x1 3x2x4:3x4x6:3x2x6")
    assert problem.dst_layout.strides == (21, 7, 1)


def test_each_side_of_the_sum() -> None:
    """(1 - 1) * (2 - 1) + (4 - 2) * (3 - 1) = 4; times 0.5, 3 and 2; plus 1; the other column as well."""
    line = (
        "--matmul --dt=u8:s8:s8 --bia-dt=f32 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 "
        "--attr-zero-points=src:per_dim_1+wei:common:1+dst:common:-3 1x2:2x2"
    )
    arrays = {
        "src": np.array([[1, 4]]), "wei": np.array([[2, 0], [3, 6]]), "bia": np.array([[1, 0]]),
        "scales_wei": np.array([3, 1]), "zero_points_src": np.array([1, 2]),
    }  # fmt: skip
    # columns: 4 and 10; v = 7 and 5; 3.5 - 3 and 2.5 - 3, to the nearest even
    np.testing.assert_array_equal(reference(parse_problem(line), arrays)["dst"], [[0, 0]])
    np.testing.assert_array_equal(reference(parse_problem(line), arrays, raw=True)["dst"], [[0.5, -0.5]])


def test_lines_of_fewer_bits_read_back() -> None:
    line = "--matmul --bits=7:5 --rounding=probabilistic --dt=u8:s8:s32 2x3:3x4"
    problem = parse_problem(line)
    assert str(problem) == line
    assert [(t.name, t.dtype, t.shape) for t in problem.inputs[2:]] == [
        ("rounding_src", "u8", (2, 3)), ("rounding_wei", "u8", (3, 4)),
    ]  # fmt: skip
    assert (
        str(parse_problem("--matmul --bits=8:8 --rounding=probabilistic --dt=u8 2x3:3x4")) == "--matmul --dt=u8 2x3:3x4"
    )


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("10x30", UsageError, "expected MxK:KxN, batch dims before them"),
        ("10x30:20x30", UsageError, "the source has K=30, the weights have K=20"),
        ("2x10x30:30x20", UsageError, "expected two shapes of the same number of dims, 2 to 6"),
        ("2x10x30:3x30x20", UsageError, "batch dims 2 and 3 do not meet; legal are equal ones, or 1"),
        ("2x3:3x4:2x5", UsageError, "legal is the destination 2x4"),
        ("--bia-dt=f32 --bia-mask=4 2x3:3x4", UsageError, "--bia-mask=4 in 2x3:3x4: legal is 0 to 3"),
        ("--bia-dt=f32 --bia-mask=n 2x3:3x4", UsageError, "--bia-mask=-1 in 2x3:3x4: legal is 0 to 3"),
        ("--dir=FWD_B 2x3:3x4", UsageError, "--dir is unknown; legal: --matmul --bia-mask --bits --rounding --dt"),
        ("--stag=nhwc 2x3:3x4", UsageError, "--stag=nhwc: layout tag 'nhwc' does not suit a tensor of 2 dims"),
        ("--runtime_dims_masks=3:3 2x3:3x4", UnsupportedError, "--runtime-dims-masks is not available"),
        ("--attr-scales=src:per_dim_0 2x3:3x4", UnsupportedError, "available for src: common"),
        ("--bits=7 2x3:3x4", UsageError, "bits=(7,) is not legal: expected the bits of lhs and of rhs, each 1 to 8"),
        ("--dt=u8:s8:s32 --bits=0:8 2x3:3x4", UsageError, "bits=(0, 8) is not legal"),
        ("--dt=u8:s8:s32 --bits=7:x 2x3:3x4", UsageError, "bits=(7, 'x') is not legal"),
        ("--bits=7:5 2x3:3x4", UsageError, "--bits=7:5 with --dt=f32:f32:f32: legal are u8 and s8"),
        ("--dt=u8:s8:s32 --bits=7:5 --rounding=up 2x3:3x4", UsageError, "rounding='up' is not legal"),
        (
            "--dt=u8:s8:s32 --bits=7:5 --attr-zero-points=src:per_dim_1 2x3:3x4",
            UnsupportedError,
            "available for src: common, per_dim_0",
        ),
        ("--attr-post-ops=dw:k3s1p1 2x3:3x4", UsageError, "behind a convolution with a 1x1 kernel"),
    ],
)
def test_bad_lines(line: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        parse_problem(f"--matmul {line}")
    assert text in str(error.value)


def test_a_type_of_the_bias_needs_a_mask() -> None:
    with pytest.raises(UsageError, match="--bia-dt=bf16, but no mask: legal is to give both"):
        Matmul(src=(2, 3), wei=(3, 4), bia_dt="bf16")
