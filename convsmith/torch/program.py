"""PyTorch's exported programs as graphs of networks.

`torch.export` states a model as a graph of ATen's operators. Nodes whose arguments are all constants are computed while
the program is read; `ATEN` has a function for each other operator.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from convsmith.diag.errors import ConvsmithError, UnsupportedError
from convsmith.diag.printable import printable
from convsmith.network.builder import NO_KERNEL, GraphBuilder, unavailable
from convsmith.network.graph import Graph
from convsmith.network.image import NetworkValue
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.graph_operators import GRAPH_OPERATORS
from convsmith.torch.aten_call import AtenCall, AtenRow
from convsmith.torch.aten_moves import MOVES_OF_ATEN
from convsmith.torch.aten_products import PRODUCTS
from convsmith.torch.aten_quantised import QUANTISED, integers_behind
from convsmith.torch.aten_values import VALUES

__all__ = ["ATEN", "graph_of_program"]

ATEN: Mapping[str, AtenRow] = {**PRODUCTS, **VALUES, **MOVES_OF_ATEN, **QUANTISED}
"""By ATen's name, the function that emits a call."""
_CHECKS = ("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size")
"""Operators that compute nothing."""
_WITHOUT_VALUES = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like")
"""Operators that read the shape and the type of a tensor, and not its elements."""


def graph_of_program(program: ExportedProgram, name: str) -> Graph:
    """Return the graph of a program, for the sizes of its export.

    UnsupportedError names the nodes that no kernel computes, an argument that is no tensor, and a size that is open.
    """
    return _ProgramReader(program, name).read()


class _ProgramReader(GraphBuilder):
    """Reads a program node by node; `tensors` are its constants."""

    def __init__(self, program: ExportedProgram, name: str) -> None:
        self._program = program.run_decompositions({})  # only makes every operator free of effects
        super().__init__(name, {}, (node.name for node in self._program.graph.nodes))
        self._tensors: dict[str, Tensor] = {}
        self._taken: dict[str, str] = {}
        given = {node.name: node.meta.get("val") for node in self._program.graph.nodes if node.op == "placeholder"}
        inner = {**self._program.state_dict, **self._program.constants}
        for spec in self._program.graph_signature.input_specs:
            if spec.kind is not InputKind.USER_INPUT:
                self._hold(spec.arg.name, inner[str(spec.target)].detach())
                continue
            value = given.get(spec.arg.name)
            if isinstance(value, Tensor):
                if not all(isinstance(size, int) for size in value.shape):
                    raise UnsupportedError(
                        f"{name}: the size of {spec.arg.name} is open, {tuple(value.shape)}; available are known sizes",
                        code="size",
                    )
                dtype = torch.empty(0, dtype=value.dtype).numpy().dtype
                self.input(spec.arg.name, dtype, tuple(value.shape))

    def _hold(self, name: str, x: Tensor) -> None:
        """Add a constant."""
        self._tensors[name] = x
        if x.dtype not in (torch.bfloat16,) and not x.is_complex():
            self.constants[name] = x.resolve_neg().contiguous().numpy()

    def read(self) -> Graph:
        """Return the graph."""
        wrong: list[tuple[str, str, str]] = []
        for node in self._program.graph.nodes:
            if node.op == "call_function":
                try:
                    self._read(node)
                except ConvsmithError as error:
                    wrong.append((node.name, str(node.target), str(error)))
                    self._guess(node)
        if wrong:
            raise unavailable(self.name, wrong, ATEN)
        outputs = []
        for spec in self._program.graph_signature.output_specs:
            if spec.kind is OutputKind.USER_OUTPUT:
                outputs.append(str(spec.arg.name))
            else:
                raise UnsupportedError(
                    f"{self.name}: it changes {printable(str(spec.target))}; available are models without effects",
                    code="effects",
                )
        return self.graph(outputs)

    def _read(self, node: fx.Node) -> None:
        """Read a node: it becomes nodes of the graph, or constants."""
        if node.target is operator.getitem:
            self._take(node)
            return
        packet = getattr(node.target, "overloadpacket", None)
        name = packet.__name__ if packet is not None else str(node.target)
        if name in _CHECKS:
            return
        if name in _WITHOUT_VALUES:
            forms = {x: x.meta["val"] for x in node.all_input_nodes}
            self._compute(node, {x: torch.zeros(tuple(y.shape), dtype=y.dtype) for x, y in forms.items()})
        elif packet is not None and all(x.name in self._tensors for x in node.all_input_nodes):
            self._compute(node)
        elif name in ATEN:
            ATEN[name](AtenCall(self, node))
        else:
            raise UnsupportedError(NO_KERNEL, code="operator")

    def _compute(self, node: fx.Node, given: Mapping[fx.Node, Tensor] | None = None) -> None:
        """Compute a node whose arguments are constants, or `given`."""

        def held(x: fx.Node) -> Tensor:
            return self._tensors[x.name] if given is None else given[x]

        args, kwargs = fx.map_arg((node.args, node.kwargs), held)
        with torch.no_grad():
            found = node.target(*args, **kwargs)  # type: ignore[operator]
        behind = integers_behind(node.target, args, kwargs)
        if behind is not None:
            self.integers[node.name] = behind
        if isinstance(found, Tensor):
            self._hold(node.name, found)
        else:
            for n, x in enumerate(found):
                self._hold(f"{node.name}.{n}", x)

    def _take(self, node: fx.Node) -> None:
        """Give one of several results of a node the name under which others read it."""
        source: Any = node.args[0]
        name = f"{source.name}.{node.args[1]}"
        if name in self._tensors:
            self._hold(node.name, self._tensors[name])
            return
        if name in self.values:
            self.rename(name, node.name)
            self._taken[name] = node.name
        else:
            GRAPH_OPERATORS["Identity"](GraphNode(self, node.name, "Identity", [self._taken[name]], [node.name], {}))

    def _guess(self, node: fx.Node) -> None:
        """Give the results of a node that cannot be read their shapes, so that later nodes are read, and reported, too.
        """
        value = node.meta.get("val")
        for n, x in enumerate(value if isinstance(value, list | tuple) else [value]):
            name = f"{node.name}.{n}" if isinstance(value, list | tuple) else node.name
            if isinstance(x, Tensor):
                self.values[name] = NetworkValue(name, tuple(x.shape), "f32")
