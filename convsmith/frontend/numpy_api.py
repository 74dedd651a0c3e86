"""Functions on numpy arrays: `compile` a problem into a kernel, or `conv1d`, `conv2d`, `conv3d` at once.

Kernels are kept in the process, the least recently used of `KEPT_KERNELS` going first, so that a second call with the
same sizes and strides finds its kernel in some microseconds.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias, overload

import numpy as np

from convsmith.diag import trace
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import MOST_THREADS, settings
from convsmith.frontend.dynamic import DynamicKernel, dynamic_names
from convsmith.frontend.kernel import Kernel
from convsmith.layout.reorder import reorder
from convsmith.layout.tags import ANY
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import AXES, output_size, split_line
from convsmith.problem.lines import parse_problem
from convsmith.problem.post_ops import Eltwise, PostOp, parse_post_ops
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array
from convsmith.runtime.packed import Packed
from convsmith.runtime.threads import default_threads
from convsmith.schedule.config import Config
from convsmith.target.registry import target

__all__ = ["Activation", "Padding", "compile", "conv1d", "conv2d", "conv3d", "load_packed", "reorder"]

KEPT_KERNELS = 1024

Activation: TypeAlias = str | tuple[str | float, ...] | None
Padding: TypeAlias = int | str | Sequence[int] | Sequence[tuple[int, int]]


@overload
def compile(
    problem: str | Problem, *, src_tag: str | None = None, wei_tag: str | None = None, dst_tag: str | None = None,
    bias: bool = False, activation: Activation = None, threads: int | None = None, isa: str | None = None,
    config: str | Config | None = None, dynamic: None = None,
) -> Kernel: ...  # fmt: skip
@overload
def compile(
    problem: str | Problem, *, src_tag: str | None = None, wei_tag: str | None = None, dst_tag: str | None = None,
    bias: bool = False, activation: Activation = None, threads: int | None = None, isa: str | None = None,
    config: str | Config | None = None, dynamic: str | Collection[str],
) -> DynamicKernel: ...  # fmt: skip
def compile(
    problem: str | Problem,
    *,
    src_tag: str | None = None,
    wei_tag: str | None = None,
    dst_tag: str | None = None,
    bias: bool = False,
    activation: Activation = None,
    threads: int | None = None,
    isa: str | None = None,
    config: str | Config | None = None,
    dynamic: str | Collection[str] | None = None,
) -> Kernel | DynamicKernel:
    """The kernel of a problem: a `Conv`, or a line in benchdnn's syntax, for convolutions (`--conv`, the default),
    deconvolutions (`--deconv`) and matrix products (`--matmul`) in any direction, types and attributes.

    `src_tag`, `wei_tag`, `dst_tag`: layouts, where the line leaves them open (plain order, `abx`, where nobody says).
    `bias` adds one to a convolution; `activation` is a post-op after those of the line: "relu", ("clip", 0, 6).
    `threads`: by default CONVSMITH_THREADS, else the CPUs of this process; `isa`: CONVSMITH_ISA, else the lowest level
    that does as well for the problem's types as the best this machine has. `config` makes every decision; its `isa`
    must not contradict, and its `threads` give way to those asked for. `dynamic` names dims of a forward convolution
    that differ from call to call, such as "mb,ih,iw" (or a list of names): then pads are arguments of the call as well.

    Errors are UsageError (the problem), UnsupportedError (this machine) and ConfigError (the config).
    """
    conv = _with_options(problem, {"stag": src_tag, "wtag": wei_tag, "dtag": dst_tag}, bias, activation)
    chosen = Config.parse(config) if isinstance(config, str) else config
    if chosen is not None:
        if isa is not None and isa != chosen.isa:
            raise UsageError(f"isa={isa!r}, but the config says --isa={chosen.isa}; legal is one of them", code="isa")
        chosen = replace(chosen, threads=_threads(chosen.threads if threads is None else threads))
    count = chosen.threads if chosen is not None else _threads(threads)
    level = target(chosen.isa if chosen is not None else isa or settings.isa, conv.types)
    if dynamic is not None:
        return _dynamic(conv, dynamic_names(dynamic), level.isa, chosen, count)
    if watched():
        return Kernel(conv, level, chosen, count)
    return _kernel(conv, level.isa, chosen, count)


def conv1d(
    x: Array, w: Array, bias: Array | None = None, *, stride: int | Sequence[int] = 1, padding: Padding = 0,
    dilation: int | Sequence[int] = 1, groups: int = 1, activation: Activation = None, out: Array | None = None,
    threads: int | None = None,
) -> Array:  # fmt: skip
    """Convolve x (N, C, W) with w (OC, C / groups, KW); otherwise as `conv2d`."""
    return _conv(1, x, w, bias, stride, padding, dilation, groups, activation, out, threads)


def conv2d(
    x: Array, w: Array, bias: Array | None = None, *, stride: int | Sequence[int] = 1, padding: Padding = 0,
    dilation: int | Sequence[int] = 1, groups: int = 1, activation: Activation = None, out: Array | None = None,
    threads: int | None = None,
) -> Array:  # fmt: skip
    """Convolve x (N, C, H, W) with w (OC, C / groups, KH, KW), f32, with PyTorch's meaning of the options.

    `stride` and `dilation` (1 is dense): a number, or one for each axis. `padding`: a number, one for each axis, a
    (front, back) pair for each axis, "valid" (none) or "same" (the output has the size of x; stride 1 only).
    `activation`: "relu", ("clip", low, high). Returns `out`, or a new array (N, OC, OH, OW): channels-last in memory
    when x is, else C-contiguous. Arrays that are neither are copied. Weights are packed at each call.
    """
    return _conv(2, x, w, bias, stride, padding, dilation, groups, activation, out, threads)


def conv3d(
    x: Array, w: Array, bias: Array | None = None, *, stride: int | Sequence[int] = 1, padding: Padding = 0,
    dilation: int | Sequence[int] = 1, groups: int = 1, activation: Activation = None, out: Array | None = None,
    threads: int | None = None,
) -> Array:  # fmt: skip
    """Convolve x (N, C, D, H, W) with w (OC, C / groups, KD, KH, KW); otherwise as `conv2d`."""
    return _conv(3, x, w, bias, stride, padding, dilation, groups, activation, out, threads)


def load_packed(path: str | os.PathLike[str]) -> Packed:
    """Packed weights from a file that `Packed.save` wrote. UsageError when it is something else."""
    return Packed.load(path)


# -- compile
@lru_cache(KEPT_KERNELS)
def _kernel(problem: Problem, isa: str, config: Config | None, threads: int) -> Kernel:
    return Kernel(problem, target(isa), config, threads)


@lru_cache(KEPT_KERNELS)
def _dynamic(problem: Problem, dims: str, isa: str, config: Config | None, threads: int) -> DynamicKernel:
    return DynamicKernel(problem, dims, target(isa), config, threads)


def watched() -> bool:
    """Whether a setting asks to see what a kernel at hand would not show."""
    return settings.dump is not None or settings.check != "off" or trace.enabled("exec")


def _threads(count: int | None) -> int:
    if count is None:
        return default_threads()
    number = _whole("threads", count)
    if not 1 <= number <= MOST_THREADS:
        raise UsageError(f"threads={number} is not legal: expected 1 to {MOST_THREADS}", code="threads")
    return number


def _with_options(problem: str | Problem, tags: dict[str, str | None], bias: bool, activation: Activation) -> Problem:
    """The problem with what the keywords add. UsageError where they contradict it."""
    if isinstance(problem, str):
        options: set[str] = set(split_line(problem).options)
        conv = parse_problem(problem)
    elif isinstance(problem, Problem):
        conv = problem
        options = {"dir"} if conv.bias else set()
    else:
        raise UsageError(f"expected a descriptor or a problem, got {type(problem).__name__}", code="bad-descriptor")
    changes: dict[str, Any] = {}
    for option, tag in tags.items():
        if tag is None:
            continue
        here = getattr(conv, option)
        if here not in (ANY, tag):
            raise UsageError(f"the problem says --{option}={here}, the keyword {tag}; legal is one of them", code="tag")
        changes[option] = tag
    if bias and not conv.bias:
        if not isinstance(conv, Conv):
            raise UsageError("bias=True is for convolutions; legal in a product's line is --bia-dt=f32", code="bias")
        if "dir" in options or not conv.forward:
            raise UsageError(f"bias=True contradicts --dir={conv.dir}; legal is --dir=FWD_B", code="bias")
        changes["dir"] = "FWD_B"
    if steps := _post_ops(activation):
        changes["post_ops"] = (*conv.post_ops, *steps)
    return replace(conv, **changes) if changes else conv


def _post_ops(activation: Activation) -> tuple[PostOp, ...]:
    if activation is None:
        return ()
    if isinstance(activation, str):
        return parse_post_ops(activation)
    try:
        name, *numbers = activation
        return (Eltwise(str(name), *map(float, numbers)),)
    except (TypeError, ValueError):
        raise UsageError(
            f'activation={activation!r} is not legal: expected a name such as "relu", or a tuple like ("clip", 0, 6)',
            code="bad-post-op",
        ) from None


# -- conv1d, conv2d, conv3d
def _conv(
    rank: int, x: Array, w: Array, bias: Array | None, stride: object, padding: object, dilation: object,
    groups: object, activation: Activation, out: Array | None, threads: int | None,
) -> Array:  # fmt: skip
    for name, array in (("x", x), ("w", w)):
        if not isinstance(array, np.ndarray):
            raise UsageError(f"{name}: expected a numpy array, got {type(array).__name__}", code="not-an-array")
        if array.ndim != rank + 2:
            raise UsageError(
                f"{name}: rank is {array.ndim}, shape {array.shape}; conv{rank}d takes rank {rank + 2}", code="rank"
            )
    src_tag = _tag(x)
    dst_tag = src_tag if not isinstance(out, np.ndarray) or out.ndim != x.ndim else _tag(out, src_tag)
    arguments = (
        rank, x.shape, src_tag, w.shape, _tag(w), dst_tag, bias is not None, _frozen(stride), _frozen(padding),
        _frozen(dilation), groups, _frozen(activation), threads, settings.threads, settings.isa,
    )  # fmt: skip
    try:
        hash(arguments)
    except TypeError:  # something odd: let the checks name it
        kernel = _kernel_of.__wrapped__(*arguments)
    else:
        kernel = (_kernel_of.__wrapped__ if watched() else _kernel_of)(*arguments)
    weights = w.reshape(kernel.problem.wei_shape) if kernel.problem.grouped else w
    return kernel(x, weights, bias, out=out)


@lru_cache(KEPT_KERNELS)
def _kernel_of(
    rank: int, x_shape: tuple[int, ...], src_tag: str, w_shape: tuple[int, ...], wei_tag: str, dst_tag: str,
    bias: bool, stride: Any, padding: Any, dilation: Any, groups: Any, activation: Any, threads: int | None, *_: object,
) -> Kernel:  # fmt: skip
    """The kernel of a call; the rest are settings that the default of `threads` and the target depend on."""
    g = _whole("groups", groups)
    if g < 1:
        raise UsageError(f"groups={g} is not legal: expected at least 1", code="bad-groups")
    n, ic, *i = x_shape
    oc, icg, *k = w_shape
    for dim, size in (("channels of x", ic), ("output channels of w", oc)):
        if size % g:
            raise UsageError(f"groups={g} does not divide the {size} {dim}", code="bad-groups")
    if ic != icg * g:
        raise UsageError(
            f"x has {ic} channels (dim 1 of {x_shape}), but w has {icg} for each of {g} groups (dim 1 of {w_shape}); "
            f"legal are {icg * g} channels of x, or {ic // g} in dim 1 of w",
            code="shape",
        )
    s = _per_axis("stride", stride, rank, 1)
    d = _per_axis("dilation", dilation, rank, 1)
    pads = _pads(padding, rank, s, d, tuple(k))
    o = []
    for axis, (size, kernel, step, hole, (front, back)) in enumerate(zip(i, k, s, d, pads)):
        extent = output_size(size, kernel, step, hole - 1, front, back)
        if extent < 0 or (extent == 0 and size > 0):
            raise UsageError(
                f"axis {AXES[rank][axis]}: the kernel spans {(kernel - 1) * hole + 1} elements, x with its padding "
                f"only {size + front + back} ({front} + {size} + {back}); legal is a kernel that fits",
                code="bad-output-size",
            )
        o.append(extent)
    problem = Conv(
        mb=n, ic=ic, oc=oc, i=tuple(i), o=tuple(o), k=tuple(k), s=s, d=tuple(hole - 1 for hole in d),
        p=tuple(front for front, _ in pads), g=g, has_groups=g > 1, dir="FWD_B" if bias else "FWD_D",
        stag=src_tag, dtag=dst_tag, wtag=wei_tag if g == 1 else ANY, post_ops=_post_ops(activation),
    )  # fmt: skip
    return compile(problem, threads=threads)


def _tag(array: Array, otherwise: str = "abx") -> str:
    """`abx` or `axb`, whichever the strides say; `otherwise` where they say neither (the array will be copied)."""
    if array.flags.c_contiguous:
        return "abx" if otherwise == "abx" or not _channels_last(array) else otherwise
    return "axb" if _channels_last(array) else otherwise


def _channels_last(array: Array) -> bool:
    return array.transpose(0, *range(2, array.ndim), 1).flags.c_contiguous


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that they can be looked up."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return tuple(value.tolist()) if isinstance(value, np.ndarray) else value


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name}={value!r} is not a whole number", code="bad-dim") from None


def _per_axis(name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple) else (value,) * rank
    if len(values) != rank:
        raise UsageError(
            f"{name}={value!r} has {len(values)} entries; legal is a number, or {rank} of them", code="bad-dim"
        )
    numbers = tuple(_whole(name, number) for number in values)
    if min(numbers) < least:
        raise UsageError(f"{name}={value!r} is not legal: expected at least {least} everywhere", code="bad-dim")
    return numbers


def _pads(
    padding: Any, rank: int, stride: tuple[int, ...], dilation: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Front and back padding of each axis."""
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * rank
        if padding != "same":
            raise UsageError(f'padding={padding!r} is unknown: legal are "same", "valid", numbers', code="bad-padding")
        if set(stride) != {1}:
            raise UsageError(f'padding="same" needs stride 1, not {stride}; legal are numbers', code="bad-padding")
        totals = [(k - 1) * d for k, d in zip(kernel, dilation)]
        return tuple((total // 2, total - total // 2) for total in totals)
    pairs = isinstance(padding, tuple) and any(isinstance(entry, tuple) for entry in padding)
    if not pairs:
        return tuple((p, p) for p in _per_axis("padding", padding, rank, 0))
    if len(padding) != rank or any(not isinstance(entry, tuple) or len(entry) != 2 for entry in padding):
        raise UsageError(
            f"padding={padding!r} is not legal: expected a (front, back) pair for each of {rank} axes",
            code="bad-padding",
        )
    return tuple((front, back) for front, back in (_per_axis("padding", pair, 2, 0) for pair in padding))
