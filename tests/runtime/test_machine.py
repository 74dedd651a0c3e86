"""The machine's description and its ceilings. Figures are not asserted, but what they are made of is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from convsmith.diag.errors import UnsupportedError
from convsmith.runtime import machine, peak


def test_description_is_json_and_names_what_matters() -> None:
    description = machine.describe()
    assert json.loads(json.dumps(description)) == description
    for key in ("cpu", "llvm_cpu", "features", "isas", "caches", "os", "python", "numpy", "llvmlite", "llvm", "openmp"):
        assert description[key], key
    assert description["numpy"] == np.__version__


def test_isas_are_ordered_and_end_with_generic(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.isas()[-1] == "generic"
    assert [isa for isa in machine.ISA_FEATURES if isa in machine.isas()] == list(machine.isas())
    for features, expected in (
        (set(), ("generic",)),
        ({"avx2"}, ("generic",)),
        ({"avx2", "fma"}, ("avx2", "generic")),
        ({"avx2", "fma", "avx512f"}, ("avx2", "generic")),
        ({"avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"}, ("avx512", "avx2", "generic")),
    ):
        monkeypatch.setattr(machine, "cpu_features", lambda features=features: frozenset(features))
        assert machine.isas.__wrapped__() == expected


def test_cache_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "3", "1G"), ("Unified", "2", "2048K"))
    for number, values in enumerate(rows):
        folder = tmp_path / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, value in zip(("type", "level", "size"), values):
            (folder / name).write_text(value + "\n")
    (tmp_path / "cache" / "index9").mkdir()
    monkeypatch.setattr(machine, "_CPU", tmp_path)
    assert machine.cache_sizes.__wrapped__() == {"L1": 48 << 10, "L2": 2 << 20, "L3": 1 << 30}
    monkeypatch.setattr(machine, "_CPU", tmp_path / "nowhere")
    assert machine.cache_sizes.__wrapped__() == {}


@pytest.mark.parametrize("isa", machine.isas())
@pytest.mark.parametrize("threads", [1, 2])
def test_peak_sample(isa: str, threads: int) -> None:
    sample = peak.peak_sample(isa, threads)
    assert sample.seconds > 0 and sample.flops > 0
    assert sample.gflops == pytest.approx(sample.flops / sample.seconds / 1e9)
    row = peak._ROWS[isa]
    turn = 2 * threads * row.lanes * row.accumulators * peak._UNROLL
    assert sample.flops % turn == 0
    loop = peak._fma_loop(isa, threads)
    sums = loop._sink.view(np.float32).reshape(threads, -1)[:, : row.lanes]
    assert (sums == row.accumulators).all()  # x * 0.5 + 0.5 stays at 1: each thread ran, to the end


def test_peak_of_an_isa_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "isas", lambda: ("avx2", "generic"))
    with pytest.raises(UnsupportedError, match="this CPU does not run 'sve'; it runs avx2, generic"):
        peak.peak_sample("sve", 1)


X86 = peak._ROWS["generic"].cpu == "x86-64"
MNEMONICS = {
    "avx512": [r"vfmadd\d+ps\s.*%zmm"],
    "avx2": [r"vfmadd\d+ps\s.*%ymm"],
    "generic": [r"mulps\s.*%xmm", r"addps\s.*%xmm"] if X86 else [r"fmla\s"],
}


@pytest.mark.parametrize("isa", MNEMONICS if X86 else ["generic"])
def test_the_loop_is_what_it_says(isa: str) -> None:
    """The right instruction, once for each accumulator and turn, and no spill."""
    assembly = peak.assembly(isa)
    body = assembly[assembly.index("loop_chunk:") : assembly.index("loop:", assembly.index("loop_chunk:") + 11)]
    row = peak._ROWS[isa]
    for pattern in MNEMONICS[isa]:
        count = len(re.findall(pattern, body))
        assert row.accumulators * peak._UNROLL <= count <= row.accumulators * (peak._UNROLL + 1)
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
    lanes = peak._ROWS[machine.isas()[0]].lanes
    words = loop._data.size // threads // 4
    expected = (words // lanes * int(turns) * 0x01010101) % (1 << 32)
    sums = loop._sink.view(np.uint32).reshape(threads, -1)[:, :lanes]
    assert (sums == expected).all()


def test_ceilings() -> None:
    report = peak.ceilings((1,), rounds=1)
    assert json.loads(json.dumps(report)) == report
    assert set(report["fma_f32_gflops"]) == set(machine.isas())
    assert set(report["read_gbs"]) == {*machine.cache_sizes(), "DRAM"}
    assert all(figure["1"] > 0 for kind in report.values() for figure in kind.values())
