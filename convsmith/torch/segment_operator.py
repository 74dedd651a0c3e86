"""The operators through which torch's compilers and tracers see a run of convolutions.

A string names a segment, because a graph of torch holds no Python objects. `torch.ops.convsmith.segment` has only the
name, which is valid in this process. `torch.ops.convsmith.segment_with_weights`, for exported programs, also has the
layers and the weights, so that another process can create the segment.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import _C, Tensor

from convsmith.diag.errors import UsageError
from convsmith.diag.forking import import_lock
from convsmith.torch.layouts import dense_strides, in_order

__all__ = ["is_traced", "named", "seen", "seen_with_weights"]


class _Runnable(Protocol):
    """A segment: it computes its outputs from its sources, and their shapes from the shapes of its sources."""

    @property
    def output_orders(self) -> Sequence[bool]: ...

    def outputs(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]: ...

    def output_shapes(self, forms: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]: ...


_segments: WeakValueDictionary[str, _Runnable] = WeakValueDictionary()
_loaded: dict[str, _Runnable] = {}
"""Segments of programs that another process has exported, by their names there."""
_numbers = itertools.count()
_modes = _C._len_torch_dispatch_stack


def named(segment: _Runnable) -> str:
    """Return a new name of `segment` for `seen`, which is valid as long as the segment exists."""
    name = f"segment {next(_numbers)} of {uuid.uuid4()}"  # unique across processes, for saved graphs
    _segments[name] = segment
    return name


def is_traced() -> bool:
    """Return whether torch must see a call: a compiler traces it, or a mode is active."""
    return torch.compiler.is_compiling() or _modes() > 0


def _segment(name: str) -> _Runnable:
    found = _segments.get(name)
    if found is None:
        raise UsageError(f"{name!r} is of another process, or its optimized network is gone", code="segment")
    return found


def _computed(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    # PyTorch computes sizes without kernels, and its results may have another memory format than a graph expects.
    segment = _segment(name)
    return [in_order(y, last) for y, last in zip(segment.outputs(tensors), segment.output_orders)]


def _without_data(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    segment = _segment(name)
    forms = zip(segment.output_shapes([x.shape for x in tensors]), segment.output_orders)
    return [tensors[0].new_empty_strided(tuple(shape), dense_strides(shape, last)) for shape, last in forms]


def _made(text: str, weights: Sequence[Tensor]) -> _Runnable:
    """Return the segment of a recipe: this process's own, or one that is created at its first call and kept."""
    with import_lock:
        from convsmith.torch.segment import Segment
        from convsmith.torch.segment_plan import Recipe
    recipe = Recipe(text, list(weights))
    found = _segments.get(recipe.name) or _loaded.get(recipe.name)
    if found is None:
        plan = recipe.plan()
        found = _loaded[recipe.name] = Segment(
            plan.places, plan.inputs, plan.outputs, plan.forms, plan.dtype, plan.threads, [], torch.device(plan.device)
        )
    return found


def _computed_with_weights(text: str, weights: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Tensor]:
    segment = _made(text, weights)
    return [in_order(y, last) for y, last in zip(segment.outputs(sources), segment.output_orders)]


def _without_data_with_weights(text: str, weights: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Tensor]:
    with import_lock:
        from convsmith.torch.segment_plan import Recipe
    plan = Recipe(text, list(weights)).plan()
    forms = zip(plan.output_shapes([x.shape for x in sources]), plan.output_orders)
    return [sources[0].new_empty_strided(tuple(shape), dense_strides(shape, last)) for shape, last in forms]


_library: Any = torch.library.Library("convsmith", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("segment(str name, Tensor[] sources) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
for _key in ("CPU", "CUDA"):
    _library.impl("segment", _computed, _key)
torch.library.register_fake("convsmith::segment", _without_data, lib=_library)
_library.define(
    "segment_with_weights(str recipe, Tensor[] weights, Tensor[] sources) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
for _key in ("CPU", "CUDA"):
    _library.impl("segment_with_weights", _computed_with_weights, _key)
torch.library.register_fake("convsmith::segment_with_weights", _without_data_with_weights, lib=_library)
seen: Any = torch.ops.convsmith.segment.default
"""The operator that computes the outputs of the segment of a given name from its sources."""
seen_with_weights: Any = torch.ops.convsmith.segment_with_weights.default
"""The operator that computes the outputs of the segment of a recipe and its weights from its sources."""
