"""Types of options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import click

__all__ = ["Duration"]

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}
"""Units of a duration, in seconds."""


if TYPE_CHECKING:
    _Seconds: TypeAlias = click.ParamType[float]
else:
    _Seconds = click.ParamType  # older versions of click cannot subscript it


class Duration(_Seconds):
    """A time such as 30s, 500ms, 2m or 0, in seconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds of a text."""
        text = str(value).strip()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        try:
            seconds = float(number) * _SECONDS[text[len(number) :]]
        except (ValueError, KeyError):
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            self.fail(f"{text!r} is no time; legal are 0, 30s, 500ms, 2m and the like", param, ctx)
        return seconds
