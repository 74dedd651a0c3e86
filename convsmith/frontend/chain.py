"""Kernels of two convolutions, one after the other: the second is a depthwise post-op of the first."""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.compiler.arguments import argument_of
from convsmith.frontend.by_name import NamedKernel
from convsmith.problem.fusion import Fused
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array
from convsmith.runtime.border import BY_NAME, Border, Given, Names
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.packed import Packed

__all__ = ["ChainKernel"]


class ChainKernel(NamedKernel):
    """Takes the arrays of `problem`, and hands each of its two kernels its own."""

    def __init__(self, problem: Problem, fused: Fused, first: HostKernel, second: HostKernel) -> None:
        super().__init__(Border([argument_of(tensor) for tensor in problem.tensors], "wei"))
        self._first, self._second = first, second
        self._own = [tensor.name for tensor in fused.first.inputs]
        self._names = fused.names

    def pack(self, operand: Array, bias: Array | None = None, names: Names = BY_NAME) -> Packed:
        """Pack the weights and the bias of the first convolution."""
        return self._first.pack(*self._border.check_operand(operand, bias, names))

    def run(self, arrays: Mapping[str, Given], names: Names = BY_NAME) -> dict[str, Array]:
        """Outputs by name, from inputs by name, as `HostKernel.run`."""
        taken, results = self._border.take(arrays, names)
        inputs: dict[str, Given] = {**self._border.defaults, **taken}
        middle = self._first.run({name: inputs[name] for name in self._own if name in inputs})["dst"]
        given = {own: inputs[whole] for own, whole in self._names.items() if whole in inputs}
        self._second.run({"src": middle, **given, "dst": results["dst"]})
        return self._border.give(arrays, results)
