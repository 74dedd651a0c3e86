"""The part of a nest that each thread computes: pixels that are contiguous in memory, or channels of all pixels.

Threads divide the outermost loops of a nest. If channels are outermost and the result is channels last, pieces of each
pixel belong to different threads: cores exchange cache lines that they share with other threads, in this nest and in
the next one, which reads its result. A cache tile of pixels around all other loops gives each thread its own pixels,
and the threads of the next nest read pixels that the same core has written. Each core then reads all weights.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.fused import CIRCULAR_REALISATIONS
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.winograd import scheduled_statement
from convsmith.statement.statement import View, view_steps
from convsmith.tune.costs.features import Section
from convsmith.tune.costs.features import cycles as cycles_of

MIN_PARTS_GAIN = 1.5
"""Minimum ratio of the cycles that a thread saves to the cycles that they cost, from which its part consists of its own
pixels.
"""


class Division(NamedTuple):
    """The division of a nest among threads: whether each thread has adjacent pixels, and the fraction of the largest
    part.
    """

    own_pixels: bool
    largest: float


def share(size: int, tile: int, parts: int) -> int:
    """Return the iterations of one of ``parts`` of a loop, in whole register tiles."""
    return -(-size // (parts * tile)) * tile


def division(problem: Problem, config: Config, machine: Machine) -> Division:
    """Return the division of the nest of ``config`` among its threads; a transform divides blocks of pixels."""
    if config.tiles_at("winograd"):
        return Division(True, 1 / config.threads)
    loops = loops_after_fusing(scheduled_statement(problem, config.changed(split=()), machine), config)
    names, tiles = _divided(loops, config)
    if config.tiles_at("cache") and names[:1] == [config.tiles_at("cache")[0][0]]:
        largest = -(-tiles[0] // config.threads) * config.tiles_at("cache")[0][1] / loops.extents[names[0]]
    else:
        largest = _largest(tiles, config.threads)
    pixels = _pixels_of_threads(loops, config)
    return Division(bool(pixels) and names[:1] == [pixels], min(largest, 1.0))


def split_pixels_by_thread(problem: Problem, config: Config, machine: Machine, cycles: float) -> Config:
    """Return ``config``, which takes ``cycles`` on one thread, with adjacent pixels for each thread, if its threads are
    then expected to end sooner: cores exchange fewer lines, or more threads have work.
    """
    threads = config.threads
    is_whole = (
        not (config.tiles_at("winograd") or config.tiles_at("split") or config.phases or config.staged_at("pack_at"))
        and config.realise in CIRCULAR_REALISATIONS
    )
    if threads == 1 or not is_whole or cycles < machine.costs.meeting:
        return config
    st = scheduled_statement(problem, config, machine)
    loops = loops_after_fusing(st, config)
    pixels = _pixels_of_threads(loops, config)
    names, tiles = _divided(loops, config)
    if not pixels or not st.constant or names[:1] == [pixels]:
        return config
    if names and _stride(st.c, loops.dims[names[0]]) >= _stride(st.c, loops.dims[pixels]):
        return config
    part = share(loops.extents[pixels], config.size(pixels), threads)
    source, weights, result = (view.bytes for view in (st.a, st.b, st.c))
    exchanged = ("between_cores_byte", (source * (threads - 1) + result) / threads)
    far = ("streamed_byte", float(weights > machine.l2.kept))
    weights_again = Section(weights * (threads - 1) / threads, (("traffic", (("l2_byte", 1.0), far)),))
    between, again = (cycles_of((x,), machine) for x in (Section(1, (("threads", (exchanged,)),)), weights_again))
    longer = cycles * (part / loops.extents[pixels] - _largest(tiles, threads))
    if (again + longer) * MIN_PARTS_GAIN < between:
        return config.changed(cache=((pixels, part), *config.tiles_at("cache")))
    return config


def _largest(tiles: list[int], threads: int) -> float:
    """Return the fraction of the largest part of loops that run ``tiles`` times, as ``threads`` divide them."""
    tasks = prod(tiles)
    return -(-tasks // threads) / tasks


def _pixels_of_threads(loops: Loops, config: Config) -> str:
    """Return the outermost loop over pixels or images that has a register tile for each thread; empty if there is none.

    A loop around it with more iterations than one, but fewer than threads, would have to be divided too.
    """
    for name in loops.of("m"):
        tiles = -(-loops.extents[name] // config.size(name))
        if tiles >= config.threads:
            return name
        if tiles > 1:
            return ""
    return ""


def _divided(loops: Loops, config: Config) -> tuple[list[str], list[int]]:
    """Return the loops that threads divide, outermost first, among the loops that run more than once, and their
    iterations.

    Loops over pixels whose weights registers hold are not divided.
    """
    left = dict(loops.extents)
    found = []
    for name, size in config.tiles_at("cache"):
        if loops.kinds.get(name, "k") != "k" and size < left[name]:
            found.append((name, -(-left[name] // size)))
            left[name] = size
    within = [n for n in config.order if n in loops.extents]
    if config.staged("resident"):
        moving = [n for n, name in enumerate(within) if loops.kinds[name] != "m"]
        within = within[: moving[-1] + 1 if moving else 0]
    found += [(n, -(-left[n] // config.size(n))) for n in within if left[n] > config.size(n)]
    return [name for name, _ in found], [count for _, count in found]


def _stride(view: View, dims: tuple[str, ...]) -> int:
    """Return the largest distance, in elements, of adjacent elements along ``dims`` in an array."""
    steps = view_steps(view).items()
    return max((abs(step) for atom, step in steps if {v.name for v in variables_of(atom)} & {*dims}), default=0)
