"""One-call convolutions with the options of PyTorch: `conv1d`, `conv2d`, `conv3d` and their transposed counterparts.

Arrays may come from any library. Data types and layouts follow from the arguments; a second call with the same types,
sizes and strides finds its kernel within microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import integer, shown
from convsmith.diag.settings import settings
from convsmith.frontend.arguments import data_type
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import KEPT_KERNELS, compile, watched
from convsmith.frontend.transposed import run_transposed, transposed_problem
from convsmith.frontend.window import ConvOptions, ConvWindow, coarse_sizes, transposed_sizes, window_of
from convsmith.layout.tags import ANY
from convsmith.problem.activations import Activation, activation_post_ops
from convsmith.problem.conv import Conv
from convsmith.runtime.arrays import Array, as_array, takes_arrays
from convsmith.runtime.border import Given, Names
from convsmith.runtime.denormals import with_denormals
from convsmith.runtime.kept import KeptWeights

__all__ = [
    "Padding", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
]  # fmt: skip

Numbers: TypeAlias = int | Sequence[int]
Padding: TypeAlias = int | str | Sequence[int] | Sequence[tuple[int, int]]

_NAMES = Names({"src": "x", "wei": "w", "bia": "bias", "dst": "out"})
_FLOATS = ("f32", "f64", "f16", "bf16")
_KEPT = KeptWeights(1 << 27)
"""Packed weights of earlier calls, with copies of the plain weights: at most 128 MiB."""
_BYTES = ("u8", "s8")
_PLAIN = frozenset((int, str, type(None)))
"""Types of options that can be cache keys unchanged."""


class _Function(NamedTuple):
    """A function of this module: its number of spatial axes, and whether the convolution is transposed."""

    rank: int
    is_transposed: bool = False

    @property
    def name(self) -> str:
        return f"conv{'_transpose' * self.is_transposed}{self.rank}d"


_CONV = {rank: _Function(rank) for rank in (1, 2, 3)}
_CONV_TRANSPOSE = {rank: _Function(rank, True) for rank in (1, 2, 3)}


@takes_arrays
def conv1d(
    x: Array, w: Array, bias: Array | None = None, *, stride: Numbers = 1, padding: Padding = 0,
    dilation: Numbers = 1, groups: int = 1, activation: Activation = None, out: Array | None = None,
    threads: int | None = None, denormals: str = "keep",
) -> Array:  # fmt: skip
    """Return the convolution of x (N, C, W) with w (OC, C / groups, KW); otherwise like `conv2d`."""
    options = ConvOptions(stride, padding, dilation, groups, activation)
    return _call(_CONV[1], x, w, bias, options, out, threads, denormals)


@takes_arrays
def conv2d(
    x: Array, w: Array, bias: Array | None = None, *, stride: Numbers = 1, padding: Padding = 0,
    dilation: Numbers = 1, groups: int = 1, activation: Activation = None, out: Array | None = None,
    threads: int | None = None, denormals: str = "keep",
) -> Array:  # fmt: skip
    """Return the convolution of x (N, C, H, W) with w (OC, C / groups, KH, KW), with the options of PyTorch.

    x and w have one type of f32, f64, f16 and bf16, which the result has too; or each is u8 or s8, and the result is
    s32. The bias (OC,) has the result's type or f32. Sums of f16 and bf16 are f32 and are rounded once.

    `stride` and `dilation` (1 is dense): a number, or one per axis. `padding`: a number, one per axis, a (front, back)
    pair per axis, "valid" (none) or "same" (the output has the size of x; stride 1 only). `activation`: a name such as
    "relu", "gelu" or "silu", or a name with parameters: ("leaky_relu", 0.2), ("clip", low, high).

    The result is `out`, or a new array (N, OC, OH, OW) of x's library, channels-last in memory if x is, otherwise
    C-contiguous. An array with other strides is copied. Weights that are passed again are packed once and kept: a call
    compares all their bytes with a copy, and packs again if one has changed. `denormals="flush"` replaces denormal
    weights, which slow a CPU down, by zero.
    """
    options = ConvOptions(stride, padding, dilation, groups, activation)
    return _call(_CONV[2], x, w, bias, options, out, threads, denormals)


@takes_arrays
def conv3d(
    x: Array, w: Array, bias: Array | None = None, *, stride: Numbers = 1, padding: Padding = 0,
    dilation: Numbers = 1, groups: int = 1, activation: Activation = None, out: Array | None = None,
    threads: int | None = None, denormals: str = "keep",
) -> Array:  # fmt: skip
    """Return the convolution of x (N, C, D, H, W) with w (OC, C / groups, KD, KH, KW); otherwise like `conv2d`."""
    options = ConvOptions(stride, padding, dilation, groups, activation)
    return _call(_CONV[3], x, w, bias, options, out, threads, denormals)


@takes_arrays
def conv_transpose1d(
    x: Array, w: Array, bias: Array | None = None, *, stride: Numbers = 1, padding: Padding = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1, activation: Activation = None,
    out: Array | None = None, threads: int | None = None, denormals: str = "keep",
) -> Array:  # fmt: skip
    """Return the transposed convolution of x (N, C, W) with w (C, OC / groups, KW); otherwise like `conv_transpose2d`.
    """
    options = ConvOptions(stride, padding, dilation, groups, activation, output_padding)
    return _call(_CONV_TRANSPOSE[1], x, w, bias, options, out, threads, denormals)


@takes_arrays
def conv_transpose2d(
    x: Array, w: Array, bias: Array | None = None, *, stride: Numbers = 1, padding: Padding = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1, activation: Activation = None,
    out: Array | None = None, threads: int | None = None, denormals: str = "keep",
) -> Array:  # fmt: skip
    """Return the transposed convolution of x (N, C, H, W) with w (C, OC / groups, KH, KW), with the options of PyTorch.

    Each axis of the result has `stride * (size - 1) + dilation * (kernel - 1) + 1 + output_padding` elements, minus the
    padding at front and back. `output_padding` must be below the stride or the dilation. Other options are as in
    `conv2d`, except that `padding` must be numbers.
    """
    options = ConvOptions(stride, padding, dilation, groups, activation, output_padding)
    return _call(_CONV_TRANSPOSE[2], x, w, bias, options, out, threads, denormals)


@takes_arrays
def conv_transpose3d(
    x: Array, w: Array, bias: Array | None = None, *, stride: Numbers = 1, padding: Padding = 0,
    output_padding: Numbers = 0, groups: int = 1, dilation: Numbers = 1, activation: Activation = None,
    out: Array | None = None, threads: int | None = None, denormals: str = "keep",
) -> Array:  # fmt: skip
    """Return the transposed convolution of x (N, C, D, H, W) with w (C, OC / groups, KD, KH, KW); like
    `conv_transpose2d`.
    """
    options = ConvOptions(stride, padding, dilation, groups, activation, output_padding)
    return _call(_CONV_TRANSPOSE[3], x, w, bias, options, out, threads, denormals)


class _Form(NamedTuple):
    """Shape, type and layout of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    tag: str


_Key: TypeAlias = tuple[tuple[int, ...], np.dtype[Any], str]
"""The fields of a `_Form` as a tuple, which is a cheaper key."""


class _Case(NamedTuple):
    """All inputs that the problem of a call depends on."""

    x: _Form
    w: _Form
    dst_tag: str
    bias: np.dtype[Any] | None
    options: ConvOptions


def _call(
    function: _Function, x: Array, w: Array, bias: Array | None, options: ConvOptions, out: Array | None,
    threads: int | None, denormals: str,
) -> Array:  # fmt: skip
    """Return the result of a function of this module."""
    for name, array in (("x", x), ("w", w)):
        if as_array(name, array).ndim != function.rank + 2:
            raise UsageError(
                f"{name}: rank is {array.ndim}, shape {array.shape}; {function.name} takes rank {function.rank + 2}",
                code="rank",
            )
    src_tag = _tag(x)
    dst_tag = src_tag if not isinstance(out, np.ndarray) or out.ndim != x.ndim else _tag(out, src_tag)
    if not _PLAIN.issuperset(map(type, options)):
        options = ConvOptions(*map(_frozen, options._fields, options))
    is_watched = watched()
    kernel, sizes = (_kernel_of.__wrapped__ if is_watched else _kernel_of)(
        function, (x.shape, x.dtype, src_tag), (w.shape, w.dtype, _tag(w)), dst_tag,
        None if bias is None else as_array("bias", bias).dtype, options,
        None if threads is None else integer("threads", threads), settings.threads, settings.choice,
    )  # fmt: skip
    w = with_denormals(denormals, "w", w)
    if sizes:
        return run_transposed(kernel, sizes, _NAMES, x, w, bias, out)
    if not is_watched and (packed := kernel.kept(_KEPT, _NAMES, w, bias)) is not None:
        return kernel.call_as(_NAMES, x, packed, out)
    arrays: dict[str, Given] = {"src": x, "wei": w}
    if bias is not None:
        arrays["bia"] = bias
    if out is not None:
        arrays["dst"] = out
    return kernel.run_as(_NAMES, arrays)["dst"]


@lru_cache(KEPT_KERNELS)
def _kernel_of(
    function: _Function, x: _Key, w: _Key, dst_tag: str, bias: np.dtype[Any] | None, options: ConvOptions,
    threads: int | None, *_: object,
) -> tuple[CompiledKernel, tuple[int, ...]]:  # fmt: skip
    """Return the kernel of a call and, if the convolution is transposed, the spatial shape of the result.

    Further arguments are settings that affect the defaults of `threads` and of the target.
    """
    case = _Case(_Form(*x), _Form(*w), dst_tag, bias, options)
    fields = _types(case) | {"stag": case.x.tag, "dtag": case.dst_tag}
    if function.is_transposed and isinstance(options.padding, str):
        raise UsageError(f"padding={shown(options.padding)} is not legal: expected numbers", code="bad-padding")
    window = window_of(case.w.shape[2:], options)
    fields["post_ops"] = activation_post_ops(options.activation)
    problem, sizes = (_transposed if function.is_transposed else _direct)(case, window, fields)
    return compile(problem, threads=threads), sizes


def _direct(case: _Case, window: ConvWindow, fields: dict[str, Any]) -> tuple[Conv, tuple[int, ...]]:
    (n, ic, *i), (oc, icg, *k), g = case.x.shape, case.w.shape, window.groups
    for dim, size in (("channels of x", ic), ("output channels of w", oc)):
        if size % g:
            raise UsageError(f"groups={g} does not divide the {size} {dim}", code="bad-groups")
    if ic != icg * g:
        raise UsageError(
            f"x has {ic} channels (dim 1 of {case.x.shape}), but w has {icg} for each of {g} groups (dim 1 of "
            f"{case.w.shape}); legal are {icg * g} channels of x, or {ic // g} in dim 1 of w",
            code="shape",
        )
    # Weights are packed in each call, so transforming them would take longer than it saves.
    problem = Conv(
        accuracy="strict", mb=n, ic=ic, oc=oc, i=tuple(i), o=coarse_sizes(i, k, window), k=tuple(k), s=window.stride,
        d=tuple(hole - 1 for hole in window.dilation), p=tuple(front for front, _ in window.padding), g=g,
        has_groups=g > 1, wtag=case.w.tag if g == 1 else ANY, **fields,
    )  # fmt: skip
    return problem, ()


def _transposed(case: _Case, window: ConvWindow, fields: dict[str, Any]) -> tuple[Conv, tuple[int, ...]]:
    x, w = case.x.shape, case.w.shape
    if x[1] != w[0]:
        raise UsageError(
            f"x has {x[1]} channels (dim 1 of {x}), but w has {w[0]} (dim 0 of {w}); legal is the same number",
            code="shape",
        )
    if x[1] % window.groups:
        message = f"groups={window.groups} does not divide the {x[1]} channels of x"
        raise UsageError(message, code="bad-groups")
    sizes = transposed_sizes(x[2:], w[2:], window, case.options)
    fronts = [front for front, _ in window.padding]
    return transposed_problem(x, w, window.groups, window.stride, window.dilation, fronts, sizes, **fields), sizes


def _types(case: _Case) -> dict[str, Any]:
    """Return the fields of a problem that the types of the arguments determine."""
    src = data_type("x", np.empty(0, case.x.dtype), _FLOATS + _BYTES)
    wei = data_type("w", np.empty(0, case.w.dtype), _BYTES if src in _BYTES else (src,))
    dst = "s32" if src in _BYTES else src
    fields: dict[str, Any] = {"dt": (src, wei, dst)}
    if case.bias is not None:
        legal = (dst,) if dst in ("f32", "f64") else (dst, "f32")
        fields |= {"dir": "FWD_B", "bia_dt": data_type("bias", np.empty(0, case.bias), legal)}
    return fields


def _tag(array: Array, otherwise: str = "abx") -> str:
    """Return `abx` or `axb` according to the strides; `otherwise` for other strides, whose array will be copied."""
    if array.flags.c_contiguous:
        return "abx" if otherwise == "abx" or not _channels_last(array) else otherwise
    return "axb" if _channels_last(array) else otherwise


def _channels_last(array: Array) -> bool:
    return array.transpose(0, *range(2, array.ndim), 1).flags.c_contiguous


def _frozen(name: str, value: Any) -> Any:
    """Return an option as a hashable cache key: lists as tuples; floats that equal integers are refused."""
    if type(value) is int or value is None or isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(name, entry) for entry in value)
    if name == "activation":
        if type(value) is float or isinstance(value, np.number):
            return float(value)
        raise UsageError(f"activation={shown(value)} is not legal: expected numbers after the name", code="bad-post-op")
    return integer(name, value)
