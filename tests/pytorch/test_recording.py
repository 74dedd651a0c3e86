"""Recorded runs: the graph of a function's operators, whose elements neither its code nor a size may depend on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the functions need PyTorch")

from torch import Tensor  # noqa: E402

from convsmith.diag.errors import UnsupportedError  # noqa: E402
from convsmith.torch.recording import recorded  # noqa: E402

pytestmark = pytest.mark.torch


def record(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Return the graph of a function of tensors, and its constants."""
    return recorded(function, [(f"x{n}", "an argument") for n in range(len(tensors))], tensors)


def run(graph: Any, constants: Any, *tensors: Tensor) -> Any:
    """Return the results of a graph that a module with its constants runs."""
    root = torch.nn.Module()
    for node in graph.nodes:
        if node.op == "get_attr":
            root.register_buffer(node.target, constants[node.name])
    return torch.fx.Interpreter(torch.fx.GraphModule(root, graph)).run(*tensors)


READING: dict[str, Callable[[Tensor], Any]] = {
    "a branch": lambda x: x + 1 if (x > 0).any() else x,
    "a number": lambda x: float(x.sum()),
    "an item": lambda x: x[0, 0].item(),
    "a list": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "an array": lambda x: np.asarray(x),
    "another library": lambda x: torch.from_dlpack(x),
    "places": lambda x: x.nonzero(),
    "places by a composite operator": lambda x: torch.argwhere(x),
    "a selection": lambda x: x[x > 0],
    "a comparison": lambda x: torch.equal(x, x),
    "distinct elements": lambda x: x.unique(),
    "counts": lambda x: torch.bincount(x.long().reshape(-1)),
    "classes": lambda x: torch.nn.functional.one_hot(x.long()),
}
"""Functions whose results depend on elements otherwise than through operators."""


@pytest.mark.parametrize("name", READING)
def test_code_that_reads_elements_is_refused(name: str) -> None:
    """A graph of such code would be right for the example alone."""
    with pytest.raises((UnsupportedError, RuntimeError)):
        record(READING[name], torch.ones(2, 3))


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x[0].zero_(), lambda x: x.t().mul_(2)])
def test_arguments_are_not_overwritten(write: Callable[[Tensor], Any]) -> None:
    """The error comes before the write."""
    x = torch.ones(2, 3)
    with pytest.raises(UnsupportedError, match="it changes an argument"):
        record(write, x)
    assert torch.equal(x, torch.ones(2, 3))


OUTSIDE = torch.ones(3)


def test_other_tensors_are_not_overwritten() -> None:
    """A tensor outside of parameters is a constant, which is as fixed as an argument."""
    with pytest.raises(UnsupportedError, match="it changes constant_0"):
        record(lambda x: OUTSIDE.add_(x), torch.ones(3))
    assert torch.equal(OUTSIDE, torch.ones(3))


def literal(x: Tensor) -> Tensor:
    """Return a sum with a literal that the code overwrites."""
    y = torch.tensor([1.0, 2.0, 3.0])
    y[0] = 5
    return x + y


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "a literal": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
    "places of a literal": lambda x: x[:, torch.tensor([0, 2])],
    "a tensor from outside": lambda x: x * OUTSIDE + OUTSIDE,
    "several results": lambda x: [y + n for n, y in enumerate(x.split(1))],
    "results in a dict": lambda x: {"a": (x, x + 1), "b": x.t()},
    "sizes": lambda x: x + torch.arange(x.shape[1], dtype=x.dtype, device=x.device),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs_compute_what_functions_compute(name: str) -> None:
    """Also for other elements than those of the example."""
    made = record(FUNCTIONS[name], torch.ones(2, 3))
    other = torch.randn(2, 3)
    expected = torch.utils._pytree.tree_leaves(FUNCTIONS[name](other))
    assert all(torch.equal(a, b) for a, b in zip(run(*made, other), expected, strict=True))


def test_values_have_forms_and_memories() -> None:
    """A view is in the memory of its source, a sum in one of its own."""
    graph, _ = record(lambda x: (x.t(), x + 1), torch.ones(2, 3))
    x, view, total = (node.meta for node in graph.nodes if node.op != "output")
    assert view["val"].shape == (3, 2) and view["val"].stride() == (1, 3) and view["val"].is_meta
    assert view["memories"] == x["memories"] != total["memories"]


def test_literals_that_are_overwritten_keep_their_numbers() -> None:
    """The constant of the graph is the literal as it was before the write."""
    _, constants = record(literal, torch.ones(2, 3))
    assert [1.0, 2.0, 3.0] in [x.tolist() for x in constants.values()]


def test_a_run_draws_no_random_numbers() -> None:
    """The next numbers are those that would have come without it."""
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    record(lambda x: torch.rand_like(x), torch.ones(2, 3))
    assert torch.equal(torch.rand(1), expected)


def test_nothing_imports_the_compiler_of_torch() -> None:
    """Its import would take more time than the statement of a network."""
    program = (
        "import sys, torch; from torch import nn; from convsmith.torch.networks import read_program\n"
        "m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten()).eval()\n"
        "read = read_program(m, [torch.ones(1, 3, 5, 5)])\n"
        "print(len(read.nodes), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["13", "False"]
