"""A warp: registers over 32 lanes, and a stack of diverged paths that meet at the immediate post-dominator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from convsmith.emulate.ptx.memory import Clock
from convsmith.emulate.ptx.parser import PtxError, PtxInstruction

if TYPE_CHECKING:
    from convsmith.emulate.ptx.block import ThreadBlock

LANES = 32
ALL, NONE = np.ones(LANES, bool), np.zeros(LANES, bool)
"""The masks of all lanes and of no lane; `canonical` makes them comparable by identity."""
_ALL_BYTES, _NO_BYTES = ALL.tobytes(), NONE.tobytes()
LANE = np.arange(LANES)
"""The numbers of the lanes of a warp."""
UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32),
                                      8: np.dtype(np.uint64)}  # fmt: skip

Execute = Callable[["Warp", np.ndarray], None]


class Operation(NamedTuple):
    """An instruction as a function of a warp and a mask; a branch also has its target and the place where lanes
    reconverge.
    """

    execute: Execute | None
    guard: str
    is_negated: bool
    source: PtxInstruction
    target: int = -1
    meeting: int = -1


@dataclass(eq=False)
class Accumulators:
    """Sums of asynchronous products: `values` of all lanes, and the products under way."""

    values: np.ndarray
    pending: int = 0


class InFlight:
    """The content of a register that asynchronous products write: reading it requires waiting for them."""

    def __init__(self, sums: Accumulators, number: int) -> None:
        self.sums, self.number = sums, number

    dtype = None
    """A register of another type than any that an instruction reads, so that each reading calls `view`."""

    def view(self, dtype: np.dtype) -> np.ndarray:
        """Return the values as `dtype`. PtxError while products are under way."""
        if self.sums.pending:
            raise PtxError("sums are read before their products were waited for")
        return np.ascontiguousarray(self.sums.values[:, self.number]).view(dtype)


class _Path(NamedTuple):
    """Lanes that wait to run from an instruction up to the place where they reconverge."""

    place: int
    meeting: int
    mask: np.ndarray


@dataclass(eq=False)
class Warp:
    """One warp of a block. `waiting` is the condition under which it continues; `why` describes what it waits for."""

    number: int
    block: ThreadBlock
    mask: np.ndarray
    clock: Clock
    threads: np.ndarray
    registers: dict[str, np.ndarray] = field(default_factory=dict)
    place: int = 0
    waiting: Callable[[], bool] | None = None
    why: str = ""
    is_done: bool = False
    state: dict[str, Any] = field(default_factory=dict)
    """Groups of asynchronous operations of the warp, by the instructions that own them."""

    def __post_init__(self) -> None:
        self.mask = canonical(self.mask)
        self.live = self.mask
        self.meeting = -1
        self.paths: list[_Path] = []

    def run(self, steps: int) -> None:
        """Execute at most `steps` instructions, fewer if the warp must wait or ends."""
        code, end = self.block.operations, len(self.block.operations)
        for _ in range(steps):
            while self.place == self.meeting or self.mask is NONE:
                if not self._resume():
                    return
            if self.place == end:
                self._leave(self.mask)
                continue
            op = code[self.place]
            mask = self.mask
            if op.guard:
                holds = self.registers[op.guard]
                mask = canonical(mask & ~holds if op.is_negated else mask & holds)
            try:
                if op.execute is None:
                    self._branch(op, mask)
                elif mask is not NONE:
                    op.execute(self, mask)
                    if self.waiting is not None:
                        if not self.waiting():
                            return
                        self.waiting = None
                    self.place += 1
                else:
                    self.place += 1
            except KeyError as error:
                what = f"register {error.args[0]} is read before it is written"
                raise PtxError(f"{self.name}, {op.source}: {what}") from error
            except PtxError as error:
                raise PtxError(f"{self.name}, {op.source}: {error}") from error

    @property
    def name(self) -> str:
        """The warp's name in messages."""
        return f"block {self.block.number}, warp {self.number}"

    def _branch(self, op: Operation, mask: np.ndarray) -> None:
        if op.target < 0:  # ret, exit
            self._leave(mask)
            if self.mask is not NONE:
                self.place += 1
            return
        stay = NONE if mask is self.mask else canonical(self.mask & ~mask)
        if stay is NONE:
            self.place = op.target
        elif mask is NONE:
            self.place += 1
        else:
            self.paths.append(_Path(op.meeting, self.meeting, self.mask))
            first, second = _Path(op.target, op.meeting, mask), _Path(self.place + 1, op.meeting, stay)
            if self.block.rng.random() < 0.5:
                first, second = second, first
            self.paths.append(second)
            self.place, self.meeting, self.mask = first

    def _resume(self) -> bool:
        """Continue with waiting lanes; return whether there are any."""
        if not self.paths:
            self.is_done = True
            return False
        self.place, self.meeting, self.mask = self.paths.pop()
        self.mask = canonical(self.mask & self.live)
        return True

    def _leave(self, mask: np.ndarray) -> None:
        """End the lanes of a mask."""
        self.live = canonical(self.live & ~mask)
        self.mask = canonical(self.mask & ~mask)
        self.is_done = self.live is NONE

    def require_all(self, mask: np.ndarray, what: str) -> None:
        """Raise PtxError unless all live lanes execute an instruction together."""
        if mask is not self.live and (mask != self.live).any():
            lanes = np.flatnonzero(mask)
            raise PtxError(f"{what} is reached by {len(lanes)} of {self.live.sum()} lanes only")

    def set(self, name: str, value: np.ndarray, mask: np.ndarray) -> None:
        """Write a register in the lanes of `mask`."""
        if name == "_":
            return
        if mask is not ALL:
            old = self.registers.get(name)
            if old is None:
                old = UNWRITTEN[value.dtype.itemsize if value.dtype != bool else 0]
            value = np.where(mask, value, old.view(value.dtype))
        self.registers[name] = value


UNWRITTEN = {0: np.zeros(LANES, bool)} | {
    n: np.full(LANES, 0xBADC0FFEE0DDF00D % (1 << 8 * n), t) for n, t in UNSIGNED.items()
}
"""Contents, by their bytes, of registers in lanes that never wrote them."""


def canonical(mask: np.ndarray) -> np.ndarray:
    """Return `mask`, as the object `ALL` if it has all lanes, as `NONE` if it has none."""
    lanes = mask.tobytes()  # many times as fast as `all` and `any`
    return ALL if lanes == _ALL_BYTES else NONE if lanes == _NO_BYTES else mask
