"""Graphs of networks with native functions in the place of the parts between modules that run code of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from torch import fx, nn
from torch.fx.passes.split_module import split_module
from torch.nn.modules.conv import _ConvNd

from convsmith.diag.forking import import_lock
from convsmith.torch.native import NetworkOptions, NoFunctionsError, graph_of_networks
from convsmith.torch.networks import Progress
from convsmith.torch.report import LayerRow, OptimizeReport
from convsmith.torch.tracing import has_code

__all__ = ["Work"]


class Work(NamedTuple):
    """The report to fill, and the options of `optimize`."""

    report: OptimizeReport
    threads: int
    keep_faster: bool
    bar: bool

    def optimized(self, traced: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
        """Return a graph with native functions, for sizes and types of `inputs`; PyTorch computes parts without.

        NoFunctionsError if no part has one.
        """
        for node in traced.graph.nodes:
            node.type = None  # torch cannot pickle annotations that are strings
        if not any(_runs_code(traced, node) for node in traced.graph.nodes):
            return self._with_functions(traced, inputs)
        whole: Any = _split(traced)
        seen = _Inputs(whole)
        seen.run(*inputs)
        for name, given in seen.inputs.items():
            part = whole.get_submodule(name)
            try:
                setattr(whole, name, self._with_functions(part, given))
            except NoFunctionsError as error:
                self._keep(part, str(error))
        made: fx.GraphModule = whole
        return made

    def by_export(self, part: nn.Module, inputs: Sequence[Any], name: str) -> fx.GraphModule | None:
        """Return a graph of native functions of a module, for sizes and types of `inputs`; None if it has none."""
        with _bars(self) as bar:
            return graph_of_networks(part, inputs, self._options(bar), name)

    def _with_functions(self, part: Any, inputs: Sequence[Any]) -> fx.GraphModule:
        """Return a graph that calls functions of a part; the part itself, with rows of the report, if that is faster.
        """
        with _bars(self) as bar:
            made = graph_of_networks(part, inputs, self._options(bar))
        if made is None:
            self._keep(part, self.report.without_functions[-1])
        found: fx.GraphModule = part if made is None else made
        return found

    def _keep(self, part: fx.GraphModule, why: str) -> None:
        """Report that PyTorch computes the convolutions of a part."""
        for node in part.graph.nodes:
            if _is_convolution(part, node):
                self.report.rows.append(LayerRow((str(node.meta.get("layer", node.name)),), "", "", "torch", why))

    def _options(self, bar: Progress) -> NetworkOptions:
        return NetworkOptions(self.report, self.threads, self.keep_faster, bar)


def _runs_code(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node calls a module that runs code of its own, such as hooks."""
    return node.op == "call_module" and any(map(has_code, traced.get_submodule(str(node.target)).modules()))


def _is_convolution(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Return whether a node is a convolution."""
    if node.op == "call_module":
        return isinstance(traced.get_submodule(str(node.target)), _ConvNd)
    return node.op == "call_function" and getattr(node.target, "__name__", "").startswith("conv")


def _split(traced: fx.GraphModule) -> fx.GraphModule:
    """Return a graph that calls parts of a graph: those of even numbers, between modules with code of their own. Each
    part has the constants that it reads.
    """
    numbers: dict[fx.Node, int] = {}
    for node in traced.graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            after = max((numbers[x] for x in node.all_input_nodes if x in numbers), default=0)
            numbers[node] = after + (after % 2 != _runs_code(traced, node))
    whole = split_module(traced, traced, lambda node: numbers[node])
    for call in [node for node in whole.graph.nodes if node.op == "call_module"]:
        part: Any = whole.get_submodule(str(call.target))
        placed = [node for node in part.graph.nodes if node.op == "placeholder"]
        for n, (node, given) in enumerate(zip(placed, call.args, strict=True)):
            if isinstance(given, fx.Node) and given.op == "get_attr":
                part.register_buffer(f"constant_{n}", attrgetter(str(given.target))(whole).detach())
                with part.graph.inserting_before(node):
                    made = part.graph.get_attr(f"constant_{n}")
                made.meta.update(node.meta)
                node.replace_all_uses_with(made)
                part.graph.erase_node(node)
        call.args = tuple(x for x in call.args if not (isinstance(x, fx.Node) and x.op == "get_attr"))
        part.recompile()
    whole.recompile()
    return whole


class _Inputs(fx.Interpreter):
    """Runs a graph of parts, and keeps the `inputs` of those without code of their own, by name."""

    def __init__(self, whole: fx.GraphModule) -> None:
        super().__init__(whole)
        self.inputs: dict[str, list[Any]] = {}

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        part: Any = self.module.get_submodule(str(target))
        if not any(_runs_code(part, node) for node in part.graph.nodes):
            self.inputs[str(target)] = list(args)
        return super().call_module(target, args, kwargs)


@contextmanager
def _bars(work: Work) -> Iterator[Progress]:
    """Yield a function from a verb and a number of kernels to a function that counts one more of them, on a progress
    bar on stderr if that is wanted.
    """
    if not work.bar:
        yield lambda *_: lambda: None
        return
    with import_lock:
        from rich import progress
        from rich.console import Console

    text, count = progress.TextColumn, progress.MofNCompleteColumn
    columns = (text("{task.description}"), progress.BarColumn(), count(), text("functions"))
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield lambda verb, total: partial(
            shown.advance, shown.add_task(f"{verb} {work.report.network}", total=total)
        )  # fmt: skip
