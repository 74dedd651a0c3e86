from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.post_ops import ALGORITHMS, PostOp, parse_post_ops, print_post_ops

X = np.array([-np.inf, -2.0, -0.5, 0.0, 0.5, 7.0, np.inf, np.nan])


@given(st.lists(st.sampled_from(sorted(ALGORITHMS)), max_size=4), st.data())
def test_print_and_parse_are_inverse(algorithms: list[str], data: st.DataObject) -> None:
    numbers = st.floats(width=32, allow_nan=False)
    post_ops = []
    for alg in algorithms:
        low, high = sorted([data.draw(numbers), data.draw(numbers)])
        post_ops.append(PostOp(alg, *(low, high)[: len(ALGORITHMS[alg].parameters)]))
    assert parse_post_ops(print_post_ops(tuple(post_ops))) == tuple(post_ops)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("relu", [0, 0, 0, 0, 0.5, 7, np.inf, np.nan]),
        ("relu:0.5", [-np.inf, -1, -0.25, 0, 0.5, 7, np.inf, np.nan]),
        ("eltwise_relu:0:0:1", [0, 0, 0, 0, 0.5, 7, np.inf, np.nan]),
        ("clip:-1:6", [-1, -1, -0.5, 0, 0.5, 6, 6, np.nan]),
        ("clip_v2:-1:6", [-1, -1, -0.5, 0, 0.5, 6, 6, np.nan]),
        ("clip:-inf:6", [-np.inf, -2, -0.5, 0, 0.5, 6, 6, np.nan]),
    ],
)
def test_meaning(text: str, expected: list[float]) -> None:
    (post_op,) = parse_post_ops(text)
    np.testing.assert_array_equal(post_op.apply(X), expected)


def test_steps_apply_in_order_and_numbers_are_single_precision() -> None:
    relu, clip = parse_post_ops("relu:0.1+clip:-1e+30:1e+2")
    assert relu.alpha == float(np.float32(0.1))
    assert (str(relu), clip.alpha, clip.beta) == ("relu:0.1", float(np.float32(-1e30)), 100)
    assert parse_post_ops("") == ()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("tanh", UnsupportedError, "'tanh' is not available; available are relu[:slope], clip[:low][:high], clip_v2"),
        ("relu+sum:0.5", UnsupportedError, "'sum' is not available"),
        ("relu:0:0:2", UnsupportedError, "the scale 2 is not available"),
        ("rellu", UsageError, "'rellu' is not available; available are relu[:slope]"),
        ("relu:0.1:0.2", UsageError, "expected relu[:slope]"),
        ("relu:x", UsageError, "'relu:x' is malformed; expected relu[:slope]"),
        ("relu:nan", UsageError, "are not legal"),
        ("clip:0:6:1:1", UsageError, "expected clip[:low][:high]"),
        ("clip:6:0", UsageError, "low 6 is above high 0; legal is low <= high"),
        ("relu+", UsageError, "post-op '' is not available"),
    ],
)
def test_errors(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        parse_post_ops(text)
    assert message in str(raised.value)
