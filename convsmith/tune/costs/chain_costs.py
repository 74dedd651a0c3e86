"""The cycles that a chain is expected to take, by the stages that are fused.

Besides the work of each stage, a result between two kernels that exceeds the second-level cache moves to the last cache
or to memory and back. Fused stages move no result, but their register tiles are those of rows, and a source in memory
is read in the pieces of those rows, whose pages no prefetcher has begun.

Several threads synchronise after each kernel, and load cache lines of its source that other cores have written. Fused
stages synchronise once, and each thread recomputes the rows at the border of its part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from convsmith.ir.types import dtype
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import Stages
from convsmith.tune.costs.far_lines import is_in_memory
from convsmith.tune.costs.features import Events, Features, Section, cycles, times
from convsmith.tune.costs.thread_parts import Division, division, share
from convsmith.tune.stage_configs import StageConfigs, row_bytes, rows_at_once

FUSED_TIE_RATIO = 1.01
"""Ratio of expected cycles within which stages are fused, because rows take less memory than a whole result."""


class ChainCosts:
    """The expected cycles of the ``stages`` of a chain on ``threads``; each run of fused stages is estimated once."""

    def __init__(self, stages: Stages, configs: StageConfigs, threads: int) -> None:
        self.problems, self.configs, self.threads = stages.problems, configs, threads
        self._found: dict[tuple[int, int], float] = {}

    def total(self, fused: Sequence[bool]) -> float:
        """Return the cycles of the chain, given for each stage whether it is ``fused`` with the next one."""
        ends = [n for n, is_fused in enumerate((*fused, False)) if not is_fused]
        return sum(self.of(start, end) for start, end in zip((0, *(end + 1 for end in ends)), ends))

    def of(self, first: int, last: int) -> float:
        """Return the cycles of the kernel of the stages ``first`` to ``last``, until its threads have synchronised."""
        key = (first, last)
        if key not in self._found:
            work = self._alone(first) if first == last else self._fused(first, last)
            meets = ("between_cores_byte", self._exchanged(first)), ("meeting", float(self.threads > 1))
            between = Section(1, (("threads", meets),)), Section(1, (("result", self._moved(first)),))
            ratio = 1.0 if first == last else 1 / FUSED_TIE_RATIO
            self._found[key] = cycles(times((*work, *between), ratio), self.configs.machine)
        return self._found[key]

    def _alone(self, n: int) -> Features:
        """Return the features of the largest part of stage ``n``, which runs alone."""
        return times(self.configs.features(self.problems[n], self.threads), self._division(n).largest)

    def _fused(self, first: int, last: int) -> Features:
        """Return the features of the largest part of fused stages, that is, of a thread's rows of the last stage and of
        the rows that they read.
        """
        problems = self.problems[first : last + 1]
        images = problems[-1].dims["mb"]
        parts = -(-self.threads // max(images, 1))
        at_once = rows = rows_at_once(problems, self.configs, parts)
        part = share(problems[-1].dims["oh"], at_once, parts)
        largest = -(-images * parts // self.threads) / (images * parts)
        found: Features = ()
        for n, problem in reversed(list(enumerate(problems))):
            assert isinstance(problem, Conv)
            computed = min(part * parts / problem.dims["oh"], float(parts))
            stage = self.configs.features_by_rows(problem, n > 0, rows)
            found += times(stage, max(computed, 1.0) * largest)
            part = (part - 1) * problem.s[-2] + problem.keff[-2]
            rows *= problem.s[-2]
        if first == 0 and (pages := self._pages(rows)):
            found += (Section(largest, (("far memory", (("memory_page", pages * parts),)),)),)
        return found

    def _moved(self, n: int) -> Events:
        """Return the events of writing the source of stage ``n``, the result of another kernel, and reading it, of one
        of the threads; none if the second-level cache holds it.
        """
        size = self.problems[n - 1].outputs[0].nbytes if n else 0
        if size <= self.configs.machine.l2.bytes:
            return ()
        beyond = size if is_in_memory(self.configs.machine, size) else 0
        return ("exposed_far_byte", 2 * size / self.threads), ("streamed_byte", beyond / self.threads)

    def _pages(self, rows: int) -> float:
        """Return the pages of the source of the chain on which reading ``rows`` of its rows at once begins anew,
        which it would not if the first stage ran alone; 0 if a cache holds the source.

        Rows of one plane of adjacent channels follow each other in memory. Channels lie as far apart for a dense stage
        alone, but one of groups reads the planes of one group after another.
        """
        problem, machine = self.problems[0], self.configs.machine
        source = problem.inputs[0]
        if not isinstance(problem, Conv) or not is_in_memory(machine, source.nbytes):
            return 0.0
        planes = prod(min(size, out * taps) for size, out, taps in zip(problem.i, problem.o[:-2], problem.k))
        near = any(b.dim == 1 and b.stride == 1 and b.size > 1 for b in source.layout.blocks)
        if planes == 1 and (near or problem.g == 1):
            return 0.0
        run = rows * problem.i[-1] * (problem.ic if near else 1) * dtype(source.dtype).bytes
        begun = problem.mb * planes * (1 if near else problem.ic) * problem.o[-2] * problem.s[-2] / rows
        return begun * -(-run // machine.costs.page)

    def _exchanged(self, n: int) -> float:
        """Return the bytes of the source of stage ``n`` that a core loads from other cores, and the bytes that go back.

        The first source may be in any memory.
        """
        if n == 0:
            return 0.0
        one, two = self.problems[n - 1 : n + 1]
        others = (self.threads - 1) / self.threads
        if isinstance(one, Conv) and isinstance(two, Conv) and self._has_own_pixels(n - 1) and self._has_own_pixels(n):
            halo = max(two.keff[-2] - two.s[-2], 0) if two.mb < self.threads and two.rank > 1 else 0
            return 2 * others * halo * row_bytes(one)
        (result,) = one.outputs
        return 2 * others * result.nbytes

    def _has_own_pixels(self, n: int) -> bool:
        """Return whether each thread computes adjacent pixels of stage ``n``, which holds for fused stages too."""
        return self._division(n).own_pixels

    def _division(self, n: int) -> Division:
        """Return the division of stage ``n``, which runs alone, among the threads."""
        problem = self.problems[n]
        return division(problem, self.configs.whole(problem, self.threads), self.configs.machine)

    def least(self, can_fuse: Callable[[int, int], bool], must_fuse: Sequence[bool]) -> list[bool]:
        """Return, for each stage, whether it is fused with the next one in the choice with the fewest cycles.

        A kernel consists of stages, from a first to a last one, that ``can_fuse``; joints in ``must_fuse`` are fused.
        """
        best: list[tuple[float, list[bool]]] = [(0.0, [])]
        for end in range(len(self.problems)):
            ways = []
            for start in range(end + 1):
                cuts = start == 0 or not must_fuse[start - 1]
                if cuts and (start == end or can_fuse(start, end)):
                    before, chosen = best[start]
                    chosen = [*chosen, *[False] * (start > 0), *[True] * (end - start)]
                    ways.append((before + self.of(start, end), chosen))
            best.append(min(ways))
        return best[-1][1]
