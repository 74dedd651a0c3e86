"""Kernels of problems without elements: no source is read, so the result is what bias and post-ops make of zero."""

from __future__ import annotations

import math

import numpy as np

from convsmith.codegen.artifact import Argument, Role
from convsmith.diag.errors import UsageError
from convsmith.layout.layout import Layout
from convsmith.layout.reorder import to_layout
from convsmith.problem.conv import Conv
from convsmith.problem.reference import conv_reference
from convsmith.runtime.arrays import Array, ArraySpec, overlap
from convsmith.runtime.packed import Packed

__all__ = ["NothingKernel"]


class NothingKernel:
    """Checks its arguments as `HostKernel` does, and compiles nothing. For an empty source or destination."""

    def __init__(self, problem: Conv) -> None:
        self._problem = problem
        tensors: dict[Role, tuple[tuple[int, ...], Layout]] = {
            "src": (problem.src_shape, problem.src_layout),
            "wei": (problem.wei_shape, problem.wei_layout),
            "dst": (problem.dst_shape, problem.dst_layout),
        }
        types = dict(zip(tensors, problem.dt, strict=True))
        self._specs = {
            name: _spec(problem, name, types[name], shape, layout.tag(), layout.size)
            for name, (shape, layout) in tensors.items()
        }
        self._bias = _spec(problem, "bia", types["dst"], problem.bias_shape, "a", problem.oc)
        self.packing = f"plain {problem.wei_layout.tag()} {problem.wei_shape}"

    def pack(self, weights: Array, bias: Array | None = None) -> Packed:
        """Keep the bias; the weights are checked, and meet no source."""
        self._specs["wei"].check(weights)
        checked = self._checked_bias(bias)
        dtype = self._specs["wei"].dtype
        return Packed(self.packing, np.zeros(0, dtype), None if checked is None else checked.copy(), True)

    def call(self, src: Array, weights: Packed | Array, bias: Array | None = None, out: Array | None = None) -> Array:
        """The destination: zero elements, or bias and post-ops applied to zero."""
        source = self._specs["src"].check(src)
        if isinstance(weights, Packed):
            if bias is not None:
                raise UsageError("bia: packed weights hold the bias; legal is no bias beside them", code="bias")
            if weights.key != self.packing:
                raise UsageError(
                    f"wei: packed for another kernel: {weights.key}; legal is {self.packing}", code="packing"
                )
            given = weights.bias
        else:
            self._specs["wei"].check(weights)
            given = self._checked_bias(bias)
        spec = self._specs["dst"]
        dst = spec.empty() if out is None else spec.check_output(out)
        if out is not None and overlap(dst, source):
            raise UsageError("dst: out= shares memory with src", code="overlap")
        problem = self._problem
        if math.prod(problem.dst_shape):
            zeros = np.zeros(problem.wei_shape, np.float32)
            result = conv_reference(problem, np.zeros(problem.src_shape, np.float32), zeros, given, np.float32)
            np.copyto(dst, to_layout(result.astype(spec.dtype), problem.dst_layout))
        return dst if out is None else out

    def _checked_bias(self, bias: Array | None) -> Array | None:
        if not self._problem.bias:
            if bias is not None:
                raise UsageError("bia: this problem has no bias; legal is None, or a problem with one", code="bias")
            return None
        if bias is None:
            raise UsageError(f"bia: missing; this problem has a bias of shape {self._problem.bias_shape}", code="bias")
        return self._bias.check(bias)


def _spec(problem: Conv, role: Role, dtype: str, shape: tuple[int, ...], tag: str, size: int) -> ArraySpec:
    return ArraySpec(Argument(role, role, dtype, shape, tag, size, role == "dst"), problem.rank)
