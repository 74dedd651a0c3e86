"""Graphs with conversions between bytes and floats as graphs that compute with bytes.

A value that `DequantizeLinear` computes is a byte that stands for a number. Nodes that only move elements move the
bytes; a convolution or a product of bytes has sums in 32 bits, which its epilogue converts to the bytes of the next
value; other operators convert as they load and store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from convsmith.network.graph import Graph, NetworkNode, Work
from convsmith.network.image import NetworkValue
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.on_bytes import CODES, OnBytes
from convsmith.network.operators.pad import Pad
from convsmith.network.operators.pointwise import Pointwise
from convsmith.network.operators.pool import Pool
from convsmith.network.operators.quantise import Dequantise, Quantise
from convsmith.network.operators.resize import Resize
from convsmith.network.operators.slice import Slice
from convsmith.network.quantised.byte_types import without_zero_points
from convsmith.network.quantised.codes import Code, code_of
from convsmith.network.quantised.integer_products import IntegerProduct, integer_product
from convsmith.network.quantised.sums_of_bytes import summed_product
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.statement.operator import Operator

__all__ = ["is_quantised", "with_integers"]


class _Bytes(NamedTuple):
    """The value `name`, whose bytes stand for numbers by `code`."""

    name: str
    code: Code


class _Result(NamedTuple):
    """The value `name`, to whose bytes the nodes `names` of the model convert a result by `code`."""

    name: str
    code: Code
    names: tuple[str, ...]


def is_quantised(graph: Graph) -> bool:
    """Return whether a graph has conversions between bytes and floats.

    Its arithmetic is that of the graph on bytes: steps between two conversions are rounded once, at their end.
    """
    return any(isinstance(node.work, Quantise | Dequantise) for node in graph.nodes)


def with_integers(graph: Graph) -> Graph:
    """Return the graph without the conversions that kernels on bytes make unnecessary."""
    return _Integers(without_zero_points(graph)).changed() if is_quantised(graph) else graph


class _Integers:
    """Rewrites the nodes of a graph in order."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._readers, self._makers = graph, graph.readers(), graph.makers()
        self._nodes: list[NetworkNode] = []
        self._constants, self._values = dict(graph.constants), dict(graph.values)
        self._bytes: dict[str, _Bytes] = {}
        self._same: dict[str, str] = {}
        self._made: set[str] = {x.name for x in graph.inputs}

    def changed(self) -> Graph:
        """Return the graph on bytes."""
        for node in self._graph.nodes:
            if node.output not in self._made:
                self._rewrite(node)
        made = replace(self._graph, values=self._values)
        return made.changed(self._nodes, self._constants)

    def _rewrite(self, node: NetworkNode) -> None:
        work = node.work
        code = code_of(work, node.arguments, self._constants)
        if isinstance(work, Dequantise) and code is not None:
            self._bytes[node.output] = _Bytes(self._name(node.arguments["src"]), code)
            if node.output in self._graph.outputs:
                self._real(node.output)
        elif isinstance(work, Quantise) and code is not None:
            self._quantise(node, code)
        elif isinstance(work, Conv | Matmul):
            self._product(node)
        elif isinstance(work, Operator) and not isinstance(work, Quantise | Dequantise):
            if not (self._moved(node) or self._summed(node) or self._on_bytes(node)):
                self._add(node.work, node.arguments, node.output, node.names)
        else:
            self._add(node.work, node.arguments, node.output, node.names)

    # -- conversions
    def _quantise(self, node: NetworkNode, code: Code) -> None:
        """Add a conversion to bytes, unless the bytes are there."""
        held = self._bytes.get(node.arguments["src"])
        if held is None:
            self._add(node.work, node.arguments, node.output, node.names)
        elif held.code == code:
            self._same[node.output] = held.name
            self._is_kept(node)
        else:
            self._recode(held, code, self._graph.values[node.output].shape, node.output, node.names)

    def _is_kept(self, node: NetworkNode) -> None:
        """Copy bytes that another value has if they are an output of the network."""
        if node.output in self._graph.outputs:
            value, source = self._graph.values[node.output], self._same.pop(node.output)
            self._append(Reshape(value.type, int(np.prod(value.shape))), {"src": source}, node.output, node.names)

    def _recode(self, held: _Bytes, code: Code, shape: tuple[int, ...], output: str, names: tuple[str, ...]) -> None:
        """Add the conversion of bytes to another code."""
        work = OnBytes(Pointwise("f32", (shape or (1,),)), (held.code.type, code.type))
        self._append(work, {"src_0": held.name, **self._coded(output, held.code, code)}, output, names)

    def _real(self, name: str) -> str:
        """Return the name of a value as floats, which are converted from bytes where a node needs them."""
        held = self._bytes.get(name)
        if held is None or name in self._made:
            return self._same.get(name, name)
        value = self._graph.values[name]
        work = Dequantise(held.code.type, value.shape or (1,))
        arguments = {"src": held.name, **self._numbers(name, held.code)}
        self._append(work, arguments, name, (f"conversion of {held.name}",))
        return name

    def _numbers(self, name: str, code: Code) -> dict[str, str]:
        """Return the arguments of a conversion to or from the value `name`."""
        numbers = {"scale": code.scale, "zero_point": code.point}
        return {array: self._held(f"{name}@{array}", np.array([x], np.float32)) for array, x in numbers.items()}

    def _coded(self, output: str, *codes: Code | None) -> dict[str, str]:
        """Return the argument of factors and zero points: of sources, and last of the result."""
        *sources, result = codes
        rows = [(1.0, 0) if x is None else (x.scale, x.point) for x in sources]
        rows.append((1.0, 0) if result is None else (float(result.factor), result.point))
        return {CODES: self._held(f"{output}@codes", np.array(rows, np.float32).reshape(-1))}

    def _output(self, node: NetworkNode, result: _Result | None) -> tuple[str, tuple[str, ...]]:
        """Return the value that a kernel computes for a node, with the nodes of the model that it computes."""
        if result is None:
            return node.output, node.names
        self._bytes[node.output] = _Bytes(result.name, result.code)
        return result.name, (*node.names, *result.names)

    def _result_code(self, node: NetworkNode) -> _Result | None:
        """Return the bytes to which the result of a node is converted; None if another node reads it."""
        readers = self._readers.get(node.output, [])
        codes = [code_of(r.work, r.arguments, self._constants) for r in readers if isinstance(r.work, Quantise)]
        code = codes[0] if len(codes) == len(readers) > 0 and node.output not in self._graph.outputs else None
        if code is None or any(other != code for other in codes):
            return None
        return _Result(readers[0].output, code, readers[0].names)

    # -- nodes
    def _moved(self, node: NetworkNode) -> bool:
        """Add a node that moves bytes, if `node` moves numbers that bytes stand for; return whether it does."""
        work, sources = node.work, [*node.arguments.values()]
        held = [self._bytes.get(name) for name in sources]
        if isinstance(work, Concat):
            return self._joined(node, work, held)
        first = held[0] if held else None
        if first is None:
            return False
        code = first.code
        if isinstance(work, Pointwise) and not work.binary and all(_is_nothing(code, s) for s in work.steps):
            self._bytes[node.output] = first
            if node.output in self._graph.outputs:
                self._real(node.output)
            return True
        moved: Operator
        if isinstance(work, Reshape | Transpose | Slice):
            moved = replace(work, type=code.type)
        elif isinstance(work, Pad) and self._has_byte(code, work.value, node):
            moved = OnBytes(replace(work, value=float(code.of(work.value))), (code.type, code.type), coded=False)
        elif isinstance(work, Operator) and _chooses(work):
            moved = OnBytes(work, (code.type, code.type), coded=False)
        else:
            return False
        arguments = {**node.arguments, "src": first.name}
        self._moves(node, moved, arguments, code)
        return True

    def _has_byte(self, code: Code, number: float, node: NetworkNode) -> bool:
        """Return whether a byte of a code stands for the number, or for what the result of `node` is converted to."""
        result = self._result_code(node)
        is_exact = (code.of(number) - code.point) * code.scale == number
        return is_exact or (result is not None and result.code == code)

    def _joined(self, node: NetworkNode, work: Concat, held: list[_Bytes | None]) -> bool:
        """Add the concatenation of bytes, if all parts have one code, or are converted to that of the result."""
        result, codes = self._result_code(node), {None if x is None else x.code for x in held}
        code = result.code if result is not None else next(iter(codes)) if len(codes) == 1 else None
        if code is None:
            return False
        arguments = {}
        for n, (x, shape, name) in enumerate(zip(held, work.shapes, node.arguments.values())):
            part, constant = f"{node.output}@part{n}", self._constants.get(name)
            if x is not None and x.code == code:
                part = x.name
            elif constant is None:
                self._values[part] = NetworkValue(part, shape, code.type)
            if constant is not None:
                numbers = np.array([code.scale], np.float32), np.array([code.point], np.float32)
                self._held(part, Quantise(code.type, shape).reference(constant.reshape(shape), *numbers))
            elif x is None:
                operands = {"src": self._real(name), **self._numbers(part, code)}
                self._append(Quantise(code.type, shape), operands, part, node.names)
            elif x.code != code:
                self._recode(x, code, shape, part, node.names)
            arguments[f"src_{n}"] = part
        self._moves(node, replace(work, type=code.type), arguments, code)
        return True

    def _moves(self, node: NetworkNode, work: Operator, arguments: Mapping[str, str], code: Code) -> None:
        """Add a node on bytes, whose result stands for the result of `node`."""
        result = self._result_code(node)
        name, names = f"{node.output}@{code.type}", node.names
        if result is not None and result.code == code:
            name, names = result.name, (*names, *result.names)
        value = self._graph.values[node.output]
        self._values[name] = NetworkValue(name, value.shape, code.type)
        self._append(work, arguments, name, names)
        self._bytes[node.output] = _Bytes(name, code)
        if node.output in self._graph.outputs:
            self._real(node.output)

    def _summed(self, node: NetworkNode) -> bool:
        """Make a sum of bytes part of the product that computes one of its terms, if it is one, the later one of two;
        return whether it is.
        """
        work, result = node.work, self._result_code(node)
        terms = [self._bytes[name] for name in node.arguments.values() if name in self._bytes]
        if not isinstance(work, Pointwise) or len(node.arguments) != 2 or len(terms) != 2 or result is None:
            return False
        places = {x.output: n for n, x in enumerate(self._nodes)}
        for own, other in sorted(permutations(terms), key=lambda x: -places.get(x[0].name, -1)):
            if own.name not in places or own.name == other.name or not self._is_inner(own.name, node):
                continue
            before = self._nodes[places[own.name]]
            made = summed_product(before, own.code, work, other.code, result.code)
            if made is not None:
                del self._nodes[places[own.name]]
                output, names = self._output(node, result)
                held = {array: self._held(f"{output}@{array}", x) for array, x in made.constants.items()}
                known = {t.name for t in made.work.tensors}
                kept = {array: x for array, x in before.arguments.items() if array in known}
                arguments = {**kept, made.addend: other.name, **held}
                self._append(made.work, arguments, output, (*before.names, *names))
                return True
        return False

    def _is_inner(self, name: str, node: NetworkNode) -> bool:
        """Return whether a product computes bytes that `node` alone reads, as floats."""
        rounding = self._makers.get(name)
        if rounding is None or not isinstance(rounding.work, Quantise):
            return False
        whole = rounding.arguments["src"]
        floats = [x.output for x in self._readers.get(name, ())]
        values = (whole, name, *floats)
        readers = [self._readers.get(x, []) for x in values]
        is_alone = [len(x) for x in readers] == [1, 1, 1] and readers[-1] == [node]
        return is_alone and not {*values} & {*self._graph.outputs}

    def _on_bytes(self, node: NetworkNode) -> bool:
        """Add an operator that converts as it loads and stores, if it reads or computes bytes; return whether it does.
        """
        work, own = node.work, getattr(node.work, "constants", {})
        assert isinstance(work, Operator)
        sources = {t.name: self._bytes.get(node.arguments[t.name]) for t in work.inputs if t.name not in own}
        result = self._result_code(node)
        if isinstance(work, Reshape) or any(t.dtype != "f32" for t in work.tensors):
            return False
        if result is None and not any(sources.values()):
            return False
        codes = [None if x is None else x.code for x in sources.values()] + [None if result is None else result.code]
        output, names = self._output(node, result)
        held = {array: x.name for array, x in sources.items() if x is not None}
        arguments = {array: held.get(array) or self._name(name) for array, name in node.arguments.items()}
        types = tuple("f32" if x is None else x.type for x in codes)
        self._append(OnBytes(work, types), {**arguments, **self._coded(output, *codes)}, output, names)
        return True

    def _product(self, node: NetworkNode) -> None:
        """Add a convolution or a product, of bytes if that is possible."""
        assert isinstance(node.work, Conv | Matmul)
        codes = {array: self._bytes[name].code for array, name in node.arguments.items() if name in self._bytes}
        result = self._result_code(node)
        made = integer_product(
            node, codes, None if result is None else result.code, self._constants, self._graph.integers
        )  # fmt: skip
        if made is None:
            self._add(node.work, node.arguments, node.output, node.names)
            return
        output, names = self._output(node, result)
        self._append(made.work, self._arguments(node, made, output), output, names)

    def _arguments(self, node: NetworkNode, made: IntegerProduct, output: str) -> dict[str, str]:
        """Return the arguments of a product of bytes."""
        found = {array: self._held(f"{output}@{array}", x) for array, x in made.constants.items()}
        for array, of in made.bytes.items():
            found[array] = self._bytes[node.arguments[of]].name
        for array, of in made.floats.items():
            found[array] = self._real(node.arguments[of])
        return found

    # -- results
    def _name(self, name: str) -> str:
        """Return the name of a value in the graph that is made."""
        return self._real(name) if name in self._bytes else self._same.get(name, name)

    def _held(self, name: str, x: Any) -> str:
        self._constants[name] = np.asarray(x)
        return name

    def _add(self, work: Work, arguments: Mapping[str, str], output: str, names: tuple[str, ...]) -> None:
        """Add a node as it is."""
        self._append(work, {array: self._name(x) for array, x in arguments.items()}, output, names)

    def _append(self, work: Work, arguments: Mapping[str, str], output: str, names: tuple[str, ...]) -> None:
        self._nodes.append(NetworkNode(work, arguments, output, tuple(dict.fromkeys(names))))
        self._made.add(output)


def _chooses(work: Operator) -> bool:
    """Return whether each element of an operator's result is one of its source, whatever increasing code they have."""
    return (isinstance(work, Pool) and work.kind == "max") or (isinstance(work, Resize) and work.rounding != "linear")


def _is_nothing(code: Code, step: Any) -> bool:
    """Return whether a step changes no number that a byte stands for."""
    low, high = (float((x - code.point) * np.float32(code.scale)) for x in code.limits)
    is_inside = (step.alg == "relu" and low >= 0) or (step.alg == "clip" and step.alpha <= low and high <= step.beta)
    return bool(step.scale == 1 and is_inside)
