"""Lists of legal names in messages, with a suggestion for a misspelt name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from convsmith.diag.forking import import_lock

__all__ = ["choices", "nearest", "suggestion"]

_CUTOFF = 0.6
"""Minimum similarity, as `difflib` measures it, between a misspelt name and a suggestion."""
_LONGEST = 80
"""Maximum length of a misspelt name; longer texts, which take time to compare, get no suggestion."""


def choices(word: object, legal: Iterable[str], shown: Iterable[str] | None = None) -> str:
    """Return the ``legal`` names as a list for a message, with a suggestion if ``word`` is similar to one of them.

    The list shows the texts ``shown`` instead of the names if both differ.
    """
    names = list(legal)
    return ", ".join(names if shown is None else shown) + suggestion(word, names)


def suggestion(word: object, legal: Iterable[str], meanings: Mapping[str, str] | None = None) -> str:
    """Return the question at the end of a message that suggests the ``legal`` name most similar to ``word``; empty if
    no name is similar.

    ``meanings`` maps some of the names to the text to suggest in their place.
    """
    found = nearest(word, legal)
    return f"; did you mean '{(meanings or {}).get(found, found)}'?" if found else ""


def nearest(word: object, legal: Iterable[str]) -> str:
    """Return the name most similar to ``word``, ignoring case and the signs between words; empty if no name is similar.
    """
    if not isinstance(word, str) or not 0 < len(word) <= _LONGEST:
        return ""
    with import_lock:
        from difflib import get_close_matches

    names: dict[str, str] = {}
    for name in legal:
        names.setdefault(_plain(name), name)
    found = get_close_matches(_plain(word), names, 1, _CUTOFF)
    return names[found[0]] if found else ""


def _plain(name: str) -> str:
    return re.sub(r"[-_+. ]", "", name.lower()) or name
