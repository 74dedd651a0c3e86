"""Arguments of the commands: problems (a network, a descriptor, a file) and how to compile them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import click

from convsmith.compiler.service import line_words
from convsmith.diag import trace
from convsmith.diag.choices import suggestion
from convsmith.diag.errors import UsageError
from convsmith.diag.files import MAX_TEXT, read_text
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.diag.settings import MAX_THREADS, settings
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.layout.tags import ANY
from convsmith.machine.registry import host_target
from convsmith.machine.registry import target as known_target
from convsmith.problem.batch import Item, read_batch, split_words
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import KINDS, STAGES
from convsmith.problem.problem import Problem
from convsmith.problem.suites import SUITES, suite
from convsmith.problem.suites.spaces import SuiteSpace, suite_in
from convsmith.runtime.threads import default_threads
from convsmith.schedule.config import Config
from convsmith.schedule.given import OPTION
from convsmith.schedule.wish import Wish, read_decisions

__all__ = [
    "Listed",
    "Options",
    "ProblemCommand",
    "build",
    "check_choices",
    "choice_options",
    "command",
    "problem_options",
    "read_lines",
    "read_problems",
    "read_suite",
    "short_config",
    "target_of",
    "with_layout",
]

Options: TypeAlias = Mapping[str, str | bool | None]
"""Values of `problem_options`: a text, or whether a flag is given."""

F = TypeVar("F", bound=Callable[..., Any])

_LAYOUTS = {"axb": "channels last", "abx": "channels first", ANY: "channels first"}
"""Layout tags in words."""

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
    "--attr-acc-mode": "Types that may hold sums: any and f16 permit f16 where both factors are f16.",
    "--accuracy": "strict permits sums of products only; relaxed (the default) and any permit transforms.",
    "--workspace": "Most bytes beside the tensors, packed copies included, such as 512K; by default no bound.",
}


class ProblemCommand(click.Command):
    """A command that accepts benchdnn's problem options.

    A quoted line, such as "--dt=f16 mb1ic8iw8oc8kw1", is split into its words; an underscore in the name of an option
    becomes a dash.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse `args` like click, after splitting quoted lines into words."""
        rest = super().parse_args(ctx, [word for arg in args for word in _words_of_line(arg)])
        schedule = ctx.params.pop("schedule", None)
        if schedule is not None:
            if ctx.params["config"] is not None:
                raise UsageError("--schedule and --config both decide; legal is one of them", code="schedule")
            ctx.params["config"] = f"{OPTION}{schedule}"
        return rest


def _words_of_line(argument: str) -> list[str]:
    """Return the words of `argument` if it begins with a problem option, otherwise `argument` itself.

    The line of a chain stays one word, which no parser takes for an option.
    """
    words = split_words(argument)
    if STAGES in words:
        return [" ".join(["", *words])]
    if not words or not _is_of_problems(_dashed(words[0])):
        return [argument]
    return [_dashed(word) if _is_of_problems(_dashed(word)) else word for word in words]


def _is_of_problems(word: str) -> bool:
    return word.partition("=")[0] in _LINE_OPTIONS or (word.startswith("--") and word[2:] in KINDS)


def _dashed(word: str) -> str:
    name, equals, text = word.partition("=")
    return name.replace("_", "-") + equals + text


def problem_options(command: F) -> F:
    """Add benchdnn's problem options; they apply to lines that do not set them."""
    for name, text in reversed(_LINE_OPTIONS.items()):
        command = click.option(name, metavar="TEXT", help=text)(command)
    for kind in reversed(KINDS):
        text = "Lines are matrix products." if kind == "matmul" else f"Lines are {kind}olutions."
        command = click.option(f"--{kind}", is_flag=True, help=text)(command)
    return command


def choice_options(command: F) -> F:
    """Add --threads, --target, --config, --schedule, which becomes a text of --config, and --layout."""
    text = "Layout of source and destination where a line leaves it open: axb has channels last, abx first."
    command = click.option("--layout", default="axb", show_default=True, help=text)(command)
    text_of_config = "Every decision, as `explain` prints them; or some, such as --realise=mask."
    command = click.option("--config", metavar="CONFIG", help=text_of_config)(command)
    text = "A function of a Python file that schedules the kernel, in place of a config (docs/schedules.md)."
    command = click.option("--schedule", metavar="FILE.py:FUNCTION", help=text)(command)
    command = click.option("--target", metavar="NAME", help="Instruction set (see `convsmith machine`).")(command)
    threads = click.IntRange(1, MAX_THREADS)
    return click.option("--threads", type=threads, metavar="N", help="Threads; by default all CPUs.")(command)


@record(frozen=True)
class Listed:
    """The problems given to a command, and the defaults that their lines rely on.

    `layout` is the command's layout, None if every line sets its own; `batch_assumed` is true if a line gives no batch.
    `nodes` are the names of the nodes of a model, for each problem; without a model it is empty.
    """

    problems: tuple[Problem, ...]
    layout: str | None
    batch_assumed: bool
    nodes: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def shared(self) -> tuple[str, ...]:
        """The options that all problems share, except the options that `layout` implies."""
        first, *others = (problem.options() for problem in self.problems)
        shared = (option for option in first if all(option in options for options in others))
        return tuple(option for option in shared if option not in self._implied)

    @property
    def _implied(self) -> tuple[str, ...]:
        """The options of a convolution that `layout` implies."""
        return () if self.layout is None else tuple(f"--{tag}={self.layout}" for tag in ("stag", "dtag"))

    def heading(self, threads: int | None, config: str | None) -> str:
        """Return one line with the properties that all problems share: threads, layout, batch, options."""
        decided = None if config is None else read_decisions(config).threads
        count = threads or decided or default_threads()
        words = [f"{count} thread{'s' * (count > 1)}"]
        if self.layout is not None:
            meaning = _LAYOUTS.get(self.layout)
            words.append(f"--layout={self.layout}" + (f" ({meaning})" if meaning else ""))
        if self.batch_assumed:
            words.append("a batch of 2 where no mb is given")
        return ", ".join([*words, *([" ".join(self.shared)] if self.shared else [])])

    def text(self, problem: Problem) -> str:
        """Return the problem without its name and without the options that the heading shows."""
        said = self.shared + (self._implied if isinstance(problem, Conv | Chain) else ())
        stages = problem.stages if isinstance(problem, Chain) else (problem,)
        words = ([*(o for o in p.options() if o not in said), replace(p, name=None).descriptor()] for p in stages)
        whole = [o for o in problem.options() if o not in said] if isinstance(problem, Chain) else []
        return " ".join([*whole, f" {STAGES} ".join(map(" ".join, words))])


def read_problems(source: str, options: Options, layout: str, verb: str = "") -> Listed:
    """Return the problems that `source` names: a suite, `-` (standard input), a file, or a descriptor with options.

    `options` (from `problem_options`) and `layout` (of source and destination) apply to lines that do not set their
    own. `verb` is the name of a command that takes a single problem. UsageError names file and line.
    """
    given = _given(options)
    if source in SUITES:
        items = list(read_batch("\n".join(map(str, suite(source))), source if given else None, given))
    elif source == "-":
        items = list(read_batch(_read("-"), "standard input", given, _batch_file))
    elif os.path.exists(source):
        items = list(read_batch(_read(source), source, given, _batch_file))
    else:
        items = _descriptor(source, given, one=bool(verb))
    if not items:
        raise UsageError(f"{source} contains no descriptor", code="no-problem")
    if verb and len(items) > 1:
        first = str(replace(items[0].problem, name=None))
        raise UsageError(
            f"{source} stands for {len(items)} problems; `{verb}` takes one, such as {first!r}", code="several-problems"
        )
    return _listed(items, layout)


def read_lines(text: str, options: Options, layout: str) -> Listed:
    """Return the problems of the lines of a list that ships with a command."""
    return _listed(list(read_batch(text, None, _given(options))), layout)


def _given(options: Options) -> dict[str, str]:
    """Return the options that are given, by their names in lines."""
    return {name.replace("_", "-"): "" if text is True else str(text) for name, text in options.items() if text}


def read_suite(name: str, where: SuiteSpace, options: Options, sample: int, seed: int) -> Listed:
    """Return the problems of the suite `name` in a space, or a `sample` of them.

    UsageError if options of problems are given too, because a space sets all of them.
    """
    given = [f"--{option.replace('_', '-')}" for option, text in options.items() if text]
    if given:
        raise UsageError(f"--suite={name} sets every option of its problems: legal is no {given[0]}", code="bad-suite")
    return Listed(suite_in(suite(name), where, sample, seed), None, False)


def check_choices(target: str | None, config: str | None, runs: bool) -> None:
    """Raise the errors that would occur for every problem, illegal settings included.

    `runs` states whether the command runs kernels, for which the machine must have the level.
    """
    settings.validate()
    (host_target if runs else known_target)(target_of(target, config))


def target_of(target: str | None, config: str | None) -> str | None:
    """Return the name of the level that the options choose; None for the host's default one."""
    decided = "" if config is None else read_decisions(config).target
    return decided or target or settings.target


def build(
    problem: Problem, threads: int | None, target: str | None, config: str | None, dynamic: str | None = None
) -> CompiledKernel:  # fmt: skip
    """Compile the kernel that the options describe; sizes of the dims that `dynamic` names are known at the call only.
    """
    return compile_kernel(problem, threads=threads, target=target, config=config, dynamic=dynamic)


def command(
    verb: str, problem: Problem, threads: int | None, target: str | None, config: str | None, **options: object
) -> str:
    """Return the shell command that runs `verb` on `problem` alone, with further `options`."""
    if config is None or isinstance(read_decisions(config), Wish):
        threads, target = threads or settings.threads, target or settings.target
    return trace.command(verb, *line_words(problem), threads=threads, target=target, config=config, **options)


def short_config(kernel: CompiledKernel) -> str:
    """Return the main decisions of a config for a table: `oc ow28,oc16` has lanes along oc and a register tile of 28 x
    16.
    """
    config = kernel.config
    if kernel.artifact is None:
        return "-"
    if not isinstance(config, Config):
        return str(config).rpartition("/")[2]
    words = [config.lane, ",".join(f"{name}{size}" for name, size in config.tiles_at("register")) or "-"]
    return " ".join(words if config.realise == "peel" else [*words, config.realise])


def _descriptor(text: str, given: Mapping[str, str], one: bool) -> list[Item]:
    try:
        return list(read_batch(text, None, given))
    except UsageError as error:
        if error.code != "bad-descriptor":
            raise
        if "/" in text or "." in text:
            raise UsageError(f"{text} is neither a file nor a descriptor: {error}", code=error.code) from None
        example = "64x256:256x32" if "matmul" in given else "mb1ic64ih56oc64oh56kh3ph1"
        networks = [] if one or "matmul" in given else SUITES
        legal = f"{', '.join([*networks, 'a file'])}, - and descriptors such as {example}"
        meant = suggestion(text, networks)
        raise UsageError(f"{error}; legal are {legal}{meant}", code=error.code) from None


def _batch_file(name: str, source: str | None) -> tuple[str, str]:
    """Return path and text of the file `name` that `source` includes; it is searched beside `source`, then in this
    directory.
    """
    beside = os.path.join(os.path.dirname(source or ""), name)
    path = beside if os.path.exists(beside) else name
    return path, _read(path)


def _read(source: str) -> str:
    if source != "-":
        return read_text(source)
    try:
        text = sys.stdin.read(MAX_TEXT + 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not a text file: {error}", code="bad-file") from None
    if len(text) > MAX_TEXT:
        raise UsageError(f"standard input has more than {MAX_TEXT} characters", code="bad-file")
    return text


def with_layout(problem: Problem, layout: str) -> Problem:
    """Return the problem with ``layout`` in place of open layouts of source and destination."""
    stages = problem.stages if isinstance(problem, Chain) else (problem,)
    ends = {"stag": stages[0], "dtag": stages[-1]}
    open_ends = (tag for tag, stage in ends.items() if isinstance(stage, Conv) and getattr(stage, tag) == ANY)
    changes: dict[str, Any] = dict.fromkeys(open_ends, layout)
    return replace(problem, **changes) if changes else problem


def _listed(items: Sequence[Item], layout: str) -> Listed:
    """Apply `layout` to convolutions that leave theirs open; matrix products stay unchanged."""
    problems, used = [], False
    for item in items:
        problem = item.problem
        problems.append(with_layout(problem, layout))
        used = used or problems[-1] != problem
    return Listed(tuple(problems), layout if used else None, any(item.batch_assumed for item in items))
