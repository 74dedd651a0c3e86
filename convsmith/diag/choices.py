"""Lists of legal names in messages, with the name that a wrong one probably means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

__all__ = ["choices", "nearest", "suggestion"]

_CUTOFF = 0.6
"""Least similarity, as `difflib` measures it, of a name that a wrong one probably means."""
_LONGEST = 80
"""Maximum length of a misspelt name; longer texts, which take time to compare, get no suggestion."""


def choices(word: object, legal: Iterable[str], shown: Iterable[str] | None = None) -> str:
    """Return the names that are ``legal`` as a list, and which of them ``word`` probably means.

    The list has the texts ``shown`` instead of the names, where they differ.
    """
    names = list(legal)
    return ", ".join(names if shown is None else shown) + suggestion(word, names)


def suggestion(word: object, legal: Iterable[str], meanings: Mapping[str, str] | None = None) -> str:
    """Return the question at the end of a message: which of the ``legal`` names ``word`` probably means; empty if none
    is similar.

    ``meanings`` has what to write instead of some of the names.
    """
    found = nearest(word, legal)
    return f"; did you mean '{(meanings or {}).get(found, found)}'?" if found else ""


def nearest(word: object, legal: Iterable[str]) -> str:
    """Return the name that ``word`` is most similar to, whatever the case and the signs between words; or nothing."""
    if not isinstance(word, str) or not 0 < len(word) <= _LONGEST:
        return ""
    names: dict[str, str] = {}
    for name in legal:
        names.setdefault(_plain(name), name)
    found = get_close_matches(_plain(word), names, 1, _CUTOFF)
    return names[found[0]] if found else ""


def _plain(name: str) -> str:
    return re.sub(r"[-_+. ]", "", name.lower()) or name
