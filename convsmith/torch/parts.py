"""A network's largest parts that can run as graphs with our kernels.

A module is a part if it can be traced for the arguments of each of its calls in the example, and its graph computes
what the module computes. Otherwise the modules inside it are tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from convsmith.diag.errors import UnsupportedError
from convsmith.torch.autocast import cast_type, casting
from convsmith.torch.native import NoFunctionsError
from convsmith.torch.networks import Networks, in_words
from convsmith.torch.part_forward import PartForward
from convsmith.torch.purity import fresh, undone
from convsmith.torch.report import LayerRow, OptimizeReport
from convsmith.torch.tracing import (
    ModuleCall,
    Traced,
    exported,
    has_hooks,
    leaves_of,
    own_forward,
    signature_of,
    traced,
)
from convsmith.torch.trees import difference, tensors_of

__all__ = ["Parts", "region_of", "tolerance"]

_Optimized = Callable[[fx.GraphModule, list[Any]], fx.GraphModule]
_ByExport = Callable[[nn.Module, list[Any], str], fx.GraphModule | None]


class Parts:
    """The parts of a network; `optimized` returns the graph of a part with our functions, given inputs, and `by_export`
    the graph of a module that is no graph of `torch.fx`, or None. `expected` are what the network's own code returns
    for the arguments of its call, and these arguments after it; None if that is not known.

    `installed` maps the names of modules to the parts that run on our kernels. `difference` is that of the results of
    the whole network, if it is one part that was compared with `expected`.
    """

    def __init__(
        self, network: nn.Module, report: OptimizeReport, optimized: _Optimized, by_export: _ByExport,
        expected: tuple[Any, ...] | None = None,
    ) -> None:  # fmt: skip
        self._names = {id(m): name for name, m in network.named_modules()}
        self._network, self._expected = network, expected
        self.difference: float | None = None
        self._report, self._optimized, self._by_export = report, optimized, by_export
        self.installed: dict[str, PartForward] = {}
        self._improved: set[int] = set()

    def improve(self, module: nn.Module, calls: list[ModuleCall]) -> None:
        """Run a module, or parts of it, on our kernels in the calls that it receives in the example, once."""
        if id(module) in self._improved:
            return
        self._improved.add(id(module))
        name = self._names[id(module)]
        region = next((call.region for call in calls if call.region), "")
        if isinstance(module, torch.jit.ScriptModule):
            region = "it is compiled by torch.jit.script"
        if region:
            self._report.divided[name] = region
            self._refuse(module, region)
            return
        before = self._report.lengths()
        try:
            # Hooks see the calls of their modules, so these modules are kept, whatever becomes of the module around
            # them.
            for part, given in _calls_inside(module, calls, lambda m: has_hooks(m) and _has_weights(m)):
                self.improve(part, given)
            before = self._report.lengths()
            self._as_one(module, name, calls)
            return
        except Exception as error:  # the module's own code may raise anything on symbols; or a reason of ours
            self._report.shorten(before)
            why = in_words(error)
        self._report.divided[name] = why
        try:
            inner = _calls_inside(module, calls, _has_weights)
        except Exception as error:  # the module's code depends on its modules being unwatched
            self._refuse(module, in_words(error))
            return
        if isinstance(module, _ConvNd):
            self._refuse(module, why)
        for part, given in inner:
            self.improve(part, given)

    def _refuse(self, module: nn.Module, why: str) -> None:
        """Report that torch keeps the convolutions of a module."""
        names = [self._names[id(m)] for m in module.modules() if isinstance(m, _ConvNd)]
        if names:
            self._report.rows.append(LayerRow(tuple(names), "", "", "torch", why))

    def _as_one(self, module: nn.Module, name: str, calls: list[ModuleCall]) -> None:
        """Run a module as a graph for each signature of its calls. Raises the reason if that is not possible."""
        if isinstance(module, fx.GraphModule):
            raise UnsupportedError("a torch.fx.GraphModule keeps no other forward in copies", code="trace")
        parts: list[Traced] = []
        for call in calls:
            if all(part.signature.inputs(*leaves_of(call.args, call.kwargs), call.cast) is None for part in parts):
                parts.append(self._part(module, name, call))
        if not any(map(_has_functions, parts)):
            return
        made = PartForward(module, name, parts)
        expected = self._expected if module is self._network else None
        apart = [_compare(module, made, call, expected) for call in calls]
        if expected is not None:
            (self.difference,) = apart
        made.install()
        self.installed[name] = made

    def _part(self, module: nn.Module, name: str, call: ModuleCall) -> Traced:
        """Return a module's graph with our functions for a call; numbers are inputs of the graph if the module's code
        and functions permit.
        """
        with casting(call.cast):
            why, before = Exception(), self._report.lengths()
            for is_free in (True, False):
                signature = signature_of(call, is_free)
                try:
                    part = traced(module, signature, name)
                except Exception as error:  # the module's own code may raise anything on symbols; or a reason of ours
                    why = error
                    continue
                inputs = signature.inputs(*leaves_of(*fresh((call.args, call.kwargs))), call.cast)
                assert inputs is not None
                self._report.shorten(before)
                try:
                    with undone(module):
                        return replace(part, graph=self._optimized(part.graph, inputs))
                except NoFunctionsError as error:
                    why = error
            found = None
            if not isinstance(why, NoFunctionsError):
                with suppress(NoFunctionsError):
                    found = self._exported(module, name, call)
            if found is None:
                raise why
            return found

    def _exported(self, module: nn.Module, name: str, call: ModuleCall) -> Traced | None:
        """Return a module's graph as `torch.export` states it, with native functions; None if it has none."""
        signature = signature_of(call, False)
        inputs = signature.inputs(*leaves_of(*fresh((call.args, call.kwargs))), call.cast)
        if inputs is None:
            return None
        return exported(module, signature, lambda root: self._by_export(root, inputs, name))


def _has_functions(part: Traced) -> bool:
    """Return whether a graph calls native functions."""
    return any(isinstance(m, Networks) for m in part.graph.modules())


def _has_weights(module: nn.Module) -> bool:
    """Return whether a module has tensors that may be weights of convolutions."""
    return any(x.dim() > 2 for tensors in (module.parameters(), module.buffers()) for x in tensors)


def _calls_inside(
    module: nn.Module, calls: Iterable[ModuleCall], wanted: Callable[[nn.Module], bool]
) -> list[tuple[nn.Module, list[ModuleCall]]]:
    """Return the wanted modules inside a module, with the distinct calls that the module makes of them.

    Calls from within other wanted modules are left out.
    """
    inner = [m for m in module.modules() if m is not module and wanted(m) and not isinstance(m, torch.jit.ScriptModule)]
    if not inner:
        return []
    found: dict[nn.Module, dict[object, ModuleCall]] = {}
    with undone(module):
        _watch(inner, found)
        for call in calls:
            args, kwargs = fresh((call.args, call.kwargs))
            with casting(call.cast):
                own_forward(module)(*args, **kwargs)
    return [(m, list(given.values())) for m, given in found.items()]


def _watch(modules: list[nn.Module], found: dict[nn.Module, dict[object, ModuleCall]]) -> None:
    """Give modules a forward that records their calls, except calls from one to another."""
    depth = 0

    def watched_forward(m: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if not depth:
                call = ModuleCall(args, kwargs, region_of(args, kwargs), cast_type())
                found.setdefault(m, {}).setdefault(_form(call), call)
            depth += 1
            try:
                return forward(*args, **kwargs)
            finally:
                depth -= 1

        return watched

    for m in modules:
        vars(m)["forward"] = watched_forward(m, own_forward(m))


def region_of(args: Any, kwargs: Any) -> str:
    """Return the reason why torch keeps a module that is called now; empty if there is no reason."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors_of((args, kwargs))):
        return "its arguments require gradients"
    return ""


def _form(call: ModuleCall) -> object:
    """Return the key of a call: types, sizes and plain values of its arguments."""
    leaves, tree = leaves_of(call.args, call.kwargs)
    forms = [(x.shape, x.dtype, x.device) if isinstance(x, Tensor) else (type(x), repr(x)) for x in leaves]
    return repr(tree), repr(forms), call.region, call.cast


def _compare(module: nn.Module, made: PartForward, call: ModuleCall, known: tuple[Any, ...] | None) -> float:
    """Return the difference of the results of a module's graphs, in two consecutive calls, from the module's results,
    which are `known`, or computed here. UnsupportedError if it exceeds the tolerance.
    """
    results = [] if known is None else [(known[0], *known)]
    own = own_forward(module)
    for forward in (own, made)[len(results) :]:
        args, kwargs = fresh((call.args, call.kwargs))
        with undone(module) as change, casting(call.cast):
            once = again = fresh(forward(*args, **kwargs))
            # A graph is called again in any case, because it might return the memory of its first result.
            if forward is made or change() or difference((args, kwargs), (call.args, call.kwargs)):
                again = forward(*args, **kwargs)
            results.append((once, again, args, kwargs))
    expected, ours = results
    apart = difference(ours, expected)
    if apart > tolerance(expected, made.graphs):
        raise UnsupportedError(f"its graph gives results that differ by {apart:.1g} of the largest", code="difference")
    return apart


def tolerance(expected: Any, graphs: Iterable[nn.Module]) -> float:
    """Return the largest difference of a result that is due to rounding, relative to its largest element: half of the
    digits of the coarsest type.
    """
    types = {x.dtype for x in tensors_of(expected) if x.dtype.is_floating_point}
    types |= {m.dtype for graph in graphs for m in graph.modules() if isinstance(m, Networks)}
    return max((math.sqrt(torch.finfo(x).eps) for x in types), default=0.0)
