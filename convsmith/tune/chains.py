"""The default config of a chain: which stages are fused, and at which loop their rows are computed.

Two stages are fused where the result between them is larger than the second-level cache, and the rows of it that one
row of the kernel's last stage needs fit the memory of the kernel's own buffers: that cache, or the machine's
scratchpad. So is a result beside it that exceeds the nearest cache of vectors. Other stages run one after the other:
one row at a time, register tiles have fewer pixels, which costs more than a result in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import NamedTuple

from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.plan.config import Config
from convsmith.plan.fused import NEAR
from convsmith.plan.kernel import scheduled
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.problem import Problem
from convsmith.problem.types import print_types
from convsmith.tune.candidates import default_config
from convsmith.tune.fused import apart, first_in_order, fused_config, share

ROWS = 2
"""Reciprocal of the fraction of a memory that the rows between fused stages may fill."""


class Joint(NamedTuple):
    """The result between two stages: its ``bytes`` an image, and those of the rows that are ``held`` where it is fused.

    ``fused`` says whether the default config fuses the two stages; ``why`` gives the reason.
    """

    bytes: int
    held: int
    fused: bool
    why: str


class StageConfigs:
    """Default configs of stages for ``machine``, whole or row by row.

    The choice of the stages to fuse asks for a config several times, and the ranking of candidates takes most of the
    time of a choice: each is made once.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        rows = tuple(row for row in machine.instructions if row.rows == 1)
        self._without_fragments = replace(machine, instructions=rows)
        self._has_fragments = len(rows) < len(machine.instructions)
        self._found: dict[tuple[Problem, int, bool], Config] = {}

    def whole(self, problem: Problem, threads: int, fragments: bool = True) -> Config:
        """Return the default config of ``problem``, without instructions on ``fragments`` where that is said."""
        if self._has_fragments and not _is_depthwise(problem):
            # A default config without them is the same on a machine that has them.
            if fragments or (problem, threads, True) in self._found:
                config = self._made(problem, threads, True)
                if fragments or not self._uses_fragments(config):
                    return config
        return self._made(problem, threads, False)

    def _made(self, problem: Problem, threads: int, fragments: bool) -> Config:
        """Return the default config of ``problem`` for the machine, or for the machine without ``fragments``."""
        key = (problem, threads, fragments)
        if key not in self._found:
            machine = self.machine if fragments else self._without_fragments
            self._found[key] = default_config(problem, machine, threads)
        return self._found[key]

    def _uses_fragments(self, config: Config) -> bool:
        """Return whether the instruction of ``config`` works on fragments."""
        return any(row.rows > 1 for row in self.machine.instructions if row.name == config.instruction)

    def has_transform(self, problem: Problem) -> bool:
        """Return whether the default config of the whole ``problem`` uses a transform, as windows of channels may."""
        has_windows = isinstance(problem, Conv) and problem.g < max(problem.ic, problem.oc) and max(problem.k) > 1
        return has_windows and problem.accuracy != "strict" and bool(self.whole(problem, 1).winograd)

    def by_rows(self, problem: Problem, near: bool, rows: int = 1) -> Config:
        """Return the config of a stage that computes a few ``rows`` at a time: the default one of a stage alone where
        ``rows`` are divided into its register tiles of several, else that of a problem of one row.

        A stage that is ``near`` reads rows of a circular buffer.
        """
        assert isinstance(problem, Conv)
        tall = rows > 1 and self.rows_of_tile(problem) > 1 and rows % self.rows_of_tile(problem) == 0
        # Fragments read copies of windows of pixels.
        config = apart(self.whole(problem if tall else _row(problem), 1, fragments=False))
        realise = config.realise if not near or config.realise in NEAR else "peel"
        order = first_in_order(config.order, "mb", "oh")
        return replace(config, split=(), order=order, realise=realise, hold=())

    def rows_of_tile(self, problem: Conv) -> int:
        """Return the rows of the register tile of the default config of the whole ``problem`` if its groups have one
        channel, whose windows share nothing but what they read; else one.
        """
        return self.whole(problem, 1).size("oh") if _is_depthwise(problem) and problem.keff[-2] > 1 else 1

    def computes_rows(self, problem: Conv, near: bool) -> bool:
        """Return whether the default config of one row of ``problem`` can be that of a stage of a fused kernel.

        Fragments read copies of windows of pixels. A stage that is ``near`` reads rows of a circular buffer, where no
        sums of entries are.
        """
        if not _is_depthwise(problem) and self._uses_fragments(self.whole(_row(problem), 1)):
            return False
        st = scheduled(problem, self.by_rows(problem, near, self.rows_of_tile(problem)), self.machine)
        return not near or all(view.adds == st.b.name for view in st.sums)


def joints(stages: Stages, configs: StageConfigs) -> list[Joint]:
    """Return the joints between ``stages`` of a chain, with the default choice for each."""
    machine = configs.machine
    first, second = machine.vector_memories[0], machine.l2
    home = machine.scratchpad or second
    sizes = [prod(t.shape[1:]) * dtype(t.dtype).bytes for t in (p.outputs[0] for p in stages.problems[:-1])]
    found: list[Joint] = []
    for n, (one, two) in enumerate(pairwise(stages.problems)):
        image = sizes[n]
        if not (isinstance(one, Conv) and isinstance(two, Conv) and has_rows(one)):
            found.append(Joint(image, 0, False, "rows of several channels are fused, other results are not"))
            continue
        held = _row_bytes(one) << (two.keff[-2] - 1).bit_length()
        before = found[-1].held if found and found[-1].fused else 0
        if image <= first.bytes or max(sizes[max(n - 1, 0) : n + 2]) <= second.bytes:
            why = f"it fits {first if image <= first.bytes else second}"
        elif held + before > home.bytes // ROWS:
            why = f"rows of {held + before >> 10} KiB fill more than 1 / {ROWS} of {home}"
        elif transformed := [m + 1 for m in (n, n + 1) if configs.has_transform(stages.problems[m])]:
            which = " and ".join(map(str, transformed))
            why = f"a transform saves products of stage {which}, and none is computed row by row"
        elif not (configs.computes_rows(one, before > 0) and configs.computes_rows(two, True)):
            types = " and ".join(dict.fromkeys((print_types(one.dt), print_types(two.dt))))
            why = f"instructions for {types} read copies of a source, or need sums of its entries"
        else:
            large = "it" if image > second.bytes else "the result beside it"
            where = home if machine.scratchpad else "there"
            found.append(Joint(image, held, True, f"{large} is larger than {second}, and its rows fit {where}"))
            continue
        found.append(Joint(image, held, False, why))
    return found


def _is_depthwise(problem: Problem) -> bool:
    """Return whether each channel of the source is a group, for which no fragments and no transforms are."""
    return isinstance(problem, Conv) and problem.g == problem.ic > 1


def has_rows(problem: Problem) -> bool:
    """Return whether the result of ``problem`` has rows of several channels."""
    return isinstance(problem, Conv) and problem.rank > 1 and problem.oc > 1


def _row(problem: Conv) -> Conv:
    """Return the problem of one row of the result."""
    return replace(
        problem.without_transforms(), mb=1, i=(problem.keff[0], *problem.i[1:]), o=(1, *problem.o[1:]),
        p=(0, *problem.p[1:]),
    )  # fmt: skip


def rows_at_once(problems: Sequence[Problem], configs: StageConfigs, parts: int) -> int:
    """Return the rows of the result of fused stages that a kernel computes at once; threads share it in ``parts``.

    Windows read fewer elements where a register tile has several rows: there are as many as the tile of a stage alone
    has, unless the rows between the stages then fill too much of their memory, or a part has no more.
    """
    apart_by, most = 1, 1
    for problem in reversed(problems):
        assert isinstance(problem, Conv)
        most = max(most, configs.rows_of_tile(problem) // apart_by)
        apart_by *= problem.s[-2]
    home = (configs.machine.scratchpad or configs.machine.l2).bytes // ROWS
    while most > 1 and sum(_row_bytes(one) * read for one, read in _rows_read(problems, most)) > home:
        most //= 2
    return most if most < -(-problems[-1].dims["oh"] // parts) else 1


def _rows_read(problems: Sequence[Problem], rows: int) -> Iterator[tuple[Conv, int]]:
    """Yield the fused stages but the last, each with the rows that are read of it for ``rows`` of the last one."""
    for one, two in reversed(list(pairwise(problems))):
        assert isinstance(one, Conv) and isinstance(two, Conv)
        yield one, (rows - 1) * two.s[-2] + two.keff[-2]
        rows *= two.s[-2]


def _row_bytes(problem: Conv) -> int:
    """Return the bytes of a row of the result."""
    t = problem.outputs[0]
    return prod(t.shape[1:]) * dtype(t.dtype).bytes // max(prod(problem.o[:-1]), 1)


def stages_config(problem: Problem, machine: Machine, threads: int) -> Config:
    """Return the default config of a problem of several stages."""
    if isinstance(problem, Conv):
        return fused_config(problem, machine, threads)
    return chain_config(problem, machine, threads)


def chain_config(problem: Problem, machine: Machine, threads: int) -> Config:
    """Return the configs of all stages, and the loops at which rows of fused ones are computed."""
    stages = stages_of(problem)
    assert stages is not None
    return _chain_config(stages, StageConfigs(machine), threads)


def _chain_config(stages: Stages, configs: StageConfigs, threads: int) -> Config:
    return config_of(stages, configs, threads, [joint.fused for joint in joints(stages, configs)])


def config_of(
    stages: Stages, configs: StageConfigs, threads: int, fused: Sequence[bool], asked: Mapping[int, int] | None = None
) -> Config:  # fmt: skip
    """Return the config of ``stages`` in which a stage is ``fused`` with the next one where that is said for it.

    ``asked`` holds numbers of rows that are computed at once, by the last one of fused stages.
    """
    joined = [*fused, False]
    config: Config | None = None
    rows = at_once = 1
    for n in reversed(range(len(stages))):
        problem = stages.problems[n]
        near = n > 0 and fused[n - 1]
        if not near and not joined[n]:
            own = replace(configs.whole(problem, threads), split=())
        elif not joined[n]:
            start = n - joined[n - 1 :: -1].index(False) if False in joined[:n] else 0
            parts = -(-threads // max(problem.dims["mb"], 1))
            rows = at_once = (asked or {}).get(n) or rows_at_once(stages.problems[start : n + 1], configs, parts)
            own = replace(_last_of_fused(problem, configs, parts, at_once), threads=threads)
        else:
            own = replace(configs.by_rows(problem, near, rows), threads=threads)
        end = joined.index(False, n)
        at = "" if end == n else "oh" if end == n + 1 else f"oh{end + 1}"
        config = replace(own, at=f"{at}:{at_once}" if at and at_once > 1 else at, then=config)
        if near:
            assert isinstance(problem, Conv)
            rows *= problem.s[-2]
    assert config is not None
    return config


def _last_of_fused(problem: Problem, configs: StageConfigs, parts: int, rows: int) -> Config:
    """Return the config of the last one of fused stages, which computes ``rows`` of its result at once, in ``parts``.
    """
    own = configs.by_rows(problem, True, rows)
    tiles: list[tuple[str, int]] = []
    if parts > 1:
        tiles.append(("oh", share(problem.dims["oh"], max(rows, own.size("oh")), parts)))
    if rows > 1:
        tiles += [("mb", 1)] * (problem.dims["mb"] > 1) + [("oh", rows)]
    return replace(own, cache=(*tiles, *own.cache))
