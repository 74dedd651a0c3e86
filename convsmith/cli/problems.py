"""What commands are given: problems (a network, a descriptor, a file of them) and how to compile them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from convsmith.diag import trace
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import MOST_THREADS, settings
from convsmith.frontend.kernel import Kernel
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.layout.tags import ANY
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem
from convsmith.problem.suites import SUITES, parse_problems, suite
from convsmith.runtime.threads import default_threads
from convsmith.schedule.config import Config
from convsmith.target.registry import target

__all__ = [
    "Options",
    "build",
    "check_choices",
    "choice_options",
    "command",
    "problem_options",
    "read_one",
    "read_problems",
    "short_config",
]

Options: TypeAlias = Mapping[str, str | bool | None]
"""Of `problem_options`: a text, or whether a flag is given."""

F = TypeVar("F", bound=Callable[..., Any])

_KINDS = ("conv", "deconv", "matmul")

_LINE_OPTIONS = {
    "--dir": "FWD_D (forward), FWD_B (with bias), FWD_I; BWD_D, BWD_W or BWD_WB (gradients).",
    "--dt": "Types of source, weights and destination, such as bf16 or u8:s8:f32.",
    "--bia-dt": "Type of the bias; it gives a matrix product one.",
    "--bia-mask": "Axes along which the bias of a matrix product varies, such as 2.",
    "--bits": "Bits of the entries that a matrix product multiplies, such as 7:5.",
    "--rounding": "How entries get fewer bits: nearest, or probabilistic.",
    "--mb": "Batch.",
    "--stag": "Layout of the source, such as abx, axb, aBcd16b.",
    "--wtag": "Layout of the weights.",
    "--dtag": "Layout of the destination.",
    "--strides": "Strides of source, weights and destination, such as 6400x1x320x32::.",
    "--attr-scales": "Scales, such as src:common:0.25+wei:per_oc.",
    "--attr-zero-points": "Zero points, such as src:common:2.",
    "--attr-post-ops": "Post-ops, such as relu or sum+clip:0:6.",
}


def problem_options(command: F) -> F:
    """benchdnn's options of a problem, for lines that do not say them."""
    for name, text in reversed(_LINE_OPTIONS.items()):
        command = click.option(name, metavar="TEXT", help=text)(command)
    for kind in reversed(_KINDS):
        text = "Lines are matrix products." if kind == "matmul" else f"Lines are {kind}olutions."
        command = click.option(f"--{kind}", is_flag=True, help=text)(command)
    return command


def choice_options(command: F) -> F:
    """--threads, --isa, --config."""
    command = click.option("--config", metavar="CONFIG", help="Every decision, as `explain` prints them.")(command)
    command = click.option("--isa", metavar="NAME", help="Instruction set (see `convsmith machine`).")(command)
    threads = click.IntRange(1, MOST_THREADS)
    return click.option("--threads", type=threads, metavar="N", help="Threads; by default all CPUs.")(command)


def read_problems(source: str, options: Options, layout: str | None) -> list[Problem]:
    """The problems that `source` names: a suite, `-` (standard input), a file, or a descriptor with options.

    `options` (of `problem_options`) and `layout` (of source and destination) hold where the lines do not say.
    UsageError names file and line.
    """
    if source in SUITES:
        problems: list[Problem] = list(suite(source))
        given = {option: text for option, text in options.items() if text}
        problems = [parse_problem(_line(str(p), given)) for p in problems] if given else problems
    elif source == "-" or Path(source).is_file():
        problems = parse_problems(_with_options(_read(source), options), "standard input" if source == "-" else source)
        if not problems:
            raise UsageError(f"{source}: no descriptor in it", code="no-problem")
    else:
        problems = [_descriptor(source, options)]
    return [_laid_out(problem, layout) for problem in problems] if layout else problems


def read_one(descriptor: str, options: Options, layout: str | None) -> Problem:
    """The problem of a descriptor with options."""
    problem = _descriptor(descriptor, options)
    return _laid_out(problem, layout) if layout else problem


def check_choices(isa: str | None, config: str | None) -> None:
    """Raise now what would be wrong with every problem, the settings of defaults included."""
    default_threads()
    if config is not None:
        isa = Config.parse(config).isa
    target(isa or settings.isa)


def build(problem: Problem, threads: int | None, isa: str | None, config: str | None) -> Kernel:
    """The kernel that the options ask for."""
    return compile_kernel(problem, threads=threads, isa=isa, config=config)


def command(verb: str, problem: Problem, threads: int | None, isa: str | None, config: str | None) -> str:
    """The command that does `verb` to this problem alone."""
    words = (*problem.options(), replace(problem, name=None).descriptor())
    return trace.command(verb, *words, threads=threads, isa=isa, config=config)


def short_config(kernel: Kernel) -> str:
    """The decisions that matter most, in a table's column: `oc ow28,oc16` is lanes along oc and a tile of 28 x 16."""
    config = kernel.config
    if kernel.artifact is None:
        return "-"
    words = [config.lane, ",".join(f"{name}{size}" for name, size in config.tile) or "-"]
    return " ".join(words if config.realise == "peel" else [*words, config.realise])


def _descriptor(text: str, options: Options) -> Problem:
    try:
        return parse_problem(_line(text, {option: value for option, value in options.items() if value}))
    except UsageError as error:
        if error.code == "bad-descriptor" and ("/" in text or "." in text):
            raise UsageError(f"{text}: no such file, and no descriptor: {error}", code=error.code) from None
        if error.code == "bad-descriptor":
            legal = f"legal are {', '.join(SUITES)}, a file, - and descriptors such as mb1ic64ih56oc64oh56kh3ph1"
            raise UsageError(f"{error}; {legal}", code=error.code) from None
        raise


def _read(source: str) -> str:
    try:
        if source == "-":
            return sys.stdin.read()
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not a text file: {error}", code="bad-file") from None
    except OSError as error:
        raise UsageError(f"{source}: cannot be read: {error.strerror}", code="bad-file") from None


def _with_options(text: str, options: Options) -> str:
    """The text with options before each line that has none of that name."""
    given = {option: value for option, value in options.items() if value}
    if not given:
        return text
    return "\n".join(_line(line, given) if line.split("#")[0].strip() else line for line in text.splitlines())


def _line(line: str, given: Options) -> str:
    if not given:
        return line
    has = {word[2:].partition("=")[0] for word in line.split() if word.startswith("--")}
    words = []
    for option, value in given.items():
        name = option.replace("_", "-")
        if name not in has and not (name in _KINDS and has & set(_KINDS)):
            words.append(f"--{name}" if value is True else f"--{name}={value}")
    return " ".join([*words, line.strip()])


def _laid_out(problem: Problem, layout: str) -> Problem:
    """With that layout where a convolution leaves it open; matrices stay as they are."""
    if not isinstance(problem, Conv):
        return problem
    changes: dict[str, Any] = {option: layout for option in ("stag", "dtag") if getattr(problem, option) == ANY}
    return replace(problem, **changes)
