"""oneDNN's convolutions, deconvolutions and gradients, called through its C interface without a framework.

The peer is the fastest implementation of the library, in the problem's layouts or in layouts that the library chooses.
Weights that are read are reordered before the timed call. If the problem's source or result is in channels first, a
call contains the reorders to and from the library's layouts, because its caller has such arrays; otherwise source and
result are reordered before and after the calls. A gradient of weights ends in the problem's layout, in which its caller
updates them.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.layout.layout import Layout
from convsmith.measure.onednn_chains import onednn_chains
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
from convsmith.measure.peer import Array, Peer, require_no_quantities, residual_and_clipping
from convsmith.measure.timing import Sampler
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import aligned_copy, numpy_dtype

__all__ = ["onednn"]

_SCALES, _ZERO_POINTS = 4096, 8192
"""oneDNN's numbers of the attributes of an argument."""
_NUMBERS = {"src": SRC, "wei": WEIGHTS, "dst": DST}
"""oneDNN's numbers of the arguments that have scales or zero points."""
_DECONVOLUTION = 10
"""oneDNN's number of a deconvolution without transforms."""
_TRIAL_SECONDS, _TRIALS = 1e-3, 3
"""Seconds per trial of an implementation, and number of trials."""
_SLOW = 10
"""An implementation whose first call is slower than the fastest first call by this factor is not timed again."""


class _Role(NamedTuple):
    """An argument of a primitive: the problem's array, and oneDNN's numbers of the argument and of the query for its
    layout.
    """

    array: str
    number: int
    query: int = 0


class _Direction(NamedTuple):
    """A function of the library: the word in its function's name, and the arguments in the order of the function."""

    name: str
    src: _Role
    wei: _Role
    bias: _Role
    dst: _Role


_SOURCE, _RESULT = _Role("src", SRC, 129), _Role("diff_dst", 145, 134)
_DIRECTIONS = {
    "forward": _Direction(
        "forward", _SOURCE, _Role("wei", WEIGHTS, 131), _Role("bia", BIAS), _Role("dst", DST, 133)
    ),
    "BWD_D": _Direction(
        "backward_data", _Role("diff_src", 129, 130), _Role("wei", WEIGHTS, 131), _Role("", 0), _RESULT
    ),
    "BWD_W": _Direction(
        "backward_weights", _SOURCE, _Role("diff_wei", 161, 132), _Role("diff_bia", 169), _RESULT
    ),
}


def onednn(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return the fastest implementation that the library has for `problem`.

    UnsupportedError if it has none.
    """
    if isinstance(problem, Chain):
        return _fastest(onednn_chains(problem, arrays, threads))
    if not isinstance(problem, Conv) or (problem.deconv and not problem.forward):
        raise UnsupportedError("onednn is compared on convolutions, deconvolutions and gradients only", code="dir")
    others = [t for t in (*problem.dt, problem.bias_type) if t not in TYPES]
    if others:
        raise UnsupportedError(f"onednn has no elements of type {others[0]}", code="types")
    if not problem.forward:
        require_no_quantities("onednn", problem)
    library = library_on(threads)
    candidates: list[Peer] = []
    least = math.inf
    for primitives in _primitives(library, problem):
        for primitive in primitives:  # listed from fast to slow
            if candidates and library.is_reference(primitive.description):
                break
            peer = _peer(library, problem, arrays, primitive)
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


def _direction(conv: Conv) -> _Direction:
    return _DIRECTIONS["forward" if conv.forward else conv.dir[:5]]


@record(frozen=True)
class _Primitive:
    handle: Handle
    description: Handle


def _primitives(library: OnednnLibrary, conv: Conv) -> Iterator[Iterator[_Primitive]]:
    """Yield the implementations for any layouts, then for the problem's, channels last for blocked ones. A primitive is
    valid until the next is yielded.
    """
    shapes = (conv.src_shape, weights_shape(conv), conv.dst_shape)
    given = (_strides(conv.src_layout), None, _strides(conv.dst_layout))
    direction, kind = _direction(conv), "deconvolution" if conv.deconv else "convolution"
    inference, convolution = INFERENCE
    algorithm = _DECONVOLUTION if conv.deconv else convolution
    has_bias = conv.bias or conv.dir == "BWD_WB"
    for strides in ((None, None, None), given):
        src, weights, dst = map(library.plain, shapes, strides, conv.dt)
        bias = library.plain((conv.oc,), (1,), conv.bias_type) if has_bias else None
        forms = [src, weights, dst] if conv.dir == "BWD_D" else [src, weights, bias, dst]
        how, hint = ([inference, algorithm], []) if conv.forward else ([algorithm], [None])
        try:
            description = library.make(
                "primitive_desc", f"dnnl_{kind}_{direction.name}_primitive_desc_create", library.engine, *how, *forms,
                *sizes_of(conv), *hint, _attributes(library, conv),
            )  # fmt: skip
        except ToolchainError:
            continue
        yield _implementations(library, description)


def _implementations(library: OnednnLibrary, description: Handle) -> Iterator[_Primitive]:
    """Yield the implementations of a description, from fast to slow."""
    yield _Primitive(library.make("primitive", "dnnl_primitive_create", description), description)
    while not library.next(description):
        yield _Primitive(library.make("primitive", "dnnl_primitive_create", description), description)


def _is_channels_last(layout: Layout) -> bool:
    """Return whether a source or result is in channels last, or in blocks of channels, which count as such."""
    return _strides(layout) == channels_last(layout.shape)


def _strides(layout: Layout) -> tuple[int, ...]:
    """Return the strides of a source or result; those of channels last for one in blocks of channels."""
    return layout.strides if layout.is_plain else channels_last(layout.shape)


class _Operand:
    """An array of a primitive: the memory that it uses, and the caller's, which may be the same.

    ``form`` and ``callers_form`` are their memory descriptors.
    """

    def __init__(
        self, library: OnednnLibrary, shape: tuple[int, ...], type_: str, form: Handle, callers_form: Handle
    ) -> None:
        self.library, self.shape, self.type = library, shape, type_
        self.form, self.memory = form, library.memory(form)
        self.is_reordered = not library.is_same(form, callers_form)
        self.callers_form = callers_form if self.is_reordered else form
        self.callers = library.memory(callers_form) if self.is_reordered else self.memory

    def fill(self, array: Array) -> None:
        """Write a logical array to the caller's memory."""
        self.callers.array[...] = self.library.placed(array, self.shape, self.type, self.callers_form).array

    def logical(self) -> Array:
        """Return the caller's memory as a logical array."""
        form = self.library.plain(self.shape, row_major(self.shape), self.type)
        plain = np.empty(self.shape, numpy_dtype(self.type))
        self.library.reorder(self.callers, self.callers_form, self.library.memory(form, plain), form)
        return plain

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


def _peer(library: OnednnLibrary, conv: Conv, arrays: Mapping[str, Array], primitive: _Primitive) -> Peer:
    """Return a peer that executes ``primitive``, in the memory descriptors that it asks for."""
    direction = _direction(conv)
    adds, _ = residual_and_clipping(conv, tuple(STEPS))
    name = conv.outputs[0].name
    operands: dict[str, _Operand] = {}
    for argument, shape, type_, strides in zip(
        (direction.src, direction.wei, direction.dst), (conv.src_shape, weights_shape(conv), conv.dst_shape), conv.dt,
        _callers_strides(conv), strict=True,
    ):  # fmt: skip
        wanted = library.wanted(primitive.description, argument.query)
        callers = wanted if strides is None else library.plain(shape, strides, type_)
        operands[argument.array] = operand = _Operand(library, shape, type_, wanted, callers)
        if argument.array != name:
            operand.fill(arrays[argument.array])
    written = operands[name]
    arguments = {a.number: operands[a.array].memory for a in (direction.src, direction.wei, direction.dst)}
    if conv.bias or conv.dir == "BWD_WB":
        form = library.plain((conv.oc,), (1,), conv.bias_type)
        given = aligned_copy(arrays["bia"]) if conv.bias else None
        arguments[direction.bias.number] = library.memory(form, given)
    arguments |= _quantities(library, conv, arrays)
    entering = [each for key, operand in operands.items() if key != name or adds for each in operand.entering()]
    executions = [*entering, _Execution(primitive.handle, arguments), *written.leaving()]
    packed = [(each.primitive, len(each.arguments), packed_arguments(each.arguments)) for each in executions]
    execute, stream = library.execute, library.stream

    def call(kept: object = executions) -> object:
        for handle, count, given in packed:
            execute(handle, stream, count, given)
        return None

    def result() -> Array:
        if adds:  # each call adds to the result of the previous one
            written.fill(arrays["dst"])
            call()
        return written.logical()

    return Peer(call, result)


def _callers_strides(conv: Conv) -> tuple[tuple[int, ...] | None, ...]:
    """Return the strides of source, weights and result from which and to which a call copies; None for an array that
    the caller has in the library's layout.
    """
    copied = not all(map(_is_channels_last, (conv.src_layout, conv.dst_layout)))
    images = [_strides(layout) if copied else None for layout in (conv.src_layout, conv.dst_layout)]
    weights = None
    if conv.dir.startswith("BWD_W"):
        strides = conv.wei_layout.strides if conv.wei_layout.is_plain else row_major(conv.wei_shape)
        group = () if conv.has_groups else (math.prod(conv.wei_shape),)
        weights = (*group, *strides)
    return images[0], weights, images[1]


def _attributes(library: OnednnLibrary, conv: Conv) -> Handle:
    """Return the attributes of a convolution: scales, zero points, the sum with the old result, and clipping."""
    attributes = library.make("primitive_attr", "dnnl_primitive_attr_create")
    for kind, quantities in (("scales", conv.scales), ("zero_points", conv.zero_points)):
        for quantity in quantities:
            if quantity.policy not in ("common", "per_oc"):
                raise UnsupportedError(f"onednn is not compared with {kind} {quantity.policy}", code="attributes")
            channels = 3 if quantity.argument == "wei" else 2  # groups and their channels, or channels
            mask = channels if quantity.policy == "per_oc" else 0
            library.check(f"dnnl_primitive_attr_set_{kind}_mask", attributes, _NUMBERS[quantity.argument], mask)
    adds, clips = residual_and_clipping(conv, tuple(STEPS))
    steps = library.make("post_ops", "dnnl_post_ops_create")
    if adds:
        library.check("dnnl_post_ops_append_sum", steps, ctypes.c_float(1), 0, TYPES[conv.dst_type])
    for op in clips:
        bounds = map(ctypes.c_float, (op.alpha, op.beta))
        library.check("dnnl_post_ops_append_eltwise", steps, STEPS[op.alg], *bounds)
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
