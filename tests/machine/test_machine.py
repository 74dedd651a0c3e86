"""Facts that the system reports of this machine, and their consequences."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import convsmith as cs
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import settings
from convsmith.machine import host
from convsmith.machine.aarch64.levels import LEVELS as AARCH64
from convsmith.machine.arm32.levels import LEVELS as ARM32
from convsmith.machine.costs import Costs
from convsmith.machine.hexagon.levels import LEVELS as HEXAGON
from convsmith.machine.micro_architectures import (
    MICRO_ARCHITECTURES,
    MicroArchitecture,
    micro_architecture,
    preferred,
)
from convsmith.machine.registry import host_targets, known_targets
from convsmith.machine.riscv.levels import LEVELS as RISCV
from convsmith.machine.wasm.levels import LEVELS as WASM
from convsmith.machine.x86.levels import LEVELS
from convsmith.measure.description import describe
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config
from convsmith.tune.records.origin import machine_key
from convsmith.tune.records.shipped import own_table, table


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
ZEN5 = "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"
ARM = "CPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "asked", "lacking"),
    [
        ("flags\t\t: fma avx2 sse4_2 avx512_vnni amx_tile\n", ("fma", "sse4.2", "avx512vnni", "amx-tile"), []),
        ("flags\t\t: fma avx2\n", ("fma", "avx512f", "lzcnt"), ["avx512f"]),
        ("Features\t: asimd i8mm\n", ("i8mm", "lzcnt", "neon"), ["neon"]),
        ("", ("lzcnt", "fma"), ["fma"]),
    ],
)  # fmt: skip
def test_features_that_the_system_does_not_list_are_asked_of_llvm(
    text: str, asked: tuple[str, ...], lacking: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(host, "_listed", host._listed.__wrapped__)
    monkeypatch.setattr(host, "cpu_features", lambda: frozenset({"lzcnt"}))
    assert host.lacking(asked) == lacking


@pytest.mark.parametrize(
    ("text", "features", "name"),
    [
        (XEON, {"avx2", "avx512f"}, "intel-server"), (XEON, {"avx2"}, "generic"), (ZEN4, {"avx512f"}, "znver4"),
        (ZEN4, {"avx2"}, "znver3"), (ZEN5, {"avx512f"}, "znver5"), (ARM, {"neon"}, "generic"),
        ("", set(), "generic"),
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
    mine = preferred()
    for target in host_targets()[:-1]:
        assert target == mine.of(next(t for t in LEVELS if t.name == target.name))


@pytest.mark.parametrize("row", MICRO_ARCHITECTURES, ids=lambda row: row.name)
def test_the_setting_replaces_the_micro_architecture_of_the_host(row: MicroArchitecture) -> None:
    """Levels of its instruction set have its costs, also those that this machine lacks; other levels keep theirs."""
    with settings.scope(micro_architecture=row.name):
        assert preferred() is row and describe()["chosen_for"] == row.name
        assert describe()["micro_architecture"] == micro_architecture(host.cpu(), host.cpu_features()).name
        assert known_targets()[: len(LEVELS)] == tuple(map(row.of, LEVELS))
        foreign = [t for t in known_targets() if not t.triple.startswith("x86_64")]
        assert foreign == [t for t in (*AARCH64, *HEXAGON, *RISCV, *ARM32, *WASM) if t in foreign] and len(foreign) > 3
        assert set(host_targets()) <= set(known_targets())
        assert machine_key().startswith(f"{row.name}-")
        assert own_table() is table(row.name)


def test_an_unknown_micro_architecture_is_refused_with_those_that_are_known() -> None:
    with settings.scope(micro_architecture="znver9"), pytest.raises(UsageError) as error:
        cs.compile("mb1ic8iw8oc8kw1")
    assert error.value.code == "bad-setting"
    assert "CONVSMITH_MICRO_ARCHITECTURE='znver9'" in str(error.value)
    assert "known are znver4, znver3, znver5, intel-server, generic" in str(error.value)


def test_a_kernel_of_another_micro_architecture_is_another_kernel(tmp_path: Path) -> None:
    """Neither the kernels that the process keeps nor the files of the cache answer for it."""
    line = "--stag=axb --dtag=axb mb1ic64ih28oc64kh3ph1"
    configs = {}
    with settings.scope(cache=tmp_path):
        for name in ("znver4", "intel-server", "znver4", "intel-server"):
            with settings.scope(micro_architecture=name):
                level = next(t for t in known_targets() if t.name == "avx512")
                config = cs.compile(line, threads=1, target="avx512").config
                assert config == default_config(parse_problem(line).canonical(), level)
                assert configs.setdefault(name, config) == config
    assert configs["znver4"] != configs["intel-server"]
