"""Whole pipelines as checked-in text: the kernel as it begins, once it is scheduled, and as it ends.

`pytest tests/golden --update-golden` writes the texts anew. The mnemonics of the tiles are those of one
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
from convsmith.compiler.rewritten import Lowered
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.manager import Instrument, Step
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan

HERE = Path(__file__).parent

PIPELINES = {
    "padded": (
        "--dir=FWD_B --stag=axb --dtag=axb --attr-post-ops=relu mb1ic8ih9iw9oc20oh9ow9kh3kw3ph1pw1",
        "--target=generic --lane=oc --register=oc:8,ow:4 --order=mb,oc,oh,ow --reduce=kh,kw,ic",
        "--target=avx512 --lane=oc --register=oc:32,ow:4 --order=mb,oc,oh,ow --reduce=kh,kw,ic",
    ),
    "lanes-along-input": (
        "--stag=axb --dtag=axb mb1ic22ih7iw7oc3oh7ow7kh3kw3ph1pw1",
        "--target=generic --lane=ic --register=oc:3,ow:2 --reduce=kh,kw,ic",
        "--target=avx512 --lane=ic --register=oc:3,ow:4 --reduce=kh,kw,ic",
    ),
    "fused-two-threads": (
        "--stag=axb --dtag=axb mb2ic12ih5iw5oc24oh5ow5kh1kw1",
        "--target=generic --lane=oc --fuse=oh+ow --register=oc:8,oh_ow:4 --order=mb,oc,oh_ow --threads=2",
        "--target=avx512 --lane=oc --fuse=oh+ow --register=oc:32,oh_ow:6 --order=mb,oc,oh_ow --threads=2",
    ),
    "strided-backward": (
        "--dir=BWD_D --stag=axb --dtag=axb mb1ic4iw4oc3ow2kw3sw2pw1",
        "--target=generic --lane=ic --register=ic:4,iw:2 --reduce=kw,oc",
        "--target=avx512 --lane=ic --register=ic:16,iw:4 --reduce=kw,oc",
    ),
    "backward-by-weights": (
        "--dir=BWD_W --stag=axb --dtag=axb mb2ic3iw6oc8ow6kw3pw1",
        "--target=generic --lane=oc --register=oc:8,ic:3 --reduce=mb,ow --pack=",
        "--target=avx512 --lane=oc --register=oc:16,ic:3 --reduce=mb,ow --pack=",
    ),
    "deconvolution": (
        "--deconv --stag=axb --dtag=axb mb1ic3iw2oc4ow4kw2sw2",
        "--target=generic --lane=oc --register=oc:4,ow:2 --reduce=kw,ic",
        "--target=avx512 --lane=oc --register=oc:16,ow:4 --reduce=kw,ic",
    ),
    "product": (
        "--matmul --bia-dt=f32 --attr-post-ops=relu 3x6x5:3x5x8",
        "--target=generic --lane=n --register=n:8,m:3",
        "--target=avx512 --lane=n --register=n:16,m:6",
    ),
    "bytes": (
        "--dt=u8:s8:s8 --stag=axb --dtag=axb --attr-scales=src:common:0.5+wei:per_oc --attr-post-ops=sum "
        "mb1ic10iw4oc16ow4kw1",
        "--target=avx512_vnni --lane=oc --register=oc:16,ow:2 --reduce=kw,ic --instruction=vpdpbusd_512 --k_step=ic:4",
        "--target=avx512_vnni --lane=oc --register=oc:16,ow:4 --reduce=kw,ic --instruction=vpdpbusd_512 --k_step=ic:4",
    ),
    "zero-points": (
        "--dt=u8:s8:u8 --stag=axb --dtag=axb --attr-zero-points=src:common:3+dst:common:1 mb1ic5iw4oc8ow4kw1",
        "--target=generic --lane=oc --register=oc:8,ow:2",
        "--target=avx512_vnni --lane=oc --register=oc:16,ow:4",
    ),
    "zero-points-off-the-sums": (
        "--dt=u8:u8:u8 --stag=axb --dtag=axb --attr-zero-points=src:common:3+wei:per_oc mb1ic8iw5oc16ow5kw3pw1",
        "--target=avx512_vnni --lane=oc --register=oc:16,ow:5 --instruction=vpdpbusd_512 --k_step=ic:4 "
        "--offsets=sums --flip=wei",
        "--target=avx512_vnni --lane=oc --register=oc:16,ow:5 --instruction=vpdpbusd_512 --k_step=ic:4 "
        "--offsets=sums --flip=wei",
    ),
    "bf16": (
        "--dt=bf16 --stag=axb --dtag=axb mb1ic4iw4oc16ow4kw1",
        "--target=avx512_bf16 --lane=oc --register=oc:16,ow:2 --instruction=vdpbf16ps_512 --k_step=ic:2",
        "--target=avx512_bf16 --lane=oc --register=oc:16,ow:4 --instruction=vdpbf16ps_512 --k_step=ic:2",
    ),
    "f16-sums": (
        "--dir=FWD_B --dt=f16 --attr-acc-mode=f16 --stag=axb --dtag=axb mb1ic4iw4oc32ow4kw1",
        "--target=avx512_fp16 --lane=oc --register=oc:32,ow:2",
        "--target=avx512_fp16 --lane=oc --register=oc:32,ow:4",
    ),
}
"""A problem with the config whose kernel is shown, and the one whose assembly is."""

TARGETS = {t.name: t for t in (*LEVELS, level())}


class Stations:
    """Keeps the kernel as it came, after the last partition, and the last one."""

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        self.kernels["final"] = kernel
        if step is None or step.name == "partition":
            self.kernels[step.name if step else "naive"] = kernel


def lowered(line: str, words: str, *instruments: Instrument) -> tuple[Lowered, Machine]:
    config = Config.parse(words)
    target = TARGETS[config.target]
    with interning():
        return lower(plan(parse_problem(line), config, target), instruments), target


def stations(line: str, words: str) -> dict[str, Kernel]:
    found = Stations()
    lowered(line, words, found)
    return {name: found.kernels[name] for name in ("naive", "partition", "final")}


def mnemonics(line: str, words: str) -> str:
    """The number of times that each instruction stands in the assembly of each tile function."""
    low, target = lowered(line, words)
    text = low.text
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
    kernels = stations(line, words)
    head = f"# {line}\n# {words}\n"
    texts = [f"\n# {station}\n{kernel}".rstrip() + "\n" for station, kernel in kernels.items()]
    compare(HERE / f"{name}.txt", head + "".join(texts), update)
    for kernel in kernels.values():
        assert str(parse_kernel(str(kernel))) == str(kernel)


@pytest.mark.parametrize("name", PIPELINES)
def test_mnemonics(name: str, update: bool) -> None:
    line, _, words = PIPELINES[name]
    path = HERE / f"{name}.{Config.parse(words).target}.txt"
    text = mnemonics(line, words)
    if not update and path.read_text(encoding="utf-8").partition("\n")[0] != text.partition("\n")[0]:
        pytest.skip(f"{path.name} is of another LLVM than {llvm_bind.llvm_version()}")
    compare(path, text, update)


def test_every_text_belongs_to_a_pipeline() -> None:
    names = {f"{name}.txt" for name in PIPELINES}
    names |= {f"{name}.{Config.parse(words).target}.txt" for name, (_, _, words) in PIPELINES.items()}
    assert {path.name for path in HERE.glob("*.txt")} == names
