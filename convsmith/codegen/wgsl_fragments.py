"""Fragments over the threads of a sub-group in WGSL: each thread has variables for its own registers.

A register of several bytes is a word. Sub-groups have no barrier of their own, so that threads of a sub-group wait for
each other at a barrier of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from convsmith.codegen.lane_fragments import LaneFragments
from convsmith.codegen.wgsl_words import WORD
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import Kernel
from convsmith.ir.value import Load

__all__ = ["WgslFragments", "directives"]

_EXTENSIONS = ("subgroups",)
"""Features of devices that a module enables; others are features of the language."""


def directives(needs: Sequence[str]) -> Iterator[str]:
    """Yield the directives of a module for the features that its instructions need."""
    for feature in sorted(needs, key=lambda x: (x not in _EXTENSIONS, x)):
        yield f"{'enable' if feature in _EXTENSIONS else 'requires'} {feature};"
    if needs:
        # All threads of a sub-group have the same warp, which the language's analysis cannot know.
        yield "diagnostic(off, subgroup_uniformity);"


class WgslFragments:
    """The fragments of a kernel, whose layouts the ``rows`` of its instructions state; `named` are the indices that
    have names.
    """

    def __init__(self, kernel: Kernel, rows: Mapping[str, Instruction]) -> None:
        self._fragments, self.named = LaneFragments(kernel.body, rows), dict[Var, Index]()

    def __contains__(self, b: Buffer) -> bool:
        return b in self._fragments.operands

    def is_word(self, b: Buffer) -> bool:
        """Return whether a register of a thread holds the elements of a word."""
        size = self._fragments.operands[b].layout.elements
        if size > 1 and size * b.dtype.bits != WORD:
            raise InternalError(f"WGSL has no registers of {size} elements of {b.dtype}")
        return size > 1

    def all_registers(self, b: Buffer) -> list[str]:
        """Return the ends of the names of all variables of a buffer."""
        return [_end(x) for x in self._fragments.all_registers(b)]

    def registers(self, v: Load) -> list[str]:
        """Return the ends of the names of the registers of the fragment at ``v``."""
        return [_end(x) for x in self._fragments.registers(v.buffer, self._fragments.fragment(v.buffer, v.index))]

    def places(self, v: Load) -> list[tuple[str, int]]:
        """Return, for each lane of ``v``, the end of the name of its register and the element in it."""
        fragment = self._fragments.fragment(v.buffer, v.index)
        found = self._fragments.places(v.buffer, v.index, v.lanes, self.named)
        return [(_end((*fragment, register)), e) for register, e in found]


def _end(number: Sequence[int]) -> str:
    return "_".join(map(str, number))
