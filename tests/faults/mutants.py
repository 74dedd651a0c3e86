"""Mutants: random small changes of the code that decides numbers, and whether the fast tests of their file see them.

    python tests/faults/mutants.py                       # 100 mutants of a new seed
    python tests/faults/mutants.py --seed 7 --first 20 --number 10 schedule passes

A mutant is planted as a fault of the tables is: in a copy of the package, with the tests in a process of their own. Its
tests are those of the normal tier in files of the changed module's name and in the package's folders (`FOLDERS`), up to
the first failure. First each of these files runs once in the package as it is, with probes at the drawn places
(`reach.py`): a mutant's tests are those of files that reach its place, if they pass, and its limit of CPU time is a
multiple of what they take. The mutants of `equivalent/mutants.toml`, which compute the same, are not drawn.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mutations import Site, sites
from planted import HERE, PACKAGE, ROOT, copy_of_the_package, is_success, run_tests
from reach import Span, in_order, reached

FOLDERS = {
    "arith": ("arith", "laws", "proofs"),
    "codegen": ("codegen",),
    "interp": ("interp",),
    "ir": ("ir", "laws"),
    "layout": ("layout",),
    "passes": ("passes", "oracle", "golden"),
    "schedule": ("schedule", "oracle", "golden", "statement"),
    "problem": ("problem",),
    "runtime": ("runtime",),
    "statement": ("statement", "oracle"),
}
"""The packages that decide numbers, and the folders of their tests; those of statements interpret plans of chains."""

TIER = "not wide and not slow"
NUMBER = 100
RATE = 0.95
"""Part of the mutants that the tests must catch."""

START, SLOWER = 30.0, 4.0
"""Limit of a mutant's tests: seconds of CPU time to start them, and times as long as they take without it."""

LOADED = 10.0
"""Times as long as its CPU time a process may take on a machine that does other work too."""

MEMORY = 12 << 30
"""Bytes that a process of a mutant may allocate: a loop without end does not take the machine's."""

_FIRST = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    site: Site

    def planted(self) -> str:
        """The file's text with the change."""
        text = (PACKAGE / self.file).read_text()
        assert text[self.site.start : self.site.end] == self.site.old
        return text[: self.site.start] + self.site.new + text[self.site.end :]

    @property
    def span(self) -> Span:
        """Its place in the file's text."""
        return self.site.start, self.site.end

    @property
    def key(self) -> tuple[str, str, str, str]:
        """A name of the mutant that holds as long as its function stays as it is, wherever its lines are."""
        return self.file, self.site.function, _line(self.site.old), _line(self.site.new)

    def __str__(self) -> str:
        file, function, old, new = self.key
        return f"{file}:{self.site.line} {function}: {self.site.operator}: {old}  ->  {new}"


@dataclass(frozen=True)
class Outcome:
    """The verdict of the tests: `test` is the first one that failed; without one they passed, or took too long."""

    mutant: Mutant
    test: str = ""
    is_late: bool = False


def _line(text: str) -> str:
    return " ".join(text.split())


@cache
def mutants_of(file: str) -> tuple[Mutant, ...]:
    """Every mutant of a file, equivalent ones too."""
    return tuple(Mutant(file, site) for site in sites((PACKAGE / file).read_text()))


def mutants(packages: Iterable[str] = FOLDERS) -> list[Mutant]:
    """Every mutant of the packages, equivalent ones too."""
    files = [path for package in packages for path in sorted((PACKAGE / package).rglob("*.py"))]
    return [mutant for path in files for mutant in mutants_of(str(path.relative_to(PACKAGE)))]


def equivalent() -> dict[tuple[str, str, str, str], str]:
    """The mutants that no test of numbers can see, by their keys, and why."""
    rows = tomllib.loads((HERE / "equivalent" / "mutants.toml").read_text())["mutants"]
    return {(row["file"], row["function"], row["old"], row["new"]): row["why"] for row in rows}


def drawn(seed: int, packages: Iterable[str] = FOLDERS) -> list[Mutant]:
    """Every mutant of the packages but the equivalent ones, in a random order of the seed."""
    known = equivalent()
    found = [mutant for mutant in mutants(packages) if mutant.key not in known]
    random.Random(seed).shuffle(found)
    return found


@cache
def imports() -> dict[Path, frozenset[str]]:
    """Every file of tests, and the modules that it imports."""
    found = {}
    for path in sorted(HERE.parent.rglob("test_*.py")):
        names = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {part.name for part in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}", *(f"{node.module}.{part.name}" for part in node.names)}
        found[path] = frozenset(names)
    return found


@cache
def files_of_tests(file: str) -> list[str]:
    """The tests of a file: those that import its module, the ones of its name first, and the others of its package.

    Of other folders only tests of its name belong to it: half the suite imports a problem.
    """
    name = file.removesuffix(".py").replace("/", ".")
    folders = [HERE.parent / folder for folder in FOLDERS[name.partition(".")[0]]]
    own = [path for folder in folders for path in imports() if path.parent == folder]
    named = [path for path, names in imports().items() if f"{PACKAGE.name}.{name}" in names and path.parent != HERE]
    of_its_name = [path for path in named if name.rpartition(".")[2] in path.stem]
    first = (*of_its_name, *(path for path in own if path in named))
    return [str(path.relative_to(ROOT)) for path in dict.fromkeys((*first, *own))]


def reach_of(
    drawn: Iterable[Mutant], jobs: int, tests_of: Callable[[str], Sequence[str]] = files_of_tests
) -> dict[Mutant, tuple[list[str], float]]:
    """The tests of each mutant's file that may see it, in order, and the seconds that they take without it."""
    numbers: dict[tuple[str, Span], int] = {}
    places: dict[str, dict[Span, int]] = {}
    for mutant in drawn:
        number = numbers.setdefault((mutant.file, mutant.span), len(numbers))
        places.setdefault(mutant.file, {})[mutant.span] = number
    files = {test for file in places for test in tests_of(file)}
    found = reached(files, places, TIER, jobs)
    return {x: in_order([found[test] for test in tests_of(x.file)], numbers[x.file, x.span]) for x in drawn}


def outcome(mutant: Mutant, tests: Sequence[str], seconds: float) -> Outcome:
    """Return the verdict of tests on the mutant in a copy of the package; without the mutant they take ``seconds``."""
    if not tests:
        return Outcome(mutant)
    limit = START + SLOWER * seconds
    with tempfile.TemporaryDirectory(prefix="convsmith-mutant-") as folder:
        directory = Path(folder)
        copy_of_the_package(directory, mutant)
        (directory / "order.json").write_text(json.dumps({"tests": tests, "seconds": int(limit)}))
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        try:
            done = run_tests(directory, files, LOADED * limit, TIER, "in_order")
        except subprocess.TimeoutExpired:
            return Outcome(mutant, is_late=True)
    if is_success(done):
        return Outcome(mutant)
    failed = _FIRST.search(done.stdout)
    if failed is None and done.returncode == -signal.SIGXCPU:
        return Outcome(mutant, is_late=True)
    return Outcome(mutant, failed[1] if failed else "the process of the tests")


def outcomes(drawn: Sequence[Mutant], jobs: int) -> list[Outcome]:
    """The outcomes of mutants, each printed when it is known."""
    reach = reach_of(drawn, jobs)
    found = []
    with ThreadPoolExecutor(jobs) as pool:
        for x in pool.map(lambda mutant: outcome(mutant, *reach[mutant]), drawn):
            found.append(x)
            survived = "TIME" if x.is_late else "SURVIVED" if reach[x.mutant][0] else "SURVIVED: no test reaches it"
            print(f"{x.test or survived}\n    {x.mutant}", flush=True)
    return found


def summary(found: Sequence[Outcome]) -> str:
    """The number of mutants that the tests catch, by package."""
    lines = []
    for package in sorted({x.mutant.file.partition("/")[0] for x in found}):
        own = [x for x in found if x.mutant.file.startswith(f"{package}/")]
        lines.append(f"{package:10} {sum(bool(x.test) for x in own):3} of {len(own):3}")
    caught, late = sum(bool(x.test) for x in found), sum(x.is_late for x in found)
    lines.append(f"caught {caught} of {len(found)} ({caught / len(found):.0%}), {late} took too long")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"of {', '.join(FOLDERS)}; default: all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant of the seed")
    parser.add_argument("--number", type=int, default=NUMBER)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    given = parser.parse_args()
    if unknown := set(given.packages) - set(FOLDERS):
        parser.error(f"{', '.join(sorted(unknown))}: legal are {', '.join(FOLDERS)}")
    chosen = drawn(given.seed, given.packages or FOLDERS)[given.first : given.first + given.number]
    print(f"seed {given.seed}, mutants {given.first} to {given.first + len(chosen) - 1}")
    if given.list:
        print(*chosen, sep="\n")
        return 0
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    found = outcomes(chosen, given.jobs)
    print(summary(found))
    return int(sum(bool(x.test) for x in found) < RATE * len(found))


if __name__ == "__main__":
    sys.exit(main())
