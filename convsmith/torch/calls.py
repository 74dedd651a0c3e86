"""`TensorKernel`: a kernel on tensors whose shapes and strides are known; a call passes addresses to the code.

`conv_problem` and `gradient_problem` are the problems of a convolution, of its gradient of the source (a transposed
convolution) and of its gradients of weights and bias. Kernels are kept by problem and number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from convsmith.diag.errors import UsageError
from convsmith.diag.settings import MAX_THREADS, settings
from convsmith.frontend.numpy_api import KEPT_KERNELS, compile, watched
from convsmith.frontend.transposed import transposed_problem
from convsmith.frontend.window import ConvWindow, Ints, coarse_sizes
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.device_library import ALIGNMENT
from convsmith.runtime.gpu_calls import StreamCall
from convsmith.runtime.packed import Packed
from convsmith.runtime.prepared_call import PreparedCall
from convsmith.torch import devices
from convsmith.torch.known_limits import KnownLimits
from convsmith.torch.layouts import activation_tag, prefers_last, weight_tag

__all__ = [
    "TensorForm", "TensorKernel", "conv_problem", "gradient_problem", "kept_kernel", "result_type", "type_name",
]  # fmt: skip

Operand: TypeAlias = Tensor | Packed

_TYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.uint8: "u8",
    torch.int8: "s8", torch.int32: "s32",
}  # fmt: skip
_TORCH_TYPES = {name: dtype for dtype, name in _TYPES.items()}
_SOURCES = ("f32", "f64", "f16", "bf16", "u8", "s8")
_BYTES = ("u8", "s8")


class TensorKernel:
    """The kernel of `problem` on tensors with exactly the shapes and strides of its arguments, which calls do not
    check.

    `inputs` and `outputs` name the tensors of a call in order; `shapes` and `strides` (in elements) describe them by
    name. All tensors are on `device`; packed weights are legal on the CPU. Several threads may call it at once.
    """

    def __init__(self, problem: Problem, threads: int, device: torch.device = devices.CPU) -> None:
        self.kernel = kernel = compile(problem, threads=threads, target=devices.target_on(device))
        self._device, self._on_gpu = device, devices.is_gpu(device)
        arguments = {argument.name: argument for argument in kernel.arguments}
        self.inputs = tuple(t.name for t in arguments.values() if t.role == "in" and t.default is None)
        self.outputs = tuple(t.name for t in arguments.values() if t.role != "in")
        self.shapes: dict[str, Ints] = {}
        self.strides: dict[str, Ints] = {}
        for name, tensor in arguments.items():
            layout = tensor.layout
            self.shapes[name] = tensor.shape if layout.is_plain else layout.physical_shape
            self.strides[name] = layout.strides if layout.is_plain else tuple(block.stride for block in layout.blocks)
        self._new = [
            (self.shapes[name], self.strides[name], _TORCH_TYPES[arguments[name].dtype]) for name in self.outputs
        ]
        names = (*self.inputs, *self.outputs)
        has_code = kernel.artifact is not None
        self._plain: PreparedCall | StreamCall | None = None
        self._is_within: Callable[[Any, float], bool] = _is_within
        if has_code and self._on_gpu:
            self._plain = kernel.host.launched(names, (), partial(devices.stream_on, device))
            self._is_within = _LIMITS.is_within
        elif has_code:
            self._plain = kernel.host.addressed(names)
        limits = kernel.artifact.limits if kernel.artifact is not None else {}
        self._limits = [(self.inputs.index(name), limit) for name, limit in limits.items() if name in self.inputs]
        self.signature = kernel.signature
        self._weights = self.inputs.index("wei") if "wei" in self.inputs else -1
        self._bias = self.inputs.index("bia") if "bia" in self.inputs else -1
        self.packs = kernel.artifact is not None and "wei" in kernel.artifact.packs
        """Whether a call with plain weights packs them."""
        takes_packed = bool(self.signature) and self._weights >= 0 and not self._on_gpu
        self._packed = kernel.host.addressed(names, ("wei",)) if has_code and takes_packed else None
        self._packed_limit = limits.get("wei", inf)

    def pack(self, weights: Tensor, bias: Tensor | None = None) -> Packed:
        """Return packed weights, with the bias if the kernel takes one, for any number of calls."""
        return self.kernel.pack(self._view("wei", weights), None if bias is None else self._view("bia", bias))

    def new(self, output: int = 0) -> Tensor:
        """Return a new uninitialised tensor for an output."""
        shape, strides, dtype = self._new[output]
        return devices.empty_on(self._device, shape, strides, dtype)

    def __call__(self, *inputs: Operand, out: Tensor | None = None) -> Tensor:
        """Return the first output for `inputs`, in `out` or a new tensor.

        Packed weights in place of "wei" include their bias; a bias in the call replaces it.
        """
        if out is None:
            out = devices.empty_on(self._device, *self._new[0])
        self.into(inputs, (out,))
        return out

    def call_packed(self, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
        """Compute like a call, with packed weights that `accepts` accepts and, if the kernel takes a bias, another
        bias.
        """
        shape, strides, dtype = self._new[0]
        out = torch.empty_strided(shape, strides, dtype=dtype)
        addresses = [x.data_ptr(), packed.addresses[0], out.data_ptr()]
        if bias is not None:
            addresses.insert(2, bias.data_ptr())
        self._packed.run(addresses, (x, packed, bias, out))  # type: ignore[union-attr]  # there is one, as it accepts
        return out

    def accepts(self, packed: Packed) -> bool:
        """Return whether the kernel takes these packed weights: its packing, and no element beyond its limit."""
        return self._packed is not None and packed.signature is self.signature and (
            packed.magnitude <= self._packed_limit or self._packed_limit == inf
        )  # fmt: skip

    def into(self, inputs: Sequence[Operand], outputs: Sequence[Tensor]) -> None:
        """Compute `outputs`, which a `sum` post-op reads too, from `inputs`."""
        if self._on_gpu:
            inputs = [_aligned(t) for t in inputs]
        at = self._weights
        weights = inputs[at] if at >= 0 else None
        results = [tensor.data_ptr() for tensor in outputs]
        if type(weights) is Packed:
            if (on_packed := self._packed) is not None and self.accepts(weights):
                addresses = [t.data_ptr() if isinstance(t, Tensor) else t.addresses[0] for t in inputs]
                if len(inputs) < len(self.inputs):
                    addresses.insert(self._bias, weights.addresses[1])
                on_packed.run(addresses + results, (inputs, outputs))
                return
        elif (call := self._plain) is not None and all(self._is_within(inputs[n], limit) for n, limit in self._limits):
            call.run([t.data_ptr() for t in inputs if isinstance(t, Tensor)] + results, (inputs, outputs))
            return
        self._in_general(inputs, outputs)

    def _in_general(self, inputs: Sequence[Operand], outputs: Sequence[Tensor]) -> None:
        """Compute like `into` for all operands: empty, packed, and with infinities or NaN."""
        names = list(self.inputs)
        if len(inputs) < len(names):
            names.remove("bia")
        pairs = (*zip(names, inputs), *zip(self.outputs, outputs))
        arrays: dict[str, Any] = {name: t if isinstance(t, Packed) else self._view(name, t) for name, t in pairs}
        if self._plain is not None or not self._on_gpu:
            self.kernel.run(**arrays)
            return
        # Without terms to add, the host computes the results.
        found = self.kernel.run(**{name: arrays[name].cpu() for name in names})
        for name in self.outputs:
            arrays[name].copy_(found[name])

    def _view(self, name: str, tensor: Tensor) -> Any:
        """Return a view of a tensor in the argument's shape, which differs for grouped and transposed weights."""
        return tensor.detach().as_strided(self.shapes[name], self.strides[name])


def type_name(name: str, dtype: torch.dtype, legal: Sequence[str] = _SOURCES) -> str:
    """Return the type of the argument `name` in the spelling of problems. UsageError if it is not one of `legal`."""
    found = _TYPES.get(dtype, "")
    if found not in legal:
        names = ", ".join(str(_TORCH_TYPES[row]) for row in legal)
        raise UsageError(f"{name}: dtype is {dtype}; legal: {names} (tensors are never cast)", code="dtype")
    return found


def result_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the results for a source of type `dtype`."""
    return torch.int32 if dtype in (torch.uint8, torch.int8) else dtype


def _aligned(tensor: Operand) -> Operand:
    """Return a tensor of a GPU, or a copy of it that accesses of whole vectors may read."""
    if isinstance(tensor, Packed) or tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    return tensor.detach().clone()


def _is_within(tensor: Operand, limit: float) -> bool:
    """Return whether the elements of a tensor are numbers of at most the magnitude `limit`."""
    assert isinstance(tensor, Tensor)
    return all(-limit <= bound.item() <= limit for bound in torch.aminmax(tensor.detach()))  # NaN passes on


_LIMITS = KnownLimits(_is_within)
"""Weights on a GPU, at which the host has to wait to look."""


class TensorForm(NamedTuple):
    """Shape, strides and type of a tensor."""

    shape: Ints
    strides: Ints
    dtype: torch.dtype

    @property
    def last(self) -> bool:
        """Whether the tensor is channels last in memory."""
        return prefers_last(self.shape, self.strides)


def conv_problem(
    x: TensorForm, w: TensorForm, bias: torch.dtype | None, window: ConvWindow, sizes: Ints | None = None
) -> Conv:
    """Return the problem of a convolution with torch's weights (OC, IC / groups, *kernel).

    With `sizes`, it is a transposed convolution with weights (IC, OC / groups, *kernel), whose result has this spatial
    shape, or is smaller if no element of the source reaches its end.
    """
    tags = {
        "stag": activation_tag(x.last), "dtag": activation_tag(x.last or w.last),
        "wtag": weight_tag(w.last, window.groups, sizes is not None),
    }  # fmt: skip
    fields = {**_types(x.dtype, w.dtype, bias), **tags, "accuracy": "strict"}
    if sizes is not None:
        fronts = [front for front, _ in window.padding]
        return transposed_problem(
            x.shape, w.shape, window.groups, window.stride, window.dilation, fronts, sizes, **fields
        )
    (n, ic, *i), (oc, _, *k) = x.shape, w.shape
    return Conv(
        mb=n, ic=ic, oc=oc, i=tuple(i), o=coarse_sizes(i, k, window), k=tuple(k), **_steps(window), **fields
    )  # fmt: skip


def gradient_problem(
    fine: TensorForm, coarse: TensorForm, kernel: Ints, window: ConvWindow, orders: tuple[bool, bool, bool],
    with_bias: bool,
) -> Conv:  # fmt: skip
    """Return the problem of the gradient of the weights (OC, IC / groups, *kernel), and of the bias if `with_bias`.

    Its inputs are the source (N, IC, *) and the gradient of the result (N, OC, *) of the convolution; `orders` state
    whether source, weights' gradient and result's gradient are channels last.
    """
    name = type_name("input", fine.dtype, _SOURCES[:4])
    (n, ic, *i), (_, oc, *o) = fine.shape, coarse.shape
    bias: dict[str, Any] = {"bia_dt": name} if with_bias else {}
    return Conv(
        dir="BWD_WB" if with_bias else "BWD_W", mb=n, ic=ic, oc=oc, i=tuple(i), o=tuple(o), k=kernel,
        **_steps(window), dt=(name,) * 3, stag=activation_tag(orders[0]), dtag=activation_tag(orders[2]),
        wtag=weight_tag(orders[1], window.groups, False), **bias,
    )  # fmt: skip


def kept_kernel(problem: Problem, threads: int, device: torch.device = devices.CPU) -> TensorKernel:
    """Return the kernel of `problem` on a device, from an earlier call or new."""
    threads = min(threads, MAX_THREADS)
    return TensorKernel(problem, threads, device) if watched() else _made(problem, threads, device, settings.choice)


@lru_cache(KEPT_KERNELS)
def _made(problem: Problem, threads: int, device: torch.device, _: object) -> TensorKernel:
    return TensorKernel(problem, threads, device)


def _steps(window: ConvWindow) -> dict[str, Any]:
    """Return the fields of a problem that a window determines."""
    return {
        "s": window.stride, "d": tuple(hole - 1 for hole in window.dilation),
        "p": tuple(front for front, _ in window.padding), "g": window.groups, "has_groups": window.groups > 1,
    }  # fmt: skip


def _types(x: torch.dtype, w: torch.dtype, bias: torch.dtype | None) -> dict[str, Any]:
    """Return the fields of a problem that the types of the tensors determine."""
    src = type_name("input", x)
    wei = type_name("weight", w, _BYTES if src in _BYTES else (src,))
    dst = "s32" if src in _BYTES else src
    options: dict[str, Any] = {"dt": (src, wei, dst)}
    if bias is not None:
        legal = (dst,) if dst in ("f32", "f64") else (dst, "f32")
        options |= {"dir": "FWD_B", "bia_dt": type_name("bias", bias, legal)}
    return options
