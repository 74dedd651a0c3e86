"""`optimize`: a network whose convolutions run on our kernels.

The network is traced by torch.fx, because a trace shows the operations around a convolution: a norm, an activation and
the addition of a residual become part of its kernel, and successive convolutions share one layout of memory. The result
is a copy of the network whose forward runs the graph. A network that cannot be traced keeps its own code; the largest
parts of it that can be traced run as graphs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.parameter import is_lazy

from convsmith.diag.collection import no_collection
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.settings import MAX_THREADS, settings
from convsmith.frontend.numpy_api import thread_count
from convsmith.machine.registry import host_target
from convsmith.torch.autocast import cast_type
from convsmith.torch.copies import copied
from convsmith.torch.layouts import check_memory
from convsmith.torch.networks import in_words
from convsmith.torch.parts import Parts, region_of, tolerance
from convsmith.torch.purity import fresh, undone
from convsmith.torch.report import LayerRow, OptimizeReport
from convsmith.torch.tracing import ModuleCall
from convsmith.torch.trees import difference, tensors_of
from convsmith.torch.work import Work

__all__ = ["checked_example", "optimize"]


def optimize(
    model: nn.Module, example_inputs: Tensor | Sequence[Any] | Mapping[str, Any] = (), *,
    example_kwargs: Mapping[str, Any] | None = None, threads: int | None = None, keep_faster: bool = True,
    progress: bool | None = None,
) -> nn.Module:  # fmt: skip
    """Return `model` with its convolutions on our kernels, for inputs with the sizes and types of an example.

    `example_inputs` is a tensor, or a tuple of the arguments; a mapping passes arguments by name, like
    `example_kwargs`. The model must be in eval mode, and is not changed. The result is a copy of it, with its class,
    attributes and hooks, whose parameters and outputs require no gradients: norms, activations and residuals are folded
    into convolutions, whose weights are packed now, so later changes of parameters have no effect. Its attribute
    `convsmith_report` lists which layers run on which kernels and why, and `convsmith_graphs` maps the name of each
    module to the graph that it runs.

    `threads` is the number of threads of our kernels, by default torch's. Torch keeps a layer that it runs faster,
    unless `keep_faster` is false; both are measured once, and the times are kept in the cache. `progress` shows a bar
    on stderr, by default if that is a terminal.

    UsageError for an illegal option, and for a model that does not run on the example; UnsupportedError for a target
    that this machine lacks. Torch keeps every layer that no kernel supports.
    """
    start = time.perf_counter()
    args, kwargs = checked_example(model, example_inputs, example_kwargs)
    count = thread_count(min(torch.get_num_threads(), MAX_THREADS) if threads is None else threads)
    settings.validate()
    host_target(settings.target)
    report = OptimizeReport(type(model).__name__, count)
    bar = sys.stderr.isatty() if progress is None else progress
    work = Work(report, count, keep_faster, bar)
    with torch.no_grad(), no_collection():
        made = copied(model, frozen=True)
        try:
            expected, is_own = _own_results(made, args, kwargs)
        except Exception:  # the model's own code
            _check_eager(model, args, kwargs)
            made = copied(model, frozen=False)
            made.convsmith_graphs = {}  # type: ignore[assignment]
            why = "the network computes with gradients of its own parameters"
        else:
            parts = Parts(made, report, work.optimized, work.by_export, expected if is_own else None)
            parts.improve(made, [ModuleCall(args, kwargs, region_of(args, kwargs), cast_type())])
            made.convsmith_graphs = _installed(made, parts, report, (args, kwargs, expected))  # type: ignore[assignment]
            why = "the example does not call it"
        _report_others(made, report, why)
    report.seconds = time.perf_counter() - start
    made.convsmith_report = report  # type: ignore[assignment]
    return made


def checked_example(
    model: nn.Module, example_inputs: Any, example_kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the example. Raises UsageError if the model or the arguments are illegal."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}", code="model")
    # The module of an exported program cannot be set to eval mode: it keeps the mode of its export.
    if model.training and not (isinstance(model, fx.GraphModule) and "eval" in vars(model)):
        raise UsageError("model is in training mode; legal is model.eval()", code="training")
    if not isinstance(example_kwargs, Mapping | None):
        message = f"example_kwargs={shown(example_kwargs)} is not legal: expected a dict of arguments by name"
        raise UsageError(message, code="example-inputs")
    kwargs = dict(example_kwargs or {})
    args: Any = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    if isinstance(example_inputs, Mapping):
        args, kwargs = (), {**example_inputs, **kwargs}
    is_legal = isinstance(args, tuple | list) and all(isinstance(name, str) for name in kwargs)
    if not is_legal or next(tensors_of((args, kwargs)), None) is None:
        is_plain = isinstance(example_inputs, tuple | list | Mapping)
        got = f"{example_inputs!r:.80}" if is_plain else type(example_inputs).__name__
        raise UsageError(
            "example_inputs: expected a tensor, a tuple of arguments or a dict of arguments by name, with a tensor "
            f"among them, got {got}",
            code="example-inputs",
        )
    if any(x.is_meta for x in tensors_of((args, kwargs))):
        raise UsageError("example_inputs: one is on meta, which holds no data; legal is cpu", code="device")
    named = (("example_inputs", x) for x in tensors_of((args, kwargs)))
    parameters = ((name, x) for name, x in model.named_parameters() if not is_lazy(x))
    check_memory((*named, *parameters, *model.named_buffers()))
    return tuple(args), kwargs


def _results(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the result of a call of a model, and the arguments after it; the caller's model and arguments are
    unchanged.
    """
    given, named = fresh((args, kwargs))
    with undone(model):
        return fresh(model(*given, **named)), given, named


def _own_results(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], bool]:  # fmt: skip
    """Return what `_results` returns, and whether the model's forward alone returns the same in each call: it changes
    neither the model nor its arguments, and no hook runs around it.
    """
    given, named = fresh((args, kwargs))
    with undone(model) as change:
        results = fresh(model(*given, **named)), given, named
        is_pure = not change() and not difference((given, named), (args, kwargs))
    has_hooks = model._forward_hooks or model._forward_pre_hooks or _has_any_global_hook()  # type: ignore[no-untyped-call]
    return results, is_pure and not has_hooks and type(model).__call__ is nn.Module.__call__


def _check_eager(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise UsageError if the model itself does not run on the example."""
    try:
        _results(model, args, kwargs)
    except Exception as error:  # the model's own code
        raise UsageError(f"the model does not run on example_inputs: {in_words(error)}", code="inputs") from error


def _installed(
    made: nn.Module, parts: Parts, report: OptimizeReport, example: tuple[Any, ...]
) -> dict[str, list[fx.GraphModule]]:
    """Return the graphs of the parts of a network by name, after a check that the whole network gives the expected
    results, unless it is one part that was compared with them.

    If the network's code depends on the memory order of results, they are made contiguous. If the results still differ,
    all parts are PyTorch's again.
    """
    args, kwargs, expected = example
    graphs = {name: part.graphs for name, part in parts.installed.items()}
    if parts.difference is not None:
        report.difference = parts.difference
        return graphs
    most = tolerance(expected, (graph for several in graphs.values() for graph in several))
    why = ""
    for is_contiguous in (False, True):
        for part in parts.installed.values():
            part.is_contiguous = is_contiguous
        try:
            report.difference = difference(_results(made, args, kwargs), expected)
            why = "" if report.difference <= most else f"the network's results differ by {report.difference:.1g}"
        except Exception as error:  # the network's own code, which receives our results
            why = in_words(error)
        if not why:
            break
    else:
        for part in parts.installed.values():
            part.remove()
        report.rows = [replace(row, runner="torch", why=why) if row.runner != "torch" else row for row in report.rows]
        report.functions.clear()
        report.difference, graphs = 0.0, {}
    if "" in report.divided:
        count = len(graphs)
        report.note = (
            f"The network is not one graph ({report.divided['']}): {count} part{'s' * (count != 1)} of it run as "
            "graphs of their own."
        )
    return graphs


def _report_others(made: nn.Module, report: OptimizeReport, why: str) -> None:
    """Report why torch keeps the convolutions of a network that no row of the report names."""
    named = {name for row in report.rows for name in row.names}
    names = [name for name, m in made.named_modules() if isinstance(m, _ConvNd) and name not in named]
    if names:
        report.rows.append(LayerRow(tuple(names), "", "", "torch", why))
