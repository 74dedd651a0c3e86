"""`Segment`: a run of convolutions of a network as one module, whose kernels work on memory that is laid out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from convsmith.diag.errors import UsageError
from convsmith.diag.warning import ConvsmithWarning, warn
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import compile
from convsmith.runtime.threads import available_cpus
from convsmith.torch.chains import ChainOfLayers
from convsmith.torch.kernel_sequence import KernelSequence, SequenceStep
from convsmith.torch.layers import ConvLayer
from convsmith.torch.layouts import dense_strides, in_order

__all__ = ["OtherSizesWarning", "PlacedLayer", "Segment"]


class OtherSizesWarning(ConvsmithWarning):
    """A network is called with sizes that it has no kernels for; PyTorch computes."""


@dataclass(frozen=True)
class PlacedLayer:
    """A layer of a segment: the numbers of the values that it reads (`residual` if it adds one) and makes.

    The result replaces the residual `in_place`, or has memory of its own.
    """

    layer: ConvLayer | ChainOfLayers
    source: int
    residual: int | None
    result: int
    in_place: bool


class Segment(nn.Module):
    """The layers at `places`, from the values `inputs` to the values `outputs`; values are numbered.

    The input tensors have the shapes `forms` and the data type `dtype`. Calls with other sizes are computed by torch,
    after one warning.
    """

    def __init__(
        self, places: Sequence[PlacedLayer], inputs: Sequence[int], outputs: Sequence[int],
        forms: Sequence[tuple[int, ...]], dtype: torch.dtype, threads: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self._places, self._inputs, self._outputs = tuple(places), tuple(inputs), tuple(outputs)
        self._forms, self._dtype, self._threads = tuple(map(torch.Size, forms)), dtype, threads
        self._warned = False
        self._prepare()

    def _prepare(self) -> None:
        """Compile the kernels, pack the weights and lay out the memory."""
        shapes = dict(zip(self._inputs, map(tuple, self._forms)))
        made: list[tuple[PlacedLayer, Any, CompiledKernel]] = []
        for place in self._places:
            layer, shape = place.layer, shapes[place.source]
            problem = layer.problem(shape, place.in_place)
            made.append((place, problem, compile(problem, threads=self._threads)))
            shapes[place.result] = layer.result_shape(shape)
        # Native code packs, without the interpreter's lock.
        with ThreadPoolExecutor(available_cpus()) as pool:
            steps = list(pool.map(lambda one: self._step(one[0], one[1], one[2], shapes), made))
        self._results = [(shapes[v], dense_strides(shapes[v], True)) for v in self._outputs]
        self._sequence = KernelSequence(steps, (*self._inputs, *self._outputs))
        self._strides = [dense_strides(shape, True) for shape in self._forms]

    def _step(
        self, place: PlacedLayer, problem: Any, kernel: CompiledKernel, shapes: Mapping[int, tuple[int, ...]]
    ) -> SequenceStep:
        """Return the kernel of a layer with its packed weights, and the values that it reads and makes."""
        layer = place.layer
        values = {"src": place.source, "dst": place.result}
        if isinstance(layer, ConvLayer) and place.residual is not None and not place.in_place:
            values[layer.operand] = place.residual
        nbytes = torch.Size(shapes[place.result]).numel() * self._dtype.itemsize
        replaced = place.residual if place.in_place else None
        return SequenceStep(kernel, layer.packed_for(problem, kernel), values, place.result, nbytes, replaced)

    def forward(self, *tensors: Tensor) -> Any:
        """Return the tensors of the outputs, a tuple if there are several; they are channels-last in memory."""
        addresses, keep = [], []
        dtype = self._dtype
        for x, shape, strides in zip(tensors, self._forms, self._strides):
            if x.shape != shape or x.dtype is not dtype:
                return self._otherwise(tensors)
            if x.requires_grad and torch.is_grad_enabled():
                raise UsageError(
                    "the source requires a gradient, which an optimized network does not compute; legal is to call it "
                    "under torch.inference_mode(), or with x.detach()",
                    code="requires-grad",
                )
            if x.stride() != strides:
                x = in_order(x, True)
                keep.append(x)
            addresses.append(x.data_ptr())
        results = [torch.empty_strided(*form, dtype=dtype) for form in self._results]
        addresses += [y.data_ptr() for y in results]
        self._sequence(addresses)
        return results[0] if len(results) == 1 else tuple(results)

    def by_torch(self, *tensors: Tensor) -> Any:
        """Return the outputs as torch computes them from the same weights."""
        values = dict(zip(self._inputs, tensors))
        for place in self._places:
            residual = None if place.residual is None else values[place.residual]
            values[place.result] = place.layer.by_torch()(values[place.source], residual)
        results = [values[v] for v in self._outputs]
        return results[0] if len(results) == 1 else tuple(results)

    def _otherwise(self, tensors: tuple[Tensor, ...]) -> Any:
        for x in tensors:
            if x.dtype is not self._dtype or x.device.type != "cpu":
                raise UsageError(
                    f"the source is {x.dtype} on {x.device}; legal is {self._dtype} on cpu, which the network was "
                    "optimized for",
                    code="dtype",
                )
        if not self._warned:
            self._warned = True
            given, legal = (
                ", ".join(str(tuple(shape)) for shape in shapes) for shapes in ([x.shape for x in tensors], self._forms)
            )
            warn(
                f"{len(self._places)} convolutions get sources of {given}; their kernels are for {legal}: PyTorch "
                "computes other sizes",
                OtherSizesWarning,
            )
        return self.by_torch(*tensors)

    def __getstate__(self) -> dict[str, Any]:
        # Memory and code of this process are made anew.
        return {name: value for name, value in self.__dict__.items() if name != "_sequence"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def extra_repr(self) -> str:
        """Return the names of the layers."""
        return ", ".join(place.layer.name for place in self._places)
