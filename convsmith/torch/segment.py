"""`Segment`: a run of convolutions of a network as one module, whose kernels use memory that is laid out once.

Each set of source shapes has its own kernels. The kernels for the shapes of the example are compiled with the network,
other kernels at the first call with their sizes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import _C, Tensor, nn

from convsmith.diag.errors import ConvsmithError, UsageError
from convsmith.diag.forking import RenewedLock
from convsmith.diag.warning import ConvsmithWarning, warn
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import compile
from convsmith.frontend.side_by_side import compile_ahead, not_cached
from convsmith.problem.conv import Conv
from convsmith.runtime.border import Given
from convsmith.runtime.device_library import ALIGNMENT
from convsmith.runtime.threads import available_cpus
from convsmith.torch import devices
from convsmith.torch.chains import ChainOfLayers
from convsmith.torch.gpu_sequence import Sequenced, sequence_on
from convsmith.torch.kernel_sequence import SequenceStep
from convsmith.torch.layers import ConvLayer
from convsmith.torch.layouts import check_memory, dense_strides, in_order
from convsmith.torch.part_forward import torchscript_error
from convsmith.torch.report import OtherSizes
from convsmith.torch.segment_operator import is_traced, named, seen, seen_with_weights
from convsmith.torch.segment_plan import PlacedLayer, SegmentPlan, recipe_of

__all__ = ["MAX_SIZES", "OtherSizesWarning", "Segment", "check_source"]

MAX_SIZES = 8
"""Sets of source shapes for which a segment keeps kernels and memory, besides the example's."""

_CPU_INDEX = -1
"""Torch's number of the CPU among devices."""

_Shape = tuple[int, ...]

_tracer = _C._get_tracing_state
_making = RenewedLock()
"""Held while kernels for further sizes are made."""


class OtherSizesWarning(ConvsmithWarning):
    """A network is called with sizes that no kernel supports, so PyTorch computes."""


class _SizedKernels(NamedTuple):
    """The kernels of a segment for one set of source shapes.

    `strides` are the strides of the sources, `results` the shapes and strides of the outputs, `packed` the signature
    and the constants of each layer's kernel.
    """

    strides: list[_Shape]
    results: list[tuple[_Shape, _Shape]]
    sequence: Sequenced
    packed: list[tuple[str, Mapping[str, Given]]]


class Segment(nn.Module):
    """The layers at `places`, from the values `inputs` to the values `outputs`; values are numbered.

    The input tensors are on `device`, and have the data type `dtype` and the shapes `forms` in the example. A call with
    other sizes uses kernels for these sizes, which the first such call compiles and records in `others`; kernels for
    the sizes of the example are compiled now, or at the first call with them if the segment `waits`. Torch computes
    sizes without kernels, after one warning.
    """

    def __init__(
        self, places: Sequence[PlacedLayer], inputs: Sequence[int], outputs: Sequence[int], forms: Sequence[_Shape],
        dtype: torch.dtype, threads: int, others: list[OtherSizes], device: torch.device = devices.CPU,
        waits: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._waits = waits
        self._places, self._inputs, self._outputs = tuple(places), tuple(inputs), tuple(outputs)
        self._forms, self._dtype, self._threads = tuple(map(tuple, forms)), dtype, threads
        self._warned, self._others, self._device = False, others, device
        self._plan = SegmentPlan(self._places, self._inputs, self._outputs, self._forms, dtype, threads, str(device))
        self._orders = self._plan.orders
        self._alignment = ALIGNMENT if devices.is_gpu(device) else 1
        self._index = device.index if devices.is_gpu(device) else _CPU_INDEX
        self._prepare()

    def _prepare(self) -> None:
        """Make the kernels for the example's sizes, and a name for torch's graphs."""
        self._name = named(self)
        self._recipe = recipe_of(self._plan, self._name)
        self._by_sizes: dict[tuple[_Shape, ...], _SizedKernels | None] = {}
        if not self._waits:
            self._by_sizes[self._forms] = self._made(self._forms)

    def _made(self, forms: Sequence[_Shape]) -> _SizedKernels:
        """Return the compiled kernels for sources of shapes `forms`, with packed weights and memory."""
        shapes = dict(zip(self._inputs, forms))
        problems: list[Any] = []
        for place in self._places:
            layer, shape = place.layer, shapes[place.source]
            shapes[place.result] = result = layer.result_shape(shape)
            if 0 in result:
                raise UsageError(f"{layer.name}: the result of shape {result} is empty", code="shape")
            problem = layer.problem(shape, place.in_place)
            if place.residual is not None and layer.adds and shapes[place.residual] != result:
                raise UsageError(f"{layer.name} adds {shapes[place.residual]} to {result}", code="shape")
            if layer.has_window and isinstance(problem, Conv) and problem.o != result[2:]:
                raise UsageError(f"{layer.name}: no source reaches the end of its result, {result}", code="shape")
            problems.append(problem)
        if not devices.is_gpu(self._device):
            for _ in compile_ahead(not_cached(problems, self._threads), self._threads):
                pass
        target = devices.target_on(self._device)
        made = [
            (place, x, compile(x, threads=self._threads, target=target)) for place, x in zip(self._places, problems)
        ]
        # Packing runs in native code, without the interpreter's lock.
        with ThreadPoolExecutor(available_cpus()) as pool:
            packed = list(pool.map(self._packed, range(len(made)), *zip(*made)))
        steps = [
            self._step(place, kernel, constants, shapes) for (place, _, kernel), (_, constants) in zip(made, packed)
        ]
        results = [(shapes[v], dense_strides(shapes[v], self._orders[v])) for v in self._outputs]
        sequence = sequence_on(self._device, steps, (*self._inputs, *self._outputs))
        strides = [dense_strides(shape, self._orders[v]) for v, shape in zip(self._inputs, forms)]
        return _SizedKernels(strides, results, sequence, packed)

    def _packed(
        self, n: int, place: PlacedLayer, problem: Any, kernel: CompiledKernel
    ) -> tuple[str, Mapping[str, Given]]:
        """Return the signature of the kernel of layer `n` and its packed weights, which kernels for other sizes may
        share.
        """
        signature = kernel.signature if isinstance(place.layer, ConvLayer) else ""
        for known in getattr(self, "_by_sizes", {}).values():
            if known is not None and signature and known.packed[n][0] == signature:
                shared: tuple[str, Mapping[str, Given]] = known.packed[n]
                return shared
        return signature, place.layer.packed_for(problem, kernel)

    def _step(
        self, place: PlacedLayer, kernel: CompiledKernel, constants: Mapping[str, Given], shapes: Mapping[int, _Shape]
    ) -> SequenceStep:
        """Return the kernel of a layer with its packed weights, and the values that it reads and writes."""
        layer = place.layer
        values = {"src": place.source, "dst": place.result}
        if not isinstance(layer, ChainOfLayers) and place.residual is not None and not (layer.adds and place.in_place):
            values[layer.operand] = place.residual
        nbytes = torch.Size(shapes[place.result]).numel() * self._dtype.itemsize
        replaced = (place.residual if layer.adds else place.source) if place.in_place else None
        return SequenceStep(kernel.host, constants, values, place.result, nbytes, replaced)

    def forward(self, *tensors: Tensor) -> Any:
        """Return the tensors of the outputs, a tuple if there are several.

        Outputs of convolutions are channels-last in memory.
        """
        for x in tensors:
            is_elsewhere = x.get_device() != self._index or x.is_meta  # A meta tensor has the CPU's number.
            if x.dtype is not self._dtype or is_elsewhere or x.requires_grad:
                check_source(x, self._dtype, self._device)
        if _tracer() is not None:
            raise torchscript_error("torch.jit.trace")
        if not is_traced():
            results = self.outputs(tensors)
        elif torch.compiler.is_exporting():
            results = seen_with_weights(*self._recipe, tensors)
        else:
            results = seen(self._name, tensors)
        return results[0] if len(results) == 1 else tuple(results)

    def outputs(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs for sources of the right data type in memory of the CPU."""
        try:
            kernels = self._by_sizes[tuple([x.shape for x in tensors])]
        except KeyError:
            kernels = self._further(tuple([tuple(x.shape) for x in tensors]))
        if kernels is None:
            return self._by_torch(tensors)
        addresses, keep = [], []
        for v, x, strides in zip(self._inputs, tensors, kernels.strides):
            if not (address := x.data_ptr()):
                check_memory((("source", x),))
            if x.stride() != strides or x.is_neg() or address % self._alignment:
                x = in_order(x.resolve_neg(), self._orders[v])
                x = x.clone() if x.data_ptr() % self._alignment else x
                keep.append(x)
                address = x.data_ptr()
            addresses.append(address)
        results = [devices.empty_on(self._device, *form, self._dtype) for form in kernels.results]
        addresses += [y.data_ptr() for y in results]
        kernels.sequence(addresses)
        return results

    @property
    def dtype(self) -> torch.dtype:
        """The data type of sources and results."""
        return self._dtype

    @property
    def output_orders(self) -> Sequence[bool]:
        """Whether outputs have channels as their second dim and last in memory; otherwise they are contiguous."""
        return self._plan.output_orders

    def output_shapes(self, forms: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Return the shapes of the outputs for sources of shapes `forms`, whose sizes may be symbols."""
        return self._plan.output_shapes(forms)

    def _by_torch(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs as torch computes them from the same weights."""
        values = dict(zip(self._inputs, tensors))
        for place in self._places:
            residual = None if place.residual is None else values[place.residual]
            values[place.result] = place.layer.by_torch()(values[place.source], residual)
        return [values[v] for v in self._outputs]

    def _further(self, forms: tuple[_Shape, ...]) -> _SizedKernels | None:
        """Return kernels for sources of shapes `forms`, compiled now and recorded; None if PyTorch computes."""
        with _making.lock:
            if forms in self._by_sizes:
                return self._by_sizes[forms]
            start, why = time.perf_counter(), ""
            kernels: _SizedKernels | None = None
            try:
                for form, known in zip(forms, self._forms):
                    if 0 in form or len(form) != len(known) or form[1] != known[1]:
                        raise UsageError("a source is empty, or has another rank or number of channels", code="shape")
                kernels = self._made(forms)
            except ConvsmithError as error:
                why = str(error).partition("\n")[0]
            layers = sum(len(p.layer.layers) if isinstance(p.layer, ChainOfLayers) else 1 for p in self._places)
            if forms != self._forms:
                self._others.append(OtherSizes(forms, layers, time.perf_counter() - start, why))
            if len(self._by_sizes) > MAX_SIZES:
                oldest = next(known for known in self._by_sizes if known != self._forms)
                del self._by_sizes[oldest]
            self._by_sizes[forms] = kernels
        if why and not self._warned:
            self._warned = True
            given = ", ".join(map(str, forms))
            warn(f"{layers} convolutions get sources of {given}, which PyTorch computes: {why}", OtherSizesWarning)
        return kernels

    def __getstate__(self) -> dict[str, Any]:
        # Memory and code belong to this process and are created anew.
        return {name: value for name, value in self.__dict__.items() if name != "_by_sizes"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def extra_repr(self) -> str:
        """Return the names of the layers."""
        return ", ".join(place.layer.name for place in self._places)


def check_source(x: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Raise UsageError if the source `x` has another data type, is on another device, or requires a gradient."""
    if x.dtype is not dtype or devices.device_of(x) != device:
        raise UsageError(
            f"the source is {x.dtype} on {x.device}; legal is {dtype} on {device}, which the network was optimized for",
            code="dtype",
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            "the source requires a gradient, which an optimized network does not compute; legal is to call it under "
            "torch.inference_mode(), or with x.detach()",
            code="requires-grad",
        )
