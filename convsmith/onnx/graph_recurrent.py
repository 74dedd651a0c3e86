"""The recurrent layers of ONNX as nodes of a graph: a product with all inputs, then one kernel for all steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.network.operators.choice import ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.recurrence import CELLS, GruCell, LstmCell, Recurrence
from convsmith.network.operators.slice import Slice
from convsmith.onnx.graph_node import GraphNode
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import Eltwise

__all__ = ["RECURRENT"]

_ACTIVATIONS: dict[str, tuple[str, float, float]] = {
    "relu": ("relu", 0, 0), "tanh": ("tanh", 0, 0), "sigmoid": ("logistic", 0, 0), "leakyrelu": ("relu", 0.01, 0),
    "hardsigmoid": ("hardsigmoid", 0.2, 0.5), "elu": ("elu", 1, 0), "affine": ("linear", 1, 0),
    "softplus": ("soft_relu", 1, 0),
}  # fmt: skip
"""Activations by ONNX's names in lower case: the algorithm and its default numbers."""
_WITH_NUMBERS = {"leakyrelu": 1, "hardsigmoid": 2, "elu": 1, "affine": 2}
"""Numbers that a model gives for an activation."""
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


def _activations(node: GraphNode, count: int) -> list[tuple[tuple[Eltwise, ...], ...]]:
    """Return the activations of each direction."""
    default = _DEFAULTS[node.operator]
    names = node.attribute("activations", None) or default * count
    names = [x.decode() if isinstance(x, bytes) else str(x) for x in names]
    numbers = [list(node.attribute(name, None) or ()) for name in ("activation_alpha", "activation_beta")]
    clip = node.attribute("clip", 0.0)
    before = (Eltwise("clip", -clip, clip),) if clip else ()
    found = []
    for name in names:
        own = name.lower()
        if own not in _ACTIVATIONS:
            raise UnsupportedError(f"activation {name}; available are {', '.join(_ACTIVATIONS)}", code="activation")
        alg, *given = _ACTIVATIONS[own]
        for n in range(_WITH_NUMBERS.get(own, 0)):
            given[n] = float(numbers[n].pop(0)) if numbers[n] else given[n]
        found.append((*before, Eltwise(alg, *given)))
    if node.operator == "LSTM":  # the cell is not clipped
        found = [x[-1:] if n % len(default) == 2 else x for n, x in enumerate(found)]
    if len(found) != len(default) * count:
        legal = len(default) * count
        raise UsageError(f"it has {len(found)} activations; legal are {legal}", code="attribute")
    return [tuple(found[n * len(default) : (n + 1) * len(default)]) for n in range(count)]


def _recurrent(node: GraphNode) -> None:
    """Add the layers of each direction, and join their results."""
    kind, weights, inner = CELLS[node.operator], node.constant(1), node.constant(2)
    way = node.attribute("direction", "forward")
    assert weights is not None and inner is not None
    if way not in ("forward", "reverse", "bidirectional") or len(node.shape()) != 3:
        raise UsageError(
            f"direction {way!r} of {node.shape()}; legal are forward, reverse and bidirectional", code="mode"
        )
    if node.attribute("input_forget", 0):
        raise UnsupportedError("input_forget=1; available are gates apart", code="attribute")
    hidden, t = inner.shape[2], node.type()
    is_batch_first = bool(node.attribute("layout", 0))
    x, shape = node.inputs[0], node.shape()
    if is_batch_first:
        shape = (shape[1], shape[0], shape[2])
        x = node.between(Transpose(t, node.shape(), (1, 0, 2)), {"src": x})
    directions = 1 + (way == "bidirectional")
    acts, rows = _activations(node, directions), []
    for n in range(directions):
        backwards = way == "reverse" or n == 1
        work = _layer(node, kind, n, t, shape, hidden, acts[n], backwards)
        rows.append((work, _added(node, work, x, n, is_batch_first)))
    _outputs(node, rows, is_batch_first)


def _layer(
    node: GraphNode, kind: type[Recurrence], n: int, t: str, shape: Sequence[int], hidden: int,
    acts: tuple[tuple[Eltwise, ...], ...], backwards: bool,
) -> Recurrence:  # fmt: skip
    """Return the operator of direction `n`."""
    steps, batch, _ = shape
    lengths: Any = node.reader.constants.get(node.inputs[4]) if node.has(4) else None
    has_lengths = node.has(4) and (lengths is None or bool((lengths < steps).any()))
    more: dict[str, bool] = {}
    if kind is GruCell:
        more["resets_after"] = bool(node.attribute("linear_before_reset", 0))
    if kind is LstmCell:
        more["peeks"] = node.has(7)
    return kind(t, steps, batch, hidden, acts, backwards, has_lengths, **more)


def _added(node: GraphNode, work: Recurrence, x: str, n: int, is_batch_first: bool) -> str:
    """Add the product with all inputs of direction `n`, and its steps; return the name of their rows."""
    weights, inner = node.constant(1), node.constant(2)
    bias: Any = node.constant(3)
    assert weights is not None and inner is not None
    h, wide, steps, batch = work.hidden, work.gates * work.hidden, work.steps, work.batch
    factors = node.held(np.ascontiguousarray(weights[n].T))
    sizes = (steps * batch, weights.shape[2])
    sums = node.between(Matmul(src=sizes, wei=(sizes[1], wide), dt=(work.type,) * 3), {"src": x, "wei": factors})
    arguments = {"wei": node.held(np.ascontiguousarray(inner[n].T))}
    whole: Any = np.zeros(wide, weights.dtype)
    if bias is not None:
        outer, own = bias[n, :wide], bias[n, wide:].copy()
        if isinstance(work, GruCell) and work.resets_after:
            arguments["bias"], own[2 * h :] = node.held(own[2 * h :].copy()), 0
        whole = outer + own
    elif isinstance(work, GruCell) and work.resets_after:
        arguments["bias"] = node.held(np.zeros(h, weights.dtype))
    if whole.any():
        pair = {"src_0": sums, "src_1": node.held(whole.reshape(1, wide))}
        sums = node.between(Pointwise(work.type, ((sizes[0], wide), (1, wide)), "add"), pair)
    if isinstance(work, LstmCell) and work.peeks:
        arguments["peepholes"] = node.moved(7, lambda p: np.ascontiguousarray(p[n]))
    if work.has_lengths:
        arguments |= {"lengths": node.inputs[4], "times": node.held(np.arange(steps, dtype=np.int32))}
    arguments |= {"src": sums, "first": _first(node, work, n, is_batch_first)}
    return node.between(work, arguments)


def _first(node: GraphNode, work: Recurrence, n: int, is_batch_first: bool) -> str:
    """Return the first state of direction `n`, with the cell behind it."""
    h, batch, t, parts = work.hidden, work.batch, work.type, []
    for number in range(5, 5 + work.states):
        if not node.has(number):
            parts.append(node.held(np.zeros((batch, h), node.reader.numpy_of(t))))
            continue
        shape = node.shape(number)
        dim = 1 if is_batch_first else 0
        starts = tuple(n if k == dim else 0 for k in range(3))
        sizes = tuple(1 if k == dim else size for k, size in enumerate(shape))
        made = node.between(Slice(t, shape, starts, (1, 1, 1), sizes), {"src": node.inputs[number]}, (batch, h))
        parts.append(made)
    if len(parts) == 1:
        return parts[0]
    joined = Concat.of(t, ((batch, h),) * len(parts), 1)
    return node.between(joined, {f"src_{k}": name for k, name in enumerate(parts)})


def _outputs(node: GraphNode, rows: Sequence[tuple[Recurrence, str]], is_batch_first: bool) -> None:
    """Add the outputs: the states of all steps, and the last states and cells."""
    work = rows[0][0]
    t, steps, batch, h = work.type, work.steps, work.batch, work.hidden
    wanted = [n for n in range(1 + work.states) if n < len(node.outputs) and node.outputs[n]]
    for n in wanted:
        parts = [_every_state(node, *row) if n == 0 else _last(node, *row, n - 1) for row in rows]
        own: tuple[int, ...] = (steps, 1, batch, h) if n == 0 else (1, batch, h)
        name, shape = parts[0], own
        if len(parts) > 1:
            axis = 1 if n == 0 else 0
            whole = Concat.of(t, (own,) * len(parts), axis)
            name = node.between(whole, {f"src_{k}": part for k, part in enumerate(parts)})
            shape = whole.result.shape
        if not is_batch_first:
            node.add(Reshape(t, prod(shape)), {"src": name}, shape, n)
        else:
            node.add(Transpose(t, shape, (2, 0, 1, 3) if n == 0 else (1, 0, 2)), {"src": name}, n=n)


def _every_state(node: GraphNode, work: Recurrence, rows: str) -> str:
    """Return the states after the steps, in the order of the inputs; those after the end of a sample are 0."""
    steps, batch, h, t = work.steps, work.batch, work.hidden, work.type
    starts, way = ((steps, 0, 0, 0), (-1, 1, 1, 1)) if work.is_backwards else ((1, 0, 0, 0), (1, 1, 1, 1))
    part = Slice(t, work.result.shape, starts, way, (steps, batch, 1, h))
    shape = (steps, 1, batch, h)
    made = node.between(part, {"src": rows}, shape)
    if work.has_lengths:
        times = node.held(np.arange(steps, dtype=np.int32).reshape(-1, 1, 1))
        shapes = ((steps, 1, 1), (1, batch, 1))
        mask = node.between(Compare("s32", shapes, "lt"), {"src_0": times, "src_1": node.inputs[4]})
        zero = node.held(np.zeros((1, 1, 1), node.reader.numpy_of(t)))
        masks = {"mask": mask, "yes": made, "no": zero}
        work_of_all = ChooseByMask(t, ((steps, batch, 1), (steps, batch, h), (1, 1, 1)))
        made = node.between(work_of_all, masks, shape)
    return made


def _last(node: GraphNode, work: Recurrence, rows: str, which: int) -> str:
    """Return the state after the last step, or the cell if `which` is 1."""
    h = work.hidden
    part = Slice(work.type, work.result.shape, (work.steps, 0, which, 0), (1, 1, 1, 1), (1, work.batch, 1, h))
    return node.between(part, {"src": rows}, (1, work.batch, h))


RECURRENT: dict[str, Callable[[GraphNode], None]] = dict.fromkeys(CELLS, _recurrent)
"""By ONNX's name, the function that adds the nodes of an operator."""
