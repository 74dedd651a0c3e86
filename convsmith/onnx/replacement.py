"""`Replacement`: nodes of ONNX in place of a node, as the rows of operators that others express write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError

__all__ = ["Replacement"]


class Replacement:
    """The nodes that replace the node `proto`; `shape_of` returns the shape of a value."""

    def __init__(self, proto: Any, fresh: Callable[[str], str], package: Any, shape_of: Callable[[str], Any]) -> None:
        self._fresh, self._package, self.shape_of = fresh, package, shape_of
        self.inputs: list[str] = [*proto.input]
        self.outputs: list[str] = [*proto.output]
        self._attributes = {a.name: package.helper.get_attribute_value(a) for a in proto.attribute}
        self.made: list[Any] = []

    def given(self, name: str, default: Any) -> Any:
        """Return an attribute."""
        found = self._attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else found

    def has(self, n: int) -> bool:
        """Return whether input `n` is present."""
        return n < len(self.inputs) and bool(self.inputs[n])

    def input(self, n: int) -> str:
        """Return input `n`. UsageError if it is absent."""
        if not self.has(n):
            raise UsageError(f"it has no input {n}; legal are nodes with one", code="inputs")
        return str(self.inputs[n])

    def held(self, array: Any) -> str:
        """Add a constant."""
        return str(self.op("Constant", value=self._package.numpy_helper.from_array(np.asarray(array))))

    def op(self, operator: str, *inputs: str, outputs: Sequence[str] | None = None, **attributes: Any) -> Any:
        """Add a node, and return the name of its result, or the names of several."""
        own = [self._fresh(self.outputs[0])] if outputs is None else [*outputs]
        self.made.append(self._package.helper.make_node(operator, inputs, own, **attributes))
        return own[0] if outputs is None else own

    def several(self, count: int) -> list[str]:
        """Return names that no value has."""
        return [self._fresh(self.outputs[0]) for _ in range(count)]

    def end(self, operator: str, *inputs: str, n: int = 0, **attributes: Any) -> None:
        """Add the node whose result is output `n`, if that is wanted."""
        if n < len(self.outputs) and self.outputs[n]:
            self.op(operator, *inputs, outputs=[self.outputs[n]], **attributes)
