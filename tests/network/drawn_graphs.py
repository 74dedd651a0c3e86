"""Random graphs of ONNX's operators on arrays of one to five dims: `DrawnGraph` has the values, a table the operators.

ONNX's own shape inference says which nodes are legal, and the shapes of their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

__all__ = ["KINDS", "DrawnGraph", "DrawnValue", "moved", "windows"]

LARGEST = 10_000
"""Most elements of a value."""
_LATEST = 7
"""Values among which the next node's operand is chosen."""


class DrawnValue(NamedTuple):
    """A value, and its shape."""

    name: str
    shape: tuple[int, ...]


class DrawnGraph:
    """A graph in the making: its `nodes`, `constants`, `inputs` and `values`, the `types` of those that are not f32,
    and the names that nodes `read`.
    """

    def __init__(self, seed: int) -> None:
        self.r, self.rng = Random(seed), np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.values: list[DrawnValue] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, int] = {}
        self.read: set[str] = set()

    # -- values
    def input(self, shape: Sequence[int]) -> DrawnValue:
        """Add an input."""
        made = DrawnValue(f"x{len(self.inputs)}", tuple(shape))
        self.inputs[made.name] = self.shapes[made.name] = made.shape
        self.values.append(made)
        return made

    def held(self, array: Any) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def whole(self, *numbers: int) -> str:
        """Add a constant of whole numbers."""
        return self.held(np.int64(numbers))

    def weights(self, *shape: int) -> DrawnValue:
        """Add a constant of small whole numbers."""
        return DrawnValue(self.held(self.rng.integers(-1, 2, shape).astype(np.float32)), tuple(shape))

    def any(self, ok: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> DrawnValue | None:
        """Return one of the latest values whose shape is ok."""
        found = [x for x in self.values[-_LATEST:] if ok(x.shape)]
        return self.r.choice(found) if found else None

    def of(self, shape: Sequence[int], held: float = 0.3) -> DrawnValue:
        """Return a value of a shape: with probability `held` a constant, if there is no value a new input."""
        if self.r.random() < held:
            return self.weights(*shape)
        found = [x for x in self.values if x.shape == tuple(shape)]
        return self.r.choice(found) if found and self.r.random() < 0.8 else self.input(shape)

    # -- nodes
    def op(self, operator: str, *given: Any, outputs: int = 1, **attributes: Any) -> DrawnValue | None:
        """Add a node on values and constants, and return its first result; None if it is illegal or has none."""
        names = [x.name if isinstance(x, DrawnValue) else x for x in given]
        made = self.node(operator, names, outputs, **attributes)
        shapes = self._inferred(made)
        if not all(shape is not None and min(shape, default=1) > 0 and prod(shape) <= LARGEST for shape in shapes):
            self.nodes.remove(made)
            return None
        results = [self.result(name, shape) for name, shape in zip(made.output, shapes) if shape is not None]
        return results[0]

    def node(self, operator: str, names: Sequence[str], outputs: int = 1, **attributes: Any) -> Any:
        """Add a node."""
        number = sum(len(node.output) for node in self.nodes)
        made = helper.make_node(operator, names, [f"v{number + n}" for n in range(outputs)], **attributes)
        self.nodes.append(made)
        return made

    def result(self, name: str, shape: Sequence[int]) -> DrawnValue:
        """Note the value that the latest node computes."""
        self.read |= {*self.nodes[-1].input}
        self.shapes[name] = tuple(shape)
        self.values.append(DrawnValue(name, tuple(shape)))
        return self.values[-1]

    def _inferred(self, node: Any) -> list[tuple[int, ...] | None]:
        """Return the shapes of the results of a node; None where it is illegal."""
        names = [x for x in dict.fromkeys(node.input) if x]
        shapes = {x: self.shapes[x] for x in names if x in self.shapes}
        values = [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape) for x, shape in shapes.items()]
        held = [numpy_helper.from_array(self.constants[x], x) for x in names if x in self.constants]
        results = [helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in node.output]
        try:
            found = shape_inference.infer_shapes(
                _model(helper.make_graph([node], "node", values, results, held)), strict_mode=True, data_prop=True
            )  # fmt: skip
        except shape_inference.InferenceError:
            return [None]
        tensors = [x.type.tensor_type for x in found.graph.output]
        return [tuple(d.dim_value for d in t.shape.dim) if t.HasField("shape") else None for t in tensors]

    def model(self, more: Sequence[Any] = ()) -> Any:
        """Return the model: every value that no node reads is an output, and some others; None if there is none.

        `more` are descriptions of further outputs.
        """
        computed = {name for node in self.nodes for name in node.output}
        found = [x for x in self.values if x.name in computed]
        outputs = [x for x in found if x.name not in self.read or self.r.random() < 0.15]
        described = [self._described(x.name, x.shape) for x in outputs]
        used = {name for node in self.nodes for name in node.input}
        return _model(helper.make_graph(
            self.nodes, "drawn",
            [self._described(name, shape) for name, shape in self.inputs.items()],
            [*described, *more],
            [numpy_helper.from_array(x, name) for name, x in self.constants.items() if name in used],
        )) if described or more else None  # fmt: skip

    def _described(self, name: str, shape: Sequence[int]) -> Any:
        return helper.make_tensor_value_info(name, self.types.get(name, TensorProto.FLOAT), shape)

    def draw(self, kinds: Sequence[Callable[[DrawnGraph], Any]], nodes: int) -> None:
        """Draw an input and so many nodes."""
        ranks, sizes = (2, 3, 3, 4, 4, 4, 4, 5), (1, 2, 3, 4, 5, 7, 8, 9, 14)
        more = [self.r.choice(sizes) for _ in range(self.r.choice(ranks) - 2)]
        self.input([self.r.choice((1, 1, 2, 3)), self.r.choice((1, 2, 3, 4, 6, 8, 16)), *more])
        for _ in range(nodes):
            self.r.choice(kinds)(self)


def _model(graph: Any) -> Any:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


# -- convolutions, pools, products ------------------------------------------------------------------------------------


def _image(shape: tuple[int, ...]) -> bool:
    return 3 <= len(shape) <= 5


def windows(r: Random, k: Sequence[int], chances: tuple[float, float, float]) -> dict[str, Any]:
    """Return strides, dilations and pads of kernels of sizes `k`, each given with its chance."""
    found: dict[str, Any] = {}
    if r.random() < chances[0]:
        found["strides"] = [r.choice((1, 1, 2, 3)) for _ in k]
    if r.random() < chances[1]:
        found["dilations"] = [r.choice((1, 1, 2, 3)) for _ in k]
    if r.random() < chances[2]:
        found["pads"] = [n // 2 for n in k] * 2 if r.random() < 0.6 else [r.randrange(max(n, 2)) for n in [*k] * 2]
    return found


def _convolution(g: DrawnGraph) -> DrawnValue | None:
    if (x := g.any(_image)) is None:
        return None
    channels, rank = x.shape[1], len(x.shape) - 2
    groups = g.r.choice([n for n in range(1, channels + 1) if channels % n == 0])
    outer = groups * g.r.choice((1, 1, 2, 3) if groups > 1 else (1, 3, 8, 16, 19))
    k = [g.r.choice((1, 1, 2, 3, 3, 5))] * rank if g.r.random() < 0.5 else [g.r.choice((1, 2, 3)) for _ in range(rank)]
    more = windows(g.r, k, (0.5, 0.4, 0.8))
    if g.r.random() < 0.1:
        more = {"auto_pad": g.r.choice(("SAME_UPPER", "SAME_LOWER", "VALID")), "strides": [g.r.choice((1, 2))] * rank}
    bias = [g.of((outer,), 0.8)] if g.r.random() < 0.5 else []
    return g.op("Conv", x, g.of((outer, channels // groups, *k), 0.8), *bias, group=groups, **more)


def _deconvolution(g: DrawnGraph) -> DrawnValue | None:
    if (x := g.any(_image)) is None:
        return None
    channels, rank = x.shape[1], len(x.shape) - 2
    groups = g.r.choice([n for n in range(1, channels + 1) if channels % n == 0])
    outer, k = g.r.choice((1, 1, 2, 3, 8)), [g.r.choice((1, 2, 3, 4)) for _ in range(rank)]
    more = {**windows(g.r, k, (0.7, 0.3, 0.0)), "group": groups}
    if g.r.random() < 0.6:
        more["pads"] = [min(g.r.choice((0, 1, 2)), n - 1) for n in k * 2]
    if g.r.random() < 0.4:
        limits = zip(more.get("strides", [1] * rank), more.get("dilations", [1] * rank))
        more["output_padding"] = [g.r.randrange(max(pair)) for pair in limits]
    bias = [g.of((outer * groups,), 0.8)] if g.r.random() < 0.5 else []
    return g.op("ConvTranspose", x, g.of((channels, outer, *k), 0.7), *bias, **more)


def _begins_behind(sizes: Sequence[int], k: Sequence[int], more: Mapping[str, Any]) -> bool:
    """Return whether the last window that is rounded up begins behind the source. Such windows are ignored, but for
    ONNX's inference of shapes, which counts them.
    """
    rank = len(k)
    steps, apart = (more.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = more.get("pads", [0] * 2 * rank)
    free = [n + pads[i] + pads[rank + i] - (k[i] - 1) * apart[i] - 1 for i, n in enumerate(sizes)]
    return any(-(-free[i] // steps[i]) * steps[i] >= n + pads[i] for i, n in enumerate(sizes))


def _pool(g: DrawnGraph) -> DrawnValue | None:
    if (x := g.any(_image)) is None:
        return None
    if g.r.random() < 0.2:
        return g.op(g.r.choice(("GlobalMaxPool", "GlobalAveragePool")), x)
    kind = g.r.choice(("MaxPool", "AveragePool"))
    sizes = (1, 2, 2, 3, 4) if kind == "MaxPool" else (1, 2, 4)  # whose means are exact
    k = [min(g.r.choice(sizes), size) for size in x.shape[2:]]
    more = windows(g.r, k, (0.7, 0.0, 0.0))
    if g.r.random() < 0.5:
        more["pads"] = [g.r.randrange(n) for n in k * 2]
    if g.r.random() < 0.3 and not _begins_behind(x.shape[2:], k, more):
        more["ceil_mode"] = 1
    if kind == "AveragePool" and g.r.random() < 0.5:
        more["count_include_pad"] = 1
    return g.op(kind, x, kernel_shape=k, **more)


def _product(g: DrawnGraph) -> DrawnValue | None:
    if (x := g.any(lambda shape: len(shape) >= 2)) is None:
        return None
    columns, batch = g.r.choice((1, 2, 5, 16, 17)), x.shape[:-2] if g.r.random() < 0.5 else ()
    if g.r.random() < 0.1:
        return g.op("MatMul", x, g.of((x.shape[-1],)))
    if g.r.random() < 0.2:
        return g.op("MatMul", g.of((*batch, columns, x.shape[-2])), x)
    return g.op("MatMul", x, g.of((*batch, x.shape[-1], columns)))


def _gemm(g: DrawnGraph) -> DrawnValue | None:
    if (x := g.any(lambda shape: len(shape) == 2)) is None:
        return None
    columns, turns = g.r.choice((1, 2, 5, 16, 17)), [g.r.randrange(2) for _ in range(2)]
    rows, terms = x.shape[::-1] if turns[0] else x.shape
    given = [x, g.of((columns, terms) if turns[1] else (terms, columns))]
    if g.r.random() < 0.7:
        given.append(g.of(g.r.choice(((columns,), (1, columns), (rows, 1), (rows, columns), (), (1,)))))
    factors = {name: g.r.choice((1.0, 2.0, -1.0)) for name in ("alpha", "beta")}
    return g.op("Gemm", *given, transA=turns[0], transB=turns[1], **factors)


# -- element-wise -----------------------------------------------------------------------------------------------------


def _unary(g: DrawnGraph) -> DrawnValue | None:
    x = g.any()
    kind = g.r.choice(("Neg", "Abs", "Relu", "Relu", "Identity", "Sign", "Floor", "Round", "LeakyRelu", "Clip", "Pow"))
    if kind == "LeakyRelu":
        return g.op(kind, x, alpha=0.5)
    if kind == "Clip":
        low, high = (g.held(np.float32(n)) for n in (-2, 6))
        return g.op(kind, x, *g.r.choice(((low, high), (low,), ("", high))))
    return g.op(kind, x, g.held(np.float32([[2]] if g.r.random() < 0.5 else 2))) if kind == "Pow" else g.op(kind, x)


def _several(g: DrawnGraph) -> DrawnValue | None:
    """An operator on values of which all but one may broadcast along any axes, or lack the first ones."""
    x = g.any()
    assert x is not None
    given = [x]
    for _ in range(g.r.choice((1, 1, 1, 1, 2))):
        less = [1 if g.r.random() < 0.4 else size for size in x.shape][g.r.choice((0, 0, 1)) :]
        given.append(x if g.r.random() < 0.15 else g.of(less))
    g.r.shuffle(given)
    kinds = ("Add", "Add", "Add", "Sub", "Mul", "Max", "Min") if len(given) == 2 else ("Sum", "Max", "Min")
    return g.op(g.r.choice(kinds), *given)


def _norm(g: DrawnGraph) -> DrawnValue | None:
    if (x := g.any(lambda shape: len(shape) >= 2)) is None:
        return None
    channels = x.shape[1]
    if g.r.random() < 0.2:
        slopes = [1 if g.r.random() < 0.5 else size for size in x.shape][g.r.choice((0, 1)) :]
        return g.op("PRelu", x, g.of(slopes, 0.9))
    factors = [g.of((channels,), 0.7) for _ in range(3)]
    variance = g.held(g.rng.choice([0.25, 1, 4], channels).astype(np.float32))
    return g.op("BatchNormalization", x, *factors, variance, epsilon=0.0)


def _reduced(g: DrawnGraph) -> DrawnValue | None:
    x = g.any()
    assert x is not None
    rank, kind = len(x.shape), g.r.choice(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare"))
    axes = [n - rank if g.r.random() < 0.5 else n for n in g.r.sample(range(rank), g.r.randint(0, rank))]
    return g.op(kind, x, *([g.whole(*axes)] if axes else []), keepdims=g.r.randrange(2))


# -- moves ------------------------------------------------------------------------------------------------------------


def _concat(g: DrawnGraph, x: DrawnValue, axis: int) -> DrawnValue | None:
    parts = [x]
    for _ in range(g.r.choice((0, 1, 1, 2, 3))):
        size = g.r.choice((1, x.shape[axis]))
        parts.append(x if g.r.random() < 0.15 else g.of((*x.shape[:axis], size, *x.shape[axis + 1 :])))
    g.r.shuffle(parts)
    return g.op("Concat", *parts, axis=axis)


def _slice(g: DrawnGraph, x: DrawnValue, _: int) -> DrawnValue | None:
    rows = []
    for axis in g.r.sample(range(len(x.shape)), g.r.randint(1, len(x.shape))):
        size, step = x.shape[axis], g.r.choice((1, 1, 2, 3, -1, -2))
        first = g.r.choice((0, 0, 1, -size)) if step > 0 else g.r.choice((-1, size, 99))
        last = g.r.choice((size, 99, 2**63 - 1, -1)) if step > 0 else g.r.choice((-(2**63) + 1, -size - 1, 0))
        rows.append((first, last, axis - len(x.shape) if g.r.random() < 0.3 else axis, step))
    return g.op("Slice", x, *(g.whole(*column) for column in zip(*rows)))


def _reshape(g: DrawnGraph, x: DrawnValue, axis: int) -> DrawnValue | None:
    shape = [*x.shape]
    if g.r.random() < 0.5:
        part = g.r.choice([n for n in range(1, shape[axis] + 1) if shape[axis] % n == 0])
        shape[axis : axis + 1] = [part, shape[axis] // part]
    elif len(shape) > 1:
        shape[-2:] = [shape[-1], shape[-2]] if g.r.random() < 0.5 else [shape[-1] * shape[-2]]
    if g.r.random() < 0.3:
        shape[g.r.randrange(len(shape))] = -1
    return g.op("Reshape", x, g.whole(*shape))


def _pad(g: DrawnGraph, x: DrawnValue, _: int) -> DrawnValue | None:
    mode = g.r.choice(("constant", "constant", "reflect", "edge"))
    sizes = [g.r.choice((0, 0, 1, 2, -1 if mode == "constant" else 1)) for _ in [*x.shape] * 2]
    if mode == "reflect":
        sizes = [min(n, size - 1) for n, size in zip(sizes, x.shape * 2)]
    value = [g.held(np.float32(g.r.choice((1, -2, 0))))] if mode == "constant" and g.r.random() < 0.5 else []
    return g.op("Pad", x, g.whole(*sizes), *value, mode=mode)


def _resize(g: DrawnGraph, x: DrawnValue, _: int) -> DrawnValue | None:
    if not _image(x.shape):
        return None
    factors = g.held(np.float32([1, 1, *(g.r.choice((1, 2, 3)) for _ in x.shape[2:])]))
    rounding = g.r.choice(("floor", "ceil"))
    return g.op(
        "Resize", x, "", factors, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode=rounding
    )


def _split(g: DrawnGraph, x: DrawnValue, axis: int) -> DrawnValue | None:
    size = x.shape[axis]
    first = g.r.randrange(1, size) if size > 1 else 0
    return g.op("Split", x, g.whole(first, size - first), outputs=2, axis=axis) if first else None


def _gathered(g: DrawnGraph, x: DrawnValue, axis: int) -> DrawnValue | None:
    size = x.shape[axis]
    if g.r.random() < 0.5:
        rows = g.rng.integers(-size, size, g.r.choice(((), (1,), (3,), (2, 2))))
        return g.op("Gather", x, g.held(np.int64(rows)), axis=axis)
    shape = [*x.shape[:axis], g.r.choice((1, size, size + 1)), *x.shape[axis + 1 :]]
    return g.op("GatherElements", x, g.held(g.rng.integers(-size, size, shape)), axis=axis)


def _repeated(g: DrawnGraph, x: DrawnValue, axis: int) -> DrawnValue | None:
    if g.r.random() < 0.5:
        return g.op("Tile", x, g.whole(*(g.r.choice((1, 1, 2, 3)) for _ in x.shape)))
    return g.op("Expand", x, g.whole(*(g.r.choice((2, 3)) if size == 1 else g.r.choice((1, size)) for size in x.shape)))


def _viewed(g: DrawnGraph, x: DrawnValue, axis: int) -> DrawnValue | None:
    kind, signed = g.r.choice(("Flatten", "Unsqueeze", "Squeeze")), axis - len(x.shape) if g.r.random() < 0.5 else axis
    if kind == "Flatten":
        return g.op(kind, x, axis=signed)
    if kind == "Unsqueeze" and len(x.shape) < 5:
        return g.op(kind, x, g.whole(signed))
    ones = [n for n, size in enumerate(x.shape) if size == 1]
    return g.op("Squeeze", x, g.whole(g.r.choice(ones))) if ones else None


def _transposed(g: DrawnGraph, x: DrawnValue, _: int) -> DrawnValue | None:
    return g.op("Transpose", x, perm=g.r.sample(range(len(x.shape)), len(x.shape)))


def _blocks(g: DrawnGraph, x: DrawnValue, _: int) -> DrawnValue | None:
    if len(x.shape) != 4:
        return None
    if x.shape[1] % 4 == 0 and g.r.random() < 0.5:
        return g.op("DepthToSpace", x, blocksize=2, mode=g.r.choice(("DCR", "CRD")))
    return g.op("SpaceToDepth", x, blocksize=2) if x.shape[2] % 2 == x.shape[3] % 2 == 0 else None


_MOVES = (
    _concat, _concat, _slice, _slice, _reshape, _reshape, _pad, _resize, _split, _gathered, _repeated, _viewed,
    _transposed, _transposed, _blocks,
)  # fmt: skip


def moved(g: DrawnGraph) -> DrawnValue | None:
    """Draw an operator that moves elements."""
    x = g.any(lambda shape: len(shape) >= 1)
    return x and g.r.choice(_MOVES)(g, x, g.r.randrange(len(x.shape)))


def _again(g: DrawnGraph) -> DrawnValue | None:
    """A node that computes what another one does."""
    values = {x.name for x in g.values}
    found = [node for node in g.nodes if len(node.output) == 1 and node.output[0] in values]
    if not found:
        return None
    node = g.r.choice(found)
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.output[:]
    made.output.append(f"v{sum(len(node.output) for node in g.nodes)}")
    g.nodes.append(made)
    return g.result(made.output[0], g.shapes[node.output[0]])


KINDS: tuple[Callable[[DrawnGraph], DrawnValue | None], ...] = (
    *[_convolution] * 6, *[_deconvolution] * 3, *[_pool] * 3, *[_unary] * 3, *[_several] * 6, *[_norm] * 3,
    *[_product] * 2, *[_gemm] * 2, *[_reduced] * 2, *[moved] * 9, _again,
)  # fmt: skip
"""The operators of a graph, by how often they are drawn."""
