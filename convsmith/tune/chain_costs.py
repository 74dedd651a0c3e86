"""The cycles that the threads of a chain are expected to take, by the stages that are fused.

Besides the work of each stage, threads synchronise after each kernel, and load cache lines of its source that other
cores have written. Fused stages synchronise once, and each thread recomputes the rows at the border of its part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from convsmith.ir.types import dtype
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import Stages
from convsmith.tune.features import Features, Section, cycles, times
from convsmith.tune.stage_configs import StageConfigs, row_bytes, rows_at_once
from convsmith.tune.thread_parts import Division, division, share


class ThreadCosts:
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
            events = ("between_cores_byte", self._exchanged(first)), ("meeting", 1)
            self._found[key] = cycles((*work, Section(1, (("threads", events),))), self.configs.machine)
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
        return found

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
        return 2 * others * prod(result.shape) * dtype(result.dtype).bytes

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
