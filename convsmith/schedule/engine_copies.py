"""The copies of an operand's tiles by a copy engine, derived from the loops of a scheduled nest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, conj
from convsmith.ir.instruction import Instruction
from convsmith.machine.device_costs import CopyEngine
from convsmith.passes.buffer_layouts import RowPanels
from convsmith.passes.set_layout import set_layout
from convsmith.passes.speculate import speculate
from convsmith.passes.tensor_copies import MappedCopy
from convsmith.schedule.loops import Loop
from convsmith.schedule.schedule import Copy, Schedule
from convsmith.schedule.tensor_views import TileLoop, mapped_copy
from convsmith.statement.statement import Statement, View


class EngineCopy(NamedTuple):
    """The copy of the elements that each iteration of the loops ``around`` reads of an operand: the tensor map, the
    ``loops`` over a tile, which are the dims of the copy, and the ``sizes`` of the statement's dims.
    """

    mapped: MappedCopy
    around: tuple[Loop, ...]
    loops: tuple[Loop, ...]
    sizes: dict[str, int]

    @property
    def panel(self) -> int:
        """The elements of a row of the copy if its last loop has more, otherwise 0."""
        row = self.mapped.map.box[0]
        return row if self.loops[-1].extent > row else 0

    def into(self, copy: Copy) -> MappedCopy:
        """Return the map of ``copy``, with the condition that a product reads an element: beyond the ends of the loops
        over the result, none does.
        """
        conditions = []
        for of in dict.fromkeys(x.of for x in self.loops if x.role != "k"):
            here = [Var(x.name) * x.tile for x in self.around if x.of == of]
            here += [Var(place.name) * x.tile for x, place in zip(self.loops, copy.loops) if x.of == of]
            dims = next(x.dims for x in self.loops if x.of == of)
            conditions.append(sum(here, as_index(0)) < prod(self.sizes[d] for d in dims))
        return self.mapped._replace(needed=conj(conditions))


def engine_copy(
    st: Statement, view: View, around: Sequence[Loop], own: Sequence[Loop], engine: CopyEngine
) -> EngineCopy | ConfigError:  # fmt: skip
    """Return the copy of the elements that an iteration of the loops ``around`` reads of ``view``, with a dim for each
    of its ``own`` loops; the error, which names the view, if no tensor map can bring it. Rows of the copy run along its
    last loops.
    """
    sizes = st.extents
    starts: dict[str, Index] = {}
    tiles: dict[str, TileLoop] = {}
    for x in around:
        starts[x.of] = starts.get(x.of, as_index(0)) + Var(x.name) * x.tile
        tiles[x.of] = TileLoop(tuple((d, sizes[d]) for d in x.dims), starts[x.of], x.tile)
    for of in dict.fromkeys(x.of for x in own):
        parts = [x for x in own if x.of == of]
        size = tiles[of].size if of in tiles else 0
        if prod(x.extent for x in parts) != size:
            return ConfigError(
                "tensor-map", f"{view.name} has along {of} the loops "
                f"{' x '.join(f'{x} of {x.extent}' for x in parts)}, and loops around them step by {size}",
            )  # fmt: skip
    inner = own[-1].dims[-1]
    made = mapped_copy(st, view, [*tiles.values()], inner, engine)
    if isinstance(made, ConfigError):
        return made
    row, run = made.map.box[0], prod(x.extent for x in takewhile(lambda x: x.of == own[-1].of, reversed(own)))
    is_in_panels = run == own[-1].extent and not run % row
    if run != row and not is_in_panels:
        return ConfigError(
            "tensor-map", f"{view.name} lies in rows along {inner}, of which a copy brings {row}, and its last loops "
            f"have {run}",
        )  # fmt: skip
    return EngineCopy(made, tuple(around), tuple(own), sizes)


def bring_tiles(s: Schedule, loop: Loop, operands: Sequence[EngineCopy]) -> list[Copy]:
    """Have a copy engine bring what each iteration of ``loop`` reads of the ``operands`` to shared memory."""
    copies = s.stage_tiles(loop, [(x.mapped.name, x.loops) for x in operands])
    for copy, x in zip(copies, operands):
        if x.panel:
            s.run(set_layout, copy, RowPanels(x.panel))
    s.run(speculate)
    s.tensor_copies([(copy, x.into(copy)) for copy, x in zip(copies, operands)])
    return copies


def require_types(row: Instruction, st: Statement) -> None:
    """Raise ConfigError unless ``row`` multiplies the types of ``st``."""
    types = (*(v.factor for v in st.factors), st.acc)
    if row.types != types:
        raise ConfigError(
            "instruction", f"fragments: {row.name} multiplies {':'.join(row.types)}; legal is an instruction for "
            f"{':'.join(types)}",
        )  # fmt: skip
