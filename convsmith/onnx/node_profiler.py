"""Profiles the nodes of a model one after the other, whatever framework runs the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from convsmith.diag.errors import ConvsmithError
from convsmith.diag.record import record
from convsmith.frontend.numpy_api import compile
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.measure.calls import bound_call
from convsmith.measure.profile import LeftNode, ModelProfile, ProfiledNode, heading
from convsmith.measure.timing import Sampler, alternate, spread
from convsmith.onnx.calls import KernelCall
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, aligned_copy
from convsmith.runtime.threads import available_cpus

__all__ = ["LAYOUT", "HostNode", "NodeProfiler"]

LAYOUT = "axb"
"""Default layout of source and result of a convolution: channels last."""
_ERRORS = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}
"""Greatest difference of results in floats that rounding explains, relative to the greatest result."""
_STEPS = 1
"""Greatest difference of results in bytes that rounding explains."""


@record(frozen=True)
class HostNode:
    """A node of a model: its kernel call, the result that the host computed, and the host's kernel.

    ``host_call`` returns a call to time. Weights that the model holds are packed in advance.
    """

    name: str
    title: str
    call: KernelCall
    has_constant_weights: bool
    result: Array
    host_call: Callable[[], Callable[[], object]]


class NodeProfiler:
    """Profiles the ``nodes`` of ``model``, whose results ``host`` computed; `rows` yields rows as they are measured.

    ``whole`` is a call of the whole model; the profile lists ``left`` and ``others`` as other nodes.
    """

    def __init__(
        self, model: str, host: str, nodes: Sequence[HostNode], whole: Callable[[], object], *, threads: int,
        rounds: int, target: str | None, layout: str, left: Sequence[LeftNode] = (),
        others: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.host_name, self._whole = model, host, whole
        self.threads, self.rounds, self.target, self.layout = threads, rounds, target, layout
        self._left, self._others = list(left), dict(others or {})
        self._nodes: list[ProfiledNode] = []
        self._groups: dict[tuple[str, Problem, bool], list[HostNode]] = {}
        for node in nodes:
            key = node.title, _in_layout(node.call.problem, layout), node.has_constant_weights
            self._groups.setdefault(key, []).append(node)

    @property
    def problems(self) -> list[Problem]:
        """The problems of the rows, in their order."""
        return [problem for _, problem, _ in self._groups]

    @property
    def node_problems(self) -> dict[str, Problem]:
        """The problem of each node, by the node's name."""
        return {node.name: problem for (_, problem, _), nodes in self._groups.items() for node in nodes}

    @property
    def heading(self) -> str:
        """One line above the rows."""
        return heading(self.model, self.host_name, self.threads)

    @property
    def result(self) -> ModelProfile:
        """The profile of the nodes measured so far."""
        whole = Sampler(self._whole)
        seconds = spread([whole() for _ in range(self.rounds)])
        nodes, left = tuple(self._nodes), tuple(self._left)
        return ModelProfile(self.model, self.host_name, self.threads, seconds, nodes, left, self._others)

    def rows(self) -> Iterator[ProfiledNode]:
        """Yield the rows as they are measured."""
        for (_, problem, _), nodes in self._groups.items():
            try:
                self._nodes.append(self._measured(problem, nodes))
            except ConvsmithError as error:
                self._left += [LeftNode(node.name, node.title, str(error)) for node in nodes]
                continue
            yield self._nodes[-1]

    def _measured(self, problem: Problem, nodes: Sequence[HostNode]) -> ProfiledNode:
        node = nodes[0]
        kernel = compile(problem, threads=self.threads, target=self.target)
        arrays = node.call.arrays
        inputs = {
            t.name: aligned_copy(to_layout(np.ascontiguousarray(arrays[t.name]), t.layout))
            for t in problem.inputs if t.name in arrays
        }  # fmt: skip
        if node.has_constant_weights:
            ours, results = bound_call(problem, kernel, inputs)
        else:
            results = kernel.run(**inputs)
            ours = kernel.bind_each(**inputs, **results)
        ours()
        found = node.call.finish(from_layout(results["dst"], problem.tensor("dst").layout))
        error, agrees = _difference(found, node.result)
        sampler = Sampler(ours)
        samples = alternate({"ours": sampler, "host": Sampler(node.host_call())}, self.rounds)
        pairs = zip(samples["host"], samples["ours"], strict=True)
        return ProfiledNode(
            tuple(n.name for n in nodes), node.title, problem, str(kernel.config), spread(samples["ours"]),
            spread(samples["host"]), spread([a / b for a, b in pairs]), error, agrees,
            None if kernel.target.device else sampler.busy_cpus / min(self.threads, available_cpus()),
        )  # fmt: skip


def _difference(found: Array, wanted: Array) -> tuple[float, bool]:
    """Return the greatest difference relative to the greatest result, and whether rounding explains it."""
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
