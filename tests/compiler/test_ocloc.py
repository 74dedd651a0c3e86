"""The registers that kernels use and spill on Intel's GPUs, by ocloc's log."""

from __future__ import annotations

from pathlib import Path

import pytest

import convsmith as cs
from convsmith.compiler.ocloc import spills_in_log, uses_on_chip
from convsmith.diag.errors import ToolchainError

LINE = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb1ic32iw16oc32ow16kw3pw1"
RECORDED = """\
Compilation from IR - skipping loading of FCL

warning: kernel convsmith  compiled SIMD16 allocated 128 regs and spilled around 60

Build succeeded.
"""
"""The log of ocloc 22.43.24595 for a kernel of xe_hpc that spills, and another one that does not."""


def ocloc(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> Path:
    """Put a program in the place of ocloc, which keeps its words and the module's first bytes."""
    path = folder / "ocloc"
    kept = f'echo "$@" > {folder}/words\n/usr/bin/head -c 4 kernel.spv > {folder}/module'
    path.write_text(f"#!/bin/sh\n{kept}\n{lines}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return path


def test_a_kernel_without_a_warning_spills_nothing() -> None:
    found = spills_in_log(RECORDED, ("convsmith", "convsmith_sum"))
    spilled = "128 registers for 16 lanes, about 60 registers spilled"
    assert found == {"convsmith": spilled, "convsmith_sum": "no spills"}


def test_explain_prints_what_ocloc_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chip is the smallest device of the level; kernels are compiled with the options of their launch."""
    kernel = cs.compile(LINE, target="xe_hpc", threads=1)
    assert kernel.artifact is not None
    symbol = kernel.artifact.entries["main"].symbol
    said = f"warning: kernel {symbol}  compiled SIMD16 allocated 128 regs and spilled around 3"
    ocloc(tmp_path, monkeypatch, f"echo '{said}'")
    page = kernel.explain()
    assert "machine code  main: 128 registers for 16 lanes, about 3 registers spilled" in page
    assert "compiled by ocloc for pvc" in page
    assert (tmp_path / "words").read_text().split()[:6] == "compile -spirv_input -file kernel.spv -device pvc".split()
    assert (tmp_path / "module").read_bytes() == b"\3\2\x23\7"

    large = cs.compile(LINE, target="xe_hpc", threads=1, config=f"{kernel.config} --register_file=256")
    assert "128 registers" in large.explain()
    assert "-options -cl-intel-256-GRF-per-thread" in (tmp_path / "words").read_text()


def test_without_ocloc_or_a_chip_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cs.compile(LINE, target="xe_hpc", threads=1)
    assert kernel.artifact is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert uses_on_chip(kernel.artifact, "pvc") == {}
    ocloc(tmp_path, monkeypatch, "")
    assert uses_on_chip(kernel.artifact, "") == {} and not (tmp_path / "words").exists()
    assert "machine code" not in cs.compile(LINE, target="opencl", threads=1).explain()


def test_a_refusal_is_printed_in_the_words_of_ocloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cs.compile(LINE, target="xe_hpc", threads=1)
    assert kernel.artifact is not None
    ocloc(tmp_path, monkeypatch, "echo unknown device; exit 3")
    with pytest.raises(ToolchainError, match="ocloc refuses the SPIR-V for pvc: unknown device"):
        uses_on_chip(kernel.artifact, "pvc")
    assert "machine code  ocloc refuses the SPIR-V for pvc: unknown device" in kernel.explain()
