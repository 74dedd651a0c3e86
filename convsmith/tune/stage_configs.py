"""Default configs of the stages of a chain: of a whole stage, or of one that computes a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.fused import CIRCULAR_REALISATIONS
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.winograd import scheduled_statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.expected import expected_features
from convsmith.tune.costs.features import Features, cycles, times
from convsmith.tune.costs.fetches import fetching
from convsmith.tune.fused import of_stage, with_unfused_pixels

ROW_MEMORY_DIVISOR = 2
"""Rows between fused stages may fill the memory divided by this number."""


class StageConfigs:
    """Default configs of stages for ``machine``, whole or row by row.

    The choice of the stages to fuse needs a config several times, and ranking candidates takes most of the time of a
    choice, so each config is cached. `default` returns the default config of a problem on a machine and threads.
    """

    def __init__(self, machine: Machine, default: Callable[[Problem, Machine, int], Config] = default_config) -> None:
        machine = machine.with_own_vectors
        # A call with packed weights of stages has no fallback kernel for weights beyond a limit.
        unlimited = tuple(row for row in machine.instructions if not row.limit)
        if len(unlimited) < len(machine.instructions):
            machine = replace(machine, instructions=unlimited)
        self.machine, self._default = machine, default
        rows = tuple(row for row in machine.instructions if not _reads_copy(row))
        self._without_copies = replace(machine, instructions=rows)
        self._has_copies = len(rows) < len(machine.instructions)
        self._found: dict[tuple[Problem, int, bool], Config] = {}

    def whole(self, problem: Problem, threads: int, copies: bool = True) -> Config:
        """Return the default config of ``problem``; unless ``copies``, it has no instructions that read copies: those
        on fragments, and on words of a copy.
        """
        if self._has_copies and not _is_depthwise(problem):
            # A default config without these instructions is the same on a machine that has them.
            if copies or (problem.canonical(), threads, True) in self._found:
                config = self._made(problem, threads, True)
                if copies or not any(map(_reads_copy, self._rows_of(config))):
                    return config
        return self._made(problem, threads, False)

    def _made(self, problem: Problem, threads: int, copies: bool) -> Config:
        """Return the default config of ``problem`` for the machine, or for the machine without instructions that read
        ``copies``.
        """
        plain = problem.canonical()
        key = (plain, threads, copies)
        if key not in self._found:
            machine = self.machine if copies else self._without_copies
            self._found[key] = self._default(plain, machine, threads)
        return self._found[key]

    def _rows_of(self, config: Config) -> Iterator[Instruction]:
        """Yield the row of the instruction of ``config``, if it names one."""
        return (row for row in self.machine.instructions if row.name == config.instruction)

    def has_transform(self, problem: Problem) -> bool:
        """Return whether the default config of the whole ``problem`` uses a transform, as windows of channels may."""
        has_windows = isinstance(problem, Conv) and problem.g < max(problem.ic, problem.oc) and max(problem.k) > 1
        return has_windows and problem.accuracy != "strict" and bool(self.whole(problem, 1).tiles_at("winograd"))

    def by_rows(self, problem: Problem, near: bool, rows: int = 1) -> Config:
        """Return the config of a stage that computes a few ``rows`` at a time: the default config of the stage alone if
        its register tiles have several rows that divide ``rows``, otherwise the default config of a problem of one row.

        A ``near`` stage reads rows of a circular buffer and fetches none; another one reads the whole source, and
        fetches the pixels of the next tile as the stage alone would.
        """
        # Copies hold whole images or windows of pixels.
        config = with_unfused_pixels(self.whole(self._chosen_for(problem, rows), 1, copies=False))
        realise = config.realise if not near or config.realise in CIRCULAR_REALISATIONS else "peel"
        config = of_stage(config, "mb", "oh").changed(realise=realise, resident=())
        if near:
            return config.changed(fetch=())
        st = scheduled(problem, config, self.machine)
        ahead = fetching(st, config, self.machine).staged("fetch")
        return config.changed(fetch=tuple(n for n in ahead if n == st.a.name))

    def _chosen_for(self, problem: Problem, rows: int) -> Conv:
        """Return the problem whose default config is used for a stage that computes ``rows`` rows at a time."""
        assert isinstance(problem, Conv)
        tile = self.rows_of_tile(problem) if rows > 1 else 1
        return row_of(problem) if tile == 1 or rows % tile else problem

    def features(self, problem: Problem, threads: int) -> Features:
        """Return the features of a stage that runs alone, on one thread."""
        return expected_features(problem, self.whole(problem, threads), self.machine)

    def features_by_rows(self, problem: Conv, near: bool, rows: int) -> Features:
        """Return the features of a stage that computes a few ``rows`` at a time, on one thread. A stage that is not
        ``near`` waits for the lines of its whole source, where their price depends on its size.
        """
        part, config = self._chosen_for(problem, rows), self.by_rows(problem, near, rows)
        again = prod(problem.outputs[0].shape) / prod(part.outputs[0].shape)
        found = times(expected_features(part, config, self.machine), again)
        if near or not self.machine.costs.arriving_line:
            return found
        whole = expected_features(problem, config, self.machine)
        return max(found, whole, key=lambda features: cycles(features, self.machine))

    def rows_of_tile(self, problem: Conv) -> int:
        """Return the rows of the register tile of the default config of the whole ``problem`` if its groups have one
        channel, whose windows share only the source; otherwise 1.
        """
        return self.whole(problem, 1).size("oh") if _is_depthwise(problem) and problem.keff[-2] > 1 else 1

    def uses_fragments(self, problem: Conv) -> bool:
        """Return whether the default config of one row of ``problem`` works on fragments, which read copies of windows
        of pixels.
        """
        return not _is_depthwise(problem) and any(
            row.rows > 1 for row in self._rows_of(self.whole(row_of(problem), 1))
        )

    def computes_rows(self, problem: Conv, near: bool) -> bool:
        """Return whether a stage of a fused kernel can compute ``problem`` row by row.

        A ``near`` stage reads rows of a circular buffer, for which sums of entries are not available.
        """
        st = scheduled(problem, self.by_rows(problem, near, self.rows_of_tile(problem)), self.machine)
        return not near or all(view.adds == st.b.name for view in st.sums)


def unfused(problem: Problem, config: Config, machine: Machine, reads_another: bool) -> Config:
    """Return ``config``, the config of ``problem`` alone, for a stage of a chain that is not fused.

    Operands are packed before the first stage runs, so the result of another stage cannot be packed.
    """
    own = of_stage(config)
    source = scheduled_statement(problem, own, machine).a.name if reads_another else ""
    return own.changed(pack=tuple(name for name in own.staged("pack") if name != source))


def _reads_copy(row: Instruction) -> bool:
    """Return whether an instruction works on fragments, or on words of a copy."""
    return row.rows > 1 or bool(row.copied)


def _is_depthwise(problem: Problem) -> bool:
    """Return whether each channel of the source is a group, which excludes fragments and transforms."""
    return isinstance(problem, Conv) and problem.g == problem.ic > 1


def row_of(problem: Conv) -> Conv:
    """Return the problem of one row of the result."""
    return replace(
        problem.without_transforms(), mb=1, i=(problem.keff[0], *problem.i[1:]), o=(1, *problem.o[1:]),
        p=(0, *problem.p[1:]),
    )  # fmt: skip


def rows_at_once(problems: Sequence[Problem], configs: StageConfigs, parts: int) -> int:
    """Return the rows of the result of fused stages that a kernel computes at once; threads share it in ``parts``.

    Windows read fewer elements where a register tile has several rows. So the kernel computes as many rows as the
    register tile of a separate stage has, unless the rows between the stages then fill too much of their memory, or a
    part has fewer rows.
    """
    apart_by, most = 1, 1
    for problem in reversed(problems):
        assert isinstance(problem, Conv)
        most = max(most, configs.rows_of_tile(problem) // apart_by)
        apart_by *= problem.s[-2]
    home = (configs.machine.scratchpad or configs.machine.l2).bytes // ROW_MEMORY_DIVISOR
    while most > 1 and sum(row_bytes(one) * read for one, read in _rows_read(problems, most)) > home:
        most //= 2
    return most if most < -(-problems[-1].dims["oh"] // parts) else 1


def _rows_read(problems: Sequence[Problem], rows: int) -> Iterator[tuple[Conv, int]]:
    """Yield the fused stages except the last, each with the number of its rows that ``rows`` rows of the last stage
    require.
    """
    for one, two in reversed(list(pairwise(problems))):
        assert isinstance(one, Conv) and isinstance(two, Conv)
        yield one, (rows - 1) * two.s[-2] + two.keff[-2]
        rows *= two.s[-2]


def row_bytes(problem: Conv) -> int:
    """Return the bytes of a row of the result."""
    t = problem.outputs[0]
    return prod(t.shape[1:]) * dtype(t.dtype).bytes // max(prod(problem.o[:-1]), 1)
