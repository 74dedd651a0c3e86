"""The level of a problem by the length of its vectors: short vectors leave fewer lanes without a channel.

24 channels take two vectors of 16 lanes, of which a quarter is empty, or three vectors of 8 lanes, of which none is.
Where a CPU multiplies as many elements in a cycle with either, because it splits long vectors or has as many units as
short ones need, the model compares the default kernels of both levels.
"""

from __future__ import annotations

from functools import lru_cache

from convsmith.compiler.cache import cache_key, disk_cache
from convsmith.diag.errors import ConvsmithError
from convsmith.diag.settings import settings
from convsmith.ir.types import dtype
from convsmith.machine import registry
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import preferred
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.tune.compile import expected_choice

__all__ = ["level_of", "machine_of"]

MOST_CYCLES = 1.03
"""Ratio of expected cycles up to which short vectors replace long ones. On a Zen 4, kernels of short vectors that are
expected to take 0.97 to 1.03 of the cycles of long ones take 0.83 to 1.0 of their time.
"""
_ANSWERS = 1024
"""Maximum number of answers that a process keeps."""


def machine_of(problem: Problem) -> Machine:
    """Return the level on which `compile` makes the default kernel of ``problem``: that of the settings, if they name
    one.
    """
    level = registry.target(settings.target, problem.types)
    return level if settings.target else level_of(problem, level)


def level_of(problem: Problem, machine: Machine) -> Machine:
    """Return the level on which the default kernel of ``problem`` is expected to be fastest: ``machine``, the level for
    its types, or the one with vectors of half its length, if vectors run along the channels of the result on both. The
    lanes without a channel write the zeros that blocks of channels add, which are not left to a pass through memory.
    """
    short, channels = registry.halved(machine, problem.types), _channels(problem)
    if short is None or channels is None or any(0 in t.shape for t in problem.tensors):
        return machine
    bits = dtype(problem.types[2]).bits
    if not 0 < problem.dims[channels] % machine.lanes(bits) <= short.lanes(bits):
        return machine
    added = (t for t in problem.outputs if t.layout.padded_shape != t.layout.shape)
    if any(t.layout.size * dtype(t.dtype).bytes > machine.l2.bytes for t in added):
        return machine
    return short if _is_faster(problem, channels, short.name, machine.name, preferred().name) else machine


def _channels(problem: Problem) -> str | None:
    """Return the dim of the result's channels: those of a dense convolution, groups of a depthwise one, or columns;
    None for gradients of the weights and problems of several stages.
    """
    if stages_of(problem) is not None or problem.dir.startswith("BWD_W"):
        return None
    if isinstance(problem, Matmul):
        return "n"
    assert isinstance(problem, Conv)
    if problem.g > 1:
        return "g" if problem.g == problem.ic == problem.oc else None
    return "ic" if problem.dir == "BWD_D" else "oc"


@lru_cache(_ANSWERS)
def _is_faster(problem: Problem, lane: str, short: str, long: str, _: str) -> bool:
    """Return whether the model expects the default kernel, whose vectors run along ``lane``, to be faster on the level
    with short vectors. The cache on disk keeps the answer, which takes several milliseconds.
    """
    plain, cache = problem.canonical(), disk_cache()
    levels = [registry.target(name) for name in (short, long)]
    key = "" if cache is None else cache_key("level of", str(plain), *(level.key for level in levels))
    found = None if cache is None else cache.decoded(key, _answer)
    if found is None:
        try:
            (one, cycles), (other, more) = (expected_choice(plain, level, 1) for level in levels)
        except ConvsmithError:  # a level without a legal kernel; `compile` reports the reason
            return False
        found = one.lane == other.lane == lane and cycles <= MOST_CYCLES * more
        if cache is not None:
            cache.put(key, str(int(found)).encode())
    return found


def _answer(content: bytes) -> bool:
    """Return the answer in an entry of the cache; ValueError if the entry is malformed."""
    return bool(("0", "1").index(content.decode()))
