"""Conversions: rounding, saturation, packed pairs, and what is no number.

A conversion to a float makes one NaN of every NaN, whose bits are all ones but for the sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import ml_dtypes
import numpy as np

from convsmith.emulate.ptx.operands import TYPES, Operands, PtxType
from convsmith.emulate.ptx.parser import PtxError, PtxInstruction
from convsmith.emulate.ptx.warp import UNSIGNED, Execute, Warp

_WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_MODIFIERS = {*_WHOLE, "rn", "rz", "rna", "sat", "satfinite", "relu"}


def convert(ins: PtxInstruction, made: Operands) -> Execute:
    """Return the function of a `cvt`. PtxError for a modifier that the interpreter does not know."""
    if ins.words[1] == "pack":
        return _pack(ins, made)
    _, *modifiers, _, _ = words = ins.words
    unknown = {*modifiers} - _MODIFIERS
    if unknown:
        raise PtxError(f"{'.'.join(words)}: the modifier {min(unknown)} is not understood")
    to, of = TYPES[words[-2]], TYPES[words[-1]]
    put = made.write(ins.arguments[0], to)
    sources = [made.read(x, of) for x in ins.arguments[1:]]
    if words[-2] == "tf32":
        function = _to_tf32
    elif to.dtype.kind in "iu":
        function = partial(_to_integer, modifiers, of, to)
    else:
        function = partial(_to_float, modifiers, to)
    if len(sources) == 2:  # the first source becomes the upper half
        high, low = sources

        def pack(warp: Warp, mask: np.ndarray) -> None:
            put(warp, function(np.stack([low(warp), high(warp)], 1).ravel()), mask)

        return pack
    (source,) = sources
    return lambda warp, mask: put(warp, function(source(warp)), mask)


def _pack(ins: PtxInstruction, made: Operands) -> Execute:
    """Return the function of ``cvt.pack``: two saturated integers, the first above the second, below a third operand's
    lower bits.
    """
    to, of = TYPES[ins.words[3]], TYPES[ins.words[4]]
    put, word, bits = made.write(ins.arguments[0], TYPES["b32"]), UNSIGNED[to.bytes], 8 * to.bytes
    high, low = (made.read(x, of) for x in ins.arguments[1:3])
    rest = made.read(ins.arguments[3], TYPES["b32"]) if len(ins.arguments) > 3 else None
    function = partial(_to_integer, ["sat"], of, to)

    def pack(warp: Warp, mask: np.ndarray) -> None:
        above, below = (function(x(warp)).view(word).astype(np.uint32) for x in (high, low))
        upper = rest(warp) << np.uint32(2 * bits) if rest is not None else np.uint32(0)
        put(warp, upper | above << np.uint32(bits) | below, mask)

    return pack


def _to_tf32(x: np.ndarray) -> np.ndarray:
    """Return an f32 rounded to 10 bits of fraction, ties away from zero."""
    return (x.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


def _to_integer(modifiers: Sequence[str], of: PtxType, to: PtxType, x: np.ndarray) -> np.ndarray:
    """Return integers: floats are rounded and saturated, NaN becomes 0; integers wrap unless they are saturated."""
    low, high = int(np.iinfo(to.dtype).min), int(np.iinfo(to.dtype).max)
    if of.dtype.kind in "iu":
        if "sat" not in modifiers:
            return x.astype(to.dtype)
        return np.array([min(max(int(y), low), high) for y in x], to.dtype)
    rounding = next((f for word, f in _WHOLE.items() if word in modifiers), None)
    if rounding is None:
        raise PtxError("a conversion from a float to an integer has no rounding")
    whole = rounding(x.astype(np.float64))
    return np.array([0 if y != y else int(min(max(y, low), high)) for y in whole.tolist()], to.dtype)


def _to_float(modifiers: Sequence[str], to: PtxType, x: np.ndarray) -> np.ndarray:
    """Return floats: rounded to nearest even, toward zero with ``rz``, or to whole numbers.

    ``sat`` clamps them to [0, 1] and makes 0 of NaN, ``relu`` makes 0 of negative numbers, ``satfinite`` takes the
    largest number in place of what is beyond it.
    """
    t, word = to.dtype, UNSIGNED[to.dtype.itemsize]
    rounding = next((f for name, f in _WHOLE.items() if name in modifiers), None)
    y = (x if rounding is None else rounding(x)).astype(t)
    if "rz" in modifiers:
        up = np.abs(y.astype(np.float64)) > np.abs(x.astype(np.float64))
        y = np.where(up, y.view(word) - 1, y.view(word)).astype(word).view(t)
    nan = x != x
    if "sat" in modifiers:
        return np.clip(np.where(nan, 0, y.astype(np.float64)), 0, 1).astype(t)
    if "satfinite" in modifiers:
        most = np.array(ml_dtypes.finfo(t).max, t)  # type: ignore[no-untyped-call]
        beyond = np.abs(x.astype(np.float64)) > most.astype(np.float64)
        y = np.where(beyond, np.copysign(most.astype(np.float64), x.astype(np.float64)).astype(t), y)
    if "relu" in modifiers:
        y = np.where(np.signbit(y.astype(np.float64)), np.zeros(1, t), y)
    canonical = np.array((1 << 8 * t.itemsize - 1) - 1, word).view(t)
    return np.where(nan, canonical, y)
