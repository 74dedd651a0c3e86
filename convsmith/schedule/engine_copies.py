"""The copies of an operand's tiles by a copy engine, derived from the loops of a scheduled nest."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.instruction import Instruction
from convsmith.ir.walk import variables_of
from convsmith.machine.device_costs import CopyEngine
from convsmith.passes.tensor_copies import MappedCopy
from convsmith.schedule.loops import Loop
from convsmith.schedule.schedule import Copy
from convsmith.schedule.tensor_views import TileLoop, mapped_copy
from convsmith.statement.statement import Statement, View


def engine_copy(
    st: Statement, view: View, around: Sequence[Loop], own: Sequence[Loop], engine: CopyEngine
) -> MappedCopy:  # fmt: skip
    """Return the copy of the elements that an iteration of the loops ``around`` reads of ``view``, with a dim for each
    of its ``own`` loops; ConfigError if no tensor map can bring it. Rows of the copy run along the innermost dim of
    memory.
    """
    sizes = {d.name: d.size for d in st.dims}
    starts: dict[str, Index] = {}
    tiles: dict[str, TileLoop] = {}
    for x in around:
        starts[x.of] = starts.get(x.of, as_index(0)) + Var(x.name) * x.tile
        tiles[x.of] = TileLoop(tuple((d, sizes[d]) for d in x.dims), starts[x.of], x.tile)
    for of in dict.fromkeys(x.of for x in own):
        parts = [x for x in own if x.of == of]
        size = tiles[of].size if of in tiles else 0
        if prod(x.extent for x in parts) != size:
            raise ConfigError(
                "tensor-map", f"bring: the loops of {view.name} along {of} are "
                f"{' x '.join(f'{x} of {x.extent}' for x in parts)}, and loops around them step by {size}; legal are "
                "loops that are together as long",
            )  # fmt: skip
    nearest = next((b.dim for b in view.layout.blocks if b.stride == 1 and b.size > 1), 0)
    inner = next((d for d in sizes if Var(d) in variables_of(view.coords[nearest]) and sizes[d] > 1), st.reduce[-1])
    made = mapped_copy(st, view, [*tiles.values()], inner, engine)
    if isinstance(made, ConfigError):
        raise ConfigError(made.code, f"bring: {made.message}, so that no tensor map brings it; legal is stage()")
    row = made.map.box[0]
    along = prod(x.extent for x in own if inner in x.dims)
    if len(made.pieces) > 1 and inner in own[-1].dims:
        raise ConfigError(
            "tensor-map", f"bring: a tile of {view.name} has {along} iterations of {inner} ({own[-1]}), and a row of "
            f"its copy has {row}; legal are at most as many",
        )  # fmt: skip
    return made


def require_types(row: Instruction, st: Statement) -> None:
    """Raise ConfigError unless ``row`` multiplies the types of ``st``."""
    types = (*(v.factor for v in st.factors), st.acc)
    if row.types != types:
        raise ConfigError(
            "instruction", f"fragments: {row.name} multiplies {':'.join(row.types)}; legal is an instruction for "
            f"{':'.join(types)}",
        )  # fmt: skip


def with_needed(
    st: Statement, mapped: MappedCopy, around: Sequence[Loop], own: Sequence[Loop], copy: Copy
) -> MappedCopy:  # fmt: skip
    """Return ``mapped`` with the condition that a product reads an element of ``copy``, along its ``own`` loops that
    are part of the result.
    """
    sizes = {d.name: d.size for d in st.dims}
    needed = None
    for of in dict.fromkeys(x.of for x in own if x.role != "k"):
        here = [Var(x.name) * x.tile for x in around if x.of == of]
        here += [Var(place.name) * x.tile for x, place in zip(own, copy.loops) if x.of == of]
        dims = next(x.dims for x in own if x.of == of)
        needed = sum(here, as_index(0)) < prod(sizes[d] for d in dims)
    return mapped._replace(needed=needed)
