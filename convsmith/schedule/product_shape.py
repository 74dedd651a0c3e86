"""The instruction that computes a statement's products."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd, prod

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.index import Eq0, Ge0, Mod, Var, is_true, parts_of
from convsmith.ir.instruction import Instruction, RegisterFile
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.loops import fused_dims
from convsmith.statement.statement import Statement, View, steps_evenly, view_steps

FILLED = 0.75
"""Minimum fraction of the terms of an instruction on fragments that channels fill, if a copy pads the remainder."""


@record(frozen=True)
class ProductShape:
    """The shape of a product instruction: ``lanes`` sums at once, each of ``terms`` products.

    ``name`` is the name of the row in a config. If the config names no instruction, elements of the type of sums are
    multiplied and added. An instruction of several terms is a ``dot`` product. In straight-line code, ``merged``
    products of one term become one instruction. An instruction with several ``rows`` works on fragments of ``rows``
    times ``lanes`` sums. ``group`` terms are contiguous in its packed operand, whose elements packing converts to the
    type ``widens`` unless that is empty; a copy of A likewise converts its elements to the type ``copied``. It needs
    ``temporaries`` registers besides those of its operands. Its results are right for weights up to the magnitude
    ``limit``, unless that is 0. Registers of ``file`` hold the sums, ``bits`` of a fragment, registers of
    ``factor_file`` the factors.
    """

    lanes: int
    terms: int
    dot: bool
    rows: int = 1
    group: int = 1
    name: str = ""
    widens: str = ""
    temporaries: int = 0
    limit: int = 0
    merged: int = 1
    file: str = "vector"
    factor_file: str = "vector"
    copied: str = ""
    bits: int = 0

    @property
    def converts(self) -> bool:
        """Whether factors are converted to the type of sums before they are multiplied."""
        return not self.name

    @staticmethod
    def of(st: Statement, target: Machine, config: Config) -> ProductShape:
        """Return the unit of the instruction that ``config`` names; ConfigError if it does not suit ``st``."""
        if not config.instruction:
            return ProductShape.plain(st, target)
        row = named_row(st, rows(st, target, has_pixels_as_lanes(st, config)), config, target)
        single = single_row(row, config, target)
        if problem := unfit(st, single or row, config):
            raise ConfigError("instruction", f"--instruction={row.name}: {problem}")
        return ProductShape.of_row(row) if single is None else ProductShape.merging(single, row)

    def filling(self, tile: int) -> ProductShape:
        """Return the unit with the number of lanes that fill a ``tile``: all lanes of a short tile, or an even part of
        it.
        """
        return replace(self, lanes=tile if tile <= self.lanes else gcd(tile, self.lanes))

    @staticmethod
    def choices(st: Statement, target: Machine, limited: bool = True) -> list[ProductShape]:
        """Return the candidate units: an instruction on fragments, if one is suitable, and instructions on vectors; of
        these also one on words to which a copy widens bytes, if widening them as they are loaded takes time.

        Instructions with a limit on the weights are included only if `limited`, since another kernel must compute with
        larger weights. If the dot product on vectors is slow, the multiply-add of the type of sums is a candidate too.
        """
        fragments = [row for row in fragment_rows(st, target) if not _unfit_fragments(st, row)]
        terms = next((d.size for d in st.dims if d.name == st.reduce[-1]), 1)
        fragments.sort(key=lambda row: (-(-terms // row.terms), row.terms))  # a product takes as long with fewer terms
        dots = [row for row in _dot_rows(st, target) if not _unfit_dot(st, row) and (limited or not row.limit)]
        slow = bool(dots) and dots[0].name in dict(target.costs.slow)
        vectors = [*map(ProductShape.of_row, dots[:1]), *([ProductShape.plain(st, target)] if slow or not dots else [])]
        words = [row for row in dots if row.copied and row.terms == dots[0].terms] if target.costs.widen else []
        merging = _merging(st, target, dots[0]) if dots and target.costs.columns else []
        return [*map(ProductShape.of_row, fragments[:1]), *vectors, *map(ProductShape.of_row, words), *merging]

    @staticmethod
    def of_row(row: Instruction) -> ProductShape:
        """Return the unit of an instruction that multiplies factors of their own types."""
        group = row.group if row.rows > 1 else 1
        widens = row.operands[-1].dtype if row.widens else ""
        return ProductShape(
            row.lanes, row.terms, not row.is_single, row.rows, group, row.name, widens, row.temporaries, row.limit, 1,
            row.result.file, row.operands[-1].file, copied=row.operands[1].dtype if row.copied else "",
            bits=row.result.size * dtype(row.result.dtype).bits,
        )  # fmt: skip

    @staticmethod
    def merging(single: Instruction, row: Instruction) -> ProductShape:
        """Return the unit of the instruction ``single`` of one term, whose products in straight code ``row`` adds up.
        """
        return replace(ProductShape.of_row(single), name=row.name, merged=row.terms)

    def registers_of_fragment(self, file: RegisterFile) -> int:
        """Return the registers of ``file`` that hold a fragment of sums; a fragment of weights takes as many."""
        return -(-self.bits // file.bits)

    def vectors_of_weights(self, target: Machine) -> float:
        """Return the vectors that hold the factor of all lanes of bytes: several where scalars hold the sums."""
        is_apart = self.rows == 1 and self.file != target.vectors.name
        return max(self.lanes * self.terms * 8 / target.vector_bits, 1.0) if is_apart else 1.0

    @staticmethod
    def thread() -> ProductShape:
        """Return the unit of a thread that multiplies and adds numbers one by one."""
        return ProductShape(1, 1, False)

    @staticmethod
    def plain(st: Statement, target: Machine) -> ProductShape:
        """Return the unit of the target's multiply-add of the type of sums."""
        return ProductShape(target.width(dtype(st.acc)), 1, False)


def rows(st: Statement, target: Machine, turned: bool = False) -> Iterator[Instruction]:
    """Yield the rows that a config may name for the types of ``st``: on fragments, whose lanes are pixels if they are
    ``turned``, and on vectors.
    """
    yield from fragment_rows(st, target, turned)
    yield from _dot_rows(st, target)


def single_row(row: Instruction, config: Config, target: Machine) -> Instruction | None:
    """Return the row of one term whose products ``row`` adds up where code is straight, because ``config`` names no
    terms for it; None if there is none.
    """
    if row.rows > 1 or row.is_single or config.tiles_at("k_step"):
        return None
    return next((x for x in target.vector_rows(*row.types) if x.is_single), None)


def _merging(st: Statement, target: Machine, single: Instruction) -> list[ProductShape]:
    """Return the units of the instructions that add up products of ``single``, if it has one term, for several taps of
    groups that are adjacent in memory.
    """
    if not single.is_single or not st.constant or len(st.of("batch")) != 1 or not any(d.axis for d in st.of("k")):
        return []
    (g,) = st.of("batch")
    is_adjacent = view_steps(st.a).get(Var(g.name)) == 1
    rows_of_types = target.vector_rows(*single.types) if is_adjacent else ()
    return [ProductShape.merging(single, x) for x in rows_of_types if not x.is_single]


def has_pixels_as_lanes(st: Statement, config: Config) -> bool:
    """Return whether lanes of ``config`` are pixels, so that rows of fragments are channels of the result."""
    return {*fused_dims(config, config.lane)} <= {d.name for d in st.of("m")}


def named_row(st: Statement, known: Iterable[Instruction], config: Config, target: Machine) -> Instruction:
    """Return the row among the ``known`` ones for ``st`` that ``config`` names; ConfigError if it is none of them."""
    legal = {row.name: row for row in known}
    if config.instruction not in legal:
        types = ":".join((*(v.factor for v in st.factors), st.acc))
        raise ConfigError(
            "instruction", f"--instruction={config.instruction}: legal for products of {types} on {target.name} are "
            f"{', '.join(legal) or 'none'}",
        )  # fmt: skip
    return legal[config.instruction]


def fragment_rows(st: Statement, target: Machine, turned: bool = False) -> tuple[Instruction, ...]:
    """Return the rows on fragments for the types of ``st``. If fragments are ``turned``, B supplies their rows, and A
    their lanes.
    """
    if len(st.factors) < 2:
        return ()
    types = (st.b.factor, st.a.factor) if turned else (st.a.factor, st.b.factor)
    return target.fragment_rows(*types, st.acc)


def _dot_rows(st: Statement, target: Machine) -> tuple[Instruction, ...]:
    rows = target.vector_rows(st.a.factor, st.b.factor, st.acc) if len(st.factors) > 1 else ()
    return tuple(row for row in rows if row.terms > 1 or row.types[0] != st.acc)


def unfit(st: Statement, row: Instruction, config: Config) -> str:
    """Return the reason why ``row``, an instruction for the types of ``st``, does not suit ``st`` under ``config``;
    empty if it does.
    """
    return _unfit_fragments(st, row, config) if row.rows > 1 else _unfit_dot(st, row, config)


def _unfit_dot(st: Statement, row: Instruction, config: Config | None = None) -> str:
    """Return the reason why an instruction that adds up ``row.terms`` products does not suit ``st``, or an empty
    string.
    """
    changing = {view.name for view in st.factors if not view.constant}
    read: set[str] = set()
    if config is not None and not st.constant:
        read = {v.name for find in (interleavable, paired) for v in find(st, config, row.terms)}
    packed = config is not None and changing - read <= config.packed
    if not st.constant and not packed:
        return f"{st.b.name} changes in each call; legal is to pack both factors: --pack={st.a.name},{st.b.name}"
    if row.limit and (st.b.requantised is not None or st.b.flipped):
        return f"{st.b.name} as it is multiplied may be beyond {row.limit}, though the array is not"
    if st.shifted:
        return "zero points are subtracted from the factors; legal is --offsets=sums"
    if row.copied and (problem := _unfit_words(st, config)):
        return problem
    if row.is_single:
        return ""
    terms = ((st.reduce[-1], row.terms),) if config is None else config.tiles_at("k_step")
    if len(terms) != 1 or terms[0][1] != row.terms:
        return f"it adds up {row.terms} products; legal is --k_step={st.reduce[-1]}:{row.terms}"
    loop = terms[0][0]
    dims = (loop,) if config is None else fused_dims(config, loop)
    if prod(-(-d.size // st.residues.get(d.name, 1)) for d in st.dims if d.name in dims) < 2:
        return f"loop {loop} of its terms runs once"
    channels = {(st.n,), *((d.name, st.n) for d in st.of("batch"))}
    lanes = () if config is None else fused_dims(config, config.lane)
    is_of_packed = packed and {*lanes} <= {d.name for d in st.of("m")}
    if config is not None and lanes not in channels and not is_of_packed:
        return f"its lanes are channels; legal is --lane={st.n}"
    return ""


def _unfit_words(st: Statement, config: Config | None) -> str:
    """Return the reason why no copy supplies A with its bytes widened to words, or an empty string."""
    if not st.constant or st.a.factor != st.a.dtype or st.a.requantised is not None or st.residues:
        return "it multiplies words of a copy, to which bytes are widened as they lie in memory"
    if config is not None:
        is_copied = config.realise == "pad_copy" and st.a.name not in config.packed
        return "" if is_copied else "it multiplies words of a copy; legal is --realise=pad_copy"
    adjacent = view_steps(st.a).get(Var(st.reduce[-1])) == 1 and st.a.layout.is_plain
    has_images = any(d.sort == "images" for d in st.of("m"))
    return "" if adjacent and has_images and not st.of("batch") else "copies of other layouts take longer"


def interleavable(st: Statement, config: Config, terms: int) -> tuple[View, ...]:
    """Return the factor of a gradient of the weights that supplies the vectors of an instruction which adds up so many
    ``terms``, if the instruction can read it where it is: lanes are adjacent in memory, and terms are elements that lie
    at even distances, which a load of such a vector interleaves. The tuple is empty if it must be packed.
    """
    lanes = fused_dims(config, config.lane)
    found = [view for view in st.factors if {*map(Var, lanes)} <= {v for x in view.coords for v in variables_of(x)}]
    return _read_in_place(st, config, terms, found, lanes)


def paired(st: Statement, config: Config, terms: int) -> tuple[View, ...]:
    """Return the factor of a gradient of the weights that supplies the elements which all lanes share of an instruction
    that adds up so many ``terms``, if it can be read where it is: its terms are adjacent in memory. The tuple is empty
    if it must be packed.
    """
    lanes = {*map(Var, fused_dims(config, config.lane))}
    found = [view for view in st.factors if not lanes & {v for x in view.coords for v in variables_of(x)}]
    return _read_in_place(st, config, terms, found)


def _read_in_place(
    st: Statement, config: Config, terms: int, found: Sequence[View], adjacent: Sequence[str] = ()
) -> tuple[View, ...]:  # fmt: skip
    """Return the one factor ``found`` of a gradient of the weights, if its terms lie at even distances and its elements
    along the dims ``adjacent``, by default those of the terms, are adjacent in memory; otherwise an empty tuple.
    """
    joined = [fused_dims(config, loop) for loop, _ in config.tiles_at("k_step")]
    if len(found) != 1 or len(joined) != 1 or st.constant or st.sizes or st.residues:
        return ()
    (view,), (dims,), sizes = found, joined, st.extents
    steps, is_plain = view_steps(view), view.factor == view.dtype and is_true(view.mask) and not view.beside
    row = adjacent or dims
    is_row = steps.get(Var(row[-1])) == 1 and steps_evenly(steps, row, sizes)
    even = steps_evenly(steps, dims, sizes) and prod(sizes[n] for n in dims) % terms == 0
    return (view,) if is_plain and is_row and even else ()


def _unfit_fragments(st: Statement, row: Instruction, config: Config | None = None) -> str:
    """Return the reason why an instruction on fragments does not suit ``st`` (under ``config``), or an empty string.

    All elements of a fragment must be present: the terms fill fragments, the result has columns, and the pixels have
    even distances. If some pixels are absent, or channels are not contiguous, A is copied first.
    """
    windows = config is not None and config.realise == "window_copy"
    changing = {view.name for view in st.factors if not view.constant}
    packed = config is not None and changing <= config.packed
    joined = config is not None and (windows or packed) and config.tiles_at("k_step")
    loop = config.tiles_at("k_step")[0][0] if config is not None and joined else st.reduce[-1]
    sizes = st.extents
    if st.a.factor != st.a.dtype or st.a.requantised is not None or st.shifted:
        return "it multiplies a source as it lies in memory"
    if not st.constant and not packed:
        return f"{st.b.name} changes in each call; legal is to pack both factors: --pack={st.a.name},{st.b.name}"
    if config is not None and st.constant and st.b.name not in config.staged("pack"):
        return f"its terms are contiguous in packed {st.b.name}; legal is --pack={st.b.name}"
    # A copy has zeros beyond the borders, unless no element exists. A stride meets all elements of a residue class.
    strides = [part for part in parts_of(st.a.mask) if isinstance(part, Eq0) and _divides(part)]
    bordered = all(isinstance(part, Ge0) or part in strides for part in parts_of(st.a.mask))
    if strides and st.sizes:
        return f"sizes of a call decide which pixels of {st.c.name} have a tap"
    # Blocks round an axis up: elements between its end and theirs lie in memory, and count as absent there.
    extents = zip(st.a.masks, st.a.layout.shape, st.a.layout.padded_shape)
    whole = bordered and all(is_true(mask) or size == rounded for mask, size, rounded in extents)
    if not packed and not whole:
        return f"elements of {st.a.name} are absent that no padded copy supplies"
    if sizes[st.n] == 1 and not st.constant:
        return "the result has one column"
    steps = view_steps(st.a)
    present = st.present_by_class or (config is not None and st.a.name in config.staged("unfold"))
    even = present and (packed or steps.get(Var(loop)) == 1)
    size = prod(sizes[n] for n in ((loop,) if config is None else fused_dims(config, loop)))
    # The channels of the next group would follow those that a copy fills up.
    copied = (not even if config is None else config.realise == "pad_copy") and not st.of("batch")
    filled = copied and size >= FILLED * row.terms
    if not (windows or packed or filled) and size % row.terms:
        return f"its {row.terms} terms do not divide loop {loop}, which runs {size} times"
    if config is None:
        has_images = any(d.sort == "images" for d in st.of("m"))
        return "" if even or has_images else f"{st.a.name} lies unevenly in memory, and there is no loop to copy it in"
    if config.realise == "indirection":
        return "a table points to single pixels, and a fragment has several: legal are --realise=peel and pad_copy"
    if config.tiles_at("k_step") != ((loop, row.terms),):
        return f"it adds up {row.terms} products; legal is --k_step={loop}:{row.terms}"
    turned = packed and not row.widens and has_pixels_as_lanes(st, config)
    if config.lane != st.n and not turned:
        return f"its lanes are channels; legal is --lane={st.n}"
    inner = st.n if turned else _innermost(sizes, [d.name for d in st.of("m")])
    tiled = {n for n, _ in config.tiles_at("register") if n != config.lane}
    if len(tiled) != 1 or any(_innermost(sizes, fused_dims(config, n)) != inner for n in tiled):
        of = "channels" if turned else "pixels"
        return f"its rows are {of} along {inner}: legal is a register tile of that loop alone, beside {config.lane}"
    if not even and config.realise not in ("pad_copy", "window_copy"):
        return f"{st.a.name} lies unevenly in memory, or has absent elements; legal is --realise=pad_copy"
    return ""


def _innermost(sizes: Mapping[str, int], names: Sequence[str]) -> str:
    """Return the last of the dims that has several elements, or the last of all."""
    return next((n for n in reversed(names) if sizes[n] > 1), names[-1])


def _divides(part: Eq0) -> bool:
    """Return whether ``part`` of a mask states that a stride divides a sum; other parts equate a single pixel and its
    tap.
    """
    return any(isinstance(atom, Mod) for atom, _ in part.arg.terms)
