"""`convsmith bench`: verify kernels and time them beside the measured peak and other libraries, in one run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol

import click
import numpy as np

from convsmith.cli.bench_html import bench_html
from convsmith.cli.bench_json import as_json, earlier_rows, means_of, problem_key, row_data, versions_of
from convsmith.cli.bench_model import bench_model, check_model_options, model_profiler
from convsmith.cli.bench_page import Page, Row
from convsmith.cli.bench_report import LAYERS
from convsmith.cli.bench_report import report as report_of
from convsmith.cli.distribution import LEVEL, check_picture, distribution, draw
from convsmith.cli.models import ModelInputs, input_option, is_model
from convsmith.cli.options import Duration
from convsmith.cli.output import STATUS, error_line, exit_status, note, progress, write_file
from convsmith.cli.problems import (
    Listed,
    ProblemCommand,
    build,
    check_choices,
    choice_options,
    command,
    problem_options,
    read_lines,
    read_problems,
    read_suite,
    target_of,
)
from convsmith.codegen import llvm_bind
from convsmith.compiler.service import faults
from convsmith.diag.errors import ConvsmithError, UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.machine.host import cpu
from convsmith.machine.registry import scalable_level
from convsmith.machine.registry import target as known_target
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.levels import hold
from convsmith.measure.peak import peak_sample, peak_types
from convsmith.measure.peers import PEERS, TRANSFORMED, installed, make_peer
from convsmith.measure.timing import ROUNDS, measure
from convsmith.measure.verification import computed, limits_of_libraries, narrow_limits, real_arrays, verify_kernel
from convsmith.page.document import check_page, write_page
from convsmith.problem.conv import Conv
from convsmith.problem.data import random_arrays
from convsmith.problem.problem import Problem
from convsmith.problem.suites import SUITES
from convsmith.problem.suites.spaces import EVERY, SPACES
from convsmith.problem.suites.spaces import space as known_space
from convsmith.problem.types import is_integer, precision
from convsmith.runtime.loading import device_name

__all__ = ["bench", "bench_kernel"]


AGAIN = 7
"""Rounds in which a problem of a suite is measured again that seems slower than a library."""


@click.command(cls=ProblemCommand, epilog="Example: convsmith bench resnet50 --threads 1 --vs torch,onnxruntime")
@click.argument("source", metavar="[NETWORK|DESCRIPTOR|FILE|MODEL.onnx|-]", required=False)
@choice_options
@problem_options
@input_option
@click.option(
    "--vs", metavar="LIBRARIES", default="",
    help=f"Libraries to compare with: {','.join(PEERS)}; of npm onnxruntime-web,tfjs.",
)
@click.option("--engine", metavar="NAME", help="Of WebAssembly: node (the default) or chromium.")
@click.option("--npm", metavar="FOLDER", help="Where node_modules is, for libraries of npm.  [default: this one]")
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True, help="Rounds of samples.")
@click.option("--suite", metavar="NAME", help=f"Problems of a suite in a space: {', '.join(SUITES)}.")
@click.option("--space", metavar="NAME", help=f"With --suite: {', '.join(SPACES)}.  [default: {EVERY}]")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="With --suite: only N of its problems.")
@click.option("--seed", default=0, show_default=True, help="With --sample: which ones.")
@click.option("--budget", type=Duration(), help="Start no further problem after this time, such as 30s or 2m.")
@click.option("--torch", metavar="MODULE:FUNCTION", help="The convolutions of the model and inputs it returns.")
@click.option("--resume", is_flag=True, help="With --suite and --json: add to the rows of the file, if it exists.")
@click.option("--png", "picture", metavar="FILE", help="Draw the roofline with all problems, and their ratios.")
@click.option("--html", metavar="FILE", help="Write a page for a browser: a table that sorts, and pictures.")
@click.option(
    "--report", metavar="FILE",
    help="Write one text file to send: machine, versions, rows. Without problems, those of a short list on one thread, "
    "beside all installed libraries.",
)  # fmt: skip
@click.option("--wide", is_flag=True, help="All columns and names, whatever the width.")
@click.option("--json", "json_file", metavar="FILE", help="Write all of it, with the machine; - is stdout.")
def bench(
    source: str | None, threads: int | None, target: str | None, config: str | None, layout: str, vs: str,
    rounds: int, suite: str | None, space: str | None, sample: int | None, seed: int, budget: float | None,
    resume: bool, inputs: ModelInputs, torch: str | None, picture: str | None, html: str | None, wide: bool,
    json_file: str | None, engine: str | None, npm: str | None, report: str | None,
    **options: str | bool | None,
) -> None:  # fmt: skip
    """Verify and time kernels: a network (resnet50, mobilenet_v2, vgg16), a descriptor, or a file of descriptors.

    Or a model: each convolution of MODEL.onnx, with its real shapes, beside ONNX Runtime's kernel of that node; with
    --torch, each one of a PyTorch model beside PyTorch's.

    With --suite, instead of these: the problems of a suite in the directions, layouts and types of a --space, and the
    distribution of the results. A row that seems slower than a library is measured again, in more rounds, and once
    more after all others. With --resume, runs with a --budget, or with several seeds, make one table.

    % of peak is of the multiply-add peak that is measured in the same rounds, in the types that are multiplied; some
    levels have none for integers. Taps that meet padding count as work. A library's column is its time divided by ours
    (above 1: we are faster). Each row is printed when it is measured; where standard output is no terminal, also to
    standard error.

    Kernels for WebAssembly run in an --engine, in one process or one page, beside libraries of npm.
    """
    in_engine = _is_in_engine(target, config)
    check_choices(target, config, runs=not in_engine)
    if not in_engine and (engine or npm):
        given = "--engine" if engine else "--npm"
        raise UsageError(f"{given} is for kernels of WebAssembly: legal with --target wasm32", code="bad-option")
    is_listed = [source, suite, torch] == [None] * 3 and report is not None
    if not is_listed and [source, suite, torch].count(None) != 2:
        raise UsageError(
            "legal is one of a problem, a list of problems, a model, --suite=NAME and --torch=MODULE:FUNCTION",
            code="no-problem",
        )
    if picture is not None:
        check_picture(picture)
    if html is not None:
        check_page(html)
    if torch is not None or (source is not None and is_model(source)):
        others = dict(config=config, vs=vs, suite=suite, sample=sample, resume=resume, png=picture, report=report)
        check_model_options(str(torch or source), {**others, **options}, json_file)
        ways = dict(threads=threads, rounds=rounds, target=target, layout=layout)
        profiler = model_profiler(str(torch or source), torch is not None, inputs, **ways)
        click.get_current_context().exit(bench_model(profiler, budget, wide, json_file, html))
    where = SPACES[EVERY] if suite is None else known_space(space or EVERY)
    if space is not None and suite is None:
        raise UsageError(f"--space={space} is a space of the problems of a suite: legal with --suite", code="bad-space")
    if suite is not None:
        target, threads = target or where.target, threads or where.threads
        check_choices(target, config, runs=not in_engine)
        listed = read_suite(suite, where, options, sample or 0, seed)
    elif is_listed:
        listed, threads = read_lines(LAYERS, options, layout), threads or 1
    else:
        listed = read_problems(str(source), options, layout)
    if report is not None:
        vs = vs or ",".join(filter(installed, PEERS))
    asked = list(dict.fromkeys(name.strip() for name in vs.split(",") if name.strip()))
    if json_file not in (None, "-") and not Path(str(json_file)).absolute().parent.is_dir():
        raise UsageError(f"--json={json_file}: there is no such directory", code="bad-file")
    if resume and (suite is None or json_file in (None, "-")):
        raise UsageError("--resume adds to the rows of a suite: legal with --suite=NAME and --json=FILE", code="resume")
    with ExitStack() as stack:
        how: _Bench
        if in_engine:
            with import_lock:
                from convsmith.cli.bench_web import WebBench
            level = known_target(target_of(target, config))
            how, threads = WebBench.of(level, config, threads, engine, npm, asked, rounds, stack), 1
        else:
            again = AGAIN if suite is not None else 0
            how = _Timing.of(threads, target, config, asked, rounds, where.is_dynamic, again)
        libraries = how.libraries
        here = [name for name, version in libraries.items() if version is not None]
        earlier = earlier_rows(str(json_file), libraries, rounds) if resume else []
        known = {row["problem"] for row in earlier}
        left = [problem for problem in listed.problems if problem_key(problem) not in known]
        page = Page(listed, asked, data_only=json_file == "-", wide=wide)
        heading = f"{how.where}, {listed.heading(threads, config)}"
        page.head(heading)
        rows, interrupted = _rows(listed, left, how, page, budget)
        wanted = len(left)
        other = _other_level(target, config) if is_listed else None
        if other is not None and isinstance(how, _Timing) and not interrupted:
            page.heading(f"with {other.name}, whose vectors are as long as the machine has them:")
            wanted += len(left)
            later, interrupted = _rows(listed, left, how._replace(target=other.name), page, budget)
            rows += later
        if suite is not None and not interrupted:
            rows, interrupted = _with_slower_again(listed, rows, how, page)
    measured = list(map(row_data, rows))
    page.foot(rows, how.advice, means_of(measured, here))
    every = [*earlier, *measured]
    if suite is not None and json_file != "-":
        for line in distribution(every, here):
            note(line)
    if picture is not None:
        draw(every, here, picture)
    if html is not None:
        title = f"convsmith bench {source or suite}"
        write_page(html, bench_html(title, heading, every, libraries, means_of(every, here)))
    if len(rows) < wanted:
        why, before = "interrupted" if interrupted else "the budget is spent", len(listed.problems) - len(left)
        error_line(f"{why}: {before + len(rows)} of {before + wanted} measured")
    content = as_json(every, libraries, rounds, layout, len(rows) == wanted)
    if json_file is not None:
        write_file(json_file, json.dumps(content, indent=1), "--json=")
    if report is not None:
        write_file(report, report_of(heading, content), "--report=")
    click.get_current_context().exit(130 if interrupted else _status(rows))


def _other_level(target: str | None, config: str | None) -> Machine | None:
    """Return the level that a report measures beside the default: the highest one with scalable vectors, which is never
    the default; None if the user names a level, or the machine has none.
    """
    return scalable_level() if target_of(target, config) is None else None


def _is_in_engine(target: str | None, config: str | None) -> bool:
    """Return whether kernels run in an engine of WebAssembly."""
    level = target_of(target, config)
    return level is not None and llvm_bind.makes_modules(known_target(level).triple)


def _rows(
    listed: Listed, problems: Sequence[Problem], how: _Bench, page: Page, budget: float | None
) -> tuple[list[Row], bool]:
    """Measure and print `problems`; return their rows, and whether the user has interrupted it."""
    rows: list[Row] = []
    end = inf if budget is None else time.perf_counter() + budget
    with progress(len(problems)) as bar:
        try:
            for problem in problems:
                if time.perf_counter() >= end:
                    break
                bar.start(listed.text(problem))
                rows.append(how.row(problem))
                click.get_current_context().meta[STATUS] = _status(rows)
                with bar.aside():
                    page.row(rows[-1])
                bar.advance()
        except KeyboardInterrupt:
            return rows, True
    return rows, False


def _with_slower_again(listed: Listed, rows: list[Row], how: _Bench, page: Page) -> tuple[list[Row], bool]:
    """Measure and print the rows again that seem slower than a library: what slowed the machine may have ended.

    Return all rows, with the later times of these, and whether the user has interrupted it.
    """
    slower = [row.problem for row in rows if _seems_slower(row)]
    if not slower:
        return rows, False
    page.heading("measured again, because these seemed slower than a library:")
    later, interrupted = _rows(listed, slower, how, page, None)
    times = {problem_key(row.problem): row for row in later}
    return [times.get(problem_key(row.problem), row) for row in rows], interrupted


def _seems_slower(row: Row) -> bool:
    """Return whether a library computes the problem of ``row`` in less time."""
    return row.times is not None and any(peer.speedup.median < LEVEL for peer in row.times.peers.values())


class _Bench(Protocol):
    """Compiles and times problems."""

    @property
    def where(self) -> str:
        """The machine or engine that runs the kernels, for the heading."""
        ...

    @property
    def libraries(self) -> Mapping[str, str | None]:
        """The libraries that are asked for, with their versions; None for one that is not installed."""
        ...

    @property
    def advice(self) -> list[str]:
        """Remarks on libraries: how to install those that are missing."""
        ...

    def row(self, problem: Problem) -> Row:
        """Return the row of a problem, or the error that prevents it."""
        ...


class _Timing(NamedTuple):
    """Kernels of this machine: the options of `bench`, among them the libraries `asked` for, of which ``peers`` are
    installed. Those that are ``free`` use the highest level of this machine.
    """

    threads: int | None
    target: str | None
    config: str | None
    asked: Sequence[str]
    peers: Sequence[str]
    free: Sequence[str]
    rounds: int
    is_dynamic: bool = False
    again: int = 0

    @classmethod
    def of(
        cls, threads: int | None, target: str | None, config: str | None, asked: Sequence[str], rounds: int,
        is_dynamic: bool, again: int,
    ) -> _Timing:  # fmt: skip
        """Return it, with the libraries loaded, before kernels are: both share one OpenMP runtime then."""
        here = [name for name in asked if installed(name)]
        level = target_of(target, config)
        free = hold(level, here) if level is not None and known_target(level).device is None else ()
        for name in here:
            for module in PEERS[name].modules:
                import_module(module)
        return cls(threads, target, config, asked, here, free, rounds, is_dynamic, again)

    @property
    def where(self) -> str:
        name = target_of(self.target, self.config)
        device = known_target(name).device
        if device is None:
            return cpu().model
        try:
            return f"{name} on {device_name(device.runtime)}"
        except UnsupportedError:  # each row says why
            return f"{name} on no device"

    @property
    def libraries(self) -> Mapping[str, str | None]:
        return versions_of(self.asked, self.peers)

    @property
    def advice(self) -> list[str]:
        absent = [name for name in self.asked if name not in self.peers]
        install = "in a clone of convsmith, pip install '.[peers]' brings it"
        level = target_of(self.target, self.config)
        held = [f"{name} cannot be held to {level}: it uses the highest level of this machine" for name in self.free]
        return [*(f"{name} is not installed: {install}" for name in absent), *held]

    def row(self, problem: Problem) -> Row:
        return _row(problem, self)


def bench_kernel(kernel: CompiledKernel, peers: Sequence[str] = (), rounds: int = ROUNDS, again: int = 0) -> Row:
    """Verify `kernel` on integer data, then time it in place with packed weights, beside the peak and `peers`.

    A kernel that is slower than a peer is timed ``again`` in that many rounds, whose times count.
    """
    problem = kernel.problem
    row = Row(problem, kernel, verify_kernel(kernel))
    if kernel.artifact is None:
        return row
    arrays = real_arrays(problem, limits=limits_of_libraries(kernel) if peers else narrow_limits(kernel))
    threads, target = kernel.config.threads, kernel.config.target
    calls = {}
    for name in peers:
        try:
            _check_peer(name, kernel)
            calls[name] = make_peer(name, problem, arrays, threads).call
        except Exception as error:  # a library that fails on a problem must not stop the run
            row.missing[name] = str(error).partition("\n")[0]
    types = row.peak_types = peak_types(problem, kernel.target)
    peak = None if types is None else lambda: peak_sample(target, threads, types).gflops
    call, _ = bound_call(problem, kernel, aligned_inputs(problem, arrays))
    row.times = measure(call, problem.flops_dense, peak, calls, rounds, threads)
    if again and _seems_slower(row):
        row.times = measure(call, problem.flops_dense, peak, calls, again, threads)
    return row


def _check_peer(name: str, kernel: CompiledKernel) -> None:
    """Raise UnsupportedError if the library `name` and the kernel disagree on integer data, beyond the error of those
    that transform it.

    If the problem has several results, only the first is compared. Weights are within the limits of the kernel and of
    the machine's products of bytes, as those are that are timed: beyond these limits, instructions saturate that
    libraries use for all weights.
    """
    arrays = random_arrays(kernel.problem, limits=limits_of_libraries(kernel))
    peer = make_peer(name, kernel.problem, arrays, kernel.config.threads)
    peer.call()
    result, expected = peer.result(), next(iter(computed(kernel, arrays).values()))
    distance = np.abs(result.reshape(expected.shape) - expected)
    error = max(PEERS[name].error, TRANSFORMED if kernel.config.has_transform else 0.0)
    if error and not is_integer(kernel.problem.dst_type):
        error += precision(kernel.problem.dst_type)  # sums that differ may be rounded apart
    differing = int((distance > error * np.abs(expected).max(initial=0)).sum())
    if differing:
        raise UnsupportedError(
            f"{differing} of {expected.size} elements of its result differ from convsmith's", code="peer-result"
        )


def _row(problem: Problem, how: _Timing) -> Row:
    try:
        with faults(command("bench", problem, how.threads, how.target, how.config)):
            dynamic = None
            if how.is_dynamic and isinstance(problem, Conv):
                dynamic = ",".join(["mb", *(f"i{axis}" for axis in problem.axes)])
            kernel = build(problem, how.threads, how.target, how.config, dynamic)
            return bench_kernel(kernel, how.peers, how.rounds, how.again)
    except ConvsmithError as error:
        return Row(problem, error=error)


def _status(rows: Sequence[Row]) -> int:
    """Return 1 after a mismatch or a fault of convsmith, 2 if a problem or config was not legal, otherwise 0."""
    if any(row.verdict and not row.verdict.ok for row in rows):
        return 1
    return max((exit_status(row.error) for row in rows if row.error), default=0)
