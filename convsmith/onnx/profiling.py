"""The profile of an ONNX model: each convolution and integer product beside ONNX Runtime's own kernel of that node.

One run of the model by ONNX Runtime gives every node its real inputs. Both kernels have their constants packed, read
and write memory that is bound before, and have the layout that they prefer within a model: convolutions of this project
channels last by default, those of ONNX Runtime what its optimiser chooses. Their samples alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.errors import ConvsmithError, UsageError
from convsmith.diag.expect import integer
from convsmith.frontend.numpy_api import compile
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.measure.calls import bound_call
from convsmith.measure.profile import LeftNode, ModelProfile, ProfiledNode, heading
from convsmith.measure.timing import ROUNDS, Sampler, alternate, spread
from convsmith.onnx.calls import NODE_CALLS, KernelCall
from convsmith.onnx.host import HOST, OnnxHost
from convsmith.onnx.models import ModelNode, OnnxModel, read_model
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, aligned_copy, as_array
from convsmith.runtime.threads import default_threads

__all__ = ["NodeProfiler", "profile"]

LAYOUT = "axb"
"""Layout of source and result of a convolution, unless another one is asked for: channels last."""
_SEED = 1
_CONVOLUTION = "Conv"
"""Part of the names of operators that are convolutions."""
_ERRORS = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}
"""Greatest difference of results in floats, as a part of the greatest result."""
_STEPS = 1
"""Greatest difference of results that are rounded to bytes."""


def profile(
    model: Any, inputs: Mapping[str, Array] | None = None, *, threads: int | None = None, rounds: int = ROUNDS,
    target: str | None = None, layout: str = LAYOUT,
) -> ModelProfile:  # fmt: skip
    """Return the times of a model's convolutions and integer products beside those of ONNX Runtime's kernels.

    `model` is a path or an `onnx.ModelProto`. `inputs` are the model's, by name; those that are not given have random
    values, and their open dims the size 1. Print the result for a table with a summary. `threads` are those of both
    sides; `layout` is that of our convolutions. UsageError for a damaged file or unsuitable inputs, UnsupportedError
    without the packages `onnx` and `onnxruntime`.
    """
    profiler = NodeProfiler(model, inputs, threads=threads, rounds=rounds, target=target, layout=layout)
    for _ in profiler.rows():
        pass
    return profiler.result


class NodeProfiler:
    """Profiles the nodes of a model one after the other; `rows` yields each as it is measured."""

    def __init__(
        self, model: Any, inputs: Mapping[str, Array] | None = None, *, threads: int | None = None,
        rounds: int = ROUNDS, target: str | None = None, layout: str = LAYOUT,
    ) -> None:  # fmt: skip
        given = {name: as_array(name, x) for name, x in (inputs or {}).items()}
        self.model = read_model(model, {name: x.shape for name, x in given.items()}, with_data=True)
        self.threads = default_threads() if threads is None else integer("threads", threads)
        self.rounds, self.target, self.layout = integer("rounds", rounds), target, layout
        self.host = OnnxHost(self.model, _complete(self.model, given), self.threads)
        self._left = list(_unserved(self.model))
        self._nodes: list[ProfiledNode] = []
        self._groups = self._grouped()

    @property
    def problems(self) -> list[Problem]:
        """The problems of the rows, in their order."""
        return [_in_layout(call.problem, self.layout) for _, call in self._groups]

    @property
    def host_name(self) -> str:
        """The framework that runs the model."""
        return HOST

    @property
    def heading(self) -> str:
        """One line above the rows."""
        return heading(self.model.name, HOST, self.threads)

    @property
    def result(self) -> ModelProfile:
        """The profile of the nodes that are measured so far."""
        whole = Sampler(self.host.whole())
        seconds = spread([whole() for _ in range(self.rounds)])
        shown = {left.operator for left in self._left}
        others = {name: count for name, count in self.model.others.items() if name not in shown}
        nodes, left = tuple(self._nodes), tuple(self._left)
        return ModelProfile(self.model.name, HOST, self.threads, seconds, nodes, left, others)

    def rows(self) -> Iterator[ProfiledNode]:
        """Yield the rows as they are measured."""
        for nodes, call in self._groups:
            try:
                self._nodes.append(self._measured(nodes, call))
            except ConvsmithError as error:
                self._left += [LeftNode(node.name, node.title, str(error)) for node in nodes]
                continue
            yield self._nodes[-1]

    def _grouped(self) -> list[tuple[list[ModelNode], KernelCall]]:
        """Return the nodes with the call of the first one; nodes of one problem are one group."""
        groups: dict[tuple[str, Problem, bool], tuple[list[ModelNode], KernelCall]] = {}
        for node in self.model.nodes:
            try:
                call = node.call(self.host.values)
            except ConvsmithError as error:
                self._left.append(LeftNode(node.name, node.title, str(error)))
                continue
            key = node.title, call.problem, node.weights in self.model.constants
            groups.setdefault(key, ([], call))[0].append(node)
        return list(groups.values())

    def _measured(self, nodes: list[ModelNode], call: KernelCall) -> ProfiledNode:
        node = nodes[0]
        problem = _in_layout(call.problem, self.layout)
        kernel = compile(problem, threads=self.threads, target=self.target)
        inputs = {
            t.name: aligned_copy(to_layout(np.ascontiguousarray(call.arrays[t.name]), t.layout))
            for t in problem.inputs if t.name in call.arrays
        }  # fmt: skip
        if node.weights in self.model.constants:
            ours, results = bound_call(problem, kernel, inputs)
        else:
            results = kernel.run(**inputs)
            ours = kernel.bind_each(**inputs, **results)
        ours()
        found = call.finish(from_layout(results["dst"], problem.tensor("dst").layout))
        error, agrees = _difference(found, self.host.values[node.output])
        theirs = self.host.node_call(node)
        samples = alternate({"ours": Sampler(ours), HOST: Sampler(theirs)}, self.rounds)
        pairs = zip(samples[HOST], samples["ours"], strict=True)
        return ProfiledNode(
            tuple(n.name for n in nodes), node.title, problem, str(kernel.config), spread(samples["ours"]),
            spread(samples[HOST]), spread([a / b for a, b in pairs]), error, agrees,
        )  # fmt: skip


def _complete(model: OnnxModel, given: Mapping[str, Array]) -> dict[str, Array]:
    """Return all inputs of ``model``: the ``given`` ones, checked, and random ones for the others."""
    legal = model.free_inputs
    for name, x in given.items():
        if name not in legal:
            raise UsageError(f"inputs: the model has no {name!r}; legal are {', '.join(legal)}", code="inputs")
        dtype, shape = legal[name]
        if x.dtype != dtype or x.shape != shape:
            raise UsageError(f"inputs: {name} is {x.dtype} {x.shape}; legal is {dtype} {shape}", code="inputs")
    rng = np.random.default_rng(_SEED)
    return {name: given[name] if name in given else _random(rng, name, *legal[name]) for name in legal}


def _random(rng: np.random.Generator, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return values for an input: normal numbers, bytes of the whole range, and 0 for indices and flags."""
    if dtype.kind in "iu" and dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    if dtype.name not in _ERRORS:
        raise UsageError(f"inputs: {name} is of type {dtype}: legal is to give it", code="inputs")
    return rng.standard_normal(shape).astype(dtype)


def _unserved(model: OnnxModel) -> Iterator[LeftNode]:
    """Yield convolutions of other names and domains, and those in the bodies of loops and branches."""
    for operator, count in model.others.items():
        if _CONVOLUTION in operator:
            why = "it is in the body of a loop or a branch" if operator in NODE_CALLS else "no kernel serves it"
            yield LeftNode(f"{count} node{'s' * (count > 1)}", operator, why)


def _difference(found: Array, wanted: Array) -> tuple[float, bool]:
    """Return the greatest difference as a part of the greatest result, and whether rounding explains it."""
    if found.shape != wanted.shape:
        return float("inf"), False
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    distance, most = float(np.abs(a - b).max(initial=0)), float(np.abs(b).max(initial=0))
    if wanted.dtype.kind in "iu":
        return distance / (most or 1.0), distance <= (_STEPS if wanted.dtype.itemsize == 1 else 0)
    return distance / (most or 1.0), distance <= _ERRORS[wanted.dtype.name] * most


def _in_layout(problem: Problem, layout: str) -> Problem:
    """Return a convolution with source and result in ``layout``; a product as it is."""
    return replace(problem, stag=layout, dtag=layout) if isinstance(problem, Conv) else problem
