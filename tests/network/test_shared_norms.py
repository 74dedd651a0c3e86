"""Norms whose blocks of pixels threads share: three steps compute what one computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from convsmith.compiler.operator import operator_artifact
from convsmith.interp.interp import run
from convsmith.ir.stmt import Alloc
from convsmith.ir.walk import statements_of
from convsmith.machine import registry
from convsmith.network.graph import Graph, NetworkNode
from convsmith.network.image import NetworkValue
from convsmith.network.operators.norm import GroupNorm
from convsmith.network.operators.norm_in_blocks import BlockSquares, NormByBlocks
from convsmith.network.rewrites.shared_norms import with_shared_norms
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import numpy_dtype
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.operator import operator_plan

_LAST = ("axb", "axb")


def _norm(*shape: int, groups: int, **options: Any) -> GroupNorm:
    return GroupNorm("f32", shape, 1e-5, **{"tags": _LAST, "groups": groups, **options})


NORMS = {
    "one group": _norm(1, 40, 7, 5, groups=1),
    "groups, and a step": _norm(1, 24, 9, 3, groups=6, steps=(Eltwise("swish", 1),)),
    "channels without factors": _norm(2, 19, 5, 4, groups=19, factors=()),
    "one axis": _norm(1, 12, 37, groups=3),
    "volumes": _norm(1, 16, 5, 3, 2, groups=4),
}


def _graph(norm: GroupNorm) -> Graph:
    """A network of one norm of the value x."""
    values = {name: NetworkValue(name, norm.shape, norm.type) for name in ("x", "y")}
    held = {name: np.linspace(0.5, 2, norm.shape[1], dtype=np.float32) for name in norm.factors}
    node = NetworkNode(norm, {"src": "x", **{name: name for name in norm.factors}}, "y", ("norm",))
    return Graph("norms", (values["x"],), ("y",), (node,), held, values)


def _machine(meeting: float) -> Any:
    """This machine, with another price of a meeting of threads."""
    machine = registry.target(None, ("f32",) * 3)
    return replace(machine, costs=replace(machine.costs, meeting=meeting))


def _shared(norm: GroupNorm, threads: int) -> Graph:
    return with_shared_norms(_graph(norm), _machine(0), threads)


@pytest.mark.parametrize("threads", [3, 4])
@pytest.mark.parametrize("name", NORMS)
def test_three_steps_compute_the_norm(name: str, threads: int) -> None:
    norm = NORMS[name]
    graph = _shared(norm, threads)
    assert [type(node.work) for node in graph.nodes][1:] == [BlockSquares, NormByBlocks]
    x = (np.random.default_rng(0).standard_normal(norm.shape) * 2 + 30).astype(np.float32)
    whole = norm.reference(x, *(graph.constants[name] for name in norm.factors))
    found: dict[str, Any] = {"x": x, **graph.constants}
    for node in graph.nodes:
        work: Any = node.work
        arrays = {name: found[value] for name, value in node.arguments.items()}
        kernel = HostKernel(operator_artifact(work, registry.target(None, ("f32",) * 3), threads))
        found[node.output] = kernel.run(arrays)["dst"]
        expected = work.reference(*(arrays[t.name] for t in work.inputs))
        np.testing.assert_allclose(found[node.output], expected, 1e-5, 1e-5, err_msg=str(work))
    np.testing.assert_allclose(found["y"], whole, 1e-5, 1e-5)


def _in_memory(t: Tensor, x: Any) -> Any:
    """The elements of `x` in the order of the layout of `t`."""
    memory: Any = np.zeros(x.size, x.dtype)
    np.ndarray(x.shape, x.dtype, memory, 0, [n * x.itemsize for n in t.layout.strides])[...] = x
    return memory


@pytest.mark.parametrize("name", ["one group", "groups, and a step"])
def test_nests_and_their_rewrites_are_close_in_the_interpreter(name: str) -> None:
    norm, machine = NORMS[name], registry.target("generic")
    graph = _shared(norm, 2)
    x = np.random.default_rng(1).integers(-8, 9, norm.shape).astype(np.float32)
    found: dict[str, Any] = {"x": x, **graph.constants}
    for node in graph.nodes:
        work: Any = node.work
        arrays = {name: found[value] for name, value in node.arguments.items()}
        expected = found[node.output] = work.reference(*(arrays[t.name] for t in work.inputs))
        plan = operator_plan(work, machine, 2)
        assert plan.given is not None
        for kernel in (work.nests().kernel, plan.given.lowered):
            flat = {t.name: _in_memory(t, arrays[t.name]) for t in work.inputs}
            memory: dict[str, Any] = {b.name: np.zeros(b.size, numpy_dtype(b.dtype.name)) for b in kernel.params} | flat
            run(kernel, memory, {row: made.kernel for row, made in machine.rows.items()})
            np.testing.assert_allclose(memory["dst"], _in_memory(work.result, expected), 1e-5, 1e-5)


def test_a_channel_whose_pixels_are_adjacent_is_normalised_at_a_time() -> None:
    norm = _norm(2, 19, 70, groups=19, tags=("any", "any"))
    plan = operator_plan(norm, registry.target("avx512"), 2)
    assert plan.given is not None and norm.around == (1, 1)
    body = plan.given.lowered.body
    assert max(x.buffer.size for x in statements_of(body) if isinstance(x, Alloc)) <= 64
    assert _norm(2, 20, 70, groups=5, tags=("any", "any")).around == NORMS["one axis"].around == (1,)


@pytest.mark.parametrize(("norm", "threads", "meeting"), [
    (_norm(1, 40, 7, 5, groups=1), 1, 0), (_norm(4, 40, 7, 5, groups=1), 4, 0), (_norm(1, 40, 1, 9, groups=1), 2, 0),
    (_norm(1, 40, 7, 5, groups=1, tags=("abx", "abx")), 2, 0), (_norm(1, 40, 7, 5, groups=1), 2, 1e6),
    (_norm(1, 40, 7, 5, groups=1, tags=("axb", "abx")), 2, 0),
], ids=["one thread", "enough images", "one row", "channels first", "a slow meeting", "two layouts"])  # fmt: skip
def test_other_norms_stay_one_step(norm: GroupNorm, threads: int, meeting: float) -> None:
    graph = _graph(norm)
    assert with_shared_norms(graph, _machine(meeting), threads).nodes == graph.nodes
