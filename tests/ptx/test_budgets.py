"""Opcodes of hot loops as checked-in text: the budget of one round of each default kernel's innermost loop.

`pytest tests/ptx --update-golden` writes the texts anew. They are those of one assembler, which each file names; they
are compared with that assembler only.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from convsmith.codegen import llvm_bind
from convsmith.compiler.cubin import assemble_ptx
from ptx.sass import disassembly, hot_loop, skip_without
from ptx.test_convolutions import made

HERE = Path(__file__).parent / "budgets"
LAYERS = {
    "convolution": "--stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1",
    "product": "--matmul 256x128:128x256",
    "backward": "--dir=BWD_D --stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1",
}


@pytest.mark.parametrize("level", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_opcodes_of_a_hot_loop(name: str, level: str, request: pytest.FixtureRequest) -> None:
    skip_without(level)
    assembled = assemble_ptx(made(LAYERS[name], "", level).notes["ptx"], level)
    (kernel,) = [text for symbol, text in disassembly(assembled.cubin).items()][:1]
    counts = hot_loop(kernel, "FFMA")
    head = f"{assembled.assembler}, LLVM {llvm_bind.llvm_version()}"
    use = next(iter(assembled.uses.values()))
    lines = [head, LAYERS[name], str(use), *(f"{n:5} {opcode}" for opcode, n in sorted(counts.items()))]
    text = "\n".join(lines) + "\n"
    path = HERE / f"{name}.{level}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    wanted = path.read_text(encoding="utf-8")
    if wanted.partition("\n")[0] != head:
        pytest.skip(f"{path.name} is of another assembler than {head}")
    assert counts["FFMA"] and text == wanted, "if this is as it should be: pytest tests/ptx --update-golden"


def test_every_text_belongs_to_a_layer() -> None:
    assert {x.name for x in HERE.glob("*.txt")} == {f"{x}.{level}.txt" for x in LAYERS for level in ("sm_80", "sm_90a")}
