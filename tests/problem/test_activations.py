"""The post-op of every name of an activation, as a name, as text with its numbers and as a tuple."""

from __future__ import annotations

import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem.activations import ACTIVATIONS, activation_post_ops
from convsmith.problem.post_ops import Eltwise

DEFAULTS = {
    "relu6": ("clip", 0, 6), "leaky_relu": ("relu", 0.01, 0), "elu": ("elu", 1, 0),
    "selu": ("elu", 1.6732632423543772, 0), "gelu": ("gelu_erf", 0, 0), "silu": ("swish", 1, 0),
    "swish": ("swish", 1, 0), "quick_gelu": ("swish", 1.702, 0), "sigmoid": ("logistic", 0, 0),
    "hardsigmoid": ("hardsigmoid", 1 / 6, 0.5), "hardswish": ("hardswish", 1 / 6, 0.5), "hardtanh": ("clip", -1, 1),
    "softplus": ("soft_relu", 1, 0),
}  # fmt: skip
"""Name -> algorithm and numbers of oneDNN, where the caller gives none."""

FREE = {"leaky_relu": 1, "elu": 1, "swish": 1, "hardsigmoid": 2, "hardswish": 2, "hardtanh": 2, "softplus": 1}
"""Name -> how many numbers the caller may give."""

NUMBERS = (0.25, 0.75)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_name_and_its_numbers_in_every_form(name: str) -> None:
    alg, *defaults = DEFAULTS[name]
    scale = 1.0507009873554805 if name == "selu" else 1.0
    for count in range(FREE.get(name, 0) + 1):
        given = NUMBERS[:count]
        expected = (Eltwise(alg, *given, *defaults[count:], scale=scale),)
        assert activation_post_ops((name, *given)) == activation_post_ops([name, *given]) == expected
        assert activation_post_ops(":".join((name, *map(str, given)))) == expected
    with pytest.raises(UsageError, match=f"activation {name} has {count + 1} numbers; legal are"):
        activation_post_ops((name, *NUMBERS, 1.0)[: count + 2])


@pytest.mark.parametrize(("alg", "numbers"), [("linear", (0.5,)), ("linear", (0.5, 2.0)), ("clip", (0.5, 2.0, 3.0))])
def test_an_algorithm_of_onednn_with_its_numbers(alg: str, numbers: tuple[float, ...]) -> None:
    assert activation_post_ops((alg, *numbers)) == (Eltwise(alg, *numbers),)
    with pytest.raises(UsageError, match="is not legal"):
        activation_post_ops((alg, *numbers, *(1.0,) * (4 - len(numbers))))


def test_names_that_stand_for_no_post_op_and_for_several() -> None:
    assert activation_post_ops(None) == activation_post_ops("identity") == activation_post_ops(("identity",)) == ()
    both = activation_post_ops("relu+hardtanh:0:2")
    assert both == (Eltwise("relu"), Eltwise("clip", 0.0, 2.0))
    assert DEFAULTS.keys() == ACTIVATIONS.keys() - {"identity"}
