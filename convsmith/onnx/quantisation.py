"""`quantize`: a model of floats as one whose convolutions, products and operators between them work on bytes.

The result has conversions around operators (QDQ), which other runtimes read too. Activations are u8 with one scale,
weights s8 with one scale for each output channel, biases s32 in units of the sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.diag.files import whole_file
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.onnx.calibration import ByteCode, calibrated
from convsmith.onnx.models import OnnxModel, Shapes, operator_of, read_model
from convsmith.onnx.network import compile
from convsmith.runtime.arrays import Array

__all__ = ["QuantizedModel", "ValueLoss", "quantize"]

_OPSET = 13
"""The first operator set with a scale for each channel."""
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_SAME = ("MaxPool", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze")
"""Operators whose result has the bytes of their source."""
_ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "HardSwish", "Sigmoid", "HardSigmoid", "Tanh", "Elu")
_ON_BYTES = (
    *_PRODUCTS, *_SAME, *_ACTIVATIONS, "Add", "Sub", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "ReduceMean",
    "Resize",
)  # fmt: skip
"""Operators that work on bytes."""
_FOLDED = ("Relu", "Clip")
"""Activations that are one step with the product before them."""


@record(frozen=True)
class ValueLoss:
    """The ratio of signal to noise, in dB, of a value of the quantised model; the node `node` of the model computes it.
    """

    value: str
    node: str
    decibels: float


@record(frozen=True)
class QuantizedModel:
    """A quantised model: an `onnx.ModelProto`, and the loss of each value that it holds as bytes, and of outputs."""

    model: Any
    losses: tuple[ValueLoss, ...]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file. UsageError if it cannot be written."""
        try:
            with whole_file(path) as file:
                file.write(self.model.SerializeToString())
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{os.fspath(path)}: cannot be written: {why}", code="bad-file") from None

    def __str__(self) -> str:
        width = max(len(printable(x.node)) for x in self.losses)
        return "\n".join(f"{printable(x.node):{width}}  {x.decibels:6.1f} dB" for x in self.losses)


def quantize(
    model: str | os.PathLike[str] | bytes | Any, samples: Iterable[Mapping[str, Array] | Array], *,
    method: str = "min-max", percentile: float = 99.99, inputs: Shapes | None = None,
) -> QuantizedModel:  # fmt: skip
    """Return the ONNX `model` with u8 activations, whose ranges follow from `samples`, and s8 weights.

    A sample is the inputs by name, or the only input. `method` is "min-max", "percentile" (the range of so many percent
    of a value's numbers), or "mean-square" (the range with the least squares of errors). `inputs` are as in `compile`.
    UsageError if an argument is not legal; UnsupportedError names the nodes that no kernel computes.
    """
    read = read_model(model, inputs, with_data=True)
    opset = next((x.version for x in read.proto.opset_import if x.domain in ("", "ai.onnx")), 0)
    if opset < _OPSET:
        raise UsageError(f"{read.name}: operator set {opset}; legal are {_OPSET} and later", code="opset")
    given = [_named(read, sample) for sample in samples]
    return _Quantisation(read, inputs).quantised(given, method, percentile)


def _named(model: OnnxModel, sample: Mapping[str, Array] | Array) -> Mapping[str, Array]:
    """Return the inputs of a sample by name."""
    names = [*model.free_inputs]
    named = sample if isinstance(sample, Mapping) else dict(zip(names, [sample]))
    if {*named} != {*names}:
        wrong, legal = (", ".join(map(printable, x)) for x in (named, names))
        raise UsageError(f"samples: one has {wrong}; legal are the inputs {legal}", code="samples")
    return named


def _readers(nodes: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the nodes that read each value."""
    found: dict[str, list[Any]] = {}
    for node in nodes:
        for name in dict.fromkeys(node.input):
            found.setdefault(name, []).append(node)
    return found


class _Quantisation:
    """Quantises a model."""

    def __init__(self, model: OnnxModel, shapes: Shapes | None) -> None:
        self._model, self._shapes, self._helper = model, shapes, model.package.helper
        graph = model.graph
        self._held = dict(model.initializers)
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self._held[node.output[0]] = model.held(node.output[0])
        self._outputs = [x.name for x in graph.output]
        self._nodes = self._folded([node for node in graph.node if node.op_type != "Constant"])
        self._readers = _readers(self._nodes)
        self._makers = {name: node for node in self._nodes for name in node.output}
        self._names = {*self._held, *self._readers, *self._makers}
        self._made: list[Any] = []
        self._constants: dict[str, Array] = {}
        self._floats: dict[str, str] = {}

    def quantised(self, samples: Sequence[Mapping[str, Array]], method: str, percentile: float) -> QuantizedModel:
        """Return the quantised model."""
        names = self._values()
        if not names:
            legal = ", ".join(_PRODUCTS)
            raise UsageError(f"{self._model.name}: no node with constant weights; legal are {legal}", code="model")
        run = self._runner(self._model.whole, [x for x in names if x in self._makers])
        codes = calibrated(run, samples, [x for x in names if self._source(x) == x], method, percentile)
        made = self._rewritten({name: codes[self._source(name)] for name in names})
        after = self._runner(made, [self._floats[name] for name in names])
        losses = self._losses(names, run, after, samples)
        return QuantizedModel(made, losses)

    def _folded(self, nodes: Sequence[Any]) -> list[Any]:
        """Return the nodes without batch norms after convolutions, whose factors become part of weights and biases."""
        readers, made = _readers(nodes), dict[str, Any]()
        for node in nodes:
            conv = made.get(node.input[0]) if operator_of(node) == "BatchNormalization" else None
            factors = [self._held.get(name) for name in (*node.input[1:5], *(() if conv is None else conv.input[1:3]))]
            inner = "" if conv is None or operator_of(conv) != "Conv" else conv.output[0]
            is_read_once = inner and len(readers[inner]) == 1 and inner not in self._outputs
            if is_read_once and all(x is not None for x in factors):
                del made[inner]
                node = self._normalised(conv, node, factors)
            made[node.output[0]] = node
        return [*made.values()]

    def _normalised(self, conv: Any, norm: Any, factors: Sequence[Any]) -> Any:
        """Return one convolution for both nodes; `factors` are those of the norm, the weights and the bias."""
        scale, shift, mean, variance, weights, *bias = factors
        epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
        wide = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        node = type(conv)()
        node.CopyFrom(conv)
        parts = (
            weights * wide.reshape(-1, *(1,) * (weights.ndim - 1)),
            (bias[0] - mean if bias else -mean) * wide + shift,
        )
        held = [f"{norm.output[0]}_{kind}" for kind in ("weights", "bias")]
        self._held |= {name: x.astype(np.float32) for name, x in zip(held, parts)}
        node.input[:] = [conv.input[0], *held]
        node.output[:] = norm.output[:1]
        return node

    # -- which values are bytes
    def _is_on_bytes(self, node: Any) -> bool:
        """Return whether a node works on bytes: a product only if its weights are constants of floats."""
        if operator_of(node) not in _ON_BYTES or not self._is_float(node.output[0]):
            return False
        if node.op_type not in _PRODUCTS:
            return True
        weights = self._held.get(node.input[1])
        bias = [*node.input, "", ""][2]
        numbers = {a.name: a.f for a in node.attribute if a.name in ("alpha", "beta")}
        return (
            weights is not None and weights.dtype == np.float32 and (node.op_type == "Conv" or weights.ndim == 2)
            and (not bias or bias in self._held) and all(x == 1 for x in numbers.values())
            and not any(a.name == "transA" and a.i for a in node.attribute)
        )  # fmt: skip

    def _is_float(self, name: str) -> bool:
        dtype, _ = self._model.types.get(name, (None, ()))
        return dtype == np.float32

    def _values(self) -> list[str]:
        """Return the values that are bytes, in order: those that nodes on bytes read, but for values between a product
        and its activation.
        """
        found: dict[str, None] = {}
        products = [n for n in self._nodes if n.op_type in _PRODUCTS and self._is_on_bytes(n)]
        for node in self._nodes if products else ():
            if not self._is_on_bytes(node):
                continue
            for name in node.input[:1] if node.op_type in ("Resize", *_PRODUCTS) else node.input:
                is_value = name and name not in self._held and self._is_float(name)
                if is_value and not self._is_inside(name, node):
                    found[name] = None
        return [*found]

    def _is_inside(self, name: str, reader: Any) -> bool:
        """Return whether a value lies between a product and its activation, or is a gate of the product with a value.
        """
        maker, readers = self._makers.get(name), self._readers[name]
        if maker is None or name in self._outputs:
            return False
        if reader.op_type == "Mul" and maker.op_type in ("Sigmoid", "HardSigmoid") and len(readers) == 1:
            return maker.input[0] in reader.input
        if maker.op_type == "Add":
            return len(readers) == 1 and reader.op_type in _FOLDED
        if maker.op_type not in _PRODUCTS or not self._is_on_bytes(maker):
            return False
        if len(readers) == 1:
            return reader.op_type in (*_FOLDED, "HardSwish")
        gates = [r for r in readers if r.op_type in ("Sigmoid", "HardSigmoid")]
        products = [r for r in readers if r.op_type == "Mul" and gates and gates[0].output[0] in r.input]
        return len(readers) == 2 and len(gates) == len(products) == 1

    def _source(self, name: str) -> str:
        """Return the value whose code a value has: that before operators that only move bytes."""
        maker = self._makers.get(name)
        if maker is not None and operator_of(maker) in _SAME and self._is_on_bytes(maker):
            before = maker.input[0]
            if before not in self._held and self._is_float(before) and not self._is_inside(before, maker):
                return self._source(before)
        return name

    # -- the new model
    def _rewritten(self, codes: Mapping[str, ByteCode]) -> Any:
        """Return the model with conversions around the values of `codes`."""
        for name in self._model.free_inputs:
            if name in codes:
                self._convert(name, codes[name])
        for node in self._nodes:
            made = type(node)()
            made.CopyFrom(node)
            made.input[:] = [self._floats.get(name, name) if self._is_on_bytes(node) else name for name in node.input]
            if node.op_type in _PRODUCTS and self._is_on_bytes(node) and node.input[0] in codes:
                self._weights(made, node, codes[node.input[0]])
            self._made.append(made)
            for name in node.output:
                if name in codes:
                    self._convert(name, codes[name])
        proto = type(self._model.proto)()
        proto.CopyFrom(self._model.proto)
        graph = proto.graph
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(self._made)
        read = {name for node in self._made for name in node.input}
        for name, x in {**self._held, **self._constants}.items():
            if name in read:
                graph.initializer.append(self._model.package.numpy_helper.from_array(x, name))
        return proto

    def _convert(self, name: str, code: ByteCode) -> None:
        """Add the conversions of a value to bytes and back."""
        numbers = [self._constant(f"{name}_scale", code.scale), self._constant(f"{name}_zero_point", code.point)]
        held = self._node("QuantizeLinear", [name, *numbers], f"{name}_bytes")
        self._floats[name] = self._node("DequantizeLinear", [held, *numbers], f"{name}_floats")

    def _weights(self, made: Any, node: Any, code: ByteCode) -> None:
        """Replace the weights and the bias of a product by bytes and their conversions."""
        name = node.input[1]
        values: Any = self._held[name]
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        axis = 0 if node.op_type == "Conv" or turned else 1
        scale: Any = np.abs(values).max(tuple(n for n in range(values.ndim) if n != axis)) / np.float32(127)
        scale = np.where(scale > 0, scale, 1).astype(np.float32)
        along = tuple(-1 if n == axis else 1 for n in range(values.ndim))
        held = np.clip(np.rint(values / scale.reshape(along)), -127, 127).astype(np.int8)
        made.input[1] = self._dequantised(name, made.output[0], held, scale, axis)
        bias = [*node.input, "", ""][2] if node.op_type != "MatMul" else ""
        if bias:
            units = (scale * code.scale).astype(np.float32)
            whole = np.rint(np.broadcast_to(self._held[bias], units.shape) / units)
            if np.abs(whole).max() < 2**31:
                made.input[2] = self._dequantised(bias, made.output[0], whole.astype(np.int32), units, 0)

    def _dequantised(self, name: str, of: str, values: Array, scale: Array, axis: int) -> str:
        """Add constant bytes and their conversion to floats."""
        held = self._constant(f"{name}_bytes_of_{of}", values)
        numbers = [self._constant(f"{held}_scale", scale)]
        return self._node("DequantizeLinear", [held, *numbers], f"{held}_floats", axis=axis)

    def _fresh(self, name: str) -> str:
        """Return a name like `name` that no value has."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def _constant(self, name: str, x: Any) -> str:
        self._constants[name := self._fresh(name)] = np.asarray(x)
        return name

    def _node(self, operator: str, inputs: Sequence[str], name: str, **attributes: int) -> str:
        output = self._fresh(name)
        self._made.append(self._helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    # -- losses
    def _runner(self, proto: Any, names: Sequence[str]) -> Any:
        """Return the function from inputs to outputs and the values `names`, by name."""
        whole = type(proto)()
        whole.CopyFrom(proto)
        known = {x.name for x in whole.graph.output}
        kind = self._model.package.TensorProto.FLOAT
        for name in dict.fromkeys(names):
            if name not in known:
                whole.graph.output.append(self._helper.make_tensor_value_info(name, kind, None))
        return compile(whole, self._shapes).run

    def _losses(self, names: Sequence[str], before: Any, after: Any, samples: Sequence[Any]) -> tuple[ValueLoss, ...]:
        """Return the loss of each value, over all samples."""
        rows = {**{name: self._floats[name] for name in names}, **{name: name for name in self._outputs}}
        signal, noise = dict.fromkeys(rows, 0.0), dict.fromkeys(rows, 0.0)
        for sample in samples:
            plain, bytes_ = {**sample, **before(sample)}, after(sample)
            for name, other in rows.items():
                x = np.asarray(plain[name], np.float64)
                signal[name] += float(np.square(x).sum())
                noise[name] += float(np.square(x - bytes_[other]).sum())
        found = []
        for name in rows:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = 10 * np.log10(np.divide(signal[name], noise[name]))
            maker = self._makers.get(name)
            title = name if maker is None else maker.name or name
            found.append(ValueLoss(name, title, float(ratio)))
        return tuple(found)
