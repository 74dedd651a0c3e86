"""The tests that reach a place of the code: each file of tests runs once with a probe at every place that is asked for.

A probe is text around the place. It writes the number of the place and the running test to a file; processes that a
test starts do the same. Caches make one test of a process reach a place for others, so a file of tests has a process of
its own, and with one of its tests every test of the file counts as one that may tell a change of the place. Those that
reach it come first, the fastest of each function before the others.
"""

from __future__ import annotations

import ast
import json
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from planted import PACKAGE, SECONDS, copy_of_the_package, run_tests

MODULE = '''
import os

_FILE = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_seen = set()

def at(place):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (place, test) not in _seen:
        _seen.add((place, test))
        os.write(_FILE, f"{{place}} {{test}}\\n".encode())
'''
PROBE = '__import__("convsmith_probe").at({})'

Span = tuple[int, int]
"""First character of a place in a file's text, and the one after its last."""


def with_probes(text: str, places: Mapping[Span, int]) -> str:
    """Return a file's text with a probe at every place, an expression or a statement, that writes its number."""
    added: list[tuple[tuple[int, int, int], str]] = []
    for (start, end), number in places.items():
        probe = PROBE.format(number)
        if _is_expression(text[start:end]):
            added.append(((start, 1, -end), f"(({probe}, "))
            added.append(((end, 0, -start), ")[1])"))
        else:
            added.append(((start, 1, -end), f"{probe}; "))
    parts, last = [], 0
    for (at, _, _), part in sorted(added):
        parts += [text[last:at], part]
        last = at
    return "".join([*parts, text[last:]])


def _is_expression(text: str) -> bool:
    try:
        ast.parse(f"({text}\n)", mode="eval")
    except SyntaxError:
        return False
    return True


@dataclass(frozen=True)
class FileReach:
    """The lines that the tests of one file reach: tests by place (`""` outside of tests), and seconds of each test."""

    places: Mapping[int, frozenset[str]]
    seconds: Mapping[str, float]

    def order(self, place: int) -> list[tuple[bool, bool, float, str]]:
        """Every test of the file with its rank among all that may tell a change of the place; none if none reaches it.
        """
        if place not in self.places:
            return []
        reached = self.places[place]
        fastest: dict[str, str] = {}
        for test in sorted(self.seconds, key=self._seconds):
            if test in reached:
                fastest.setdefault(test.partition("[")[0], test)
        first = set(fastest.values())
        return [(test not in reached, test not in first, seconds, test) for test, seconds in self.seconds.items()]

    def _seconds(self, test: str) -> float:
        return self.seconds[test]


def reach(file_of_tests: str, places: Mapping[str, Mapping[Span, int]], tier: str) -> FileReach:
    """Run the tests of a file with probes at the places of the package's files."""
    with tempfile.TemporaryDirectory(prefix="convsmith-reach-") as folder:
        directory = Path(folder)
        copy_of_the_package(directory, None)
        for file, spans in places.items():
            changed = directory / PACKAGE.name / file
            changed.write_text(with_probes(changed.read_text(), spans))
            for stale in changed.parent.glob(f"__pycache__/{changed.stem}.*"):
                stale.unlink()
        written = directory / "reached.txt"
        (directory / "convsmith_probe.py").write_text(MODULE.format(path=str(written)))
        try:
            run_tests(directory, [file_of_tests], 10 * SECONDS, tier, "in_order")
        except subprocess.TimeoutExpired:
            return FileReach({}, {})
        took = directory / "took.json"
        seconds = json.loads(took.read_text()) if took.exists() else {}
        found: dict[int, set[str]] = {}
        for line in written.read_text().splitlines() if written.exists() else []:
            number, _, test = line.partition(" ")
            found.setdefault(int(number), set()).add(test)
    return FileReach({place: frozenset(tests) for place, tests in found.items()}, seconds)


def reached(
    files_of_tests: Iterable[str], places: Mapping[str, Mapping[Span, int]], tier: str, jobs: int
) -> dict[str, FileReach]:
    """Return what each file of tests reaches."""
    files = sorted(set(files_of_tests))
    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(files, pool.map(lambda file: reach(file, places, tier), files)))


def in_order(files: Sequence[FileReach], place: int) -> tuple[list[str], float]:
    """Return the tests of files that may tell a change of the place, the most likely and fastest first; their seconds.
    """
    ranked = sorted(test for file in files for test in file.order(place))
    return [test for *_, test in ranked], sum(seconds for _, _, seconds, _ in ranked)
