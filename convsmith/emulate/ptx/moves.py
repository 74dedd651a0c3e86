"""Loads, stores, atomics, moves between registers, exchanges between the lanes of a warp, and barriers of a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from convsmith.emulate.ptx.memory import LOCAL, PARAM, SHARED
from convsmith.emulate.ptx.operands import TYPES, Operands, PtxType
from convsmith.emulate.ptx.parser import Group, PtxError, PtxInstruction, Register, Symbol
from convsmith.emulate.ptx.warp import ALL, LANE, LANES, UNSIGNED, Execute, InFlight, Warp

SPACES = ("global", "shared", "local", "param", "const")
_WINDOWS = {"shared": SHARED, "local": LOCAL, "param": PARAM, "global": 0, "const": 0}


def space_of(ins: PtxInstruction) -> str:
    """Return the state space that an opcode names; empty for a generic address."""
    return next((w.partition(":")[0] for w in ins.words if w.partition(":")[0] in SPACES), "")


def fetch(warp: Warp, addresses: np.ndarray, size: int, mask: np.ndarray) -> np.ndarray:
    """Return the rows of `size` bytes at the addresses of the lanes of a mask; other rows are zero."""
    numbers = LANE if mask is ALL else np.flatnonzero(mask)
    out = np.zeros((LANES, size), np.uint8)
    for region, which, places in warp.block.region(addresses[numbers], warp):
        lanes = numbers[which]
        offsets = region.offsets(places, size)
        if region is warp.block.locals[warp.number]:
            offsets = offsets + lanes * warp.block.local_bytes
        out[lanes] = region.read(offsets, size, warp.threads[lanes], warp.clock, warp.block.number)
    return out


def put_bytes(warp: Warp, addresses: np.ndarray, rows: np.ndarray, mask: np.ndarray, is_atomic: bool = False) -> None:
    """Write a row of bytes at the address of each lane of a mask."""
    numbers = LANE if mask is ALL else np.flatnonzero(mask)
    for region, which, places in warp.block.region(addresses[numbers], warp):
        lanes = numbers[which]
        if region is warp.block.parameters:
            raise PtxError("a parameter is written")
        offsets = region.offsets(places, rows.shape[1])
        if region is warp.block.locals[warp.number]:
            offsets = offsets + lanes * warp.block.local_bytes
        region.write(offsets, rows[lanes], warp.threads[lanes], warp.clock, warp.block.number, is_atomic)


def _load(ins: PtxInstruction, made: Operands) -> Execute:
    type_ = TYPES[ins.words[-1]]
    items = made.items(ins.arguments[0])
    writes = [made.write(x, type_) for x in items]
    where = made.address(ins.arguments[1], space_of(ins))
    each, size = type_.bytes, type_.bytes * len(items)

    def load(warp: Warp, mask: np.ndarray) -> None:
        rows = fetch(warp, where(warp), size, mask)
        for n, write in enumerate(writes):
            write(warp, np.ascontiguousarray(rows[:, n * each : (n + 1) * each]).view(type_.dtype).ravel(), mask)

    return load


def _store(ins: PtxInstruction, made: Operands) -> Execute:
    type_ = TYPES[ins.words[-1]]
    items = made.items(ins.arguments[1])
    reads = [made.read(x, type_) for x in items]
    where = made.address(ins.arguments[0], space_of(ins))

    def store(warp: Warp, mask: np.ndarray) -> None:
        parts = [np.ascontiguousarray(read(warp)).view(np.uint8).reshape(LANES, -1) for read in reads]
        put_bytes(warp, where(warp), parts[0] if len(parts) == 1 else np.hstack(parts), mask)

    return store


_ATOMIC: dict[str, Callable[..., Any]] = {
    "add": lambda old, new: old + new, "exch": lambda old, new: new, "min": min, "max": max,
    "and": lambda old, new: old & new, "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new,
}  # fmt: skip


def _atomic(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``atom`` or ``red``: lane after lane, in a random order."""
    type_ = TYPES[ins.words[-1]]
    returns = ins.words[0] == "atom"
    place, *sources = ins.arguments[returns:]
    where = made.address(place, space_of(ins))
    reads = [made.read(x, type_) for x in sources]
    write = made.write(ins.arguments[0], type_) if returns else None
    name = next(w for w in ins.words if w in _ATOMIC or w == "cas")

    def atomic(warp: Warp, mask: np.ndarray) -> None:
        addresses, values = where(warp), [read(warp).reshape(LANES, -1) for read in reads]
        before = np.zeros((LANES, type_.count), type_.dtype)
        for lane in warp.block.rng.permutation(np.flatnonzero(mask)):
            one = np.arange(LANES) == lane
            before[lane] = fetch_atomic(warp, addresses, type_, int(lane))
            if name == "cas":
                after = np.where(before[lane] == values[0][lane], values[1][lane], before[lane])
            elif name in ("min", "max"):
                after = (np.minimum if name == "min" else np.maximum)(before[lane], values[0][lane])
            else:
                after = _ATOMIC[name](before[lane], values[0][lane])
            rows = np.zeros((LANES, type_.bytes), np.uint8)
            rows[lane] = np.ascontiguousarray(after.astype(type_.dtype)).view(np.uint8)
            put_bytes(warp, addresses, rows, one, is_atomic=True)
        if write is not None:
            write(warp, before.ravel(), mask)

    return atomic


def fetch_atomic(warp: Warp, addresses: np.ndarray, type_: PtxType, lane: int) -> np.ndarray:
    """Return the content of memory that one lane of an atomic reads."""
    ((region, _, places),) = warp.block.region(addresses[lane : lane + 1], warp)
    offset = int(region.offsets(places, type_.bytes)[0])
    if not region.ready[offset : offset + type_.bytes].all():
        raise region.fault(f"an atomic reads byte {offset} before it is written")
    return region.data[offset : offset + type_.bytes].view(type_.dtype)


def _move(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``mov``, which also joins registers to a wider one and splits them."""
    word = ins.words[-1]
    to, of = ins.arguments
    if isinstance(to, Group):
        parts = len(to.items)
        narrow = PtxType(UNSIGNED[TYPES[word].bytes // parts])
        read = made.read(of, TYPES[word])
        writes = [made.write(x, narrow) for x in to.items]

        def split(warp: Warp, mask: np.ndarray) -> None:
            rows = np.ascontiguousarray(read(warp)).view(narrow.dtype).reshape(LANES, parts)
            for n, write in enumerate(writes):
                write(warp, np.ascontiguousarray(rows[:, n]), mask)

        return split
    type_ = TYPES[word]
    put = made.write(to, type_)
    if isinstance(of, Group):
        narrow = PtxType(UNSIGNED[type_.bytes // len(of.items)])
        reads = [made.read(x, narrow) for x in of.items]
        return lambda warp, mask: put(warp, np.stack([r(warp) for r in reads], 1).ravel().view(type_.dtype), mask)
    if isinstance(of, Symbol) and of.name in made.places and made.places[of.name][0] == "param":
        value = np.full(LANES, PARAM + made.places[of.name][1], np.uint64)
        return lambda warp, mask: put(warp, value, mask)
    source = made.read(of, type_)
    if not isinstance(of, Register) or not isinstance(to, Register) or of.name not in made.kernel.registers:
        return lambda warp, mask: put(warp, source(warp), mask)

    def move(warp: Warp, mask: np.ndarray) -> None:
        held = warp.registers[of.name]
        if isinstance(held, InFlight) and mask is ALL:  # the assembler removes this move
            warp.registers[to.name] = held
        else:
            put(warp, source(warp), mask)

    return move


def _convert_address(ins: PtxInstruction, made: Operands) -> Execute:
    type_ = TYPES[ins.words[-1]]
    window = _WINDOWS[space_of(ins)]
    if space_of(ins) == "param":
        window = 0  # the address of a parameter is generic already
    if "to" in ins.words:
        window = -window
    put, read = made.write(ins.arguments[0], type_), made.read(ins.arguments[1], type_)
    if not window:
        return lambda warp, mask: put(warp, read(warp), mask)
    return lambda warp, mask: put(warp, (read(warp).astype(np.int64) + window).astype(type_.dtype), mask)


def _shuffle(ins: PtxInstruction, made: Operands) -> Execute:
    mode = ins.words[2]
    put = made.write(ins.arguments[0], TYPES["b32"])
    a, b, c, members = (made.read(x, TYPES["u32"]) for x in ins.arguments[1:])

    def shuffle(warp: Warp, mask: np.ndarray) -> None:
        require_members(warp, mask, int(members(warp)[np.flatnonzero(mask)[0]]), "shfl.sync")
        lane = np.arange(LANES)
        step, clamp = b(warp).astype(np.int64) & 31, c(warp).astype(np.int64)
        segment, limit = clamp >> 8 & 31, clamp & 31
        most, least = lane & segment | limit & ~segment, lane & segment
        if mode == "up":
            source, good = lane - step, lane - step >= most
        elif mode == "down":
            source, good = lane + step, lane + step <= most
        elif mode == "bfly":
            source, good = lane ^ step, (lane ^ step) <= most
        else:
            source = least | step & ~segment
            good = source <= most
        put(warp, a(warp)[np.where(good, source, lane)], mask)
        if ins.beside:
            warp.set(ins.beside, good, mask)

    return shuffle


def require_members(warp: Warp, mask: np.ndarray, members: int, what: str) -> None:
    """Raise PtxError unless the lanes that execute an instruction of a warp are the lanes that it names."""
    named = (members >> np.arange(LANES) & 1).astype(bool)
    if (named & warp.live != mask).any():
        raise PtxError(f"{what} is for lanes {members:#x}, and {int(mask.sum())} execute it")


def _vote(ins: PtxInstruction, made: Operands) -> Execute:
    kind = ins.words[2]
    test = made.read(ins.arguments[1], TYPES["pred"])
    put = made.write(ins.arguments[0], TYPES["b32" if kind == "ballot" else "pred"])

    def vote(warp: Warp, mask: np.ndarray) -> None:
        held = test(warp)[mask]
        if kind == "ballot":
            bits = sum(1 << int(n) for n in np.flatnonzero(test(warp) & mask))
            put(warp, np.full(LANES, bits, np.uint32), mask)
        else:
            put(warp, np.full(LANES, bool(held.all() if kind == "all" else held.any())), mask)

    return vote


def _elect(ins: PtxInstruction, made: Operands) -> Execute:
    def elect(warp: Warp, mask: np.ndarray) -> None:
        first = int(np.flatnonzero(mask)[0])
        made.write(ins.arguments[0], TYPES["b32"])(warp, np.full(LANES, first, np.uint32), mask)
        warp.set(ins.beside, np.arange(LANES) == first, mask)

    return elect


def block_barrier(ins: PtxInstruction, made: Operands) -> Execute:
    """Return ``bar.sync``, ``bar.arrive`` and ``barrier.cta``, and ``bar.warp.sync``."""
    reads = [made.read(x, TYPES["u32"]) for x in ins.arguments]
    if "warp" in ins.words:

        def join(warp: Warp, mask: np.ndarray) -> None:
            require_members(warp, mask, int(reads[0](warp)[0]), "bar.warp.sync")
            if (mask == warp.live).all():
                warp.clock.join_lanes()

        return join
    waits = "arrive" not in ins.words

    def barrier(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "a barrier")
        number, *count = (int(read(warp)[0]) for read in reads)
        warp.block.arrive(warp, number, count[0] if count else None, waits)

    return barrier


def _nothing(ins: PtxInstruction, made: Operands) -> Execute:
    return lambda warp, mask: None


def _fence(ins: PtxInstruction, made: Operands) -> Execute:
    """Return a fence, which matters between accesses of threads and asynchronous ones alone."""
    if not {"proxy", "async"} <= set(ins.words):
        return _nothing(ins, made)
    return lambda warp, mask: warp.block.shared.fence(warp.clock.warp)


def _trap(ins: PtxInstruction, made: Operands) -> Execute:
    def trap(warp: Warp, mask: np.ndarray) -> None:
        raise PtxError("the program reaches a trap")

    return trap


def _active(ins: PtxInstruction, made: Operands) -> Execute:
    put = made.write(ins.arguments[0], TYPES["b32"])
    return lambda warp, mask: put(warp, np.full(LANES, sum(1 << int(n) for n in np.flatnonzero(mask)), np.uint32), ALL)


MOVES: dict[str, Callable[[PtxInstruction, Operands], Execute]] = {
    "ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic, "mov": _move, "cvta": _convert_address,
    "shfl": _shuffle, "vote": _vote, "elect": _elect, "bar": block_barrier, "activemask": _active,
    "fence": _fence, "membar": _nothing, "prefetch": _nothing, "prefetchu": _nothing, "nanosleep": _nothing,
    "griddepcontrol": _nothing, "trap": _trap, "discard": _nothing, "applypriority": _nothing,
}  # fmt: skip
"""Instructions of this file by the first word of their opcode. Other fences are no-ops, because the interpreter delays
no access that they order.
"""
