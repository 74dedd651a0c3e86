"""The rewrites of a kernel that adds up: vectors of sums stay in registers while what they are the sums of passes."""

from __future__ import annotations

from convsmith.passes.bind import bind
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.partition import partition
from convsmith.passes.reorder import reorder
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.strength import strength_reduce
from convsmith.passes.tile import tile
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise


def sum_steps(loop: str, vectors: int, lanes: int, reduction: tuple[str, ...]) -> list[Step]:
    """Vectors along ``loop``, ``vectors`` at once, under the loops of the ``reduction``."""
    vector, lane = f"{loop}.v", f"{loop}.l"
    return [
        Step(tile, loop, vectors * lanes, f"{loop}.o", f"{loop}.t"),
        Step(tile, f"{loop}.t", lanes, vector, lane),
        Step(fission, (vector, lane), ((lane, lanes),)),
        Step(sink, (vector, lane)),
        Step(reorder, reduction),
        Step(simplify),
        Step(bind, (vector, lane), "unrolled"),
        Step(partition, (f"{loop}.o", vector)),
        Step(guard_tails, (vector, lane)),
        Step(flatten),
        Step(simplify),
        Step(narrow_index),
        Step(vectorise, lane, lanes, False),
        Step(simplify, False),
        Step(unused_let),
        Step(strength_reduce),
        Step(unroll),
    ]
