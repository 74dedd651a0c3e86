"""The plan of one statement for a machine with groups of threads, as all ways to make such plans return it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from convsmith.passes.manager import Step
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.schedule.nest import Nest
from convsmith.statement.statement import Statement


@dataclass(frozen=True)
class GroupPlan:
    """The plan of one statement: its loops, the nest that ``config`` gives it, and its pipeline.

    ``shared`` are the bytes of each operand's copy in shared memory. ``order`` are the rewrites to loops over groups
    and threads, ``lower`` those to straight lines. ``zeroing`` are those of the kernel that sets
    the result to zero, where groups add parts to it. ``expected`` says in words what bounds the plan's rate.
    """

    statement: Statement
    config: Config
    loops: Loops
    nest: Nest
    shared: dict[str, int]
    order: tuple[Step, ...]
    lower: tuple[Step, ...]
    zeroing: tuple[Step, ...] = ()
    expected: tuple[tuple[str, str], ...] = ()

    @property
    def pipeline(self) -> tuple[Step, ...]:
        """The rewrites in the order in which they run."""
        return (*self.order, *self.lower)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the decisions of the plan, each with its name."""
        st, nest = self.statement, self.nest
        product = " * ".join(v.name for v in st.factors)
        yield "statement", f"{st.name}: {st.c.name} from the sums of {product} in {st.acc}"
        for head, loops in (
            ("groups", nest.grid), ("threads", nest.threads), ("registers", nest.accumulators), ("steps", nest.steps),
            ("terms", nest.terms),
        ):  # fmt: skip
            yield head, " ".join(f"{x}:{x.extent}" for x in loops)
        if nest.warp is not None:
            row = nest.warp.row
            shape = " x ".join(map(str, (*row.result.shape, row.terms)))
            tiles = " x ".join(map(str, nest.warp.fragments))
            yield "instruction", f"{row.name}: {shape}, {tiles} fragments of sums in a warp of {nest.warp.lanes} lanes"
        for name, nbytes in self.shared.items():
            yield "shared", f"{name} {nbytes} bytes"
        yield from self.expected
        yield "pipeline", " ".join(step.name for step in self.pipeline)
