"""Opcodes of hot loops as checked-in text: the budget of one round of each default kernel's innermost loop.

`pytest tests/ptx --update-golden` writes the texts anew. They are those of one assembler, which each file names; they
are compared with that assembler only.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from convsmith.codegen import llvm_bind
from convsmith.compiler.cubin import assemble_ptx
from convsmith.schedule.plan import SYMBOL
from ptx.sass import disassembly, hot_loop, skip_without
from ptx.test_convolutions import made

HERE = Path(__file__).parent / "budgets"
LAYERS = {
    "convolution": "--stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1",
    "product": "--matmul 256x128:128x256",
    "backward": "--dir=BWD_D --stag=axb --dtag=axb mb8ic64ih28oc64oh28kh3ph1",
}
TENSOR_LAYERS = {
    "halves": ("--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb8ic64ih28oc64oh28kh3ph1", "HMMA"),
    "bytes": ("--stag=axb --wtag=axb --dtag=axb --dt=s8:s8:s32 mb8ic64ih28oc64oh28kh3ph1", "IMMA"),
}
"""Problems whose warps multiply fragments on sm_80, each with the opcode of its products."""
HOPPER = {
    "tensor-copies": "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih28oc256oh28kh3ph1",
    "tensor-copies-wide": "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih56oc256oh56kh3ph1",
    "tensor-copies-backward": "--dir=BWD_D --stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic256ih28oc256oh28kh3ph1",
}
"""Layers of which the copy engine of sm_90a brings the operands."""
FEW_CHANNELS = {
    "depthwise": "--stag=axb --dtag=axb --dt=bf16 g96mb32ic96ih56oc96oh56kh7ph3",
    "few-a-group": "--stag=axb --dtag=axb --dt=bf16 g32mb32ic128ih56oc128oh56kh3ph1",
}
"""Layers with too few channels a group for fragments."""
BUDGETS = [
    *((name, level, line, "FFMA") for name, line in LAYERS.items() for level in ("sm_80", "sm_90a")),
    *((name, "sm_90a", line, "FFMA") for name, line in FEW_CHANNELS.items()),
    ("stem", "sm_90a", "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb32ic3ih224oc64oh112kh7sh2ph3", "HMMA"),
    *((name, "sm_80", line, opcode) for name, (line, opcode) in TENSOR_LAYERS.items()),
    *((name, "sm_90a", line, "HGMMA") for name, line in HOPPER.items()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "level", "line", "product"), BUDGETS, ids=[f"{x[0]}-{x[1]}" for x in BUDGETS])
def test_the_opcodes_of_a_hot_loop(
    name: str, level: str, line: str, product: str, request: pytest.FixtureRequest
) -> None:
    skip_without(level)
    assembled = assemble_ptx(made(line, "", level).notes["ptx"], level)
    use = assembled.uses[SYMBOL]
    counts = hot_loop(disassembly(assembled.cubin)[SYMBOL], product)
    head = f"{assembled.assembler}, LLVM {llvm_bind.llvm_version()}"
    lines = [head, line, str(use), *(f"{n:5} {opcode}" for opcode, n in sorted(counts.items()))]
    text = "\n".join(lines) + "\n"
    path = HERE / f"{name}.{level}.txt"
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    wanted = path.read_text(encoding="utf-8")
    if wanted.partition("\n")[0] != head:
        pytest.skip(f"{path.name} is of another assembler than {head}")
    assert counts[product] and text == wanted, "if this is as it should be: pytest tests/ptx --update-golden"


def test_every_text_belongs_to_a_layer() -> None:
    assert {x.name for x in HERE.glob("*.txt")} == {f"{name}.{level}.txt" for name, level, *_ in BUDGETS}
