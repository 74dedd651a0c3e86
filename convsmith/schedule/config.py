"""Config: every decision of a schedule, as data that prints on one line and parses back.

Loops have their names in the naive nest (``g mb oc oh ow ic kh kw`` ...); a fused loop joins the names of its parts
with ``_`` (``oh_ow``).  Tiling a loop ``x`` gives ``x.o`` (over tiles) and ``x.i`` (within a tile); the loop along the
lanes gives ``x.o``, ``x.v`` (vectors) and ``x.l`` (lanes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from convsmith.diag.choices import choices
from convsmith.diag.errors import ConfigError
from convsmith.diag.expect import check_fields, shown
from convsmith.diag.settings import MOST_THREADS

REALISATIONS = ("mask", "peel", "pad_copy", "window_copy", "indirection", "hardware")
TABLES = ("row", "column", "compressed", "sections")
OFFSETS = ("each", "sums")
MOST_BUFFERS = 8
"""Maximum number of copies of an operand in shared memory."""
MOST_STATEMENTS = 128
"""Maximum number of statements that a config schedules, whose configs lie within one another."""
JOINS = ("ordered", "atomic")
COPIES = ("wait", "async")
BARRIERS = ("whole", "split")
HALOS = ("keep", "recompute")
WORDS = {
    "realise": REALISATIONS, "table": TABLES, "offsets": OFFSETS, "join": JOINS, "copies": COPIES, "barriers": BARRIERS,
    "halo": HALOS,
}  # fmt: skip
"""The legal words of each field that has one of several."""


@dataclass(frozen=True)
class Config:
    """One point of the schedule space.

    ``target``    level of the instruction set
    ``lane``      loop along the vector lanes: an N or batch loop, or a K loop (then lanes hold partial sums)
    ``fuse``      pairs of adjacent loops to fuse
    ``register``  loop -> iterations of its register tile; for the lane loop: elements, a multiple of the lanes
    ``order``     loops around the register tile, outermost first (other loops follow in naive order)
    ``reduce``    reduction loops, outermost first, which is also the order of the packed operand (others follow)
    ``instruction``  row of the machine's table whose products are added up; without one, elements of the type of sums
                  are multiplied and added
    ``terms``     a reduction loop and how many of its iterations stand innermost, within the register tile: those that
                  the instruction adds up, or straight lines that share their loads
    ``cache``     loop -> iterations of its cache tile, around the register tiles, outermost loop first; between cache
                  tiles of a reduction loop, memory holds the partial sums, and the loops named after it run within
                  each. A loop that is named again has smaller tiles within its larger ones
    ``ends``      a reduction loop, twice, with the iterations of its first and of its last tile where these differ from
                  all others; any number of tiles lies between them
    ``remainder`` loop -> iterations of the tiles of what its register tiles leave, where its extent is known at the
                  call; what these leave is done in powers of two
    ``split``     a reduction loop and the number of parts in which it is summed, so that threads share it
    ``phases``    pixel loops of the result that a stride divides: their residue classes become columns of the product,
                  in a loop of their own (``rw`` of ``ow`` or ``iw``)
    ``realise``   how masked elements are read: ``peel`` (split loops so that no test remains), ``mask`` (test each
                  access), ``pad_copy`` (padded copy first, of the type of sums where lanes are channels and no
                  instruction multiplies the floats as they are; a packed source holds the padding itself),
                  ``window_copy`` (copy of the windows of pixels first, in which all terms of a pixel are
                  contiguous), ``indirection`` (through a pointer table) or ``hardware`` (a copy engine brings the
                  elements of a step, with zeros for absent ones)
    ``table``     form of that table: taps by ``row`` or by ``column``, ``compressed`` (columns shared by outputs are
                  stored once), or in ``sections`` (one row for all outputs without padding above and below)
    ``pack``      operands packed in reading order
    ``near``      an operand and a loop around the register tile, each of whose iterations first packs the elements of
                  the operand that it reads, into memory that stays in a cache. It is the innermost loop of that name,
                  or that over cache tiles of a size behind a colon (``src+oh:4``)
    ``stream``    operands whose elements pass through the first-level cache once: the lines of fragments are replaced
                  first, and loads of vectors of packed weights, of pixels or of a result that is added to prefetch
                  lines; or another result, whose vectors are stored past the caches
    ``hold``      operands whose part for a register tile stays in registers while loops run that do not move it
    ``join``      how the parts of ``split`` come together: each has memory of its own, which is added up in one order
                  (``ordered``), or groups of threads add them to the result in any order (``atomic``)
    ``group``     loop -> iterations of the tile of a group of threads, on machines that have groups; for a reduction
                  loop: iterations between two barriers
    ``shared``    operands that a group of threads copies to its shared memory, a group tile at a time
    ``pad``       operand -> elements that each row of its copy in shared memory is longer, so that columns lie in
                  different banks
    ``swizzle``   operand -> elements that stay together where each row of its copy in shared memory is rotated further
                  than the one before, for the same reason; no memory is spent
    ``vectors``   loop -> neighbouring iterations of a thread that load and store at once, on machines that have groups;
                  the lane loop's tile consists of such runs
    ``buffers``   copies of each operand in shared memory: groups fill the next ones while they use the first
    ``copies``    how elements reach shared memory: through registers of the threads that then wait (``wait``), or on
                  their own while threads go on (``async``)
    ``barriers``  whether threads stop where they arrive at a barrier (``whole``), or later (``split``)
    ``preload``   operands of the epilogue (bias, scales, the summand of a ``sum``) whose elements a thread loads to
                  registers before the products, on machines that have groups
    ``offsets``   whether zero points are subtracted from ``each`` factor or from the ``sums``
    ``flip``      bytes whose top bit is inverted before they are multiplied: s8 as u8, u8 as s8
    ``drain``     whether accumulators are stored to memory, where a loop finishes them (for long post-ops)
    ``pieces``    maximum number of pieces of a partitioned loop
    ``outline``   whether register tiles become functions
    ``winograd``  pixel loop -> pixels of a tile of Winograd's F(m, r); the other fields then schedule the product of a
                  block of tiles, with the loops ``f`` (frequencies), ``tmb th tw`` (tiles), ``oc`` and ``ic``
    ``block``     pixel loop -> tiles of a block, between whose transforms and product arrays stay in the cache (by
                  default all), and loop of images -> images of a block (by default one)
    ``threads``   host threads
    ``at``        loop of the next statement in whose iterations this one computes the rows that the iteration reads; a
                  loop of a later statement has the number of that one behind its name (``oh3``). It is the innermost
                  one around the register tile, or that over cache tiles of a size behind a colon (``oh:4``). Without
                  it, this statement computes all rows before the next one starts
    ``halo``      whether rows that consecutive iterations of that loop read are kept for the next one in a circular
                  buffer (``keep``), or computed again (``recompute``)
    ``then``      config of the next statement, with loops and arrays of its own names; its text stands behind `` / ``
    """

    target: str
    lane: str
    fuse: tuple[tuple[str, str], ...] = ()
    register: tuple[tuple[str, int], ...] = ()
    order: tuple[str, ...] = ()
    reduce: tuple[str, ...] = ()
    instruction: str = ""
    terms: tuple[tuple[str, int], ...] = ()
    cache: tuple[tuple[str, int], ...] = ()
    ends: tuple[tuple[str, int], ...] = ()
    remainder: tuple[tuple[str, int], ...] = ()
    split: tuple[tuple[str, int], ...] = ()
    phases: tuple[str, ...] = ()
    realise: str = "peel"
    table: str = "sections"
    pack: tuple[str, ...] = ("wei",)
    near: tuple[tuple[str, str], ...] = ()
    stream: tuple[str, ...] = ()
    hold: tuple[str, ...] = ()
    join: str = "ordered"
    group: tuple[tuple[str, int], ...] = ()
    shared: tuple[str, ...] = ()
    pad: tuple[tuple[str, int], ...] = ()
    swizzle: tuple[tuple[str, int], ...] = ()
    vectors: tuple[tuple[str, int], ...] = ()
    buffers: int = 1
    copies: str = "wait"
    barriers: str = "whole"
    preload: tuple[str, ...] = ()
    offsets: str = "each"
    flip: tuple[str, ...] = ()
    drain: bool = False
    pieces: int = 8
    outline: bool = True
    winograd: tuple[tuple[str, int], ...] = ()
    block: tuple[tuple[str, int], ...] = ()
    threads: int = 1
    at: str = ""
    halo: str = "keep"
    then: Config | None = None

    def __post_init__(self) -> None:
        check_fields(self, lambda message: ConfigError("syntax", f"config: {message}"))
        check_words(vars(self))
        if self.flip and self.offsets != "sums":
            raise ConfigError("offsets", f"--flip={','.join(self.flip)} needs --offsets=sums")
        for name, size in self.register:
            if size < 1:
                raise ConfigError("tile-size", f"--register={name}:{size}: a tile has at least one iteration")
        for name, size in self.group:
            if size < 1 or size % self.size(name):
                raise ConfigError(
                    "group", f"--group={name}:{size}: the tile of a group is a multiple of that of a thread, "
                    f"--register={name}:{self.size(name)}",
                )  # fmt: skip
        around: dict[str, int] = {}
        for name, size in self.cache:
            if size < 1 or size % max(self.size(name), dict(self.terms).get(name, 1)):
                raise ConfigError(
                    "cache", f"--cache={name}:{size}: a cache tile is a multiple of the register tile and of the terms"
                )
            if around.get(name, 0) % size or around.get(name) == size:
                raise ConfigError(
                    "cache", f"--cache={name}:{around[name]},{name}:{size}: a cache tile within another of the same "
                    "loop is a smaller divisor of it",
                )  # fmt: skip
            around[name] = size
        for name, size in self.terms:
            if size < 1 or name in dict(self.register) or name == self.lane or len(self.terms) > 1:
                raise ConfigError(
                    "terms", f"--terms={_sizes_text(self.terms)}: expected one loop that has no tile, and at least 1"
                )
        if not 1 <= self.buffers <= MOST_BUFFERS:
            raise ConfigError("buffers", f"--buffers={self.buffers}: expected 1 to {MOST_BUFFERS}")
        for _, parts in self.split:
            if parts < 1 or len(self.split) > 1:
                raise ConfigError(
                    "split", f"--split={_sizes_text(self.split)}: expected one loop, in at least one part"
                )
        if self.ends and (len(self.ends) != 2 or len(dict(self.ends)) != 1 or min(n for _, n in self.ends) < 1):
            raise ConfigError(
                "ends", f"--ends={_sizes_text(self.ends)}: expected one loop twice, with at least 1 iteration each"
            )
        if uneven := {self.lane, *dict(self.terms)} & set(dict(self.ends)):
            raise ConfigError("ends", f"--ends={_sizes_text(self.ends)}: {min(uneven)} has lanes or terms of one size")
        for name, size in self.remainder:
            if not 1 <= size <= self.size(name):
                raise ConfigError(
                    "remainder", f"--remainder={name}:{size}: expected 1 to {self.size(name)}, the register tile"
                )
        if self.block and not self.winograd:
            raise ConfigError("winograd", f"--block={_sizes_text(self.block)} needs --winograd=")
        if not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError("threads", f"--threads={self.threads}: expected 1 to {MOST_THREADS}")
        if self.pieces < 1:
            raise ConfigError("pieces", f"--pieces={self.pieces}: a loop has at least one piece")
        if self.halo != "keep" and not self.at:
            raise ConfigError("halo", f"--halo={self.halo} needs --at=")
        near = _pairs_text(self.near)
        for field, text, place in (("at", self.at, self.at), *(("near", near, of) for _, of in self.near)):
            try:
                place_of(place)
            except ValueError:
                message = f"--{field}={text}: legal behind the colon are the iterations of a cache tile"
                raise ConfigError(field, message) from None
        if self.at and self.then is None:
            raise ConfigError("then", f"--at={self.at}: the config of the next statement stands behind ' / '")
        if self.then is not None and (self.then.target, self.then.threads) != (self.target, self.threads):
            raise ConfigError("then", f"{self}: both statements have one --target and one --threads")

    @property
    def place(self) -> tuple[str, int]:
        """The loop at which rows are computed, and the iterations of its cache tile; 0 for the innermost one."""
        return place_of(self.at)

    def size(self, loop: str) -> int:
        """Return the register tile of a loop; 1 if none is given."""
        return dict(self.register).get(loop, 1)

    def __str__(self) -> str:
        words = []
        for f in (f for f in fields(self) if f.name in _PRINT):
            value = getattr(self, f.name)
            if f.name in ("target", "lane") or value != f.default:
                words.append(field_text(f.name, value))
        return " ".join(words) + (f"{THEN}{self.then}" if self.then is not None else "")

    def group_size(self, loop: str) -> int:
        """Return the tile of a thread group along a loop: that of one thread if none is given."""
        return dict(self.group).get(loop, self.size(loop))

    @property
    def stages(self) -> tuple[Config, ...]:
        """The configs of all statements, each without that of the next one."""
        return (replace(self, at="", halo="keep", then=None), *(self.then.stages if self.then is not None else ()))

    @property
    def has_transform(self) -> bool:
        """Whether a statement is the product of a transform."""
        return any(stage.winograd for stage in self.stages)

    def of_each(self, **changes: Any) -> Config:
        """Return the config with the same changes for every statement."""
        return replace(self, **changes, then=None if self.then is None else self.then.of_each(**changes))

    def renamed(self, dims: Mapping[str, str], arrays: Mapping[str, str]) -> Config:
        """Return the config of the same statement with other names of its dims and arrays."""
        loops = dict(dims)
        fuse = []
        for a, b in self.fuse:
            fuse.append((loops.get(a, a), loops.get(b, b)))
            loops[f"{a}_{b}"] = "_".join(fuse[-1])

        def names(old: Iterable[str], by: Mapping[str, str] = loops) -> tuple[str, ...]:
            return tuple(by.get(n, n) for n in old)

        def sizes(old: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple((loops.get(n, n), size) for n, size in old)


        def place(old: str) -> str:
            loop, tile = place_of(old)
            return f"{loops.get(loop, loop)}:{tile}" if tile else loops.get(loop, loop)

        return replace(
            self, lane=loops.get(self.lane, self.lane), fuse=tuple(fuse), register=sizes(self.register),
            order=names(self.order), reduce=names(self.reduce), terms=sizes(self.terms), cache=sizes(self.cache),
            ends=sizes(self.ends), remainder=sizes(self.remainder),
            split=sizes(self.split), phases=names(self.phases), pack=names(self.pack, arrays),
            near=tuple((arrays.get(a, a), place(n)) for a, n in self.near),
            stream=names(self.stream, arrays), hold=names(self.hold, arrays), flip=names(self.flip, arrays),
            group=sizes(self.group), shared=names(self.shared, arrays),
            pad=tuple((arrays.get(a, a), n) for a, n in self.pad),
            swizzle=tuple((arrays.get(a, a), n) for a, n in self.swizzle), vectors=sizes(self.vectors),
            preload=names(self.preload, arrays),
        )  # fmt: skip

    @staticmethod
    def parse(text: str) -> Config:
        """Return the config that prints as ``text``. ConfigError names the illegal word."""
        return _config(tuple(split_statements(text)))


@lru_cache(256)
def _config(statements: tuple[str, ...]) -> Config:
    """Return the config of the texts of all statements; kernels of a network share few configs."""
    config: Config | None = None
    for own in reversed(statements):
        values = read_fields(own)
        for key in ("target", "lane"):
            if key not in values:
                raise ConfigError("syntax", f"config: --{key}= is missing in {shown(own)}")
        config = Config(**values, then=config)
    assert config is not None
    return config


def split_statements(text: str) -> list[str]:
    """Return the texts of the configs of the statements. ConfigError if there are too many, or ``text`` is no str."""
    if not isinstance(text, str):
        raise ConfigError("syntax", f"config: expected a text, got {shown(text)}")
    statements = text.split(THEN)
    if len(statements) > MOST_STATEMENTS:
        raise ConfigError("syntax", f"config: {len(statements)} statements; legal are at most {MOST_STATEMENTS}")
    return statements


def read_fields(text: str) -> dict[str, Any]:
    """Return the values in the text of one statement's config, by field. ConfigError names the illegal word."""
    values: dict[str, Any] = {}
    for word in text.split():
        key, eq, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not eq or key not in _READ:
            legal = choices(key, _READ, (f"--{k}=" for k in _READ))
            raise ConfigError("syntax", f"config: {shown(word)} is not one of {legal}")
        try:
            values[key] = _READ[key](value)
        except ValueError:
            message = f"config: {shown(word)} does not read as {key}; for example {_EXAMPLE[key]}"
            raise ConfigError("syntax", message) from None
    return values


def place_of(text: str) -> tuple[str, int]:
    """Return the loop that ``text`` names, and the iterations of its cache tile; 0 for the innermost one. ValueError
    where these are no number.
    """
    loop, colon, tile = text.partition(":")
    return loop, int(tile) if colon else 0


def field_text(name: str, value: Any) -> str:
    """Return the word of a config's text that gives the field ``name`` its ``value``."""
    return f"--{name}={_PRINT[name](value)}"


def check_words(values: Mapping[str, Any]) -> None:
    """Raise ConfigError where ``values``, by field, give one of the fields with several words another word."""
    for name, legal in WORDS.items():
        if name in values and values[name] not in legal:
            raise ConfigError(name, f"--{name}={values[name]} is unknown; legal are {choices(values[name], legal)}")


def _names(value: str) -> tuple[str, ...]:
    return tuple(x for x in value.split(",") if x)


def _pairs(value: str) -> tuple[tuple[str, str], ...]:
    out = []
    for x in _names(value):
        a, plus, b = x.partition("+")
        if not plus:
            raise ValueError(x)
        out.append((a, b))
    return tuple(out)


def _sizes(value: str) -> tuple[tuple[str, int], ...]:
    return tuple((n, int(s)) for n, _, s in (x.partition(":") for x in _names(value)))


def _sizes_text(sizes: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{n}:{s}" for n, s in sizes)


def _flag_text(value: bool) -> str:
    return "yes" if value else "no"


def _pairs_text(pairs: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f"{a}+{b}" for a, b in pairs)


def _flag(value: str) -> bool:
    if value not in ("yes", "no"):
        raise ValueError(value)
    return value == "yes"


THEN = " / "
"""Text between the configs of two statements."""
_PRINT: dict[str, Callable[[Any], str]] = {
    "target": str, "lane": str, "instruction": str, "realise": str, "table": str, "offsets": str, "pieces": str,
    "threads": str, "at": str, "halo": str, "join": str, "buffers": str, "copies": str, "barriers": str,
    "fuse": _pairs_text, "near": _pairs_text,
    "register": _sizes_text, "cache": _sizes_text, "terms": _sizes_text, "split": _sizes_text, "ends": _sizes_text,
    "remainder": _sizes_text, "group": _sizes_text, "pad": _sizes_text, "swizzle": _sizes_text,
    "vectors": _sizes_text,
    "winograd": _sizes_text, "block": _sizes_text,
    "order": ",".join, "reduce": ",".join, "pack": ",".join, "hold": ",".join, "flip": ",".join, "stream": ",".join,
    "shared": ",".join, "preload": ",".join,
    "phases": ",".join, "outline": _flag_text, "drain": _flag_text,
}  # fmt: skip
_READ: dict[str, Callable[[str], Any]] = {
    "target": str, "lane": str, "instruction": str, "realise": str, "table": str, "offsets": str, "pieces": int,
    "threads": int, "at": str, "halo": str, "join": str, "buffers": int, "copies": str, "barriers": str,
    "fuse": _pairs, "near": _pairs, "register": _sizes, "cache": _sizes, "terms": _sizes, "split": _sizes,
    "ends": _sizes, "remainder": _sizes, "group": _sizes, "pad": _sizes, "swizzle": _sizes, "vectors": _sizes,
    "winograd": _sizes, "block": _sizes,
    "order": _names, "reduce": _names, "pack": _names, "hold": _names, "flip": _names, "phases": _names,
    "stream": _names, "shared": _names, "preload": _names,
    "outline": _flag, "drain": _flag,
}  # fmt: skip
_EXAMPLE = {
    "target": "--target=avx512", "lane": "--lane=oc", "realise": "--realise=peel", "table": "--table=row",
    "pieces": "--pieces=8", "threads": "--threads=2", "at": "--at=oh", "halo": "--halo=recompute",
    "fuse": "--fuse=oh+ow",
    "register": "--register=oc:32,ow:14",
    "order": "--order=mb,oc,oh,ow", "cache": "--cache=oc:256,ic:128",
    "instruction": "--instruction=vpdpbusd_512",
    "ends": "--ends=kw:6,kw:7", "remainder": "--remainder=oc:8",
    "terms": "--terms=ic:4", "split": "--split=mb:2", "reduce": "--reduce=kh,kw,ic", "pack": "--pack=wei",
    "near": "--near=src+oh_ow,wei+oc:64", "stream": "--stream=wei",
    "join": "--join=atomic", "group": "--group=oc:32,ow:16,ic:8", "shared": "--shared=src,wei", "pad": "--pad=wei:1",
    "swizzle": "--swizzle=wei:4", "vectors": "--vectors=oc:4,ic:4",
    "buffers": "--buffers=2", "copies": "--copies=async", "barriers": "--barriers=split",
    "preload": "--preload=bia,dst", "hold": "--hold=wei",
    "offsets": "--offsets=sums", "flip": "--flip=wei", "outline": "--outline=no",
    "drain": "--drain=yes", "phases": "--phases=ow", "winograd": "--winograd=oh:4,ow:4", "block": "--block=oh:2",
}  # fmt: skip
