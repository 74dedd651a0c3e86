"""The inner loops of a kernel in assembly, their instructions, and estimates of their cycles by LLVM's `llvm-mca`.

An estimate follows from LLVM's description of a CPU. It ranks loops of one CPU at best, and is never a measurement.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from glob import escape, glob
from os import get_exec_path, path

from convsmith.diag.errors import ConvsmithError, ToolchainError, UnsupportedError, UsageError
from convsmith.diag.record import record
from convsmith.machine.base import Machine

__all__ = ["ALL", "DESCRIBED", "InnerLoop", "estimated_cycles", "estimates", "inner_loop", "inner_loops"]

ALL = "all"
"""Stands for the CPUs of `DESCRIBED`."""

DESCRIBED = {
    "aarch64": ("neoverse-v2", "apple-m4", "cortex-a76", "cortex-a510"),
    "riscv64": ("sifive-x280", "spacemit-x60"),
    "x86_64": ("znver4", "sapphirerapids", "skylake-avx512"),
    "thumbv8.1m.main": ("cortex-m55", "cortex-m85"),
    "thumbv7em": ("cortex-m4", "cortex-m7"),
    "hexagon": ("hexagonv73",),
}
"""CPUs whose pipelines LLVM describes, by the architecture that a triple begins with."""
_PROGRAM = "llvm-mca"
_STEPS = 100
"""Iterations that the estimate is the mean of."""
_LABEL = re.compile(r"^(\.?L?LBB\d+_\d+):")
_JUMP = re.compile(r"^\t(?:j\w*|b[\w.]*|cbn?z|tbn?z|le)\t(?:.*, )?(\.?L?LBB\d+_\d+)\s*$")
_VERSION = re.compile(r"LLVM version (\d+)\.(\d+)\.(\d+)")


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


def inner_loops(assembly: str, machine: Machine) -> list[InnerLoop]:
    """Return the loops of a kernel's assembly that contain no other and have products; those with most products come
    first. A loop whose instructions differ from those of another in labels alone is left out. Empty where a tile of all
    taps has no loop.
    """
    # A row's mnemonic is a beginning, which moves and other arithmetic may share.
    forms = (form for row in machine.instructions for form in (row, row.repeated) if form is not None)
    mnemonics = tuple({form.mnemonic for form in forms} - {""})
    if not mnemonics:
        return []
    product = re.compile(rf"^\t(?:{{vex}}\t)?(?!\w*(?:mov|mv|mul|max))(?:{'|'.join(mnemonics)})")
    lines = assembly.splitlines()
    starts: dict[str, int] = {}
    found: dict[tuple[str, ...], InnerLoop] = {}
    for n, line in enumerate(lines):
        if label := _LABEL.match(line):
            starts[label[1]] = n
        jump = _JUMP.match(line)
        if jump is None or jump[1] not in starts:
            continue
        at = starts[jump[1]]
        body = [x for x in lines[at + 1 : n + 1] if x.startswith("\t") and not x.startswith("\t.")]
        if any(map(_LABEL.match, lines[at + 1 : n + 1])):
            continue
        if count := sum(bool(product.match(x)) for x in body):
            loop = InnerLoop(jump[1], tuple(body), count, _length_before(lines[:at], body))
            found.setdefault((loop.before, *body[:-1]), loop)
    return sorted(found.values(), key=lambda loop: -loop.products)


def inner_loop(assembly: str, machine: Machine) -> InnerLoop | None:
    """Return the first of the `inner_loops`; None if there are none."""
    return next(iter(inner_loops(assembly, machine)), None)


def _length_before(before: Sequence[str], body: Sequence[str]) -> str:
    """Return the last instruction that sets the length of vectors, if the loop sets none."""
    if any(x.startswith("\tvset") for x in body):
        return ""
    return next((x for x in reversed(before) if x.startswith("\tvset")), "")


def _mca_program() -> tuple[str, str]:
    """Return the `llvm-mca` on PATH of the newest LLVM, whose name may end in a version, and that LLVM's version.

    UnsupportedError (code `tool`) if there is none.
    """
    names = [shutil.which(_PROGRAM)]
    names += [name for folder in get_exec_path() for name in glob(path.join(escape(folder), f"{_PROGRAM}-[0-9]*"))]
    found = [(_version(name), name) for name in names if name is not None]
    if not found:
        raise UnsupportedError(
            f"cycles are estimated by {_PROGRAM}, which PATH does not have: install the package llvm", code="tool"
        )
    version, name = max(found, key=lambda each: each[0])
    return name, ".".join(map(str, version))


@cache
def _version(program: str) -> tuple[int, ...]:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    match = _VERSION.search(done.stdout)
    return tuple(map(int, match.groups())) if match else (0,)


def estimated_cycles(loop: InnerLoop, machine: Machine, cpu: str) -> float:
    """Return the cycles of an iteration on one of LLVM's CPUs.

    UnsupportedError (code `tool`) without `llvm-mca`, UsageError (code `bad-cpu`) for a CPU of which it has no
    description, and ToolchainError if it does not read the loop.
    """
    program, version = _mca_program()
    text = "\n".join((loop.before, f"{loop.label}:", *loop.lines, ""))
    triple = machine.triple.partition("-")[0]
    features = ",".join(x for x in machine.features.split(",") if x.startswith("+"))
    options = [f"-mtriple={triple}", f"-mcpu={cpu}", f"-mattr={features}", f"-iterations={_STEPS}", "-"]
    done = subprocess.run([program, *options], input=text, capture_output=True, text=True, check=False)
    if total := re.search(r"Total Cycles:\s+(\d+)", done.stdout):
        return int(total[1]) / _STEPS
    at = f"{_PROGRAM} {version} ({program})"
    if "scheduling information" in done.stderr or "not a recognized processor" in done.stderr:
        raise UsageError(
            f"{at} has no description of {cpu!r}; legal are LLVM's CPUs for {triple} that have one", code="bad-cpu"
        )
    why = done.stderr.strip()[:300]
    raise ToolchainError(f"{at} does not read the loop: {why}", text=done.stderr)


def estimates(assembly: str, machine: Machine, names: str) -> str:
    """Return a table of the inner loops of a kernel with their cycles on CPUs of LLVM's: ``names``, separated by
    commas, or `ALL`. Of the latter, lines below the table say why some have no estimate.

    Errors of `estimated_cycles` for CPUs that are named.
    """
    loops = inner_loops(assembly, machine)
    missing: dict[str, list[str]] = {}
    if not loops:
        return "inner loops   none: the products of a tile are no loop"
    if names != ALL:
        cpus = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    else:
        cpus = DESCRIBED.get(machine.triple.partition("-")[0], ())
    columns = [["inner loops", *(loop.label for loop in loops)], ["instructions", *(str(len(x.lines)) for x in loops)],
               ["products", *(str(loop.products) for loop in loops)]]  # fmt: skip
    for cpu in cpus:
        try:
            columns.append([cpu, *(f"{estimated_cycles(loop, machine, cpu):.1f}" for loop in loops)])
        except ConvsmithError as error:
            if names != ALL:
                raise
            missing.setdefault(" ".join(str(error).split()), []).append(cpu)
    widths = [max(map(len, column)) for column in columns]
    first, *others = widths
    lines = [f"{row[0]:<{max(first, 12)}}" + "".join(f"  {x:>{w}}" for x, w in zip(row[1:], others))
             for row in zip(*columns)]  # fmt: skip
    if len(columns) > 3:
        lines.append(f"cycles of an iteration, as llvm-mca {_mca_program()[1]} estimates them; nothing was timed")
    return "\n".join([*lines, *(f"{', '.join(of)}: {why}" for why, of in missing.items())])
