"""Tiles of a warp: the loops of rows, columns and terms of fragments, and the rewrites that form them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.index import Var, is_false
from convsmith.ir.instruction import LANES, Instruction
from convsmith.ir.stmt import Store
from convsmith.ir.types import dtype
from convsmith.ir.walk import statements_of
from convsmith.machine.base import Machine
from convsmith.passes.reorder import reorder
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop, Loops
from convsmith.schedule.product_shape import named_row
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Statement, View

ROWS, COLUMNS, TERMS = "m", "n", "k"
"""Letters in the names of the loops that replace the loops over rows, columns and terms of a warp, for readers of the
IR.
"""


def lane_rows(st: Statement, loops: Loops, config: Config, machine: Machine) -> tuple[Instruction, ...]:
    """Return the rows whose fragments are spread over lanes and which multiply the factors of ``st``, most terms first.

    The columns of fragments are along the lane loop of ``config``.
    """
    if len(st.factors) < 2:
        return ()
    a, b = row_views(st, loops, config)
    rows = machine.fragment_rows(a.factor, b.factor, st.acc)
    return tuple(row for row in rows if all(x.file == LANES for x in row.operands))


def row_views(st: Statement, loops: Loops, config: Config) -> tuple[View, View]:
    """Return the views that the rows and the columns of fragments index."""
    return (st.a, st.b) if loops.kinds[config.lane] == "n" else (st.b, st.a)


def lane_row(st: Statement, loops: Loops, config: Config, machine: Machine) -> Instruction | None:
    """Return the row that ``config`` names, None without a name; ConfigError if it does not suit ``st``."""
    if not config.instruction:
        return None
    row = named_row(st, lane_rows(st, loops, config, machine), config, machine)
    if st.shifted:
        raise ConfigError(
            "instruction", f"--instruction={config.instruction}: zero points are subtracted from the factors; legal is "
            "--offsets=sums",
        )  # fmt: skip
    return row


def why_no_fragments(st: Statement, config: Config, machine: Machine) -> Iterator[str]:
    """Yield the reason why no instruction on fragments that ``machine`` has computes ``st``, if there is one."""
    known = [row for row in machine.instructions if all(x.file == LANES for x in row.operands)]
    if config.instruction or not known:
        return
    if len(st.factors) < 2:
        yield f"{st.name} multiplies no factors"
        return
    if is_false(st.a.mask):
        yield f"no element of {st.a.name} is there"
        return
    types = {row.types for row in known}
    factors = (st.a.factor, st.b.factor)
    rows = [row for row in known if row.types in ((*factors, st.acc), (*reversed(factors), st.acc))]
    if not rows:
        legal = ", ".join(sorted(":".join(x) for x in types))
        yield f"{machine.name} has no instruction for products of {':'.join((*factors, st.acc))}, but for {legal}"
        return
    if st.shifted:
        yield "zero points are subtracted from the factors; --offsets=sums subtracts them from the sums"
        return
    row = min(rows, key=lambda row: row.terms)
    found = tuple(prod(d.size for d in st.of(kind)) for kind in ("m", "n", "k"))
    if any(2 * size <= wanted for size, wanted in zip(found, (*row.result.shape, row.terms))):
        shape, sizes = (" x ".join(map(str, x)) for x in ((*row.result.shape, row.terms), found))
        yield f"the smallest is {row.name}: {shape} rows, columns and terms; the loops have {sizes}"
        return
    if all(row.rounds for row in rows):
        yield f"{rows[0].name} rounds the {rows[0].rounds}, which --accuracy=any permits"
        return
    yield f"the config names none; legal are {', '.join(row.name for row in rows)}"


@record(frozen=True)
class WarpTile:
    """The fragments of a warp: ``fragments`` rows and columns of fragments of sums, with ``steps`` products of ``row``
    per fragment and step of the reduction.

    They are parts of the loops over ``rows``, ``columns`` and ``terms``. The instructions ``loads`` may load factors,
    or messages of the warp, ``by_blocks`` of registers. Registers hold the factors of ``together`` columns of fragments
    at once.
    """

    row: Instruction
    fragments: tuple[int, int]
    steps: int
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    terms: tuple[Loop, ...]
    loads: tuple[Instruction, ...] = ()
    by_blocks: bool = False
    together: int = 1

    @property
    def registers(self) -> tuple[float, ...]:
        """The registers of a lane for the sums and for both factors."""
        sums, left, _ = registers_of(self.row, *self.fragments)
        return sums, left, registers_of(self.row, 1, self.together)[2]

    @property
    def transposed(self) -> dict[str, int]:
        """The rows and columns of a matrix that is transposed while it is loaded, by the type of its elements."""
        loads = (x for x in self.loads if x.exchange is not None and not x.exchange.is_plain)
        return {x.result.dtype: x.result.shape[0] for x in loads}

    @property
    def lanes(self) -> int:
        """The lanes of a warp."""
        return self.row.result.layout.lanes


def registers_of(row: Instruction, high: int, wide: int) -> tuple[float, ...]:
    """Return the registers of a lane for the sums and for both factors of ``high`` x ``wide`` fragments of ``row``."""
    return tuple(
        n * x.layout.registers * x.layout.elements * dtype(x.dtype).bits / 32
        for n, x in zip((high * wide, high, wide), row.operands)
    )


class FragmentLoops(NamedTuple):
    """The loops that replace the loops of a warp's rows and columns: ``outer`` over fragments, ``element`` within a
    fragment of sums. Loops over ``parts`` of the columns are among the outer ones.
    """

    outer: tuple[Loop, ...]
    element: tuple[Loop, Loop]
    parts: tuple[Loop, ...] = ()

    @property
    def loops(self) -> tuple[Loop, ...]:
        """All of these loops, outermost first."""
        return (*self.outer, *self.element)


class ProductLoops(NamedTuple):
    """The loops over the products of a warp: ``steps`` over the products of a fragment, ``inner`` in place of the loops
    of the specification of ``row``, whose factors the instructions ``loads`` may load.
    """

    steps: Loop
    inner: tuple[Loop, ...]
    row: Instruction
    loads: tuple[Instruction, ...] = ()


def tile_sums(s: Schedule, warp: WarpTile) -> FragmentLoops:
    """Tile the sums of a warp by fragments, and return the loops."""
    (rows, row), (columns, column) = (
        s.tile(s.fuse(loops, letter), size, "fe", ("register", "instruction"))
        for loops, letter, size in zip((warp.rows, warp.columns), (ROWS, COLUMNS), warp.row.result.shape)
    )
    parts: tuple[Loop, ...] = ()
    if warp.together < warp.fragments[1]:
        part, columns = s.tile(columns, warp.together, "pf", ("register", "register"))
        parts = (part,)
    found = FragmentLoops((*parts, rows, columns), (row, column), parts)
    s.run(reorder, found.loops)
    return found


def tile_products(s: Schedule, warp: WarpTile, sums: FragmentLoops) -> ProductLoops:
    """Tile the terms of a step by the terms of an instruction, and return the loops."""
    row, levels = warp.row, ("instruction", "instruction")
    stands: dict[Var, Loop] = {}
    for number, rest in enumerate(sums.element):
        *blocks, last = _along(row, number)
        for n, block in enumerate(blocks):
            stands[block], rest = s.tile(rest, prod(row.loops[x] for x in (*blocks[n + 1 :], last)), "be", levels)
        stands[last] = rest
    steps, term = s.tile(s.fuse(warp.terms, TERMS), row.terms, "fe", ("register", "instruction"))
    inner = tuple(stands.get(v, term) for v in row.loops)
    s.run(reorder, (steps, *sums.outer, *inner))
    return ProductLoops(steps, inner, row, warp.loads)


def _along(row: Instruction, number: int) -> list[Var]:
    """Return the loops of the specification of ``row`` along a coordinate of the sums, outermost first."""
    (store,) = (s for s in statements_of(row.kernel.body) if isinstance(s, Store))
    steps = sorted(((c, v) for v, c in store.index[number].terms), key=lambda x: -x[0])
    return [v for _, v in steps if isinstance(v, Var)]


def warp_tile(
    row: Instruction, machine: Machine, lane: str, registers: Sequence[Loop], terms: Sequence[Loop], together: int = 0
) -> WarpTile:
    """Return the tile of a warp that computes the loops ``registers`` and ``terms`` with products of ``row``, whose
    factors instructions of ``machine`` may load, those of ``together`` columns at once, or of all of them if that is 0.

    ConfigError unless they are whole fragments. Columns run along the loop ``lane`` and other loops of its role.
    """
    role = next((x.role for x in registers if x.of == lane), "n")
    batch = [x for x in registers if x.role == "batch"]
    columns = [x for x in registers if x.role == role]
    rows = [x for x in registers if x.role not in (role, "batch")]
    counts, shape = [], row.result.shape
    for what, loops, size in (("rows", rows, shape[0]), ("columns", columns, shape[1]), ("terms", terms, row.terms)):
        total = prod(x.extent for x in loops)
        if not loops or total % size or batch:
            text = " x ".join(f"{x.of}:{x.extent}" for x in (*batch, *loops)) or "none"
            raise ConfigError(
                "fragment", f"--instruction={row.name} has {size} {what}; legal for "
                f"{'a step' if what == 'terms' else 'a warp'} are multiples of it, found {text}",
            )  # fmt: skip
        counts.append(total // size)
    high, wide, steps = counts
    part, rest = divmod(together, shape[1])
    if together and (rest or not part or wide % part):
        raise ConfigError(
            "sub-tile", f"--sub_tile={together}: a warp has {wide * shape[1]} columns, in fragments of {shape[1]}; "
            "legal are columns of whole fragments that divide them",
        )  # fmt: skip
    loads, by_blocks = machine.matrix_loads, bool(machine.messages)
    return WarpTile(row, (high, wide), steps, tuple(rows), tuple(columns), tuple(terms), loads, by_blocks, part or wide)
