"""Graphs of networks with their convolutions on our kernels: runs of them are modules of class `Segment`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from operator import getitem
from typing import Any, NamedTuple

import torch
from rich import progress
from rich.console import Console
from torch import Tensor, fx, nn

from convsmith.diag.errors import ConvsmithError
from convsmith.frontend.numpy_api import compile
from convsmith.frontend.side_by_side import compile_ahead, not_cached
from convsmith.problem.conv import Conv
from convsmith.torch import devices
from convsmith.torch.aten import with_functions
from convsmith.torch.between import Taken, with_layers_between
from convsmith.torch.chains import chained
from convsmith.torch.choice import Times, times_of
from convsmith.torch.fold import Folded, Form, Refused, convolutions, form_of, is_product, without_identities
from convsmith.torch.layouts import has_one_order
from convsmith.torch.native import NetworkOptions, graph_of_networks, networks_by_export
from convsmith.torch.networks import Progress
from convsmith.torch.report import LayerRow, OptimizeReport
from convsmith.torch.segment import Segment
from convsmith.torch.segment_plan import PlacedLayer

__all__ = ["Work"]

class Work(NamedTuple):
    """The report to fill, and the options of `optimize`."""

    report: OptimizeReport
    threads: int
    keep_faster: bool
    bar: bool

    def optimized(self, traced: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
        """Return a graph with segments, for sizes and types of `inputs`."""
        with_functions(traced)
        without_identities(traced)
        _Shapes(traced).run(*inputs)
        _with_casts(traced)
        with _bars(self) as bar:
            made = graph_of_networks(traced, inputs, self._options(bar), lambda: _waiting(traced, self))
        if made is not None:
            return made
        found = list(convolutions(traced))
        for x in found:
            if isinstance(x, Refused):
                self.report.rows.append(LayerRow((x.name,), "", "", 0, 0, "torch", x.why))
        chosen = _chosen([x for x in found if isinstance(x, Folded)], self)
        if any(devices.is_gpu(x.layer.device) for x in chosen):
            return _rebuilt(traced, chosen, self)
        ours, times = chained(chosen, self.threads)
        self.report.chains += times
        return _rebuilt(traced, with_layers_between(traced, ours), self)


    def by_export(self, part: nn.Module, inputs: Sequence[Any], name: str) -> fx.GraphModule | None:
        """Return a graph of native functions of a module, for sizes and types of `inputs`; None if it has none."""
        with _bars(self) as bar:
            return networks_by_export(part, inputs, self._options(bar), name)

    def _options(self, bar: Progress) -> NetworkOptions:
        return NetworkOptions(self.report, self.threads, self.keep_faster, bar)


class _Shapes(fx.Interpreter):
    """Runs a graph and records the form of each tensor, and each value that is a data type."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta["form"] = Form(tuple(result.shape), result.dtype, devices.device_of(result))
        n.meta["dtype"] = result if isinstance(result, torch.dtype) else None
        return result


def _waiting(traced: fx.GraphModule, work: Work) -> fx.GraphModule:
    """Return a graph with segments that compile their kernels at their first calls."""
    return _rebuilt(traced, [x for x in convolutions(traced) if isinstance(x, Folded)], work, waits=True)


def _with_casts(traced: fx.GraphModule) -> None:
    """Cast the sources of convolutions and linear layers to the types of their results, as autocast does."""
    for node in list(traced.graph.nodes):
        source: Any = (node.args[0] if node.args else node.kwargs["input"]) if is_product(traced, node) else None
        form, result = form_of(source), form_of(node)
        if form is None or result is None or form.dtype == result.dtype:
            continue
        with traced.graph.inserting_before(node):
            cast = traced.graph.call_method("to", (source, result.dtype))
        cast.meta.update(layer=cast.name, dtype=None, form=form._replace(dtype=result.dtype))
        if node.args:
            node.args = (cast, *node.args[1:])
        else:
            node.kwargs = {**node.kwargs, "input": cast}


def _chosen(layers: Sequence[Folded], work: Work) -> list[Folded]:
    """Return the layers that our kernels run, and report all."""
    groups: dict[tuple[Conv, str], list[Folded]] = {}
    for x, problem in _problems(layers):
        groups.setdefault((problem, x.layer.folded), []).append(x)
    with _bars(work) as bar:
        on_gpu = [key for key, (x, *_) in groups.items() if devices.is_gpu(x.layer.device)]
        for key in on_gpu:
            if why := _obstacle_on_gpu(key[0], work):
                names = tuple(x.layer.name for x in groups.pop(key))
                work.report.rows.append(LayerRow(names, _without_steps(key[0]), "", 0, 0, "torch", why))
        problems = not_cached([key[0] for key in groups if key not in on_gpu], work.threads)
        if problems:
            done = bar("compile", len(problems))
            with closing(compile_ahead(problems, work.threads)) as kernels:
                for _ in kernels:
                    done()
        return _faster(groups, work, bar)


def _faster(groups: Mapping[tuple[Conv, str], list[Folded]], work: Work, bar: Progress
) -> list[Folded]:
    """Return the layers that run faster on our kernels, problem by problem, and report all layers."""
    ours: list[Folded] = []
    done = bar("optimize", len(groups))
    for (own, _), same in groups.items():
        layer, shape = same[0].layer, _shape(same[0])
        times = times_of(layer, own, shape, work.threads) if work.keep_faster else Times(0, 0, False)
        done()
        names = tuple(x.layer.name for x in same)
        runner = ("torch", "faster there") if times.stays else ("convsmith", "")
        row = LayerRow(names, _without_steps(own), layer.folded, times.ours, times.other, *runner, layer.kind)
        work.report.rows.append(row)
        if not times.stays:
            ours += same
    return ours


def _obstacle_on_gpu(problem: Conv, work: Work) -> str:
    """Return the reason why the GPU has no kernel of a problem; empty if it has one, which is compiled now."""
    try:
        compile(problem, threads=work.threads, target=devices.GPU_TARGET)
    except ConvsmithError as error:
        return str(error).partition("\n")[0]
    return ""


def _without_steps(problem: Conv) -> str:
    """Return the descriptor of a problem without its layouts, and without what follows the sums."""
    return replace(problem, post_ops=(), stag="any", dtag="any", wtag="any").descriptor()


def _shape(x: Folded) -> tuple[int, ...]:
    """Return the shape of a layer's source."""
    form = form_of(x.source)
    assert form is not None
    return form.shape


def _problems(layers: Sequence[Folded]) -> Iterator[tuple[Folded, Conv]]:
    """Yield the layers with the problems that segments will compile kernels for.

    A result overwrites the tensor that its layer adds if one of the layers computes that tensor and no later node reads
    it.
    """
    made = {x.last for x in layers}
    place = {node: n for x in layers[:1] for n, node in enumerate(x.last.graph.nodes)}
    for x in layers:
        added = x.residual
        readers = added.users if added is not None and added is not x.source and added in made else {x.last.next: None}
        yield x, x.layer.problem(_shape(x), all(place[user] <= place[x.last] for user in readers))


@contextmanager
def _bars(work: Work) -> Iterator[Progress]:
    """Yield a function from a verb and a number of kernels to a function that counts one more of them, on a progress
    bar on stderr if that is wanted.
    """
    if not work.bar:
        yield lambda *_: lambda: None
        return
    text, count = progress.TextColumn, progress.MofNCompleteColumn
    columns = (text("{task.description}"), progress.BarColumn(), count(), text("kernels"))
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield lambda verb, total: partial(
            shown.advance, shown.add_task(f"{verb} {work.report.network}", total=total)
        )  # fmt: skip


def _rebuilt(
    traced: fx.GraphModule, ours: Sequence[Taken], work: Work, waits: bool = False
) -> fx.GraphModule:
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
            if runs[-1] and (differs or runs[-1][0].layer.dtype != x.layer.dtype or _device(runs[-1]) != _device([x])):
                runs.append([])
            if not runs[-1]:
                orders = {}
            orders |= wanted
            runs[-1].append(x)
        elif node not in inner and node.op not in ("get_attr", "placeholder") and runs[-1]:
            runs.append([])
    made: dict[fx.Node, fx.Node] = {}
    for n, run in enumerate(run for run in runs if run):
        _replace_run(traced, run, f"convsmith_{n}", work, made, waits)
    for node in graph.nodes:
        node.type = None  # torch cannot pickle annotations that are strings
        if node.op == "call_method" and node.target == "view" and not any(map(_is_dtype, node.args)):
            node.target = "reshape"  # results of segments may have another memory order
    for node in reversed(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    graph.lint()
    traced.delete_all_unused_submodules()
    return fx.GraphModule(traced, graph, class_name=traced.__class__.__name__)


def _device(run: Sequence[Taken]) -> torch.device:
    """Return the device of the sources of layers."""
    form = form_of(run[0].source)
    assert form is not None
    return form.device


def _is_dtype(argument: object) -> bool:
    """Return whether an argument of a node is a data type."""
    return isinstance(argument.meta.get("dtype") if isinstance(argument, fx.Node) else argument, torch.dtype)


def _orders(x: Taken) -> dict[fx.Node, bool]:
    """Return whether the values that a layer reads and computes have channels second and last in memory, if that
    matters.
    """
    source, result = x.layer.orders
    values = {x.source: source, x.last: result}
    if x.residual is not None:
        values[x.residual] = result
    return {n: last for n, last in values.items() if (form := form_of(n)) is None or not has_one_order(form.shape)}


def _replace_run(
    traced: fx.GraphModule, run: Sequence[Taken], name: str, work: Work, made: dict[fx.Node, fx.Node],
    waits: bool,
) -> None:  # fmt: skip
    """Replace consecutive layers by one segment; `made` maps replaced nodes to nodes of earlier segments."""
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
        places, range(len(inputs)), [number[x] for x in outputs], shapes, dtype, work.threads, work.report.other_sizes,
        _device(run), waits,
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
