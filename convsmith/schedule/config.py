"""Config: every decision of a schedule, as data that prints on one line and parses back.

A config is two lists, the tiles of its loops and the stagings of its operands, and a few words
(``schedule/config_rows.py`` has a row for each). Loops have their names in the naive nest (``g mb oc oh ow ic kh kw``
...); a fused loop joins the names of its parts with ``_`` (``oh_ow``).  Tiling a loop ``x`` gives ``x.o`` (over tiles)
and ``x.i`` (within a tile); the loop along the lanes gives ``x.o``, ``x.v`` (vectors) and ``x.l`` (lanes).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from convsmith.diag.choices import choices, suggestion
from convsmith.diag.errors import ConfigError
from convsmith.diag.expect import hint_text, shown
from convsmith.diag.forking import cached_property
from convsmith.schedule.config_rows import CONFIG_ROWS, DEFAULTS, ConfigRow, Names, Pairs, Sizes, place_of
from convsmith.schedule.former_words import FORMER_WORDS

__all__ = [
    "THEN", "Config", "Level", "Scope", "ScopeAtLoop", "Staging", "Tile", "check_words", "read_words",
    "split_statements",
]  # fmt: skip

MAX_STATEMENTS = 128
"""Maximum number of statements that a config schedules; their configs are nested."""
THEN = " / "
"""Text between the configs of two statements."""
Level = Literal[
    "register", "k_step", "cache", "first_last_tile", "split", "diagonal", "zeros", "group", "l2", "cluster", "vectors",
    "winograd", "block",
]  # fmt: skip
"""The levels of tiles."""
Scope = Literal["pack", "unfold", "stream", "fetch", "resident", "shared", "preload"]
"""The scopes of stagings whose places follow from the nest."""
ScopeAtLoop = Literal["pack_at"]
"""The scopes of stagings at a loop that the config names."""
_WORDS = {row.name: row.default for row in CONFIG_ROWS.values() if row.kind in ("word", "copy")}
_NO_TILES: dict[str, Sizes] = {row.name: row.default for row in CONFIG_ROWS.values() if row.kind == "level"}
_STAGED: dict[str, Names] = {row.name: row.default for row in CONFIG_ROWS.values() if row.kind == "scope"}
_STAGED_AT: dict[str, Pairs] = {row.name: row.default for row in CONFIG_ROWS.values() if row.kind == "scope at a loop"}
_PARTS = {name: [row for row in CONFIG_ROWS.values() if row.of == name] for name in (*_NO_TILES, *_STAGED)}
"""Rows of the properties of a level's tiles, or of a scope's stagings, besides names and sizes."""
_NAMING = [row for row in CONFIG_ROWS.values() if row.holds]
_POSITION = {name: n for n, name in enumerate(CONFIG_ROWS)}


class Tile(NamedTuple):
    """``size`` iterations of ``loop`` at a level; the last tiles have ``tail`` iterations, if that is given.

    The size of a ``split`` is the number of its parts.
    """

    loop: str
    level: str
    size: int
    tail: int = 0


class Staging(NamedTuple):
    """An operand in a scope: its copy is made at the loop ``at`` if one is named, has its own layout (a word of
    ``config_rows``, and elements), and exists in several ``buffers``, which ``copies`` fill.
    """

    operand: str
    scope: str
    at: str = ""
    layout: tuple[str, int] | None = None
    buffers: int = 1
    copies: str = "wait"


class Config:
    """One point of the schedule space, an immutable value: ``tiles``, ``stagings`` and words.

    ``Config("avx2", "oc", register=(("oc", 16), ("ow", 6)), pack=("wei",))`` gives words their values; those that it
    does not name have defaults. ``consumer`` is the config of the next statement, with loops and arrays of its
    own names; its text stands behind `` / ``. ConfigError where a value contradicts another one.
    """

    consumer: Config | None
    target: str
    lane: str
    fuse: Pairs
    order: Names
    reduce: Names
    instruction: str
    phases: Names
    realise: str
    restrict: Names
    table: str
    join: str
    buffers: int
    copies: str
    rounds: bool
    load_ahead: bool
    teams: int
    store_parts: int
    register_file: int
    vector_registers: int
    sub_tile: int
    barriers: str
    carry: bool
    offsets: str
    flip: Names
    spill_sums: bool
    pieces: int
    outline: bool
    threads: int
    compute_at: str
    halo: str
    _values: dict[str, Any]
    _hash: int

    def __init__(self, target: str, lane: str, *, consumer: Config | None = None, **words: Any) -> None:
        values = {"target": target, "lane": lane, **words}
        _check_types(values, consumer)
        self._set(values, consumer)

    def changed(self, **words: Any) -> Config:
        """Return the config with other values of ``words``. Properties of a tile or of a staging change with it."""
        if not words:
            return self
        consumer = words.pop("consumer") if "consumer" in words else self.consumer
        _check_types(words, consumer)
        values = {**self._values, **words}
        for name in words.keys() & _PARTS.keys():
            for part in (x for x in _PARTS[name] if x.name in values and x.name not in words):
                values[part.name] = _left(values[part.name], values[name], part)
        return _made(values, consumer)

    def of_each(self, **words: Any) -> Config:
        """Return the config with the same changes for every statement."""
        return self.changed(**words, consumer=None if self.consumer is None else self.consumer.of_each(**words))

    def renamed(self, dims: Mapping[str, str], arrays: Mapping[str, str]) -> Config:
        """Return the config of the same statement with other names of its dims and arrays."""
        loops = dict(dims)
        for a, b in self.fuse:
            loops[f"{a}_{b}"] = f"{loops.get(a, a)}_{loops.get(b, b)}"
        renamed = {row.name: row.renamed(self.value(row.name), loops, arrays) for row in _NAMING}
        return _made({**self._values, **renamed}, self.consumer)

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles of all levels."""
        return _tiles(self._values)

    @cached_property
    def stagings(self) -> tuple[Staging, ...]:
        """The stagings in all scopes."""
        return _stagings(self._values)

    def tiles_at(self, level: Level) -> Sizes:
        """Return loop and size of each tile at a level."""
        found: Sizes = self._values.get(level, _NO_TILES[level])
        return found

    def size(self, loop: str, level: Level = "register") -> int:
        """Return the size of a loop's tile at a level; 1 without a tile."""
        for name, size in self.tiles_at(level):
            if name == loop:
                return size
        return 1

    def group_size(self, loop: str) -> int:
        """Return the tile of a thread group along a loop, by default the tile of one thread."""
        return dict(self.tiles_at("group")).get(loop, self.size(loop))

    def tails(self, level: Level = "register") -> Sizes:
        """Return loop and tail of each tile at a level that has a tail."""
        return tuple((x.loop, x.tail) for x in self.tiles if x.level == level and x.tail)

    def staged(self, scope: Scope) -> Names:
        """Return the operands that are staged in a scope."""
        found: Names = self._values.get(scope, _STAGED[scope])
        return found

    def staged_at(self, scope: ScopeAtLoop) -> Pairs:
        """Return operand and loop of each staging in a scope whose copies are made at a loop."""
        found: Pairs = self._values.get(scope, _STAGED_AT[scope])
        return found

    @property
    def packed(self) -> frozenset[str]:
        """The operands that are packed, by a kernel before or at a loop."""
        return frozenset((*self.staged("pack"), *(operand for operand, _ in self.staged_at("pack_at"))))

    def layouts(self, kind: str) -> Sizes:
        """Return operand and elements of each staging whose layout is of a kind, ``pad`` or ``swizzle``."""
        return tuple((x.operand, x.layout[1]) for x in self.stagings if x.layout is not None and x.layout[0] == kind)

    def value(self, word: str) -> Any:
        """Return the value of a word, as its text has it."""
        return self._values.get(word, DEFAULTS[word])

    def values(self) -> dict[str, Any]:
        """Return the values of all words, and ``consumer``, which make an equal config."""
        return {**DEFAULTS, **self._values, "consumer": self.consumer}

    @property
    def place(self) -> tuple[str, int]:
        """The loop at which rows are computed, and the iterations of its cache tile; 0 for the innermost one."""
        return place_of(self.compute_at)

    @property
    def links(self) -> tuple[Config, ...]:
        """The configs of all statements, each with the configs of the following statements."""
        return (self,) if self.consumer is None else (self, *self.consumer.links)

    @property
    def stages(self) -> tuple[Config, ...]:
        """The configs of all statements, each without the config of the next one."""
        return tuple(link.changed(compute_at="", halo="keep", consumer=None) for link in self.links)

    @property
    def has_transform(self) -> bool:
        """Whether a statement is the product of a transform."""
        return any(stage.tiles_at("winograd") for stage in self.stages)

    @staticmethod
    def parse(text: str) -> Config:
        """Return the config that prints as ``text``. ConfigError names the illegal word."""
        return _config(tuple(split_statements(text)))

    def __str__(self) -> str:
        own = " ".join([CONFIG_ROWS[name].text(value) for name, value in self._values.items()])
        return own if self.consumer is None else f"{own}{THEN}{self.consumer}"

    def __repr__(self) -> str:
        return f"Config.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Config) and self._values == other._values and self.consumer == other.consumer
        )  # fmt: skip

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a config is immutable; legal is config.changed({name}=...)")

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._values, self.consumer)

    def _set(self, values: Mapping[str, Any], consumer: Config | None) -> None:
        """Store the values that are not defaults, and the words. ConfigError if they contradict each other."""
        own = {n: values[n] for n in sorted(values, key=_POSITION.__getitem__) if values[n] != DEFAULTS[n]}
        facts = vars(self)
        facts.update(_WORDS)
        facts.update((n, value) for n, value in own.items() if n in _WORDS)
        facts.update(consumer=consumer, _values=own, _hash=hash((*own.items(), consumer)))
        for name, value in own.items():
            if (check := CONFIG_ROWS[name].check) is not None:
                check(self, value)
        if consumer is not None and _of_kernel(consumer) != _of_kernel(self):
            raise ConfigError(
                "consumer", f"{self}: both statements have one --target, one --threads and one --vector_registers"
            )


def _of_kernel(config: Config) -> tuple[str, int, int]:
    """Return the words that all statements of a kernel share."""
    return config.target, config.threads, config.vector_registers


def _made(values: Mapping[str, Any], consumer: Config | None) -> Config:
    """Return the config of values that have the types of their words."""
    config = object.__new__(Config)
    config._set(values, consumer)
    return config


def _tiles(own: Mapping[str, Any]) -> tuple[Tile, ...]:
    """Return the tiles of the levels that have tiles."""
    found = []
    for level in (n for n in own if n in _NO_TILES):
        tails = {loop: tail for part in _PARTS[level] for loop, tail in own.get(part.name, ())}
        found += [Tile(loop, level, size, tails.get(loop, 0)) for loop, size in own[level]]
    return tuple(found)


def _stagings(own: Mapping[str, Any]) -> tuple[Staging, ...]:
    """Return the stagings in all scopes."""
    found = []
    for scope, default in _STAGED.items():
        if operands := own.get(scope, default):
            layouts = {x: (p.name, n) for p in _PARTS[scope] if p.kind == "layout" for x, n in own.get(p.name, ())}
            copies = {p.name: own.get(p.name, p.default) for p in _PARTS[scope] if p.kind == "copy"}
            found += [Staging(operand, scope, "", layouts.get(operand), **copies) for operand in operands]
    for scope in _STAGED_AT:
        found += [Staging(operand, scope, at) for operand, at in own.get(scope, ())]
    return tuple(found)


def _left(value: Any, of: Any, part: ConfigRow) -> Any:
    """Return the entries of a part's value whose tiles or operands are among ``of``, those of its level or scope."""
    if part.kind == "copy":
        return value if of else part.default
    names = {x if part.kind == "layout" else x[0] for x in of}
    return tuple((name, n) for name, n in value if name in names)


@lru_cache(256)
def _config(statements: tuple[str, ...]) -> Config:
    """Return the config of the texts of all statements; kernels of a network share few configs."""
    config: Config | None = None
    for own in reversed(statements):
        values = read_words(own)
        for key in ("target", "lane"):
            if key not in values:
                raise ConfigError("syntax", f"config: --{key}= is missing in {shown(own)}")
        check_words(values)
        config = _made(values, config)
    assert config is not None
    return config


def split_statements(text: str) -> list[str]:
    """Return the texts of the configs of the statements. ConfigError if there are too many, or ``text`` is not a str.
    """
    if not isinstance(text, str):
        raise ConfigError("syntax", f"config: expected a text, got {shown(text)}")
    statements = text.split(THEN)
    if len(statements) > MAX_STATEMENTS:
        raise ConfigError("syntax", f"config: {len(statements)} statements; legal are at most {MAX_STATEMENTS}")
    return statements


def read_words(text: str) -> dict[str, Any]:
    """Return the values in the text of one statement's config, by word. ConfigError names the illegal word."""
    values: dict[str, Any] = {}
    for word in text.split():
        key, eq, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not eq or key not in CONFIG_ROWS:
            raise ConfigError("syntax", f"config: {shown(word)} is not one of {_legal(key)}")
        try:
            values[key] = CONFIG_ROWS[key].form.read(value)
        except ValueError:
            example = f"--{key}={CONFIG_ROWS[key].example}"
            raise ConfigError(
                "syntax", f"config: {shown(word)} does not read as {key}; for example {example}"
            ) from None
    return values


def check_words(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if ``values``, by word, have an illegal value for a word with several legal ones."""
    for name, value in values.items():
        if (legal := CONFIG_ROWS[name].legal) and value not in legal:
            raise ConfigError(name, f"--{name}={value} is unknown; legal are {choices(value, legal)}")


def _check_types(words: Mapping[str, Any], consumer: Any) -> None:
    """Raise ConfigError if a word does not exist, or its value has another type."""
    for name, value in words.items():
        if name not in CONFIG_ROWS:
            raise ConfigError("syntax", f"config: {shown(name)} is not one of {_legal(name)}")
        if not CONFIG_ROWS[name].fits(value):
            expected = hint_text(CONFIG_ROWS[name].form.hint)
            raise ConfigError("syntax", f"config: {name}={shown(value)} is not legal: expected {expected}")
    if consumer is not None and not isinstance(consumer, Config):
        raise ConfigError("syntax", f"config: consumer={shown(consumer)} is not legal: expected Config or None")
    check_words(words)


def _legal(word: object) -> str:
    """Return the words of a config, with a suggestion for ``word``."""
    names = ", ".join([f"--{name}=" for name in CONFIG_ROWS])
    return names + suggestion(word, [*CONFIG_ROWS, *FORMER_WORDS], FORMER_WORDS)
