"""Stores of matrices by all lanes of a warp as LLVM text, and the places of swizzled rows in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from convsmith.arith.evaluate import evaluate
from convsmith.ir.dialect import DialectCall
from convsmith.ir.index import Index, as_index, make_sum
from convsmith.ir.instruction import Instruction
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Invoke
from convsmith.ir.value import Load
from convsmith.ir.walk import variables_of

if TYPE_CHECKING:
    from convsmith.codegen.device_text import ThreadEmitter
    from convsmith.codegen.pipelines import PipelineEmitter

PIECE = 16
"""Bytes of a row that a swizzle keeps together."""
LINE = 128
"""Bytes of shared memory between two places whose pieces a swizzle permutes in another way: all banks once."""
PERIOD = 1024
"""Bytes after which a swizzle repeats."""


def store_matrices(emit: ThreadEmitter, s: Invoke, row: Instruction) -> None:
    """Emit an instruction by which lanes store elements for each other."""
    (source,) = s.args
    assert isinstance(source, Load)
    fragment = emit.lane_fragments.fragment(source.buffer, source.index)
    words = []
    for places in emit.lane_fragments.given(source, row, emit.named):
        out, t = "poison", source.buffer.dtype
        for n, (register, element) in enumerate(places):
            slot = source.buffer, (*fragment, register)
            x = emit.held(slot)
            if emit.vector_of.get(source.buffer, 0):
                x = emit.put(f"extractelement {emit.slot_type(slot)} {x}, i64 {element}")
            out = emit.put(f"insertelement <{len(places)} x {t.llvm}> {out}, {t.llvm} {x}, i64 {n}")
        words.append(emit.put(f"bitcast <{len(places)} x {t.llvm}> {out} to i32"))
    names = {"a": words[0]} if len(words) == 1 else {f"a{n}": x for n, x in enumerate(words)}
    *lines, effect = row.llvm.splitlines()
    call = DialectCall(tuple(lines), tuple(row.declarations), effect)
    emit.spell(call, c=emit.address(s.dst.buffer, s.dst.index[0]), **names)


def swizzled_place(emit: PipelineEmitter, base: str, e: Index, nbytes: int, row: int) -> str:
    """Return the pointer to the element ``e``, of ``nbytes``, of an array at ``base`` whose rows of ``row`` bytes are
    swizzled: the number of a piece is XORed with that of its line.

    The constant part of a place within a line is XORed last, so that many places share one computation.
    """
    moving = make_sum(0, dict(e.terms))
    const, inside = divmod(e.const * nbytes, LINE)
    const *= LINE
    if const % PERIOD or inside % PIECE or _bits(emit, moving, nbytes) & inside:
        moving, const, inside = e, 0, 0
    key = ("swizzled", base, moving)
    place = emit.known.get(key)
    if place is None:
        start = emit.put(f"mul i32 {emit.as_word(emit.index(moving))}, {nbytes}")
        line = emit.put(f"and i32 {emit.put(f'lshr i32 {start}, {(LINE // PIECE).bit_length() - 1}')}, {row - PIECE}")
        place = emit.put(f"xor i32 {start}, {line}")
        emit.known.set(key, place)
    if inside:
        place = emit.put(f"xor i32 {place}, {inside}")
    pointer = f"ptr addrspace({emit.spaces['shared']})"
    at = emit.put(f"getelementptr i8, {pointer} {base}, i32 {place}")
    return emit.put(f"getelementptr i8, {pointer} {at}, i64 {const}") if const else at


def _bits(emit: PipelineEmitter, moving: Index, nbytes: int) -> int:
    """Return the bits within a line that the places of any lane may have."""
    while here := {v: emit.named[v] for v in variables_of(moving) if v in emit.named}:
        moving = substitute(moving, here)
    lanes = emit.lane_variables & variables_of(moving)
    others = {v: as_index(0) for v in variables_of(moving) - lanes}
    rest = moving - substitute(moving, others)
    if any(step * nbytes % PERIOD for _, step in rest.terms):
        return LINE - 1
    counted = evaluate(substitute(moving, others), dict.fromkeys(lanes, np.arange(emit.geometry.group[0])))
    return int(np.bitwise_or.reduce(np.atleast_1d(np.asarray(counted) * nbytes % LINE)))
