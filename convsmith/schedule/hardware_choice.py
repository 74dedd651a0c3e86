"""The configs under which a copy engine brings the operands of a statement, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.shared import SLOTS
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.machine.device_costs import CopyEngine
from convsmith.schedule.config import Config
from convsmith.schedule.device_tiles import BY_ENGINE
from convsmith.schedule.hardware import SHARED, engine_of, hardware_flaw, hardware_rows, is_mn_major
from convsmith.schedule.loops import fused_chain, fused_dims, in_parts, with_phases
from convsmith.schedule.packed_operands import packed_statement
from convsmith.schedule.tensor_views import view_flaw
from convsmith.statement.parts import cuts_iterations, splits_of_loops, splits_on_devices
from convsmith.statement.phases import phased, phases
from convsmith.statement.statement import Dim, Statement, View

MAX_PARTS = 64
"""Maximum number of parts of a reduction."""
MAX_TURNS = 2
"""Number of tiles that a unit computes one after the other beyond which the reduction has no parts, or, with parts,
none along several loops.
"""


class EngineTile(NamedTuple):
    """A config whose operands a copy engine brings, with the ``row`` that multiplies its ``tile`` of rows and columns.

    There are ``groups`` such tiles, in ``parts`` of the reduction, each of ``steps`` steps of ``terms``. The config has
    as many slots as shared memory has room for. ``around`` are the tiles along rows and columns. Tiles of phases have
    ``steps`` on average, and the ``longest`` more, if that is not 0; tiles of phases that meet no tap do not count.
    """

    config: Config
    row: Instruction
    tile: tuple[int, int]
    groups: int
    parts: int
    steps: float
    terms: int
    longest: float = 0
    around: tuple[int, int] = (1, 1)

    def clustered(self, side: int, groups: int) -> EngineTile:
        """Return the tile with clusters of so many ``groups`` along rows (0) or columns (1)."""
        loop, _ = self.config.tiles_at("group")[side]
        whole = -(-self.around[side] // groups) * groups
        config = self.config.changed(cluster=((loop, groups),))
        return self._replace(config=config, groups=self.groups // self.around[side] * whole)

    @property
    def is_timed(self) -> bool:
        """Whether tiles of as many groups of warps have been timed."""
        return self.tile[0] // self.row.result.shape[0] not in BY_ENGINE.untimed

    @property
    def sharing(self) -> tuple[int, int]:
        """The number of groups of a cluster that share the left operand, and the right one."""
        columns = self.config.size(self.config.lane, "cluster")
        return columns, prod(n for _, n in self.config.tiles_at("cluster")) // columns


def engine_tiles(st: Statement, machine: Machine, rounds: bool = False) -> list[EngineTile] | ConfigError:
    """Return the configs of ``st`` on a machine with a copy engine, legal or not, or the error, with the reason, if the
    engine cannot bring the operands; empty on other machines. Instructions that round sums are among them if ``rounds``
    permits it.
    """
    rows_of_types = hardware_rows(st, machine)
    if not rows_of_types:
        return []
    permitted = [x for x in rows_of_types if rounds or not x.rounds]
    if not permitted:
        return _refuse(f"{rows_of_types[0].name} rounds the {rows_of_types[0].rounds}, which --accuracy=any permits")
    whole, cut = st, phases(st, sparse=True)
    st = phased(whole, tuple(cut), sparse=True)
    if st.residues:
        return _refuse(f"a stride must divide {', '.join(st.residues)}")
    pixels = [d for d in st.dims if d.sort == "images" or (d.axis and d.sort != "taps")]
    beside = {x.name: x.meeting for x in cut.values()}
    channels = [d for d in st.dims if d not in pixels and d.sort != "taps" and not d.axis and d.name not in beside]
    kinds = {d.kind for d in pixels}
    rows = pixels if kinds == {"m"} else [d for d in channels if d.kind == "m"]
    terms = pixels if kinds == {"k"} else [d for d in channels if d.kind == "k"]
    columns = [d for d in channels if d.kind == "n"]
    if len(kinds) > 1 or not rows or not terms or len(columns) != 1 or (rows is not pixels and len(rows) > 1):
        return _refuse("rows, columns and terms of its product are no dims of their own")
    row_loop, row_pairs = fused_chain([d.name for d in rows])
    term_loop, term_pairs = fused_chain([d.name for d in terms])
    lane = columns[0].name
    mn_major = (_has_mn_rows(st.a, terms), _has_mn_rows(st.b, terms))
    reduce = (*(n for n in st.reduce if n not in {d.name for d in terms}), term_loop)
    device, engine = machine.device, engine_of(machine)
    assert device is not None
    found: list[EngineTile] = []
    nbytes = terms[-1].size * dtype(st.a.dtype).bytes
    row_bytes = engine.widths[0] if terms is pixels else _row_bytes(nbytes, bool(st.of("batch")), engine.widths)
    sizes = prod(d.size for d in rows), columns[0].size
    apart = prod(beside.get(d.name, d.size) for d in st.dims if d.kind != "k" and d not in (*rows, *columns))
    count_of_terms = prod(d.size for d in whole.of("k")) / max(prod(beside.values()), 1)
    longest = prod(d.size for d in st.of("k")) if cut else 0
    # Narrower products beside each other would read the rows of the left factor as many times.
    widest = engine.widths[0] // dtype(st.a.dtype).bytes
    for row in (x for x in permitted if (is_mn_major(x, 1), is_mn_major(x, 2)) == mn_major):
        height, width = row.result.shape
        for warps, count in product(BY_ENGINE.across, BY_ENGINE.own if mn_major[1] and width == widest else (1,)):
            tile = height * warps, width * count
            if tile[1] > engine.columns:
                continue
            step = max(row_bytes // dtype(st.a.dtype).bytes, row.terms)
            slot = (tile[0] + tile[1]) * step * dtype(st.a.dtype).bytes
            config = Config(
                machine.name, lane, phases=tuple(cut), fuse=(*row_pairs, *term_pairs), reduce=reduce,
                register=((row_loop, height), (lane, tile[1])), instruction=row.name, realise="hardware", pack=(),
                group=((row_loop, tile[0]), (lane, tile[1]), (term_loop, step)), shared=(st.a.name, st.b.name),
                buffers=max((n for n in engine.slots if n <= (device.shared.bytes - SLOTS) // slot), default=1),
                offsets="sums" if st.sums else "each",
            )  # fmt: skip
            down, across = (-(-n // t) for n, t in zip(sizes, tile))
            around, tiles = (down, across), down * across * apart
            found.append(EngineTile(config, row, tile, tiles, 1, count_of_terms / step, step, longest / step, around))
            if device.units.turns(tiles) <= MAX_TURNS:
                for split, steps in _splits(whole, terms, step, count_of_terms, {x.tap for x in cut.values()}):
                    made, most = config.changed(split=split), steps * longest / count_of_terms
                    parts = prod(n for _, n in split)
                    if len(split) > 1 and device.units.turns(tiles * parts) > MAX_TURNS:
                        continue
                    found.append(EngineTile(made, row, tile, tiles * parts, parts, steps, step, most, around))
    return found or _refuse(f"no instruction takes factors that are {' and '.join(map(_major, mn_major))}")


def legal_tile(tiles: Iterable[EngineTile], st: Statement, machine: Machine) -> Config | ConfigError:
    """Return the first legal config of ``tiles`` of ``st``, or the flaw of the first one if there is none."""
    why: ConfigError | None = None
    for made in tiles:
        read = packed_statement(in_parts(st, made.config, machine), made.config, machine)
        flaw = hardware_flaw(read, made.config, machine)
        if flaw is None:
            return made.config
        why = why or flaw
        own = with_phases(packed_statement(st, made.config, machine), made.config)
        if _has_no_tile(own, made, engine_of(machine)):
            break
    assert why is not None
    return why


def why_not_hardware(st: Statement, machine: Machine, rounds: bool = False) -> Iterator[str]:
    """Yield the reason why a copy engine that ``machine`` has cannot bring the operands of ``st``, if there is one;
    ``rounds`` permits instructions that round sums.
    """
    if len(st.factors) < 2 or not any(x.operands[1].file == SHARED for x in machine.instructions):
        return
    if not hardware_rows(st, machine):
        types = ":".join((*(v.factor for v in st.factors), st.acc))
        why = "a factor has a zero point" if st.shifted else f"no instruction multiplies {types} from shared memory"
        yield _refuse(why).message
    tiles = engine_tiles(st, machine, rounds)
    if isinstance(tiles, ConfigError):
        yield tiles.message
    elif tiles:  # a flaw of the smallest tile is one of all tiles
        found = legal_tile(sorted(tiles, key=lambda x: prod(x.tile)), st, machine)
        yield from [found.message] if isinstance(found, ConfigError) else []


def _refuse(why: str) -> ConfigError:
    return ConfigError("hardware", f"--realise=hardware: {why}; legal is another --realise=")


def _row_bytes(nbytes: int, is_shared: bool, widths: tuple[int, ...]) -> int:
    """Return the legal bytes, among ``widths``, of a row of a copy of ``nbytes`` of terms, which other terms follow if
    ``is_shared``.
    """
    legal = [n for n in widths if not nbytes % n] if is_shared else [n for n in reversed(widths) if n >= nbytes]
    return next(iter(legal), widths[-1] if is_shared else widths[0])


def _major(is_mn: bool) -> str:
    return "MN-major" if is_mn else "K-major"


def _has_mn_rows(view: View, terms: list[Dim]) -> bool:
    """Return whether a view is MN-major: its contiguous elements in memory are not terms."""
    nearest = view.layout.contiguous
    names = {Var(d.name) for d in terms if not d.axis and d.sort != "images"}
    return nearest is None or not variables_of(view.coords[nearest.dim]) & names


def _has_no_tile(st: Statement, made: EngineTile, engine: CopyEngine) -> bool:
    """Return whether an operand of ``st``, which has its phases, has no copy, whatever the tile."""
    rows, _ = made.config.tiles_at("group")[0]
    terms, _ = made.config.tiles_at("group")[2]
    outer = (fused_dims(made.config, rows)[-1], fused_dims(made.config, made.config.lane)[-1])
    inner = fused_dims(made.config, terms)[-1]
    moving = (outer[n] if is_mn_major(made.row, n + 1) else inner for n in range(2))
    return any(view_flaw(view, dim, engine) is not None for view, dim in zip(st.factors, moving))


def _splits(
    st: Statement, terms: list[Dim], step: int, count_of_terms: float, tapped: Collection[str]
) -> Iterator[tuple[tuple[tuple[str, int], ...], float]]:  # fmt: skip
    """Yield splits of a reduction, each the numbers of parts of its loops, and the steps of a part, of ``step`` terms:
    of the loop of all ``terms`` if it is fused, and of loops in equal parts, of channels or of taps other than the
    ``tapped`` ones, which have phases.
    """
    shares: dict[str, dict[int, float]] = {}
    if len(terms) > 1:
        loop, _ = fused_chain([d.name for d in terms])
        count = prod(d.size for d in terms)
        for n in range(2, MAX_PARTS + 1):
            steps = -(-count // (n * step))
            if (n - 1) * steps * step < count and not cuts_iterations(terms, steps * step):
                shares.setdefault(loop, {})[n] = steps * step / count
    for d in st.of("k"):
        if (d not in terms or len(terms) == 1) and d.name not in tapped:
            for n in range(2, min(d.size, MAX_PARTS) + 1):
                if not d.size % n and not (d in terms and d.size // n % step):
                    shares.setdefault(d.name, {})[n] = 1 / n
    for split in splits_of_loops(shares, MAX_PARTS):
        if splits_on_devices(st, len(split)):
            yield split, count_of_terms / step * prod(shares[loop][n] for loop, n in split)
