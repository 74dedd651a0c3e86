"""Random graphs with bytes: conversions behind operators of floats, weights of bytes, and operators on bytes.

All scales are powers of two, so that every product with one is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from drawn_graphs import LARGEST, DrawnGraph, DrawnValue, windows
from onnx import TensorProto, helper

__all__ = ["DrawnBytes", "on_bytes"]

_TYPES = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}


class _Bytes(NamedTuple):
    """The value `name` of bytes, its shape, the names of its scale and its zero point, and its type."""

    name: str
    shape: tuple[int, ...]
    scale: str
    point: str
    dtype: np.dtype[Any]

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of the value, its scale and its zero point."""
        return self.name, self.scale, self.point


class DrawnBytes(DrawnGraph):
    """A graph in the making, whose values are often converted to bytes and back."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.bytes: list[_Bytes] = []
        self.returned: list[Any] = []
        self._share = self.r.choice((0.6, 0.85, 1.0))

    def input(self, shape: Sequence[int]) -> DrawnValue:
        made = super().input(shape)
        return self.converted(made) if self.r.random() < 0.85 else made

    def op(self, operator: str, *given: Any, outputs: int = 1, **attributes: Any) -> DrawnValue | None:
        """Add a node, and often a conversion of its result to bytes and back, which stands for it then."""
        made = super().op(operator, *given, outputs=outputs, **attributes)
        if made is None or self.r.random() > self._share:
            return made
        converted = self.converted(made)
        if self.r.random() < 0.9:
            self.values.remove(made)
        return converted

    def weights(self, *shape: int) -> DrawnValue:
        """Add weights of bytes with one scale, or one along an axis; sometimes of floats."""
        if self.r.random() < 0.15 or not shape:
            return super().weights(*shape)
        dtype, axis = self._type(), self.r.choice((None, None, 0, 0, len(shape) - 1))
        point = self.r.choice((0, 128, 7)) if dtype == np.uint8 else self.r.choice((0, 0, 0, 1, -3))
        limit, count = self.r.choice((1, 3, 127)), () if axis is None else (shape[axis],)
        values = self.rng.integers(-limit, limit + 1, shape) + point
        scale = self.held((2.0 ** self.rng.choice([-6, -4, -2, 0], count)).astype(np.float32))
        given = [self.held(_saturated(values, dtype)), scale]
        if point or dtype == np.uint8 or self.r.random() < 0.7:
            given.append(self.held(np.full(count, point, dtype)))
        made = self.node("DequantizeLinear", given, **({} if axis is None else {"axis": axis}))
        self.shapes[made.output[0]] = shape
        return DrawnValue(made.output[0], shape)

    def converted(self, x: DrawnValue) -> DrawnValue:
        """Add conversions of a value to bytes and back."""
        scale, point, dtype = self.code()
        given = [scale] if dtype == np.uint8 and self.r.random() < 0.1 else [scale, point]
        made = self.node("QuantizeLinear", [x.name, *given])
        self.result(made.output[0], x.shape)
        self.values.pop()
        if len(given) == 2:
            self._keep(_Bytes(made.output[0], x.shape, scale, point, dtype))
        return self.result(self.node("DequantizeLinear", [made.output[0], *given]).output[0], x.shape)

    def code(self, dtype: np.dtype[Any] | None = None) -> tuple[str, str, np.dtype[Any]]:
        """Return the names of a new scale and a new zero point, and the type of the bytes, if it is not given."""
        kind = dtype or self._type()
        points = (0, 0, 128, 3, 100, 250) if kind == np.uint8 else (0, 0, 0, 1, -5, 100)
        scale = self.held(np.float32(2.0 ** self.r.choice((-2, -1, 0, 0, 1, 2, 3))))
        return scale, self.held(kind.type(self.r.choice(points))), kind

    def computed(self, node: Any, shape: Sequence[int], code: tuple[str, str, np.dtype[Any]]) -> DrawnValue:
        """Note the bytes that the latest node computes, and add their conversion to floats."""
        self.result(node.output[0], shape)
        self.values.pop()
        self._keep(_Bytes(node.output[0], tuple(shape), *code))
        return self.result(self.node("DequantizeLinear", [node.output[0], *code[:2]]).output[0], shape)

    def _keep(self, x: _Bytes) -> None:
        self.bytes.append(x)
        if self.r.random() < 0.1:
            self.returned.append(helper.make_tensor_value_info(x.name, _TYPES[x.dtype], x.shape))

    def _type(self) -> np.dtype[Any]:
        return np.dtype(self.r.choice((np.uint8, np.int8)))

    def factors(self, x: _Bytes, shape: tuple[int, ...], count: int) -> tuple[str, str, str]:
        """Return the names of weights of bytes by which `x` is multiplied, of their scales, one or `count`, and of as
        many zero points.
        """
        dtype, limit = self._type() if x.dtype == np.uint8 else x.dtype, self.r.choice((2, 100))
        point = self.r.choice((0, 5, 128) if dtype == np.uint8 else (0, 0, 1))
        values = _saturated(self.rng.integers(-limit, limit + 1, shape) + point, dtype)
        each = (count,) if count and self.r.random() < 0.5 else ()
        scale = (2.0 ** self.rng.choice([-5, -3, -1], each)).astype(np.float32)
        return self.held(values), self.held(scale), self.held(np.full(each, point, dtype))


def _saturated(x: Any, dtype: np.dtype[Any]) -> Any:
    limits = np.iinfo(dtype)
    return np.clip(x, limits.min, limits.max).astype(dtype)


def on_bytes(g: DrawnGraph) -> DrawnValue | None:
    """Draw an operator on bytes."""
    assert isinstance(g, DrawnBytes)
    if not g.bytes:
        return None
    x, kind = g.r.choice(g.bytes[-6:]), g.r.choice((_convolution, _convolution, _product, _concat))
    return kind(g, x)


def _sums(g: DrawnBytes, operator: str, given: Sequence[str], shape: Sequence[int], **more: Any) -> DrawnValue:
    """Add a node whose result is whole numbers, and their conversion to floats."""
    made = g.node(operator, given, **more)
    g.result(made.output[0], shape)
    g.values.pop()
    return g.result(g.node("Cast", made.output, to=TensorProto.FLOAT).output[0], shape)


def _bias(g: DrawnBytes, count: int) -> list[str]:
    return [g.held(g.rng.integers(-50, 50, count).astype(np.int32))] if g.r.random() < 0.5 else []


def _convolution(g: DrawnBytes, x: _Bytes) -> DrawnValue | None:
    rank = len(x.shape) - 2
    if not 1 <= rank <= 3:
        return None
    groups = g.r.choice((1, 1, x.shape[1]))
    channels, k = groups * g.r.choice((1, 2, 8)), [g.r.choice((1, 3))] * rank
    more = {"strides": [1] * rank, "pads": [0] * 2 * rank, **windows(g.r, k, (0.5, 0.0, 0.7)), "group": groups}
    ends = zip(x.shape[2:], k, more["strides"], more["pads"], more["pads"][rank:])
    shape = (x.shape[0], channels, *((size + front + back - n) // step + 1 for size, n, step, front, back in ends))
    if not 0 < prod(shape) <= LARGEST or min(shape) < 1:
        return None
    is_sum = g.r.random() < 0.3
    factors, scale, point = g.factors(x, (channels, x.shape[1] // groups, *k), 0 if is_sum else channels)
    if is_sum:
        return _sums(g, "ConvInteger", [x.name, factors, x.point, point], shape, **more)
    code = g.code(x.dtype)
    made = g.node("QLinearConv", [*x.names, factors, scale, point, *code[:2], *_bias(g, channels)], **more)
    return g.computed(made, shape, code)


def _product(g: DrawnBytes, x: _Bytes) -> DrawnValue | None:
    if len(x.shape) < 2:
        return None
    columns = g.r.choice((1, 5, 16))
    shape, (factors, scale, point) = (*x.shape[:-1], columns), g.factors(x, (x.shape[-1], columns), 0)
    if g.r.random() < 0.3:
        return _sums(g, "MatMulInteger", [x.name, factors, x.point, point], shape)
    code = g.code(x.dtype)
    if len(shape) == 2 and g.r.random() < 0.4:
        given = [*x.names, factors, scale, point, *(_bias(g, columns) or [""]), *code[:2]]
        return g.computed(g.node("QGemm", given, domain="com.microsoft", alpha=1.0), shape, code)
    return g.computed(g.node("QLinearMatMul", [*x.names, factors, scale, point, *code[:2]]), shape, code)


def _concat(g: DrawnBytes, x: _Bytes) -> DrawnValue | None:
    if not x.shape:
        return None
    axis = g.r.randrange(len(x.shape))
    alike = [y for y in g.bytes if y.dtype == x.dtype and _without(y.shape, axis) == _without(x.shape, axis)]
    parts, code = [x, *g.r.choices(alike, k=g.r.choice((1, 2)))], g.code(x.dtype)
    shape = (*x.shape[:axis], sum(y.shape[axis] for y in parts), *x.shape[axis + 1 :])
    if prod(shape) > LARGEST:
        return None
    given = [*code[:2], *(name for y in parts for name in y.names)]
    return g.computed(g.node("QLinearConcat", given, domain="com.microsoft", axis=axis), shape, code)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (len(shape), *shape[:axis], *shape[axis + 1 :])
