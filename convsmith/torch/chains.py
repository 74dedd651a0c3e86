"""Layers that follow one another as one kernel: a depthwise convolution with the pointwise ones around it.

A chain keeps rows of a large result in the cache, where the next layer reads them. It replaces its layers if it is
measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx

from convsmith.diag.record import record
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import compile
from convsmith.layout.tags import ANY
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import SOURCE, SumPostOp
from convsmith.runtime.border import Given
from convsmith.runtime.denormals import with_denormals
from convsmith.runtime.foreign import view
from convsmith.torch.choice import LeastTimes, kept_times, least_seconds
from convsmith.torch.fold import Folded, form_of
from convsmith.torch.kernel_sequence import KernelSequence, SequenceStep
from convsmith.torch.layers import ConvLayer
from convsmith.torch.layouts import in_order

__all__ = ["ChainOfLayers", "ChainTimes", "Chained", "chained"]

GAIN = 0.98
"""Maximum ratio of the time of a chain to the time of its layers for which the chain replaces the layers."""


@record(frozen=True, eq=False)
class ChainOfLayers:
    """Consecutive layers, each of which reads the result of its predecessor; the last may add the source of the first.
    """

    layers: tuple[ConvLayer, ...]

    @property
    def name(self) -> str:
        """The names of the layers."""
        return " -> ".join(layer.name for layer in self.layers)

    def owned(self) -> ChainOfLayers:
        """Return the chain with weights in its own memory."""
        return ChainOfLayers(tuple(layer.owned() for layer in self.layers))

    @property
    def dtype(self) -> torch.dtype:
        """The data type of sources, weights and results."""
        return self.layers[0].dtype

    orders = (True, True)
    adds = False
    has_window = True

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for a source of `shape`."""
        for layer in self.layers:
            shape = layer.result_shape(shape)
        return shape

    def problem(self, shape: tuple[int, ...], in_place: bool) -> Chain:
        """Return the problem of the chain on a channels-last source of `shape`; its result has memory of its own."""
        stages, last = [], len(self.layers) - 1
        for n, layer in enumerate(self.layers):
            stage, shape = layer.problem(shape, True), layer.result_shape(shape)
            steps = tuple(SumPostOp(array=SOURCE) if isinstance(x, SumPostOp) else x for x in stage.post_ops)
            tags = {"stag": ANY if n else "axb", "dtag": "axb" if n == last else ANY}
            stages.append(replace(stage, post_ops=steps, **tags))  # type: ignore[arg-type]
        return Chain(stages=tuple(stages))

    def packed_for(self, problem: Chain, kernel: CompiledKernel) -> dict[str, Given]:
        """Return weights and biases in the form that the kernel of the chain's `problem` takes."""
        weights, others = {}, dict[str, Given]()
        for n, (layer, stage) in enumerate(zip(self.layers, problem.stages)):
            names = problem.names(n)
            assert isinstance(stage, Conv)
            weights[names["wei"]] = with_denormals("flush", "weight", layer.weights_of(stage))
            if layer.bias is not None:
                others[names["bia"]] = view("bias", layer.bias)
        return {**kernel.pack_each(**weights), **others}

    def by_torch(self) -> Callable[[Tensor, Tensor | None], Tensor]:
        """Return the function from the source to the result, by torch."""
        layers = [(layer.by_torch(), layer.adds) for layer in self.layers]

        def chain(x: Tensor, _: Tensor | None) -> Tensor:
            y = x
            for layer, adds in layers:
                y = layer(y, x if adds else None)
            return y

        return chain


@record(frozen=True)
class ChainTimes:
    """A chain's `name`, its seconds, and the seconds of its layers one by one."""

    name: str
    chain: float
    layers: float


@dataclass(eq=False)
class Chained:
    """A chain in a graph: `layer` computes the result of the last of `nodes` from `source`."""

    layer: ChainOfLayers
    source: fx.Node
    nodes: list[fx.Node]
    residual: None = None

    @property
    def last(self) -> fx.Node:
        """The node whose value is the chain's result."""
        return self.nodes[-1]


def chained(ours: Sequence[Folded], threads: int) -> tuple[list[Folded | Chained], list[ChainTimes]]:
    """Return the layers, with faster chains in place of the layers that they contain, and the times of all chains."""
    by_last = {x.last: x for x in ours}
    taken: dict[Folded, Chained] = {}
    times: list[ChainTimes] = []
    for parts in _candidates(ours, by_last):
        if any(part in taken for part in parts):
            continue
        nodes = [node for x in parts for node in x.nodes]
        made = Chained(ChainOfLayers(tuple(x.layer for x in parts)), parts[0].source, nodes)
        found = _times_of(made, parts, threads)
        if found is not None and found.chain < GAIN * found.layers:
            taken |= dict.fromkeys(parts, made)
            times.append(found)
    kept: dict[Folded | Chained, None] = dict.fromkeys(taken.get(x, x) for x in ours)
    # A chain runs where its last layer did.
    place = {x.last: n for n, x in enumerate(ours)}
    return sorted(kept, key=lambda x: place[x.last]), times


def _candidates(ours: Sequence[Folded], by_last: Mapping[fx.Node, Folded]) -> Iterator[tuple[Folded, ...]]:
    """Yield depthwise layers with the pointwise layer that follows and, if there is one, the pointwise layer that
    precedes.
    """
    for x in ours:
        if not x.layer.is_depthwise or x.residual is not None or len(x.last.users) != 1:
            continue
        (user,) = x.last.users
        last = next((y for y in ours if y.nodes[0] is user), None)
        if last is None or not last.layer.is_pointwise:
            continue
        first = by_last.get(x.source)
        leads = first is not None and first.layer.is_pointwise and len(first.last.users) == 1 and not first.residual
        parts = (first, x, last) if first is not None and leads else (x, last)
        if last.residual in (None, parts[0].source):
            yield parts


def _times_of(made: Chained, parts: Sequence[Folded], threads: int) -> ChainTimes | None:
    """Return the times of a chain and of its layers; None if no result between the layers exceeds the cache."""
    form = form_of(made.source)
    assert form is not None
    kernels, shape, largest = [], form.shape, 0
    for part in parts:
        kernels.append(compile(part.layer.problem(shape, False), threads=threads))
        shape = part.layer.result_shape(shape)
        if part is not parts[-1]:
            largest = max(largest, torch.Size(shape[1:]).numel() * form.dtype.itemsize)
    if largest <= kernels[0].target.l2.bytes:
        return None
    problem = made.layer.problem(form.shape, False)
    kernel = compile(problem, threads=threads)
    configs = " ".join(str(k.config) for k in (kernel, *kernels))

    def measured(most: int) -> LeastTimes:
        x = in_order(torch.randn(form.shape).to(form.dtype), True)
        y = in_order(torch.empty(shape, dtype=form.dtype), True)
        last = len(parts)
        one = [SequenceStep(kernel.host, made.layer.packed_for(problem, kernel), {"src": 0, "dst": last}, last, 0)]
        several, at = [], form.shape
        for n, (part, k) in enumerate(zip(parts, kernels)):
            values = {"src": n, "dst": n + 1, **({part.layer.operand: 0} if part.layer.adds else {})}
            constants = part.layer.packed_for(part.layer.problem(at, False), k)
            at = part.layer.result_shape(at)
            nbytes = torch.Size(at).numel() * form.dtype.itemsize
            several.append(SequenceStep(k.host, constants, values, n + 1, nbytes))
        addresses = (x.data_ptr(), y.data_ptr())
        chain, layers = (KernelSequence(steps, (0, last)) for steps in (one, several))
        return least_seconds(lambda: chain(addresses), lambda: layers(addresses), most=most)

    chain, layers, _ = kept_times(f"{problem} {configs} on {threads}", kernel.target, measured)
    return ChainTimes(made.layer.name, chain, layers)
