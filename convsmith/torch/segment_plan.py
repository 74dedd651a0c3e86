"""The layers of a segment with the values between them, and their form in the graphs of exported programs: a text, and
the tensors of weights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from convsmith.diag.errors import UsageError
from convsmith.diag.record import record
from convsmith.torch.chains import ChainOfLayers
from convsmith.torch.channel_layers import GateLayer, MeanLayer
from convsmith.torch.layers import ConvLayer
from convsmith.torch.linear import LinearLayer

__all__ = ["PlacedLayer", "Recipe", "SegmentPlan", "recipe_of"]


@record(frozen=True)
class PlacedLayer:
    """A layer of a segment: the numbers of the values that it reads (`residual` if it reads a second one) and makes.

    If `in_place`, the result overwrites the residual if the layer adds one, and otherwise the source; if not, it has
    its own memory.
    """

    layer: ConvLayer | ChainOfLayers | MeanLayer | GateLayer
    source: int
    residual: int | None
    result: int
    in_place: bool

    @property
    def orders(self) -> dict[int, bool]:
        """Whether each value that the layer accesses has channels as its second dim and last in memory."""
        source, result = self.layer.orders
        residual = {} if self.residual is None else {self.residual: result}
        return {**residual, self.result: result, self.source: source}


@record(frozen=True)
class SegmentPlan:
    """The layers at `places`, from the values `inputs` to the values `outputs`, for sources of shapes `forms`.

    Values are numbered. Sources have the type `dtype`, and kernels use `threads`; all values are on `device`, in
    the spelling of torch.
    """

    places: tuple[PlacedLayer, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    forms: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    threads: int
    device: str = "cpu"

    @property
    def orders(self) -> dict[int, bool]:
        """Whether each value has channels as its second dim and last in memory."""
        return {v: order for place in reversed(self.places) for v, order in place.orders.items()}

    @property
    def output_orders(self) -> Sequence[bool]:
        """Whether outputs have channels as their second dim and last in memory; otherwise they are contiguous."""
        orders = self.orders
        return [orders[v] for v in self.outputs]

    def output_shapes(self, forms: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Return the shapes of the outputs for sources of shapes `forms`, whose sizes may be symbols."""
        shapes: dict[int, Any] = dict(zip(self.inputs, forms))
        for place in self.places:
            shapes[place.result] = place.layer.result_shape(shapes[place.source])
        return [shapes[v] for v in self.outputs]


class Recipe(NamedTuple):
    """A plan as a text, which begins with a name, and the tensors of its weights."""

    text: str
    weights: list[Tensor]

    @property
    def name(self) -> str:
        """The name of the segment in the process that created it."""
        return self.text.partition("\n")[0]

    def plan(self) -> SegmentPlan:
        """Return the plan."""
        try:
            made: SegmentPlan = _decoded(json.loads(self.text.partition("\n")[2]), self.weights)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UsageError(
                f"the program has a segment of another version of convsmith ({type(error).__name__}: {error}); legal "
                "is a program that this version has exported",
                code="segment",
            ) from error
        return made


_CLASSES = {
    c.__name__: c for c in (SegmentPlan, PlacedLayer, ConvLayer, LinearLayer, ChainOfLayers, MeanLayer, GateLayer)
}


def recipe_of(plan: SegmentPlan, name: str) -> Recipe:
    """Return the recipe of a plan with the name of its segment."""
    weights: list[Tensor] = []
    return Recipe(f"{name}\n{json.dumps(_encoded(plan, weights), separators=(',', ':'))}", weights)


def _encoded(value: Any, weights: list[Tensor]) -> Any:
    """Return a value of a plan in JSON form; its tensors are appended to `weights`."""
    if isinstance(value, Tensor):
        weights.append(value)
        return {"tensor": len(weights) - 1}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple | list):
        return [_encoded(x, weights) for x in value]
    if is_dataclass(value):
        attributes = {field.name: _encoded(getattr(value, field.name), weights) for field in fields(value)}
        return {"class": type(value).__name__, **attributes}
    return value


def _decoded(value: Any, weights: Sequence[Tensor]) -> Any:
    """Return the value of a plan that was encoded."""
    if isinstance(value, list):
        return tuple(_decoded(x, weights) for x in value)
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return weights[value["tensor"]]
    if "class" not in value:
        return getattr(torch, value["dtype"])
    return _CLASSES[value["class"]](**{name: _decoded(x, weights) for name, x in value.items() if name != "class"})
