"""The phases of a kernel's schedule: one list for all machines and for all kinds of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.passes.manager import Step
from convsmith.problem import parse_problem
from convsmith.problem.fusion import stages_of
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.schedule import pipeline
from convsmith.schedule.micro_kernel import micro_kernel_plan
from convsmith.schedule.pipeline import PHASES, KernelParts
from convsmith.schedule.plan import plan
from convsmith.schedule.schedule import Schedule
from convsmith.tune.candidates import default_config
from convsmith.tune.chains import stages_config
from convsmith.tune.devices.device import device_config

LAST = "--stag=axb --wtag=axb --dtag=axb"
KERNELS = {
    "avx2": ("avx2", "mb1ic16ih8oc16oh8kh3ph1"),
    "amx": ("avx512_amx", f"--dt=bf16 {LAST} mb1ic64ih8oc64oh8kh3ph1"),
    "sve": ("aarch64+sve", "mb1ic16ih8oc16oh8kh3ph1"),
    "chain": ("avx2", "mb1ic16ih8oc16oh8kh3ph1 -> mb1ic16ih8oc16oh8kh1ph0"),
    "threads": ("opencl", "mb1ic16ih8oc16oh8kh3ph1"),
    "warps": ("sm_80", f"--dt=f16 {LAST} mb8ic64ih28oc64oh28kh3ph1"),
    "copy engine": ("sm_90a", f"--dt=bf16 {LAST} mb8ic64ih28oc64oh28kh3ph1"),
}


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, list[Step]]]]:
    """Yield a list that receives the name and the rewrites of each phase that runs in the ``with`` block."""
    made: list[tuple[str, list[Step]]] = []

    def noting(phase: Callable[[Schedule, KernelParts], None]) -> Callable[[Schedule, KernelParts], None]:
        def run(s: Schedule, kernel: KernelParts) -> None:
            before = len(s.steps)
            phase(s, kernel)
            made.append((phase.__name__, s.steps[before:]))

        return run

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "PHASES", tuple(map(noting, PHASES)))
        yield made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_of_all_machines_pass_through_the_same_phases(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each phase has rewrites on every machine, and a kernel has no others but those that order its loops."""
    name, line = KERNELS[kind]
    machine, problem = target(name), parse_problem(line).canonical()
    choose = device_config if machine.device is not None else None
    with one_table():
        if choose is not None:
            config = choose(problem, machine)
        else:
            config = (default_config if stages_of(problem) is None else stages_config)(problem, machine, 1)
        with recorded(monkeypatch) as made:
            steps = plan(problem, config, machine).pipeline
    assert (config.realise == "hardware") == (kind == "copy engine")
    names = [phase.__name__ for phase in PHASES]
    assert len(made) % len(names) == 0 and [phase for phase, _ in made] == names * (len(made) // len(names))
    kernels = [made[n : n + len(names)] for n in range(0, len(made), len(names))]
    assert all(own for _, own in kernels[-1])
    ends = [[step for _, of_phase in kernel for step in of_phase] for kernel in kernels]
    if kind != "chain":  # the kernel that adds up the sums of parts comes behind the main one
        assert any(list(steps[-len(own) :]) == own for own in ends)


def test_a_micro_kernel_passes_through_the_same_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_table(), recorded(monkeypatch) as made:
        micro_kernel_plan(MicroKernel.parse("f32_dwconv_up16x9"), target("avx2"))
    assert [phase for phase, _ in made] == [phase.__name__ for phase in PHASES]
