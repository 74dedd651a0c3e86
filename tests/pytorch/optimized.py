"""Optimized networks beside the networks that they were made of."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from convsmith.torch import optimize
from convsmith.torch.networks import NetworkRun, Networks


def assert_alike(ours: Any, theirs: Any) -> None:
    """Compare two results: classes, structures, and tensors within the rounding of f32."""
    assert type(ours) is type(theirs)
    (a, one), (b, other) = pytree.tree_flatten(ours), pytree.tree_flatten(theirs)
    assert one == other
    for x, y in zip(a, b):
        if isinstance(y, Tensor):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5, check_stride=False)
        elif isinstance(y, dict) or hasattr(y, "__dict__"):
            assert type(x) is type(y)
            assert_alike(*(dict(z) if isinstance(z, dict) else vars(z) for z in (x, y)))
        else:
            assert x == y


def check(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Optimize a model for arguments, compare three calls with its own, two of them with other elements, and see that
    neither the model nor the arguments have changed.
    """
    given, state = copy.deepcopy((args, kwargs)), copy.deepcopy(dict(model.state_dict()))
    torch.manual_seed(3)
    drawn = torch.get_rng_state()
    made = optimize(model, args, example_kwargs=kwargs, threads=1, keep_faster=False)
    assert torch.equal(drawn, torch.get_rng_state()), "the caller's random numbers are what they were"
    assert pytree.tree_all(lambda x: x, pytree.tree_map(_equal, (args, kwargs), given))
    assert all(map(torch.equal, model.state_dict().values(), state.values()))
    assert type(made) is type(model)
    theirs, ours = copy.deepcopy(model) if _can_copy(model) else model, made
    with torch.no_grad():
        for factor in (1.0, -1.0, 0.5):
            results = []
            for network in (ours, theirs):
                torch.manual_seed(4)
                x, named = copy.deepcopy(given)
                for y in filter(_is_float, pytree.tree_leaves((x, named))):
                    y.mul_(factor)
                results.append((network(*x, **named), x, named))
            assert_alike(*results)
    report = made.convsmith_report
    assert bool(made.convsmith_graphs) == bool(report.ours), "the graphs that run"
    assert all(row.why for row in report.rows if row.runner == "torch"), "each layer that stays torch's has a reason"
    names = [name for row in report.rows for name in row.names]
    convolutions = [name for name, m in model.named_modules() if isinstance(m, nn.modules.conv._ConvNd)]
    assert set(convolutions) <= set(names), "each convolution is in the report"
    return made


def parts(model: Any) -> list[Networks]:
    """The parts of an optimized network that run as native functions."""
    graphs = [graph for several in model.convsmith_graphs.values() for graph in several]
    return [m for graph in graphs for m in graph.modules() if isinstance(m, Networks)]


def functions(model: Any) -> list[NetworkRun]:
    """The native functions of an optimized network for the sizes of the example."""
    return [m for part in parts(model) for m in part.graphs[0].modules() if isinstance(m, NetworkRun)]


def _is_float(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else not isinstance(a, int | float | str) or a == b


def _can_copy(model: nn.Module) -> bool:
    try:
        copy.deepcopy(model)
    except Exception:
        return False
    return True
