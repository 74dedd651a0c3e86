"""`compile`, which turns a problem into a kernel; packed weights from files; arrays in other layouts.

The process keeps the `KEPT_KERNELS` most recently used kernels, so a second call with the same sizes and strides finds
its kernel within microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from convsmith.diag import trace
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text, integer, integers, shown
from convsmith.diag.settings import MAX_THREADS, SIZES, read_size, settings
from convsmith.frontend.kernel import CompiledKernel
from convsmith.layout.reorder import reorder as reordered
from convsmith.layout.tags import ANY
from convsmith.machine import registry
from convsmith.problem.activations import Activation, activation_post_ops
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import split_line, split_stages
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, as_array, takes_arrays
from convsmith.runtime.packed import Packed
from convsmith.runtime.threads import default_threads
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.wish import Decisions, on_threads, read_decisions
from convsmith.tune.vector_width import machine_of

if TYPE_CHECKING:
    from convsmith.schedule.custom import KernelSchedule

__all__ = ["KEPT_KERNELS", "compile", "load_packed", "reorder", "thread_count", "watched"]

_IN_LINES = {"wei_tag": "--wtag", "bias": "--dir=FWD_B", "activation": "--attr-post-ops"}
"""Options of a stage's line, by the keywords of `compile` that apply only to a single stage."""
KEPT_KERNELS = 1024
"""Maximum number of kernels that the process keeps per cache."""


def compile(
    problem: str | Problem,
    *,
    src_tag: str | None = None,
    wei_tag: str | None = None,
    dst_tag: str | None = None,
    bias: bool = False,
    activation: Activation = None,
    threads: int | None = None,
    target: str | None = None,
    config: str | Config | None = None,
    accuracy: str | None = None,
    workspace: int | str | None = None,
    dynamic: str | Collection[str] | None = None,
    schedule: Callable[[KernelSchedule], object] | None = None,
) -> CompiledKernel:
    """Return the kernel of `problem`: a `Conv`, a `Matmul`, or a line in benchdnn's syntax.

    A line describes a convolution (`--conv`, the default), a deconvolution (`--deconv`) or a matrix product
    (`--matmul`) of any direction, types and attributes. `src_tag`, `wei_tag` and `dst_tag` are the layouts that the
    line leaves open (default: row-major, `abx`). `bias` adds a bias to a convolution; `activation` ("relu", ("clip", 0,
    6)) is a post-op after those of the line.

    `threads` defaults to CONVSMITH_THREADS, else to the CPUs of this process. `target` defaults to CONVSMITH_TARGET,
    else to the lowest level that is as fast for the problem's types as the machine's highest one, or to one with
    shorter vectors that channels fill better, where the model expects that to be faster; a level of another machine
    gives a kernel that can be inspected but raises UnsupportedError when it is called. `config` makes every decision; a
    text without a target or a lane, such as "--realise=indirection", fixes only the decisions that it
    names, and the best config under the model with these decisions is used. `target` must not contradict it, and
    `threads` overrides its thread count. `dynamic` names dims whose sizes each call determines: "mb,ih,iw" or a list
    for a convolution, which then takes pads too, "m" for a product. A device has a kernel for each size, which the
    first call with the size compiles.

    `workspace` is the maximum number of bytes that the kernel may need beside its tensors, packed copies of weights
    included, as an integer or a text such as "512K"; the fastest kernel within it is used.

    `schedule` is a function that replaces a config: it receives the schedule of the naive nest
    (:class:`convsmith.schedule.custom.KernelSchedule`) and calls its primitives. Decisions that it leaves open have
    defaults.

    UsageError for an illegal problem, UnsupportedError for an unsuitable machine, ConfigError for an illegal config.
    """
    tags = {"src_tag": src_tag, "wei_tag": wei_tag, "dst_tag": dst_tag}
    for name, text in (*tags.items(), ("target", target), ("accuracy", accuracy)):
        if text is not None:
            expect_text(name, text, "bad-option")
    if not isinstance(bias, bool):
        raise UsageError(f"bias={shown(bias)} is not legal: expected True or False", code="bias")
    if not isinstance(config, str | Config | None):
        raise UsageError(f"config={shown(config)} is not legal: expected a Config, or its text", code="config")
    conv = _with_options(problem, {"stag": src_tag, "wtag": wei_tag, "dtag": dst_tag}, accuracy, bias, activation)
    if workspace is not None:
        conv = _within(conv, _bytes("workspace", workspace))
    chosen = read_decisions(config) if isinstance(config, str) else config
    if schedule is not None:
        if chosen is not None:
            raise UsageError("schedule= and config= both decide; legal is one of them", code="schedule")
        chosen = GivenSchedule(schedule)
    named = chosen.target if chosen is not None else ""
    if target is not None and named and target != named:
        message = f"target={shown(target)}, but the config says --target={named}; legal is one of them"
        raise UsageError(message, code="target")
    count = thread_count((chosen.threads or None) if chosen is not None and threads is None else threads)
    if chosen is not None:
        chosen = on_threads(chosen, count)
    dims = None if dynamic is None else _dynamic_names(dynamic)
    if chosen is None and dims is None and target is None:
        level = machine_of(conv)
    else:
        level = registry.target(named or target or settings.target, conv.types)
    if dims is not None and isinstance(chosen, GivenSchedule):
        raise UsageError("dynamic= and a schedule: legal are schedules of kernels of fixed sizes", code="schedule")
    if watched() or isinstance(chosen, GivenSchedule):  # a function may behave differently at each call
        return CompiledKernel(conv, level, chosen, count, dynamic=dims)
    return _kernel(conv, level.name, chosen, count, dims, settings.micro_architecture)


@takes_arrays
def reorder(x: Array, from_tag: str, to_tag: str, shape: Sequence[int] | None = None) -> Array:
    """Return a new array in `to_tag` with the elements of `x`, which is in `from_tag`.

    `shape` is the logical shape; by default a blocked `x` has no padding (64 channels for nChw16c with 4 blocks).
    UsageError if a tag is malformed or does not suit the shape of `x`.
    """
    for name, tag in (("from_tag", from_tag), ("to_tag", to_tag)):
        expect_text(name, tag, "bad-tag")
    return reordered(as_array("x", x), from_tag, to_tag, None if shape is None else integers("shape", shape))


def load_packed(path: str | os.PathLike[str]) -> Packed:
    """Return the packed weights in a file that `Packed.save` wrote. UsageError if the file is something else."""
    return Packed.load(path)


# -- compile
@lru_cache(KEPT_KERNELS)
def _kernel(
    problem: Problem, target: str, config: Decisions | None, threads: int, dims: str | None, _: object
) -> CompiledKernel:
    return CompiledKernel(problem, registry.target(target), config, threads, dynamic=dims)


def _dynamic_names(given: object) -> str:
    """Return dims as one text, "ih,iw,mb", given such a text or a collection of names."""
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, Collection) else [given]
    names = [name for name in listed if isinstance(name, str)]
    if len(names) < len(listed):
        message = f"dynamic={shown(given)}: legal is a text such as 'mb,ih,iw', or a list of names"
        raise UsageError(message, code="dynamic")
    return ",".join(sorted({part.strip() for name in names for part in name.split(",")}))


def watched() -> bool:
    """Return whether a setting requires a fresh compilation or run, which a cached kernel would skip."""
    return settings.dump is not None or settings.check != "off" or trace.enabled("exec")


def thread_count(count: int | None) -> int:
    """Return the threads of a kernel if a call requests ``count``; the default is the setting of this process."""
    if count is None:
        return default_threads()
    number = integer("threads", count)
    if not 1 <= number <= MAX_THREADS:
        raise UsageError(f"threads={number} is not legal: expected 1 to {MAX_THREADS}", code="threads")
    return number


def _bytes(name: str, value: int | str) -> int:
    """Return a number of bytes, given as a number or as a text such as 512K."""
    try:
        count = read_size(value) if isinstance(value, str) else integer(name, value)
    except ValueError:
        count = -1
    if count < 0:
        raise UsageError(f"{name}={shown(value)} is not legal: expected {SIZES}", code="bad-option")
    return count


def _within(problem: Problem, workspace: int) -> Problem:
    """Return ``problem`` with a bound of its workspace. UsageError if it has another one."""
    if problem.workspace not in (None, workspace):
        raise UsageError(
            f"the problem says --workspace={problem.workspace}, the keyword {workspace}; legal is one of them",
            code="bad-option",
        )
    return replace(problem, workspace=workspace)


def _with_options(
    problem: str | Problem, tags: dict[str, str | None], accuracy: str | None, bias: bool, activation: Activation
) -> Problem:
    """Return the problem with the layouts, accuracy, bias and activation of the keywords.

    UsageError if the two contradict.
    """
    if isinstance(problem, str):
        lines = [split_line(stage).options for stage in split_stages(problem)]
        conv = parse_problem(problem)
    elif isinstance(problem, Problem):
        conv, lines = problem, [{"dir": problem.dir} if problem.bias else {}]
    else:
        raise UsageError(f"expected a descriptor or a problem, got {type(problem).__name__}", code="bad-descriptor")
    if isinstance(conv, Chain):
        of_stages = {"wei_tag": tags["wtag"], "bias": bias, "activation": activation}
        if name := next((name for name, value in of_stages.items() if value), None):
            raise UsageError(f"{name} is of one stage; legal in a chain is {_IN_LINES[name]} in its line", code=name)
    changes: dict[str, Any] = {}
    for option, tag in tags.items():
        if tag is None:
            continue
        here = getattr(conv, option)
        if here not in (ANY, tag):
            raise UsageError(f"the problem says --{option}={here}, the keyword {tag}; legal is one of them", code="tag")
        changes[option] = tag
    if accuracy is not None:
        stated = (options["accuracy"].lower() for options in lines if "accuracy" in options)
        if other := next((value for value in stated if value != accuracy), None):
            raise UsageError(
                f"the problem says --accuracy={other}, the keyword {accuracy}; legal is one of them", code="accuracy"
            )
        conv = conv.with_accuracy(accuracy)
    if bias and not conv.bias:
        if not isinstance(conv, Conv):
            raise UsageError("bias=True is for convolutions; legal in a product's line is --bia-dt=f32", code="bias")
        if "dir" in lines[0] or not conv.forward:
            raise UsageError(f"bias=True contradicts --dir={conv.dir}; legal is --dir=FWD_B", code="bias")
        changes["dir"] = "FWD_B"
    if steps := activation_post_ops(activation):
        changes["post_ops"] = (*conv.post_ops, *steps)
    return replace(conv, **changes) if changes else conv
