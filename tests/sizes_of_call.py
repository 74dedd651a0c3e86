"""Rewritten kernels of dynamic sizes, interpreted at the sizes of a call."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from guarded import canary, check_result, expected, memory_of

from convsmith.compiler.arguments import argument_of
from convsmith.compiler.dynamic import given_tensor
from convsmith.compiler.entries import absent_points, pointer_arguments
from convsmith.compiler.interpreted import InterpretedCall
from convsmith.ir.buffer import UNKNOWN
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.passes.manager import Step
from convsmith.problem import Problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import size_values
from convsmith.schedule.dynamic_table import table_name, table_of_call


class AtSizes:
    """Fails where a kernel does not compute the ``outputs`` of ``q``, the problem of a call, after a rewrite."""

    def __init__(self, q: Problem, instructions: dict[str, Kernel], outputs: Collection[str], config: Config) -> None:
        self.q, self.instructions, self.outputs, self.checked = q, instructions, outputs, 0
        self.arrays = random_arrays(q, 3)
        self.truth = expected(q, self.arrays)
        self.sizes = size_values(q)
        self.memory = {t.name: memory_of(self.arrays[t.name], t.layout) for t in q.inputs}
        self.known = {t.name: argument_of(t) for t in q.tensors}
        self.source = given_tensor(q).name
        self.zero = f"{self.source}_0" if config.realise == "indirection" else ""
        if self.zero:
            pointers, sizes = table_of_call(q, 0, {t.name: t for t in q.tensors}, config)
            self.sizes |= sizes
            points = absent_points(q, self.source)
            self.known |= pointer_arguments(pointers, table_name(self.source), self.source, points)

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        if step is None or not changed:
            return  # the extents of the naive nest are placeholders
        if self.zero:
            zero = next((b for b in kernel.params if b.name == self.zero), None)
            if zero is None or zero.size not in (UNKNOWN, self.known[self.zero].size):
                return  # the channels of a pixel do not lie where the sizes say yet
        verify(kernel)
        given = {**self.memory, **self.sizes}
        for t in self.q.outputs:
            given[t.name] = np.full(t.layout.size, canary(self.truth[t.name].dtype), self.truth[t.name].dtype)
        call = InterpretedCall(self.known, given, self.instructions)
        for each in (*kernel.packs, *kernel.before, kernel):
            call.run(each)
        self.checked += 1
        try:
            check_result(self.q, given, self.truth, self.outputs)
        except AssertionError as error:
            raise AssertionError(f"after {step}: {error}\n{kernel}") from error
