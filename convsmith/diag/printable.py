"""Text of other programs and files, made safe to print: a terminal or a browser must not obey characters in a name."""

from __future__ import annotations

__all__ = ["LINES", "printable"]

LINES = "\n\t"
"""Characters that structure a text of several lines."""


def printable(text: str, keep: str = "") -> str:
    """Return ``text`` with each character that is not printable written as Python escapes it, except those in ``keep``.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
