"""Default configs multiply vectors, however few the channels are, and wherever a row of pixels meets the padding."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from problems import few_channels_a_group, gradient_of_few_channels

from convsmith.codegen.gathers import extent_of, is_gather
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Invoke, Store
from convsmith.ir.value import Binary, Fma, Load, lanes_of
from convsmith.ir.walk import walk
from convsmith.machine.base import Machine
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in LEVELS}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("draw", [few_channels_a_group, gradient_of_few_channels])
def test_products_are_vectors(draw: Callable[[random.Random], str], seed: int, isa: str) -> None:
    line = draw(random.Random(f"{isa} {seed}"))
    problem, target = parse_problem(line).without_transforms(), TARGETS[isa]
    config = default_config(problem, target, threads=1 + seed % 2)
    stmts = _statements(problem, config, target)
    stored = {v for s in stmts if isinstance(s, Store) for v in walk(s.value)}
    read = {x for s in stmts if isinstance(s, Invoke) for x in s.args if isinstance(x, Load)}
    alone = [v for v in stored if isinstance(v, Fma) or (isinstance(v, Binary) and v.op == "mul")]
    assert not alone, f"{line} under {config}: {alone[0]}"
    for x in filter(is_gather, read):
        first, last = extent_of(x)
        assert last - first < 2 * lanes_of(x), f"{line} under {config}: {x}"
    assert read


@pytest.mark.parametrize(
    ("line", "config"),
    [
        ("--stag=abx --dtag=abx mb1ic4ih13oc9oh13kh1ph0", "--lane=oh_ow --fuse=oh+ow --register=oc:3,oh_ow:48"),
        ("--stag=axb --dtag=axb mb1ic4ih7oc73oh7kh1ph0", "--lane=oc --register=ow:7,oc:48"),
    ],
)
def test_a_remainder_of_fewer_vectors_than_a_tile_is_made_of_vectors(line: str, config: str) -> None:
    stmts = _statements(parse_problem(line), Config.parse(f"--target=avx512 {config}"), TARGETS["avx512"])
    stores = [s for s in stmts if isinstance(s, Store)]
    assert stores and all(s.lanes is not None and s.lanes.active > 1 for s in stores)


def _statements(problem: Problem, config: Config, target: Machine) -> list[object]:
    """The statements of the kernel and of its functions after all rewrites, with the values in them."""
    with interning():
        low = lower(plan(problem, config, target))
        return [s for body in (low.kernel.body, *(f.body for f in low.kernel.functions)) for s in walk(body)]
