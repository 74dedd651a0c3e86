"""Tools of NVIDIA's toolkit: which one is found, and what it says of a kernel's machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

from convsmith.compiler import cubin
from convsmith.diag.errors import UnsupportedError


@pytest.fixture
def nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a disassembler on the search path, which no package brings."""
    monkeypatch.setattr(cubin, "_packages", lambda: ())
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvdisasm"


def tool(path: Path, lines: str) -> None:
    """Write a program."""
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def test_the_disassembler_gets_the_machine_code(nvdisasm: Path) -> None:
    tool(nvdisasm, '[ "$1" = -c ] && /bin/cat "$2"')
    assert cubin.disassemble(b"FFMA R0, R1, R2, R0;") == "FFMA R0, R1, R2, R0;"


def test_what_a_disassembler_does_not_read_is_refused_in_its_words(nvdisasm: Path) -> None:
    tool(nvdisasm, "echo no cubin >&2; exit 3")
    with pytest.raises(UnsupportedError, match=r"nvdisasm does not read this code: no cubin$"):
        cubin.disassemble(b"")


def test_without_a_disassembler_its_package_is_named(nvdisasm: Path) -> None:
    with pytest.raises(UnsupportedError, match="pip install nvidia-cuda-nvdisasm") as caught:
        cubin.disassemble(b"")
    assert caught.value.code == "nvdisasm"
