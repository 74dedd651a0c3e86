"""Kernels of sm_90a from problems: exact as PTX under four schedules, without spills, and every planted fault is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guarded import check_result, expected, logical, memories

from convsmith.codegen.artifact import Artifact
from convsmith.codegen.pipelines import PipelineEmitter
from convsmith.compiler.cubin import assemble_ptx
from convsmith.emulate.ptx.parser import PtxError
from convsmith.ir.dialect import DialectCall
from convsmith.machine.registry import target
from convsmith.problem import parse_problem, reference
from convsmith.problem.data import random_arrays
from ptx.hopper_configs import KINDS, LEVEL, compiled, hopper_artifact
from ptx.kernels import run_artifact
from ptx.sass import skip_without


def check(artifact: Artifact, line: str, seed: int) -> None:
    """The results of an artifact are exact under one schedule."""
    problem = replace(parse_problem(line), accuracy="strict")
    arrays = random_arrays(problem)
    memory = memories(problem, arrays)
    run_artifact(artifact, memory, seed)
    check_result(problem, memory, expected(problem, arrays))


def check_raises(broken: Artifact, line: str, message: str) -> None:
    """A faulty artifact raises under one of four schedules."""
    with pytest.raises(PtxError, match=message):
        for seed in range(4):
            check(broken, line, seed)


@pytest.mark.sampled(40, "seed", wide=2, every="kind")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_exact_under_four_schedules(kind: str, seed: int) -> None:
    check(hopper_artifact(kind), KINDS[kind][0], seed)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_assemble_without_spills_and_warnings(kind: str) -> None:
    skip_without(LEVEL)
    made = assemble_ptx(hopper_artifact(kind).notes["ptx"], LEVEL)
    assert not made.warnings
    assert all((use.spilled, use.filled, use.stack) == (0, 0, 0) for use in made.uses.values())


def resident(kind: str, count: int) -> Artifact:
    """Return the kernel of a kind for a device with so many units, on each of which one group resides."""
    machine = target(LEVEL)
    assert machine.device is not None
    units = replace(machine.device.units, count=count, shared=1)
    return compiled(*KINDS[kind], replace(machine, device=replace(machine.device, units=units)))


@pytest.mark.sampled(22, wide=2, every="count kind")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", (1, 2, 3))
@pytest.mark.parametrize(
    "kind",
    (
        "tiles", "backward by data and a stride", "backward by weights, taps and a stride", "channels added by groups",
        "backward by weights in parts of fused pixels",
        "backward by data, a stride and one tap", "backward by data, strides and dilations",
        "backward by data, a stride and sums added by groups", "backward by data, a stride and rounds without steps",
    ),
)  # fmt: skip
def test_groups_that_reside_compute_several_tiles(kind: str, count: int, seed: int) -> None:
    """The copies of a tile may start before the products of the tile before it have ended."""
    artifact = resident(kind, count)
    assert artifact.entries["main"].launch.grid == (count, 1, 1)
    check(artifact, KINDS[kind][0], seed)


def test_products_overlap_and_maps_are_prefetched() -> None:
    """The products of a step are waited for a step later, unless there is one slot."""
    artifact, single = (hopper_artifact(kind) for kind in ("3x3", "two products beside each other"))
    waits = [re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d)", x.notes["ptx"]) for x in (artifact, single)]
    assert waits == [["1", "0"], ["0", "0"]]
    prefetched = re.findall(r"prefetch\.tensormap", artifact.notes["ptx"])
    assert len(prefetched) == len(artifact.entries["main"].launch.maps) == 2


def test_factors_of_tf32_are_truncated() -> None:
    """The sums are those of factors whose 11 leading significant bits are kept: not of f32, nor of rounded ones."""
    line, _ = KINDS["tf32"]
    problem = parse_problem(line)
    arrays = {name: (x * 1.0007).astype(np.float32) for name, x in random_arrays(problem).items()}
    memory = memories(problem, arrays)
    run_artifact(hopper_artifact("tf32"), memory, 0)
    found = logical(problem, memory)

    def wanted(carried: int) -> np.ndarray:
        cut = {n: (x.view(np.uint32) + carried & 0xFFFFE000).view(np.float32) for n, x in arrays.items()}
        return reference(problem, {**cut, "bia": arrays["bia"]})["dst"]

    np.testing.assert_allclose(found, wanted(0), rtol=1e-5, atol=1e-4)
    assert min(np.abs(found - x).max() for x in (wanted(0x1000), reference(problem, arrays)["dst"])) > 1e-3


# -- planted faults
FAULTY = "3x3"
"""The kernel in which faults are planted: 18 steps in 3 slots."""


def without_lines(pattern: str) -> Artifact:
    """Return the kernel without the lines of its PTX that the pattern matches."""
    artifact = hopper_artifact(FAULTY)
    text, found = re.subn(pattern, "", artifact.notes["ptx"], flags=re.M)
    assert found
    return replace(artifact, notes={**artifact.notes, "ptx": text})


def patched(name: str, method: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """Return the kernel as code generation with another ``method`` makes it."""
    monkeypatch.setattr(PipelineEmitter, name, method)
    return compiled(*KINDS[FAULTY])


def no_barrier(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    return without_lines(r"^.*bar(rier)?\.(cta\.)?sync.*\n")


def no_wait_for_a_full_slot(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    wait = PipelineEmitter._wait

    def skipped(self: PipelineEmitter, barrier: str, parity: str) -> None:
        if self.is_producing:
            wait(self, barrier, parity)

    return patched("_wait", skipped, monkeypatch)


def no_wait_for_a_free_slot(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    wait = PipelineEmitter._wait

    def skipped(self: PipelineEmitter, barrier: str, parity: str) -> None:
        if not self.is_producing:
            wait(self, barrier, parity)

    return patched("_wait", skipped, monkeypatch)


def wrong_parity(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    wait = PipelineEmitter._wait

    def turned(self: PipelineEmitter, barrier: str, parity: str) -> None:
        wait(self, barrier, parity if self.is_producing else self.put(f"xor i32 {parity}, 1"))

    return patched("_wait", turned, monkeypatch)


def early_release(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    def freed(self: PipelineEmitter, step: str, is_asked: str) -> None:
        self._arrive("free", self.slot_of_step, self._is_first_lane())

    return patched("_free", freed, monkeypatch)


def no_wait_for_products(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    return without_lines(r"^.*wgmma\.wait_group\.sync\.aligned\s+1;.*\n")


def no_wait_for_the_last_products(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    return without_lines(r"^.*wgmma\.wait_group\.sync\.aligned\s+0;.*\n")


def short_count(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    spell = PipelineEmitter.spell

    def shortened(self: PipelineEmitter, call: DialectCall, **arguments: Any) -> str:
        if call is self.calls.expect:
            arguments["bytes"] -= 2048
        return spell(self, call, **arguments)

    return patched("spell", shortened, monkeypatch)


def without_swizzle(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    artifact = hopper_artifact(FAULTY)
    main = artifact.entries["main"]
    maps = tuple(replace(x, swizzle=0) for x in main.launch.maps)
    return replace(artifact, entries={"main": replace(main, launch=replace(main.launch, maps=maps))})


def wrong_descriptor(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    descriptor = PipelineEmitter._descriptor
    return patched("_descriptor", lambda self, v: self.put(f"add i64 {descriptor(self, v)}, 2"), monkeypatch)


FAULTS = {
    no_barrier: "there is no barrier|without a barrier|before it is written",
    no_wait_for_a_full_slot: "before it is written|before its asynchronous copy|without a barrier|asynchronous",
    no_wait_for_a_free_slot: "may still read it|while an asynchronous operation|arrivals at a barrier",
    wrong_parity: "no warp can go on|before it is written|before its asynchronous copy|without a barrier|asynchronous",
    early_release: "may still read it|while an asynchronous operation reads it",
    no_wait_for_products: "under way|may still read|while an asynchronous",
    no_wait_for_the_last_products: "before their products were waited for",
    short_count: "no warp can go on|before its asynchronous copy|before it is written|without a barrier|arrivals",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda x: x.__name__)
def test_a_planted_fault_raises(
    fault: Callable[[pytest.MonkeyPatch], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_raises(fault(monkeypatch), KINDS[FAULTY][0], FAULTS[fault])


@pytest.mark.parametrize("fault", [without_swizzle, wrong_descriptor], ids=lambda x: x.__name__)
def test_a_planted_fault_changes_results(
    fault: Callable[[pytest.MonkeyPatch], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fault(monkeypatch)
    with pytest.raises((AssertionError, PtxError)):
        check(broken, KINDS[FAULTY][0], 0)
