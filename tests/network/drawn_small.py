"""Random graphs of values in f16, bf16 and f32, whose casts are drawn too.

Every value that a node computes is a number of each of these types. So no rounding changes a number, wherever a network
rounds, and its results have one right value, which is computed in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from drawn_graphs import DrawnGraph, DrawnValue
from ml_dtypes import bfloat16
from onnx import TensorProto, helper

__all__ = ["DTYPES", "DrawnSmall"]

runtime: Any = import_module("onnxruntime")

DTYPES: dict[int, Any] = {
    TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: bfloat16,
}  # fmt: skip
"""Types of ONNX, and of numpy."""


class DrawnSmall(DrawnGraph):
    """A graph in the making. `types` has the types of values, `arrays` their numbers in f32."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.arrays: dict[str, Any] = {}
        self._main = self.r.choice((TensorProto.FLOAT16, TensorProto.BFLOAT16))
        self._changes = self.r.choice((0.0, 0.1, 0.3))
        self._casts: dict[tuple[str, int], str] = {}

    def input(self, shape: Sequence[int]) -> DrawnValue:
        made = super().input(shape)
        self.arrays[made.name] = self.rng.integers(-2, 3, shape).astype(np.float32)
        self.types[made.name] = self._type(self._main)
        return made

    def op(self, operator: str, *given: Any, outputs: int = 1, **attributes: Any) -> DrawnValue | None:
        """Add a node of one type, behind casts of operands of others; None if a result is no number of all types."""
        before, read = len(self.values), {*self.read}
        made = super().op(operator, *given, outputs=outputs, **attributes)
        if made is None:
            return None
        node = self.nodes[-1]
        results = self._computed(node)
        if results is None:
            self.nodes.pop()
            del self.values[before:]
            self.read = read
            return None
        first = next((self.types[name] for name in node.input if name in self.types), self._main)
        self._convert(node, self._type(first))
        self.arrays |= zip(node.output, results)
        return made

    def _type(self, usual: int) -> int:
        return self.r.choice([*DTYPES]) if self.r.random() < self._changes else usual

    def _computed(self, node: Any) -> list[Any] | None:
        """Return the results of a node in f32; None if they are not numbers of all types."""
        names = [name for name in dict.fromkeys(node.input) if name]
        known = {name: self.constants[name] if name in self.constants else self.arrays[name] for name in names}
        graph = helper.make_graph(
            [node], "node",
            [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for name, x in known.items()],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        try:
            found = runtime.InferenceSession(model.SerializeToString()).run(None, known)
        except Exception:  # what ONNX's inference takes and the runtime does not
            return None
        exact = all((y.astype(t).astype(np.float32) == y).all() for y in found for t in DTYPES.values())
        return list(found) if exact else None

    def _convert(self, node: Any, kind: int) -> None:
        """Give a node operands of a type, and note its results' type."""
        stays = set[str]()
        if node.op_type == "Resize":
            stays = {node.input[2]}
        elif node.op_type == "BatchNormalization" and self.r.random() < 0.3 and {*node.input[3:]} <= {*self.constants}:
            stays = {*node.input[3:]}
        for n, name in enumerate(node.input):
            if name in self.arrays and self.types[name] != kind:
                node.input[n] = self._cast(name, kind)
            elif name not in stays and name in self.constants and self.constants[name].dtype == np.float32:
                self.constants[name] = self.constants[name].astype(DTYPES[kind])
        self.types |= dict.fromkeys(node.output, kind)

    def _cast(self, name: str, kind: int) -> str:
        if (name, kind) not in self._casts:
            self._casts[name, kind] = made = f"t{len(self._casts)}"
            self.nodes.insert(len(self.nodes) - 1, helper.make_node("Cast", [name], [made], to=kind))
            self.arrays[made], self.types[made] = self.arrays[name], kind
        return self._casts[name, kind]
