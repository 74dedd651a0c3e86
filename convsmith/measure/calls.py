"""Calls for timing: a kernel bound to arrays, with packed weights, that writes to the same memory every time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from convsmith.layout.reorder import to_layout
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, aligned_copy

__all__ = ["BindableKernel", "aligned_inputs", "bound_call"]


_BOUND = ("src", "wei", "dst")
"""Contents of the arrays that a call passes by position, in order."""


@runtime_checkable
class BindableKernel(Protocol):
    """A kernel that packs its weights, and that can be bound to arrays."""

    def pack(self, operand: Array, bias: Array | None = None) -> Any:
        """Return packed weights."""
        ...

    def pack_each(self, **operands: Array) -> dict[str, Any]:
        """Return packed operands by name."""
        ...

    def bind_each(self, **arrays: Any) -> Callable[[], object]:
        """Return a function that computes on these arrays by name."""
        ...

    def bind(self, x: Array, weights: Any, out: Array) -> Callable[[], object]:
        """Return a function that computes on these arrays."""
        ...

    def run(self, **arrays: Any) -> dict[str, Array]:
        """Compute on arrays by name, and return the outputs by name."""
        ...


@runtime_checkable
class ResidentKernel(BindableKernel, Protocol):
    """A kernel that may run on a device."""

    @property
    def packable(self) -> Collection[str]:
        """The names of the operands that `pack_each` packs."""
        ...

    def resident(self, arrays: Mapping[str, Any]) -> Callable[[], object] | None:
        """Return a call on copies of these arrays in device memory; None if calls run on host memory."""
        ...


def aligned_inputs(problem: Problem, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return aligned copies of the logical `arrays` in their layouts, except the arrays that a call may omit."""
    return {t.name: aligned_copy(to_layout(arrays[t.name], t.layout)) for t in problem.inputs if t.default is None}


def bound_call(
    problem: Problem, kernel: BindableKernel, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
) -> tuple[Callable[[], object], dict[str, Array]]:
    """Return a call of `kernel` bound to physical arrays, and the outputs that it writes, by default new ones.

    On a device with memory of its own, the call runs on copies that stay there; ResidentCall.finish waits for it.
    """
    given: dict[str, Any] = {**inputs, **(outputs or {})}
    names = {t.holds: t.name for t in problem.tensors if t.name in inputs or t.role != "in"}
    weights = [t.name for t in problem.inputs if t.holds == "wei"]
    packable = [name for name in weights if not isinstance(kernel, ResidentKernel) or name in kernel.packable]
    if len(weights) > 1:
        given |= kernel.pack_each(**{name: given[name] for name in packable})
    elif weights:
        bias = given.pop(names["bia"], None) if problem.dir == "FWD_B" else None
        given[names["wei"]] = kernel.pack(given[names["wei"]], bias)
    results = kernel.run(**given)
    given |= results
    on_device = kernel.resident({**inputs, **results}) if isinstance(kernel, ResidentKernel) else None
    if on_device is not None:
        return on_device, results
    if problem.forward and len(given) == len(_BOUND) and names.keys() >= set(_BOUND):
        return kernel.bind(*(given[names[role]] for role in _BOUND)), results
    return kernel.bind_each(**given), results
