"""Whole pipelines as checked-in text: the kernel as it begins, once it is scheduled, and as it ends.

`pytest tests/golden --update-golden` writes the texts anew. The mnemonics of the tiles on avx512 are those of one
version of LLVM, which the file names; they are compared with that version only.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from pathlib import Path

import pytest

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.passes.manager import Step
from convsmith.problem import Conv
from convsmith.schedule.config import Config
from convsmith.target.base import Target
from convsmith.target.generic.level import level
from convsmith.target.x86.levels import LEVELS

HERE = Path(__file__).parent
AVX512 = next(t for t in LEVELS if t.isa == "avx512")

PIPELINES = {
    "padded": (
        "--dir=FWD_B --stag=axb --dtag=axb --attr-post-ops=relu mb1ic8ih9iw9oc20oh9ow9kh3kw3ph1pw1",
        "--isa=generic --lane=oc --tile=oc:8,ow:4 --order=mb,oc,oh,ow --reduce=kh,kw,ic",
        "--isa=avx512 --lane=oc --tile=oc:32,ow:4 --order=mb,oc,oh,ow --reduce=kh,kw,ic",
    ),
    "lanes-along-input": (
        "--stag=axb --dtag=axb mb1ic22ih7iw7oc3oh7ow7kh3kw3ph1pw1",
        "--isa=generic --lane=ic --tile=oc:3,ow:2 --reduce=kh,kw,ic",
        "--isa=avx512 --lane=ic --tile=oc:3,ow:4 --reduce=kh,kw,ic",
    ),
    "fused-two-threads": (
        "--stag=axb --dtag=axb mb2ic12ih5iw5oc24oh5ow5kh1kw1",
        "--isa=generic --lane=oc --fuse=oh+ow --tile=oc:8,oh_ow:4 --order=mb,oc,oh_ow --threads=2",
        "--isa=avx512 --lane=oc --fuse=oh+ow --tile=oc:32,oh_ow:6 --order=mb,oc,oh_ow --threads=2",
    ),
}  # fmt: skip
"""A problem with its config on the generic level and on avx512."""


class Stations:
    """Keeps the kernel as it came, after the last partition, and the last one."""

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        self.kernels["final"] = kernel
        if step is None or step.name == "partition":
            self.kernels[step.name if step else "naive"] = kernel


def stations(line: str, words: str, target: Target) -> dict[str, Kernel]:
    found = Stations()
    with interning():
        lower(Conv.parse(line), Config.parse(words), target, [found])
    return {name: found.kernels[name] for name in ("naive", "partition", "final")}


def mnemonics(line: str, words: str, target: Target) -> str:
    """How often each instruction stands in the assembly of each tile function."""
    with interning():
        text = lower(Conv.parse(line), Config.parse(words), target).text
    assembly = llvm_bind.assembly(text, target.triple, target.cpu, target.features)
    tiles = re.findall(r"^define internal void @(\w+)\(.*noinline", text, re.MULTILINE)
    assert tiles
    out = [f"LLVM {llvm_bind.llvm_version()}"]
    for tile in tiles:
        body = re.search(rf"^{tile}:(.*?)^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL)
        assert body, f"{tile} is not in the assembly"
        counts = Counter(re.findall(r"^\t([a-z]\w*)", body[1], re.MULTILINE))
        out += ["", tile, *(f"  {n:5} {name}" for name, n in sorted(counts.items()))]
    return "\n".join(out) + "\n"


def compare(path: Path, text: str, update: bool) -> None:
    if update:
        path.write_text(text, encoding="utf-8")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != before:
        lines = difflib.unified_diff(before.splitlines(), text.splitlines(), path.name, "now", lineterm="")
        hint = "if this is as it should be: pytest tests/golden --update-golden"
        pytest.fail("\n".join([*lines, hint]), pytrace=False)


@pytest.fixture
def update(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", PIPELINES)
def test_ir(name: str, update: bool) -> None:
    line, words, _ = PIPELINES[name]
    kernels = stations(line, words, level())
    head = f"# {line}\n# {words}\n"
    texts = [f"\n# {station}\n{kernel}".rstrip() + "\n" for station, kernel in kernels.items()]
    compare(HERE / f"{name}.txt", head + "".join(texts), update)
    for kernel in kernels.values():
        assert str(parse_kernel(str(kernel))) == str(kernel)


@pytest.mark.parametrize("name", PIPELINES)
def test_mnemonics(name: str, update: bool) -> None:
    line, _, words = PIPELINES[name]
    path = HERE / f"{name}.avx512.txt"
    text = mnemonics(line, words, AVX512)
    if not update and path.read_text(encoding="utf-8").partition("\n")[0] != text.partition("\n")[0]:
        pytest.skip(f"{path.name} is of another LLVM than {llvm_bind.llvm_version()}")
    compare(path, text, update)


@pytest.mark.parametrize("name", PIPELINES)
def test_tiles_keep_their_accumulators_in_registers(name: str) -> None:
    """Whatever the version of LLVM: a tile multiplies and adds, and spills nothing."""
    line, _, words = PIPELINES[name]
    with interning():
        low = lower(Conv.parse(line), Config.parse(words), AVX512)
    assembly = llvm_bind.assembly(low.text, AVX512.triple, AVX512.cpu, AVX512.features)
    assert "vfmadd" in assembly
    assert not re.search(r"Spill|Reload", assembly)


def test_every_text_belongs_to_a_pipeline() -> None:
    names = {f"{name}{end}" for name in PIPELINES for end in (".txt", ".avx512.txt")}
    assert {path.name for path in HERE.glob("*.txt")} == names
