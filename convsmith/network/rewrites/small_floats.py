"""Graphs of f32 whose values are stored in smaller types: those that the model stores so, or all inside of the network.

Products of such values multiply them. Biases and other constants but weights stay f32. Sums are f32, and so is the
arithmetic of all operators, which convert as they load and store. A node that reads or computes other types keeps its
values of f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.operators.choice import ChangeType
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.expand import Expand
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.on_bytes import OnBytes
from convsmith.network.operators.slice import Slice
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.post_ops import BinaryPostOp
from convsmith.statement.operator import Operator

__all__ = ["DTYPES", "SMALL_FLOATS", "check_dtype", "with_small_floats"]

SMALL_FLOATS = ("bf16", "f16")
"""Types in which a model may store values that kernels compute in f32."""
DTYPES = ("f32", "bf16")
"""Types in which values of f32 may be stored."""
_PLAIN = "f32"


def check_dtype(dtype: str) -> None:
    """Raise UsageError unless ``dtype`` is one of `DTYPES`."""
    if dtype not in DTYPES:
        raise UsageError(f"dtype {shown(dtype)}; legal are {choices(dtype, DTYPES)}", code="dtype")


def with_small_floats(graph: Graph, dtype: str) -> Graph:
    """Return the graph whose values of f32 have the types in which the model stores them; those between nodes are of
    ``dtype``, one of `DTYPES`, where the model stores f32.
    """
    return graph if dtype == _PLAIN and not graph.small else _Narrowed(graph, dtype).changed()


class _Narrowed:
    """Rewrites the nodes of a graph in order."""

    def __init__(self, graph: Graph, dtype: str) -> None:
        self._graph, self._dtype = graph, dtype
        inputs = tuple(replace(x, type=graph.small.get(x.name, x.type)) for x in graph.inputs)
        self._inputs, self._border = inputs, {*(x.name for x in inputs), *graph.outputs}
        self._values, self._nodes = {**graph.values, **{x.name: x for x in inputs}}, list[NetworkNode]()
        self._copies: dict[tuple[str, str], str] = {}

    def changed(self) -> Graph:
        """Return the graph with conversions where nodes need them."""
        for node in self._graph.nodes:
            work, factors = node.work, self._factors(node)
            if factors != _PLAIN and isinstance(work, Conv | Matmul) and work.dt == (_PLAIN,) * 3:
                self._product(node, work, factors)
            elif isinstance(work, Operator) and all(t.dtype == _PLAIN for t in work.tensors):
                self._operator(node, work)
            else:
                self._plain(node)
        return replace(self._graph, values=self._values, inputs=self._inputs).changed(self._nodes)

    def _stored(self, name: str) -> str:
        """Return the type of a value of f32 in memory."""
        return self._graph.small.get(name) or (_PLAIN if name in self._border else self._dtype)

    def _factors(self, node: NetworkNode) -> str:
        """Return the type of the factors of a product: those of the model, and the small one where these are f32."""
        names = (node.arguments.get(array, "") for array in ("src", "wei"))
        return next((self._graph.small[x] for x in names if x in self._graph.small), self._dtype)

    def _result(self, node: NetworkNode) -> str:
        """Return the type of a node's result."""
        dtype = self._stored(node.output)
        self._values[node.output] = replace(self._values[node.output], type=dtype)
        return dtype

    def _plain(self, node: NetworkNode) -> None:
        """Add a node that reads f32, with a conversion behind it if its result is stored in another type."""
        arguments = {array: self._as(name, _PLAIN) for array, name in node.arguments.items()}
        value = self._values[node.output]
        if value.type != _PLAIN or node.output not in self._graph.small:
            self._nodes.append(replace(node, arguments=arguments))
            return
        wide = replace(value, name=f"{node.output}@{_PLAIN}")
        self._values[wide.name] = wide
        self._nodes.append(replace(node, arguments=arguments, output=wide.name))
        work = ChangeType(_PLAIN, self._result(node), value.shape or (1,))
        self._nodes.append(NetworkNode(work, {"src": wide.name}, node.output, (node.name,)))

    def _type(self, name: str) -> str:
        """Return the type of an argument: constants of operators are f32."""
        return _PLAIN if name in self._graph.constants else self._values[name].type

    def _as(self, name: str, dtype: str) -> str:
        """Return the name of a value in a type, f32 or a small one, after a conversion if there is none yet."""
        if name in self._graph.constants or self._values[name].type not in (_PLAIN, *SMALL_FLOATS):
            return name
        value = self._values[name]
        if value.type == dtype:
            return name
        if (name, dtype) not in self._copies:
            self._copies[name, dtype] = copy = f"{name}@{dtype}"
            self._values[copy] = replace(value, name=copy, type=dtype)
            work = ChangeType(value.type, dtype, value.shape or (1,))
            self._nodes.append(NetworkNode(work, {"src": name}, copy, (f"conversion of {name}",)))
        return self._copies[name, dtype]

    def _product(self, node: NetworkNode, work: Conv | Matmul, dtype: str) -> None:
        factors = {array: self._as(node.arguments[array], dtype) for array in ("src", "wei")}
        others = {array: name for array, name in node.arguments.items() if array not in factors}
        post_ops = tuple(
            replace(op, dtype=self._type(others[f"post_op_{n}"])) if isinstance(op, BinaryPostOp) else op
            for n, op in enumerate(work.post_ops)
        )
        types = (dtype, dtype, self._result(node))
        made = replace(work, dt=types, post_ops=post_ops)
        self._nodes.append(replace(node, work=made, arguments={**factors, **others}))

    def _operator(self, node: NetworkNode, work: Operator) -> None:
        if isinstance(work, Reshape | Transpose | Slice | Concat | Expand):
            self._move(node, work)
            return
        own = work.constants
        types = tuple(self._type(node.arguments[t.name]) for t in work.inputs if t.name not in own)
        made = OnBytes(work, (*types, self._result(node)), coded=False)
        self._nodes.append(replace(node, work=made if {*made.types} != {_PLAIN} else work))

    def _move(self, node: NetworkNode, work: Reshape | Transpose | Slice | Concat | Expand) -> None:
        """Add a node that moves elements, in the type of its result."""
        dtype = self._result(node)
        arguments: Mapping[str, str] = {array: self._as(name, dtype) for array, name in node.arguments.items()}
        self._nodes.append(replace(node, work=replace(work, type=dtype), arguments=arguments))
