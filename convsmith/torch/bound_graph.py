"""`BoundGraph`: a graph of `torch.compile` as native functions, whose parameters are inputs of every call.

Functions hold packed weights. Each call compares all bytes of the parameters with copies of them, so that no write can
be missed, and makes functions anew after a change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, fx, nn

from convsmith.runtime.kept import same_bytes
from convsmith.torch.native import NetworkOptions, NoFunctionsError, graph_of_networks
from convsmith.torch.report import OptimizeReport

__all__ = ["BoundGraph"]


class BoundGraph:
    """Calls of `graph` for the sizes and types of `inputs`, of which those at the positions `fixed` are parameters.

    PyTorch computes, if there `is_no_function` at first, or after a change of parameters.
    """

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Tensor], fixed: Sequence[int]) -> None:
        self._graph, self._fixed = graph, tuple(fixed)
        self._free = [n for n in range(len(inputs)) if n not in self._fixed]
        self._copies: list[Tensor] = []
        self._run: Callable[..., Any] = graph
        self._make(inputs)

    @property
    def is_no_function(self) -> bool:
        """Whether no part of the graph has a function."""
        return isinstance(self._run, _Bound)

    def __call__(self, *inputs: Tensor) -> Any:
        """Return the tuple of results."""
        if not all(_same(inputs[n], copy) for n, copy in zip(self._fixed, self._copies)):
            self._make(inputs)
        return self._run(*[inputs[n] for n in self._free])

    def _make(self, inputs: Sequence[Tensor]) -> None:
        """Make functions with the parameters among `inputs`."""
        self._copies = [inputs[n].detach().clone() for n in self._fixed]
        bound = _Bound(self._graph, dict(zip(self._fixed, self._copies)), len(inputs))
        threads = torch.get_num_threads()
        options = NetworkOptions(OptimizeReport("graph", threads), threads, True, lambda *_: lambda: None)
        made = None
        with torch.no_grad(), suppress(NoFunctionsError):
            made = graph_of_networks(bound, [inputs[n] for n in self._free], options)
        self._run = bound if made is None else made


class _Bound(nn.Module):
    """A graph of `count` inputs, some of which are `given` by their positions."""

    def __init__(self, graph: fx.GraphModule, given: dict[int, Tensor], count: int) -> None:
        super().__init__()
        self.graph, self._count, self._given = graph, count, tuple(given)
        for n, x in given.items():
            self.register_buffer(f"input_{n}", x)

    def forward(self, *others: Tensor) -> tuple[Any, ...]:
        """Return the results of the graph."""
        left = iter(others)
        every = [getattr(self, f"input_{n}") if n in self._given else next(left) for n in range(self._count)]
        return tuple(self.graph(*every))


def _same(x: Tensor, copy: Tensor) -> bool:
    """Return whether the bytes of a dense tensor are those of a copy."""
    if x.shape != copy.shape or x.dtype is not copy.dtype or x.stride() != copy.stride():
        return False
    if not x.is_cpu:
        return torch.equal(x, copy)
    return same_bytes(x.data_ptr(), copy.data_ptr(), x.nbytes)
