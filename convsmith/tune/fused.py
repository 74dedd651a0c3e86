"""The default config of a convolution with a fused depthwise one: where its rows are computed.

An intermediate that fits the second-level cache is computed an image at a time, as two kernels would compute it; a
larger one in rows, right before the second statement reads them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.plan.config import Config
from convsmith.plan.fused import NEAR
from convsmith.plan.loops import fused_dims
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import split_depthwise
from convsmith.statement.parts import PART
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config

CHANNELS_FIRST = 4
"""Ratio of the intermediate to the second-level cache from which rows pay where the result's channels are far apart:
each row of it is then written in short pieces, once for each vector of channels."""


def fused_config(problem: Conv, machine: Machine, threads: int) -> Config:
    """Return the configs of both statements, and the loop that computes rows of the first."""
    fused = split_depthwise(problem)
    first, second = default_config(fused.first, machine, 1), _apart(default_config(fused.second, machine, 1))
    second = replace(second, offsets="each", flip=(), realise=second.realise if second.realise in NEAR else "peel")
    tensor = fused.first.tensor("dst")
    near = {b.dim for b in fused.second.tensor("dst").layout.blocks if b.stride == 1 and b.size > 1}
    held = machine.memories[1].bytes * (1 if 1 in near else CHANNELS_FIRST)
    by_rows = prod(tensor.shape[1:]) * dtype(tensor.dtype).bytes > held
    parts = -(-threads // fused.first.mb)
    groups = {d.name for d in statement(fused.second).of("batch")}
    if not by_rows and parts > 1 and second.lane not in groups:
        by_rows = True
    if by_rows:
        first = _apart(first)
        order = _first(second.order, "mb", "oh")
        rows = _share(fused.second.o[0], second.size("oh"), parts)
        cache = (("oh", rows),) if parts > 1 else ()
    else:
        order = _first(second.order, "mb")
        cache = (("g", _share(fused.second.g, second.size("g"), parts)),) if parts > 1 else ()
    first = replace(first, split=(), order=_first(first.order), threads=threads)
    second = replace(second, split=(), order=order, cache=cache, threads=threads)
    return replace(first, at="oh" if by_rows else "mb", then=second)


def _first(order: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return (*names, *(n for n in order if n not in (*names, PART)))


def _share(size: int, tile: int, parts: int) -> int:
    """Iterations of one of ``parts`` of a loop, in whole register tiles."""
    return -(-size // (parts * tile)) * tile


def _apart(config: Config) -> Config:
    """Return the config with the innermost of its fused loops in place of each of them; the others have no tile."""
    moved = {name: fused_dims(config, name)[-1] for name in (config.lane, *dict(config.register), *config.order)}
    order = tuple(dim for name in config.order for dim in fused_dims(config, name))
    return replace(
        config, lane=moved[config.lane], fuse=(), order=order,
        register=tuple((moved[n], size) for n, size in config.register),
        cache=tuple((n, size) for n, size in config.cache if n in config.reduce),
    )  # fmt: skip
