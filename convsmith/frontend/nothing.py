"""Kernels of problems with an empty tensor: no product is computed, and bias and post-ops apply to zero."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np

from convsmith.compiler.arguments import argument_of
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.problem.chain import Chain
from convsmith.problem.problem import Problem
from convsmith.problem.reference import reference, steps_type
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array, as_array
from convsmith.runtime.border import BY_NAME, Border, Given, Names
from convsmith.runtime.packed import Packed, signature_of

__all__ = ["EmptyKernel", "has_empty_tensor"]


def has_empty_tensor(problem: Problem) -> bool:
    """Return whether an array of `problem`, or of a stage of it, has no elements."""
    stages = problem.stages if isinstance(problem, Chain) else (problem,)
    return any(0 in shape for stage in stages for shape in (stage.src_shape, stage.wei_shape, stage.dst_shape))


class EmptyKernel:
    """Checks its arguments like `HostKernel`, but has no code.

    Without code that could run on addresses, it has no prepared calls, and no memory on a device. `signature`
    identifies the packed operands that it accepts; by default it is the kernel's own.
    """

    packable: Collection[str] = ()
    scratch_bytes = 0
    signature = ""

    def __init__(self, problem: Problem, signature: str | None = None) -> None:
        self._problem = problem
        weights_of = [t.name for t in problem.inputs if t.holds == "wei"]
        operand = weights_of[0] if len(weights_of) == 1 else ""
        # Weights that are packed separately are unknown here; they are not read, because the result is empty.
        is_empty = all(0 in t.shape for t in problem.outputs)
        packable = weights_of if is_empty and not operand else ()
        self._border = border = Border([argument_of(tensor) for tensor in problem.tensors], operand, packable)
        self.packing, self._signature = "", ""
        if operand:
            weights = border.specs[operand]
            bias = border.specs["bia"] if border.takes_bias else None
            self.packing = f"plain {weights.argument.layout} {weights.argument.shape}"
            self._signature = signature or signature_of(
                self.packing, (weights.dtype, 0), (bias.dtype, bias.argument.size) if bias else None
            )

    def pack(
        self, operand: Array, bias: Array | None = None, names: Names = BY_NAME, *, warns: bool = True
    ) -> Packed:
        """Check the weights, and return a packed operand that keeps only the bias."""
        checked, own_bias = self._border.check_operand(operand, bias, names)
        return Packed(self.packing, np.zeros(0, checked.dtype), None if own_bias is None else own_bias.copy(), True)

    def call(
        self, src: Array, weights: Packed | Array, bias: Array | None = None, out: Array | None = None,
        names: Names = BY_NAME,
    ) -> Array:  # fmt: skip
        """Return the destination, computed from arrays passed by position."""
        return self.run(self._border.positional(src, weights, bias, out, names), names)["dst"]

    def bind(self, src: Array, weights: Packed | Array, out: Array, names: Names = BY_NAME) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call; see `HostKernel.bind`."""
        as_array(names["dst"], out)
        packed = weights if isinstance(weights, Packed) else self.pack(weights, names=names)
        self._border.take(self._border.positional(src, packed, None, out, names), names)
        return partial(self.call, src, packed, None, out, names)

    def addressed(self, names: Sequence[str], packed: Collection[str] = ()) -> None:
        """Return None, because there is no code that runs on addresses."""

    def resident(self, arrays: Mapping[str, Array]) -> None:
        """Return None, because calls run on host memory."""

    def bind_each(self, arrays: Mapping[str, Given]) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call."""
        return partial(self.run, arrays)

    def pack_each(self, operands: Mapping[str, Array], names: Names = BY_NAME) -> dict[str, Packed | Array]:
        """Return the checked operands, which no call reads."""
        return {name: self._border.specs[name].check(array, names[name]) for name, array in operands.items()}

    def run(self, arrays: Mapping[str, Given], names: Names = BY_NAME) -> dict[str, Array]:
        """Return the outputs by name, computed from the inputs by name; see `HostKernel.run`."""
        border = self._border
        inputs, results = border.take(arrays, names)
        packed = inputs.get(border.operand)
        if isinstance(packed, Packed) and packed.signature != self._signature:
            raise border.packed_elsewhere(packed, self._signature, names)
        if not border.empty:
            read = {name: array for name, array in results.items() if name in border.inputs}
            for name, values in _results(self._problem, {**border.defaults, **read, **inputs}).items():
                np.copyto(results[name], values)
        return self._border.give(arrays, results)


def _results(problem: Problem, arrays: Mapping[str, Array | Packed]) -> dict[str, Array]:
    """Return the outputs in their layouts, computed from all inputs; packed weights count as zeros."""
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    inputs = {
        name: np.zeros(tensors[name].shape, TYPES[tensors[name].dtype].numpy)
        if isinstance(array, Packed)
        else from_layout(array, tensors[name].layout)
        for name, array in arrays.items()
    }
    values = reference(problem, inputs, steps_type(problem))
    return {name: to_layout(values[name], tensors[name].layout) for name in values}
