"""Spaces of problems: the options under which the problems of a suite are drawn, and the kernels that compute them.

A library may be level in f32 on one thread and slow everywhere else.  Each space varies one thing: types, the level of
the instruction set, threads, the batch, layouts, sizes of each call, epilogues, chains, or the amount of work.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import inf
from typing import NamedTuple

from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import shown
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import STAGES
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem

__all__ = ["EVERY", "SPACES", "SuiteSpace", "space", "suite_in"]

_DECONV = "deconv"
"""A way besides the directions: the forward deconvolution that swaps source and result."""
EVERY = "every"
_ALL = ("FWD_D", "BWD_D", "BWD_W", _DECONV)
_PLAIN = ("axb", "abx")
_POINTWISE, _DEPTHWISE = "a 1x1 convolution", "a depthwise 3x3 convolution"
_FOLLOWING = (_POINTWISE, _DEPTHWISE)
"""Second stages of chains."""


class SuiteSpace(NamedTuple):
    """The options of drawn problems, and of their runs: on ``threads``, at the level ``target`` or the default one,
    and, if it ``is_dynamic``, with batch and image sizes that are known at the call only.

    Each problem of a suite is drawn under each of the ``options``, ``directions``, ``layouts``, ``batches``, which
    replace its own, and ``following``, the second stages of chains.  ``work`` bounds the multiply-adds.
    """

    meaning: str
    options: tuple[str, ...] = ("",)
    directions: tuple[str, ...] = _ALL
    layouts: tuple[str, ...] = _PLAIN
    batches: tuple[int, ...] = ()
    following: tuple[str, ...] = ()
    work: tuple[float, float] = (3e6, 6e8)
    target: str | None = None
    threads: int = 1
    is_dynamic: bool = False


# The zero point of the result is even, so that it does not matter to ties whether it is added before rounding.
_BYTES = (
    "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
)

SPACES = {
    EVERY: SuiteSpace(
        "f32, bf16 and bytes, also in blocks of 16 channels", ("", "--dt=bf16", "--dt=u8:s8:s32"),
        layouts=(*_PLAIN, "aBx16b"), work=(0, inf),
    ),
    "f32": SuiteSpace("f32"),
    "forward": SuiteSpace("f32, no gradients", directions=("FWD_D", "deconv")),
    "f32-avx2": SuiteSpace("f32 at the level avx2", target="avx2"),
    "f32-2": SuiteSpace("f32 on two threads", threads=2),
    "bf16": SuiteSpace("bf16", ("--dt=bf16",)),
    "bf16-2": SuiteSpace("bf16 on two threads", ("--dt=bf16",), threads=2),
    "f16": SuiteSpace("f16", ("--dt=f16",)),
    "f64": SuiteSpace("f64", ("--dt=f64",)),
    "int8": SuiteSpace("bytes, with scales and zero points", (_BYTES,), ("FWD_D",)),
    "int8-avx2": SuiteSpace("the same at the level avx2", (_BYTES,), ("FWD_D",), target="avx2"),
    "batches": SuiteSpace("f32 in batches of 16 and 32", batches=(16, 32)),
    "blocked": SuiteSpace("f32 in blocks of 16 channels", directions=("FWD_D", "BWD_D", "BWD_W"), layouts=("aBx16b",)),
    "dynamic": SuiteSpace("f32, sizes known at the call", directions=("FWD_D",), is_dynamic=True),
    "epilogues": SuiteSpace("f32 with residual and relu", ("--attr-post-ops=sum+relu",), ("FWD_D",)),
    "chains": SuiteSpace("f32, chains of two", ("--attr-post-ops=relu",), ("FWD_D",), following=_FOLLOWING),
    "small": SuiteSpace("f32, below 3 million multiply-adds", work=(0, 3e6)),
    "large": SuiteSpace("f32, above 600 million multiply-adds", work=(6e8, 1e10)),
}  # fmt: skip


def space(name: str) -> SuiteSpace:
    """Return the space `name`, a key of `SPACES`. UsageError for an unknown name."""
    if name not in SPACES:
        raise UsageError(f"unknown space {shown(name)}: legal are {choices(name, SPACES)}", code="bad-space")
    return SPACES[name]


def suite_in(problems: Sequence[Conv], where: SuiteSpace, sample: int = 0, seed: int = 0) -> tuple[Problem, ...]:
    """Return the ``problems`` of a suite in a space, or a ``sample`` of that many, drawn by ``seed``.

    Combinations that are not legal or not available are left out.
    """
    batches, following = where.batches or (0,), where.following or ("",)
    ways = list(product(problems, where.options, where.directions, where.layouts, batches, following))
    if sample:
        random.Random(seed).shuffle(ways)
    found: dict[Problem, None] = {}
    for way in ways:
        made = _problem(*way)
        if where.is_dynamic and way[0].p != way[0].pr:
            continue  # by default, calls have the same pads at both ends
        if made is not None and where.work[0] <= made.flops_real / 2 < where.work[1]:
            found[made] = None
            if len(found) == sample:
                break
    return tuple(found)


def _problem(
    problem: Conv, options: str, direction: str, layout: str, batch: int, following: str
) -> Problem | None:  # fmt: skip
    """Return ``problem`` under the options of a space; None if that is not legal or not available."""
    if problem.deconv and direction != _DECONV:
        return None
    words = [f"--stag={layout}", f"--dtag={layout}", *options.split()]
    words.append("--deconv" if direction == _DECONV else f"--dir={direction}")
    if direction == "BWD_W" and layout == "axb":
        words.append("--wtag=axb")  # as in libraries with channels-last weights
    try:
        problem = replace(problem, mb=batch or problem.mb)
        if direction == _DECONV and not problem.deconv:
            problem = replace(problem, deconv=True, ic=problem.oc, oc=problem.ic, i=problem.o, o=problem.i)
        first = " ".join([*words, problem.descriptor()])
        if not following:
            return parse_problem(first)
        return parse_problem(" ".join([first, STAGES, *words, _next(problem, following).descriptor()]))
    except (UsageError, UnsupportedError):
        return None


def _next(problem: Conv, following: str) -> Conv:
    """Return the second stage of a chain, on the result of ``problem``."""
    channels, taps = problem.oc, 3 if following == _DEPTHWISE else 1
    ones, kernel, pads = ((n,) * problem.rank for n in (1, taps, taps // 2))
    groups = channels if following == _DEPTHWISE else 1
    return Conv(
        mb=problem.mb, g=groups, has_groups=groups > 1, ic=channels, oc=channels, i=problem.o, o=problem.o, k=kernel,
        s=ones, d=(0,) * problem.rank, p=pads,
    )  # fmt: skip
