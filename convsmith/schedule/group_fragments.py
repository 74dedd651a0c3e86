"""Tiles of a warp: the loops of rows, columns and terms of fragments, and the rewrites that make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var, is_false
from convsmith.ir.instruction import LANES, Instruction
from convsmith.ir.stmt import Store
from convsmith.ir.walk import statements_of
from convsmith.machine.base import Machine
from convsmith.passes.fuse import fuse
from convsmith.passes.manager import Step
from convsmith.passes.reorder import reorder
from convsmith.passes.tile import tile
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loop, Loops, names
from convsmith.statement.statement import Statement, View

ROWS, COLUMNS, TERMS = "m", "n", "k"
"""Names of the loops that those of rows, columns, and terms of a warp become."""


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
    """Return the views that the rows and the columns of fragments move."""
    return (st.a, st.b) if loops.kinds[config.lane] == "n" else (st.b, st.a)


def lane_row(st: Statement, loops: Loops, config: Config, machine: Machine) -> Instruction | None:
    """Return the row that ``config`` names, None without a name; ConfigError where it does not serve ``st``."""
    if not config.instruction:
        return None
    legal = {row.name: row for row in lane_rows(st, loops, config, machine)}
    if config.instruction not in legal:
        types = ":".join((*(v.factor for v in st.factors), st.acc))
        raise ConfigError(
            "instruction", f"--instruction={config.instruction}: legal for products of {types} on {machine.name} are "
            f"{', '.join(legal) or 'none'}",
        )  # fmt: skip
    if st.shifted:
        raise ConfigError(
            "instruction", f"--instruction={config.instruction}: zero points are subtracted from the factors; legal is "
            "--offsets=sums",
        )  # fmt: skip
    return legal[config.instruction]


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


@dataclass(frozen=True)
class WarpTile:
    """The fragments of a warp: the extents of its loops over fragments, and the names of those within one.

    A warp has ``fragments`` rows and columns of fragments of sums, and a step of the reduction ``steps`` products of
    each. The loops ``inner`` stand for those of the specification of ``row``.
    """

    row: Instruction
    fragments: tuple[Loop, Loop]
    steps: Loop
    inner: tuple[str, ...]
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    terms: tuple[Loop, ...]
    loads: tuple[Instruction, ...] = ()

    @property
    def transposed(self) -> dict[str, int]:
        """The rows and columns of a matrix that is transposed while it is loaded, by the type of its elements."""
        loads = (x for x in self.loads if x.exchange is not None and not x.exchange.is_plain)
        return {x.result.dtype: x.result.shape[0] for x in loads}

    @property
    def outer(self) -> tuple[str, ...]:
        """The names of the loops over fragments."""
        return names(self.fragments)

    @property
    def lanes(self) -> int:
        """The lanes of a warp."""
        return self.row.result.layout.lanes

    @property
    def element(self) -> tuple[str, str]:
        """The names of the loops over the rows and the columns of a fragment of sums."""
        return self._within(0)[-1] if len(self._within(0)) == 1 else f"{ROWS}.e", self._within(1)[-1]

    def _within(self, number: int) -> list[str]:
        """Return the loops of the specification along a coordinate of the sums, outermost first."""
        (store,) = (s for s in statements_of(self.row.kernel.body) if isinstance(s, Store))
        steps = sorted(((c, v) for v, c in store.index[number].terms), key=lambda x: -x[0])
        names = dict(zip(self.row.loops, self.inner))
        return [names[v] for _, v in steps if isinstance(v, Var)]

    def sums(self) -> Iterator[Step]:
        """Yield the rewrites that tile the sums of a warp by fragments."""
        shape = self.row.result.shape
        for loops, name, outer, inner, size in zip(
            (self.rows, self.columns), (ROWS, COLUMNS), self.outer, self.element, shape
        ):  # fmt: skip
            yield from _tiled(names(loops), name, size, outer, inner)
        yield Step(reorder, (*self.outer, *self.element))

    def products(self) -> Iterator[Step]:
        """Yield the rewrites that tile the terms of a step by those of an instruction."""
        extents = dict(zip(self.inner, self.row.loops.values()))
        if self.element[0] not in self.inner:
            *blocks, last = self._within(0)
            for n, block in enumerate(blocks):
                size = prod(extents[x] for x in (*blocks[n + 1 :], last))
                rest = last if n == len(blocks) - 1 else f"{ROWS}.e{n}"
                yield Step(tile, self.element[0] if n == 0 else f"{ROWS}.e{n - 1}", size, block, rest)
        (term,) = (n for n, v in zip(self.inner, self.row.loops) if not self.row.steps(0).get(v))
        yield from _tiled(names(self.terms), TERMS, self.row.terms, self.steps.name, term)
        yield Step(reorder, (self.steps.name, *self.outer, *self.inner))


def warp_tile(
    row: Instruction, loads: tuple[Instruction, ...], lane: str, registers: Sequence[Loop], terms: Sequence[Loop]
) -> WarpTile:
    """Return the tile of a warp that computes the loops ``registers`` and ``terms`` with products of ``row``, whose
    factors ``loads`` may load.

    ConfigError where they are no whole fragments. Columns are along the loop ``lane`` and those of its role.
    """
    role = next((x.role for x in registers if x.of == lane), "n")
    batch = [x for x in registers if x.role == "batch"]
    columns = [x for x in registers if x.role == role]
    rows = [x for x in registers if x.role not in (role, "batch")]
    shape = row.result.shape
    for what, loops, size in (("rows", rows, shape[0]), ("columns", columns, shape[1]), ("terms", terms, row.terms)):
        total = prod(x.extent for x in loops)
        if not loops or total % size or batch:
            text = " x ".join(f"{x.of}:{x.extent}" for x in (*batch, *loops)) or "none"
            raise ConfigError(
                "fragment", f"--instruction={row.name} has {size} {what}; legal for "
                f"{'a step' if what == 'terms' else 'a warp'} are multiples of it, found {text}",
            )  # fmt: skip
    counts = [prod(x.extent for x in loops) // n for loops, n in zip((rows, columns, terms), (*shape, row.terms))]

    def loop(name: str, loops: Sequence[Loop], count: int, size: int) -> Loop:
        dims = tuple(d for x in loops for d in x.dims)
        return Loop(f"{name}.f", loops[-1].of, dims, loops[-1].role, "register", count, size, is_tiled=True)

    fragments = (loop(ROWS, rows, counts[0], shape[0]), loop(COLUMNS, columns, counts[1], shape[1]))
    inner = tuple(f"f.{v}" for v in row.loops)
    return WarpTile(
        row, fragments, loop(TERMS, terms, counts[2], row.terms), inner, tuple(rows), tuple(columns), tuple(terms),
        loads,
    )  # fmt: skip


def _tiled(loops: Sequence[str], name: str, size: int, outer: str, inner: str) -> Iterator[Step]:
    """Yield the rewrites that make the adjacent ``loops`` one, ``name``, and split it into ``outer`` and ``inner``."""
    whole = loops[0]
    for n, other in enumerate(loops[1:]):
        fused = name if n == len(loops) - 2 else f"{name}.{n}"
        yield Step(fuse, whole, other, fused)
        whole = fused
    yield Step(tile, whole, size, outer, inner)
