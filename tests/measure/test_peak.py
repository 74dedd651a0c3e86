"""The machine's ceilings. Figures are not asserted, but what they are made of is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from convsmith.diag.errors import UsageError
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.registry import host_targets, target
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure import peak

HOST = [t.name for t in host_targets()]
ALL = [*LEVELS, level()]


@pytest.mark.parametrize("t", host_targets(), ids=HOST)
@pytest.mark.parametrize("threads", [1, 2])
def test_peak_sample(t: Machine, threads: int) -> None:
    sample = peak.peak_sample(t.name, threads)
    assert sample.seconds > 0 and sample.flops > 0
    assert sample.gflops == pytest.approx(sample.flops / sample.seconds / 1e9)
    lanes = t.instructions[0].lanes
    accumulators = peak.accumulators(t, t.instructions[0])
    turn = 2 * threads * lanes * accumulators * peak._UNROLL
    assert sample.flops % turn == 0
    loop = peak._fma_loop(t.name, threads, peak.F32)
    sums = loop._sink.view(np.float32).reshape(threads, -1)[:, :lanes]
    assert (sums == accumulators).all()  # x * 0.5 + 0.5 stays at 1: each thread ran, to the end


def test_peak_of_an_isa_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="target 'sve' is unknown"):
        peak.peak_sample("sve", 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("t", ALL, ids=[t.name for t in ALL])
def test_the_loop_is_what_it_says(t: Machine) -> None:
    """The right instruction, once for each accumulator and turn, and no spill."""
    for types in {row.types for row in t.instructions}:
        assembly = peak.assembly(t, types)
        body = assembly.partition("loop_chunk:")[2].partition(".Lfunc_end")[0]
        row = peak._row(t, types)
        if row.mnemonic:
            register = "%tmm" if row.rows > 1 else {512: "%zmm", 256: "%ymm"}[t.vector_bits]
            count = len(re.findall(rf"{row.mnemonic}\S*\s.*{register}", body))
            assert count == peak.accumulators(t, row) * peak._UNROLL, row
        if row.terms == 1:
            assert "Spill" not in body


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nbytes", [1, 16 << 10, 100_000])
def test_read_sample(nbytes: int, threads: int) -> None:
    sample = peak.read_sample(nbytes, threads)
    assert sample.seconds > 0
    loop = peak._read_loop(nbytes, threads)
    turns = sample.bytes / loop._work
    assert turns == int(turns) >= 1
    # Every 32-bit word of the data is 0x01010101; each thread stored the sum over all turns and words, by lanes.
    lanes = host_targets()[0].lanes(32)
    words = loop._data.size // threads // 4
    expected = (words // lanes * int(turns) * 0x01010101) % (1 << 32)
    sums = loop._sink.view(np.uint32).reshape(threads, -1)[:, :lanes]
    assert (sums == expected).all()


@pytest.mark.parametrize("types", [("s8", "s8", "s32"), ("bf16", "bf16", "f32")])
def test_fragments_of_several_registers_fit(types: tuple[str, str, str]) -> None:
    """Each product of matrices of AArch64 is two instructions, and the sums of the loop are in registers."""
    t = target("aarch64+i8mm")
    row = peak._row(t, types)
    body = peak.assembly(t, types).partition("loop_chunk:")[2].partition(".Lfunc_end")[0]
    count = len(re.findall(rf"\t{row.mnemonic}\t", body))
    assert row.rows == 2 and count == 2 * peak.accumulators(t, row) * peak._UNROLL
    assert "Spill" not in body
