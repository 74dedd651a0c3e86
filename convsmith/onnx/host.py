"""ONNX Runtime as the host of a model: one run for the values of nodes, and a separate call of each node's kernel.

The kernel of a node is the one that ONNX Runtime uses within the model: its optimiser runs on the whole model, with the
results of all convolutions as outputs, so that no convolution is fused with its neighbours. Each node of the optimised
model, with the channel layout that it has there, is then cut out as a model whose constants are initializers and whose
other arrays are bound in advance. The times therefore include no conversion of layouts, and a node is timed on its own
and in alternation with another kernel, which ONNX Runtime's profile of a run does not permit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import cached_property, import_lock
from convsmith.onnx.models import ModelNode, OnnxModel
from convsmith.onnx.sources import EXTRA
from convsmith.runtime.arrays import Array

__all__ = ["HOST", "OnnxHost"]

HOST = "onnxruntime"
"""Name of the framework."""
_CONVERSIONS = ("ReorderOutput", "Transpose")
"""Operators with which the optimiser converts a result to the model's layout."""
_KERNELS = ("Conv", "FusedConv", "QLinearConv", "ConvInteger", "ConvTranspose", "MatMulInteger", "QLinearMatMul")
"""Operators that compute a node, by their names in the optimised model."""
_OWN_DOMAINS = ("com.microsoft", "com.microsoft.nchwc")


class OnnxHost:
    """Runs ``model`` with ``threads`` threads on ``inputs``."""

    def __init__(self, model: OnnxModel, inputs: Mapping[str, Array], threads: int) -> None:
        self.model, self.inputs, self.threads = model, dict(inputs), threads
        self._ort = _package(model.name)

    def whole(self) -> Callable[[], object]:
        """Return a call of the whole model, which has run once."""
        session = self._session(self.model.whole.SerializeToString(), name="it")
        self._run(session)
        return lambda: session.run(None, self.inputs)

    @cached_property
    def values(self) -> dict[str, Array]:
        """The values that the nodes read and write, from a run of the model as it is written."""
        names = dict.fromkeys(name for node in self.model.nodes for name in (*node.inputs, node.output) if name)
        wanted = [name for name in names if name not in self.model.constants and name not in self.inputs]
        return {**self.model.constants, **self.inputs, **self._values_of(self.model.whole, wanted)}

    def node_call(self, node: ModelNode) -> Callable[[], object]:
        """Return a call of the node's kernel. UnsupportedError if it does not run by itself."""
        proto = self._kernels.get(node.name)
        if proto is None:
            return self._bound(node.protos, self.model.whole, self.values, node.output)
        return self._bound([proto], self._optimised, self._values_of_kernels, proto.output[0])

    # -- the optimised model
    @cached_property
    def _optimised(self) -> Any:
        """The model after the optimiser, with the results of all nodes as outputs."""
        import onnx

        proto = _with_outputs(self.model.whole, [node.output for node in self.model.nodes])
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "optimised.onnx"
            self._session(proto.SerializeToString(), path=str(path), name="it")
            return onnx.load(str(path))

    @cached_property
    def _kernels(self) -> dict[str, Any]:
        """The node of the optimised model for each node of the model, by the name of the model's node."""
        makers = {name: proto for proto in self._optimised.graph.node for name in proto.output}
        found = {}
        for node in self.model.nodes:
            proto = makers.get(node.output)
            while proto is not None and proto.op_type in _CONVERSIONS:
                proto = makers.get(proto.input[0])
            if proto is not None and proto.op_type in _KERNELS:
                found[node.name] = proto
        return found

    @cached_property
    def _values_of_kernels(self) -> dict[str, Array]:
        """The values that the nodes of the optimised model read and write, in their layouts."""
        held = {tensor.name for tensor in self._optimised.graph.initializer}
        names = dict.fromkeys(n for p in self._kernels.values() for n in (*p.input, p.output[0]) if n and n not in held)
        wanted = [name for name in names if name not in self.inputs]
        return {**self.inputs, **self._values_of(self._optimised, wanted)}

    # -- sessions
    def _values_of(self, proto: Any, names: Sequence[str]) -> dict[str, Array]:
        if not names:
            return {}
        session = self._session(_with_outputs(proto, names).SerializeToString(), "ORT_DISABLE_ALL", name="it")
        return dict(zip(names, self._run(session, names), strict=True))

    def _run(self, session: Any, names: Sequence[str] | None = None) -> Sequence[Array]:
        """Return the outputs ``names`` of the model, or all. UsageError if it does not run on the inputs."""
        try:
            found: Sequence[Array] = session.run(names, self.inputs)
        except Exception as error:
            raise UsageError(
                f"{self.model.name}: ONNX Runtime cannot run it on these inputs: {_first_line(error)}", code="run"
            ) from None
        return found

    def _bound(
        self, nodes: Sequence[Any], proto: Any, values: Mapping[str, Array], output: str
    ) -> Callable[[], object]:
        """Return a call of a model that consists of ``nodes`` of the model ``proto``, with its arrays bound."""
        import onnx

        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in node.input if name and name not in made)
        constants = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.name in read}
        for name in read:
            if name not in constants and name in self.model.constants:
                constants[name] = onnx.numpy_helper.from_array(self.model.constants[name], name)
        inputs = [_value_info(name, values[name]) for name in read if name not in constants]
        result = _value_info(output, values[output])
        graph = onnx.helper.make_graph(nodes, "node", inputs, [result], list(constants.values()))
        domains = {entry.domain for entry in proto.opset_import}
        own = [onnx.helper.make_opsetid(domain, 1) for domain in _OWN_DOMAINS if domain not in domains]
        made_model = onnx.helper.make_model(graph, opset_imports=[*proto.opset_import, *own])
        made_model.ir_version = proto.ir_version
        session = self._session(made_model.SerializeToString())
        binding = session.io_binding()
        arrays = {value.name: np.ascontiguousarray(values[value.name]) for value in inputs}
        kept = {name: self._ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        for name, value in kept.items():
            binding.bind_ortvalue_input(name, value)
        written = self._ort.OrtValue.ortvalue_from_numpy(np.zeros_like(values[output], order="C"))
        binding.bind_ortvalue_output(output, written)

        def call(kept: object = (kept, written)) -> object:
            return session.run_with_iobinding(binding)

        return call

    def _session(self, content: bytes, level: str = "ORT_ENABLE_ALL", path: str = "", name: str = "") -> Any:
        """Return a session of the model ``content``. UsageError about the model ``name`` if ONNX Runtime
        refuses it; UnsupportedError if it has no name, as a model of a single node.
        """
        options = self._ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(self._ort.GraphOptimizationLevel, level)
        if path:
            options.optimized_model_filepath = path
        try:
            return self._ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if name:
                raise UsageError(
                    f"{self.model.name}: ONNX Runtime cannot load {name}: {_first_line(error)}", code="bad-file"
                ) from None
            raise UnsupportedError(f"ONNX Runtime does not run it alone: {_first_line(error)}", code="node") from None


def _with_outputs(proto: Any, names: Iterable[str]) -> Any:
    """Return a copy of a model with the values ``names`` as its outputs."""
    import onnx

    copy = type(proto)()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    return copy


def _value_info(name: str, value: Array) -> Any:
    import onnx

    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


@cache
def _package(name: str) -> Any:
    """Return the package. UnsupportedError about the model ``name`` if it is not installed."""
    with import_lock:
        try:
            import onnxruntime
        except ImportError:
            raise UnsupportedError(
                f"{name}: running a model needs the package onnxruntime: {EXTRA}", code="no-onnxruntime"
            ) from None
    return onnxruntime
