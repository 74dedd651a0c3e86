"""The outputs of a graph by the references of its nodes, one after the other, in numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from convsmith.diag.record import record
from convsmith.network.graph import Graph, NetworkNode
from convsmith.problem.problem import Problem
from convsmith.problem.reference import reference, steps_type
from convsmith.runtime.arrays import Array, numpy_dtype

__all__ = ["OutputVerdict", "compared", "reference_outputs", "tolerance"]

_TOLERANCE = 1e-5
"""Largest error of an element, as a part of the largest element of an output."""
_SMALL = {"f16": 2**-8, "bf16": 2**-5}
"""Largest errors of models that store values in small types: four distances of adjacent numbers from 1."""


@record(frozen=True)
class OutputVerdict:
    """The largest error of an output as a part of its largest element, and the largest one that is right."""

    name: str
    error: float
    most: float = _TOLERANCE

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return self.error <= self.most


def tolerance(types: Iterable[str]) -> float:
    """Return the largest error of an element that is right, as a part of the largest element of an output, of a network
    that stores values in some types.
    """
    return max([_TOLERANCE, *(_SMALL[x] for x in types if x in _SMALL)])


def compared(
    expected: Mapping[str, Array], found: Mapping[str, Array], small: Iterable[str] = ()
) -> tuple[OutputVerdict, ...]:
    """Return a verdict on each output that is expected of a model that stores values in the types ``small``."""
    bound, verdicts = tolerance(small), []
    for name, y in expected.items():
        wide, most = y.astype(np.float64), float(np.abs(y.astype(np.float64)).max(initial=0))
        away = float(np.abs(found[name].astype(np.float64) - wide).max(initial=0))
        verdicts.append(OutputVerdict(name, away / most if most else away, bound))
    return tuple(verdicts)


def reference_outputs(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of `graph` for `inputs`, by name. Sums of floats are computed in f64, sums of bytes exactly,
    and the steps after them in f32, as kernels do; values have their own types, and are rounded to those in which the
    model stores them.
    """
    own = {name: numpy_dtype(value.type) for name, value in graph.values.items()}
    stored = own | {name: numpy_dtype(small) for name, small in graph.small.items()}
    values: dict[str, Array] = {**graph.constants, **{name: x.astype(own[name]) for name, x in inputs.items()}}
    for node in graph.live_nodes():
        name, made = node.output, _result(node, values)
        values[name] = made.astype(stored[name]).astype(own[name]).reshape(graph.values[name].shape)
    return {name: values[name].astype(stored[name]) for name in graph.outputs}


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
