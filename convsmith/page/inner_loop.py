"""The inner loop of a kernel in assembly, its instructions, and an estimate of its cycles by LLVM's `llvm-mca`.

An estimate follows from LLVM's description of a CPU. It ranks loops of one CPU at best, and is never a measurement.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence

from convsmith.diag.errors import ToolchainError, UnsupportedError, UsageError
from convsmith.diag.record import record
from convsmith.machine.base import Machine

__all__ = ["InnerLoop", "estimated_cycles", "inner_loop"]

_PROGRAM = "llvm-mca"
_STEPS = 100
"""Iterations that the estimate is the mean of."""
_LABEL = re.compile(r"^(\.?L?LBB\d+_\d+):")
_JUMP = re.compile(r"^\t(?:j\w*|b[\w.]*|cbn?z|tbn?z)\t(?:.*, )?(\.?L?LBB\d+_\d+)\s*$")


@record(frozen=True)
class InnerLoop:
    """The instructions of a loop that contains no other, as assembly, and how many multiply and add vectors; `before`
    is the last instruction before it that sets the length of vectors, or empty.
    """

    label: str
    lines: tuple[str, ...]
    products: int
    before: str = ""

    def __str__(self) -> str:
        return f"{len(self.lines)} instructions for {self.products} products"


def inner_loop(assembly: str, machine: Machine) -> InnerLoop | None:
    """Return the loop of a kernel's assembly that has most products; None if no loop has any, as where a tile of all
    taps has no loop.
    """
    # A row's mnemonic is a beginning, which moves and other arithmetic may share.
    mnemonics = tuple({row.mnemonic for row in machine.instructions} - {""})
    product = re.compile(rf"^\t(?:{{vex}}\t)?(?!\w*(?:mov|mv|mul|max))(?:{'|'.join(mnemonics)})") if mnemonics else None
    lines = assembly.splitlines()
    starts: dict[str, int] = {}
    best: InnerLoop | None = None
    for n, line in enumerate(lines):
        if label := _LABEL.match(line):
            starts[label[1]] = n
        jump = _JUMP.match(line)
        if product is None or jump is None or jump[1] not in starts:
            continue
        at = starts[jump[1]]
        body = [x for x in lines[at + 1 : n + 1] if x.startswith("\t") and not x.startswith("\t.")]
        if any(map(_LABEL.match, lines[at + 1 : n + 1])):
            continue
        count = sum(bool(product.match(x)) for x in body)
        if count > (best.products if best is not None else 0):
            best = InnerLoop(jump[1], tuple(body), count, _length_before(lines[:at], body))
    return best


def _length_before(before: Sequence[str], body: Sequence[str]) -> str:
    """Return the last instruction that sets the length of vectors, if the loop sets none."""
    if any(x.startswith("\tvset") for x in body):
        return ""
    return next((x for x in reversed(before) if x.startswith("\tvset")), "")


def estimated_cycles(loop: InnerLoop, machine: Machine, cpu: str) -> float:
    """Return the cycles of an iteration on one of LLVM's CPUs.

    UnsupportedError (code `tool`) without `llvm-mca`, UsageError (code `bad-cpu`) for a CPU of which it has no
    description, and ToolchainError if it does not read the loop.
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        raise UnsupportedError(
            f"cycles are estimated by {_PROGRAM}, which PATH does not have: install the package llvm", code="tool"
        )
    text = "\n".join((loop.before, f"{loop.label}:", *loop.lines, ""))
    triple = machine.triple.partition("-")[0]
    features = ",".join(x for x in machine.features.split(",") if x.startswith("+"))
    options = [f"-mtriple={triple}", f"-mcpu={cpu}", f"-mattr={features}", f"-iterations={_STEPS}", "-"]
    done = subprocess.run([program, *options], input=text, capture_output=True, text=True, check=False)
    if total := re.search(r"Total Cycles:\s+(\d+)", done.stdout):
        return int(total[1]) / _STEPS
    if "scheduling information" in done.stderr or "not a recognized processor" in done.stderr:
        raise UsageError(f"{_PROGRAM} ({program}) has no description of the CPU {cpu!r}; legal are those of LLVM for "
                         f"{triple} that have one", code="bad-cpu")  # fmt: skip
    why = done.stderr.strip()[:300]
    raise ToolchainError(f"{_PROGRAM} ({program}) does not read the loop: {why}", text=done.stderr)
