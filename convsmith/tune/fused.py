"""The default config of a convolution with a fused depthwise one: where its rows are computed.

An intermediate result that fits the second-level cache is computed one image at a time, as by two kernels; a larger one
is computed in rows, right before the second statement reads them.
"""

from __future__ import annotations

from itertools import starmap
from math import prod

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.schedule.config import Config
from convsmith.schedule.fused import CIRCULAR_REALISATIONS
from convsmith.schedule.loops import fused_dims, fused_name
from convsmith.statement.parts import PART
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.thread_parts import share

_PIXELS = frozenset(("mb", "od", "oh", "ow"))
"""Loops over images and pixels of a result."""


def fused_config(problem: Conv, machine: Machine, threads: int, by_rows: bool | None = None) -> Config:
    """Return the configs of both statements, and the loop at which the first is computed: rows if ``by_rows``,
    otherwise images. By default, the size of the intermediate result and the threads decide.
    """
    stages = stages_of(problem)
    assert stages is not None
    one, two = stages.problems
    assert isinstance(one, Conv) and isinstance(two, Conv)
    machine = machine.with_own_vectors
    first, second = default_config(one, machine, 1), with_unfused_pixels(default_config(two, machine, 1))
    realise = second.realise if second.realise in CIRCULAR_REALISATIONS else "peel"
    second = second.changed(offsets="each", flip=(), realise=realise)
    tensor = one.tensor("dst")
    near = {b.dim for b in two.tensor("dst").layout.blocks if b.stride == 1 and b.size > 1}
    held = machine.memories[1].bytes * (1 if 1 in near else machine.costs.scattered_rows)
    parts = -(-threads // one.mb)
    groups = {d.name for d in statement(two).of("batch")}
    if by_rows is None:
        is_large = prod(tensor.shape[1:]) * dtype(tensor.dtype).bytes > held
        by_rows = is_large or (parts > 1 and second.lane not in groups)
    if by_rows:
        first, second = with_unfused_pixels(first), of_stage(second, "mb", "oh")
        rows = share(two.o[0], second.size("oh"), parts)
        cache = (("oh", rows),) if parts > 1 else ()
    else:
        second = of_stage(second, "mb")
        cache = (("g", share(two.g, second.size("g"), parts)),) if parts > 1 else ()
    passing = tuple(
        n for n in first.staged("stream") if n != statement(one).c.name
    )  # the second stage reads the result immediately
    first = of_stage(first).changed(threads=threads, stream=passing)
    second = second.changed(cache=cache, threads=threads)
    return first.changed(compute_at="oh" if by_rows else "mb", consumer=second)


def of_stage(config: Config, *outermost: str) -> Config:
    """Return ``config`` without a division of the reduction among threads, which kernels of several statements do not
    support, and with the loops ``outermost`` first in its order.
    """
    order = (*outermost, *(n for n in config.order if n not in (*outermost, PART)))
    return config.changed(split=(), order=order)


def with_unfused_pixels(config: Config) -> Config:
    """Return the config with each fused loop over images and pixels replaced by its innermost loop; the other pixel
    loops have no tile. Other loops stay fused.
    """
    kept = tuple(pair for pair in config.fuse if not _PIXELS & {d for name in pair for d in fused_dims(config, name)})
    whole = set(starmap(fused_name, kept))

    def dims(name: str) -> tuple[str, ...]:
        return (name,) if name in whole else fused_dims(config, name)

    moved = {name: dims(name)[-1] for name in (config.lane, *dict(config.tiles_at("register")), *config.order)}
    order = tuple(dim for name in config.order for dim in dims(name))
    near = tuple((operand, moved.get(loop, loop)) for operand, loop in config.staged_at("pack_at"))
    return config.changed(lane=moved[config.lane], fuse=kept, order=order,
        register=tuple((moved[n], size) for n, size in config.tiles_at("register")),
        cache=tuple((n, size) for n, size in config.tiles_at("cache") if n in config.reduce), pack_at=near,
    )  # fmt: skip
