"""The outputs of a graph by the references of its nodes, one after the other, in numpy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convsmith.diag.record import record
from convsmith.network.graph import Graph, NetworkNode
from convsmith.problem.problem import Problem
from convsmith.problem.reference import reference, steps_type
from convsmith.runtime.arrays import Array, numpy_dtype

__all__ = ["OutputVerdict", "compared", "reference_outputs"]

_TOLERANCE = 1e-5
"""Largest error of an element, as a part of the largest element of an output."""


@record(frozen=True)
class OutputVerdict:
    """The largest error of an output as a part of its largest element, and whether it is small enough."""

    name: str
    error: float

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return self.error <= _TOLERANCE


def compared(expected: Mapping[str, Array], found: Mapping[str, Array]) -> tuple[OutputVerdict, ...]:
    """Return a verdict on each output that is expected."""
    verdicts = []
    for name, y in expected.items():
        wide, most = y.astype(np.float64), float(np.abs(y.astype(np.float64)).max(initial=0))
        away = float(np.abs(found[name].astype(np.float64) - wide).max(initial=0))
        verdicts.append(OutputVerdict(name, away / most if most else away))
    return tuple(verdicts)


def reference_outputs(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of `graph` for `inputs`, by name. Sums of floats are computed in f64, sums of bytes exactly,
    and the steps after them in f32, as kernels do; values have their own types.
    """
    values: dict[str, Array] = {**graph.constants, **inputs}
    for node in graph.live_nodes():
        made, value = _result(node, values), graph.values[node.output]
        values[node.output] = made.astype(numpy_dtype(value.type)).reshape(value.shape)
    return {name: values[name] for name in graph.outputs}


def _result(node: NetworkNode, values: Mapping[str, Array]) -> Array:
    """Return what a node computes."""
    tensors = {t.name: t for t in node.work.tensors}
    arrays = {array: values[name].reshape(tensors[array].shape) for array, name in node.arguments.items()}
    if isinstance(node.work, Problem):
        dtype = steps_type(node.work) if node.work.acc == "s32" else np.float64
        (found,) = reference(node.work, arrays, dtype).values()
        return found
    made: Array = node.work.reference(*(arrays[t.name] for t in node.work.inputs))
    return made
