"""PyTorch's exported programs as graphs of networks.

`torch.export` states a model as a graph of ATen's operators. Nodes whose arguments are all constants are computed while
the program is read; `ATEN` has a function for each other operator.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from convsmith.diag.errors import ConvsmithError, UnsupportedError
from convsmith.diag.forking import cached_property
from convsmith.network.builder import NO_KERNEL, GraphBuilder, unavailable
from convsmith.network.graph import Graph
from convsmith.network.image import NetworkValue
from convsmith.onnx.graph_node import GraphNode
from convsmith.onnx.graph_operators import GRAPH_OPERATORS
from convsmith.torch.aten_call import SMALL_TYPES, AtenCall, AtenRow
from convsmith.torch.aten_moves import MOVES_OF_ATEN
from convsmith.torch.aten_products import PRODUCTS
from convsmith.torch.aten_quantised import QUANTISED, integers_behind
from convsmith.torch.aten_values import VALUES
from convsmith.torch.statement import ProgramStatement, statement_of_export

__all__ = ["ATEN", "ReadProgram", "graph_of_program", "name_of"]

ATEN: Mapping[str, AtenRow] = {**PRODUCTS, **VALUES, **MOVES_OF_ATEN, **QUANTISED}
"""By ATen's name, the function that emits a call."""
CHECKS = ("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size")
"""Operators that compute nothing."""
_WITHOUT_VALUES = ("new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like")
"""Operators that read the shape and the type of a tensor, and not its elements."""


def name_of(node: fx.Node) -> str:
    """Return the name of the operator of a node."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else str(node.target)


def graph_of_program(program: ExportedProgram, name: str) -> Graph:
    """Return the graph of a program, for the sizes of its export.

    UnsupportedError names the nodes that no kernel computes, an argument that is no tensor, and a size that is open.
    """
    return ReadProgram(statement_of_export(program, name)).whole()


class ReadProgram:
    """A program whose nodes have been read once: `nodes` are its nodes, `tensors` its constants by name, and `refused`
    the reasons why nodes cannot be part of a graph; `parameters` are the module's names of constants. The module
    returns a tuple unless its result `is_single`.

    UnsupportedError for a size that is open.
    """

    def __init__(self, statement: ProgramStatement) -> None:
        self.name, self.nodes, self.inputs = statement.name, list(statement.graph.nodes), list(statement.inputs)
        self.parameters, self.is_single = statement.parameters, statement.is_single
        self.outputs: Any = self.nodes[-1].args[0]
        self._reader = _ProgramReader(self.name, self.nodes)
        for name, x in statement.constants.items():
            self._reader.hold(name, x)
        self._reader.take_inputs(self.inputs)
        self.refused = self._reader.read(self.nodes)

    @property
    def dtype(self) -> torch.dtype:
        """The coarsest type of the floats that the program computes."""
        values = (x for node in self.nodes for x in _several(node.meta.get("val")))
        types = {x.dtype for x in values if isinstance(x, Tensor) and x.dtype.is_floating_point}
        return max(types, key=lambda x: torch.finfo(x).eps, default=torch.float32)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The constants by name."""
        return self._reader.tensors

    @cached_property
    def computed(self) -> list[fx.Node]:
        """The nodes that compute values from the inputs."""
        calls = [node for node in self.nodes if node.op == "call_function" and not self.is_constant(node)]
        return [node for node in calls if name_of(node) not in CHECKS]

    def is_constant(self, node: fx.Node) -> bool:
        """Return whether a node depends on no input."""
        return node.name in self.tensors or f"{node.name}.0" in self.tensors

    def whole(self) -> Graph:
        """Return the graph of all nodes. UnsupportedError names those that no kernel computes."""
        if self.refused:
            wrong = [(node.name, str(node.target), why) for node, why in self.refused.items()]
            raise unavailable(self.name, wrong, ATEN)
        outputs = [x.name if isinstance(x, fx.Node) else str(x) for x in self.outputs]
        values = {x.name: x.meta["val"] for x in self.outputs if isinstance(x, fx.Node)}
        types = {torch.int64: np.dtype(np.int64), torch.bool: np.dtype(np.bool_)}
        return self._reader.graph(outputs, {name: types[x.dtype] for name, x in values.items() if x.dtype in types})

    def part(self, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> Graph:
        """Return the graph of some nodes, with these inputs and outputs. UnsupportedError if they have none."""
        names = [node.name for node in outputs]
        if not self.refused and [*nodes] == self.computed and [*inputs] == self.inputs:
            return self._reader.graph(names)
        reader = _ProgramReader(self.name, self.nodes)
        reader.tensors |= self.tensors
        reader.constants |= {name: x for name, x in self._reader.constants.items() if name in self.tensors}
        reader.integers |= {name: x for name, x in self._reader.integers.items() if name in self.tensors}
        reader.take_inputs(inputs)
        wrong = [(node.name, str(node.target), why) for node, why in reader.read(nodes).items()]
        if wrong:
            raise unavailable(self.name, wrong, ATEN)
        return reader.graph(names)


def _several(value: Any) -> Sequence[Any]:
    """Return the values of a node, of which it may have several."""
    return value if isinstance(value, list | tuple) else (value,)


class _ProgramReader(GraphBuilder):
    """Reads nodes of a program; `tensors` are its constants."""

    def __init__(self, name: str, nodes: Sequence[fx.Node]) -> None:
        super().__init__(name, {}, [node.name for node in nodes])
        self.tensors: dict[str, Tensor] = {}
        self._taken: dict[str, str] = {}

    def take_inputs(self, nodes: Sequence[fx.Node]) -> None:
        """Add the tensors among the values of some nodes as inputs."""
        for node in nodes:
            value = node.meta.get("val")
            if not isinstance(value, Tensor):
                continue
            if not all(isinstance(size, int) for size in value.shape):
                raise UnsupportedError(
                    f"{self.name}: the size of {node.name} is open, {tuple(value.shape)}; available are known sizes",
                    code="size",
                )
            if value.dtype in SMALL_TYPES:
                self.small[node.name] = SMALL_TYPES[value.dtype]
            wide = torch.float32 if value.dtype in SMALL_TYPES else value.dtype
            self.input(node.name, torch.empty(0, dtype=wide).numpy().dtype, tuple(value.shape))

    def hold(self, name: str, x: Tensor) -> None:
        """Add a constant."""
        self.tensors[name] = x
        x = x.float() if x.dtype in SMALL_TYPES else x
        if not x.is_complex():
            self.constants[name] = np.from_dlpack(x.resolve_neg().contiguous())  # `numpy()` would pin the storage

    def read(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
        """Add nodes to the graph, and return the reasons why some of them cannot be added."""
        wrong: dict[fx.Node, str] = {}
        for node in nodes:
            if node.op == "call_function":
                try:
                    self._read(node)
                except ConvsmithError as error:
                    wrong[node] = str(error)
                    self._guess(node)
        return wrong

    def _read(self, node: fx.Node) -> None:
        """Read a node: it becomes nodes of the graph, or constants."""
        if node.target is operator.getitem:
            self._take(node)
            return
        packet = getattr(node.target, "overloadpacket", None)
        name = name_of(node)
        if name in CHECKS:
            return
        if name in _WITHOUT_VALUES:
            forms = {x: x.meta["val"] for x in node.all_input_nodes}
            self._compute(node, {x: torch.zeros(tuple(y.shape), dtype=y.dtype) for x, y in forms.items()})
        elif packet is not None and all(x.name in self.tensors for x in node.all_input_nodes):
            if torch.Tag.nondeterministic_seeded in node.target.tags and name not in ATEN:  # type: ignore[union-attr]
                raise UnsupportedError("it draws random numbers", code="random")
            self._compute(node)
        elif name in ATEN:
            call, before = AtenCall(self, node), len(self.nodes)
            ATEN[name](call)
            if call.result.dtype in SMALL_TYPES:
                made = (x.output for x in self.nodes[before:] if self.values[x.output].type == "f32")
                self.small |= dict.fromkeys(made, SMALL_TYPES[call.result.dtype])
        else:
            raise UnsupportedError(NO_KERNEL, code="operator")

    def _compute(self, node: fx.Node, given: Mapping[fx.Node, Tensor] | None = None) -> None:
        """Compute a node whose arguments are constants, or `given`."""

        def held(x: fx.Node) -> Tensor:
            return self.tensors[x.name] if given is None else given[x]

        args, kwargs = fx.map_arg((node.args, node.kwargs), held)
        with torch.no_grad():
            found = node.target(*args, **kwargs)  # type: ignore[operator]
        behind = integers_behind(node.target, args, kwargs)
        if behind is not None:
            self.integers[node.name] = behind
        if isinstance(found, Tensor):
            self.hold(node.name, found)
        elif isinstance(found, bool | int | float):
            _insert(node, found)
        else:
            for n, x in enumerate(found):
                self.hold(f"{node.name}.{n}", x)

    def _take(self, node: fx.Node) -> None:
        """Give one of several results of a node the name under which others read it."""
        source: Any = node.args[0]
        name = f"{source.name}.{node.args[1]}"
        if name in self.tensors:
            self.hold(node.name, self.tensors[name])
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
        for n, x in enumerate(_several(value)):
            name = f"{node.name}.{n}" if isinstance(value, list | tuple) else node.name
            if isinstance(x, Tensor):
                self.values[name] = NetworkValue(name, tuple(x.shape), "f32")


def _insert(node: fx.Node, number: float) -> None:
    """Give the readers of a node, the element of a constant, its number."""
    for user in list(node.users):
        user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), lambda x: number if x is node else x)
