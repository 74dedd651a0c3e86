"""Conversions of 8-bit floats on devices with instructions for pairs of them.

An instruction that rounds takes the largest number in place of what is beyond it. Its word is one less than that of
infinity, or of NaN for a type without infinities, so adding 1 there makes the word that the conversion means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from convsmith.codegen.byte_packs import elements, joined
from convsmith.ir.dialect import ByteFloatCalls
from convsmith.ir.types import F8_E4M3, F8_E5M2, F32, DType

if TYPE_CHECKING:
    from convsmith.codegen.device_text import ThreadEmitter

_BEYOND = {F8_E4M3: ("ogt", 464.0), F8_E5M2: ("oge", 61440.0)}
"""The test for sizes that are rounded beyond the largest number: the middle between that and the next power's step is
rounded to even.
"""


def truncated(emit: ThreadEmitter, calls: ByteFloatCalls, x: str, t: DType, lanes: int) -> str:
    """Return f32 as 8-bit floats of type ``t``."""
    zero, ones, words = emit.const(F32, 0, 0), elements(emit, x, F32, lanes), []
    for low, high in zip(ones[::2], [*ones[1::2], zero]):
        word = emit.spell(calls.rounds, low=low, high=high)
        for one, unit in ((low, 1), (high, 256)):
            if one != zero:
                added = emit.put(f"select i1 {_is_beyond(emit, one, t)}, i16 {unit}, i16 0")
                word = emit.put(f"add i16 {word}, {added}")
        words.append(word)
    if not lanes:
        return emit.put(f"trunc i16 {words[0]} to {t.llvm}")
    count = 2 * len(words)
    pairs = emit.put(f"bitcast {emit.vector('i16', len(words))} {joined(emit, 'i16', words)} to {emit.type(t, count)}")
    return pairs if count == lanes else emit.shuffle(t, count, pairs, "poison", list(range(lanes)))


def extended(emit: ThreadEmitter, calls: ByteFloatCalls, x: str, t: DType, lanes: int) -> str:
    """Return 8-bit floats of type ``t`` as f32."""
    if not lanes:
        return _extended_pair(emit, calls, emit.put(f"zext {t.llvm} {x} to i16"), 1)[0]
    count = lanes + lanes % 2
    whole = x if count == lanes else emit.shuffle(t, lanes, x, "poison", [*range(lanes), 0])
    words = emit.vector("i16", count // 2)
    pairs, found = emit.put(f"bitcast {emit.type(t, count)} {whole} to {words}"), list[str]()
    for n in range(count // 2):
        pair = emit.put(f"extractelement {words} {pairs}, i64 {n}")
        found += _extended_pair(emit, calls, pair, min(lanes - 2 * n, 2))
    return joined(emit, F32.llvm, found)


def _extended_pair(emit: ThreadEmitter, calls: ByteFloatCalls, pair: str, count: int) -> list[str]:
    """Return ``count`` numbers of a pair as f32."""
    halves = emit.spell(calls.extends, pair=pair)
    ones = [emit.put(f"extractelement <2 x half> {halves}, i64 {n}") for n in range(count)]
    return [emit.put(f"fpext half {x} to {F32.llvm}") for x in ones]


def _is_beyond(emit: ThreadEmitter, x: str, t: DType) -> str:
    """Return whether an f32 is rounded beyond the largest number; a NaN is not."""
    how, limit = _BEYOND[t]
    return emit.put(f"fcmp {how} {F32.llvm} {emit.intrinsic('fabs', F32, 0, x)}, {emit.const(F32, limit, 0)}")
