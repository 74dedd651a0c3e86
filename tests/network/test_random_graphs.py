"""Random graphs of values of all ranks, which broadcast, beside ONNX Runtime: most operands are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_networks import NetworkBuilder

import convsmith as cs

runtime: Any = import_module("onnxruntime")

_LARGEST = 4_000
"""Most elements of a value."""
_AXES = (1, 1, 2, 3, 4, 5, 7, 16, 17)
_MOVES = ("Transpose", "Transpose", "Flatten", "Reshape", "Concat", "Slice", "Unsqueeze", "Gather", "Tile")


class _Drawn(NamedTuple):
    """A value, and its shape."""

    name: str
    shape: tuple[int, ...]


class _Graph:
    """A graph in the making: its `values`, and the inputs that were drawn so far."""

    def __init__(self, seed: int) -> None:
        self.r, self.b = Random(seed), NetworkBuilder(seed)
        self.values: list[_Drawn] = []
        self.read: set[str] = set()

    def any(self, ok: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> _Drawn | None:
        """Return one of the latest values whose shape is ok."""
        found = [x for x in self.values[-6:] if ok(x.shape)]
        return self.r.choice(found) if found else None

    def of(self, shape: Sequence[int]) -> _Drawn:
        """Return a value of a shape, if there is none yet a new input; sometimes a constant."""
        if self.r.random() < 0.1:
            return _Drawn(self.b.weights(*shape), tuple(shape))
        found = [x for x in self.values if x.shape == tuple(shape)]
        if found and self.r.random() < 0.8:
            return self.r.choice(found)
        made = _Drawn(self.b.input(f"x{len(self.b.inputs)}", *shape), tuple(shape))
        self.values.append(made)
        return made

    def op(self, shape: Sequence[int], operator: str, *inputs: str, **attributes: Any) -> _Drawn:
        """Add a node whose result has a shape."""
        self.read |= {*inputs}
        return _Drawn(str(self.b.op(operator, *inputs, **attributes)), tuple(shape))

    def axis(self, x: _Drawn) -> int:
        """Return one of the axes of a value."""
        return self.r.randrange(len(x.shape))


def _unary(g: _Graph) -> _Drawn | None:
    x = g.any()
    return x and g.op(x.shape, g.r.choice(("Neg", "Abs", "Relu", "Neg")), x.name)


def _binary(g: _Graph) -> _Drawn | None:
    """An operator on two values, of which one may broadcast along any axes, or lack the first ones."""
    x = g.any()
    if x is None:
        return None
    less = [1 if g.r.random() < 0.5 else size for size in x.shape][g.r.choice((0, 0, 1)) :]
    other = g.of(less)
    names = (x.name, other.name) if g.r.random() < 0.6 else (other.name, x.name)
    return g.op(x.shape, g.r.choice(("Add", "Add", "Add", "Sub", "Mul", "Max", "Min")), *names)


def _product(g: _Graph) -> _Drawn | None:
    x = g.any(lambda shape: len(shape) >= 2)
    if x is None:
        return None
    columns = g.r.choice(_AXES)
    batch = x.shape[:-2] if g.r.random() < 0.5 else ()
    other = g.of((*batch, x.shape[-1], columns))
    return g.op((*x.shape[:-1], columns), "MatMul", x.name, other.name)


def _gemm(g: _Graph) -> _Drawn | None:
    x = g.any(lambda shape: len(shape) == 2)
    if x is None:
        return None
    columns, turns = g.r.choice(_AXES), [g.r.randrange(2) for _ in range(2)]
    rows, terms = x.shape[::-1] if turns[0] else x.shape
    other = g.of((columns, terms) if turns[1] else (terms, columns))
    given = [x.name, other.name]
    if g.r.random() < 0.7:
        given.append(g.of(g.r.choice(((columns,), (1, columns), (rows, 1), (rows, columns)))).name)
    factors = {name: g.r.choice((1.0, 2.0, -1.0)) for name in ("alpha", "beta")}
    return g.op((rows, columns), "Gemm", *given, transA=turns[0], transB=turns[1], **factors)


def _convolution(g: _Graph) -> _Drawn | None:
    x = g.any(lambda shape: 3 <= len(shape) <= 4)
    if x is None:
        return None
    channels, k = g.r.choice((1, 3, 8)), g.r.choice((1, 3))
    rank = len(x.shape) - 2
    weights = g.of((channels, x.shape[1], *(k,) * rank))
    if g.r.random() < 0.5:
        weights = g.op(weights.shape, "Neg", weights.name)
    bias = [g.of((channels,)).name] if g.r.random() < 0.5 else []
    shape = (x.shape[0], channels, *x.shape[2:])
    return g.op(shape, "Conv", x.name, weights.name, *bias, pads=[k // 2] * 2 * rank)


def _reduced(g: _Graph) -> _Drawn | None:
    x = g.any(lambda shape: len(shape) >= 2)
    if x is None:
        return None
    axis, keeps = g.axis(x), g.r.randrange(2)
    shape = [size for n, size in enumerate(x.shape) if n != axis]
    if keeps:
        shape.insert(axis, 1)
    axes = g.b.held(np.int64([axis - len(x.shape) if g.r.random() < 0.5 else axis]))
    return g.op(shape, g.r.choice(("ReduceSum", "ReduceMax", "ReduceMin")), x.name, axes, keepdims=keeps)


def _moved(g: _Graph) -> _Drawn | None:
    x = g.any(lambda shape: len(shape) >= 1)
    if x is None:
        return None
    rank, axis = len(x.shape), g.axis(x)
    kind = g.r.choice(_MOVES)
    if kind == "Transpose":
        order = g.r.sample(range(rank), rank)
        return g.op([x.shape[n] for n in order], kind, x.name, perm=order)
    if kind == "Flatten":
        shape = (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))
        return g.op(shape, kind, x.name, axis=axis - rank if g.r.random() < 0.5 else axis)
    if kind == "Reshape" and rank > 1:
        shape = (*x.shape[:-2], x.shape[-1], x.shape[-2])
        return g.op(shape, kind, x.name, g.b.held(np.int64([*shape[:-1], -1])))
    if kind == "Concat":
        other = g.of((*x.shape[:axis], g.r.choice((1, x.shape[axis])), *x.shape[axis + 1 :]))
        shape = (*x.shape[:axis], x.shape[axis] + other.shape[axis], *x.shape[axis + 1 :])
        names = (x.name, other.name) if g.r.random() < 0.5 else (other.name, x.name)
        return g.op(shape, kind, *names, axis=axis)
    if kind == "Slice" and x.shape[axis] > 1:
        numbers = (g.b.held(np.int64([number])) for number in (1, 99, axis, 1))
        return g.op((*x.shape[:axis], x.shape[axis] - 1, *x.shape[axis + 1 :]), kind, x.name, *numbers)
    if kind == "Unsqueeze" and rank < 4:
        return g.op((*x.shape[:axis], 1, *x.shape[axis:]), kind, x.name, g.b.held(np.int64([axis])))
    if kind == "Gather":
        rows = [g.r.randrange(-x.shape[axis], x.shape[axis]) for _ in range(3)]
        shape = (*x.shape[:axis], 3, *x.shape[axis + 1 :])
        return g.op(shape, kind, x.name, g.b.held(np.int64(rows)), axis=axis)
    if kind == "Tile":
        counts = [g.r.choice((1, 1, 2)) for _ in x.shape]
        return g.op([n * size for n, size in zip(counts, x.shape)], kind, x.name, g.b.held(np.int64(counts)))
    return None


def _chosen(g: _Graph) -> _Drawn | None:
    x = g.any()
    if x is None:
        return None
    other = g.of([1 if g.r.random() < 0.5 else size for size in x.shape])
    mask = g.op(x.shape, g.r.choice(("Greater", "LessOrEqual", "Equal")), x.name, other.name)
    return g.op(x.shape, "Where", mask.name, *((x.name, other.name) if g.r.random() < 0.5 else (other.name, x.name)))


_KINDS = (
    _unary, _unary, _binary, _binary, _binary, _product, _product, _gemm, _gemm, _convolution, _reduced, _moved, _moved,
    _chosen,
)  # fmt: skip


def _drawn(seed: int) -> Any:
    """A random model of three to nine operators. Every value that no node reads is an output."""
    g = _Graph(seed)
    first = [g.r.choice(_AXES) for _ in range(g.r.choice((1, 2, 2, 3, 4)))]
    g.values.append(_Drawn(g.b.input("x0", *first), tuple(first)))
    nodes = 0
    for _ in range(g.r.randint(3, 9)):
        made = g.r.choice(_KINDS)(g)
        if made is not None:
            nodes += 1
            if np.prod(made.shape) <= _LARGEST:
                g.values.append(made)
    computed = {name for node in g.b.nodes for name in node.output}
    outputs = [x.name for x in g.values if x.name in computed and (x.name not in g.read or g.r.random() < 0.1)]
    return g.b.model(*(outputs or [g.b.nodes[-1].output[0]])) if nodes else None


@pytest.mark.sampled(120)
@pytest.mark.parametrize("seed", range(300))
def test_random_graphs_compute_the_same_numbers(seed: int) -> None:
    """Operands are whole numbers. Sums are exact below 2**24, but for those of Winograd's transforms."""
    model = _drawn(seed)
    if model is None:
        return
    net = cs.onnx.compile(model, threads=1)
    rng = np.random.default_rng(seed)
    arrays = {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in net.inputs.items()}
    expected = runtime.InferenceSession(model.SerializeToString()).run(None, arrays)
    results = net.run(arrays)
    for name, y in zip(net.outputs, expected):
        assert results[name].shape == y.shape
        assert np.abs(results[name] - y).max(initial=0) <= 1e-5 * np.abs(y).max(initial=0), name
