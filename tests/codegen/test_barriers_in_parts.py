"""Barriers in two parts on Xe GPUs: instructions of SPV_INTEL_split_barrier, of which ocloc makes a signal and a wait.

OpenCL's device of a CPU runs them with a whole barrier in the place of each wait.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from devices import SPLIT
from opencl_driver import artifact_of, require_opencl
from sub_groups import DEVICES, assembly, run_emulated
from thread_kernels import HEAD, arrays
from thread_kernels import SPLIT as STATEMENTS

from convsmith.emulate.opencl import OPENCL
from convsmith.emulate.spirv import ARRIVE, WAIT, instructions, with_whole_barriers
from convsmith.frontend.kernel import CompiledKernel
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.machine.intel_gpu.dialect import SPLIT_BARRIERS
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.runtime.host_block import HostBlock
from convsmith.schedule.config import Config

STORE = re.compile(r"store\.slm|untyped surface write")
"""A store to shared memory, as devices call it."""
WHOLE = 224
"""OpControlBarrier."""


def made(kind: str, name: str) -> CompiledKernel:
    config = Config.parse(f"--target={name} --pack= {SPLIT[kind][1]}")
    return CompiledKernel(parse_problem(SPLIT[kind][0]), target(name), config, load=OPENCL.load)


@pytest.mark.parametrize("name", DEVICES)
def test_spirv_has_both_parts_in_order(name: str) -> None:
    artifact = made("first-writes", name).artifact
    assert [op for op, _ in instructions(artifact.code) if op in (ARRIVE, WAIT, WHOLE)] == [ARRIVE, WAIT]
    assert SPLIT_BARRIERS in artifact.needs and b"SPV_INTEL_split_barrier" in artifact.code
    portable = with_whole_barriers(artifact.code)
    assert [op for op, _ in instructions(portable) if op in (ARRIVE, WAIT, WHOLE)] == [WHOLE]
    assert b"SPV_INTEL_split_barrier" not in portable
    assert with_whole_barriers(portable) == portable


@pytest.mark.parametrize("name", DEVICES)
def test_whole_barriers_need_no_extension(name: str) -> None:
    config = Config.parse(f"--target={name} --pack= {SPLIT['first-writes'][1]}").changed(barriers="whole")
    artifact = CompiledKernel(parse_problem(SPLIT["first-writes"][0]), target(name), config, load=OPENCL.load).artifact
    assert WHOLE in [op for op, _ in instructions(artifact.code)]
    assert SPLIT_BARRIERS not in artifact.needs and {*target(name).needs} == {*artifact.needs}


@pytest.mark.sampled(9, wide=1, every="name")
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("kind", SPLIT)
def test_kernels_are_exact(kind: str, name: str) -> None:
    require_opencl()
    line, words = SPLIT[kind]
    run_emulated(parse_problem(line), target(name), Config.parse(f"--target={name} --pack= {words}"))


def test_statements_run_between_the_parts() -> None:
    require_opencl()
    kernel, wanted, found = parse_kernel(HEAD + STATEMENTS.strip("\n")), arrays(), arrays()
    run(kernel, wanted)
    function = OPENCL.load(artifact_of(kernel, target("xe_lp")))["main"]
    block = HostBlock(function.entry, {name: array.ctypes.data for name, array in found.items()})
    function(block.address)
    np.testing.assert_array_equal(found["c"], wanted["c"])


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_signals_and_waits_later(name: str, tmp_path: Path) -> None:
    """Groups of several sub-groups fill a slot between the two; ocloc drops the barriers of smaller groups."""
    lines = assembly(made("channels-last", name).artifact.code, target(name), tmp_path).splitlines()
    signals, waits = ([n for n, x in enumerate(lines) if word in x] for word in ("signal barrier", "sync.bar"))
    (first, *apart, last) = zip(signals, waits, strict=True)
    assert first[1] == first[0] + 1 and apart, "a whole barrier stands before the loop"
    assert all(any(STORE.search(x) for x in lines[signal:wait]) for signal, wait in apart)
    assert last[0] < last[1], "the last step fills no slot"
