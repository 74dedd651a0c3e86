"""Kernels that are generated again and compared: config, LLVM text and object code, each by its hash.

`kernels.json` holds one row a kernel. A change of the compiler that is meant to keep every kernel leaves the rows as
they are; one that is meant to change some of them writes the rows again, and its difference shows which:

    python tests/replay/kernels.py          # write the hashes of all rows again
    python tests/replay/kernels.py --diff   # print the rows that differ, and write nothing
"""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from llvmlite import binding as llvm

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.compiler.dynamic import requirements
from convsmith.diag.collection import no_collection
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level as generic_level
from convsmith.machine.registry import device_targets, known_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem.fusion import stages_of
from convsmith.problem.lines import parse_problem
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import check_dynamic, general
from convsmith.schedule.micro_kernel import micro_kernel_plan
from convsmith.schedule.plan import plan
from convsmith.schedule.planned import plan_for
from convsmith.tune.candidates import default_config
from convsmith.tune.chains import stages_config
from convsmith.tune.devices.device import device_config
from convsmith.tune.dynamic import dynamic_config

ROWS = Path(__file__).parent / "kernels.json"
HASH_LETTERS = 16
_OTHERS = (*known_targets("intel-server"), *device_targets())
TARGETS = {t.name: t for t in (*_OTHERS, *LEVELS, generic_level())}
"""Levels by name: those of x86 with the costs of no micro-architecture."""


@dataclass(frozen=True)
class Row:
    """A kernel, and what it was when the row was written.

    `kind` is "fixed" (a problem's line), "dynamic" (the same, for sizes of each call), "config" (a problem's line with
    the config that the row gives) or "micro" (a name). `text` and `code` are hashes of the LLVM text and of the object
    code, which kernels for devices do not have here.
    """

    kind: str
    line: str
    target: str
    threads: int
    config: str = ""
    text: str = ""
    code: str = ""


def generate(row: Row) -> Row:
    """Return the row of the kernel as the compiler makes it now. Compiles for levels that the host lacks as well."""
    level = TARGETS[row.target]
    with no_collection(), interning():
        config, text = _lowered(row, level)
        device = level.device is not None
        code = b"" if device else llvm_bind.object_code(text, level.triple, level.cpu, level.features)
    return Row(row.kind, row.line, row.target, row.threads, config, _hash(text.encode()), _hash(code))


def read_rows() -> tuple[str, list[Row]]:
    """Return the LLVM version that made the object code of the rows, and the rows."""
    content = json.loads(ROWS.read_text())
    return content["llvm"], [Row(**row) for row in content["rows"]]


def llvm_version() -> str:
    return ".".join(map(str, llvm.llvm_version_info))


def _lowered(row: Row, level: Machine) -> tuple[str, str]:
    """Return config and LLVM text."""
    if row.kind == "micro":
        m = MicroKernel.parse(row.line)
        micro = micro_kernel_plan(m, level)
        return str(micro.config), lower(micro).text
    problem = parse_problem(row.line)
    if row.kind == "dynamic":
        plain = general(check_dynamic(problem)).canonical()
        config = dynamic_config(plain, level, row.threads)
        return str(config), lower(plan(plain, config, level, requirements(problem, ()))).text
    plain = problem.canonical()
    config = Config.parse(row.config) if row.kind == "config" else _default(plain, level, row.threads)
    return str(config), lower(plan_for(plain, config, level)).text


def _default(problem: Problem, level: Machine, threads: int) -> Config:
    """Return the model's choice for one kernel or a chain, whatever was measured."""
    if level.device is not None:
        return device_config(problem, level)
    return (default_config if stages_of(problem) is None else stages_config)(problem, level, threads)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:HASH_LETTERS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--diff", action="store_true")
    options = parser.parse_args()
    _, rows = read_rows()
    new = [generate(row) for row in rows]
    changed = [(a, b) for a, b in zip(rows, new) if a != b]
    for old, now in changed:
        fields = [f"{name}: {getattr(old, name)} -> {getattr(now, name)}" for name in ("config", "text", "code")
                  if getattr(old, name) != getattr(now, name)]  # fmt: skip
        print(f"{now.kind} {now.target} {now.threads} {now.line}", *fields, sep="\n    ")
    print(f"{len(changed)} of {len(rows)} kernels differ")
    if not options.diff:
        lines = ",\n".join(json.dumps(asdict(row)) for row in new)
        ROWS.write_text(f'{{"llvm": "{llvm_version()}", "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
