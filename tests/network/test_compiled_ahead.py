"""Kernels of a network that other CPUs compile while it is chosen which convolutions become chains."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_processes import children_of

import convsmith as cs
from convsmith.frontend.side_by_side import machine_of, not_cached
from convsmith.network import ahead
from convsmith.network import compile as network_compile
from convsmith.network.ahead import compiling_ahead, silent
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.post_ops import SumPostOp
from convsmith.problem.problem import Problem

PROBLEMS = [parse_problem(f"--stag=axb --dtag=axb mb1ic8ih6oc{oc}oh6kh3ph1") for oc in (8, 16, 24)]
LONGEST = 60.0
"""Seconds after which a test fails that waits for children."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ahead, "available_cpus", lambda: 2)
    with cs.settings.scope(cache=str(tmp_path / "cache")):
        yield


def missing(problems: list[Problem]) -> list[Problem]:
    return not_cached(problems, 1, cold)


def cold(problem: Problem) -> Any:
    return machine_of(problem).with_cold_weights


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def no_children_left() -> Iterator[None]:
    before = children_of(os.getpid())  # other tests of this process may have left some
    try:
        yield
    finally:
        assert children_of(os.getpid()) <= before


def test_kernels_are_compiled_while_the_block_runs_the_last_one_first() -> None:
    counted: list[int] = []

    @contextmanager
    def compiling(count: int) -> Iterator[Callable[[], None]]:
        yield lambda: counted.append(count)

    with no_children_left(), compiling_ahead(PROBLEMS, 1, cold, machine_of(PROBLEMS[0]), compiling) as finish:
        wait_for(lambda: PROBLEMS[2] not in missing(PROBLEMS))
        finish(PROBLEMS)
    assert not missing(PROBLEMS) and counted == [3, 3, 3]


def test_works_that_are_not_needed_are_given_up() -> None:
    with no_children_left(), compiling_ahead(PROBLEMS[:2], 1, cold, machine_of(PROBLEMS[0]), silent) as finish:
        finish([PROBLEMS[0], PROBLEMS[2]])
        assert not missing([PROBLEMS[0], PROBLEMS[2]])


def test_an_error_in_the_block_ends_the_children() -> None:
    with pytest.raises(ZeroDivisionError), no_children_left():
        with compiling_ahead(PROBLEMS, 1, cold, machine_of(PROBLEMS[0]), silent):
            raise ZeroDivisionError


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cpus", [1, 2])
def test_a_network_is_the_same_whoever_compiles_it(cpus: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from onnx_networks import residual_net

    monkeypatch.setattr(ahead, "available_cpus", lambda: cpus)
    net = cs.onnx.compile(residual_net(16), threads=1)
    with cs.settings.scope(cache="off"):
        alone = cs.onnx.compile(residual_net(16), threads=1)
    assert [x.code for x in net.image.kernels] == [x.code for x in alone.image.kernels]
    np.testing.assert_array_equal(net.image.weights, alone.image.weights)


def test_works_that_are_compiled_ahead_replace_addends_as_the_steps_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    from onnx_networks import residual_net

    begun: list[Any] = []

    @contextmanager
    def noted(works: list[Any], *arguments: Any) -> Iterator[Any]:
        begun.extend(works)
        with compiling_ahead(works, *arguments) as finish:
            yield finish

    monkeypatch.setattr(network_compile, "compiling_ahead", noted)
    net = cs.onnx.compile(residual_net(16), threads=1)
    run = {problem for problem, _ in net.problems()}
    assert run <= {*begun} and any(
        isinstance(op, SumPostOp) for problem in run if isinstance(problem, Conv) for op in problem.post_ops
    )
