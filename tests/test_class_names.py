"""One name, one thing: no two classes of the package have one name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import convsmith

ROOT = Path(convsmith.__file__).parent


def classes_by_name() -> dict[str, list[str]]:
    """Return where each class is defined, also private ones and those inside functions."""
    places = defaultdict(list)
    for file in sorted(ROOT.rglob("*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if found := re.match(r" *class (\w+)[(:]", line):
                places[found[1]].append(f"{file.relative_to(ROOT)}:{number}")
    return places


def test_names_of_classes_are_unique() -> None:
    places = classes_by_name()
    assert len(places) > 100, "the package is not found"
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert not shared, "\n".join(f"{name}: {', '.join(found)}" for name, found in shared.items())
