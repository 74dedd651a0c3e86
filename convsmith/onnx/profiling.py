"""The profile of an ONNX model: each convolution and integer product next to ONNX Runtime's own kernel of that node.

One run of the model by ONNX Runtime gives every node its real inputs. Both kernels have packed constants, memory that
is bound in advance, and the layout that they prefer within a model: channels last by default for convolutions of this
project, the optimiser's choice for ONNX Runtime. Their samples alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from convsmith.diag.errors import ConvsmithError, UsageError
from convsmith.diag.expect import integer
from convsmith.measure.profile import LeftNode, ModelProfile
from convsmith.measure.timing import ROUNDS
from convsmith.onnx.calls import NODE_CALLS
from convsmith.onnx.host import HOST, OnnxHost
from convsmith.onnx.models import OnnxModel, read_model
from convsmith.onnx.node_profiler import LAYOUT, HostNode, NodeProfiler
from convsmith.runtime.arrays import Array, as_array
from convsmith.runtime.threads import default_threads

__all__ = ["onnx_profiler", "profile"]

_SEED = 1
_CONVOLUTION = "Conv"
"""Part of the names of operators that are convolutions."""
_FLOATS = ("float64", "float32", "float16", "bfloat16")


def profile(
    model: Any, inputs: Mapping[str, Array | tuple[int, ...]] | None = None, *, threads: int | None = None,
    rounds: int = ROUNDS, target: str | None = None, layout: str = LAYOUT,
) -> ModelProfile:  # fmt: skip
    """Return the times of a model's convolutions and integer products, next to the times of ONNX Runtime's kernels.

    `model` is a path or an `onnx.ModelProto`. `inputs` are the model's inputs by name: arrays, or shapes for random
    values. A missing input is random too, and its batch is 1 if the model leaves it open. Both sides use `threads`
    threads; `layout` applies to convolutions of this project. Print the result for a table with a summary. UsageError
    for a damaged file or unsuitable inputs, UnsupportedError without the packages `onnx` and `onnxruntime`.
    """
    profiler = onnx_profiler(model, inputs, threads=threads, rounds=rounds, target=target, layout=layout)
    for _ in profiler.rows():
        pass
    return profiler.result


def onnx_profiler(
    model: Any, inputs: Mapping[str, Array | tuple[int, ...]] | None = None, *, threads: int | None = None,
    rounds: int = ROUNDS, target: str | None = None, layout: str = LAYOUT,
) -> NodeProfiler:  # fmt: skip
    """Return the profiler of a model; arguments and errors are as in `profile`."""
    shapes = {name: x for name, x in (inputs or {}).items() if isinstance(x, tuple)}
    given = {name: as_array(name, x) for name, x in (inputs or {}).items() if name not in shapes}
    read = read_model(model, shapes | {name: x.shape for name, x in given.items()}, with_data=True)
    held = read.constants  # reports a damaged tensor by its name, before ONNX Runtime reads the model
    count = default_threads() if threads is None else integer("threads", threads)
    host = OnnxHost(read, _complete(read, given), count)
    nodes, left = [], list(_unserved(read))
    for node in read.nodes:
        try:
            call = node.call(host.values)
        except ConvsmithError as error:
            left.append(LeftNode(node.name, node.title, str(error)))
            continue
        is_constant = node.weights in held
        result = host.values[node.output]
        nodes.append(HostNode(node.name, node.title, call, is_constant, result, partial(host.node_call, node)))
    shown = {x.operator for x in left}
    others = {name: n for name, n in read.others.items() if name not in shown}
    return NodeProfiler(
        read.name, HOST, nodes, host.whole(), threads=count, rounds=integer("rounds", rounds), target=target,
        layout=layout, left=left, others=others,
    )  # fmt: skip


def _complete(model: OnnxModel, given: Mapping[str, Array]) -> dict[str, Array]:
    """Return all inputs of ``model``: the ``given`` inputs, whose types are checked, and random values for the
    remaining inputs.
    """
    legal = model.free_inputs
    for name, x in given.items():
        if x.dtype != legal[name][0]:
            raise UsageError(f"inputs: {name} is {x.dtype}; legal is {legal[name][0]}", code="inputs")
    rng = np.random.default_rng(_SEED)
    try:
        return {name: given[name] if name in given else _random(rng, name, *legal[name]) for name in legal}
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than addresses
        raise UsageError(f"inputs: those of {model.name} do not fit into memory: {error}", code="inputs") from None


def _random(rng: np.random.Generator, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return values for an input: normal numbers, bytes of the whole range, and 0 for indices and flags."""
    if dtype.kind in "iu" and dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    if dtype.name not in _FLOATS:
        raise UsageError(f"inputs: {name} is of type {dtype}: legal is to give it", code="inputs")
    return rng.standard_normal(shape).astype(dtype)


def _unserved(model: OnnxModel) -> Iterator[LeftNode]:
    """Yield convolutions of other names and domains, and convolutions in the bodies of loops and branches."""
    for operator, count in model.others.items():
        if _CONVOLUTION in operator:
            why = "it is in the body of a loop or a branch" if operator in NODE_CALLS else "no kernel serves it"
            yield LeftNode(f"{count} node{'s' * (count > 1)}", operator, why)
