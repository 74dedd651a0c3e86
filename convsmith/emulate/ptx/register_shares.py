"""Registers that warps give up and take (setmaxnreg), from a pool that all warps of a block share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from convsmith.emulate.ptx.operands import TYPES, Operands
from convsmith.emulate.ptx.parser import PtxError, PtxInstruction
from convsmith.emulate.ptx.warp import LANES, Execute, Warp

if TYPE_CHECKING:
    from convsmith.emulate.ptx.block import ThreadBlock

UNIT_REGISTERS, STEP = 65536, 8
"""Registers of a unit, and the granularity in which a thread has them."""
LEGAL = range(24, 257, STEP)
"""Numbers of registers that a thread may ask for."""
GROUP = 4
"""Warps that change their registers together."""
_HELD = "registers of a thread"


def held(warp: Warp) -> int:
    """Return the registers of a thread of a warp: at the launch, an equal share for each thread of the block."""
    found = warp.state.get(_HELD)
    return found if found is not None else at_launch(warp.block)


def at_launch(block: ThreadBlock) -> int:
    """Return the registers with which the assembler lets a thread start in a kernel that changes them."""
    return min(UNIT_REGISTERS // (len(block.warps) * LANES), 255) // STEP * STEP


def check_shares(block: ThreadBlock) -> None:
    """Raise PtxError if the warps of a group have ended with different numbers of registers."""
    for first in range(0, len(block.warps), GROUP):
        if len({held(w) for w in block.warps[first : first + GROUP]}) > 1:
            raise PtxError(f"warps {first} to {first + GROUP - 1} change their registers, but not all of them")


def set_registers(ins: PtxInstruction, made: Operands) -> Execute:
    """Return a ``setmaxnreg``: ``dec`` gives registers to the pool of the block, ``inc`` waits until it has enough."""
    is_more, read = "inc" in ins.words, made.read(ins.arguments[0], TYPES["u32"])

    def change(warp: Warp, mask: np.ndarray) -> None:
        warp.require_all(mask, "setmaxnreg")
        count, before, block = int(read(warp)[0]), held(warp), warp.block
        if count not in LEGAL:
            raise PtxError(f"a thread asks for {count} registers; legal are multiples of {STEP} from 24 to 256")
        if (count < before) if is_more else (count > before):
            raise PtxError(f"{ins.words[1]} to {count} registers of a thread, which has {before}")
        if is_more:
            warp.waiting, warp.why = lambda: held(warp) == count, f"{count} registers of a thread"
            block.asking.append((warp, count))
        else:
            block.pool += (before - count) * LANES
            warp.state[_HELD] = count
        _give(block)

    return change


def _give(block: ThreadBlock) -> None:
    """Give registers of the pool to the warps that ask for them, as far as it has enough, the first one first."""
    while block.asking:
        warp, count = block.asking[0]
        more = (count - held(warp)) * LANES
        if more > block.pool:
            return
        block.asking.pop(0)
        block.pool -= more
        warp.state[_HELD] = count
