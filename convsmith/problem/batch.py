"""A parser of problem lists in the format of benchdnn's batch files.

    --reset --dt=f32,bf16            # two types
    --dir=FWD_B,BWD_D
    mb1ic16ih8oc16oh8kh3ph1          # four problems
    --batch=more.txt                 # a file beside this one

A list is a sequence of words separated by blanks; a word that starts with `#` makes the rest of its line a comment. An
option applies to all descriptors after it until it is given again. `--reset` restores the options of the caller. An
option may list several values, separated by commas; a descriptor then yields one problem per combination of values, in
the order of benchdnn's loops. A file named by `--batch` starts with the caller's options and does not change the
options of the file that names it.

Arrows join the stages of a chain on one line. Options before the first stage apply to that stage and to later
descriptors; options of any other stage precede it and start from the caller's options.

A benchdnn run has one kind of problem. Here a line that names its kind (`--conv`, `--deconv`, `--matmul`) resets the
options to the caller's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.descriptor import KINDS, STAGES, names_batch
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem

__all__ = ["Item", "parse_problems", "read_batch", "split_words"]

_WORD = re.compile(r'(?:[^\s"]|"[^"]*(?:"|$))+')

_LOOPS = ("dir", "dt", "bia-dt", "bia-mask", "stag", "wtag", "dtag", "strides", "attr-scales", "attr-zero-points",
          "attr-post-ops", "attr-acc-mode", "bits", "rounding", "mb")  # fmt: skip
"""Options in the nesting order of benchdnn's loops, outermost first."""

_DEEPEST = 16
"""Maximum nesting depth of files included by `--batch`."""
_MAX_FILES = 1000
"""Maximum number of files that a list includes, each as often as it is named."""
_MAX_PROBLEMS = 100_000
"""Maximum number of problems of one descriptor, whose options multiply, and of a list."""

Reader = Callable[[str, str | None], tuple[str, str]]
"""Takes a file name and the source that includes it; returns the file's own source and its text."""


class _StageLine(NamedTuple):
    """A descriptor, and the options (name without dashes -> text) that hold for it."""

    options: Mapping[str, str]
    descriptor: str


class _Bounds:
    """Counts the files and problems of a list. UsageError where a list has more than it may."""

    def __init__(self) -> None:
        self._files = 0
        self._problems = 0

    def count_file(self) -> None:
        """Count a file that is included."""
        self._files += 1
        if self._files > _MAX_FILES:
            raise UsageError(f"the list includes more than {_MAX_FILES} files", code="bad-file")

    def count_problems(self, stages: Sequence[_StageLine]) -> None:
        """Count the problems of a descriptor or of the stages of a chain, before any of them is parsed."""
        self._problems += prod(text.count(",") + 1 for options, _ in stages for text in options.values())
        if self._problems > _MAX_PROBLEMS:
            raise UsageError(f"the list stands for more than {_MAX_PROBLEMS} problems", code="bad-file")


class Item(NamedTuple):
    """A problem, and whether its line gives no batch size, so that benchdnn's default applies."""

    problem: Problem
    batch_assumed: bool


def parse_problems(text: str, source: str) -> list[Problem]:
    """Return the problems listed in `text`. The message of an error starts with `source` and the line's number."""
    return [item.problem for item in read_batch(text, source)]


def read_batch(
    text: str, source: str | None, given: Mapping[str, str] | None = None, reader: Reader | None = None, depth: int = 0,
    bounds: _Bounds | None = None,
) -> Iterator[Item]:
    """Yield the problems listed in `text`, starting from the options `given` (name without dashes -> text).

    The message of an error starts with `source` (unless None) and the line's number. `reader` loads the files that
    `--batch` includes; `depth` is the number of files around this one, and `bounds` counts the files and problems of
    the list.
    """
    bounds = bounds or _Bounds()
    start = dict(given or {})
    options, last = start, None
    for number, line in enumerate(text.splitlines(), start=1):
        words = split_words(line)
        if any(word[2:] in KINDS for word in words if word.startswith("--")):
            options = {name: value for name, value in start.items() if name not in KINDS}
        stages: list[_StageLine] = []  # the stages of the chain that `word` belongs to
        later = start
        for word, following in zip(words, [*words[1:], ""]):
            place = None if source is None else f"{source}:{number}"
            if not word.startswith("-"):
                stages.append(_StageLine(later if stages else options, word))
                last, later = None, start
                if following != STAGES:
                    with _at(place):
                        bounds.count_problems(stages)
                        items = list(_items(stages))
                    yield from items
                    stages = []
            elif word == STAGES:
                last = place, word
            elif stages:
                with _at(place):
                    later = _with_option(later, word)
                last = place, word
            elif word == "--reset":
                options, last = start, None
            elif word.startswith("--batch="):
                with _at(place):
                    bounds.count_file()
                    inner_source, inner = _inner(word, source, reader, depth)
                yield from read_batch(inner, inner_source, start, reader, depth + 1, bounds)
            else:
                with _at(place):
                    options = _with_option(options, word)
                last = place, word
    if last is not None:
        with _at(last[0]):
            raise UsageError(
                f"no descriptor follows {last[1]}; options stand before the descriptors that they hold for",
                code="bad-descriptor",
            )


def split_words(line: str) -> list[str]:
    """Return the words of `line` without its comment. Blanks inside the quotes of a problem's name do not separate
    words.
    """
    return list(itertools.takewhile(lambda word: not word.startswith("#"), _WORD.findall(line)))


@contextmanager
def _at(place: str | None) -> Iterator[None]:
    """Prefix `place` to the message of a UsageError or UnsupportedError raised inside the block."""
    try:
        yield
    except (UsageError, UnsupportedError) as error:
        if place is None:
            raise
        raise error.located(place) from None


def _with_option(options: Mapping[str, str], word: str) -> dict[str, str]:
    name, equals, value = word[2:].partition("=")
    name = name.replace("_", "-")
    if not word.startswith("--") or not (equals or name in KINDS):
        raise UsageError(f"cannot read {word!r}: options are written --name=value", code="bad-option")
    return {n: v for n, v in options.items() if not (name in KINDS and n in KINDS)} | {name: value}


def _items(stages: Sequence[_StageLine]) -> Iterator[Item]:
    """Yield the problem of `stages`, a chain if there are several, for every combination of the options' values."""
    for lines in itertools.product(*map(_lines, stages)):
        problem = parse_problem(f" {STAGES} ".join(line for line, _ in lines))
        yield Item(problem, any(assumed for _, assumed in lines))


def _lines(stage: _StageLine) -> Iterator[tuple[str, bool]]:
    """Yield the line of `stage` for every combination of its options' values, and whether it gives no batch size."""
    options, descriptor = stage
    names = sorted(options, key=lambda name: _LOOPS.index(name) if name in _LOOPS else -1)
    for values in itertools.product(*(options[name].split(",") for name in names)):
        chosen = dict(zip(names, values))
        words = [f"--{name}" if name in KINDS else f"--{name}={value}" for name, value in chosen.items()]
        assumed = "matmul" not in chosen and chosen.get("mb") in (None, "", "0")
        yield " ".join([*words, descriptor]), assumed and not names_batch(descriptor)


def _inner(word: str, source: str | None, reader: Reader | None, depth: int) -> tuple[str, str]:
    """Return source and text of the file that the word `--batch=name` includes."""
    if reader is None:
        raise UsageError(f"{word}: --batch is legal in files only", code="bad-option")
    if depth == _DEEPEST:
        raise UsageError(f"{word}: files include each other more than {_DEEPEST} levels deep", code="bad-file")
    return reader(word.partition("=")[2], source)
