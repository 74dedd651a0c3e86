"""`Peer`: a library's computation of a problem, as a call to time and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.layout.layout import Layout
from convsmith.layout.reorder import to_layout
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import SOURCE, Eltwise, SumPostOp
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import aligned_copy

__all__ = [
    "CLIPS", "Array", "Peer", "PeerStage", "clipping", "factor_of_bytes", "forward_convolution", "in_layout",
    "is_in_bytes", "plain_f32", "plain_forward", "require_no_quantities", "residual_and_clipping", "stages_for_peers",
]  # fmt: skip

Array = np.ndarray[Any, Any]


@record(frozen=True)
class Peer:
    """``call`` computes the problem and may be repeated; ``result`` returns the computed logical array."""

    call: Callable[[], object]
    result: Callable[[], Array]


def in_layout(array: Array, layout: Layout) -> Array:
    """Return a logical array in `layout`, aligned like the arrays of kernels."""
    return aligned_copy(to_layout(array, layout))


def forward_convolution(name: str, problem: Problem) -> Conv:
    """Return `problem` if it is a forward convolution; otherwise raise UnsupportedError."""
    if not isinstance(problem, Conv) or not problem.forward:
        raise UnsupportedError(f"{name} is compared on forward convolutions only", code="dir")
    return problem


def plain_forward(name: str, problem: Problem) -> Conv:
    """Return `problem` if it is a forward 2D convolution without attributes; otherwise raise UnsupportedError."""
    conv = forward_convolution(name, problem)
    if conv.rank != 2:
        raise UnsupportedError(f"{name} is compared in two dimensions only", code="dir")
    if conv.post_ops:
        raise UnsupportedError(f"{name} is compared without post-ops only", code="post-ops")
    require_no_quantities(name, conv)
    return conv


def require_no_quantities(name: str, problem: Problem) -> None:
    """Raise UnsupportedError if the library `name`, which gets none, would need scales or zero points."""
    if problem.scales or problem.zero_points:
        raise UnsupportedError(f"{name} is compared without scales and zero points only", code="attributes")


def plain_f32(name: str, problem: Problem) -> Conv:
    """Return `problem` if it is a forward 2D convolution in f32 without post-ops; otherwise raise UnsupportedError."""
    conv = plain_forward(name, problem)
    if conv.dt != ("f32",) * 3 or conv.bia_dt not in ("", "f32"):
        raise UnsupportedError(f"{name} is compared in f32 only", code="types")
    return conv


CLIPS = ("relu", "clip", "clip_v2")
"""Algorithms that every library's model of a problem may have as post-ops."""


def clipping(problem: Problem, algorithms: tuple[str, ...] = CLIPS) -> list[Eltwise]:
    """Return the post-ops if every one has one of the `algorithms`; otherwise raise UnsupportedError."""
    steps = [op for op in problem.post_ops if isinstance(op, Eltwise) and op.alg in algorithms]
    if len(steps) != len(problem.post_ops):
        *others, last = algorithms
        raise UnsupportedError(f"peers run post-ops {', '.join(others)} and {last} only", code="post-ops")
    return steps


def residual_and_clipping(problem: Problem, algorithms: tuple[str, ...] = CLIPS) -> tuple[bool, list[Eltwise]]:
    """Return whether the old result is added first, and the further post-ops, which have one of the `algorithms`;
    otherwise raise UnsupportedError.
    """
    adds = problem.post_ops[:1] == (SumPostOp(),)
    return adds, clipping(replace(problem, post_ops=problem.post_ops[1:]) if adds else problem, algorithms)


def is_in_bytes(problem: Problem) -> bool:
    """Return whether `problem` multiplies bytes by s8 weights, has no bias, and rounds its result to bytes."""
    src, wei, dst = problem.dt
    return src in ("u8", "s8") and wei == "s8" and dst in ("u8", "s8") and not problem.bias


class PeerStage(NamedTuple):
    """A stage of a chain, or a whole problem: ``problem`` with ``arrays`` by its own names.

    ``adds_source`` says that the chain's source is added to its result at the end; ``problem`` is without this post-op.
    """

    problem: Problem
    arrays: Mapping[str, Array]
    adds_source: bool = False


def factor_of_bytes(name: str, stage: PeerStage) -> float:
    """Return the factor that a `stage` in bytes applies to its sums before the library `name` rounds them, once.

    UnsupportedError for post-ops other than relu and a factor, in this order.
    """
    problem = stage.problem
    post_ops = clipping(problem, ("relu", "linear"))
    steps = [(op.alg, op.beta) for op in post_ops]
    scaled = steps[:-1] if steps[-1:] == [("linear", 0.0)] else steps
    if stage.adds_source or scaled not in ([], [("relu", 0.0)]) or any(op.alpha for op in post_ops[: len(scaled)]):
        raise UnsupportedError(
            f"{name} rounds bytes once, after relu and a factor; it is not compared with other post-ops",
            code="post-ops",
        )
    return post_ops[-1].alpha if len(scaled) < len(steps) else 1.0


def stages_for_peers(problem: Problem, arrays: Mapping[str, Array]) -> list[PeerStage]:
    """Return the stages that a library's model of ``problem`` runs in sequence; one, unless it is a chain."""
    if not isinstance(problem, Chain):
        return [PeerStage(problem, arrays)]
    found = []
    for n, stage in enumerate(problem.stages):
        adds = stage.post_ops[-1:] == (SumPostOp(array=SOURCE),)
        plain = replace(stage, post_ops=stage.post_ops[: len(stage.post_ops) - adds])
        found.append(PeerStage(plain, problem.arrays_of(n, arrays), adds))
    return found
