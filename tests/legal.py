"""Legal problems of every kind for every level, drawn one by one: what a default config must exist for.

Wider than `problems.py`, whose problems are to be run: sizes are those of layers and beyond. Kernels are longer than
their image, strides longer than kernels, pads larger than both, sizes 1; all types that a direction permits, all kinds
of post-ops, scales and zero points, plain layouts, channels last, blocks and slack.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from problems import MATRIX_TAGS, TAGS, WEIGHT_TAGS, with_slack

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem import Conv, Matmul, Problem
from convsmith.problem.attributes import ARGUMENTS, SCALES, ZERO_POINTS, parse_quantities
from convsmith.problem.eltwise import ALGORITHMS
from convsmith.problem.integer_steps import INTEGER_STEPS
from convsmith.problem.post_ops import OPERATORS, parse_post_ops
from convsmith.problem.problem import ACC_MODES, DIRECTIONS
from convsmith.problem.types import TYPES, check_types

NEAR = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64)
FAR = (65, 96, 100, 128, 192, 256, 320, 512, 1000, 1026, 2048)
"""Channels: few, and many."""
PIXELS = (1, 1, 2, 3, 4, 5, 7, 8, 13, 14, 15, 16, 17, 28, 31, 32, 56, 64, 112, 224)
KERNELS = (1, 1, 1, 2, 3, 3, 3, 4, 5, 7, 11)
LONG_KERNELS = (16, 31, 64, 132, 200, 1024)
MASKS = ("common", "per_oc", "per_tensor", "per_dim_0", "per_dim_1", "per_dim_01")
POLICIES = ("common", "common", "per_oc", "per_dim_0", "per_dim_1", "per_dim_01", "per_dim_2")


WHOLE = tuple(name for name, row in TYPES.items() if not row.factor)
"""Types of operands other than weights."""


@cache
def types_of(direction: str) -> tuple[tuple[str, str, str], ...]:
    """The types of source, weights and destination that a direction permits."""
    found = []
    for dt in product(TYPES, repeat=3):
        try:
            check_types(dt, direction)
        except UnsupportedError:
            continue
        found.append(dt)
    return tuple(found)


def legal_problem(rng: random.Random) -> Problem:
    """One that parses: draws that do not are dropped."""
    while True:
        try:
            problem = _matrices(rng) if rng.random() < 0.12 else _convolution(rng, rng.random() < 0.08)
        except UsageError:
            continue
        return _with_attributes(problem, rng)


# -- shapes
def _channels(rng: random.Random) -> int:
    return rng.choice(NEAR if rng.random() < 0.8 else FAR)


def _convolution(rng: random.Random, pointwise: bool) -> Conv:
    """One of any kind, or one that a depthwise convolution may follow."""
    rank = 2 if pointwise else rng.choice((1, 2, 2, 2, 3))
    kind = rng.choice(("dense", "dense", "dense", "groups", "depthwise", "multiplied"))
    g = 1 if kind == "dense" else rng.choice((2, 3, 4, 6, 8, 16, 19, 32, 96, 192))
    ic, oc = (_channels(rng), _channels(rng)) if kind in ("dense", "groups") else (1, 1)
    if kind == "groups":
        ic, oc = min(ic, 128), min(oc, 128)
    elif kind == "multiplied":
        ic, oc = rng.choice(((1, 2), (1, 3), (2, 1), (1, 8)))
    axes = [_axis(rng, 1 if pointwise else _kernel(rng, rank)) for _ in range(rank)]
    if rng.random() < 0.3:
        axes = axes[:1] * rank
    fine, coarse, k, s, d, p = zip(*axes)
    direction, deconv = rng.choice((*DIRECTIONS, "FWD_D", "FWD_D")), rng.random() < 0.25
    if pointwise:
        direction, deconv = "FWD_B", False
    types = types_of(direction)
    followed = [dt for dt in types if (dt[2], dt[1], dt[2]) in types]
    tags, has_groups = TAGS[rank], g > 1 or rng.random() < 0.1
    problem = Conv(
        mb=rng.choice((1, 1, 1, 2, 3, 8, 64)), ic=g * ic, oc=g * oc, i=coarse if deconv else fine,
        o=fine if deconv else coarse, k=k, s=s, d=d, p=p, g=g, has_groups=has_groups, dir=direction, deconv=deconv,
        dt=rng.choice(followed if pointwise else types), stag=_tag(rng, tags), dtag=_tag(rng, tags),
        wtag=rng.choice(("any", "any", *WEIGHT_TAGS[has_groups][rank])),
    )  # fmt: skip
    return replace(problem, **_slack(rng, problem))


def _kernel(rng: random.Random, rank: int) -> int:
    return rng.choice(LONG_KERNELS) if rng.random() < 0.06 / rank else rng.choice(KERNELS)


def _axis(rng: random.Random, k: int) -> tuple[int, ...]:
    """Extents of the fine and of the coarse side, the kernel's, stride, dilation and front pad along one axis."""
    s = rng.choice((1, 1, 1, 1, 2, 2, 3, 4, 5, 16, 256) if rng.random() < 0.8 else (k, k + 1, k + 3))
    d = rng.choice((0, 0, 0, 0, 1, 2, 3, 5, 9))
    size = rng.choice(PIXELS) if rng.random() < 0.9 else rng.choice((300, 1000, 4097))
    reach = (k - 1) * (d + 1) + 1
    p = rng.choice((0, 0, reach // 2, reach // 2, 1, reach - 1, reach, reach + 3))
    back = rng.choice((p, p, 0, 1, reach + 2, -1, 1 - s))
    return size, max((size + p + back - reach) // s + 1, 1), k, s, d, p


def _matrices(rng: random.Random) -> Matmul:
    m, n, k = (rng.choice((*NEAR, *FAR)) for _ in range(3))
    b, c = rng.choice(NEAR), rng.choice((1, 2, 3))
    shapes = (
        ((m, k), (k, n)), ((b, m, k), (b, k, n)), ((b, m, k), (1, k, n)), ((1, m, k), (b, k, n)),
        ((b, 1, m, k), (b, c, k, n)), ((b, c, m, k), (1, c, k, n)),
    )  # fmt: skip
    src, wei = rng.choice(shapes)
    tags = MATRIX_TAGS.get(len(src), ("abcd", "abdc", "acbd"))
    dt = rng.choice(types_of("FWD_D"))
    values: dict[str, Any] = {}
    if set(dt[:2]) <= {"u8", "s8"} and rng.random() < 0.2:
        values = {"bits": (rng.randint(1, 8), rng.randint(1, 8)), "rounding": rng.choice(("nearest", "probabilistic"))}
    problem = Matmul(
        src=src, wei=wei, dt=dt, stag=_tag(rng, tags), wtag=_tag(rng, tags), dtag=_tag(rng, tags), **values
    )
    return replace(problem, **_slack(rng, problem))


def _tag(rng: random.Random, tags: tuple[str, ...]) -> str:
    """Half of them plain or channels last."""
    return rng.choice(tags[:2] if rng.random() < 0.5 else tags)


def _slack(rng: random.Random, problem: Problem) -> dict[str, str]:
    layouts = {"stag": problem.src_layout, "wtag": problem.wei_layout, "dtag": problem.dst_layout}
    return {tag: with_slack(layout, rng) for tag, layout in layouts.items() if rng.random() < 0.04}


# -- attributes
def _with_attributes(problem: Problem, rng: random.Random) -> Problem:
    """The problem with what may follow its sums; each attribute that is not legal for it is left out."""
    changes: list[dict[str, Any]] = []
    if rng.random() < 0.2:
        changes.append({"bia_dt": rng.choice(WHOLE)})
    if isinstance(problem, Matmul) and rng.random() < 0.4:
        changes.append({"bia_mask": rng.randrange(1 << problem.rank), "bia_dt": rng.choice(("", "", *WHOLE))})
    if rng.random() < 0.3:
        changes.append({"acc_mode": rng.choice(ACC_MODES)})
    if rng.random() < 0.5:
        fused = isinstance(problem, Conv) and problem.rank == 2 and set(problem.k) == {1} and rng.random() < 0.5
        changes.append({"post_ops": parse_post_ops(_fused(rng) if fused else _post_ops(rng), problem.channels)})
    for kind, field, p in ((SCALES, "scales", 0.3), (ZERO_POINTS, "zero_points", 0.4)):
        for argument in ARGUMENTS if rng.random() < p else ():
            text = f"{argument}:{rng.choice(POLICIES)}"
            values = (":0.5", ":3.25") if kind is SCALES else (":1", ":-7", ":3:s8", ":200:u8")
            text += rng.choice(values) if text.endswith("common") else ""
            if rng.random() < 0.6:
                changes.append({field: parse_quantities(kind, text)})
    for change in changes:
        (field, value), *_ = change.items()
        if field in ("scales", "zero_points"):
            change = {field: (*getattr(problem, field), *value)}
        try:
            problem = replace(problem, **change)
        except (UsageError, UnsupportedError):
            continue
    return problem


def _fused(rng: random.Random) -> str:
    """A depthwise convolution among others."""
    sizes = f"k{rng.choice((1, 3, 5))}s{rng.choice((1, 2))}p{rng.choice((0, 1, 2))}"
    before, after = (rng.choice((None, None, _eltwise, _binary)) for _ in range(2))
    words = (before and before(rng), f"dw:{sizes}:{rng.choice(WHOLE)}", after and after(rng))
    return "+".join(filter(None, words))


def _post_ops(rng: random.Random) -> str:
    kinds = (_integer,) if rng.random() < 0.2 else (_eltwise, _eltwise, _binary, _other)
    return "+".join(rng.choice(kinds)(rng) for _ in range(rng.choice((1, 1, 2, 3, 5))))


def _eltwise(rng: random.Random) -> str:
    name = rng.choice(tuple(ALGORITHMS))
    numbers = sorted(rng.choice((0.25, 0.5, 1.0, 2.0, 3.0)) for _ in ALGORITHMS[name].parameters)
    return ":".join((name, *map(str, numbers)))


def _binary(rng: random.Random) -> str:
    tag = rng.choice(("", "", ":axb", ":abx"))
    return f"{rng.choice(tuple(OPERATORS))}:{rng.choice(WHOLE)}:{rng.choice(MASKS)}{tag}"


def _other(rng: random.Random) -> str:
    kinds = (*(f"prelu:{mask}" for mask in MASKS), "sum", "sum:0.5:3", f"sum:2:1:{rng.choice(WHOLE)}")
    return rng.choice(kinds)


def _integer(rng: random.Random) -> str:
    name = rng.choice(tuple(INTEGER_STEPS))
    limits = INTEGER_STEPS[name].limits
    if len(limits) == 1 and rng.random() < 0.5:
        return f"{name}:{rng.choice(MASKS)}"
    numbers = [str(rng.randint(int(max(low, -1000)), int(min(high, 1000)))) for low, high in limits]
    return ":".join((name, *(["common"] if len(limits) == 1 else []), *numbers))
