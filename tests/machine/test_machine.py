"""Facts that the system reports of this machine, and their consequences."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from convsmith.machine import host
from convsmith.machine.costs import Costs
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES, MicroArchitecture, micro_architecture
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.description import describe


def test_description_is_json_and_names_what_matters() -> None:
    description = describe()
    assert json.loads(json.dumps(description)) == description
    for key in (
        "cpu", "micro_architecture", "llvm_cpu", "features", "caches", "os", "python", "numpy", "llvmlite", "llvm",
        "openmp",
    ):  # fmt: skip
        assert description[key], key
    assert description["numpy"] == np.__version__


def test_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CPUs a core; of one cache the system does not say how it is made."""
    rows = (
        ("Data", "1", "48K", "64", "12", "0,8"), ("Instruction", "1", "32K", "64", "8", "0,8"),
        ("Unified", "3", "1G", "64", "16", "0-5,8-13"), ("Unified", "2", "2048K", "", "", "0,8"),
    )  # fmt: skip
    names = ("type", "level", "size", "coherency_line_size", "ways_of_associativity", "shared_cpu_list")
    for number, values in enumerate(rows):
        folder = tmp_path / "cache" / f"index{number}"
        folder.mkdir(parents=True)
        for name, value in zip(names, values):
            (folder / name).write_text(value + "\n")
    (tmp_path / "cache" / "index9").mkdir()
    monkeypatch.setattr(host, "_CPU", tmp_path)
    one, two, three = host.caches.__wrapped__()
    assert one == ("L1", 48 << 10, 64, 12, 1) and two == ("L2", 2 << 20, 0, 0, 1)
    assert three == ("L3", 1 << 30, 64, 16, 6)
    monkeypatch.setattr(host, "_CPU", tmp_path / "nowhere")
    assert host.caches.__wrapped__() == ()


XEON = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 167\nmodel name\t: Intel(R) Xeon(R) Processor\n"
ZEN4 = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9R14\n"
ARM = "CPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "features", "name"),
    [
        (XEON, {"avx2", "avx512f"}, "intel-server"), (XEON, {"avx2"}, "generic"), (ZEN4, {"avx512f"}, "zen4"),
        (ZEN4, {"avx2"}, "generic"), (ARM, {"neon"}, "generic"), ("", set(), "generic"),
    ],
)  # fmt: skip
def test_the_micro_architecture_follows_from_what_the_system_says(
    text: str, features: set[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Zen 3 has the family of a Zen 4 and no AVX-512."""
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "cpuinfo")
    cpu = host.cpu.__wrapped__()
    assert micro_architecture(cpu, frozenset(features)).name == name
    if text == ARM:
        assert (cpu.vendor, cpu.family) == ("0x41", "0xd40") and cpu.model


def test_costs_of_a_micro_architecture_replace_those_of_the_level() -> None:
    level = LEVELS[-1]
    assert MicroArchitecture("as it is").of(level) is level
    other = MicroArchitecture("slow calls", costs=(("call", 99.0),)).of(level)
    assert other.costs == replace(level.costs, call=99.0) and other.memories == level.memories
    assert other.key != level.key
    for row in MICRO_ARCHITECTURES:
        assert {name for name, _ in row.costs} <= {f.name for f in fields(Costs)}
    assert MICRO_ARCHITECTURES[-1].of(level) is level
    assert len({r.name for r in MICRO_ARCHITECTURES}) == len(MICRO_ARCHITECTURES)


def test_every_level_of_the_host_has_its_costs() -> None:
    mine = micro_architecture(host.cpu(), host.cpu_features())
    for target in host_targets()[:-1]:
        assert target == mine.of(next(t for t in LEVELS if t.name == target.name))
