"""Kernels of threads as PTX compute what the interpreter of the IR computes, under several schedules."""

from __future__ import annotations

import numpy as np
import pytest
from thread_kernels import HEAD, KERNELS, arrays

from convsmith.compiler.cubin import assemble_ptx, assembler_of
from convsmith.diag.errors import UnsupportedError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.machine.base import Machine
from convsmith.machine.nvidia.levels import LEVELS
from ptx.kernels import kernel_ptx, run_kernel


@pytest.mark.sampled(7, "machine")
@pytest.mark.parametrize("machine", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", KERNELS)
def test_ptx_computes_what_the_interpreter_computes(name: str, machine: Machine) -> None:
    kernel, wanted = parse_kernel(HEAD + KERNELS[name].strip("\n")), arrays()
    run(kernel, wanted)
    for seed in range(2):
        found = run_kernel(kernel, machine, arrays(), seed)
        for array in "abcd":
            np.testing.assert_array_equal(found[array], wanted[array])


@pytest.mark.parametrize("machine", LEVELS, ids=lambda t: t.name)
def test_kernels_assemble_without_spills(machine: Machine) -> None:
    try:
        assembler_of(machine.name)
    except UnsupportedError as error:
        pytest.skip(str(error))
    for text in KERNELS.values():
        made = assemble_ptx(kernel_ptx(parse_kernel(HEAD + text.strip("\n")), machine), machine.name)
        (use,) = made.uses.values()
        assert (use.spilled, use.filled) == (0, 0) and not made.warnings
