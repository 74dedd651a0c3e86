"""The default config of a chain: which stages are fused, and at which loop their rows are computed.

Two stages may be fused if the result between them is larger than the second-level cache, and the rows of it that one
row of the kernel's last stage needs fit the memory of the kernel's own buffers: that cache, or the machine's
scratchpad. An adjacent result that exceeds the nearest cache of vectors may then be fused too. They are fused unless
computing row by row, with other register tiles, costs more than moving the result (`tune/costs/chain_costs.py`); a
machine with a scratchpad, which no other memory replaces, fuses all of them. Other stages run one after the other.

With several threads, kernels synchronise, and cores load lines that other cores have written; more stages are fused if
these costs exceed the cost of computing row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import Stages, reads_padding_alone, stages_of
from convsmith.problem.problem import Problem
from convsmith.problem.types import print_types
from convsmith.schedule.config import Config
from convsmith.tune.costs.chain_costs import ChainCosts
from convsmith.tune.costs.thread_parts import share
from convsmith.tune.fused import fused_config
from convsmith.tune.stage_configs import ROW_MEMORY_DIVISOR, StageConfigs, row_bytes, rows_at_once, unfused


class Joint(NamedTuple):
    """The result between two stages: its ``bytes`` per image, and the bytes of the rows that are ``held`` if it is
    fused.

    ``fused`` states whether the default config fuses the two stages; ``why`` gives the reason.
    """

    bytes: int
    held: int
    fused: bool
    why: str


def joints(stages: Stages, configs: StageConfigs, threads: int = 1) -> list[Joint]:
    """Return the joints between ``stages`` of a chain, with the default choice for each on ``threads``."""
    first, second = configs.machine.vector_memories[0], configs.machine.l2
    sizes = [prod(t.shape[1:]) * dtype(t.dtype).bytes for t in (p.outputs[0] for p in stages.problems[:-1])]
    found: list[Joint] = []
    for n, (one, two) in enumerate(pairwise(stages.problems)):
        image = sizes[n]
        if not (isinstance(one, Conv) and isinstance(two, Conv) and has_rows(one)):
            found.append(Joint(image, 0, False, "rows of several channels are fused, other results are not"))
            continue
        held = row_bytes(one) << (two.keff[-2] - 1).bit_length()
        before = found[-1].held if found and found[-1].fused else 0
        start = next(m for m in range(n, -1, -1) if not (m and found[m - 1].fused))
        if image <= first.bytes or max(sizes[max(n - 1, 0) : n + 2]) <= second.bytes:
            why = f"it fits {first if image <= first.bytes else second}"
        elif not (why := _refusal(n, stages.problems[start : n + 2], configs, held + before, before > 0)):
            if configs.uses_fragments(one) or configs.uses_fragments(two):
                why = f"instructions for {_types(one, two)} read copies of a source"
            else:
                large = "it" if image > second.bytes else "the result beside it"
                where = configs.machine.scratchpad or "there"
                why = f"{large} is larger than {second}, and its rows fit {where}"
                found.append(Joint(image, held, True, why))
                continue
        found.append(Joint(image, held, False, why))
    return _priced(stages, configs, threads, found)


def _refusal(n: int, group: Sequence[Problem], configs: StageConfigs, held: int, near: bool) -> str:
    """Return the reason why stage ``n``, the last but one of ``group``, is not computed row by row for the last one;
    empty if it can be. Rows of ``held`` bytes stay between the stages; ``n`` itself is ``near`` if it reads such rows.
    """
    *_, one, two = group
    assert isinstance(one, Conv) and isinstance(two, Conv)
    if (alone := reads_padding_alone(group)) is not None:
        return f"stage {n + 3 - len(group) + alone} would read padding alone, for which no row is computed"
    home = configs.machine.scratchpad or configs.machine.l2
    if held > home.bytes // ROW_MEMORY_DIVISOR:
        return f"rows of {held >> 10} KiB fill more than 1 / {ROW_MEMORY_DIVISOR} of {home}"
    if transformed := [m + 1 for m, problem in ((n, one), (n + 1, two)) if configs.has_transform(problem)]:
        which = " and ".join(map(str, transformed))
        return f"a transform saves products of stage {which}, and none is computed row by row"
    if not (configs.computes_rows(one, near) and configs.computes_rows(two, True)):
        return f"instructions for {_types(one, two)} need sums of a source's entries"
    return ""


def _types(one: Conv, two: Conv) -> str:
    """Return the types of two stages as text."""
    return " and ".join(dict.fromkeys((print_types(one.dt), print_types(two.dt))))


def _priced(stages: Stages, configs: StageConfigs, threads: int, found: list[Joint]) -> list[Joint]:
    """Return the joints ``found``, of which some may be fused, with the choice that takes the fewest cycles on
    ``threads``; several threads may fuse joints of any size.
    """
    may, legal = [joint.fused for joint in found], [joint.fused for joint in found]
    if threads > 1:
        for n, (one, two) in enumerate(pairwise(stages.problems)):
            if found[n].held and not legal[n]:
                legal[n] = not _refusal(n, (one, two), configs, found[n].held, n > 0)
    if not any(legal):
        return found
    home = configs.machine.scratchpad or configs.machine.l2
    costs = ChainCosts(stages, configs, threads)

    def can_fuse(start: int, end: int) -> bool:
        """Return whether the stages ``start`` to ``end`` can be one kernel whose rows fit its memory."""
        inner = found[start:end]
        fit = sum(joint.held for joint in inner) <= home.bytes // ROW_MEMORY_DIVISOR
        if not all(legal[start:end]) or not (fit or all(may[start:end])):
            return False
        return start == end or reads_padding_alone(stages.problems[start : end + 1]) is None

    must = [is_fused and bool(configs.machine.scratchpad) for is_fused in may]
    chosen = costs.least(can_fuse, must)
    for n, joint in enumerate(found):
        if not legal[n] or must[n] or (may[n] and chosen[n]):
            continue
        others = [is_fused != (m == n) for m, is_fused in enumerate(chosen)]
        ratio = costs.total(chosen) / costs.total(others)
        if chosen[n]:
            why = f"{threads} threads meet once less and exchange fewer lines: {ratio:.2f} of the expected cycles"
        elif may[n]:
            why = f"computing it row by row would take {1 / ratio:.2f} of the expected cycles"
        else:
            why = f"{joint.why}; {threads} threads would take {1 / ratio:.2f} of the expected cycles if it were fused"
        found[n] = joint._replace(fused=chosen[n], why=why)
    return found


def has_rows(problem: Problem) -> bool:
    """Return whether the result of ``problem`` has rows of several channels."""
    return isinstance(problem, Conv) and problem.rank > 1 and problem.oc > 1


def are_fusible(stages: Stages, fused: Sequence[bool]) -> bool:
    """Return whether the shapes of ``stages`` permit computing the stages that are ``fused`` at a loop of the next one.
    """
    problems = stages.problems
    ends = [n for n, joined in enumerate([*fused, False]) if not joined]
    groups = [problems[before + 1 : end + 1] for before, end in pairwise([-1, *ends])]
    fusible = (all(map(has_rows, group)) and reads_padding_alone(group) is None for group in groups if len(group) > 1)
    return all(fusible)


def computes_near(problem: Problem) -> bool:
    """Return whether ``problem``, a convolution with a depthwise one, computes rows of the first right before the
    second reads them.
    """
    stages = stages_of(problem)
    return stages is not None and reads_padding_alone(stages.problems) is None


def stages_config(problem: Problem, machine: Machine, threads: int) -> Config:
    """Return the default config of a problem of several stages."""
    if isinstance(problem, Conv) and computes_near(problem):
        return fused_config(problem, machine, threads)
    return chain_config(problem, machine, threads)


def chain_config(problem: Problem, machine: Machine, threads: int) -> Config:
    """Return the configs of all stages, with the loops at which rows of fused stages are computed."""
    stages = stages_of(problem)
    assert stages is not None
    return _chain_config(stages, StageConfigs(machine), threads)


def _chain_config(stages: Stages, configs: StageConfigs, threads: int) -> Config:
    return config_of(stages, configs, threads, [joint.fused for joint in joints(stages, configs, threads)])


def config_of(
    stages: Stages, configs: StageConfigs, threads: int, fused: Sequence[bool], asked: Mapping[int, int] | None = None
) -> Config:  # fmt: skip
    """Return the config of ``stages`` given for each stage whether it is ``fused`` with the next one.

    ``asked`` maps the last stage of fused ones to the number of rows that are computed at once.
    """
    joined = [*fused, False]
    config: Config | None = None
    rows = at_once = 1
    for n in reversed(range(len(stages))):
        problem = stages.problems[n]
        near = n > 0 and fused[n - 1]
        if not near and not joined[n]:
            own = unfused(problem, configs.whole(problem, threads), configs.machine, n > 0)
        elif not joined[n]:
            start = n - joined[n - 1 :: -1].index(False) if False in joined[:n] else 0
            parts = -(-threads // max(problem.dims["mb"], 1))
            rows = at_once = (asked or {}).get(n) or rows_at_once(stages.problems[start : n + 1], configs, parts)
            own = _last_of_fused(problem, configs, parts, at_once).changed(threads=threads)
        else:
            own = configs.by_rows(problem, near, rows).changed(threads=threads)
        end = joined.index(False, n)
        at = "" if end == n else "oh" if end == n + 1 else f"oh{end + 1}"
        config = own.changed(compute_at=f"{at}:{at_once}" if at and at_once > 1 else at, consumer=config)
        if near:
            assert isinstance(problem, Conv)
            rows *= problem.s[-2]
    assert config is not None
    return config


def _last_of_fused(problem: Problem, configs: StageConfigs, parts: int, rows: int) -> Config:
    """Return the config of the last of fused stages, which computes ``rows`` rows of its result at once, in ``parts``.
    """
    own = configs.by_rows(problem, True, rows)
    tiles: list[tuple[str, int]] = []
    if parts > 1:
        tiles.append(("oh", share(problem.dims["oh"], max(rows, own.size("oh")), parts)))
    if rows > 1:
        tiles += [("mb", 1)] * (problem.dims["mb"] > 1) + [("oh", rows)]
    return own.changed(cache=(*tiles, *own.tiles_at("cache")))
