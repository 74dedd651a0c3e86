"""The fusion of the stages of a problem: bytes moved, rows computed again, and the reason for each choice."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.compiler.rewritten import Lowered, private_buffers
from convsmith.machine.base import Machine
from convsmith.measure.roofline import bytes_of_arrays
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import middle, stages_of
from convsmith.problem.types import TYPES
from convsmith.schedule.fused import ComputedAt, places
from convsmith.schedule.kernel import loop_at
from convsmith.schedule.plan import Plan
from convsmith.statement.fused import FusedStatements
from convsmith.tune.chains import joints
from convsmith.tune.stage_configs import StageConfigs

__all__ = ["fusion_lines"]


def fusion_lines(plan: Plan, low: Lowered, machine: Machine) -> Iterator[str]:
    """Yield the bytes that move with and without fusion, then a line for each joint of two stages; no lines for a
    problem of one stage.
    """
    stages = stages_of(plan.problem)
    if stages is None:
        return
    kernels = {n: kernel for kernel in plan.program.kernels for n in kernel.numbers[:-1]}
    at = {n: places(kernel, plan.decided)[n] for n, kernel in kernels.items()}
    tensors = [p.outputs[0] for p in stages.problems[:-1]]
    moved = [2 * prod(t.shape) * TYPES[t.dtype].bits // 8 for t in tensors]
    arrays = bytes_of_arrays(plan.problem)
    left = sum(nbytes for n, nbytes in enumerate(moved) if n not in at)
    yield (
        f"{_kib(arrays + sum(moved))} are written and read without fusion, {_kib(arrays + left)} with it: results "
        f"between stages move twice"
    )
    buffers = {b.name: b for k in (*low.before, low.kernel) for b in private_buffers(k)}
    threads = plan.config.threads
    chosen = joints(stages, StageConfigs(machine), threads) if isinstance(plan.problem, Chain) else None
    for n, tensor in enumerate(tensors):
        shape = " x ".join(map(str, tensor.shape))
        head = f"{middle(n)}, the result of stage {n + 1}, {shape} {tensor.dtype}, {_kib(moved[n] // 2)}: "
        because = f"; {chosen[n].why}" if chosen is not None and chosen[n].fused == (n in at) else ""
        if n not in at:
            yield f"{head}written as a whole, and stage {n + 2} starts when it is done{because}"
            continue
        buffer = buffers.get(middle(n))
        held = "" if buffer is None else _held(buffer.size * buffer.dtype.bits // 8, plan.config.threads, machine)
        policy = "rows that are read again stay" if at[n].keeps else "rows that are read again are computed again"
        again = _computed_again(plan, kernels[n], at, n)
        rows = f"{policy}; {again:.1%} of its rows are computed twice"
        tile = f", {at[n].tile} iterations at a time" if at[n].tile else ""
        yield f"{head}computed at loop {at[n].loop}{tile}{held}, {rows}{because}"


def _computed_again(plan: Plan, kernel: FusedStatements, at: dict[int, ComputedAt], n: int) -> float:
    """Return the fraction of the rows of stage ``n`` that ``kernel`` computes more than once."""
    by_stage = dict(zip(kernel.numbers, plan.plans_of(kernel)))
    place = at[n]
    problems = kernel.stages.problems
    problem = problems[n]
    if not isinstance(problem, Conv) or not by_stage[place.of].loops.axes[place.loop]:
        return 0.0
    nest = by_stage[place.of].nest
    loop = loop_at(nest, place.loop, place.tile)
    around = [x for x in nest.outside[: nest.outside.index(loop)] if x.of == loop.of]

    def rows(lo: int, hi: int) -> int:
        """Return the number of rows that are needed to compute rows ``lo`` to ``hi`` of the last of these stages."""
        for later in reversed(problems[n + 1 : place.of + 1]):
            assert isinstance(later, Conv)
            lo, hi = lo * later.s[-2] - later.p[-2], (hi - 1) * later.s[-2] + later.keff[-2] - later.p[-2]
            lo, hi = max(lo, 0), min(hi, later.i[-2])
        return max(hi - lo, 0)

    last = problems[place.of]
    assert isinstance(last, Conv)
    total = last.o[-2]
    chunk = (around[-1].tile if around else total) if place.keeps else loop.tile
    computed = sum(rows(lo, min(lo + chunk, total)) for lo in range(0, total, chunk))
    return max(computed / rows(0, total) - 1, 0.0)


def _held(nbytes: int, threads: int, machine: Machine) -> str:
    """Describe the bytes that each of ``threads`` keeps, and their place on a machine with special memory for them."""
    place = machine.place(threads * nbytes)
    return f" in {_kib(nbytes)} for each thread{place and f' {place}'}"


def _kib(count: int) -> str:
    return f"{count / 1024:,.0f} KiB"
