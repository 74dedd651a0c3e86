"""Asynchronous copies of threads (cp.async) in groups: their data arrives when the program waits for it, not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from convsmith.emulate.ptx.moves import fetch
from convsmith.emulate.ptx.operands import TYPES, Operands
from convsmith.emulate.ptx.parser import PtxError, PtxInstruction
from convsmith.emulate.ptx.tensor_copies import BULK
from convsmith.emulate.ptx.warp import LANES, Execute, Warp


class CopyUnderWay(NamedTuple):
    """A copy of `size` bytes per lane: the first `filled` bytes come from memory, the remainder is zero."""

    to: np.ndarray
    of: np.ndarray
    size: int
    filled: np.ndarray
    mask: np.ndarray


def _places(warp: Warp, copy: CopyUnderWay) -> np.ndarray:
    lanes = np.flatnonzero(copy.mask)
    return warp.block.shared.offsets(copy.to[lanes], copy.size)[:, None] + np.arange(copy.size)


def _copy(ins: PtxInstruction, made: Operands) -> Execute:
    to, of = made.address(ins.arguments[0], "shared"), made.address(ins.arguments[1], "global")
    reads = [made.read(x, TYPES["u32"]) for x in ins.arguments[2:]]

    def copy(warp: Warp, mask: np.ndarray) -> None:
        size = int(reads[0](warp)[0])
        filled = reads[1](warp).astype(np.int64) if len(reads) > 1 else np.full(LANES, size)
        if size not in (4, 8, 16) or (filled[mask] > size).any():
            raise PtxError(f"cp.async copies {size} bytes, {filled[mask].max()} of them from memory")
        one = CopyUnderWay(to(warp), of(warp), size, filled, mask)
        shared, lanes, places = warp.block.shared, np.flatnonzero(mask), _places(warp, one)
        shared.check_overwrite(places)
        assert shared.accesses is not None
        race = shared.accesses.write(places, warp.threads[lanes], warp.clock, warp.block.number)
        if race:
            raise shared.fault(race)
        shared.begin_pending(places, True)
        warp.state.setdefault("open copies", []).append(one)

    return copy


def _commit(ins: PtxInstruction, made: Operands) -> Execute:
    def commit(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "cp.async.commit_group")
        warp.state.setdefault("copies", []).append(warp.state.pop("open copies", []))

    return commit


def _wait(ins: PtxInstruction, made: Operands) -> Execute:
    everything = "wait_all" in ins.words
    pending = None if everything else made.read(ins.arguments[0], TYPES["u32"])

    def wait(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "cp.async.wait_group")
        groups = warp.state.setdefault("copies", [])
        if pending is None:
            groups.append(warp.state.pop("open copies", []))
        while len(groups) > (0 if pending is None else int(pending(warp)[0])):
            for copy in groups.pop(0):
                _arrive(warp, copy)

    return wait


def _arrive(warp: Warp, copy: CopyUnderWay) -> None:
    """Write what a copy brings, as a write of the threads that issued it."""
    shared, lanes, places = warp.block.shared, np.flatnonzero(copy.mask), _places(warp, copy)
    rows = np.zeros((LANES, copy.size), np.uint8)
    for filled in np.unique(copy.filled[lanes]):
        if filled:
            some = copy.mask & (copy.filled == filled)
            whole = int(filled) == copy.size
            if whole:
                rows[some] = fetch(warp, copy.of, copy.size, some)[some]
            else:
                for n in range(int(filled)):
                    rows[some, n] = fetch(warp, copy.of + n, 1, some)[some, 0]
    shared.end_pending(places, True)
    shared.write(places[:, 0], rows[lanes], warp.threads[lanes], warp.clock, warp.block.number)


KINDS: dict[str, Callable[[PtxInstruction, Operands], Execute]] = {
    "commit_group": _commit, "wait_group": _wait, "wait_all": _wait, "ca": _copy, "cg": _copy,
}  # fmt: skip
"""Forms of ``cp.async`` by its third word."""


def copy_instruction(ins: PtxInstruction, made: Operands) -> Execute:
    """Return the function of a ``cp.async``."""
    if ins.words[2] == "bulk":
        if ins.words[3] not in BULK:
            raise PtxError("the interpreter has no such copy")
        return BULK[ins.words[3]](ins, made)
    if ins.words[2] not in KINDS:
        raise PtxError("the interpreter has no such copy")
    return KINDS[ins.words[2]](ins, made)
