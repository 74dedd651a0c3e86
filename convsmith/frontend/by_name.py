"""Kernels that take arrays by name; this base class adds calls by position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

from convsmith.runtime.arrays import Array, as_array
from convsmith.runtime.border import BY_NAME, Border, Given, Names
from convsmith.runtime.packed import Packed

__all__ = ["NamedKernel"]


class NamedKernel(ABC):
    """A kernel on arrays by name, with the calls by position that `HostKernel` has."""

    def __init__(self, border: Border) -> None:
        self._border = border

    @abstractmethod
    def run(self, arrays: Mapping[str, Given], names: Names = BY_NAME) -> dict[str, Array]:
        """Return the outputs by name, computed from the inputs by name; see `HostKernel.run`."""

    @abstractmethod
    def pack(self, operand: Array, bias: Array | None = None, names: Names = BY_NAME) -> Packed:
        """Return packed weights; see `HostKernel.pack`."""

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
