"""Kernels for devices on the interpreter: an oracle of all kernels of a plan, and random configs."""

from __future__ import annotations

import random

from guarded import canary, check_result, memories
from oracles import Oracle

from convsmith.compiler.driver import in_order
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.passes.manager import run_steps
from convsmith.plan.config import Config
from convsmith.plan.device import DevicePlan
from convsmith.problem import Problem
from convsmith.statement.parts import splits
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement


class DeviceOracle(Oracle):
    """Interprets every kernel on the line, between the kernels of its plan that stand around it."""

    def __init__(self, plan: DevicePlan, target: Machine, seed: int = 0) -> None:
        super().__init__(plan.problem, target, seed)
        self.plan = plan
        self.after_it = [run_steps(k, steps) for k, steps in plan.finishing()]
        self._before: dict[Kernel, Kernel] = {}

    def check(self, kernel: Kernel) -> None:
        memory = memories(self.problem, self.arrays)
        call = self.call(memory, canary)
        for k in in_order(kernel.before):
            if k not in self._before:
                self._before[k] = run_steps(k, self.plan.preparing[k.name])
            call.run(self._before[k])
        for k in (kernel, *self.after_it):
            call.run(k)
        check_result(self.problem, memory, self.truth)


def random_group_config(rng: random.Random, problem: Problem, target: Machine) -> Config:
    """A config for a device that is mostly legal; one that is not shall raise ConfigError."""
    with interning():
        st = statement(problem, target)
    kinds = {d.name: d.kind for d in st.dims}
    register = {n: 1 if k == "k" else rng.choice((1, 1, 1, 2, 3)) for n, k in kinds.items()}
    group = {n: register[n] * rng.choice((1, 1, 2, 3, 4)) for n in kinds}
    lane = rng.choice([n for n, k in kinds.items() if k != "k"])
    shared = tuple(v.name for v in st.factors if rng.random() < 0.6)
    padded = st.a.name in shared and not st.shifted and rng.random() < 0.7
    ways = [(d.name, n) for d in st.of("k") for n in (2, 3) if not d.size % n and splits(st)]
    split = tuple(rng.sample(ways, 1)) if ways and rng.random() < 0.5 else ()
    atomic = problem.dir == "BWD_W" and st.c.dtype == st.acc in ("f32", "s32") and not problem.scales
    return Config(
        target.name, lane, register=tuple((n, s) for n, s in register.items() if s > 1), pack=(),
        group=tuple((n, s) for n, s in group.items() if s > 1), shared=shared,
        order=_shuffled(rng, st, "batch", "n", "m"),
        split=split,
        buffers=rng.choice((1, 1, 2, 3)) if shared else 1, barriers=rng.choice(("whole", "whole", "split")),
        copies=rng.choice(("wait", "async")) if shared else "wait",
        join="atomic" if atomic and split and rng.random() < 0.7 else "ordered",
        pad=tuple((name, 1) for name in shared if rng.random() < 0.3), realise="pad_copy" if padded else "mask",
    )  # fmt: skip


def _shuffled(rng: random.Random, st: Statement, *kinds: str) -> tuple[str, ...]:
    """Some order of the loops of these kinds, or none."""
    names = [d.name for d in st.dims if d.kind in kinds]
    rng.shuffle(names)
    return tuple(names) if rng.random() < 0.3 else ()
