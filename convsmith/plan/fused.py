"""A fused depthwise convolution: the schedules of its two statements as one pipeline of one kernel.

Rows of the first statement are computed in the loop of the second that reads them (`passes/compute_at.py`). The second
nest is brought into its order first, so that the loop exists; the first one is ordered where it then stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.passes.compute_at import compute_at
from convsmith.passes.manager import Step
from convsmith.plan.config import Config
from convsmith.plan.kernel import KernelPlan, scheduled
from convsmith.plan.loops import Loop
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import split_depthwise
from convsmith.statement.fused import MIDDLE, SUFFIX, Pair
from convsmith.statement.program import Program, fused_program

NEAR = ("mask", "peel")
"""Legal realisations of the second statement: it reads rows from a circular buffer."""


def scheduled_pair(problem: Conv, config: Config, machine: Machine) -> Program:
    """Return the program of both statements, each scheduled by its config."""
    if config.then is None:
        raise ConfigError(
            "then", f"config {config}: {problem} has a second statement; legal is --at= and its config behind ' / '"
        )
    fused = split_depthwise(problem)
    for text, own in (("first", config), ("second", config.then)):
        if own.split or own.realise == "indirection":
            raise ConfigError("then", f"config {own}: the {text} of two statements has no --split and no table")
    if config.then.offsets != "each" or config.then.realise not in NEAR:
        raise ConfigError(
            "then", f"config {config.then}: legal for the second of two statements are --offsets=each and "
            f"--realise={' or '.join(NEAR)}",
        )  # fmt: skip
    first, second = scheduled(fused.first, config, machine), scheduled(fused.second, config.then, machine)
    return fused_program(problem, Pair(fused, first, second))


def renamed_config(pair: Pair, config: Config) -> tuple[Config, str]:
    """Return the config of the second statement with the names that it has in the kernel, and the loop at which the
    rows are computed.
    """
    assert config.then is not None
    dims = {d.name: d.name + SUFFIX for d in pair.second.dims}
    then = config.then.renamed(dims, pair.arrays)
    return then, dims.get(config.at, config.at)


def joined(first: KernelPlan, second: KernelPlan, loop: Loop) -> tuple[Step, ...]:
    """Return the rewrites of both statements; ``loop`` of the second computes rows of the first."""
    moved = Step(compute_at, MIDDLE, loop.name)
    read, lowered = _merged(first.read, second.read), _merged(first.lower, second.lower)
    return (*second.order, moved, *first.order, *first.tile, *second.tile, *read, *second.cut, *first.cut, *lowered)


def _merged(a: Sequence[Step], b: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps of both pipelines in order; a step that occurs in both runs once, on the whole kernel."""
    texts = list(map(str, a)), list(map(str, b))
    for kind, start, end, first, last in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        yield from a[start:end]
        if kind != "equal":
            yield from b[first:last]
