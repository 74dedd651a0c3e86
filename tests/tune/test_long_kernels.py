"""The time to compile does not grow with the extents of a problem: kernels, strides and pads as long as images.

Time is counted in calls of functions, which are the same on every machine. A compilation that exceeds its number ends.
"""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import pytest
from drawn_layers import random_long_layer, random_machine

from convsmith.compiler.driver import lower
from convsmith.frontend.nothing import has_empty_tensor
from convsmith.ir.intern import one_table
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import Problem
from convsmith.problem.lines import parse_problem
from convsmith.schedule.planned import plan_for
from convsmith.tune.compile import choose

CALLS = 4_000_000
"""Maximum number of calls of functions for one kernel: some three times that of the slowest layer of a network."""


class TooManyCalls(Exception):
    """A compilation that calls more functions than `CALLS`."""


def calls_of_choosing(problem: Problem, machine: Machine, threads: int) -> int:
    """Return the calls of functions from the choice of a config to LLVM's text; TooManyCalls beyond `CALLS`."""
    count = 0

    def called(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")
        if count > CALLS:
            sys.setprofile(None)
            raise TooManyCalls(f"{frame.f_code.co_filename}:{frame.f_lineno}")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        config = choose(problem.canonical(), machine, threads, dynamic=False)
        with one_table():
            lower(plan_for(problem.canonical(), config, machine))
    finally:
        sys.setprofile(before)
    return count


def check(numbers: range) -> None:
    failures = []
    for number in numbers:
        rng = random.Random(f"long{number}")
        problem, (costs, machine), threads = random_long_layer(rng), random_machine(rng), rng.choice((1, 2))
        if has_empty_tensor(problem):
            continue
        try:
            calls_of_choosing(problem, machine, threads)
        except Exception as error:
            words = f"--target {machine.name} (costs of {costs}) --threads {threads} {problem}"
            failures.append(f"draw {number}: {type(error).__name__}: {error}\n    {words}")
    assert not failures, "\n".join(failures)


def test_a_long_kernel_has_no_more_calls_than_a_short_one() -> None:
    check(range(12))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_a_long_kernel_has_no_more_calls_than_a_short_one_at_length(chunk: int) -> None:
    check(range(chunk * 200, (chunk + 1) * 200))


WINDOWS = (
    "mb1ic4iw{n}oc4ow1kw{n}pw0", "mb1ic4iw{n}oc4kw3sw{n}pw1", "mb1ic4iw{n}oc4kw{m}sw{m}pw0", "mb1ic1iw{n}oc1kw{n}pw{m}",
    "mb1ic4iw{n}oc4kw3pw{n}dw{m}", "mb1ic4iw{n}oc4kw{m}sw2pw0",
    "mb1ic4ih{n}iw8oc4kh{m}kw3sh{m}pw1",
)  # fmt: skip


@pytest.mark.sampled(9, wide=1, every="options window")
@pytest.mark.parametrize("options", ["", "--dir=BWD_D ", "--dir=BWD_W ", "--deconv ", "--deconv --dir=BWD_D "])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_hundred_million_pixels(options: str, window: str) -> None:
    """The work of a compilation does not grow with the extents."""
    for tag in ("abx", "axb"):
        problem = parse_problem(f"{options}--stag={tag} --dtag={tag} {window.format(n=100_000_000, m=50_000_000)}")
        assert calls_of_choosing(problem, target("avx512"), 2) < CALLS


LISTED = (
    ("avx512", "--dir=BWD_W --stag=abc --dtag=acb g4mb1ic16iw1oc16ow3kw1pw1dw3"),
    ("avx512", "--deconv --dir=BWD_W --stag=acb --dtag=abc g4mb1ic16iw3oc16ow1kw1pw1"),
    ("avx512_amx", "--deconv --dt=bf16 --stag=abx --dtag=axb mb1ic192ih3oc32oh192kh192sh96ph96"),
    ("avx512_amx", "--deconv --dt=bf16 --stag=axb --dtag=axb mb1ic192iw3oc32ow200000kw200000sw100000pw100000"),
    ("avx512", "--dir=BWD_D --stag=abx --dtag=abx mb1ic4iw100000000oc4kw50000000sw2pw0"),
)
"""Gathered pixels of a gradient with tiles of all of them; parts of taps, each of which meets some residue classes
only; a cache tile of a reduction loop beside residue classes."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level, line", LISTED)
def test_a_default_config_fits_long_loops(level: str, line: str) -> None:
    for threads in (1, 2):
        assert calls_of_choosing(parse_problem(line), target(level), threads) < CALLS
