"""Convolutions that autograd records: a `ConvStep` has the kernel of a convolution and those of its gradients.

Between two kernels, code and data of Python leave the caches, where a line takes several times as long as in a loop. So
what depends only on shapes, strides and types is found in the first call with them, for all three kernels, and a later
call only compares strides. A gradient that is not as expected, or that torch has to see, is computed by the operators.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from convsmith.diag.settings import settings
from convsmith.frontend.numpy_api import KEPT_KERNELS
from convsmith.frontend.window import ConvOptions, window_of
from convsmith.torch.calls import TensorKernel
from convsmith.torch.convolve import Prepared, TensorKey, gradient_of_weights, prepared, run, shared_device
from convsmith.torch.layouts import check_memory, is_dense, prefers_last
from convsmith.torch.operators import conv_gradients
from convsmith.torch.visibility import is_unseen

__all__ = ["recorded_conv"]


def recorded_conv(x: Tensor, w: Tensor, bias: Tensor | None, options: ConvOptions) -> Tensor:
    """Return the convolution of tensors on one device, which autograd records. TypeError if options are not hashable.
    """
    step = _step(
        shared_device(x, w, bias), (x.shape, x.stride(), x.dtype), (w.shape, w.stride(), w.dtype),
        None if bias is None else (bias.shape, bias.stride(), bias.dtype),
        options, torch.get_num_threads(), settings.choice,
    )  # fmt: skip
    result: Tensor = _RecordedStep.apply(x, w, bias, step)  # type: ignore[no-untyped-call]
    return result


class ConvStep:
    """The kernels of a convolution of tensors with given forms, and of its gradients, which are made when they are due.
    """

    def __init__(
        self, device: torch.device, x: TensorKey, w: TensorKey, bias: TensorKey | None, options: ConvOptions,
        threads: int,
    ) -> None:  # fmt: skip
        window = window_of(w[0][2:], options)
        self.forward: Prepared = prepared(device, x, w, bias, options, None, threads, settings.choice)
        pads = tuple(pad for pair in window.padding for pad in pair)
        self.options = (window.stride, pads, window.dilation, window.groups)
        """The options of the operators."""
        result = self.forward.kernel.outputs[0]
        self._grad: TensorKey = (self.forward.kernel.shapes[result], self.forward.kernel.strides[result], x[2])
        self._device, self._x, self._w, self._window, self._threads = device, x, w, window, threads
        self._weights = (w[0][2:], prefers_last(w[0], w[1]))
        self._by_data: tuple[Prepared | None] | None = None
        self._by_weights: dict[bool, TensorKernel | None] = {}

    def serves(self, x: Tensor, w: Tensor, grad: Tensor) -> bool:
        """Return whether tensors of a backward pass have the expected forms, and torch need not see their kernels."""
        return (
            not torch.is_grad_enabled()
            and is_unseen(grad, w)
            and is_unseen(x, w)
            and grad.stride() == self._grad[1]
            and grad.shape == self._grad[0]
            and x.stride() == self._x[1]
            and w.stride() == self._w[1]
        )

    def by_data(self) -> Prepared | None:
        """Return the kernel of the gradient of the source; None if its result is not all of it."""
        if self._by_data is None:
            sizes = self._x[0][2:]
            found = prepared(
                self._device, self._grad, self._w, None, self._window, sizes, self._threads, settings.choice
            )
            made = found.kernel
            reaches = made.shapes[made.outputs[0]][2:] == tuple(sizes)
            self._by_data = (found if reaches else None,)
        return self._by_data[0]

    def by_weights(self, with_bias: bool) -> TensorKernel | None:
        """Return the kernel of the gradients of the weights, and of the bias if it is due; None if tensors have to be
        copied or cut.
        """
        if with_bias not in self._by_weights:
            made, reached, x_last, grad_last = gradient_of_weights(
                self._device, self._x, self._grad, self._weights, self._window, with_bias, self._threads,
                settings.choice,
            )  # fmt: skip
            (x_shape, x_strides, _), (shape, strides, _) = self._x, self._grad
            is_whole = reached == tuple(x_shape[2:]) and is_dense(x_shape, x_strides, x_last)
            is_plain = is_whole and is_dense(shape, strides, grad_last)
            self._by_weights[with_bias] = made if is_plain else None
        return self._by_weights[with_bias]

    def gradients(self, x: Tensor, w: Tensor, grad: Tensor, due: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        """Return those of the gradients of source, weights and bias that are `due`."""
        by_data = self.by_data() if due[0] else None
        by_weights = self.by_weights(due[2]) if due[1] else None
        if (due[0] and by_data is None) or (due[1] and by_weights is None) or not due[1] >= due[2]:
            return conv_gradients((x, w), grad, due, self.options)
        if not (x.data_ptr() and grad.data_ptr()):
            check_memory((("input", x), ("gradient", grad)))
        of_x = None if by_data is None else run(by_data, grad, w, None)
        if by_weights is None:
            return of_x, None, None
        results = [by_weights.new(n) for n in range(len(by_weights.outputs))]
        by_weights.into((x, grad), results)
        of_w = results[0] if self._window.groups == 1 else results[0].view(w.shape)
        return of_x, of_w, results[1] if due[2] else None


@lru_cache(KEPT_KERNELS)
def _step(
    device: torch.device, x: TensorKey, w: TensorKey, bias: TensorKey | None, options: ConvOptions, threads: int,
    _: object,
) -> ConvStep:  # fmt: skip
    return ConvStep(device, x, w, bias, options, threads)


class _RecordedStep(Function):
    """A convolution of a `ConvStep` that autograd records."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, step: ConvStep) -> Any:
        ctx.save_for_backward(x, w)
        ctx.step = step
        return run(step.forward, x, w, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradients of source, weights and bias."""
        step: ConvStep = ctx.step
        x, w = ctx.saved_tensors
        if step.serves(x, w, grad):
            return *step.gradients(x, w, grad, ctx.needs_input_grad), None
        return *conv_gradients((x, w), grad, ctx.needs_input_grad, step.options), None
