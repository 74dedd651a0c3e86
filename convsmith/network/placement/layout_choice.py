"""The choice of layouts in a graph, by the cycles that the cost model expects of kernels and copies.

Values between convolutions have their channels last. A convolution at the border of the network, or beside a node that
takes row-major arrays only, reads or computes such arrays where that takes fewer cycles than a kernel on channels-last
ones with a copy. Values between other
operators have the layout with the least cycles of the operators around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Stmt, Store
from convsmith.ir.types import dtype
from convsmith.ir.value import Load, Select, Value
from convsmith.ir.walk import statements_of, variables_of, walk
from convsmith.machine.base import Machine
from convsmith.network.graph import Graph, NetworkNode, Work, result_of
from convsmith.network.operators.move import Transpose
from convsmith.network.placement.layouts import FIRST, LAST, Layouts, is_image, same_memory, tagged, takes_any
from convsmith.problem.conv import Conv
from convsmith.problem.tensor import Tensor
from convsmith.statement.operator import RESULT, Operator
from convsmith.tune.compile import default_cycles

__all__ = ["chosen_layouts", "operator_cycles"]

_ROUNDS = 4
"""Maximum number of passes over the values whose layouts depend on each other."""


def chosen_layouts(graph: Graph, machine: Machine, threads: int = 1) -> Layouts:
    """Return the layouts of `graph`, whose inputs and outputs are row-major, for kernels of `machine`."""
    return _Choice(graph, machine, threads).layouts()


def operator_cycles(op: Operator, machine: Machine) -> float:
    """Return the cycles that an operator is expected to take on one thread: loads and stores of vectors along the lanes
    of its result, or of single lanes where an array is not contiguous along them.
    """
    prices, result = machine.prices, result_of(op)
    lanes = machine.lanes(dtype(result.dtype).bits)
    along = result.layout.contiguous
    elements = prod(result.shape)
    nests = op.nests()
    visits = sum(prod(d.size for d in nest.dims) for nest in nests.statements)
    vectors = elements / lanes if along is not None else elements
    cycles, reads = vectors * _access(result, machine), vectors * visits / elements
    for t in op.inputs:
        read = _lane_of(nests.kernel.body, t, None if along is None else along.dim)
        if prod(t.shape) == 1 or read == "none":
            cycles += reads * prices["broadcast"] / 2
        elif read == "vector":
            cycles += reads * _access(t, machine)
        else:
            cycles += visits * prices["lane_load"]
    return float(cycles)


def _access(t: Tensor, machine: Machine) -> float:
    return machine.prices["beyond_line" if t.nbytes > machine.l2.bytes else "l2"]


def _lane_of(body: Stmt, t: Tensor, lane: int | None) -> str:
    """Return how lanes along dim `lane` of the result lie in an input that nests read: as a "vector", "apart", which
    lanes of a window are that reach beyond an array, or all the same.
    """
    if lane is None:
        return "apart"
    along = {v for x in statements_of(body) if _writes(x, RESULT) for v in variables_of(x.index[lane])}  # type: ignore[attr-defined]
    every = [x for x in walk(body) if isinstance(x, Load) and x.buffer.name == t.name]
    reads = [(x, v) for x in every for v in along & variables_of(x)]
    if every and not reads:
        return "none"
    contiguous = t.layout.contiguous
    if not every or contiguous is None or any(_step(x.index[contiguous.dim], v) is not as_index(1) for x, v in reads):
        return "apart"
    masks = (x for x in walk(body) if isinstance(x, Select) and _reads(x.yes, t.name))
    return "apart" if any(along & variables_of(x.cond) for x in masks) else "vector"


def _writes(x: Stmt, name: str) -> bool:
    return isinstance(x, Store) and x.buffer.name == name


def _reads(x: Value, name: str) -> bool:
    return any(isinstance(y, Load) and y.buffer.name == name for y in walk(x))


def _step(at: Index, v: Var) -> Index:
    """Return the difference of an index from one value of `v` to the next."""
    following: Index = substitute(at, {v: v + 1})
    return following - at


class _Choice:
    """Chooses the layouts of a graph."""

    def __init__(self, graph: Graph, machine: Machine, threads: int) -> None:
        self._graph, self._machine, self._threads = graph, machine, threads
        self._readers, self._makers = graph.readers(), graph.makers()
        self._border = {*graph.outputs, *(x.name for x in graph.inputs)}
        self._border |= {name for name in graph.values if self._is_row_major_around(name)}
        self._known: dict[Work, float] = {}
        images = [name for name, x in graph.values.items() if is_image(x.shape) and name not in self._border]
        of_convs = {name for name in images if self._is_of_conv(name)}
        self._tags = {name: LAST if name in of_convs else FIRST for name in graph.values}
        self._free = [name for name in images if name not in of_convs and name in self._makers]

    def layouts(self) -> Layouts:
        """Return the choice: from all free values in one layout, and from all in the other, the better end."""
        ends = [self._end(start) for start in (LAST, FIRST)]
        self._tags = min(ends, key=self._total)
        reads: dict[tuple[str, str], str] = {}
        writes: dict[str, str] = {}
        for node in self._graph.nodes:
            if isinstance(node.work, Conv):
                self._at_border(node, reads, writes)
        return Layouts(self._tags, reads, writes)

    def _end(self, start: str) -> dict[str, str]:
        """Return the layouts that no change of a single value makes better, from free values in the layout `start`."""
        self._tags = self._tags | dict.fromkeys(self._free, start)
        for _ in range(_ROUNDS):
            before = dict(self._tags)
            for name in self._free:
                self._tags[name] = min((LAST, FIRST), key=lambda tag, of=name: self._around(of, tag))  # type: ignore[misc]
            if before == self._tags:
                break
        return self._tags

    def _total(self, tags: dict[str, str]) -> float:
        """Return the cycles of all operators around free values, and of the copies of these values."""
        self._tags = tags
        around = {id(node): node for name in self._free for node in self._nodes_around(name)}
        works = [tagged(node.work, self._own_tags(node)) for node in around.values()]
        cycles = sum(self._cycles(work) for work in works if isinstance(work, Operator))
        return cycles + sum(self._copy(name) for name in self._free if self._is_copied(name))

    def _nodes_around(self, name: str) -> tuple[NetworkNode, ...]:
        """Return the node that computes a free value, and those that read it."""
        return (self._makers[name], *self._readers.get(name, ()))

    def _is_row_major_around(self, name: str) -> bool:
        """Return whether the node that computes a value, or every node that reads it, takes row-major arrays only."""
        value, maker = self._graph.values[name], self._makers.get(name)
        if maker is not None and not takes_any(maker.work, result_of(maker.work).name, value):
            return True
        readers = self._readers.get(name, ())
        uses = ((node.work, array) for node in readers for array, x in node.arguments.items() if x == name)
        return not any(takes_any(work, array, value) for work, array in uses)

    def _is_of_conv(self, name: str) -> bool:
        """Return whether a convolution reads or computes a value."""
        around = [*self._readers.get(name, ()), *([self._makers[name]] if name in self._makers else [])]
        return any(isinstance(node.work, Conv) for node in around)

    def _at_border(self, node: NetworkNode, reads: dict[tuple[str, str], str], writes: dict[str, str]) -> None:
        """Choose the layouts in which a convolution reads and writes row-major values."""
        source, own = node.arguments["src"], self._own_tags(node)
        options = [("src", source)] if own["src"] == FIRST and is_image(self._graph.values[source].shape) else []
        options += [("dst", node.output)] if own["dst"] == FIRST else []
        for array, name in options:
            shape = self._graph.values[name].shape
            if same_memory(shape, FIRST, LAST):
                continue
            directly = self._cycles(tagged(node.work, own))
            copied = self._cycles(tagged(node.work, {**own, array: LAST})) + self._copy(name)
            if copied < directly:
                own[array] = LAST
                if array == "src":
                    reads[node.output, "src"] = LAST
                else:
                    writes[node.output] = LAST

    def _own_tags(self, node: NetworkNode) -> dict[str, str]:
        """Return the layouts in which a work reads and computes values without copies."""
        named = {**node.arguments, result_of(node.work).name: node.output}
        return {
            array: self._tags.get(name, FIRST) if takes_any(node.work, array, self._graph.values[name]) else FIRST
            for array, name in named.items()
            if name in self._graph.values
        }

    def _around(self, name: str, tag: str) -> float:
        """Return the cycles of the operators that compute and read a value in the layout `tag`, and of its copies."""
        before, self._tags[name] = self._tags[name], tag
        try:
            return sum(self._costs(name))
        finally:
            self._tags[name] = before

    def _costs(self, name: str) -> Iterator[float]:
        for node in self._nodes_around(name):
            if isinstance(node.work, Operator):
                yield self._cycles(tagged(node.work, self._own_tags(node)))
        yield self._copy(name) if self._is_copied(name) else 0.0

    def _is_copied(self, name: str) -> bool:
        """Return whether a node around a free value has it in another layout than its own."""
        shape, tag = self._graph.values[name].shape, self._tags[name]
        return any(
            value == name and not same_memory(shape, own[array], tag)
            for node in self._nodes_around(name)
            for own in [self._own_tags(node)]
            for array, value in (*node.arguments.items(), ("dst", node.output))
        )

    def _copy(self, name: str) -> float:
        """Return the cycles of a copy of a value to the other layout."""
        x = self._graph.values[name]
        return self._cycles(Transpose(x.type, x.shape, tuple(range(len(x.shape))), (FIRST, LAST)))

    def _cycles(self, work: Work) -> float:
        """Return the cycles that a kernel is expected to take."""
        if work not in self._known:
            if isinstance(work, Transpose) and work.keeps_order:
                self._known[work] = 0.0
            elif isinstance(work, Operator):
                self._known[work] = operator_cycles(work, self._machine)
            else:
                self._known[work] = default_cycles(work, self._machine, self._threads)
        return self._known[work]
