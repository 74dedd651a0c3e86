"""The words of a config, one row each: the text form of its value, the names in it, its meaning, and when it is legal.

A row is a level of tiles, a scope of stagings, a property of either besides loop, size and operand, or a word of the
config itself. This module knows no problem and no machine; it only detects contradictions within a config.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from convsmith.diag.errors import ConfigError
from convsmith.diag.expect import conforms
from convsmith.diag.record import record
from convsmith.diag.settings import MAX_THREADS
from convsmith.layout.indirection import FORMS

if TYPE_CHECKING:
    from convsmith.schedule.config import Config

__all__ = ["CONFIG_ROWS", "DEFAULTS", "LAYOUTS", "ConfigRow", "Names", "Pairs", "Sizes", "described", "place_of"]

Names = tuple[str, ...]
Pairs = tuple[tuple[str, str], ...]
Sizes = tuple[tuple[str, int], ...]

REALISATIONS = ("mask", "peel", "pad_copy", "window_copy", "indirection", "hardware")
LAYOUTS = ("pad", "swizzle", "fragments")
"""The layouts of copies in shared memory."""
MAX_BUFFERS = 8
"""Maximum number of copies of an operand in shared memory."""
MAX_TEAMS = 4
"""Maximum number of teams of warps of a group."""
MAX_STORE_PARTS = 8
"""Maximum number of parts in which a tile of a result leaves through shared memory."""


@record(frozen=True)
class TextForm:
    """The text form of values of one type. ``read`` raises ValueError for other texts; ``renamed`` returns a value with
    other names, given one function for each of the names of an entry.
    """

    hint: Any
    default: Any
    read: Callable[[str], Any]
    print: Callable[[Any], str]
    renamed: Callable[..., Any]


def _flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(text)
    return text == "yes"


def _names(text: str) -> Names:
    return tuple([x for x in text.split(",") if x])


def _pairs(text: str) -> Pairs:
    found = []
    for x in _names(text):
        a, plus, b = x.partition("+")
        if not plus:
            raise ValueError(x)
        found.append((a, b))
    return tuple(found)


def _sizes(text: str) -> Sizes:
    return tuple([(n, int(s)) for n, _, s in [x.partition(":") for x in _names(text)]])


def sizes_text(sizes: Sizes) -> str:
    """Return the text of pairs of a name and a number."""
    return ",".join([f"{n}:{s}" for n, s in sizes])


def place_of(text: str) -> tuple[str, int]:
    """Return the loop that ``text`` names, and the iterations of its cache tile; 0 for the innermost one. ValueError if
    these are not a number.
    """
    loop, colon, tile = text.partition(":")
    return loop, int(tile) if colon else 0


Renaming = Mapping[str, str]
_TEXT = TextForm(str, "", str, str, lambda value, by: by(value))
_NUMBER = TextForm(int, 1, int, str, lambda value: value)
_FLAG = TextForm(bool, False, _flag, lambda value: "yes" if value else "no", lambda value: value)
_NAMES = TextForm(Names, (), _names, ",".join, lambda value, by: tuple(map(by, value)))
_PAIRS = TextForm(
    Pairs, (), _pairs, lambda value: ",".join([f"{a}+{b}" for a, b in value]),
    lambda value, first, second: tuple((first(a), second(b)) for a, b in value),
)  # fmt: skip
_SIZES = TextForm(
    Sizes, (), _sizes, sizes_text, lambda value, by: tuple((by(n), size) for n, size in value)
)  # fmt: skip

_LOOP, _PLACE, _ARRAY = "loop", "place", "array"
"""Kinds of things that an entry of a value names: a loop of the naive nest, one that may have the size of its
cache tiles behind it, or an array of the statement.
"""
Kind = Literal["word", "level", "tail", "scope", "scope at a loop", "layout", "copy"]
"""Places in which a config keeps the value of a row: as a word of its own, as tiles of a level, as tails of the
tiles of another level, as stagings in a scope (at a loop), as layouts of the stagings in another scope, or as a fact of
all of these.
"""
Machines = Literal["all", "groups", "vectors"]
"""The machines on which a row has an effect: all, those with groups of threads, or those without."""


@record(frozen=True)
class ConfigRow:
    """One word of a config's text. ``of`` names the level or the scope whose tiles or stagings a tail, a layout or a
    copy belongs to; the order of an ``ordered`` value's entries matters.
    """

    name: str
    form: TextForm
    example: str
    doc: str
    kind: Kind = "word"
    of: str = ""
    default: Any = None
    legal: Names = ()
    holds: Names = ()
    machines: Machines = "all"
    ordered: bool = False
    check: Callable[[Config, Any], None] | None = None

    def fits(self, value: Any) -> bool:
        """Return whether `value` has the row's type."""
        return value is self.default or conforms(value, self.form.hint)

    def text(self, value: Any) -> str:
        """Return the word that gives the row its `value`."""
        return f"--{self.name}={self.form.print(value)}"

    def renamed(self, value: Any, loops: Renaming, arrays: Renaming) -> Any:
        """Return `value` with other names of loops and arrays."""

        def loop(name: str) -> str:
            return loops.get(name, name)

        def place(name: str) -> str:
            first, tile = place_of(name)
            return f"{loop(first)}:{tile}" if tile else loop(first)

        by = {_LOOP: loop, _PLACE: place, _ARRAY: lambda name: arrays.get(name, name)}
        return self.form.renamed(value, *(by[x] for x in self.holds)) if self.holds else value


def _row(name: str, form: TextForm, example: str, doc: str, **others: Any) -> ConfigRow:
    default = others.pop("default", others["legal"][0] if "legal" in others else form.default)
    return ConfigRow(name, form, example, " ".join(doc.split()), default=default, **others)


_level = partial(_row, form=_SIZES, kind="level", holds=(_LOOP,))
_scope = partial(_row, form=_NAMES, kind="scope", holds=(_ARRAY,))


def _check_register(config: Config, value: Sizes) -> None:
    for name, size in value:
        if size < 1:
            raise ConfigError("tile-size", f"--register={name}:{size}: a tile has at least one iteration")


def _check_k_step(config: Config, value: Sizes) -> None:
    for name, size in value:
        if size < 1 or name in dict(config.tiles_at("register")) or name == config.lane or len(value) > 1:
            raise ConfigError(
                "k_step", f"--k_step={sizes_text(value)}: expected one loop that has no tile, and at least 1"
            )  # fmt: skip


def _check_cache(config: Config, value: Sizes) -> None:
    around: dict[str, int] = {}
    for name, size in value:
        if size < 1 or size % max(config.size(name), config.size(name, "k_step")):
            raise ConfigError(
                "cache", f"--cache={name}:{size}: a cache tile is a multiple of the register tile and of the terms"
            )
        if around.get(name, 0) % size or around.get(name) == size:
            raise ConfigError(
                "cache", f"--cache={name}:{around[name]},{name}:{size}: a cache tile within another of the same "
                "loop is a smaller divisor of it",
            )  # fmt: skip
        around[name] = size


def _check_first_last_tile(config: Config, value: Sizes) -> None:
    if len(value) != 2 or len(dict(value)) != 1 or min(n for _, n in value) < 1:
        raise ConfigError(
            "first_last_tile",
            f"--first_last_tile={sizes_text(value)}: expected one loop twice, with at least 1 iteration each",
        )  # fmt: skip
    if uneven := {config.lane, *dict(config.tiles_at("k_step"))} & set(dict(value)):
        raise ConfigError(
            "first_last_tile", f"--first_last_tile={sizes_text(value)}: {min(uneven)} has lanes or terms of one size"
        )


def _check_remainder(config: Config, value: Sizes) -> None:
    tiles = dict(config.tiles_at("register"))
    for name, size in value:
        if name not in tiles or not 1 <= size <= tiles[name]:
            raise ConfigError(
                "remainder", f"--remainder={name}:{size}: expected 1 to {tiles.get(name, 0)}, the register tile"
            )


def _check_split(config: Config, value: Sizes) -> None:
    loops = [name for name, _ in value]
    if any(parts < 1 for _, parts in value) or len({*loops}) < len(loops):
        raise ConfigError("split", f"--split={sizes_text(value)}: expected different loops, each in at least one part")


def _check_diagonal(config: Config, value: Sizes) -> None:
    if len(value) != 1:
        raise ConfigError("diagonal", f"--diagonal={sizes_text(value)}: expected one loop over groups")


def _check_zeros(config: Config, value: Sizes) -> None:
    loops = [name for name, _ in value]
    if len({*loops}) < len(loops):
        raise ConfigError("zeros", f"--zeros={sizes_text(value)}: expected different loops")


def _check_group(config: Config, value: Sizes) -> None:
    for name, size in value:
        if size < 1 or size % config.size(name):
            raise ConfigError(
                "group", f"--group={name}:{size}: the tile of a group is a multiple of that of a thread, "
                f"--register={name}:{config.size(name)}",
            )  # fmt: skip


def _check_cluster(config: Config, value: Sizes) -> None:
    if len(value) != 1 or value[0][1] < 2 or config.realise != "hardware":
        raise ConfigError(
            "cluster", f"--cluster={sizes_text(value)}: expected one loop over groups and at least 2 groups, whose "
            "operands a copy engine brings, --realise=hardware",
        )  # fmt: skip


def _check_l2(config: Config, value: Sizes) -> None:
    for name, size in value:
        if size < 1 or size % config.group_size(name):
            raise ConfigError(
                "l2", f"--l2={name}:{size}: a block of tiles is a multiple of the tile of a group, "
                f"--group={name}:{config.group_size(name)}",
            )  # fmt: skip


def _check_layout(field: str, config: Config, value: Sizes) -> None:
    shared, others = config.staged("shared"), [x for x in LAYOUTS if x != field]
    other = {name for x in others for name, _ in config.layouts(x)}
    for name, size in value:
        if name not in shared or size < 1 or name in other:
            raise ConfigError(
                field, f"--{field}={name}:{size}: legal are operands of --shared={','.join(shared)}, in one "
                f"of {', '.join(f'--{x}=' for x in LAYOUTS[:-1])} and --{LAYOUTS[-1]}=, and at least 1",
            )  # fmt: skip


def _check_copies(config: Config, value: object) -> None:
    if not config.staged("shared"):
        raise ConfigError("buffers", f"--buffers={config.buffers} --copies={config.copies}: nothing without --shared=")


def _check_buffers(config: Config, value: int) -> None:
    if not 1 <= value <= MAX_BUFFERS:
        raise ConfigError("buffers", f"--buffers={value}: expected 1 to {MAX_BUFFERS}")
    _check_copies(config, value)


def _check_rounds(config: Config, value: bool) -> None:
    if config.buffers == 1:
        raise ConfigError("rounds", "--rounds=yes: a round uses each of several copies once; needs --buffers=")


def _check_load_ahead(config: Config, value: bool) -> None:
    if not config.staged("shared"):
        raise ConfigError("load_ahead", "--load_ahead=yes: factors are loaded from shared memory; needs --shared=")


def _check_sub_tile(config: Config, value: int) -> None:
    if value and (not config.instruction or config.realise == "hardware" or config.load_ahead):
        raise ConfigError(
            "sub-tile", f"--sub_tile={value}: warps load factors of an --instruction= on fragments, without "
            "--realise=hardware and --load_ahead=yes",
        )  # fmt: skip


def _check_teams(config: Config, value: int) -> None:
    if not 1 <= value <= MAX_TEAMS:
        raise ConfigError("teams", f"--teams={value}: expected 1 to {MAX_TEAMS}")
    if config.realise != "hardware":
        raise ConfigError("teams", f"--teams={value}: teams multiply what a copy engine brings: --realise=hardware")


def _check_store_parts(config: Config, value: int) -> None:
    if not 1 <= value <= MAX_STORE_PARTS:
        raise ConfigError("store-parts", f"--store_parts={value}: expected 1 to {MAX_STORE_PARTS}")
    if config.realise != "hardware":
        raise ConfigError("store-parts", f"--store_parts={value}: a copy engine stores parts: --realise=hardware")


def _check_flip(config: Config, value: Names) -> None:
    if config.offsets != "sums":
        raise ConfigError("offsets", f"--flip={','.join(value)} needs --offsets=sums")


def _check_pieces(config: Config, value: int) -> None:
    if value < 1:
        raise ConfigError("pieces", f"--pieces={value}: a loop has at least one piece")


def _check_block(config: Config, value: Sizes) -> None:
    if not config.tiles_at("winograd"):
        raise ConfigError("winograd", f"--block={sizes_text(value)} needs --winograd=")


def _check_threads(config: Config, value: int) -> None:
    if not 1 <= value <= MAX_THREADS:
        raise ConfigError("threads", f"--threads={value}: expected 1 to {MAX_THREADS}")


def _check_place(field: str, text: str, place: str) -> None:
    try:
        place_of(place)
    except ValueError:
        message = f"--{field}={text}: legal behind the colon are the iterations of a cache tile"
        raise ConfigError(field, message) from None


def _check_pack_at(config: Config, value: Pairs) -> None:
    for _, place in value:
        _check_place("pack_at", _PAIRS.print(value), place)


def _check_compute_at(config: Config, value: str) -> None:
    _check_place("compute_at", value, value)
    if config.consumer is None:
        raise ConfigError("consumer", f"--compute_at={value}: the config of the next statement stands behind ' / '")


def _check_halo(config: Config, value: str) -> None:
    if not config.compute_at:
        raise ConfigError("halo", f"--halo={value} needs --compute_at=")


_TABLE: tuple[ConfigRow, ...] = (
    _row("target", _TEXT, "avx512", "level of the instruction set", default=None),
    _row("lane", _TEXT, "oc", """loop along the vector lanes: an N or batch loop, or a K loop (then lanes hold partial
        sums)""", holds=(_LOOP,), default=None),
    _row("fuse", _PAIRS, "oh+ow", "pairs of adjacent loops to fuse", holds=(_LOOP, _LOOP), ordered=True),
    _level("register", example="oc:32,ow:14", doc="""loop -> iterations of its register tile; for the lane loop:
        elements, a multiple of the lanes, or fewer channels than a vector has lanes""", check=_check_register),
    _row("order", _NAMES, "mb,oc,oh,ow", """loops around the register tile, outermost first (other loops follow in naive
        order)""", holds=(_LOOP,), ordered=True),
    _row("reduce", _NAMES, "kh,kw,ic", """reduction loops, outermost first, which is also the order of the packed
        operand (others follow)""", holds=(_LOOP,), ordered=True),
    _row("instruction", _TEXT, "vpdpbusd_512", """row of the machine's table whose products are added up; one of several
        terms without `--k_step=` adds up products of straight-line code, whose factors lie evenly apart. Without a
        row, elements of the type of sums are multiplied and added"""),
    _level("k_step", example="ic:4", doc="""a reduction loop and how many of its iterations stand innermost, within the
        register tile: those that the instruction adds up, or straight lines that share their loads""",
        machines="vectors", check=_check_k_step),
    _level("cache", example="oc:256,ic:128", doc="""loop -> iterations of its cache tile, around the register tiles,
        outermost loop first; between cache tiles of a reduction loop, memory holds the partial sums, and the loops
        named after it run within each. A loop that is named again has smaller tiles within its larger ones""",
        machines="vectors", ordered=True, check=_check_cache),
    _level("first_last_tile", example="kw:6,kw:7", doc="""a reduction loop, twice, with the iterations of its first
        and of its last tile where these differ from all others; any number of tiles lies between them""",
        machines="vectors", ordered=True, check=_check_first_last_tile),
    _level("remainder", kind="tail", of="register", example="oc:8", doc="""loop -> iterations of the tiles of what its
        register tiles leave, where its extent is known at the call; what these leave is done in powers of two""",
        machines="vectors", check=_check_remainder),
    _level("split", example="mb:2", doc="""reduction loops and the number of parts in which each is summed, so that
        threads share it; on machines that have groups, one may be a fused loop, which has parts of whole steps of a
        group, and the last part what they leave""", check=_check_split),
    _level("diagonal", example="g:16", doc="""loop over groups of a convolution -> groups side by side in one product,
        whose packed weights have zeros beside the diagonal of their matrix; the channels of these groups are columns
        and terms of the product""", machines="groups", check=_check_diagonal),
    _level("zeros", example="kw:8,ic:4", doc="""reduction loops -> terms; packed weights have zeros beyond those of the
        loop, so that they are copied as whole vectors""", machines="groups", check=_check_zeros),
    _row("phases", _NAMES, "ow", """pixel loops of the result that a stride divides: their residue classes become
        columns of the product, in a loop of their own (`rw` of `ow` or `iw`); under `--realise=hardware` also where
        taps are dilated or one""", holds=(_LOOP,), machines="vectors"),
    _row("realise", _TEXT, "peel", """how masked elements are read: `peel` (split loops so that no test remains), `mask`
        (test each access), `pad_copy` (padded copy first, of the type of sums where lanes are channels and no
        instruction multiplies the floats as they are, and with adjacent groups where lanes are groups that lie apart; a
        packed source holds the padding itself), `window_copy` (copy of the windows of pixels first, in which all terms
        of a pixel are contiguous), `indirection` (through a pointer table) or `hardware` (a copy engine brings the
        elements of a step, with zeros for absent ones)""",
        legal=REALISATIONS, default="peel"),
    _row("restrict", _NAMES, "kd", """loops over taps which, under `--realise=pad_copy`, leave out the taps that meet
        padding; no loop of the register tile steps along their axis, along which a copy of whole images then has no
        padding""", holds=(_LOOP,), machines="vectors"),
    _row("table", _TEXT, "row", """form of that table: taps by `row` or by `column`, `compressed` (columns shared by
        outputs are stored once), in `sections` (one row for all outputs without padding above and below), or in
        `bands` (sections whose outputs share no columns)""", legal=FORMS, default="sections", machines="vectors"),
    _scope("pack", example="wei", doc="operands packed in reading order", default=("wei",)),
    _scope("unfold", example="src", doc="""packed operands that are first copied to an array with a dim for each loop of
        the statement that indexes them, with zeros for absent elements, so that fused loops step evenly through it""",
        machines="vectors"),
    _row("pack_at", _PAIRS, "src+oh_ow,wei+oc:64", """an operand and a loop around the register tile, each of whose
        iterations first packs the elements of the operand that it reads, into memory that stays in a cache. It is the
        innermost loop of that name, or that over cache tiles of a size behind a colon; of the reduction, the loop over
        cache tiles, between which memory keeps the sums""", kind="scope at a loop",
        holds=(_ARRAY, _PLACE), machines="vectors", ordered=True, check=_check_pack_at),
    _scope("stream", example="wei", doc="""operands whose elements pass through the first-level cache once: the lines of
        fragments are replaced first, and loads of vectors of packed weights, of pixels, of operands of `--pack_at=` or
        of a result that is added to prefetch lines; or another result, whose vectors are stored past the caches""",
        machines="vectors"),
    _scope("fetch", example="wei,src", doc="""packed weights of which the next tile of channels is fetched into the
        second-level cache while tiles of pixels use the present one; a source of which a tile fetches the pixels of the
        next one or, of windows of groups, those that the tile below is the first to read; factors of a gradient of 1x1
        weights, of which the tiles of a block of pixels fetch the next block""",
        machines="vectors"),
    _scope("resident", example="wei", doc="""operands whose part for a register tile stays in registers while loops
        run that do not move it; under `--realise=hardware`, whose part for a tile stays in shared memory while a group
        computes several tiles"""),
    _row("join", _TEXT, "atomic", """how the parts of `split` come together: each has memory of its own, which is added
        up in one order (`ordered`), or groups of threads add them to the result in any order (`atomic`)""",
        legal=("ordered", "atomic"), machines="groups"),
    _level("group", example="oc:32,ow:16,ic:8", doc="""loop -> iterations of the tile of a group of threads, on machines
        that have groups; for a reduction loop: iterations between two barriers""", machines="groups",
        check=_check_group),
    _level("l2", example="mb_oh_ow:2048", doc="""loop over groups -> iterations of a block, whose tiles groups compute
        before those of the next block, so that they find operands in the last cache""", machines="groups",
        check=_check_l2),
    _level("cluster", example="oc:2", doc="""loop over groups -> groups of a cluster, whose tiles along the loop follow
        each other; the operand that the loop does not move is brought once for all of them, a part by each, under
        `--realise=hardware`""", machines="groups", check=_check_cluster),
    _scope("shared", example="src,wei", doc="""operands that a group of threads copies to its shared memory, a group
        tile at a time; under `--realise=hardware` also the result, whose tiles the copy engine stores from there""",
        machines="groups"),
    _row("pad", _SIZES, "wei:1", """operand -> elements that each row of its copy in shared memory is longer, so that
        columns lie in different banks""", kind="layout", of="shared", holds=(_ARRAY,), machines="groups",
        check=partial(_check_layout, "pad")),
    _row("swizzle", _SIZES, "wei:4", """operand -> elements that stay together where each row of its copy in shared
        memory is rotated further than the one before, for the same reason; no memory is spent""", kind="layout",
        of="shared", holds=(_ARRAY,), machines="groups", check=partial(_check_layout, "swizzle")),
    _row("fragments", _SIZES, "src:16", """operand -> terms of a fragment of `--instruction=`, whose registers lie side
        by side in its copy in shared memory, where one message loads several of them""", kind="layout", of="shared",
        holds=(_ARRAY,), machines="groups", check=partial(_check_layout, "fragments")),
    _level("vectors", example="oc:4,ic:4", doc="""loop -> neighbouring iterations of a thread that load and store at
        once, on machines that have groups; the lane loop's tile consists of such runs""", machines="groups"),
    _row("buffers", _NUMBER, "2", """copies of each operand in shared memory: groups fill the next ones while they use
        the first""", kind="copy", of="shared", machines="groups", check=_check_buffers),
    _row("copies", _TEXT, "async", """how elements reach shared memory: through registers of the threads that then wait
        (`wait`), or on their own while threads go on (`async`)""", kind="copy", of="shared", legal=("wait", "async"),
        machines="groups", check=_check_copies),
    _row("rounds", _FLAG, "yes", """whether the steps that use each of the `buffers` once are straight-line code, in
        which places in shared memory are constants""", machines="groups", check=_check_rounds),
    _row("load_ahead", _FLAG, "yes", """whether warps load the fragments of their next product into registers of
        their own before they compute the present product, across the barriers between steps too; needs an
        `--instruction=` on fragments""",
        machines="groups", check=_check_load_ahead),
    _row("teams", _NUMBER, "2", """teams of warps of a group, each of which multiplies a tile of its own in turn, and
        stores it while the next team multiplies; needs `--realise=hardware`""", machines="groups",
        check=_check_teams),
    _row("store_parts", _NUMBER, "2", """parts of equally many columns in which a tile of a result of `--shared=` leaves
        through shared memory, one after the other, so that there is room for one of them; needs
        `--realise=hardware`""", machines="groups", check=_check_store_parts),
    _row("register_file", _NUMBER, "256", """registers of a thread, on devices that give a thread more of them than
        usual; fewer threads then reside on a unit""", default=0, machines="groups"),
    _row("sub_tile", _NUMBER, "32", """columns of a warp whose factors are in registers at once: it loads those of the
        next ones when these are multiplied; needs an `--instruction=` on fragments""", default=0, machines="groups",
        check=_check_sub_tile),
    _row("barriers", _TEXT, "split", """whether threads stop where they arrive at a barrier (`whole`), or later
        (`split`, on Xe and from sm_80 on)""", legal=("whole", "split"), machines="groups"),
    _row("carry", _FLAG, "yes", """whether loops of a thread carry offsets from one iteration to the next, in place of
        computing them in each, on machines that have groups""", machines="groups"),
    _scope("preload", example="bia,dst", doc="""operands of the epilogue (bias, scales, the summand of a `sum`) whose
        elements a thread loads to registers before the products, on machines that have groups"""),
    _row("offsets", _TEXT, "sums", "whether zero points are subtracted from `each` factor or from the `sums`",
        legal=("each", "sums")),
    _row("flip", _NAMES, "wei", "bytes whose top bit is inverted before they are multiplied: s8 as u8, u8 as s8",
        holds=(_ARRAY,), check=_check_flip),
    _row("spill_sums", _FLAG, "yes", """whether accumulators are stored to memory, where a loop finishes them (for long
        post-ops)""", machines="vectors"),
    _row("pieces", _NUMBER, "8", "maximum number of pieces of a partitioned loop", default=8, check=_check_pieces),
    _row("outline", _FLAG, "no", "whether register tiles become functions", default=True),
    _row("vector_registers", _NUMBER, "2", """registers of a vector, where instructions name groups of them: as many as
        the level has by itself (0), or another number""", default=0, machines="vectors"),
    _level("winograd", holds=(), example="oh:4,ow:4", doc="""pixel loop -> pixels of a tile of Winograd's F(m, r); the
        other words then schedule the product of a block of tiles, with the loops `f` (frequencies), `tmb th tw`
        (tiles), `oc` and `ic`""", machines="vectors"),
    _level("block", holds=(), example="oh:2", doc="""pixel loop -> tiles of a block, between whose transforms and
        product arrays stay in the cache (by default all), and loop of images -> images of a block (by default one)""",
        machines="vectors", check=_check_block),
    _row("threads", _NUMBER, "2", "host threads", machines="vectors", check=_check_threads),
    _row("compute_at", _TEXT, "oh", """loop of the next statement in whose iterations this one computes the rows that
        the iteration reads; a loop of a later statement has the number of that one behind its name (`oh3`). It is the
        innermost one around the register tile, or that over cache tiles of a size behind a colon (`oh:4`). Without it,
        this statement computes all rows before the next one starts""", check=_check_compute_at),
    _row("halo", _TEXT, "recompute", """whether rows that consecutive iterations of that loop read are kept for the next
        one in a circular buffer (`keep`), or computed again (`recompute`)""", legal=("keep", "recompute"),
        check=_check_halo),
)  # fmt: skip
CONFIG_ROWS: Mapping[str, ConfigRow] = {row.name: row for row in _TABLE}
"""The rows by name, in the order in which a text has their words."""
DEFAULTS: Mapping[str, Any] = {row.name: row.default for row in _TABLE}
"""The value of each word that a text omits."""


def described() -> str:
    """Return the rows as a page of text: each word with an example and its meaning."""
    indented = partial(wrap, width=114, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(line for row in _TABLE for line in (f"--{row.name}={row.example}", *indented(row.doc)))
