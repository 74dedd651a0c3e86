"""The assembly of a kernel beside the lines of IR that its instructions come from, and its hottest loop."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from convsmith.diag.record import record

__all__ = ["AssemblyLine", "Routine", "hot_loop", "routines"]

_LOCATION = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")
_LABEL = re.compile(r"([\w.$@]+):")
_NAME = re.compile(r"[A-Za-z]\w*:")
_TARGET = re.compile(r"(\.?L[\w.$]+)\s*(?:[;#/].*)?$")


@record(frozen=True)
class AssemblyLine:
    """An instruction or a label; `source` is the number of its line of IR, or 0."""

    text: str
    source: int = 0
    label: str = ""

    @property
    def target(self) -> str:
        """The label that the instruction jumps to; empty if it names none."""
        found = None if self.label else _TARGET.search(self.text)
        return found.group(1) if found else ""


@record(frozen=True)
class Routine:
    """The lines of one function of a kernel."""

    name: str
    lines: tuple[AssemblyLine, ...]


def routines(assembly: str) -> list[Routine]:
    """Return the functions in `assembly` whose instructions have lines of IR, without directives."""
    found: list[tuple[str, list[AssemblyLine]]] = []
    source = 0
    for line in assembly.splitlines():
        if location := _LOCATION.match(line):
            source = int(location.group(1))
        elif _NAME.match(line):
            found.append((line.partition(":")[0], []))
            source = 0
        elif found and (label := _LABEL.match(line)):
            found[-1][1].append(AssemblyLine(line.rstrip(), label=label.group(1)))
        elif found and line.startswith("\t") and not line.lstrip().startswith((".", "#", "//", ";")):
            found[-1][1].append(AssemblyLine(line.expandtabs(8).rstrip(), source))
    return [Routine(name, tuple(_used(lines))) for name, lines in found if any(x.source for x in lines)]


def _used(lines: Sequence[AssemblyLine]) -> Iterator[AssemblyLine]:
    """Yield the lines, without labels that are no jump target."""
    targets = {x.target for x in lines}
    yield from (x for x in lines if not x.label or x.label in targets)


def hot_loop(found: Sequence[Routine], times: Mapping[int, int]) -> tuple[Routine, range] | None:
    """Return the innermost loop that executes the most instructions, with its routine; `times` holds the executions of
    each line of IR. None if no routine has a loop.
    """
    loops = [(routine, loop) for routine in found for loop in _innermost_loops(routine.lines)]
    weight = {(r.name, x): sum(times.get(r.lines[n].source, 0) for n in x) for r, x in loops}
    return max(loops, key=lambda found: weight[found[0].name, found[1]], default=None)


def _innermost_loops(lines: Sequence[AssemblyLine]) -> list[range]:
    """Return the ranges of lines from a label to a jump back to it that contain no other such range."""
    labels = {x.label: n for n, x in enumerate(lines) if x.label}
    ends = ((labels.get(x.target, len(lines)), n) for n, x in enumerate(lines) if x.target)
    loops = [range(first, last + 1) for first, last in ends if first <= last]
    return [x for x in loops if not any(y is not x and y.start >= x.start and y.stop <= x.stop for y in loops)]
