"""`AtenCall`: a node of an exported program, whose function in `aten_*.py` states it by operators of ONNX.

A function takes the call, and emits one operator or several; the last one computes the node's value. So PyTorch's
programs and ONNX models share the operators of `onnx/graph_*.py`, and a row here is only the order of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import fx

from convsmith.diag.errors import UnsupportedError
from convsmith.network.builder import GraphBuilder
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.graph_operators import GRAPH_OPERATORS

__all__ = ["SMALL_TYPES", "AtenCall", "AtenRow"]

AtenRow: TypeAlias = Callable[["AtenCall"], object]
"""Emits the operators of a call."""
_NUMBERS = {torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int32: 6, torch.int64: 7, torch.bool: 9,
            torch.float64: 11, torch.bfloat16: 1, torch.float16: 1}  # fmt: skip
"""ONNX's numbers of the data types in which kernels compute."""
SMALL_TYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
"""Types in which values of f32 are stored, by the names that kernels give them."""


class AtenCall:
    """The arguments of a node by their names in its schema, and the reader's values."""

    def __init__(self, reader: GraphBuilder, node: fx.Node) -> None:
        self.reader, self.node = reader, node
        schema = node.target._schema  # type: ignore[union-attr]
        self._arguments = {a.name: a.default_value if a.has_default_value() else None for a in schema.arguments}
        self._arguments |= dict(zip(self._arguments, node.args))
        self._arguments |= node.kwargs
        self.first: Any = self._arguments[next(iter(self._arguments))] if self._arguments else None

    def get(self, name: str) -> Any:
        """Return an argument: a node, a number, a sequence of either, or None."""
        return self._arguments.get(name)

    @property
    def source(self) -> str:
        """The name of the first argument's value."""
        return self.name(self.first)

    @property
    def result(self) -> torch.Tensor:
        """The result without its elements, the first of several."""
        found = self.node.meta["val"]
        return found[0] if isinstance(found, list | tuple) else found  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first argument."""
        return self.reader.value(self.source).shape

    def name(self, x: Any) -> str:
        """Return the name of the value of a node."""
        if not isinstance(x, fx.Node):
            raise UnsupportedError(f"an argument is {x!r:.40}; available are tensors there", code="operator")
        return x.name

    def optional(self, name: str) -> str:
        """Return the name of the value of an argument, or nothing if it is absent."""
        x = self.get(name)
        return "" if x is None else self.name(x)

    def operand(self, x: Any, dtype: torch.dtype) -> str:
        """Return the name of a value in a data type, converted if it has another; a number becomes a constant."""
        if isinstance(x, fx.Node):
            own = x.meta["val"].dtype
            return x.name if own == dtype else self.emit("Cast", [x.name], to=number_of(dtype), between=True)
        return self.held(torch.tensor(x, dtype=torch.float32 if dtype in SMALL_TYPES else dtype).numpy())

    def factor(self, x: Any) -> str:
        """Return the name of a factor of a product in the type of the result, to which autocast converts it."""
        dtype = self.result.dtype
        return self.operand(x, dtype) if dtype in SMALL_TYPES else self.name(x)

    def held(self, array: Any) -> str:
        """Add a constant, and return its name."""
        name = self.reader.fresh(self.node.name)
        self.reader.constants[name] = np.asarray(array)
        return name

    def moved(self, name: str, move: Callable[[Any], Any]) -> str:
        """Add a constant with its elements moved, and return its name."""
        made, behind = self.held(move(self.reader.constants[name])), self.reader.integers.get(name)
        if behind is not None:
            self.reader.integers[made] = behind.moved(move)
        return made

    def whole(self, numbers: Sequence[int] | int) -> str:
        """Add a constant of whole numbers, and return its name."""
        return self.held(np.array(numbers, np.int64))

    def numbers(self, name: str, rank: int) -> tuple[int, ...]:
        """Return an argument as one whole number for each of `rank` axes."""
        found = self.get(name)
        several = tuple(found) if isinstance(found, list | tuple) else (found,)
        return several * rank if len(several) == 1 else several

    def axes(self, name: str = "dim") -> tuple[int, ...]:
        """Return axes, counted from 0; all of them if the argument is absent."""
        found, rank = self.get(name), len(self.shape)
        if found is None or found == []:
            return tuple(range(rank))
        return tuple(axis % max(rank, 1) for axis in (found if isinstance(found, list | tuple) else (found,)))

    def emit(
        self, operator: str, inputs: Sequence[str], /, *, between: bool = False, n: int | None = None, **attributes: Any
    ) -> str:
        """Add an operator of ONNX, and return the name of its result: that of the node, of its result `n`, the first of
        several by default, or a new one `between`.
        """
        if n is None and not isinstance(self.node.meta["val"], torch.Tensor):
            n = 0
        own = self.node.name if n is None else f"{self.node.name}.{n}"
        output = self.reader.fresh(own) if between else own
        given = {name: x for name, x in attributes.items() if x is not None}
        GRAPH_OPERATORS[operator](GraphNode(self.reader, self.node.name, operator, inputs, [output], given))
        return output

    def reshaped(self, name: str, shape: Sequence[int], between: bool = False) -> str:
        """Add a view in another shape."""
        return self.emit("Reshape", [name, self.whole(shape)], between=between)

    def repeated(self, name: str, axis: int, times: int, between: bool = False) -> str:
        """Add each element along `axis` so many times, one after the other."""
        shape = self.reader.value(name).shape
        before, size, after = shape[:axis], shape[axis], shape[axis + 1 :]
        apart = self.reshaped(name, (*before, size, 1, *after), between=True)
        whole = self.emit("Expand", [apart, self.whole((*before, size, times, *after))], between=True)
        return self.reshaped(whole, (*before, size * times, *after), between)


def number_of(dtype: torch.dtype) -> int:
    """Return ONNX's number of a data type. UnsupportedError if kernels do not compute with it."""
    if dtype not in _NUMBERS:
        raise UnsupportedError(f"it computes {dtype}; available are {', '.join(map(str, _NUMBERS))}", code="dtype")
    return _NUMBERS[dtype]
