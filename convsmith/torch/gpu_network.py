"""`GpuNetwork`: the products of a graph as kernels that are launched one after the other on a stream of a GPU.

Torch allocates the workspace for each call: its allocator knows the stream, and whether a graph is captured, and gives
memory back without waiting. Images have their channels last, also where they enter and leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from convsmith.diag.errors import ConvsmithError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import compile
from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.placement.layouts import FIRST, LAST, Layouts, is_image, with_layouts
from convsmith.network.placement.memory import memory_plan
from convsmith.network.placement.placing import placed
from convsmith.network.rewrites.fold import folded
from convsmith.network.rewrites.small_floats import with_small_floats
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.runtime.border import Given
from convsmith.runtime.device_library import ALIGNMENT
from convsmith.torch import devices
from convsmith.torch.layouts import dense_strides, in_order

__all__ = ["GpuNetwork", "NoKernelsError"]


class NoKernelsError(ConvsmithError):
    """Nodes of a model, by name, for which a device has no kernels, with the reasons."""

    def __init__(self, why: Mapping[str, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(why.values())), code="device")
        self.why = why


class GpuNetwork:
    """The function of `graph` on `device`. NoKernelsError names the nodes that the GPU has no kernels for.

    Several threads may call it at once, each on its own current stream.
    """

    def __init__(self, graph: Graph, threads: int, device: torch.device) -> None:
        laid = _channels_last(with_small_floats(folded(graph), "f32"))
        where, self._device = placed(laid, {}, replaces=False), device
        kernels = _kernels(laid, where.nodes, threads)
        plan = memory_plan(where.lives)
        self._workspace = max((plan.offsets[name] + x.nbytes for name, x in where.lives.items()), default=0)
        outside = [*(x.name for x in laid.inputs), *laid.outputs]
        self._results = [laid.values[name] for name in laid.outputs]
        self._sources = [is_image(x.shape) for x in laid.inputs]
        self._problems = [(node.work, node.names) for node in where.nodes if isinstance(node.work, Problem)]
        self._launches = []
        for node, kernel in zip(where.nodes, kernels):
            values = {a: name for a, name in node.arguments.items() if name not in laid.constants}
            values["dst"] = node.output
            launch = kernel.host.launched_with(_constants(laid, node, kernel), tuple(values))
            places = []
            for name in values.values():
                home, start = where.homes[name]
                at = outside.index(home) if home in outside else -1
                places.append((at, start if at >= 0 else start + plan.offsets[home]))
            self._launches.append((launch, places))

    def problems(self) -> list[tuple[Problem, tuple[str, ...]]]:
        """Return the products in order, each with the names of the nodes of the model that it computes."""
        return self._problems

    @property
    def steps(self) -> list[str]:
        """The lines of the kernels."""
        return [str(problem) for problem, _ in self._problems]

    def __call__(self, tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
        """Return the outputs, which have the types `dtypes`, after the launch of all kernels."""
        given = [_aligned(in_order(x.resolve_neg(), last)) for x, last in zip(tensors, self._sources)]
        results = [
            devices.empty_on(self._device, x.shape, dense_strides(x.shape, is_image(x.shape)), dtype)
            for x, dtype in zip(self._results, dtypes)
        ]
        area = devices.empty_on(self._device, (self._workspace,), (1,), torch.uint8) if self._workspace else None
        addresses = [*(x.data_ptr() for x in (*given, *results)), 0 if area is None else area.data_ptr()]
        stream = devices.stream_on(self._device)
        for launch, places in self._launches:
            launch([addresses[at] + start for at, start in places], area, stream)
        return results


def _aligned(x: Tensor) -> Tensor:
    """Return a tensor, or a copy of it that accesses of whole vectors may read."""
    return x if x.data_ptr() % ALIGNMENT == 0 else x.clone()


def _channels_last(graph: Graph) -> Graph:
    """Return the graph whose images have their channels last."""
    tags = {name: LAST if is_image(x.shape) else FIRST for name, x in graph.values.items()}
    return with_layouts(graph, Layouts(tags))


def _kernels(graph: Graph, nodes: Sequence[NetworkNode], threads: int) -> list[CompiledKernel]:
    """Return the kernels of the nodes."""
    makers, readers, why, made = graph.makers(), graph.readers(), dict[str, str](), list[CompiledKernel]()
    for node in nodes:
        try:
            if not isinstance(node.work, Problem):
                raise ConvsmithError("the GPU has no kernel of it", code="device")
            made.append(compile(node.work, threads=threads, target=devices.GPU_TARGET))
        except ConvsmithError as error:
            around = [node] if node.output in makers and not node.name.startswith("copy of ") else []
            around += [] if around else readers.get(node.output, []) or [makers[node.arguments["src"]]]
            for x in around:
                why |= dict.fromkeys(x.names, str(error).partition("\n")[0])
    if why:
        raise NoKernelsError(why)
    return made


def _constants(graph: Graph, node: NetworkNode, kernel: CompiledKernel) -> dict[str, Given]:
    """Return the constants of a node in the form that its kernel takes; denormal weights, which are slow, are zero."""
    tensors = {t.name: t for t in node.work.tensors}
    found: dict[str, Any] = {}
    for array, name in node.arguments.items():
        if name in graph.constants:
            t = tensors[array]
            x: Array = graph.constants[name].astype(numpy_dtype(t.dtype)).reshape(t.shape)
            found[array] = x
    if "wei" in found and kernel.artifact is not None and "wei" in kernel.artifact.packs:
        found["wei"] = kernel.pack(found["wei"], found.pop("bia", None), denormals="flush")
    return found
