"""Wish: values of some fields of a config. A model chooses the other fields, among the configs that can have these
values.

This module knows no model: ``tune/`` ranks the configs of a problem.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.schedule.config import THEN, Config, check_words, read_words, split_statements
from convsmith.schedule.config_rows import CONFIG_ROWS
from convsmith.schedule.given import OPTION, GivenSchedule

__all__ = ["Decisions", "Wish", "on_threads", "read_decisions"]

_COMMON = ("target", "threads")
"""Fields that all statements of a config share."""
_JOINING = ("compute_at", "halo")
"""Fields that only a statement before another statement has."""
_NEEDS = {"table": ("realise", "indirection"), "restrict": ("realise", "pad_copy")}
"""Fields that have an effect only with one value of another field."""


@record(frozen=True)
class Wish:
    """Values of some fields of a config.

    ``stages`` holds pairs of a field and its value, for each statement, or once for all statements. With an empty
    ``target`` or ``threads`` of None, the call determines them.
    """

    stages: tuple[tuple[tuple[str, Any], ...], ...]
    target: str = ""
    threads: int | None = None

    def __str__(self) -> str:
        """Return the text that :func:`read_decisions` reads as these values, without target and threads."""
        return THEN.join(" ".join(CONFIG_ROWS[name].text(value) for name, value in values) for values in self.stages)

    @property
    def is_empty(self) -> bool:
        """Whether no field besides target and threads has a value."""
        return not any(self.stages)

    @property
    def is_of_joints(self) -> bool:
        """Whether a value determines how a statement is fused with the next one."""
        return any(name in _JOINING for values in self.stages for name, _ in values)

    def of_statement(self, n: int) -> Wish:
        """Return the values for the statement ``n``."""
        return Wish((self.stages[n] if len(self.stages) > 1 else self.stages[0],), self.target, self.threads)

    def missing(self, config: Config) -> int:
        """Return the number of values that ``config`` does not have. ConfigError if its statements do not match."""
        return sum(
            _unordered(name, own.value(name)) != _unordered(name, value)
            for own, values in self._of_statements(config)
            for name, value in values
        )

    def applied(self, config: Config) -> Config:
        """Return ``config`` with the values in place of its own. ConfigError if the result is not a legal config."""
        changed: Config | None = None
        for own, values in reversed(self._of_statements(config)):
            changed = own.changed(**dict(values), consumer=changed)
        assert changed is not None
        return changed

    def _of_statements(self, config: Config) -> list[tuple[Config, tuple[tuple[str, Any], ...]]]:
        """Return each statement's config with the values of its fields."""
        statements = config.links
        if len(self.stages) not in (1, len(statements)):
            raise ConfigError(
                "consumer",
                f"{self}: {len(self.stages)} statements, the kernel has {len(statements)}; legal are values "
                f"for each of these, with '{THEN}' between them, or once for all",
            )  # fmt: skip
        if len(self.stages) == len(statements):
            return list(zip(statements, self.stages))
        inner = tuple(pair for pair in self.stages[0] if pair[0] not in _JOINING)
        return [*((own, self.stages[0]) for own in statements[:-1]), (statements[-1], inner)]


Decisions = Config | Wish | GivenSchedule


def read_decisions(text: str) -> Decisions:
    """Return the decisions of a text: a config if it names a target and a loop along the lanes, whose other fields have
    defaults; a schedule if it names a function; otherwise a wish. ConfigError names an illegal word.
    """
    if any(word.startswith(OPTION) for word in text.split()):
        return GivenSchedule.parse(text)
    parts = [read_words(part) for part in split_statements(text)]
    if any({"target", "lane"} <= values.keys() for values in parts):
        return Config.parse(text)
    common: dict[str, Any] = {}
    for values in parts:
        check_words(values)
        for name, (other, needed) in _NEEDS.items():
            if name in values:
                values.setdefault(other, needed)
        for name in _COMMON:
            if name in values and common.setdefault(name, values[name]) != values.pop(name):
                raise ConfigError("consumer", f"{text}: all statements have one --{name}")
    if not common and not any(parts):
        legal = ", ".join(f"--{name}=" for name in CONFIG_ROWS)
        raise ConfigError("syntax", f"config: {text!r} gives no field a value; legal are {legal}")
    return Wish(tuple(tuple(values.items()) for values in parts), **common)


def on_threads(decisions: Decisions, threads: int) -> Decisions:
    """Return the decisions for a number of host threads."""
    if isinstance(decisions, Config):
        return decisions.of_each(threads=threads)
    return replace(decisions, threads=threads)


def _unordered(name: str, value: Any) -> Any:
    """Return ``value``, sorted unless the order of its entries matters in the word ``name``."""
    return sorted(value) if isinstance(value, tuple) and not CONFIG_ROWS[name].ordered else value
