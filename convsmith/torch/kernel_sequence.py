"""`KernelSequence`: kernels that run one after the other on memory that is laid out once.

A result that only later kernels of the sequence read is placed in an arena, where results with disjoint lifetimes share
memory. Each call passes the addresses of inputs and results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from convsmith.diag.record import record
from convsmith.network.memory import offsets_of
from convsmith.runtime.arrays import ALIGNMENT, address_of, aligned_empty
from convsmith.runtime.border import Given
from convsmith.runtime.host_block import HostBlock
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.prepared_call import Word, writers

__all__ = ["KernelSequence", "Placement", "SequenceStep", "placement"]


@record(frozen=True)
class SequenceStep:
    """A kernel with its `constants`, and the number of the value that each further argument reads or writes.

    `result` is the number of the value that it makes, of `nbytes` bytes. It overwrites the value `replaced`
    unless this is None.
    """

    kernel: HostKernel
    constants: Mapping[str, Given]
    values: Mapping[str, int]
    result: int
    nbytes: int
    replaced: int | None = None


class _Arena:
    """Memory and argument blocks for one call at a time."""

    __slots__ = ("frames", "memory", "moving", "runs", "writers")

    def __init__(self, steps: Sequence[SequenceStep], places: Placement) -> None:
        """The values of the arena follow the scratch memory."""
        outside, homes, nbytes = places
        scratch = max(step.kernel.scratch_bytes for step in steps)
        start = -(-scratch // ALIGNMENT) * ALIGNMENT
        self.memory = aligned_empty(start + nbytes)
        base = address_of(self.memory)
        self.frames = [step.kernel.placed(step.constants, tuple(step.values), base) for step in steps]
        self.runs: list[Callable[[], object]] = [run for frame in self.frames for run in frame.runs]
        words: list[Word] = []
        self.moving: list[HostBlock] = []
        for step, frame in zip(steps, self.frames):
            values = tuple(step.values.values())
            for word in frame.words:
                value = values[word.number]
                if value in outside:
                    words.append(word._replace(number=outside[value]))
                else:
                    word.block.words[word.position] = base + start + homes[value] + word.offset
            if any(value in outside for value in values):
                self.moving += frame.followers
            else:
                for block in frame.followers:
                    block.follow()
        self.writers = writers(words)


class Placement(NamedTuple):
    """Places of values: `outside` in the tensor of a call at a position, `homes` at an offset of an arena of `nbytes`
    bytes.
    """

    outside: Mapping[int, int]
    homes: Mapping[int, int]
    nbytes: int


def placement(steps: Sequence[SequenceStep], outside: Sequence[int]) -> Placement:
    """Return the places of the values of `steps`; calls pass the values `outside`."""
    at = {value: position for position, value in enumerate(outside)}
    own = _storage(steps, at)
    at |= {v: at[home] for v, home in own.items() if home in at}
    homes = offsets_of(_lives(steps, own, at))
    homes |= {v: homes[home] for v, home in own.items() if home in homes}
    ends = [homes[step.result] + step.nbytes for step in steps if step.result in homes]
    return Placement(at, homes, max(ends, default=0))


class KernelSequence:
    """The `steps` in their order; `outside` are the inputs and results, whose addresses each call passes.

    Several threads may call it at once.
    """

    def __init__(self, steps: Sequence[SequenceStep], outside: Sequence[int]) -> None:
        self._steps, self._placement = tuple(steps), placement(steps, outside)
        self._arenas = [_Arena(self._steps, self._placement)]

    def __call__(self, addresses: Sequence[int]) -> None:
        """Run all steps; `addresses` are the addresses of the values `outside`."""
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = _Arena(self._steps, self._placement)
        for words, place, content in arena.writers:
            words[place] = content(addresses)
        for block in arena.moving:
            block.follow()
        for run in arena.runs:
            run()
        # After an interrupt the arena is dropped, because workers may still use it.
        self._arenas.append(arena)

    @property
    def nbytes(self) -> int:
        """Bytes of memory for one call at a time."""
        return sum(arena.memory.nbytes for arena in self._arenas[:1])


def _storage(steps: Sequence[SequenceStep], outside: Mapping[int, int]) -> dict[int, int]:
    """Return, for each result, the value whose memory holds it: the result itself, the value that it overwrites, or a
    later result outside of the arena that overwrites it.
    """
    home: dict[int, int] = {}
    for step in steps:
        home[step.result] = step.result if step.replaced is None else home[step.replaced]
    last = {home[v]: v for v in home if v in outside}
    return {v: last.get(root, root) for v, root in home.items()}


def _lives(
    steps: Sequence[SequenceStep], own: Mapping[int, int], outside: Mapping[int, int]
) -> dict[int, tuple[int, int, int]]:
    """Return bytes, first and last step of each value in the arena."""
    lives: dict[int, tuple[int, int, int]] = {}
    for n, step in enumerate(steps):
        for v in {*step.values.values(), step.result}:
            if v in outside or v not in own:
                continue
            nbytes, first, _ = lives.get(own[v], (step.nbytes, n, n))
            lives[own[v]] = (nbytes, first, n)
    return lives
