"""The length of scalable vectors, which code of the machine tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import emulated_kernel, skip_without_emulator

from convsmith.emulate.qemu import AARCH64, RISCV64, rvv_processor, sve_processor
from convsmith.machine.registry import host_targets, target
from convsmith.measure.description import describe
from convsmith.measure.vector_length import scalable_bits, units_artifact


@pytest.mark.parametrize("units", [1, 3])
def test_units_of_sve(units: int) -> None:
    level = target("aarch64+sve")
    skip_without_emulator(level)
    kernel = emulated_kernel(units_artifact(level), replace(AARCH64, processor=sve_processor(units)))
    assert kernel.run({"units": np.zeros(1, np.int32)})["units"] == units


@pytest.mark.parametrize("bits", [128, 512])
def test_units_of_registers_of_riscv(bits: int) -> None:
    """A unit of a register has 64 bits."""
    level = target("riscv64+rvv")
    skip_without_emulator(level)
    kernel = emulated_kernel(units_artifact(level), replace(RISCV64, processor=rvv_processor(bits, level.needs)))
    assert kernel.run({"units": np.zeros(1, np.int32)})["units"] * 64 == bits


def test_the_length_is_a_fact_of_this_machine() -> None:
    has = any(t.vectors.scalable for t in host_targets())
    assert (scalable_bits() > 0) == has and (describe()["scalable_vectors"] != "none") == has
