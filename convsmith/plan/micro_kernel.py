"""The plan of a depthwise micro-kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.passes.bind import bind
from convsmith.passes.cse import cse
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.hoist import hoist
from convsmith.passes.keep_sums import keep_sums
from convsmith.passes.lift import lift
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.pieces import pieces
from convsmith.passes.replace import replace
from convsmith.passes.simplify import simplify
from convsmith.passes.sink import sink
from convsmith.passes.strength import strength_reduce
from convsmith.passes.tile import tile
from convsmith.passes.tile_ends import tile_ends
from convsmith.passes.unroll import unroll
from convsmith.passes.unused_let import unused_let
from convsmith.passes.vectorise import vectorise
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.statement.micro_kernel import PACKED, naive_micro_kernel, sums_type


@dataclass(frozen=True)
class MicroKernelPlan:
    """The plan of the micro-kernel ``m``: one kernel, and the packing kernel that its rewrites derive."""

    m: MicroKernel
    machine: Machine

    @property
    def preparing(self) -> dict[str, Sequence[Step]]:
        """No kernel runs before this one."""
        return {}

    @property
    def each_call(self) -> frozenset[str]:
        """No kernel runs before this one."""
        return frozenset()

    @property
    def pipeline(self) -> list[Step]:
        """The rewrites of the kernel."""
        return _steps(self.m, self.machine)

    def naive(self) -> Kernel:
        """Return the naive nest."""
        return naive_micro_kernel(self.m)

    def finishing(self) -> list[tuple[Kernel, Sequence[Step]]]:
        """Return nothing: no kernel runs after this one."""
        return []

    def symbol(self, kernel: str = "") -> str:
        """Return XNNPACK's name of the kernel, or that of its packing kernel."""
        return f"{self.m.name}_pack" if kernel else self.m.name

    def threads(self, kernel: str = "") -> int:
        """Return 1: a micro-kernel runs on the thread that calls it."""
        return 1


def _steps(m: MicroKernel, target: Machine) -> list[Step]:
    """Return the rewrites: tiles of channels, packing, pieces for the remaining channels, vectors."""
    lanes = min(m.channel_tile, target.lanes(32))
    steps = []
    if m.multipass:
        sums = make_buffer("buffer", sums_type(m), (UNKNOWN,))
        steps += [Step(tile_ends, "k", m.taps, "pass", "k"), Step(keep_sums, "pass", ("c",), sums)]
    return [
        *steps,
        Step(tile, "c", m.channel_tile, "c.o", "c.t"),
        Step(tile, "c.t", lanes, "c.v", "c.l"),
        Step(fission, ("c.v", "c.l"), (("c.l", lanes),)),
        Step(sink, ("c.v", "c.l")),
        Step(lift),
        Step(derive_packing, PACKED, "weights"),
        Step(pieces, "c.o", "c.v", "c.l", (m.channel_tile, m.subtile or m.channel_tile, lanes)),
        Step(simplify),
        Step(bind, ("k", "c.v", "c.l"), "unrolled"),
        Step(flatten),
        Step(narrow_index),
        Step(vectorise, "c.l", lanes),
        Step(replace, target.instructions),
        Step(simplify, False),
        Step(unused_let),
        Step(hoist),
        Step(cse),
        Step(strength_reduce),
        Step(unroll),
    ]
