"""Parts of a network as native functions: the choice between them and PyTorch, and their rows of the report."""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from convsmith.diag.settings import settings
from convsmith.machine import registry
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.torch.aten_call import SMALL_TYPES
from convsmith.torch.choice import Times, kept_times, least_seconds
from convsmith.torch.fold import form_of
from convsmith.torch.networks import Networks, Progress, SizedProgram, read_program, sized_program
from convsmith.torch.program import ReadProgram
from convsmith.torch.regions import is_product, name_of
from convsmith.torch.report import FunctionTimes, LayerRow, OptimizeReport
from convsmith.torch.tracing import has_code

__all__ = ["NetworkOptions", "graph_of_networks", "networks_by_export"]

_FLOATS = {torch.float32, *SMALL_TYPES}
"""Types of floats that graphs of networks take from PyTorch."""
_KEPT = ("scaled_dot_product_attention",)
"""Operators for which PyTorch has one kernel, and a graph of networks several."""


class NetworkOptions(NamedTuple):
    """The report to fill, the threads of functions, whether PyTorch keeps what it runs faster, and what shows the
    progress of the work.
    """

    report: OptimizeReport
    threads: int
    keep_faster: bool
    progress: Progress


class _Chosen(NamedTuple):
    """A program, and the times of its functions and of PyTorch."""

    sized: SizedProgram
    times: Times


def graph_of_networks(
    traced: fx.GraphModule, inputs: Sequence[Any], options: NetworkOptions, other: Callable[[], fx.GraphModule]
) -> fx.GraphModule | None:
    """Return a graph that calls native functions of all of `traced`, whose forms are known, or of the largest parts
    that graphs of networks express; None if there are none, or if PyTorch is faster.

    `other` makes a graph of `traced`, whose inputs are then tensors, for calls that have no functions.
    """
    given = _tensors(traced, inputs)
    if given is None or any(map(has_code, traced.modules())):
        return None
    part = _alone(traced)
    (output,) = (node for node in traced.graph.nodes if node.op == "output")
    chosen = _chosen(part, given, options, not isinstance(output.args[0], tuple | list))
    if chosen is None:
        return None
    for node in list(traced.graph.nodes):
        if node.op == "placeholder" and form_of(node) is None:
            traced.graph.erase_node(node)
    names = {node.name: str(node.meta.get("layer", node.name)) for node in part.graph.nodes}
    return _calling(part, other(), chosen, given, options, lambda node: _name_in_trace(node, names), inputs)


def networks_by_export(
    part: nn.Module, inputs: Sequence[Any], options: NetworkOptions, name: str
) -> fx.GraphModule | None:
    """Return a graph that calls native functions of a module, which is called `name` in the network, or of the largest
    parts of its program; None if there are none, or if PyTorch is faster.

    The module computes calls that have no functions.
    """
    given = [x for x in inputs if isinstance(x, Tensor)]
    is_here = all(x.is_cpu and x.layout is torch.strided for x in (*given, *part.parameters(), *part.buffers()))
    if len(given) < len(inputs) or not given or not is_here:
        return None
    with torch.no_grad():
        results = part(*given)
    chosen = _chosen(part, given, options, not isinstance(results, tuple))
    if chosen is None:
        return None
    parameters = chosen.sized.program.parameters
    return _calling(part, part, chosen, given, options, lambda node: _name_in_module(node, name, parameters), inputs)


def _chosen(part: nn.Module, inputs: list[Tensor], options: NetworkOptions, is_single: bool) -> _Chosen | None:
    """Return the fastest program of a module; None if it has none, with the reason in the report."""
    program, found = read_program(part, inputs), list[_Chosen]()
    why = program if isinstance(program, str) else ""
    if isinstance(program, ReadProgram):
        has_kept = any(name_of(node) in _KEPT for node in program.nodes)
        for kept in ((), _KEPT)[: 1 + (has_kept and options.keep_faster)]:
            sized = sized_program(program, options.threads, is_single, kept, options.progress)
            if isinstance(sized, str):
                why = sized
                continue
            times = _times(sized, part, inputs, options.threads) if options.keep_faster else Times(0, 0, False)
            found.append(_Chosen(sized, times))
            if times.stays:
                ours, other = (f"{x * 1e3:.2f} ms" for x in (times.ours, times.other))
                why = f"PyTorch takes {other} instead of {ours}"
    best = min(found, key=lambda x: x.times.ours, default=None)
    if best is None or best.times.stays:
        options.report.without_functions.append(why)
        return None
    return best


def _tensors(traced: fx.GraphModule, inputs: Sequence[Any]) -> list[Tensor] | None:
    """Return the inputs that are tensors; None if the graph reads other inputs, or computes with other types."""
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    found = []
    for node, x in zip(placeholders, inputs, strict=True):
        if isinstance(x, Tensor):
            found.append(x)
        elif node.users:
            return None
    forms = [form for node in traced.graph.nodes if (form := form_of(node)) is not None]
    types = {form.dtype for form in forms if form.dtype.is_floating_point or form.dtype.is_complex}
    is_here = all(form.device.type == "cpu" for form in forms) and all(x.layout is torch.strided for x in found)
    return found if found and is_here and types and types <= _FLOATS else None


def _alone(traced: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph without inputs that are no tensors."""
    graph = copy.deepcopy(traced.graph)
    for node in list(graph.nodes):
        if node.op == "placeholder" and form_of(node) is None:
            graph.erase_node(node)
    return fx.GraphModule(traced, graph, class_name=type(traced).__name__)


def _calling(
    part: nn.Module, other: nn.Module, chosen: _Chosen, given: Sequence[Tensor], options: NetworkOptions,
    name: Callable[[fx.Node], str], inputs: Sequence[Any],
) -> fx.GraphModule:  # fmt: skip
    """Return a graph with as many inputs as there are `inputs`, which calls functions on those that are tensors, and
    report its layers.
    """
    report, (sized, times) = options.report, chosen
    rows = list(_rows(sized, name))
    report.rows += rows
    report.functions.append(FunctionTimes(len(sized.runs), times.ours, times.other))
    layers = sum(len(row.names) for row in rows if row.runner != "torch")
    graph, root = fx.Graph(), nn.Module()
    root.add_module("convsmith", Networks(part, other, sized, given, options.threads, report.other_sizes, layers))
    made = [graph.placeholder(f"input_{n}") for n in range(len(inputs))]
    graph.output(graph.call_module("convsmith", tuple(node for node, x in zip(made, inputs) if isinstance(x, Tensor))))
    return fx.GraphModule(root, graph, class_name=type(part).__name__)


def _times(sized: SizedProgram, part: nn.Module, inputs: Sequence[Tensor], threads: int) -> Times:
    """Return the times of the functions and of PyTorch's graph."""
    steps = [step.work for run in sized.runs for step in run.network.image.steps]
    around = [str(node.target) for node in sized.program.nodes if node.op == "call_function"]
    digest = hashlib.sha256("\n".join((*steps, *around, *sized.kept)).encode()).hexdigest()
    forms = " ".join(str((tuple(x.shape), x.stride(), x.dtype)) for x in inputs)
    what = f"networks {digest} of {forms} beside torch {torch.__version__} on {threads}"

    def measured(most: int) -> Any:
        return least_seconds(lambda: sized.graph(*inputs), lambda: part(*inputs), most=most)

    return kept_times(what, registry.target(settings.target, ("f32", "f32", "f32")), measured)


# -- rows of the report -----------------------------------------------------------------------------------------------


def _rows(sized: SizedProgram, layer: Callable[[fx.Node], str]) -> Iterator[LayerRow]:
    """Yield the rows of a part: products of equal problems share one, and each that stays PyTorch's has its reason."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    by_name = {node.name: node for node in sized.program.nodes}
    named = set[fx.Node]()
    for run in sized.runs:
        for work, names in run.network.problems():
            nodes = [by_name[name] for name in names if name in by_name]
            products = [node for node in nodes if is_product(node)]
            rest = (name_of(node) for node in nodes if node not in products)
            folded = "+".join(_FOLDED.get(x, x) for x in rest if x not in _SILENT)
            named |= {*products}
            for node in products:
                groups[_problem_text(work), folded, _kind(node)].append(layer(node))
    for (problem, folded, kind), found in groups.items():
        yield LayerRow(tuple(found), problem, folded, 0, 0, "convsmith", "", kind)
    for node in sized.program.nodes:
        if node.op == "call_function" and is_product(node) and node not in named:
            yield LayerRow((layer(node),), "", "", 0, 0, "torch", sized.why.get(node, ""), _kind(node))


_FOLDED = {
    "batch_norm": "norm", "_native_batch_norm_legit_no_training": "norm", "hardtanh": "clip", "relu6": "clip",
    "clamp": "clip",
}  # fmt: skip
"""Names in reports of operators that are folded into a product."""
_SILENT = ("getitem", "<built-in function getitem>", "view", "reshape", "permute", "transpose", "clone", "unsqueeze")
"""Operators that compute nothing."""


def _name_in_trace(node: fx.Node, names: Mapping[str, str]) -> str:
    """Return the name of the layer of a node, which keeps the nodes that it was made of: the last is one of `names`."""
    sources: Any = node.meta.get("from_node") or ()
    last = node.name
    while sources:
        last, sources = sources[-1].name, sources[-1].from_node
    return names.get(last, node.name)


def _name_in_module(node: fx.Node, own: str, parameters: Mapping[str, str]) -> str:
    """Return the name of the layer of a node of a program of the module `own`: that of the module whose parameters are
    its weights, or its own name if the module computes them.
    """
    weights = node.args[1] if len(node.args) > 1 else None
    while isinstance(weights, fx.Node) and weights.name not in parameters:
        weights = next(iter(weights.all_input_nodes), None)
    if not isinstance(weights, fx.Node):
        return ".".join(filter(None, (own, node.name)))
    path = parameters[weights.name].removeprefix("own").removeprefix(".").partition(".parametrizations.")
    return ".".join(filter(None, (own, path[0] if path[1] else path[0].rpartition(".")[0])))


def _problem_text(problem: Problem) -> str:
    """Return the descriptor of a problem without its layouts, and without what follows the sums."""
    if isinstance(problem, Chain):
        return " -> ".join(_problem_text(stage) for stage in problem.stages)
    if isinstance(problem, Conv):
        return replace(problem, post_ops=(), stag="any", dtag="any", wtag="any").descriptor()
    return problem.descriptor()


def _kind(node: fx.Node) -> str:
    """Return the kind of the layer of a node."""
    name = name_of(node)
    return "convolution" if name.startswith("conv") else "linear" if name == "linear" else "product"
