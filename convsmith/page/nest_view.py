"""The nest of a plan with the level of each loop: threads, caches, registers or lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from convsmith.compiler.instruments import PassRecord
from convsmith.ir.stmt import Kernel
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.reorder import reorder
from convsmith.passes.rfactor import rfactor
from convsmith.schedule.kernel_plan import KernelPlan

__all__ = ["LEVELS", "NestLine", "levels_of", "nest_lines", "planned_nest"]

_PLANNED = (reorder, rfactor, derive_packing)
"""Passes after the last of which all loops are in their final order and no loop is split into pieces."""

LEVELS = {
    "threads": "divided among threads or groups of threads",
    "caches": "around the register tile: order and tiles decide what the caches keep",
    "reduction": "sums of products, in registers",
    "tile": "unrolled into registers",
    "vector": "lanes of vectors",
    "memory": "a buffer during its lifetime",
    "statement": "",
}
"""The meaning of each level, outermost first."""

_LOOP = re.compile(r"\s*for (\S+) in .*?( #\w+.*)?:$")
_MEMORY = re.compile(r"\s*alloc ")


class NestLine(NamedTuple):
    """A line of a nest and its level."""

    level: str
    text: str


def levels_of(plan: KernelPlan) -> dict[str, str]:
    """Return the level of each loop of the plan by name."""
    nest = plan.nest
    found = {x.name: "caches" for x in nest.around}
    found |= {x.name: "reduction" for x in nest.reduce}
    found |= {x.name: "reduction" for x in nest.at("group", k=True)}
    found |= {x.name: "tile" for x in nest.accumulators}
    found |= {x.name: "vector" for x in (*nest.at("lane"), *nest.at("lane", "instruction", k=True))}
    return found


def nest_lines(kernel: Kernel, levels: Mapping[str, str]) -> Iterator[NestLine]:
    """Yield the lines of the kernel's text, without the kernels that prepare arguments."""
    for line in str(kernel).splitlines()[1:]:
        if line.startswith(("pack ", "before ")):
            return
        loop = _LOOP.match(line)
        if loop is None:
            yield NestLine("memory" if _MEMORY.match(line) else "statement", line[2:])
        elif loop.group(2) and loop.group(2).split("#")[1].split()[0] in ("parallel", "grid", "group", "warp", "lane"):
            yield NestLine("threads", line[2:])
        else:
            yield NestLine(levels.get(loop.group(1), "caches"), line[2:])


def planned_nest(records: Sequence[PassRecord]) -> Kernel:
    """Return the kernel whose loops are in their final order and not yet split into pieces."""
    return [r for r in records if r.run is None or r.run in _PLANNED][-1].kernel
