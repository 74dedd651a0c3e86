"""Compares the speed of default kernels of two revisions: no change may make the mean or a single kernel slower.

Run: python benchmarks/gate.py OLD NEW [--all] [--every 5] [--problems FILE] [--level avx512] [--write]

OLD and NEW are revisions of git, or folders. The kernels are those of `tests/replay/kernels.json` with sizes known when
they are made, at the levels that this machine has, and of them those whose object code differs between the two lists;
with --all every one, with --problems those of a file of descriptors instead. Both revisions run `convsmith bench` in
processes of their own, in turns, a few problems at a time; the fastest quartile of a revision's fastest turn counts,
since whatever else runs makes a kernel slower and never faster. A kernel that seems slower by the limit is measured
again, with more turns, before it counts. The exit status is 1 if the geometric mean or a kernel is below its limit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from report import Report, bench

from convsmith.machine.registry import host_targets

ROOT = Path(__file__).parents[1]
LIST = Path("tests/replay/kernels.json")
MEAN_LIMIT, KERNEL_LIMIT = 0.99, 0.95
"""Ratios of the new speed to the old one, of the geometric mean and of each kernel."""
TURNS, MORE_TURNS = 2, 5
"""Times that each revision measures a kernel, and one that seems slower."""
AT_A_TIME = 6
"""Problems of a process."""


class Subject(NamedTuple):
    """A problem at a level, with a number of threads."""

    line: str
    target: str
    threads: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The speed of default kernels of two revisions.")
    parser.add_argument("old", help="revision or folder")
    parser.add_argument("new", help="revision or folder")
    parser.add_argument("--all", action="store_true", help="kernels of equal object code as well")
    parser.add_argument("--every", type=int, default=1, help="measure every n-th kernel (default: %(default)s)")
    parser.add_argument("--problems", type=Path, help="lines of descriptors instead of the list of kernels")
    parser.add_argument("--level", action="append", help="only this level; may be repeated")
    parser.add_argument("--write", action="store_true", help="keep the results beside those of other benchmarks")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        trees = [sources(name, Path(directory) / side) for name, side in ((options.old, "old"), (options.new, "new"))]
        levels = options.level or [level.name for level in host_targets()]
        if options.problems:
            lines = options.problems.read_text(encoding="utf-8").splitlines()
            subjects = [Subject(line, levels[0], 1) for line in lines if line and not line.startswith("#")]
        else:
            subjects = [s for s in listed(*trees, equal=options.all) if s.target in levels]
        found = compare(subjects[:: options.every], trees, Path(directory) / "cache")
    if not found:
        print(f"no kernel differs between {options.old} and {options.new} at levels of this machine")
        return 0
    report = Report("gate", f"Speed of default kernels: {options.new} against {options.old}")
    report.data = {"ratios": [[*subject, ratio] for subject, ratio in found.items()]}
    mean, least = statistics.geometric_mean(found.values()), min(found.values())
    passed = mean >= MEAN_LIMIT and least >= KERNEL_LIMIT
    report.note(
        f"{len(found)} kernels; geometric mean of new speed by old {mean:.3f} (limit {MEAN_LIMIT}), least {least:.3f} "
        f"(limit {KERNEL_LIMIT}): {'passed' if passed else 'FAILED'}."
    )
    by_level = itertools.groupby(sorted(found, key=_level), key=_level)
    means = [[*map(str, level), *_summary([found[s] for s in group])] for level, group in by_level]
    report.table("By level", ["level", "threads", "kernels", "geometric mean", "least", "greatest"], means)
    extremes = [s for s in sorted(found, key=found.__getitem__) if not KERNEL_LIMIT <= found[s] <= 1 / KERNEL_LIMIT]
    rows = [[f"{found[s]:.3f}", s.target, str(s.threads), f"`{s.line}`"] for s in extremes]
    report.table("Kernels beyond the limit, in either direction", ["new / old", "level", "threads", "problem"], rows)
    report.write() if options.write else print(report.page)
    return 0 if passed else 1


def sources(revision: str, folder: Path) -> Path:
    """Return the folder of a revision's files, which are written to `folder` unless `revision` is a folder."""
    if Path(revision).is_dir():
        return Path(revision).resolve()
    with subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE) as git:
        assert git.stdout is not None
        try:
            with tarfile.open(fileobj=git.stdout, mode="r|") as archive:
                archive.extractall(folder, filter="data")
        except tarfile.ReadError:
            sys.exit(f"{revision} is no folder and no revision of {ROOT}")
    return folder


def listed(old: Path, new: Path, *, equal: bool) -> Iterator[Subject]:
    """Yield the listed kernels that both revisions have, without those of equal object code unless `equal`."""
    before, now = (
        {Subject(row["line"], row["target"], row["threads"]): row["code"] for row in rows if row["kind"] == "fixed"}
        for rows in (json.loads((tree / LIST).read_text(encoding="utf-8"))["rows"] for tree in (old, new))
    )
    yield from (subject for subject, code in now.items() if subject in before and (equal or before[subject] != code))


def compare(subjects: Iterable[Subject], trees: Sequence[Path], cache: Path) -> dict[Subject, float]:
    """Return the speed of each kernel of the second tree, divided by its speed of the first."""
    found: dict[Subject, float] = {}
    for level, group in itertools.groupby(sorted(subjects, key=_level), key=_level):
        members = list(group)
        for some in (members[i : i + AT_A_TIME] for i in range(0, len(members), AT_A_TIME)):
            found |= _ratios(some, trees, cache, TURNS)
            slower = [s for s in some if found[s] < KERNEL_LIMIT]
            found |= _ratios(slower, trees, cache, MORE_TURNS) if slower else {}
            print(*level, *(f"{found[s]:.2f}" for s in some), file=sys.stderr)
    return found


def _ratios(some: Sequence[Subject], trees: Sequence[Path], cache: Path, turns: int) -> dict[Subject, float]:
    target, threads = _level(some[0])
    seconds: dict[Path, list[list[float]]] = {tree: [] for tree in trees}
    for turn in range(turns):
        for tree in trees if turn % 2 == 0 else reversed(trees):
            words = ("--threads", str(threads), "--target", target)
            setting = {"PYTHONPATH": str(tree), "CONVSMITH_CACHE": str(cache / str(trees.index(tree)))}
            rows = bench([s.line for s in some], *words, **setting)["rows"]
            seconds[tree].append([row["seconds"]["low"] for row in rows])
    old, new = ([min(of_one) for of_one in zip(*seconds[tree], strict=True)] for tree in trees)
    return {subject: before / now for subject, before, now in zip(some, old, new, strict=True)}


def _level(subject: Subject) -> tuple[str, int]:
    return subject.target, subject.threads


def _summary(ratios: Sequence[float]) -> list[str]:
    return [str(len(ratios)), *(f"{x:.3f}" for x in (statistics.geometric_mean(ratios), min(ratios), max(ratios)))]


if __name__ == "__main__":
    sys.exit(main())
