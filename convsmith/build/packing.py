"""The rewrites of a packing kernel: it writes sequentially, and reads as the operand lies."""

from __future__ import annotations

from convsmith.build.adding import adding_steps
from convsmith.ir.stmt import For, Kernel
from convsmith.ir.walk import loops_of
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.packed_sums import HELD, MARK
from convsmith.passes.partition import partition
from convsmith.passes.simplify import simplify
from convsmith.passes.strength import strength_reduce
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.target.base import Target


def packing_steps(pack: Kernel, target: Target) -> list[Step]:
    """Those of the copy, and of the sums that are made of it."""
    steps = _copying_steps(pack, target)
    before, after = adding_steps(pack, target)
    flat = next(n for n, step in enumerate(steps) if step.run is flatten) + 1
    unrolled = [Step(unroll)] if before else []
    return [*before, *steps[:flat], *after, *steps[flat:], *unrolled]


def _copying_steps(pack: Kernel, target: Target) -> list[Step]:
    """Split off what is cut short, and copy vectors."""
    loops: list[For] = [x for x in loops_of(pack.body) if not x.var.name.endswith((MARK, HELD))]
    names = tuple(x.var.name for x in loops)
    lanes = target.lanes(pack.params[0].dtype.bits)
    steps = [Step(partition, names, 4), Step(flatten), Step(simplify)]
    if loops and int(loops[-1].hi) <= lanes:
        steps.append(Step(vectorise, names[-1], lanes, False))
    return [*steps, Step(simplify, False), Step(narrow_index), Step(strength_reduce), Step(unused_let)]
