"""Products of fragments (mma.sync), and moves between shared memory and fragments (ldmatrix, stmatrix).

The places of the elements of fragments are transcribed from the PTX manual, independently of convsmith's tables, so
that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from convsmith.emulate.ptx.moves import fetch, put_bytes, space_of
from convsmith.emulate.ptx.operands import TYPES, Operands, PtxType
from convsmith.emulate.ptx.parser import Argument, PtxError, PtxInstruction
from convsmith.emulate.ptx.warp import LANES, Execute, Warp

Place = tuple[np.ndarray, np.ndarray]
"""Row and column of element i of each lane, as arrays over lanes and elements."""
_LANE = np.arange(LANES)[:, None]
_ROW, _QUAD = _LANE >> 2, _LANE & 3


def _a16(k: int, i: np.ndarray) -> Place:
    return _ROW + 8 * (i >> 1 & 1), _QUAD * 2 + (i & 1) + 8 * (i >> 2)


def _b16(k: int, i: np.ndarray) -> Place:
    return _QUAD * 2 + (i & 1) + 8 * (i >> 1), _ROW + 0 * i


def _a8(k: int, i: np.ndarray) -> Place:
    return _ROW + 8 * (i >> 2 & 1), _QUAD * 4 + (i & 3) + 16 * (i >> 3)


def _b8(k: int, i: np.ndarray) -> Place:
    return _QUAD * 4 + (i & 3) + 16 * (i >> 2), _ROW + 0 * i


def _a32(k: int, i: np.ndarray) -> Place:
    return _ROW + 8 * (i & 1), _QUAD + 4 * (i >> 1)


def _b32(k: int, i: np.ndarray) -> Place:
    return _QUAD + 4 * i, _ROW + 0 * i


def sums_of_rows(i: np.ndarray) -> Place:
    """Return the places of sums in a fragment of 16 rows; wgmma uses several adjacent fragments."""
    return _ROW + 8 * (i >> 1 & 1), _QUAD * 2 + (i & 1) + 8 * (i >> 2)


_FACTORS: dict[int, tuple[Callable[[int, np.ndarray], Place], Callable[[int, np.ndarray], Place]]] = {
    1: (_a8, _b8), 2: (_a16, _b16), 4: (_a32, _b32),
}  # fmt: skip
"""Places of the factors by the bytes of an element, for 16 rows and 8 columns."""


@cache
def _places(m: int, n: int, k: int, size: int) -> tuple[Place, Place, Place]:
    """Return the places of the elements of A, B and C."""
    a, b = _FACTORS[size]
    return (a(k, np.arange(m * k // LANES)), b(k, np.arange(n * k // LANES)), sums_of_rows(np.arange(m * n // LANES)))


def _matrix(values: np.ndarray, place: Place, shape: tuple[int, int], wide: np.dtype) -> np.ndarray:
    out = np.zeros(shape, wide)
    out[place] = values.astype(wide)
    return out


def fragment_reader(made: Operands, argument: Argument, element: PtxType) -> Callable[[Warp], np.ndarray]:
    """Return a function that gives the elements of a fragment, a row for each lane."""
    register = max(element.bytes, 4)
    reads = [made.read(x, TYPES[f"b{8 * register}"]) for x in made.items(argument)]
    dtype = element.dtype

    def read(warp: Warp) -> np.ndarray:
        return np.stack([r(warp) for r in reads], 1).view(dtype).reshape(LANES, -1)

    return read


def fragment_writer(made: Operands, argument: Argument) -> Callable[[Warp, np.ndarray, np.ndarray], None]:
    """Return a function that writes the elements of a fragment, a row for each lane."""
    items = made.items(argument)
    puts = [made.write(x, TYPES["b32"]) for x in items]

    def write(warp: Warp, values: np.ndarray, mask: np.ndarray) -> None:
        registers = np.ascontiguousarray(values).view(np.uint32).reshape(LANES, len(puts))
        for n, put in enumerate(puts):
            put(warp, np.ascontiguousarray(registers[:, n]), mask)

    return write


def _mma(ins: PtxInstruction, made: Operands) -> Execute:
    shape, *order = (w for w in ins.words if (w[0] == "m" and w[1:2].isdigit()) or w in ("row", "col"))
    m, n, k = (int(x) for x in shape[1:].replace("n", " ").replace("k", " ").split())
    kinds = [TYPES[w] for w in ins.words if w in TYPES]
    d, a, b, _ = kinds
    if order != ["row", "col"]:
        raise PtxError(f"the interpreter has no products of {' and '.join(order)} factors")
    if d.dtype.kind == "i" and "satfinite" in ins.words:
        raise PtxError("the interpreter has no saturating sums")
    wide = np.dtype(np.int64 if d.dtype.kind == "i" else np.float64)
    reads = [fragment_reader(made, x, t) for x, t in zip(ins.arguments[1:], (a, b, d))]
    write = fragment_writer(made, ins.arguments[0])
    pairs = (m, n, k) == (8, 8, 4)
    if not pairs and m != 16:
        raise PtxError(f"the interpreter has no products {shape}")

    def mma(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "mma.sync")
        left, right, sums = (read(warp) for read in reads)
        if pairs:
            write(warp, _quad_pairs(left, right, sums, wide).astype(d.dtype), mask)
            return
        at_a, at_b, at_c = _places(m, n, k, a.bytes)
        total = _matrix(left, at_a, (m, k), wide) @ _matrix(right, at_b, (k, n), wide)
        total += _matrix(sums, at_c, (m, n), wide)
        write(warp, total[at_c].astype(d.dtype), mask)

    return mma


def _quad_pairs(left: np.ndarray, right: np.ndarray, sums: np.ndarray, wide: np.dtype) -> np.ndarray:
    """Return the sums of mma.m8n8k4: lanes 4q .. 4q + 3 and 16 + 4q .. 16 + 4q + 3 compute a product together."""
    out = np.zeros(sums.shape, wide)
    i = np.arange(8)
    for q in range(4):
        lanes = np.r_[4 * q : 4 * q + 4, 16 + 4 * q : 20 + 4 * q]
        rows = (np.arange(8) & 1)[:, None] + (i & 2) + 4 * (np.arange(8) >> 2)[:, None]
        columns = (i & 4) + (np.arange(8) & 2)[:, None] + (i & 1)
        if sums.dtype == np.float16:
            rows, columns = np.arange(8)[:, None] + 0 * i, i + 0 * np.arange(8)[:, None]
        total = left[lanes].astype(wide) @ right[lanes].astype(wide).T
        out[lanes] = total[rows, columns] + sums[lanes].astype(wide)
    return out


def _matrices(ins: PtxInstruction) -> tuple[int, bool]:
    """Return the number of matrices of 8 x 8 halves that an ldmatrix or stmatrix moves, and whether it transposes them.
    """
    if "m8n8" not in ins.words:
        raise PtxError("the interpreter moves matrices of 8 x 8 halves only")
    return next(int(w[1:]) for w in ins.words if w in ("x1", "x2", "x4")), "trans" in ins.words


def _ldmatrix(ins: PtxInstruction, made: Operands) -> Execute:
    count, transposes = _matrices(ins)
    where, write = made.address(ins.arguments[1], space_of(ins)), fragment_writer(made, ins.arguments[0])

    def load(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "ldmatrix")
        giving = np.arange(LANES) < 8 * count
        rows = fetch(warp, where(warp), 16, giving)[: 8 * count].view(np.uint16).reshape(count, 8, 8)
        if transposes:
            rows = rows.swapaxes(1, 2)
        write(warp, np.ascontiguousarray(rows.reshape(count, LANES, 2).swapaxes(0, 1)).reshape(LANES, -1), mask)

    return load


def _stmatrix(ins: PtxInstruction, made: Operands) -> Execute:
    count, transposes = _matrices(ins)
    where = made.address(ins.arguments[0], space_of(ins))
    read = fragment_reader(made, ins.arguments[1], TYPES["b16"])

    def store(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "stmatrix")
        rows = read(warp).reshape(LANES, count, 2).swapaxes(0, 1).reshape(count, 8, 8)
        if transposes:
            rows = rows.swapaxes(1, 2)
        out = np.zeros((LANES, 16), np.uint8)
        out[: 8 * count] = np.ascontiguousarray(rows).view(np.uint8).reshape(8 * count, 16)
        put_bytes(warp, where(warp), out, np.arange(LANES) < 8 * count)

    return store


MATRICES: dict[str, Callable[[PtxInstruction, Operands], Execute]] = {
    "mma": _mma, "ldmatrix": _ldmatrix, "stmatrix": _stmatrix,
}  # fmt: skip
"""Instructions of this file by the first word of their opcode."""
