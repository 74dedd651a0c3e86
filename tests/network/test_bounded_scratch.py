"""Kernels that alone decide the memory of a network have less scratch memory, where the model says they are as fast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from beside_onnx_runtime import expected, inputs
from onnx_networks import NetworkBuilder

from convsmith.codegen.memory import KernelMemory, ThreadScratch
from convsmith.emulate import emulators
from convsmith.machine.host import lacking
from convsmith.machine.x86.levels import LEVELS
from convsmith.network import compile
from convsmith.network.compile import program_of
from convsmith.network.driver import image_of
from convsmith.network.graph import NetworkNode, Work
from convsmith.network.network import Network
from convsmith.network.operators.move import Reshape
from convsmith.network.placement.memory import Life
from convsmith.network.placement.scratch import bounded, with_bounded_scratch
from convsmith.onnx.graph import read_graph
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.tune.compile import compile_problem

LEVEL = next(level for level in LEVELS if level.name == "avx2")
SMALL, LARGE = (parse_problem(f"--stag=axb --dtag=axb mb1ic8ih{n}oc8oh{n}kh3ph1") for n in (8, 16))
RESHAPE = Reshape("f32", 24)


def _memory(scratch: int) -> KernelMemory:
    return KernelMemory(0, (), (), ThreadScratch(scratch, 1), (), 0)


def _bounded(*steps: tuple[Work, int], accepts: bool = True) -> tuple[list[Work], list[tuple[Problem, int]]]:
    """Return the works of steps after bounds, and what was asked for; a work in a step has so much scratch memory. A
    bound halves it. Values of 12,800 bytes are alive in each step.
    """
    memories, asked = {work: _memory(scratch) for work, scratch in steps}, list[tuple[Problem, int]]()

    def bound(problem: Problem, memory: KernelMemory, saved: int) -> Problem | None:
        asked.append((problem, saved))
        other = replace(problem, workspace=memory.call // 2)
        memories[other] = _memory(memory.call // 2)
        return other if accepts else None

    nodes = [NetworkNode(work, {}, f"y{n}", (f"n{n}",)) for n, (work, _) in enumerate(steps)]
    lives = [Life(12800, 0, len(steps) - 1)]
    return [node.work for node in with_bounded_scratch(nodes, lives, memories.__getitem__, bound)], asked


def test_the_kernel_that_alone_decides_is_bounded_in_all_its_steps() -> None:
    works, asked = _bounded((LARGE, 6400), (SMALL, 1280), (LARGE, 6400))
    assert asked == [(LARGE, 6400 - 1280)]
    assert works == [replace(LARGE, workspace=3200), SMALL, replace(LARGE, workspace=3200)]


def test_the_kernel_that_decides_then_is_bounded_too() -> None:
    works, asked = _bounded((LARGE, 6400), (SMALL, 5120))
    assert [problem for problem, _ in asked] == [LARGE, SMALL]
    assert [work.workspace for work in works if isinstance(work, Problem)] == [3200, 2560]


@pytest.mark.parametrize(
    "steps", [((LARGE, 0),), ((LARGE, 640),), ((LARGE, 6400), (SMALL, 6400)), ((RESHAPE, 6400), (LARGE, 1280))]
)
def test_others_are_not(steps: tuple[tuple[Work, int], ...]) -> None:
    assert _bounded(*steps) == ([work for work, _ in steps], [])


def test_a_slower_kernel_is_refused_once() -> None:
    works, asked = _bounded((LARGE, 6400), (SMALL, 1280), accepts=False)
    assert works == [LARGE, SMALL] and len(asked) == 1
    assert with_bounded_scratch((), (), lambda _: _memory(0), lambda *_: None) == ()


def test_blocks_of_a_transform_are_smaller_where_they_are_as_fast() -> None:
    problem = parse_problem("--dir=FWD_B --stag=axb --dtag=axb mb1ic96ih64oc32oh64kh3ph1")
    before = KernelMemory.of(compile_problem(problem, target=LEVEL))
    assert before.call > before.packing
    other = bounded(problem, before, before.call // 4, LEVEL, 1)
    assert other is not None
    after = KernelMemory.of(compile_problem(other, target=LEVEL))
    assert after.whole <= (other.workspace or 0) < before.whole and after.call <= before.call * 3 / 4
    least = before.whole - before.call + before.packing
    assert bounded(problem, before, before.call, LEVEL, 1) == replace(problem, workspace=least)


def test_packing_may_need_as_much_and_other_kernels_may_be_slower() -> None:
    deep = parse_problem("--stag=axb --dtag=axb mb1ic128ih14oc128oh14kh3ph1")
    memory = KernelMemory.of(compile_problem(deep, target=LEVEL))
    assert memory.packing >= memory.call and bounded(deep, memory, memory.call, LEVEL, 1) is None
    pretended = replace(memory, packing=0, packed=())
    assert bounded(deep, pretended, pretended.call - 1, LEVEL, 1) is None  # without packed weights and a transform


@pytest.mark.skipif(bool(lacking(LEVEL.needs)), reason="this CPU lacks avx2")
def test_a_network_needs_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulators, "is_native", lambda _: True)  # a level without the costs of this CPU
    b = NetworkBuilder(5)
    x = b.op("Relu", b.conv(b.input("x", 1, 8, 64, 64), 8, 96, 1))
    model = b.model(b.op("Relu", b.conv(b.conv(x, 96, 32, 3), 32, 8, 1)))
    graph = read_graph(model.SerializeToString())
    made = program_of(graph, 1, LEVEL)
    net = Network(image_of(made))
    arrays = inputs(net)
    (ours,), (theirs,) = net.run(arrays).values(), expected(model, arrays)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
    bounds = [k.work for k in made.kernels if isinstance(k.work, Problem) and k.work.workspace is not None]
    assert len(bounds) == 1 and len(made.kernels) == len({step.kernel for step in made.steps})
    monkeypatch.setattr(compile, "bounded", lambda *_: None)
    assert made.workspace < program_of(graph, 1, LEVEL).workspace * 15 / 16
