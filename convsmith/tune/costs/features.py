"""The features of a kernel, numbers of events without the price of any, and the time that they take on a machine.

A model counts what a kernel does: multiply-adds, loads from each memory, stores, calls. A machine has a price in cycles
for each event (`Machine.prices`). `time` multiplies them, for every kind of kernel and of machine, so that features of
a kernel are counted once and timed again with other prices.

A `Section` is a part of a kernel that runs `times` times. Its events have causes: "multiply-adds", "loads", "calls".
The causes of one section overlap and hide each other; sections follow one another. The step of a register tile of 12
pixels by 2 vectors, which runs 576 times, and the write-back of its sums are two sections:

    Section(576, (("multiply-adds", (("multiply_add", 24),)), ("loads", (("l1", 2), ("broadcast", 12)))))
    Section(1, (("write-back", (("exposed_sum", 3.0),)),))

The events of a section may be slowed down: `slowed` names prices that are ratios of times, each with the fraction of
the section that it applies to. A machine without a price for an event makes `time` raise KeyError.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from convsmith.machine.base import Machine

__all__ = ["Events", "Features", "Section", "Terms", "cycles", "overlapped", "time", "times"]

OVERLAP = 4
"""Exponent of the norm that adds up cycles of work done at once; at infinity it is hidden completely.

It is a property of the model: it smooths the maximum, on any machine that overlaps arithmetic, loads and latency.
"""
DIGITS = 6
"""Decimal digits of cycles. Later digits of a sum depend on the order of its terms."""
Events = tuple[tuple[str, float], ...]
"""Events by the name of their price, with their number."""
Terms = dict[str, float]
"""Cycles by their cause."""


class Section(NamedTuple):
    """A part of a kernel that runs ``times`` times: events by cause, of causes that hide each other.

    ``slowed`` are prices that are ratios of times, with the fraction of the section that each applies to. The norm of
    ``overlap`` adds up the causes.
    """

    times: float
    causes: tuple[tuple[str, Events], ...]
    slowed: Events = ()
    overlap: float = OVERLAP


Features = tuple[Section, ...]
"""The features of a kernel: sections that follow one another."""


def time(features: Iterable[Section], machine: Machine, most: float = inf) -> Terms:
    """Return the cycles of a kernel on ``machine`` by cause; overlapped causes have shares of what they take together.

    Sections that follow are left out once those before them take more than ``most`` cycles.
    """
    prices, terms, whole = machine.prices, Terms(), 0.0
    for count, causes, slowed, overlap in features:
        for name, share in slowed:
            count *= 1 + (prices[name] - 1) * share
        alone = []
        for cause, events in causes:
            cycles = 0.0
            for name, number in events:
                cycles += number * prices[name]
            alone.append((cause, cycles))
        if len(alone) > 1:
            alone = _shares(alone, overlap)
        for cause, cycles in alone:
            cycles *= count
            whole += cycles
            terms[cause] = terms.get(cause, 0.0) + cycles
        if whole > most:
            break
    return terms


def _shares(alone: list[tuple[str, float]], overlap: float) -> list[tuple[str, float]]:
    """Return the shares of causes, each with its cycles ``alone``, of the cycles that all of them take at once."""
    if overlap == inf:
        return [max(alone, key=lambda each: each[1])]
    powers = [(cause, cycles**overlap) for cause, cycles in alone]
    total = sum([power for _, power in powers])
    share = total ** (1 / overlap - 1) if total else 0.0
    return [(cause, power * share) for cause, power in powers]


def cycles(features: Iterable[Section], machine: Machine, most: float = inf) -> float:
    """Return the cycles of a kernel on ``machine``; kernels that differ in the order of additions alone are equal.

    If there are more than ``most``, the result is a lower bound, also above ``most``.
    """
    return round(sum(time(features, machine, most).values()), DIGITS)


def overlapped(*cycles: float) -> float:
    """Return the cycles of work done at once: the longest of ``cycles``, a little more where another is nearly as long.
    """
    return float(sum(c**OVERLAP for c in cycles) ** (1 / OVERLAP))


def times(features: Iterable[Section], count: float) -> Features:
    """Return the features of ``count`` kernels that follow one another."""
    return tuple(work._replace(times=work.times * count) for work in features)
