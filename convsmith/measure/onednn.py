"""oneDNN's convolution, called through its C interface without a framework; and once per stage for a chain.

The peer is the fastest implementation of the library, with channels-last layouts or with layouts that the library
chooses. Source and weights are reordered before the timed call, the result after it. A depthwise convolution that
follows a pointwise one in a chain becomes its post-op if that is faster. The library is a file of the package
`onednn-cpu-gomp`, which has no Python module.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.measure.peer import (
    Array,
    Peer,
    PeerStage,
    clipping,
    is_in_bytes,
    plain_f32,
    plain_forward,
    stages_for_peers,
)
from convsmith.measure.timing import Sampler
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import aligned_copy, aligned_empty, numpy_dtype

__all__ = ["PACKAGE", "onednn"]

PACKAGE = "onednn-cpu-gomp"

_CPU, _IN_ORDER, _ANY = 1, 1, 1
_TYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6}
"""oneDNN's numbers of the types of elements."""
_FORWARD_INFERENCE, _DIRECT = 96, 1
_SRC, _SRC_1, _DST, _WEIGHTS, _BIAS = 1, 2, 17, 33, 41
"""oneDNN's numbers of the arguments."""
_QUERY_SRC, _QUERY_WEIGHTS, _QUERY_DST, _QUERY_ARGUMENT = 129, 131, 133, 255
_STEPS = {"relu": 0x20, "linear": 0x26, "clip": 0x2E, "clip_v2": 0x2F}
"""oneDNN's numbers of element-wise algorithms of post-ops."""
_ADD = 0x1FFF0
_DEPTHWISE, _POST_OP = 16384, 32768
"""oneDNN's argument numbers of post-ops: a depthwise one, and the operand of the first binary one."""
_TRIAL_SECONDS, _TRIALS = 1e-3, 3
"""Seconds per trial of an implementation, and number of trials."""
_SLOW = 10
"""An implementation whose first call is slower than the fastest first call by this factor is not timed again."""

_Handle = ctypes.c_void_p


class _Argument(ctypes.Structure):
    _fields_ = [("name", ctypes.c_int), ("memory", _Handle)]


@dataclass(frozen=True)
class _Memory:
    handle: _Handle
    array: Array


def onednn(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return the fastest implementation that the library has for `problem`.

    UnsupportedError if it has none.
    """
    if isinstance(problem, Chain):
        return _fastest(_chains(problem, arrays, threads))
    conv = plain_forward("onednn", problem)
    others = [t for t in (*conv.dt, conv.bias_type) if t not in _TYPES]
    if others:
        raise UnsupportedError(f"onednn has no elements of type {others[0]}", code="types")
    library = _library()
    _openmp().omp_set_num_threads(threads)
    candidates: list[Peer] = []
    for primitives in _primitives(library, conv):
        least = math.inf
        for primitive in primitives:  # listed from fast to slow; the library's reference kernels take seconds
            peer = _peer(library, conv, arrays, primitive)
            start = time.perf_counter()
            peer.call()
            seconds = time.perf_counter() - start
            if seconds > _SLOW * least:
                break
            least = min(least, seconds)
            candidates.append(peer)
    return _fastest(candidates)


def _fastest(candidates: Sequence[Peer]) -> Peer:
    """Return the peer with the shortest calls; UnsupportedError if there are no peers."""
    if not candidates:
        raise UnsupportedError("onednn has no implementation of this convolution", code="types")
    return min(candidates, key=lambda peer: min(sample() for sample in [Sampler(peer.call, _TRIAL_SECONDS)] * _TRIALS))


class _Library:
    """The C functions with an engine and a stream; a non-zero status raises ToolchainError."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        self._functions.dnnl_primitive_desc_query_md.restype = _Handle
        self._functions.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.engine = self.make("dnnl_engine_create", _CPU, ctypes.c_size_t(0))
        self.stream = self.make("dnnl_stream_create", self.engine, _IN_ORDER)
        self.execute = self._functions.dnnl_primitive_execute
        self.next = self._functions.dnnl_primitive_desc_next_impl

    def make(self, name: str, *arguments: object) -> _Handle:
        """Call a function that returns a handle through its first argument, and return the handle."""
        handle = _Handle()
        if status := getattr(self._functions, name)(ctypes.byref(handle), *arguments):
            raise ToolchainError(f"oneDNN: {name} returned {status}")
        return handle

    def check(self, name: str, *arguments: object) -> None:
        """Call a function that returns only a status."""
        if status := getattr(self._functions, name)(*arguments):
            raise ToolchainError(f"oneDNN: {name} returned {status}")

    def plain(self, shape: Sequence[int], strides: Sequence[int] | None, type_: str) -> _Handle:
        """Return the memory descriptor of an array of `type_`; with `strides` None, the library chooses the layout."""
        dims = (ctypes.c_int64 * len(shape))(*shape)
        if strides is None:
            return self.make("dnnl_memory_desc_create_with_tag", len(shape), dims, _TYPES[type_], _ANY)
        steps = (ctypes.c_int64 * len(shape))(*strides)
        return self.make("dnnl_memory_desc_create_with_strides", len(shape), dims, _TYPES[type_], steps)

    def wanted(self, description: _Handle, what: int, index: int = 0) -> _Handle:
        """Return a clone of the memory descriptor that an implementation requires for the argument `what`, or for
        number `index`.

        The original is freed when `description` moves to its next implementation.
        """
        answer = _Handle(self._functions.dnnl_primitive_desc_query_md(description, what, index))
        return self.make("dnnl_memory_desc_clone", answer)

    def memory(self, description: _Handle, array: Array | None = None) -> _Memory:
        """Return a memory object for `array`, or for a new array if it is None."""
        if array is None:
            array = aligned_empty(self._functions.dnnl_memory_desc_get_size(description))
        address = _Handle(array.ctypes.data)
        return _Memory(self.make("dnnl_memory_create", description, self.engine, address), array)

    def run(self, primitive: _Handle, arguments: Mapping[int, _Memory]) -> None:
        """Execute a primitive once."""
        packed = _packed(arguments)
        if status := self.execute(primitive, self.stream, len(packed), packed):
            raise ToolchainError(f"oneDNN: dnnl_primitive_execute returned {status}")

    def placed(self, array: Array, shape: tuple[int, ...], type_: str, wanted: _Handle) -> _Memory:
        """Return a memory object with the elements of a logical `array` in the layout of the memory descriptor
        `wanted`.
        """
        form = self.plain(shape, _plain_strides(shape), type_)
        plain = np.ascontiguousarray(array, numpy_dtype(type_)).reshape(shape)
        target = self.memory(wanted)
        self.reorder(self.memory(form, aligned_copy(plain)), form, target, wanted)
        return target

    def reorder(self, source: _Memory, source_form: _Handle, target: _Memory, target_form: _Handle) -> None:
        """Copy an array from one memory descriptor to another."""
        forms = (source_form, self.engine, target_form, self.engine, None)
        description = self.make("dnnl_reorder_primitive_desc_create", *forms)
        self.run(self.make("dnnl_primitive_create", description), {_SRC: source, _DST: target})


@dataclass(frozen=True)
class _Primitive:
    handle: _Handle
    description: _Handle


def _primitives(library: _Library, conv: Conv) -> Iterator[Iterator[_Primitive]]:
    """Yield the implementations for channels last, then for any layouts. A primitive is valid until the next is
    yielded.
    """
    shapes = (conv.src_shape, _weights_shape(conv), conv.dst_shape)
    for last in (True, False):
        src, weights, dst = (
            library.plain(shape, _channels_last(shape) if last and shape is not shapes[1] else None, type_)
            for shape, type_ in zip(shapes, conv.dt)
        )
        bias = library.plain((conv.oc,), (1,), conv.bias_type) if conv.bias else None
        sizes = [(ctypes.c_int64 * 2)(*values) for values in (conv.s, conv.d, conv.p, conv.pr)]
        how = (library.engine, _FORWARD_INFERENCE, _DIRECT)
        try:
            description = library.make(
                "dnnl_convolution_forward_primitive_desc_create", *how, src, weights, bias, dst, *sizes, None
            )
        except ToolchainError:
            continue
        yield _implementations(library, description)


def _implementations(library: _Library, description: _Handle) -> Iterator[_Primitive]:
    yield _Primitive(library.make("dnnl_primitive_create", description), description)
    while not library.next(description):
        yield _Primitive(library.make("dnnl_primitive_create", description), description)


def _weights_shape(conv: Conv) -> tuple[int, ...]:
    return (conv.g, conv.oc // conv.g, conv.ic // conv.g, *conv.k)


def _channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    _, channels, height, width = shape
    return (height * width * channels, 1, width * channels, channels)


def _plain_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[n + 1 :])) for n in range(len(shape)))


def _packed(arguments: Mapping[int, _Memory]) -> ctypes.Array[_Argument]:
    """Return the arguments as the C array that the library takes."""
    pairs = [_Argument(name, memory.handle) for name, memory in arguments.items()]
    return (_Argument * len(pairs))(*pairs)


def _peer(library: _Library, conv: Conv, arrays: Mapping[str, Array], primitive: _Primitive) -> Peer:
    src, weights, dst = conv.dt

    def given(name: str, shape: tuple[int, ...], type_: str, query: int) -> _Memory:
        return library.placed(arrays[name], shape, type_, library.wanted(primitive.description, query))

    written = library.wanted(primitive.description, _QUERY_DST)
    arguments = {
        _SRC: given("src", conv.src_shape, src, _QUERY_SRC),
        _WEIGHTS: given("wei", _weights_shape(conv), weights, _QUERY_WEIGHTS),
        _DST: library.memory(written),
    }
    if conv.bias:
        arguments[_BIAS] = library.memory(library.plain((conv.oc,), (1,), conv.bias_type), aligned_copy(arrays["bia"]))
    packed = _packed(arguments)
    execute, handle, stream, count = library.execute, primitive.handle, library.stream, len(packed)

    def call(kept: object = arguments) -> object:
        return execute(handle, stream, count, packed)

    form = library.plain(conv.dst_shape, _plain_strides(conv.dst_shape), dst)

    def result() -> Array:
        plain = np.empty(conv.dst_shape, numpy_dtype(dst))
        library.reorder(arguments[_DST], written, library.memory(form, plain), form)
        return plain

    return Peer(call, result)


@dataclass(frozen=True)
class _StagesOfPrimitive:
    """A primitive of a chain: the convolution of a stage, and the next stage's convolution if that is a post-op."""

    stage: PeerStage
    depthwise: PeerStage | None = None

    @property
    def result(self) -> PeerStage:
        """The stage whose result the primitive writes."""
        return self.depthwise or self.stage


def _chains(chain: Chain, arrays: Mapping[str, Array], threads: int) -> list[Peer]:
    """Return the peers of `chain`: channels last or in the library's layouts, with depthwise post-ops or without."""
    stages = stages_for_peers(chain, arrays)
    for stage in stages:
        plain = replace(stage.problem, post_ops=())
        if is_in_bytes(plain):
            plain_forward("onednn", plain)
        else:
            plain_f32("onednn", plain)
        clipping(stage.problem, tuple(_STEPS))
    library = _library()
    _openmp().omp_set_num_threads(threads)
    apart = tuple(map(_StagesOfPrimitive, stages))
    found = []
    fused = _units(stages)
    for units in (apart,) if len(fused) == len(apart) else (fused, apart):
        for last in (True, False):
            try:
                found.append(_sequence(library, units, arrays["src"], last))
            except ToolchainError:
                continue
    return found


def _units(stages: Sequence[PeerStage]) -> tuple[_StagesOfPrimitive, ...]:
    """Return the primitives of `stages`; a depthwise convolution that can be a post-op shares the primitive of its
    predecessor.
    """
    units: list[_StagesOfPrimitive] = []
    for stage in stages:
        before = units[-1] if units else None
        if before is not None and before.depthwise is None and _is_post_op(before.stage, stage):
            units[-1] = _StagesOfPrimitive(before.stage, stage)
        else:
            units.append(_StagesOfPrimitive(stage))
    return tuple(units)


def _is_post_op(before: PeerStage, stage: PeerStage) -> bool:
    """Return whether the convolution of `stage` can be a post-op of `before`, that is, a depthwise one after a
    pointwise one.
    """
    one, two = before.problem, stage.problem
    assert isinstance(one, Conv) and isinstance(two, Conv)
    pointwise = one.g == 1 and one.k == (1, 1) and one.s == (1, 1) and not any(one.p)
    square = two.k == (3, 3) and two.p == (1, 1) and two.d == (0, 0) and two.s in ((1, 1), (2, 2))
    return pointwise and square and two.g == two.ic == two.oc


def _sequence(library: _Library, units: Sequence[_StagesOfPrimitive], source: Array, last: bool) -> Peer:
    """Return a peer that executes `units` in sequence; arrays are channels `last`, or in layouts that the library
    chooses.
    """

    def form(shape: Sequence[int], dtype: str) -> _Handle:
        return library.plain(shape, _channels_last(shape) if last else None, dtype)

    calls: list[tuple[_Handle, int, Any]] = []
    kept: list[Mapping[int, _Memory]] = []
    read, value, first = None, None, None
    for unit in units:
        conv = unit.stage.problem
        assert isinstance(conv, Conv)
        src, wei, _ = conv.dt
        weights = library.plain(_weights_shape(conv), None, wei)
        bias = library.plain((conv.oc,), (1,), "f32") if conv.bias else None
        sizes = [(ctypes.c_int64 * 2)(*values) for values in (conv.s, conv.d, conv.p, conv.pr)]
        description = library.make(
            "dnnl_convolution_forward_primitive_desc_create", library.engine, _FORWARD_INFERENCE, _DIRECT,
            read or form(conv.src_shape, src), weights, bias, form(conv.dst_shape, conv.dst_type), *sizes,
            _attributes(library, unit, first),
        )  # fmt: skip
        if value is None:
            first = library.wanted(description, _QUERY_SRC)
            value = library.placed(source, conv.src_shape, src, first)
            image = value
        read = library.wanted(description, _QUERY_DST)
        arguments = {_SRC: value, **_constants(library, unit, description)}
        if unit.result.adds_source:
            arguments[_POST_OP * (1 + _post_ops(unit)) | _SRC_1] = image
        value = arguments[_DST] = library.memory(read)
        packed = _packed(arguments)
        kept.append(arguments)
        calls.append((library.make("dnnl_primitive_create", description), len(packed), packed))
    execute, stream = library.execute, library.stream

    def call(kept: object = kept) -> None:
        for handle, count, packed in calls:
            if status := execute(handle, stream, count, packed):
                raise ToolchainError(f"oneDNN: dnnl_primitive_execute returned {status}")

    conv = _convolution_of_result(units[-1])
    shape, dst = conv.dst_shape, conv.dst_type

    def result() -> Array:
        plain = np.empty(shape, numpy_dtype(dst))
        strides = library.plain(shape, _plain_strides(shape), dst)
        assert value is not None and read is not None
        library.reorder(value, read, library.memory(strides, plain), strides)
        return plain

    return Peer(call, result)


def _convolution_of_result(unit: _StagesOfPrimitive) -> Conv:
    conv = unit.result.problem
    assert isinstance(conv, Conv)
    return conv


def _post_ops(unit: _StagesOfPrimitive) -> int:
    """Return the number of post-ops of a primitive before the addition of the chain's source."""
    own = len(unit.stage.problem.post_ops)
    return own if unit.depthwise is None else own + 1 + len(unit.depthwise.problem.post_ops)


def _attributes(library: _Library, unit: _StagesOfPrimitive, source: _Handle | None) -> _Handle:
    """Return the attributes of a primitive with its post-ops; `source` describes the chain's source."""
    steps = library.make("dnnl_post_ops_create")

    def append(name: str, *arguments: object) -> None:
        library.check(f"dnnl_post_ops_append_{name}", steps, *arguments)

    def clip(stage: PeerStage) -> None:
        for op in clipping(stage.problem, tuple(_STEPS)):
            append("eltwise", _STEPS[op.alg], ctypes.c_float(op.alpha), ctypes.c_float(op.beta))

    clip(unit.stage)
    if unit.depthwise is not None:
        conv = unit.depthwise.problem
        assert isinstance(conv, Conv)
        types = _TYPES[conv.dt[1]], _TYPES["f32"] if conv.bias else 0, _TYPES[conv.dst_type]
        append("dw", *types, *map(ctypes.c_int64, (conv.k[0], conv.s[0], conv.p[0])))
        clip(unit.depthwise)
    if unit.result.adds_source:
        append("binary", _ADD, source)
    attributes = library.make("dnnl_primitive_attr_create")
    library.check("dnnl_primitive_attr_set_post_ops", attributes, steps)
    return attributes


def _constants(library: _Library, unit: _StagesOfPrimitive, description: _Handle) -> dict[int, _Memory]:
    """Return weights and biases of a primitive by the numbers of their arguments."""
    found = {}
    parts = [(0, unit.stage)] + ([(_DEPTHWISE, unit.depthwise)] if unit.depthwise else [])
    for base, (problem, arrays, _) in parts:
        assert isinstance(problem, Conv)
        wanted = library.wanted(description, _QUERY_ARGUMENT, base | _WEIGHTS)
        found[base | _WEIGHTS] = library.placed(arrays["wei"], _weights_shape(problem), problem.dt[1], wanted)
        if problem.bias:
            form = library.plain((problem.oc,), (1,), "f32")
            found[base | _BIAS] = library.memory(form, aligned_copy(np.asarray(arrays["bia"], np.float32)))
    return found


@cache
def _library() -> _Library:
    files = metadata.files(PACKAGE) or []
    path = next((Path(str(f.locate())) for f in files if f.name.startswith("libdnnl.so")), None)
    if path is None or not path.exists():
        raise UnsupportedError(f"package {PACKAGE} has no libdnnl.so", code="library")
    return _Library(path.resolve())


@cache
def _openmp() -> Any:
    """Return the OpenMP runtime with which the library is linked."""
    return ctypes.CDLL("libgomp.so.1")
