"""Fragments that are spread over the lanes of a warp: the register and the element that a lane accesses.

In the IR, a fragment has logical coordinates, and a lane accesses its own elements. This module finds them: an access
in a loop over lanes must be, for each lane, to the same element of the same register of that lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.instruction import LANES, FragmentLayout, Instruction, Operand
from convsmith.ir.lane_operands import operands_beside
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Invoke, Stmt
from convsmith.ir.value import Lanes, Load
from convsmith.ir.walk import statements_of, variables_of

__all__ = ["LaneFragments", "Place"]

Numbers = npt.NDArray[np.int64]
Place = tuple[int, int]
"""A register of a lane, and an element of the register."""


class LaneFragments:
    """The fragments in ``body``, whose layouts the rows of its instructions state."""

    def __init__(self, body: Stmt, rows: Mapping[str, Instruction]) -> None:
        self.operands: dict[Buffer, Operand] = {}
        for s in statements_of(body):
            if isinstance(s, Invoke) and s.instruction in rows:
                row = rows[s.instruction]
                for operand, v in zip(row.operands if row.exchange is None else (), (s.dst, *s.args)):
                    if isinstance(v, Load) and v.buffer.scope == "fragment" and operand.file == LANES:
                        self.operands[v.buffer] = operand
        self.operands |= operands_beside(body, self.operands)
        self._places: dict[FragmentLayout, Numbers] = {}
        self._known: dict[tuple[Operand, tuple[Index, ...], Lanes | None], tuple[Place, ...]] = {}

    def fragment(self, buffer: Buffer, index: Sequence[Index]) -> tuple[int, ...]:
        """Return the number of the fragment that contains ``index``."""
        lead = index[: len(index) - len(self.operands[buffer].shape)]
        if any(not i.is_const for i in lead):
            raise InternalError(f"fragment {buffer.name}[{', '.join(map(str, index))}] has no constant number")
        return tuple(i.const for i in lead)

    def places(
        self, buffer: Buffer, index: Sequence[Index], lanes: Lanes | None, named: Mapping[Var, Index]
    ) -> tuple[Place, ...]:
        """Return the registers and elements of an access by each lane; ``named`` are the indices that have names.

        InternalError if a lane would access elements of another lane.
        """
        operand = self.operands[buffer]
        tail = tuple(index[len(index) - len(operand.shape) :])
        while any(variables_of(i) & named.keys() for i in tail):
            tail = tuple(substitute(i, named) for i in tail)
        key = operand, tail, lanes
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._of_lanes(operand, tail, lanes)
        return found

    def _of_lanes(self, operand: Operand, tail: tuple[Index, ...], lanes: Lanes | None) -> tuple[Place, ...]:
        variables = {v for i in tail for v in variables_of(i)}
        if len(variables) > 1:
            raise InternalError(f"{operand.name}[{', '.join(map(str, tail))}]: more than the lane moves it")
        layout, owners = operand.layout, self._owners(operand)
        lane = np.arange(layout.lanes)
        first = _offset(operand, [evaluate(i, dict.fromkeys(variables, lane)) for i in tail])
        found: list[Place] = []
        for offset in lanes.touched if lanes else (0,):
            here = owners[:, np.broadcast_to(first + offset, lane.shape)]
            if (here[1] != lane).any():
                raise InternalError(f"{operand.name}[{', '.join(map(str, tail))}]: a lane accesses that of another")
            if (here[::2] != here[::2, :1]).any():
                raise InternalError(f"{operand.name}[{', '.join(map(str, tail))}]: lanes access different registers")
            found.append((int(here[0, 0]), int(here[2, 0])))
        return tuple(found)

    def received(self, dst: Load, row: Instruction, named: Mapping[Var, Index]) -> list[tuple[int, ...]]:
        """Return, lane by lane, the register that supplies each register of the lane's result, if lanes exchange
        elements.

        ``dst`` is the destination of the elements at a lane's own address.
        """
        operand, layout = self.operands[dst.buffer], row.exchange
        assert layout is not None and dst.lanes is not None
        index = dst.index
        while any(variables_of(i) & named.keys() for i in index):
            index = tuple(substitute(i, named) for i in index)
        variables = {v for i in index for v in variables_of(i)}
        if len(variables) > 1:
            raise InternalError(f"{dst}: more than the lane moves it")
        rank = len(operand.shape)
        given = [
            tuple(evaluate(i, dict.fromkeys(variables, lane)) for i in index) for lane in range(layout.lanes)
        ]  # fmt: skip
        found = []
        starts = np.array([_offset(operand, at[-rank:]) for at in given])
        steps, owners = np.array(dst.lanes.offsets), self._owners(operand)
        givers, numbers = _coordinates(layout)
        lane, element = np.indices((layout.lanes, layout.elements))
        for giver, number in zip(givers, numbers):
            registers, lanes, elements = owners[:, starts[giver] + steps[number]]
            if (lanes != lane).any() or (elements != element).any():
                raise InternalError(f"{row.name} gives a lane elements of {dst} that are not its own")
            places = {(*given[n][:-rank], r) for n, r in zip(giver.ravel().tolist(), registers.ravel().tolist())}
            if len(places) > 1:
                raise InternalError(f"{row.name} gives lanes elements of different registers of {dst}")
            found.append(places.pop())
        return found

    def given(self, src: Load, row: Instruction, named: Mapping[Var, Index]) -> list[tuple[Place, ...]]:
        """Return the registers and elements that make up each word of a lane, if lanes store elements for each other.

        ``src`` are the elements that belong to a lane's own address.
        """
        operand, layout = self.operands[src.buffer], row.exchange
        assert layout is not None and src.lanes is not None
        index = src.index[len(src.index) - len(operand.shape) :]
        while any(variables_of(i) & named.keys() for i in index):
            index = tuple(substitute(i, named) for i in index)
        variables = {v for i in index for v in variables_of(i)}
        if len(variables) > 1:
            raise InternalError(f"{src}: more than the lane moves it")
        first = _offset(operand, [evaluate(i, dict.fromkeys(variables, np.arange(layout.lanes))) for i in index])
        starts, steps = np.broadcast_to(first, layout.lanes), np.array(src.lanes.offsets)
        givers, numbers = _coordinates(layout)
        lane, _ = np.indices((layout.lanes, layout.elements))
        found = []
        for giver, number in zip(givers, numbers):
            registers, lanes, elements = self._owners(operand)[:, starts[giver] + steps[number]]
            if (lanes != lane).any() or (registers != registers[0]).any() or (elements != elements[0]).any():
                raise InternalError(f"{row.name} stores elements of {src} that lanes do not hold in one register")
            found.append(tuple(zip(registers[0].tolist(), elements[0].tolist())))
        return found

    def _owners(self, operand: Operand) -> Numbers:
        """Return the register, the lane and the element that hold each element of an operand, in its order."""
        layout = operand.layout
        found = self._places.get(layout)
        if found is None:
            every = np.indices((layout.registers, layout.lanes, layout.elements)).reshape(3, -1)
            at = _offset(operand, [x.ravel() for x in _coordinates(layout)])
            found = self._places[layout] = np.full((3, operand.size), -1)
            found[:, at] = every
        return found

    def registers(self, buffer: Buffer, fragment: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the number of each register of a fragment."""
        return [(*fragment, r) for r in range(self.operands[buffer].layout.registers)]

    def all_registers(self, buffer: Buffer) -> list[tuple[int, ...]]:
        """Return the numbers of the registers of all fragments of a buffer."""
        lead = buffer.shape[: len(buffer.shape) - len(self.operands[buffer].shape)]
        return [x for n in product(*map(range, lead)) for x in self.registers(buffer, n)]


@cache
def _coordinates(layout: FragmentLayout) -> Numbers:
    """Return the coordinates of each element by register, lane and number within the register."""
    shape = (layout.registers, layout.lanes, layout.elements)
    here = dict(zip(map(Var, "rle"), np.indices(shape)))
    return np.stack([np.broadcast_to(evaluate(i, here), shape) for i in layout.indices])


def _offset(operand: Operand, at: Sequence[Any]) -> Any:
    """Return the number of the element of an operand at coordinates, which may be arrays."""
    return sum(x * prod(operand.shape[n + 1 :]) for n, x in enumerate(at))
