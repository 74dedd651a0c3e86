"""Slices that nodes read in place: results, steps, and what must stay a copy."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import check, exact_network, lines
from onnx_networks import NetworkBuilder

import convsmith as cs

Build = Callable[[NetworkBuilder, str], Any]


def _copies(net: cs.Network) -> int:
    """The steps that copy slices."""
    return sum(line.startswith("Slice") for line in lines(net))


def _built(build: Build) -> cs.Network:
    b = NetworkBuilder(3)
    found = build(b, b.input("x", 2, 12, 6, 5))
    return exact_network(b.model(*(found if isinstance(found, tuple) else (found,))))


def _cut(b: NetworkBuilder, x: str, start: int, end: int, axis: int = 1, step: int = 1) -> str:
    numbers = (b.held(np.int64([n])) for n in (start, end, axis, step))
    return str(b.op("Slice", x, *numbers))


def _halves(b: NetworkBuilder, x: str) -> tuple[str, str]:
    one, two = b.op("Split", b.conv(x, 12, 10, 1), axis=1, outputs=2, num_outputs=2)
    return one, two


def _units(b: NetworkBuilder, x: str) -> str:
    """One half of the channels goes through convolutions, and the other joins it, as in ShuffleNet."""
    one, two = _halves(b, x)
    return b.conv(b.op("Concat", one, b.conv(two, 5, 7, 3), axis=1), 12, 4, 1)


IN_PLACE: dict[str, Build] = {
    "convolutions": lambda b, x: b.op("Add", *(b.conv(y, 5, 8, 3) for y in _halves(b, x))),
    "a product of halves": lambda b, x: b.op("Mul", *_halves(b, x)),
    "a step on a half": lambda b, x: b.op("Mul", (h := _halves(b, x))[0], b.op("Relu", h[1])),
    "a pool": lambda b, x: b.op("MaxPool", _halves(b, x)[1], kernel_shape=[2, 2]),
    "rows": lambda b, x: b.conv(_cut(b, b.conv(x, 12, 8, 3), 1, 4, 2), 8, 4, 3),
    "a slice of a slice": lambda b, x: b.conv(_cut(b, _cut(b, b.conv(x, 12, 16, 3), 3, 14), 2, 9), 7, 4, 3),
    "an input": lambda b, x: b.op("Mul", _cut(b, x, 0, 6), _cut(b, x, 6, 12)),
    "an addend": lambda b, x: b.op("Add", b.conv(x, 12, 5, 3), _halves(b, x)[1]),
    "of what is an output": lambda b, x: (b.op("Relu", _cut(b, y := b.conv(x, 12, 8, 3), 3, 7)), y),
    "of a part": lambda b, x: b.conv(
        _cut(b, b.op("Concat", b.conv(x, 12, 8, 3), b.conv(x, 12, 9, 1), axis=1), 5, 12), 7, 4, 3
    ),
}  # fmt: skip


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", IN_PLACE)
def test_nodes_read_slices_where_they_are(name: str) -> None:
    assert _copies(_built(IN_PLACE[name])) == 0


def test_explain_names_what_is_read_in_place() -> None:
    net = _built(lambda b, x: b.conv(_halves(b, x)[1], 5, 8, 3))
    assert any("apart: it reads " in line and " in place, a part of " in line for line in net.explain().splitlines())


JOINED: dict[str, Build] = {
    "both halves": lambda b, x: b.conv(b.op("Concat", *(h := _halves(b, x)), b.conv(h[1], 5, 7, 3), axis=1), 17, 4, 1),
    "behind another part": lambda b, x: b.conv(
        b.op("Concat", b.conv((h := _halves(b, x))[0], 5, 6, 1), *h, axis=1), 16, 4, 1
    ),
    "thirds of another": lambda b, x: b.conv(
        b.op("Concat", *(_cut(b, y, n, n + 4) for y in [b.conv(x, 12, 12, 3)] for n in (0, 4, 8)),
             b.conv(x, 12, 5, 1), axis=1), 17, 4, 1,
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", JOINED)
def test_all_slices_of_an_array_are_the_array_again(name: str) -> None:
    """As in detectors, whose blocks join both halves of their channels with what they compute of one."""
    net = _built(JOINED[name])
    assert _copies(net) == 0 and not any(line.startswith("Concat") for line in lines(net))


REORDERED: dict[str, Build] = {
    "another order": lambda b, x: b.conv(b.op("Concat", *_halves(b, x)[::-1], x, axis=1), 22, 4, 1),
    "another axis": lambda b, x: b.conv(b.op("Concat", *_halves(b, x), b.conv(x, 12, 5, 1), axis=2), 5, 4, 1),
    "some of the slices": lambda b, x: b.conv(b.op("Concat", _halves(b, x)[0], x, axis=1), 17, 4, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", REORDERED)
def test_other_slices_are_parts_of_their_own(name: str) -> None:
    assert _copies(_built(REORDERED[name])) > 0


COPIED: dict[str, Build] = {
    "an output": lambda b, x: _halves(b, x),
    "a part of a concatenation": _units,
    "elements apart": lambda b, x: b.conv(_cut(b, b.conv(x, 12, 8, 3), 0, 8, 1, 2), 4, 4, 3),
    "rows of a product": lambda b, x: b.op(
        "MatMul", b.op("Reshape", _halves(b, x)[1], b.held(np.int64([10, 30]))), b.weights(30, 8)
    ),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COPIED)
def test_other_slices_are_copied(name: str) -> None:
    assert _copies(_built(COPIED[name])) > 0


def test_a_gate_and_what_it_scales_are_halves_of_a_product() -> None:
    """The feed-forward layer of diffusion models: one product, of which one half is multiplied by GELU of the other."""
    b = NetworkBuilder(4, real=True)
    y = b.op("Add", b.op("MatMul", b.input("x", 2, 9, 16), b.weights(16, 44)), b.weights(44))
    value, gate = b.op("Split", y, axis=-1, outputs=2, num_outputs=2)
    whole = b.op("Mul", value, b.op("Gelu", gate))
    net = check(b.model(b.op("MatMul", whole, b.weights(22, 16)), opset=20))
    assert [line.split("(")[0].split()[0] for line in lines(net)] == ["--matmul", "Pointwise", "--matmul"]


def test_a_source_is_not_overwritten_while_a_slice_of_it_is_read_later() -> None:
    b = NetworkBuilder(5)
    y = b.conv(b.input("x", 1, 8, 6, 6), 8, 12, 1)
    half, turned = _cut(b, y, 3, 9), b.op("Relu", y)
    exact_network(b.model(b.op("Mul", b.conv(turned, 12, 6, 3), half), b.conv(half, 6, 4, 3)))


def test_a_whole_has_room_for_all_of_its_parts() -> None:
    """A slice of a concatenation is read, and the whole by no node."""
    b = NetworkBuilder(6)
    x = b.input("x", 2, 12, 6, 5)
    whole = b.op("Concat", b.conv(x, 12, 8, 3), b.conv(x, 12, 9, 1), axis=1)
    net = exact_network(b.model(b.op("Relu", _cut(b, whole, 5, 12))))
    assert net.workspace >= 2 * 17 * 6 * 5 * 4


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(16))
def test_random_slices(seed: int) -> None:
    r, b = Random(seed), NetworkBuilder(seed)
    values = [(b.input("x", r.choice((1, 2)), 13, 4, 6), 13)]
    for _ in range(r.randint(5, 9)):
        (x, channels), (y, more) = r.choice(values[-3:]), r.choice(values)
        kind = r.choice(("conv", "Slice", "Slice", "Concat", "Relu", "Add"))
        if kind == "conv":
            count = r.choice((3, 8, 17))
            made = b.conv(x, channels, count, r.choice((1, 3))), count
        elif kind == "Slice" and channels > 2:
            start, count = r.randrange(channels - 1), r.choice((2, 5, 8))
            made = _cut(b, x, start, start + count), min(count, channels - start)
        elif kind == "Concat" and channels + more <= 64:
            made = b.op("Concat", x, y, axis=1), channels + more
        elif kind == "Add" and channels == more:
            made = b.op("Add", x, y), channels
        else:
            made = b.op("Clip", x, b.held(np.float32(-1)), b.held(np.float32(1))), channels
        values.append(made)
    exact_network(b.model(*dict.fromkeys([values[-1][0], r.choice(values[1:])[0]])))
