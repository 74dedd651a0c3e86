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

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.settings import settings
from convsmith.machine import registry
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.loading import device_name
from convsmith.torch import devices
from convsmith.torch.choice import Times, kept_times, least_seconds
from convsmith.torch.networks import Networks, Progress, SizedProgram, read_program, sized_program
from convsmith.torch.program import ReadProgram, name_of
from convsmith.torch.regions import is_product
from convsmith.torch.report import FunctionTimes, LayerRow, OptimizeReport

__all__ = ["NetworkOptions", "NoFunctionsError", "graph_of_networks"]

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


class NoFunctionsError(UnsupportedError):
    """A module of which no part has a function, with the reason."""


class _Chosen(NamedTuple):
    """A program, and the times of its functions and of PyTorch."""

    sized: SizedProgram
    times: Times


def graph_of_networks(
    part: nn.Module, inputs: Sequence[Any], options: NetworkOptions, name: str = ""
) -> fx.GraphModule | None:
    """Return a graph that calls native functions of a module, which is called `name` in the network, or of the largest
    parts of its program; None if PyTorch is faster. NoFunctionsError if there are none.

    The inputs of a graph of `torch.fx` may be numbers, which functions take as arrays of one number.
    """
    given = _tensors(inputs)
    if given is None:
        raise NoFunctionsError("it reads no tensor in memory of kernels", code="functions")
    if isinstance(part, fx.GraphModule):
        own, names = _alone(part, inputs), {n.name: str(n.meta.get("layer", n.name)) for n in part.graph.nodes}
        chosen = _chosen(own, given, options)
        return chosen and _calling(own, chosen, given, options, lambda node: _name_in_trace(node, names), inputs)
    chosen = _chosen(part, given, options)
    if chosen is None:
        return None
    parameters = chosen.sized.program.parameters
    return _calling(part, chosen, given, options, lambda node: _name_in_module(node, name, parameters), inputs)


def _chosen(part: nn.Module, inputs: list[Tensor], options: NetworkOptions) -> _Chosen | None:
    """Return the fastest program of a module; None if PyTorch is faster, with the reason in the report.

    The module runs only after its program has been read, which changes no input then.
    """
    program, found = read_program(part, inputs), list[_Chosen]()
    why = program if isinstance(program, str) else ""
    if isinstance(program, ReadProgram):
        has_kept = any(name_of(node) in _KEPT for node in program.nodes)
        for kept in ((), _KEPT)[: 1 + (has_kept and options.keep_faster)]:
            sized = sized_program(program, options.threads, kept, options.progress, devices.device_of(inputs[0]))
            if isinstance(sized, str):
                why = sized
                continue
            times = _times(sized, part, inputs, options.threads) if options.keep_faster else Times(0, 0, False)
            found.append(_Chosen(sized, times))
            if times.stays:
                ours, other = (f"{x * 1e3:.2f} ms" for x in (times.ours, times.other))
                why = f"PyTorch takes {other} instead of {ours}"
    best = min(found, key=lambda x: x.times.ours, default=None)
    if best is None:
        raise NoFunctionsError(why, code="functions")
    if best.times.stays:
        options.report.without_functions.append(why)
        return None
    return best


_NUMBERS = {float: torch.float32, int: torch.int32}
"""Types of arrays of one number by the class of the number."""


def _tensors(inputs: Sequence[Any]) -> list[Tensor] | None:
    """Return the inputs that are tensors, and numbers as tensors; None if kernels do not run where they are."""
    found = [x for x in inputs if isinstance(x, Tensor)]
    places = {devices.device_of(x) for x in found}
    is_here = len(places) == 1 and all(map(devices.runs_kernels, places))
    is_cast = torch.is_autocast_enabled("cuda") and any(map(devices.is_gpu, places))
    if not is_here or is_cast or any(x.layout is not torch.strided for x in found):
        return None
    return [
        x if isinstance(x, Tensor) else torch.tensor(x, dtype=_NUMBERS[type(x)], device=found[0].device)
        for x in inputs if isinstance(x, Tensor) or type(x) in _NUMBERS
    ]  # fmt: skip


def _alone(traced: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Return a copy of a graph without inputs that are neither tensors nor numbers, which no node reads."""
    graph = copy.deepcopy(traced.graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, x in zip(placeholders, inputs, strict=True):
        if not isinstance(x, Tensor) and type(x) not in _NUMBERS:
            graph.erase_node(node)
    return fx.GraphModule(traced, graph, class_name=type(traced).__name__)


def _calling(
    part: nn.Module, chosen: _Chosen, given: Sequence[Tensor], options: NetworkOptions,
    name: Callable[[fx.Node], str], inputs: Sequence[Any],
) -> fx.GraphModule:  # fmt: skip
    """Return a graph with as many inputs as there are `inputs`, which calls functions on tensors and numbers, and
    report its layers.
    """
    report, (sized, times) = options.report, chosen
    rows = list(_rows(sized, name))
    report.rows += rows
    report.functions.append(FunctionTimes(len(sized.runs), times.ours, times.other))
    layers = sum(len(row.names) for row in rows if row.runner != "torch")
    graph, root = fx.Graph(), nn.Module()
    root.add_module("convsmith", Networks(part, sized, given, options.threads, report.other_sizes, layers))
    taken = list[fx.Node]()
    for n, x in enumerate(inputs):
        node = graph.placeholder(f"input_{n}")
        if isinstance(x, Tensor):
            taken.append(node)
        elif type(x) in _NUMBERS:
            options_of_number: dict[str, Any] = {"dtype": _NUMBERS[type(x)], "device": given[0].device}
            taken.append(graph.call_function(torch.tensor, (node,), options_of_number))
    graph.output(graph.call_module("convsmith", tuple(taken)))
    return fx.GraphModule(root, graph, class_name=type(part).__name__)


def _times(sized: SizedProgram, part: nn.Module, inputs: Sequence[Tensor], threads: int) -> Times:
    """Return the times of the functions and of PyTorch's graph."""
    steps = [line for run in sized.runs for line in run.steps]
    around = [str(node.target) for node in sized.program.nodes if node.op == "call_function"]
    digest = hashlib.sha256("\n".join((*steps, *around, *sized.kept)).encode()).hexdigest()
    forms = " ".join(str((tuple(x.shape), x.stride(), x.dtype)) for x in inputs)
    what = f"networks {digest} of {forms} beside torch {torch.__version__} on {threads}"
    device = devices.device_of(inputs[0])
    if devices.is_gpu(device):
        what += f" and {device_name(devices.GPU_TARGET)}"
    target = registry.target(devices.target_on(device) or settings.target, ("f32", "f32", "f32"))

    def measured(most: int) -> Any:
        with torch.inference_mode():
            return least_seconds(
                lambda: sized.graph(*inputs), lambda: part(*inputs), most=most, finish=lambda: devices.finish(device)
            )

    return kept_times(what, target, measured)


# -- rows of the report -----------------------------------------------------------------------------------------------


def _rows(sized: SizedProgram, layer: Callable[[fx.Node], str]) -> Iterator[LayerRow]:
    """Yield the rows of a part: products of equal problems share one, and each that stays PyTorch's has its reason."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    by_name = {node.name: node for node in sized.program.nodes}
    named = set[fx.Node]()
    for run in sized.runs:
        for work, names in run.problems():
            nodes = [by_name[name] for name in names if name in by_name]
            products = [node for node in nodes if is_product(node)]
            rest = (name_of(node) for node in nodes if node not in products)
            folded = "+".join(_FOLDED.get(x, x) for x in rest if x not in _SILENT)
            named |= {*products}
            for node in products:
                groups[_problem_text(work), folded, _kind(node)].append(layer(node))
    for (problem, folded, kind), found in groups.items():
        yield LayerRow(tuple(found), problem, folded, "convsmith", "", kind)
    for node in sized.program.nodes:
        if node.op == "call_function" and is_product(node) and node not in named:
            yield LayerRow((layer(node),), "", "", "torch", sized.why.get(node, ""), _kind(node))


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
