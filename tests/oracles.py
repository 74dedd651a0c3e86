"""The interpreter as an instrument: every kernel on the line computes what the reference computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from guarded import Array, canary, check_result, expected, memories

from convsmith.compiler.interpreted import InterpretedCall, known_arguments
from convsmith.compiler.rewritten import in_order
from convsmith.diag.errors import ConvsmithError
from convsmith.interp import run
from convsmith.ir.instruction import FragmentFile, RegisterFile
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.machine.base import Machine, dot, fragment_dot, multiply_add
from convsmith.machine.generic.level import level
from convsmith.machine.transpositions import Transpositions
from convsmith.passes.manager import Step
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays


def small_target(lanes: int = 4, registers: int = 32) -> Machine:
    """The portable level with vectors of that many lanes, so that tiny problems have tails.

    It has rows that add several products, on vectors and on fragments of three rows, as specifications only.
    """
    rows = [multiply_add(f"multiply_add_{lanes}", lanes, "", "", (), "")]
    if lanes > 2:
        rows.append(multiply_add(f"multiply_add_double_{lanes}", lanes // 2, "", "", (), "", "f64"))
        rows.append(multiply_add(f"multiply_add_half_{lanes}", lanes * 2, "", "", (), "", "f16"))
    for terms, types in ((4, ("u8", "s8", "s32")), (2, ("s8", "s8", "s32")), (2, ("bf16", "bf16", "f32"))):
        rows.append(dot(f"dot_{types[0]}_{lanes}", lanes, terms, types, "", "", (), ""))
    for groups, group, types in ((2, 4, ("u8", "s8", "s32")), (2, 2, ("bf16", "bf16", "f32"))):
        rows.append(fragment_dot(f"fragment_{types[0]}", (3, groups, lanes, group), types, "", "", (), ""))
    file = FragmentFile("tile", 8, 8192, zero=(), load="", store="", declare=())
    moves = Transpositions(128, (), ("", "any")) if lanes == 4 else ()
    return replace(
        level(), vectors=RegisterFile("vector", registers, 32 * lanes), instructions=tuple(rows),
        transpositions=moves, fragments=(file,),
    )  # fmt: skip


class Oracle:
    """Interprets every kernel on the line and compares its outputs with the reference."""

    def __init__(self, problem: Problem, target: Machine, seed: int = 0, scale: int = 1) -> None:
        self.problem, self.scale = problem, scale
        self.instructions = {name: row.kernel for name, row in target.rows.items()}
        self.known = known_arguments(problem)
        self.arrays = random_arrays(problem, seed)
        self.truth = dict(expected(problem, self.arrays))
        self.finish: Kernel | None = None
        """The kernel that finishes results, where the kernel itself writes parts of sums."""
        self.skip: Callable[[int], bool] = lambda number: False
        """Whether the kernel is not interpreted after a step of that number."""
        self._is_new = False
        self._packs: tuple[Kernel, ...] = ()
        self._packed: dict[str, Array] = {}

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        self._is_new |= changed
        if not self._is_new or self.skip(number):
            return
        self._is_new = False
        try:
            verify(kernel)
            self.check(kernel)
        except (AssertionError, ConvsmithError) as error:
            raise AssertionError(f"after {step or 'naive'}: {error}\n{kernel}") from error

    def call(self, memory: dict[str, Array], fill: Callable[[np.dtype[Any]], Any]) -> InterpretedCall:
        """A call on this memory; memory between its kernels starts with what ``fill`` gives for a type."""
        return InterpretedCall(
            self.known, memory, self.instructions, lambda size, dtype: np.full(size, fill(dtype), dtype), self.scale
        )

    def prepared(self, pack: Kernel, memory: Mapping[str, Array]) -> dict[str, Array]:
        """The arrays that a kernel makes of its operands for another one: it writes every element, and no slack."""
        found = []
        for fill in (1, 2):
            given = {name: x.copy() for name, x in memory.items()}
            self.call(given, lambda dtype, fill=fill: fill).run(pack)
            found.append({b.name: given[b.name] for b in pack.written})
        for name, x in found[0].items():
            assert x.tobytes() == found[1][name].tobytes(), f"{pack.name} leaves elements of {name} out"
            assert not np.isnan(x.astype(np.float64)).any(), f"{pack.name} packs slack"
        return found[0]

    def _arguments(self, packs: tuple[Kernel, ...], memory: Mapping[str, Array]) -> dict[str, Array]:
        """What `packs` make; a rewrite of the main kernel leaves them as they were."""
        if len(packs) != len(self._packs) or any(a is not b for a, b in zip(packs, self._packs)):
            self._packs, self._packed = packs, {}
            for pack in packs:
                self._packed |= self.prepared(pack, {**memory, **self._packed})
        return self._packed

    def check(self, kernel: Kernel) -> None:
        """Run the kernels that prepare arguments, and the kernel."""
        memory = memories(self.problem, self.arrays)
        prepared = self._arguments(in_order((*kernel.packs, *kernel.before)), memory)
        memory |= {name: x.copy() for name, x in prepared.items()}
        call = self.call(memory, canary)
        call.run(kernel)
        if self.finish is not None:
            call.run(self.finish)
        check_result(self.problem, memory, self.truth)


def assert_same_results(before: Kernel, after: Kernel) -> None:
    """Two kernels of the same parameters leave the same in all of them, and do something."""
    rng = np.random.default_rng(0)
    start = {b.name: rng.integers(-9, 10, b.size).astype(b.dtype.numpy) for b in before.params}
    found = []
    for kernel in (before, after):
        verify(kernel)
        memory = {name: x.copy() for name, x in start.items()}
        run(kernel, memory)
        found.append(memory)
    assert any(not np.array_equal(found[0][name], start[name]) for name in start), f"nothing is done\n{before}"
    for name in start:
        np.testing.assert_array_equal(found[1][name], found[0][name], err_msg=f"{name}\n{before}\n{after}")
