"""oneDNN's convolutions in sequence: a primitive per stage of a chain.

Arrays are in channels last, or in layouts that the library chooses. A depthwise convolution that follows a pointwise
one becomes its post-op, or has a primitive of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.errors import ToolchainError
from convsmith.diag.record import record
from convsmith.measure.onednn_library import (
    BIAS,
    DST,
    INFERENCE,
    SRC,
    STEPS,
    TYPES,
    WEIGHTS,
    Handle,
    OnednnLibrary,
    OnednnMemory,
    channels_last,
    library_on,
    packed_arguments,
    row_major,
    sizes_of,
    weights_shape,
)
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
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.runtime.arrays import aligned_copy, numpy_dtype

__all__ = ["onednn_chains"]

_SRC_1 = 2
_QUERY_SRC, _QUERY_DST, _QUERY_ARGUMENT = 129, 133, 255
_ADD = 0x1FFF0
_DEPTHWISE, _POST_OP = 16384, 32768
"""oneDNN's argument numbers of post-ops: a depthwise one, and the operand of the first binary one."""


@record(frozen=True)
class _StagesOfPrimitive:
    """A primitive of a chain: the convolution of a stage, and the next stage's convolution if that is a post-op."""

    stage: PeerStage
    depthwise: PeerStage | None = None

    @property
    def result(self) -> PeerStage:
        """The stage whose result the primitive writes."""
        return self.depthwise or self.stage


def onednn_chains(chain: Chain, arrays: Mapping[str, Array], threads: int) -> list[Peer]:
    """Return the peers of `chain`: channels last or in the library's layouts, with depthwise post-ops or without."""
    stages = stages_for_peers(chain, arrays)
    for stage in stages:
        plain = replace(stage.problem, post_ops=())
        if is_in_bytes(plain):
            plain_forward("onednn", plain)
        else:
            plain_f32("onednn", plain)
        clipping(stage.problem, tuple(STEPS))
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
        weights = library.plain(weights_shape(conv), None, wei)
        bias = library.plain((conv.oc,), (1,), "f32") if conv.bias else None
        description = library.make(
            "primitive_desc", "dnnl_convolution_forward_primitive_desc_create", library.engine, *INFERENCE,
            read or form(conv.src_shape, src), weights, bias, form(conv.dst_shape, conv.dst_type), *sizes_of(conv),
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
        calls.append((library.make("primitive", "dnnl_primitive_create", description), len(packed), packed))
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
    steps = library.make("post_ops", "dnnl_post_ops_create")

    def append(name: str, *arguments: object) -> None:
        library.check(f"dnnl_post_ops_append_{name}", steps, *arguments)

    def clip(stage: PeerStage) -> None:
        for op in clipping(stage.problem, tuple(STEPS)):
            append("eltwise", STEPS[op.alg], ctypes.c_float(op.alpha), ctypes.c_float(op.beta))

    clip(unit.stage)
    if unit.depthwise is not None:
        conv = unit.depthwise.problem
        assert isinstance(conv, Conv)
        types = TYPES[conv.dt[1]], TYPES["f32"] if conv.bias else 0, TYPES[conv.dst_type]
        append("dw", *types, *map(ctypes.c_int64, (conv.k[0], conv.s[0], conv.p[0])))
        clip(unit.depthwise)
    if unit.result.adds_source:
        append("binary", _ADD, source)
    attributes = library.make("primitive_attr", "dnnl_primitive_attr_create")
    library.check("dnnl_primitive_attr_set_post_ops", attributes, steps)
    return attributes


def _constants(library: OnednnLibrary, unit: _StagesOfPrimitive, description: Handle) -> dict[int, OnednnMemory]:
    """Return weights and biases of a primitive by the numbers of their arguments."""
    found = {}
    parts = [(0, unit.stage)] + ([(_DEPTHWISE, unit.depthwise)] if unit.depthwise else [])
    for base, (problem, arrays, _) in parts:
        assert isinstance(problem, Conv)
        wanted = library.wanted(description, _QUERY_ARGUMENT, base | WEIGHTS)
        found[base | WEIGHTS] = library.placed(arrays["wei"], weights_shape(problem), problem.dt[1], wanted)
        if problem.bias:
            form = library.plain((problem.oc,), (1,), "f32")
            found[base | BIAS] = library.memory(form, aligned_copy(np.asarray(arrays["bia"], np.float32)))
    return found


