"""Extracts from a target the facts that code generation needs."""

from __future__ import annotations

from convsmith.codegen.facts import Facts
from convsmith.machine.base import Machine


def facts(target: Machine) -> Facts:
    """Return the facts of `target` for code generation."""
    return Facts(
        target.triple, dict(target.attributes), target.rows, target.half, target.fragments, target.address_bits,
        target.head_load, target.byte_lookup, target.word_lookup, target.extremes,
        target.device.dialect if target.device is not None else None, target.fence, alignment=target.alignment,
        part_attributes=target.part_attributes, called_attributes=target.called_attributes,
        has_masked_stores=target.has_masked_stores, has_fused_steps=target.has_fused_steps,
        word_rounding=target.word_rounding, word_conversions=target.word_conversions,
        masked_bytes=target.masked_bytes, has_unsigned_offsets=target.has_unsigned_offsets,
        has_vector_lengths=target.has_vector_lengths, reads_scalars=target.reads_scalars,
        loads_words=target.loads_words, loads_predicated=target.loads_predicated,
        loads_constants=target.loads_constants, relaxed_fma=target.relaxed_fma,
        prefetches_by_loads=target.prefetches_by_loads, narrowing=target.narrowing,
    )  # fmt: skip
