"""oneDNN's convolution, called through its C interface without a framework; and once per stage for a chain.

The peer is the fastest implementation of the library, in the problem's layouts or in layouts that the library chooses.
Weights are reordered before the timed call. If the problem's source or result is in channels first, a call contains the
reorders to and from the library's layouts, because its caller has such arrays; otherwise source and result are
reordered before and after the calls. A depthwise convolution that follows a pointwise one in a chain becomes its
post-op if that is faster.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.layout.layout import Layout
from convsmith.measure.onednn_library import (
    DST,
    SRC,
    TYPES,
    Handle,
    OnednnLibrary,
    OnednnMemory,
    channels_last,
    library_on,
    packed_arguments,
    row_major,
)
from convsmith.measure.peer import (
    Array,
    Peer,
    PeerStage,
    clipping,
    forward_convolution,
    is_in_bytes,
    plain_f32,
    plain_forward,
    residual_and_clipping,
    stages_for_peers,
)
from convsmith.measure.timing import Sampler
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import aligned_copy, numpy_dtype

__all__ = ["onednn"]

_FORWARD_INFERENCE, _DIRECT = 96, 1
_SRC_1, _WEIGHTS, _BIAS = 2, 33, 41
"""oneDNN's numbers of the arguments."""
_QUERY_SRC, _QUERY_WEIGHTS, _QUERY_DST, _QUERY_ARGUMENT = 129, 131, 133, 255
_STEPS = {"relu": 0x20, "linear": 0x26, "clip": 0x2E, "clip_v2": 0x2F}
"""oneDNN's numbers of element-wise algorithms of post-ops."""
_ADD = 0x1FFF0
_DEPTHWISE, _POST_OP = 16384, 32768
"""oneDNN's argument numbers of post-ops: a depthwise one, and the operand of the first binary one."""
_SCALES, _ZERO_POINTS = 4096, 8192
"""oneDNN's numbers of the attributes of an argument."""
_NUMBERS = {"src": SRC, "wei": _WEIGHTS, "dst": DST}
"""oneDNN's numbers of the arguments that have scales or zero points."""
_TRIAL_SECONDS, _TRIALS = 1e-3, 3
"""Seconds per trial of an implementation, and number of trials."""
_SLOW = 10
"""An implementation whose first call is slower than the fastest first call by this factor is not timed again."""


def onednn(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return the fastest implementation that the library has for `problem`.

    UnsupportedError if it has none.
    """
    if isinstance(problem, Chain):
        return _fastest(_chains(problem, arrays, threads))
    conv = forward_convolution("onednn", problem)
    others = [t for t in (*conv.dt, conv.bias_type) if t not in TYPES]
    if others:
        raise UnsupportedError(f"onednn has no elements of type {others[0]}", code="types")
    library = library_on(threads)
    candidates: list[Peer] = []
    reorders = not all(map(_is_channels_last, (conv.src_layout, conv.dst_layout)))
    least = math.inf
    for primitives in _primitives(library, conv):
        for primitive in primitives:  # listed from fast to slow
            if candidates and library.is_reference(primitive.description):
                break
            peer = _peer(library, conv, arrays, primitive, reorders)
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


@record(frozen=True)
class _Primitive:
    handle: Handle
    description: Handle


def _primitives(library: OnednnLibrary, conv: Conv) -> Iterator[Iterator[_Primitive]]:
    """Yield the implementations for any layouts, then for the problem's, channels last for blocked ones. A primitive is
    valid until the next is yielded.
    """
    shapes = (conv.src_shape, _weights_shape(conv), conv.dst_shape)
    given = (_strides(conv.src_layout), None, _strides(conv.dst_layout))
    for strides in ((None, None, None), given):
        src, weights, dst = map(library.plain, shapes, strides, conv.dt)
        bias = library.plain((conv.oc,), (1,), conv.bias_type) if conv.bias else None
        sizes = [(ctypes.c_int64 * conv.rank)(*values) for values in (conv.s, conv.d, conv.p, conv.pr)]
        how = (library.engine, _FORWARD_INFERENCE, _DIRECT)
        try:
            description = library.make(
                "dnnl_convolution_forward_primitive_desc_create", *how, src, weights, bias, dst, *sizes,
                _attributes(library, conv),
            )  # fmt: skip
        except ToolchainError:
            continue
        yield _implementations(library, description)


def _implementations(library: OnednnLibrary, description: Handle) -> Iterator[_Primitive]:
    """Yield the implementations of a description, from fast to slow."""
    yield _Primitive(library.make("dnnl_primitive_create", description), description)
    while not library.next(description):
        yield _Primitive(library.make("dnnl_primitive_create", description), description)


def _is_channels_last(layout: Layout) -> bool:
    """Return whether a source or result is in channels last, or in blocks of channels, which count as such."""
    return _strides(layout) == channels_last(layout.shape)


def _strides(layout: Layout) -> tuple[int, ...]:
    """Return the strides of a source or result; those of channels last for one in blocks of channels."""
    return layout.strides if layout.is_plain else channels_last(layout.shape)


def _weights_shape(conv: Conv) -> tuple[int, ...]:
    return (conv.g, conv.oc // conv.g, conv.ic // conv.g, *conv.k)


class _Operand:
    """The source or result of a primitive: the memory that it uses, and the caller's, which may be the same.

    ``form`` and ``callers_form`` are their memory descriptors.
    """

    def __init__(self, library: OnednnLibrary, form: Handle, callers_form: Handle) -> None:
        self.library, self.form, self.memory = library, form, library.memory(form)
        self.is_reordered = not library.is_same(form, callers_form)
        self.callers_form = callers_form if self.is_reordered else form
        self.callers = library.memory(callers_form) if self.is_reordered else self.memory

    def fill(self, array: Array, shape: tuple[int, ...], type_: str) -> None:
        """Write a logical array to the caller's memory."""
        self.callers.array[...] = self.library.placed(array, shape, type_, self.callers_form).array

    def entering(self) -> list[_Execution]:
        """Return the execution that copies from the caller's memory, if there is any."""
        forms = self.callers_form, self.form
        return [_Execution(self.library.reordering(*forms), {SRC: self.callers, DST: self.memory})] * self.is_reordered

    def leaving(self) -> list[_Execution]:
        """Return the execution that copies to the caller's memory, if there is any."""
        forms = self.form, self.callers_form
        return [_Execution(self.library.reordering(*forms), {SRC: self.memory, DST: self.callers})] * self.is_reordered


class _Execution(NamedTuple):
    """A primitive with its arguments."""

    primitive: Handle
    arguments: Mapping[int, OnednnMemory]


def _peer(
    library: OnednnLibrary, conv: Conv, arrays: Mapping[str, Array], primitive: _Primitive, reorders: bool
) -> Peer:
    """Return a peer that executes ``primitive``, in the memory descriptors that it asks for; with ``reorders``, a call
    begins with the source and ends with the result in the problem's layouts.
    """
    src, weights, dst = conv.dt
    adds, _ = residual_and_clipping(conv, tuple(_STEPS))

    def operand(layout: Layout, type_: str, query: int) -> _Operand:
        wanted = library.wanted(primitive.description, query)
        return _Operand(
            library, wanted, library.plain(layout.shape, _strides(layout), type_) if reorders else wanted
        )

    source = operand(conv.src_layout, src, _QUERY_SRC)
    written = operand(conv.dst_layout, dst, _QUERY_DST)
    source.fill(arrays["src"], conv.src_shape, src)
    form = library.wanted(primitive.description, _QUERY_WEIGHTS)
    arguments = {
        SRC: source.memory,
        _WEIGHTS: library.placed(arrays["wei"], _weights_shape(conv), weights, form),
        DST: written.memory,
    }
    if conv.bias:
        arguments[_BIAS] = library.memory(library.plain((conv.oc,), (1,), conv.bias_type), aligned_copy(arrays["bia"]))
    arguments |= _quantities(library, conv, arrays)
    executions = [
        *source.entering(), *(written.entering() if adds else ()), _Execution(primitive.handle, arguments),
        *written.leaving(),
    ]  # fmt: skip
    packed = [(each.primitive, len(each.arguments), packed_arguments(each.arguments)) for each in executions]
    execute, stream = library.execute, library.stream

    def call(kept: object = executions) -> object:
        for handle, count, given in packed:
            execute(handle, stream, count, given)
        return None

    form = library.plain(conv.dst_shape, row_major(conv.dst_shape), dst)

    def result() -> Array:
        if adds:  # each call adds to the result of the previous one
            written.fill(arrays["dst"], conv.dst_shape, dst)
            call()
        plain = np.empty(conv.dst_shape, numpy_dtype(dst))
        library.reorder(written.callers, written.callers_form, library.memory(form, plain), form)
        return plain

    return Peer(call, result)


def _attributes(library: OnednnLibrary, conv: Conv) -> Handle:
    """Return the attributes of a convolution: scales, zero points, the sum with the old result, and clipping."""
    attributes = library.make("dnnl_primitive_attr_create")
    for kind, quantities in (("scales", conv.scales), ("zero_points", conv.zero_points)):
        for quantity in quantities:
            if quantity.policy not in ("common", "per_oc"):
                raise UnsupportedError(f"onednn is not compared with {kind} {quantity.policy}", code="attributes")
            channels = 3 if quantity.argument == "wei" else 2  # groups and their channels, or channels
            mask = channels if quantity.policy == "per_oc" else 0
            library.check(f"dnnl_primitive_attr_set_{kind}_mask", attributes, _NUMBERS[quantity.argument], mask)
    adds, clips = residual_and_clipping(conv, tuple(_STEPS))
    steps = library.make("dnnl_post_ops_create")
    if adds:
        library.check("dnnl_post_ops_append_sum", steps, ctypes.c_float(1), 0, TYPES[conv.dst_type])
    for op in clips:
        bounds = map(ctypes.c_float, (op.alpha, op.beta))
        library.check("dnnl_post_ops_append_eltwise", steps, _STEPS[op.alg], *bounds)
    library.check("dnnl_primitive_attr_set_post_ops", attributes, steps)
    return attributes


def _quantities(library: OnednnLibrary, conv: Conv, arrays: Mapping[str, Array]) -> dict[int, OnednnMemory]:
    """Return scales and zero points by the numbers of their arguments."""
    found = {}
    kinds = (("scales", _SCALES, "f32", conv.scales), ("zero_points", _ZERO_POINTS, "s32", conv.zero_points))
    for kind, attribute, type_, quantities in kinds:
        for quantity in quantities:
            values = aligned_copy(np.asarray(arrays[f"{kind}_{quantity.argument}"], numpy_dtype(type_)))
            form = library.plain(values.shape, (1,), type_)
            found[attribute | _NUMBERS[quantity.argument]] = library.memory(form, values)
    return found


@record(frozen=True)
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
    library = library_on(threads)
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


def _sequence(library: OnednnLibrary, units: Sequence[_StagesOfPrimitive], source: Array, last: bool) -> Peer:
    """Return a peer that executes `units` in sequence; arrays are channels `last`, or in layouts that the library
    chooses.
    """

    def form(shape: Sequence[int], dtype: str) -> Handle:
        return library.plain(shape, channels_last(shape) if last else None, dtype)

    calls: list[tuple[Handle, int, Any]] = []
    kept: list[Mapping[int, OnednnMemory]] = []
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
            _attributes_of_unit(library, unit, first),
        )  # fmt: skip
        if value is None:
            first = library.wanted(description, _QUERY_SRC)
            value = library.placed(source, conv.src_shape, src, first)
            image = value
        read = library.wanted(description, _QUERY_DST)
        arguments = {SRC: value, **_constants(library, unit, description)}
        if unit.result.adds_source:
            arguments[_POST_OP * (1 + _post_ops(unit)) | _SRC_1] = image
        value = arguments[DST] = library.memory(read)
        packed = packed_arguments(arguments)
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
        strides = library.plain(shape, row_major(shape), dst)
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


def _attributes_of_unit(library: OnednnLibrary, unit: _StagesOfPrimitive, source: Handle | None) -> Handle:
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
        types = TYPES[conv.dt[1]], TYPES["f32"] if conv.bias else 0, TYPES[conv.dst_type]
        append("dw", *types, *map(ctypes.c_int64, (conv.k[0], conv.s[0], conv.p[0])))
        clip(unit.depthwise)
    if unit.result.adds_source:
        append("binary", _ADD, source)
    attributes = library.make("dnnl_primitive_attr_create")
    library.check("dnnl_primitive_attr_set_post_ops", attributes, steps)
    return attributes


def _constants(library: OnednnLibrary, unit: _StagesOfPrimitive, description: Handle) -> dict[int, OnednnMemory]:
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


