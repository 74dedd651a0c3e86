"""The rewrites of sums that a packing kernel makes: vectors of sums that stay in registers for a run."""

from __future__ import annotations

from convsmith.ir.stmt import Alloc, For, Kernel
from convsmith.ir.types import S32
from convsmith.ir.walk import loops_of, statements_of
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.fission import fission
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.manager import Step
from convsmith.passes.packed_sums import HELD, MARK
from convsmith.passes.partition import partition
from convsmith.passes.replace import replace
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.tile import tile
from convsmith.passes.vectorise import vectorise


def adding_steps(pack: Kernel, target: Machine) -> tuple[list[Step], list[Step]]:
    """What comes before memory is flat, and after; nothing where the packing kernel makes no sums."""
    run = next((s for s in statements_of(pack.body) if isinstance(s, Alloc)), None)
    if run is None:
        return [], []
    names = [x.var.name for x in loops_of(pack.body)]
    side = [n for n in names if n.endswith(HELD)]
    outer = [x.var.name for x in loops_of(pack.body) if run in statements_of(x) and x.var.name.endswith(MARK)]
    depth: list[For] = list(loops_of(run.body))
    lanes = target.lanes(S32.bits)
    steps: list[Step] = []
    if side:
        last = side.pop()
        steps.append(Step(tile, last, lanes, f"{last}v", f"{last}l"))
        side += [f"{last}v", f"{last}l"]
        steps += [Step(fission, tuple(side), ((side[-1], lanes),)), Step(sink, tuple(side))]
        steps += [Step(simplify), Step(bind, tuple(side), "unrolled")]
        steps += [Step(partition, (*outer, *side[:-1])), Step(guard_tails, tuple(side))]
    after = [Step(simplify)]
    terms = int(depth[-1].hi) if depth else 1
    if 1 < terms == S32.bits // pack.params[-1].dtype.bits:
        after.append(Step(vectorise, depth[-1].var.name, terms, False))
    if side:
        after.append(Step(vectorise, side[-1], lanes, False))
    return steps, [*after, Step(replace, target.instructions)]
