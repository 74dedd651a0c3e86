"""Attention is one operator of a network, in the forms in which models state it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.compiler.operator import operator_artifact
from convsmith.machine import registry
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.x86.levels import LEVELS
from convsmith.network.operators.attention import Attention
from convsmith.network.reference import reference_outputs
from convsmith.network.rewrites.attention import with_attention
from convsmith.network.rewrites.attention_cost import attention_choice
from convsmith.network.rewrites.fold import folded
from convsmith.onnx.graph import read_graph
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.operator import operator_plan

ROWS, KEYS, DEPTH, WIDTH = 18, 21, 8, 12


def _heads(b: NetworkBuilder, name: str, rows: int, size: int, axes: tuple[int, ...] = (0, 2, 1, 3)) -> str:
    """An input of two batches of rows of three heads, as an array (batch, head, row, element), or in other orders."""
    whole = b.op("Reshape", b.input(name, 2, rows, 3 * size), b.held(np.int64([2, rows, 3, size])))
    return b.op("Transpose", whole, perm=axes)


def _attention(
    b: NetworkBuilder, scores: Callable[[str], str] = lambda x: x, shares: Callable[[str], str] = lambda x: x
) -> str:
    q = _heads(b, "q", ROWS, DEPTH)
    k = _heads(b, "k", KEYS, DEPTH, (0, 2, 3, 1))
    found = b.op("Softmax", scores(b.op("MatMul", q, k)), axis=-1)
    y = b.op("MatMul", shares(found), _heads(b, "v", KEYS, WIDTH))
    return b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), b.held(np.int64([2, ROWS, 3 * WIDTH])))


def _where(b: NetworkBuilder, lowest: float, held: bool = False) -> Callable[[str], str]:
    shown: Any = np.tri(ROWS, KEYS, dtype=bool)
    mask = b.held(shown) if held else b.op("Greater", b.input("m", 2, 1, ROWS, KEYS), b.held(np.float32(-0.5)))
    return lambda x: b.op("Where", mask, x, b.held(np.float32(lowest)))


def _safe(b: NetworkBuilder) -> str:
    """Shares of rows without a score above -inf are zeros."""
    hidden: Any = np.zeros((ROWS, KEYS), np.float32)
    hidden[3], hidden[5, 4:] = -np.inf, -np.inf
    zero = b.held(np.float32(0))
    return _attention(
        b, lambda x: b.op("Add", x, b.held(hidden)), lambda x: b.op("Where", b.op("IsNaN", x), zero, x)
    )


def _flat(b: NetworkBuilder) -> str:
    """The batch and the heads are one dim of the products."""
    q, k, v = (
        b.op("Reshape", _heads(b, name, rows, size, axes), b.held(np.int64([6, *shape])))
        for name, rows, size, axes, shape in (
            ("q", ROWS, DEPTH, (0, 2, 1, 3), (ROWS, DEPTH)), ("k", KEYS, DEPTH, (0, 2, 3, 1), (DEPTH, KEYS)),
            ("v", KEYS, WIDTH, (0, 2, 1, 3), (KEYS, WIDTH)),
        )
    )  # fmt: skip
    y = b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k), axis=-1), v)
    y = b.op("Transpose", b.op("Reshape", y, b.held(np.int64([2, 3, ROWS, WIDTH]))), perm=(0, 2, 1, 3))
    return b.op("Reshape", y, b.held(np.int64([2, ROWS, 3 * WIDTH])))


def _number(b: NetworkBuilder, x: float) -> str:
    return b.held(np.float32(x))


FORMS: dict[str, Callable[[NetworkBuilder], str]] = {
    "plain": _attention,
    "scaled": lambda b: _attention(b, lambda x: b.op("Mul", x, _number(b, 0.25))),
    "divided, with a mask": lambda b: _attention(
        b, lambda x: b.op("Add", b.op("Div", x, _number(b, 4)), b.input("m", 2, 1, 1, KEYS))
    ),
    "a mask of each head": lambda b: _attention(b, lambda x: b.op("Add", b.input("m", 3, ROWS, KEYS), x)),
    "a whole mask": lambda b: _attention(b, lambda x: b.op("Add", x, b.input("m", 2, 3, ROWS, KEYS))),
    "two held masks": lambda b: _attention(
        b, lambda x: b.op("Add", b.op("Add", x, b.weights(3, ROWS, KEYS)), b.weights(2, 1, 1, KEYS))
    ),
    "a mask of zeros": lambda b: _attention(b, lambda x: b.op("Add", x, b.held(np.zeros((ROWS, KEYS), np.float32)))),
    "truth values": lambda b: _attention(b, _where(b, -math.inf)),
    "causal": lambda b: _attention(b, _where(b, -3e38, held=True)),
    "rows without shares": _safe, "one dim of matrices": _flat,
    "a step behind": lambda b: b.op("Relu", _attention(b)),
}  # fmt: skip

OTHERS: dict[str, Callable[[NetworkBuilder], str]] = {
    "shares that another node reads": lambda b: _attention(b, shares=lambda x: b.op("Mul", x, x)),
    "a scale of the mask": lambda b: _attention(
        b, lambda x: b.op("Mul", b.op("Add", x, b.input("m", ROWS, KEYS)), _number(b, 0.25))
    ),
    "a low score": lambda b: _attention(b, _where(b, -10)),
    "shares that another value hides": lambda b: _attention(
        b, shares=lambda x: b.op("Where", b.op("IsNaN", b.input("m", 2, 3, ROWS, KEYS)), _number(b, 0), x)
    ),
    "another function": lambda b: _attention(b, lambda x: b.op("Tanh", x)),
}


def _checked(b: NetworkBuilder, output: str, threads: int = 1) -> cs.Network:
    """The network of an output, which is close to the references of the nodes of its model."""
    model = b.model(output)
    net, graph = cs.onnx.compile(model, threads=threads), read_graph(model)
    rng = np.random.default_rng(len(graph.inputs))
    arrays = {x.name: rng.standard_normal(x.shape).astype(np.float32) for x in graph.inputs}
    with np.errstate(invalid="ignore"):
        (expected,) = reference_outputs(graph, arrays).values()
    (found,) = net.run(arrays).values()
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    return net


def _works(net: cs.Network, kind: str) -> list[str]:
    return [step.work for step in net.image.steps if step.work.startswith(kind)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_one_operator(form: str) -> None:
    b = NetworkBuilder(1)
    net = _checked(b, FORMS[form](b), threads=2)
    (work,) = _works(net, "Attention")
    assert not _works(net, "Softmax") and not _works(net, "--matmul") and not _works(net, "Reshape")
    assert len(_works(net, "Transpose")) == (form in ("a mask of each head", "a whole mask", "truth values"))
    unmasked = ("plain", "scaled", "a mask of zeros", "one dim of matrices", "a step behind")
    assert ("mask=()" in work) == (form in unmasked)
    assert "orders=((0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 1, 3), (0, 2, 1, 3))" in work


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", OTHERS)
def test_other_products_stay(form: str) -> None:
    b = NetworkBuilder(1)
    net = _checked(b, OTHERS[form](b))
    assert not _works(net, "Attention") and len(_works(net, "--matmul")) >= 2


def _matrices(b: NetworkBuilder, q: str, k: str, v: str) -> str:
    """The attention of three arrays (batch, head, row, element)."""
    shares = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), axis=-1)
    y = b.op("Transpose", b.op("MatMul", shares, v), perm=(0, 2, 1, 3))
    return b.op("Reshape", y, b.held(np.int64([2, ROWS, 3 * DEPTH])))


def _product(b: NetworkBuilder) -> str:
    """Queries, keys and values of two batches of rows of three heads, from one product."""
    return b.op("MatMul", b.input("x", 2, ROWS, 10), b.weights(10, 9 * DEPTH))


def _split_columns(b: NetworkBuilder) -> str:
    """Thirds of the columns, as in GPT-2."""
    shape = b.held(np.int64([2, ROWS, 3, DEPTH]))
    thirds = b.op("Split", _product(b), axis=2, outputs=3, num_outputs=3)
    return _matrices(b, *(b.op("Transpose", b.op("Reshape", x, shape), perm=(0, 2, 1, 3)) for x in thirds))


def _split_dim(order: tuple[int, ...], perm: tuple[int, ...]) -> Callable[[NetworkBuilder], str]:
    """A dim of three behind a transpose, which comes first, as in vision transformers."""

    def made(b: NetworkBuilder) -> str:
        sizes = [(3, 3, DEPTH)[n] for n in order]
        whole = b.op("Reshape", _product(b), b.held(np.int64([2, ROWS, *sizes])))
        turned = b.op("Transpose", whole, perm=perm)
        return _matrices(b, *(b.op("Gather", turned, b.held(np.int64(n)), axis=0) for n in range(3)))

    return made


FUSED: dict[str, tuple[Callable[[NetworkBuilder], str], str]] = {
    "thirds of columns": (_split_columns, "wholes=((2, 9, 18, 8), (2, 9, 18, 8), (2, 9, 18, 8))"),
    "a dim before heads": (_split_dim((0, 1, 2), (2, 0, 3, 1, 4)), "starts=((0, 0, 0, 0), (0, 3, 0, 0), (0, 6, 0, 0))"),
    "a dim within heads": (
        _split_dim((1, 0, 2), (3, 0, 2, 1, 4)), "starts=((0, 0, 0, 0), (0, 0, 0, 8), (0, 0, 0, 16))"
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FUSED)
def test_parts_of_one_product_are_read_where_they_are(form: str) -> None:
    b = NetworkBuilder(5, real=True)
    build, stated = FUSED[form]
    net = _checked(b, build(b))
    assert [step.work.split("(")[0].split()[0] for step in net.image.steps] == ["--matmul", "Attention"]
    assert stated in net.image.steps[1].work


def test_parts_whose_elements_are_apart_are_those_of_a_copy() -> None:
    """A dim of three behind the elements of a head is moved to the front once, for all three."""
    b = NetworkBuilder(6, real=True)
    net = _checked(b, _split_dim((1, 2, 0), (4, 0, 2, 1, 3))(b))
    assert [step.work.split("(")[0].split()[0] for step in net.image.steps] == ["--matmul", "Transpose", "Attention"]
    assert "starts=((0, 0, 0, 0), (2, 0, 0, 0), (4, 0, 0, 0))" in net.image.steps[2].work


def _shared(b: NetworkBuilder, name: str, size: int, perm: tuple[int, ...]) -> str:
    """An input of two batches of keys or values of two heads, each for three heads of queries."""
    whole = b.op("Reshape", b.input(name, 2, KEYS, 2 * size), b.held(np.int64([2, KEYS, 2, 1, size])))
    turned = b.op("Transpose", whole, perm=(0, 2, 3, 1, 4))
    repeated = b.op("Expand", turned, b.held(np.int64([2, 2, 3, KEYS, size])))
    return b.op("Transpose", b.op("Reshape", repeated, b.held(np.int64([2, 6, KEYS, size]))), perm=perm)


@pytest.mark.parametrize("hidden", [False, True])
def test_heads_share_keys_and_values(hidden: bool) -> None:
    b = NetworkBuilder(1)
    q = b.op("Transpose", b.input("q", 2, ROWS, 6, DEPTH), perm=(0, 2, 1, 3))
    scores = b.op("MatMul", q, _shared(b, "k", DEPTH, (0, 1, 3, 2)))
    scores = _where(b, -math.inf, held=True)(scores) if hidden else scores
    y = b.op("MatMul", b.op("Softmax", scores, axis=-1), _shared(b, "v", WIDTH, (0, 1, 2, 3)))
    net = _checked(b, b.op("Relu", y), threads=2)
    (step,) = net.image.steps
    assert step.work.startswith("Attention") and step.work.endswith("shared=3)")


def test_keys_of_fewer_heads_than_values_are_repeated() -> None:
    b = NetworkBuilder(1)
    q = b.op("Transpose", b.input("q", 2, ROWS, 6, DEPTH), perm=(0, 2, 1, 3))
    scores = b.op("MatMul", q, _shared(b, "k", DEPTH, (0, 1, 3, 2)))
    values = b.op("Transpose", b.input("v", 2, KEYS, 6, WIDTH), perm=(0, 2, 1, 3))
    net = _checked(b, b.op("MatMul", b.op("Softmax", scores, axis=-1), values))
    (work,) = _works(net, "Attention")
    assert work.endswith("shared=1)") and len(_works(net, "Expand")) == 1


def test_scores_that_are_outputs_stay() -> None:
    b = NetworkBuilder(2)
    q, k, v = b.input("q", 16, 8), b.input("k", 8, 20), b.input("v", 20, 4)
    scores = b.op("MatMul", q, k)
    model = b.model(b.op("MatMul", b.op("Softmax", scores, axis=-1), v), scores)
    assert not _works(cs.onnx.compile(model, threads=1), "Attention")


def _run(op: Attention, q: Any, k: Any, v: Any) -> Any:
    kernel = HostKernel(operator_artifact(op, registry.target(None, ("f32",) * 3)))
    return kernel.run({"query": q, "key": k, "value": v})["dst"]


def test_shares_that_are_powers_of_two_are_exact() -> None:
    """Queries of zeros have equal shares of all keys; queries far along one key have its value alone."""
    rng = np.random.default_rng(0)
    op = Attention("f32", 1, 2, 20, 16, 16, 12, tile=16)
    keys: Any = np.broadcast_to(np.eye(16, dtype=np.float32), (1, 2, 16, 16)).copy()
    values: Any = rng.integers(-8, 9, (1, 2, 16, 12)).astype(np.float32)
    queries: Any = np.zeros((1, 2, 20, 16), np.float32)
    np.testing.assert_array_equal(_run(op, queries, keys, values), values.mean(2, keepdims=True).repeat(20, 2))
    picked = rng.integers(0, 16, 20)
    queries[:, :, range(20), picked] = 200
    np.testing.assert_array_equal(_run(op, queries, keys, values), values[:, :, picked])


def test_the_workspace_holds_the_scores_of_a_tile() -> None:
    b = NetworkBuilder(3)
    q, k, v = b.input("q", 1, 8, 512, 8), b.input("k", 1, 8, 8, 512), b.input("v", 1, 8, 512, 8)
    output = b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k), axis=-1), v)
    inner = [b.op("Tanh", x) for x in (q, k, v)]  # stored in bf16, which the arrays of the caller are not
    scores = b.op("Softmax", b.op("MatMul", *inner[:2]), axis=-1)
    small = b.model(b.op("Relu", b.op("MatMul", scores, inner[2])))
    for net in (_checked(b, output), cs.onnx.compile(small, threads=1, dtype="bf16")):
        assert net.workspace < 8 * 512 * 512 * 4 / 16


@pytest.mark.parametrize(
    ("rows", "lanes", "tile"),
    [(197, 8, 16), (197, 16, 32), (77, 4, 16), (77, 16, 48), (18, 16, 32), (18, 4, 32), (9, 32, 16), (128, 8, 64)],
)
def test_tiles_compute_few_rows_behind_the_last(rows: int, lanes: int, tile: int) -> None:
    b = NetworkBuilder(7)
    q, k, v = b.input("q", 2, rows, 8), b.input("k", 2, 8, rows), b.input("v", 2, rows, 8)
    model = b.model(b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k), axis=-1), v))
    (node,) = with_attention(folded(read_graph(model)), 1 << 18, lanes, lambda op: True).nodes
    assert isinstance(node.work, Attention) and node.work.tile == tile


@pytest.mark.parametrize(
    ("level", "tile", "sums"), [("avx2", 32, (6, 2, 8)), ("avx2", 48, (4, 3, 8)), ("avx512", 64, (6, 4, 16))]
)
def test_sums_have_the_tile_of_registers_with_the_fewest_loads(level: str, tile: int, sums: tuple[int, ...]) -> None:
    op = Attention("f32", 1, 2, 192, 96, 32, 32, tile=tile)
    lowered = str(operator_plan(op, registry.target(level), 1).given.lowered)  # type: ignore[union-attr]
    assert f"alloc acc1: f32[{', '.join(map(str, sums))}] @register" in lowered


def test_the_model_chooses_products_of_small_floats_where_they_are_faster() -> None:
    """With dot products of bf16, products take half of the cycles, and attention has those of f32."""
    costs = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5")
    machine = costs.of(next(level for level in LEVELS if level.name == "avx512_bf16"))
    wide, narrow = (Attention("f32", 1, 8, 1024, 1024, size, size) for size in (64, 8))
    few = Attention("f32", 1, 1, 17, 64, 64, 64, tile=32)
    for stored, expected in (("f32", [True, True, True]), ("bf16", [False, True, False])):
        pays = attention_choice(machine, machine, 1, stored)
        assert [pays(op) for op in (wide, narrow, few)] == expected, stored


def test_attention_in_a_file_and_in_another_type(tmp_path: Path) -> None:
    b = NetworkBuilder(4)
    model = b.model(FORMS["divided, with a mask"](b))
    rng = np.random.default_rng(1)
    net = cs.onnx.compile(model, threads=1)
    arrays = {x.name: rng.standard_normal(x.shape).astype(np.float32) for x in net.image.inputs}
    net.save(tmp_path / "attention.net")
    (expected,), (found,) = net.run(arrays).values(), cs.load(tmp_path / "attention.net").run(arrays).values()
    np.testing.assert_array_equal(found, expected)
    (small,) = cs.onnx.compile(model, threads=1, dtype="bf16").run(arrays).values()
    np.testing.assert_allclose(small, expected, rtol=0, atol=0.03)
