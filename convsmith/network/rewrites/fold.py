"""Rewrites of graphs: norms become weights, and steps after a convolution or a product become its post-ops.

Each pass takes a graph and returns one that computes the same values at its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from convsmith.network.graph import Graph, NetworkNode, Work
from convsmith.network.operators.norm import GroupNorm, RowNorm
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.reduce import Reduce
from convsmith.network.placement.memory import alive_bytes
from convsmith.network.placement.placing import placed
from convsmith.network.quantised.byte_tables import with_tables
from convsmith.network.quantised.float_sums import with_float_sums
from convsmith.network.quantised.integers import with_integers
from convsmith.network.rewrites.early_products import with_early_products
from convsmith.network.rewrites.gelu import with_gelu
from convsmith.network.rewrites.group_norms import with_group_norms
from convsmith.network.rewrites.joined_concats import with_joined_concats
from convsmith.network.rewrites.joined_operands import with_joined_operands
from convsmith.network.rewrites.joined_slices import with_joined_slices
from convsmith.network.rewrites.moves import with_fewer_moves
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import PER_TENSOR, BinaryPostOp, Eltwise, PostOp
from convsmith.problem.types import is_integer
from convsmith.runtime.all_cpus import on_all_cpus
from convsmith.runtime.arrays import Array

__all__ = ["folded"]


class _Scaled:
    """Weights multiplied or divided by a constant for each channel, each computed once, on all CPUs by `compute`."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, str], tuple[Array, Array, Array]] = {}
        self._left: dict[int, tuple[Array, Array, Array]] = {}

    def of(self, weights: Array, constant: Array, binary: str, scale: Array) -> Array:
        """Return the array for the product of `weights` and `scale`, which is `constant` or its inverse; its elements
        are undefined until `compute`.
        """
        key = id(weights), id(constant), binary
        if key not in self._known:
            if id(weights) in self._left:
                self.compute()
            made = np.empty(weights.shape, weights.dtype)
            self._known[key] = weights, constant, made
            self._left[id(made)] = weights, scale, made
        return self._known[key][-1]

    def compute(self) -> None:
        """Compute the arrays that `of` has returned."""
        on_all_cpus(lambda x: np.multiply(*x, casting="unsafe"), [*self._left.values()])
        self._left.clear()


def folded(graph: Graph) -> Graph:
    """Return the graph after all passes, without nodes on which no output depends.

    Products run early if fewer bytes are then alive, in the step with most of them or in the sum over all steps.
    """
    early, scaled = with_early_products(graph), _Scaled()
    if early is graph:
        return _folded(graph, scaled)
    return min((_folded(graph, scaled), _folded(early, scaled)), key=_bytes_alive)


def _bytes_alive(graph: Graph) -> tuple[int, int]:
    """Return the bytes that are alive in the step with most of them, and their sum over all steps."""
    where = placed(graph, {})
    alive = alive_bytes(where.lives.values(), len(where.nodes))
    return max(alive, default=0), sum(alive)


def _folded(graph: Graph, scaled: _Scaled) -> Graph:
    for rewrite in (
        with_fewer_moves, with_joined_concats, with_joined_slices, with_group_norms, with_gelu, _with_gates,
        with_float_sums, partial(_with_constants, scaled=scaled), _with_steps, with_integers, with_tables,
        with_joined_operands,
    ):  # fmt: skip
        graph = rewrite(graph.changed(tuple(graph.live_nodes())))
    return graph


# -- gates ------------------------------------------------------------------------------------------------------------

_GATED = {"logistic": ("swish", (1.0,)), "hardsigmoid": ("hardswish", None)}
"""Functions by which a value is multiplied that they are computed from, with the algorithm of both; None stands for the
numbers of the function."""


def _with_gates(graph: Graph) -> Graph:
    """Make one step of a function of a value and the product of both."""
    makers, readers, nodes = graph.makers(), graph.readers(), []
    for node in graph.nodes:
        work, made = node.work, node
        for source, gate in ((0, 1), (1, 0)) if isinstance(work, Pointwise) and work.binary == "mul" else ():
            assert isinstance(work, Pointwise)
            x, y = (node.arguments[f"src_{n}"] for n in (source, gate))
            before = makers.get(y)
            if before is None or len(readers[y]) > 1 or y in graph.outputs or before.arguments.get("src_0") != x:
                continue
            if (step := _gate(before.work)) is not None:
                alone = replace(work, shapes=(work.shapes[source],), binary="", steps=(step, *work.steps))
                made = NetworkNode(alone, {"src_0": x}, node.output, _names(before, node))
                break
        nodes.append(made)
    return graph.changed(nodes)


def _gate(work: Work) -> Eltwise | None:
    """Return the step that a function becomes with the product of its source; None if there is none."""
    if not isinstance(work, Pointwise) or work.binary or len(work.steps) != 1 or work.steps[0].alg not in _GATED:
        return None
    (step,) = work.steps
    alg, numbers = _GATED[step.alg]
    return Eltwise(alg, *((step.alpha, step.beta) if numbers is None else numbers))


# -- norms and biases -------------------------------------------------------------------------------------------------


def _with_constants(graph: Graph, scaled: _Scaled) -> Graph:
    """Fold sums and products with a constant for each channel into the weights and the bias of the node before them.

    `scaled` has the products that are known already.
    """
    constants, made, readers = dict(graph.constants), dict[str, NetworkNode](), graph.readers()
    for node in graph.nodes:
        source = node.arguments.get("src_0", "")
        before, other = made.get(source), constants.get(node.arguments.get("src_1", ""))
        joined = None
        is_inner = source in made and len(readers[source]) == 1 and source not in graph.outputs
        if is_inner and before is not None and other is not None and isinstance(node.work, Pointwise):
            if node.work.shapes[0] == graph.values[node.output].shape:
                joined = _with_constant(before, node, other, constants, scaled)
        if joined is not None:
            del made[source]
        made[node.output] = joined or node
    scaled.compute()
    return graph.changed(tuple(made.values()), constants)


def _with_constant(
    before: NetworkNode, node: NetworkNode, other: Array, constants: dict[str, Array],
    scaled: _Scaled,
) -> NetworkNode | None:  # fmt: skip
    """Return one node for both, whose new weights and bias are added to `constants`; None if they do not fit."""
    work, step = before.work, node.work
    assert isinstance(step, Pointwise)
    rank = len(step.shapes[0])
    whole = (1,) * (rank - len(step.shapes[1])) + step.shapes[1]
    bias = constants.get(before.arguments.get("bia", ""))
    weights = constants.get(before.arguments.get("wei", ""))
    if not isinstance(work, Conv | Matmul) or work.post_ops or is_integer(work.dt[1]):
        return None
    if weights is None or step.binary not in ("mul", "div", "add", "sub"):
        return None
    if ("bia" in before.arguments) != (bias is not None):
        return None
    if isinstance(work, Conv) and whole in ((1,) * rank, (1, work.oc, *(1,) * (rank - 2))):
        channels: tuple[int, ...] = (work.oc,)
        changed: Conv | Matmul = replace(work, dir="FWD_B", bia_dt=work.dt[2], post_ops=step.steps)
        along = (work.g, work.oc // work.g, *(1,) * (weights.ndim - 2)) if work.has_groups else (work.oc,)
        wide = (*along, *(1,) * (weights.ndim - len(along)))
    elif isinstance(work, Matmul) and whole in ((1,) * rank, (*(1,) * (rank - 1), work.wei[-1])):
        channels = (work.wei[-1],)
        changed = replace(work, bia_mask=1 << work.rank - 1, bia_dt=work.dt[2], post_ops=step.steps)
        wide = channels
    else:
        return None
    number: Any = np.broadcast_to(other.reshape(-1), channels)
    old: Any = np.zeros(channels, weights.dtype) if bias is None else bias.reshape(-1)
    names = {"bia": f"{node.output}.bias"}
    if step.binary in ("mul", "div"):
        scale = number if step.binary == "mul" else 1 / number
        names["wei"] = f"{node.output}.weights"
        constants[names["wei"]] = scaled.of(weights, other, step.binary, scale.reshape(wide))
        constants[names["bia"]] = (old * scale).astype(weights.dtype)
    else:
        constants[names["bia"]] = (old + number if step.binary == "add" else old - number).astype(weights.dtype)
    return NetworkNode(changed, {**before.arguments, **names}, node.output, _names(before, node))


# -- post-ops ---------------------------------------------------------------------------------------------------------


def _with_steps(graph: Graph) -> Graph:
    """Append element-wise steps, and the addition of another value, to the node that computes their operand."""
    made, readers = dict[str, NetworkNode](), graph.readers()
    for node in graph.nodes:
        joined, source = None, ""
        if isinstance(node.work, Pointwise):
            sources = [node.arguments[f"src_{n}"] for n in range(len(node.work.shapes))]
            inner = [s for s in made if s in sources and len(readers[s]) == 1 and s not in graph.outputs]
            for source in reversed(inner):  # the latest first: it can wait for no other value than its operands
                joined = _joined(made[source], node, source, sources, graph)
                if joined is not None:
                    del made[source]
                    break
        made[node.output] = joined or node
    return graph.changed(tuple(made.values()))


def _joined(
    before: NetworkNode, node: NetworkNode, source: str, sources: Sequence[str], graph: Graph
) -> NetworkNode | None:
    """Return one node for both, if the second can follow the first as a step; None otherwise."""
    step, work = node.work, before.work
    assert isinstance(step, Pointwise)
    others = [n for n, s in enumerate(sources) if s != source]
    shape = graph.values[node.output].shape
    if len(others) != len(sources) - 1 or step.shapes[sources.index(source)] != shape:
        return None
    names, arguments = _names(before, node), dict(before.arguments)
    if isinstance(work, Pointwise | Reduce | RowNorm | GroupNorm) and not others:
        made: Work = replace(work, steps=(*work.steps, *step.steps))
        return NetworkNode(made, arguments, node.output, names)
    if not isinstance(work, Conv | Matmul) or is_integer(work.dt[2]):
        return None
    post_ops: list[PostOp] = [*work.post_ops]
    if others:
        (other,) = others
        mask = _mask(work, step.shapes[other], shape)
        legal = ("add",) if mask == PER_TENSOR else ("add", "mul")
        if mask is None or step.binary not in legal or (mask == PER_TENSOR and sources[other] in graph.constants):
            return None
        arguments[f"post_op_{len(post_ops)}"] = sources[other]
        post_ops.append(BinaryPostOp(step.binary, step.type, mask))
    return NetworkNode(replace(work, post_ops=(*post_ops, *step.steps)), arguments, node.output, names)


def _mask(work: Conv | Matmul, operand: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Return the mask of a step whose operand broadcasts to `shape`: one number, one for each channel, or one for each
    element; None if it has another form.
    """
    if operand == shape:
        return PER_TENSOR
    if all(size == 1 for size in operand):
        return 0
    rank, channel = len(shape), 1 if isinstance(work, Conv) else len(shape) - 1
    if shape[channel] != work.product_shape[work.channels]:  # the result of a product with a vector lacks its column
        return None
    along = tuple(size if n == channel else 1 for n, size in enumerate(shape))
    return 1 << work.channels if (1,) * (rank - len(operand)) + operand == along else None


def _names(before: NetworkNode, node: NetworkNode) -> tuple[str, ...]:
    """Return the names of the nodes of the model that two nodes compute."""
    return tuple(dict.fromkeys((*before.names, *node.names)))
