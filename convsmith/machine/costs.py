"""Named costs of a micro-architecture: what ranks one config before another.

Only ratios of costs matter, since the model compares configs of one problem. A level of an instruction set gives the
costs that depend on the width of its vectors. The others default to figures that were measured on Zen 4 and hold on
Intel servers; a micro-architecture whose figures differ replaces them in its row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Costs of one core."""

    multiply_add: float
    """Cycles from one multiply-add of a vector to the next that does not depend on it."""
    broadcast: float
    """Cycles to load one element into all lanes of a vector."""
    latency: float
    """Cycles from a multiply-add to the next one on its result."""
    temporaries: int = 0
    """Registers that a multiply-add needs besides its operands."""

    call: float = 25
    """Cycles to call a register tile and to set up its loops."""
    straight_call: float = 16
    """Cycles to call a register tile that has no loops."""
    turn: float = 2
    """Cycles from one register tile to the next within a function."""
    hidden: float = 0.66
    """Part of the registers whose accumulators are initialised and written back in the shadow of the next tile."""
    hidden_far: float = 0.5
    """Part of the registers likewise, where the result is as large as weights are and goes far away."""
    exposed: float = 10
    """Multiply-adds that each accumulator beyond the hidden ones costs a tile."""
    lane_sum: float = 4
    """Cycles to add up the lanes of one accumulator among others; half of that where half a vector holds the sums."""
    scatter: float = 30
    """Cycles to write the lanes of one vector to places of a line that are not neighbours."""
    scatter_far: float = 120
    """Cycles to write the lanes of one vector to places on lines of their own."""
    gather: float = 1.3
    """Times that a step takes longer where two vectors hold the lanes of its source."""
    gather_singly: float = 5
    """Times that a step takes longer where more vectors hold those lanes, and each lane is read by itself."""
    clash: float = 3.0
    """Times that a step takes longer where its pixels evict each other from the first-level cache."""
    copy: float = 2
    """Cycles to copy a pixel's channels into padded memory."""
    pack: float = 0.5
    """Cycles to pack an element in each call, where the second-level cache holds the operand."""
    pack_far: float = 3
    """Cycles to pack an element in each call, where the operand is beyond that cache."""
    reload: int = 32
    """Multiply-adds of an accumulator that pay for moving it to memory and back."""
    memory_byte: int = 2
    """Multiply-adds in the time that a byte takes from the machine's memory."""
    thread_start: int = 1 << 20
    """Multiply-adds, one in each lane, that pay for starting a thread on a part of a sum."""

    weights_kept: int = 1 << 18
    """Bytes of packed weights that stay in the second-level cache while pixels pass."""
    images_near: int = 1 << 21
    """Bytes of images and results up to which reading hides behind arithmetic."""
    beyond: float = 3
    """Times that reading takes longer from beyond those bytes than from the second-level cache."""
    jump: float = 1.5
    """Times at least that reading takes longer from there, where every line is a jump."""
    fetched: int = 128
    """Bytes that caches fetch at a time."""

    fragment_product: float = 16
    """Cycles of a product of two fragments."""
    fragment_move: float = 8
    """Cycles to load or to store a fragment."""
    fragment_turn: float = 60
    """Cycles from one register tile of fragments to the next."""
    fragment_finish: float = 4
    """Cycles to take a row of a fragment of sums from memory and to write what becomes of it."""
