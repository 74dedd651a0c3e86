"""`optimize`: a network whose convolutions run on our kernels.

The network is traced by torch.fx, so that what stands around a convolution is seen: a norm, an activation and the
addition of a residual become part of its kernel, and convolutions that follow one another share one layout of memory.
The result is a `torch.fx.GraphModule`, whose code and graph can be printed: runs of convolutions are modules of class
`Segment`, everything else is what it was. A network that torch.fx cannot trace keeps its structure, and its largest
parts that can be traced are optimized one by one.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import getitem
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch import Tensor, fx, nn

from convsmith.diag.errors import UsageError
from convsmith.torch.between import Taken, with_layers_between
from convsmith.torch.chains import chained
from convsmith.torch.choice import Times, times_of
from convsmith.torch.fold import CONVOLUTIONS, Folded, Form, Refused, convolutions, form_of, without_identities
from convsmith.torch.layouts import check_memory, has_one_order
from convsmith.torch.report import LayerRow, OptimizeReport
from convsmith.torch.segment import PlacedLayer, Segment

__all__ = ["optimize"]


def optimize(
    model: nn.Module, example_inputs: Tensor | Sequence[Any], *, threads: int | None = None, keep_faster: bool = True,
    progress: bool | None = None,
) -> nn.Module:  # fmt: skip
    """Return `model` with its convolutions on our kernels, for inputs with the sizes and types of `example_inputs`.

    The model must be in eval mode, and stays as it is. The result, a `torch.fx.GraphModule` if the model can be traced,
    computes no gradients: norms, activations and residuals are folded into convolutions, whose weights are packed now,
    so later changes of parameters have no effect. Its attribute `convsmith_report` says which layers run on which
    kernels and why.

    `threads` are those of our kernels, by default torch's. A layer that torch runs faster stays torch's, unless
    `keep_faster` is false; both are measured once, and the times are kept in the cache. `progress` shows a bar on
    stderr, by default if that is a terminal.
    """
    start = time.perf_counter()
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: expected a torch.nn.Module, got {type(model).__name__}", code="model")
    if model.training:
        raise UsageError("model is in training mode; legal is model.eval()", code="training")
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else example_inputs
    if not isinstance(inputs, tuple | list) or next(_tensors(inputs), None) is None:
        got = f"{inputs!r:.80}" if isinstance(inputs, tuple | list) else type(inputs).__name__
        raise UsageError(
            f"example_inputs: expected a tensor, or a tuple of inputs with a tensor among them, got {got}",
            code="example-inputs",
        )
    if any(x.is_meta for x in _tensors(inputs)):
        raise UsageError("example_inputs: one is on meta, which holds no data; legal is cpu", code="device")
    named = (("example_inputs", x) for x in _tensors(inputs))
    check_memory((*named, *model.named_parameters(), *model.named_buffers()))
    count = torch.get_num_threads() if threads is None else threads
    report = OptimizeReport(type(model).__name__, count)
    bar = sys.stderr.isatty() if progress is None else progress
    work = _Work(report, count, keep_faster, bar)
    with torch.no_grad():
        own = _frozen(model)
        try:
            traced = fx.symbolic_trace(own)
        except Exception as error:  # the tracer raises what the model's own code raises on symbols
            made, expected = _by_parts(own, inputs, work, error)
        else:
            made, expected = _optimized(traced, inputs, work)
        report.difference = _difference(made(*inputs), expected)
    report.seconds = time.perf_counter() - start
    made.convsmith_report = report  # type: ignore[assignment]
    return made


def _frozen(model: nn.Module) -> nn.Module:
    """Return a copy of `model` on the memory of its tensors, whose parameters require no gradients."""
    tensors: dict[int, Tensor] = {id(x): nn.Parameter(x.detach(), requires_grad=False) for x in model.parameters()}
    return copy.deepcopy(model, tensors | {id(x): x for x in model.buffers()})


class _Work(NamedTuple):
    """The report to fill, and the options of `optimize`."""

    report: OptimizeReport
    threads: int
    keep_faster: bool
    bar: bool


def _optimized(traced: fx.GraphModule, inputs: Sequence[Any], work: _Work, prefix: str = "") -> tuple[nn.Module, Any]:
    """Return a traced network with segments, and the result of the network itself for `inputs`."""
    without_identities(traced)
    expected = _Shapes(traced).run(*inputs)
    found = list(convolutions(traced))
    for x in found:
        if isinstance(x, Refused):
            work.report.rows.append(LayerRow((prefix + x.name,), "", "", 0, 0, "torch", x.why))
    chosen = _chosen([x for x in found if isinstance(x, Folded)], work, prefix)
    ours, times = chained(chosen, work.threads)
    work.report.chains += times
    return _rebuilt(traced, with_layers_between(traced, ours), work), expected


def _by_parts(made: nn.Module, inputs: Sequence[Any], work: _Work, error: Exception) -> tuple[nn.Module, Any]:
    """Optimize the largest traceable parts of a network that cannot be traced; return it, and its result before."""
    parts = dict(_parts(made))
    seen: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    hooks = [
        part.register_forward_pre_hook(
            lambda _, given, named, name=name: seen.setdefault(name, (given, named)) and None, with_kwargs=True
        )
        for name, part in parts.items()
    ]
    expected = made(*inputs)
    for hook in hooks:
        hook.remove()
    failed: list[str] = []
    for name, (given, named) in seen.items():
        rows, chains = len(work.report.rows), len(work.report.chains)
        try:
            if named or len(given) != 1 or parts[name]._forward_hooks or parts[name]._forward_pre_hooks:
                raise UsageError("it has hooks, or its call has other arguments than one tensor", code="part")
            # A convolution that is a part of its own stays a module in the trace.
            part, result = _optimized(fx.symbolic_trace(nn.Sequential(parts[name])), given, work, f"{name}/")
            _difference(part(*given), result)
        except Exception as why:  # the part's own code, on symbols or on the example
            del work.report.rows[rows:], work.report.chains[chains:]
            reason = f"{type(why).__name__}: {str(why).partition(chr(10))[0]}"
            stay = [n for n, m in parts[name].named_modules() if type(m) in CONVOLUTIONS]
            names = tuple(".".join(filter(None, (name, n))) for n in stay)
            work.report.rows.append(LayerRow(names, "", "", 0, 0, "torch", reason))
            failed.append(name)
            continue
        if any(isinstance(m, Segment) for m in part.modules()):
            parts[name].forward = _PartForward(parts[name], part)
    work.report.note = (
        f"torch.fx cannot trace the network ({type(error).__name__}: {str(error).partition(chr(10))[0]}): "
        f"{len(seen) - len(failed)} parts are optimized one by one."
    )
    return made, expected


class _PartForward:
    """Calls of the module `own`: `part` computes those with one tensor, and the module's own code all others.

    The module keeps its class, its attributes and its hooks.
    """

    def __init__(self, own: nn.Module, part: nn.Module) -> None:
        self._own, self._part = own, part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and len(args) == 1 and isinstance(args[0], Tensor):
            return self._part(args[0])
        return type(self._own).forward(self._own, *args, **kwargs)


def _parts(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the largest modules inside of `model` that can be traced and have convolutions, with their names."""
    for child, module in model.named_children():
        if not any(type(m) in CONVOLUTIONS for m in module.modules()):
            continue
        if isinstance(module, nn.ModuleList | nn.ModuleDict):  # has no forward, and the tracer takes it as it is
            yield from _parts(module, f"{prefix}{child}.")
            continue
        try:
            fx.symbolic_trace(nn.Sequential(module))
        except Exception:  # what the module's own code raises on symbols
            yield from _parts(module, f"{prefix}{child}.")
        else:
            yield f"{prefix}{child}", module


class _Shapes(fx.Interpreter):
    """Runs a graph, and notes the form of each tensor."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["form"] = Form(tuple(result.shape), result.dtype, result.device.type)
        return result


def _chosen(layers: Sequence[Folded], work: _Work, prefix: str) -> list[Folded]:
    """Return the layers that our kernels run, and report all."""
    groups: dict[tuple[str, str], list[Folded]] = {}
    for x in layers:
        groups.setdefault((str(x.layer.problem(_shape(x), True)), x.layer.folded), []).append(x)
    ours: list[Folded] = []
    for same in _watched(groups.values(), work):
        layer, shape = same[0].layer, _shape(same[0])
        times = times_of(layer, shape, work.threads) if work.keep_faster else Times(0, 0, False)
        problem = replace(layer.problem(shape, True), post_ops=(), stag="any", dtag="any", wtag="any")
        names = tuple(prefix + x.layer.name for x in same)
        runner = ("torch", "faster there") if times.stays else ("convsmith", "")
        row = LayerRow(names, problem.descriptor(), layer.folded, times.ours, times.other, *runner, layer.kind)
        work.report.rows.append(row)
        if not times.stays:
            ours += same
    return ours


def _shape(x: Folded) -> tuple[int, ...]:
    """Return the shape of a layer's source."""
    form = form_of(x.source)
    assert form is not None
    return form.shape


def _watched(groups: Iterable[list[Folded]], work: _Work) -> Iterator[list[Folded]]:
    """Yield the groups, with a bar on stderr that counts them if that is wanted."""
    listed = list(groups)
    if not work.bar:
        yield from listed
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("kernels"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield from shown.track(listed, description=f"optimize {work.report.network}")


def _rebuilt(traced: fx.GraphModule, ours: Sequence[Taken], work: _Work) -> fx.GraphModule:
    """Return the network with segments in the place of the layers that are `ours`."""
    graph, by_last = traced.graph, {x.last: x for x in ours}
    inner = {node for x in ours for node in x.nodes[:-1]}
    runs: list[list[Taken]] = [[]]
    orders: dict[fx.Node, bool] = {}
    for node in graph.nodes:
        if node in by_last:
            x = by_last[node]
            wanted = _orders(x)
            differs = any(orders.get(value, last) != last for value, last in wanted.items())
            if runs[-1] and (differs or runs[-1][0].layer.dtype != x.layer.dtype):
                runs.append([])
            if not runs[-1]:
                orders = {}
            orders |= wanted
            runs[-1].append(x)
        elif node not in inner and node.op not in ("get_attr", "placeholder") and runs[-1]:
            runs.append([])
    made: dict[fx.Node, fx.Node] = {}
    for n, run in enumerate(run for run in runs if run):
        _replace_run(traced, run, f"convsmith_{n}", work, made)
    for node in graph.nodes:
        node.type = None  # annotations as texts, which torch cannot pickle
    for node in reversed(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    graph.lint()
    traced.delete_all_unused_submodules()
    return fx.GraphModule(traced, graph, class_name=traced.__class__.__name__)


def _orders(x: Taken) -> dict[fx.Node, bool]:
    """Return whether the values that a layer reads and makes have channels second, and last in memory, if that matters.
    """
    source, result = x.layer.orders
    values = {x.source: source, x.last: result}
    if x.residual is not None:
        values[x.residual] = result
    return {n: last for n, last in values.items() if (form := form_of(n)) is None or not has_one_order(form.shape)}


def _replace_run(
    traced: fx.GraphModule, run: Sequence[Taken], name: str, work: _Work, made: dict[fx.Node, fx.Node]
) -> None:
    """Put one segment in the place of layers that follow one another; `made` are the nodes of earlier segments by those
    that they replace.
    """
    graph = traced.graph
    results = {x.last: x for x in run}
    inputs = list(dict.fromkeys(n for x in run for n in (x.source, x.residual) if n is not None and n not in results))
    nodes = {node for x in run for node in x.nodes}
    outputs = [x.last for x in run if any(user not in nodes for user in x.last.users)]
    number = {node: n for n, node in enumerate((*inputs, *results))}
    places = []
    for n, x in enumerate(run):
        residual = x.residual
        replaced, other = (residual, x.source) if x.layer.adds else (x.source, residual)
        later = [y for y in run[n + 1 :] if replaced in (y.source, y.residual)]
        in_place = residual is not None and replaced in results and replaced not in outputs and replaced is not other
        in_place = in_place and not later
        added = None if residual is None else number[residual]
        places.append(PlacedLayer(x.layer.owned(), number[x.source], added, number[x.last], in_place))
    shapes = [form.shape for node in inputs if (form := form_of(node)) is not None]
    dtype = run[0].layer.dtype
    segment = Segment(
        places, range(len(inputs)), [number[x] for x in outputs], shapes, dtype, work.threads, work.report.other_sizes
    )  # fmt: skip
    traced.add_submodule(name, segment)
    with graph.inserting_after(run[-1].last):
        call = graph.call_module(name, tuple(made.get(node, node) for node in inputs))
    for at, node in reversed(list(enumerate(outputs))):
        made[node] = call
        if len(outputs) > 1:
            with graph.inserting_after(call):
                made[node] = graph.call_function(getitem, (call, at))
        node.replace_all_uses_with(made[node])
    for x in reversed(run):
        for node in reversed(x.nodes):
            graph.erase_node(node)


def _difference(made: Any, expected: Any) -> float:
    """Return the largest difference of two results, relative to the largest element of the second."""
    pairs = list(zip(_tensors(made), _tensors(expected)))
    differences = [float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()]
    largest = [float(b.double().abs().max()) for _, b in pairs if b.numel()]
    return max(differences, default=0.0) / (max(largest, default=0.0) or 1.0)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from (x for part in value.values() for x in _tensors(part))
    elif isinstance(value, tuple | list):
        yield from (x for part in value for x in _tensors(part))
