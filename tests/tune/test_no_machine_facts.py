"""`tune/` knows no machine: a constant that has a unit of a machine, such as cycles or bytes, is a fact of `machine/`.

What is left there are bounds of what is generated, patience of searches, and ratios that say when two estimates differ.
Every constant states its quantity, because the unit is read from its docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(import_module("convsmith.tune").__file__ or "").parent
UNIT = re.compile(
    r"(?:(?:maximum|minimum|least|most|greatest|number|numbers|of|a|the|at)\s+)*"
    r"(?:cycles?|bytes|banks?|registers?(?! tile)|pages?|lanes?|multiply-adds?|barriers?|units?|warps?|threads?|cores?)"
    r"\b",
    re.IGNORECASE,
)
"""The start of a docstring whose quantity is counted in units of a machine."""
NO_FACTS = {
    "candidates.COMPILED": "code that LLVM compiles in a time, whatever the target",
    "database.LARGEST_VALUE": "text in a file",
    "device_fragments.MAX_WARPS": "bound of a generator",
    "nests.MAX_BORDERED": "length of generated code",
    "register_tiles.MAX_PRODUCTS": "length of generated code",
}
"""Constants with such a quantity that says nothing about a machine, and why."""


class Constant(NamedTuple):
    """A constant of a module, with its docstring."""

    name: str
    text: str


def constants(path: Path) -> Iterator[Constant]:
    """Yield the constants of a module that hold numbers, not text alone."""
    body = ast.parse(path.read_text()).body
    for n, stmt in enumerate(body):
        if not isinstance(stmt, ast.Assign | ast.AnnAssign) or stmt.value is None:
            continue
        targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]
        names = [x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
        if not names or not all(re.fullmatch(r"[A-Z][A-Z_]*", name) for name in names):
            continue
        numbers = (x.value for x in ast.walk(stmt.value) if isinstance(x, ast.Constant))
        if any(type(x) in (int, float) for x in numbers):
            after = body[n + 1] if n + 1 < len(body) else None
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            yield Constant(f"{path.stem}.{', '.join(names)}", str(text))


FOUND = [x for path in sorted(FOLDER.rglob("*.py")) for x in constants(path)]
FILES = ("database.", "shipped.", "checked_rows.", "origin.")
"""Modules whose constants describe files."""


def test_there_are_constants() -> None:
    assert len(FOUND) > 50 and not NO_FACTS.keys() - {x.name for x in FOUND}


@pytest.mark.parametrize("constant", FOUND, ids=lambda x: x.name)
def test_a_constant_is_no_fact_of_a_machine(constant: Constant) -> None:
    if constant.name not in NO_FACTS:
        assert constant.text or constant.name.startswith(FILES), "states no quantity"
        assert not UNIT.match(constant.text), f"a fact of a machine? {constant.text}"
