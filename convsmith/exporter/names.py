"""Names of exported kernels: identifiers of C, C++ and Rust."""

from __future__ import annotations

import re
from collections.abc import Iterable

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text
from convsmith.exporter.library_functions import PROVIDED

__all__ = ["check_name", "legal_name", "unique_names"]

_FUNCTION = re.compile(r"_(pack|pack_\w+|check|message)$", re.IGNORECASE)
"""Suffixes of the functions beside a kernel, with which the name of a kernel must not end."""
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq as asm async auto await bitand bitor bool break case catch char class compl concept const
    constexpr continue crate decltype default delete do double dyn else enum explicit export extern false float fn for
    friend goto if impl in inline int let long loop main match mod module move mut mutable namespace new noexcept not
    nullptr operator or private protected pub public ref register requires restrict return self short signed sizeof
    static struct super switch template this throw trait true try type typedef typeid typename union unsafe unsigned use
    using virtual void volatile where while xor yield
    """.split()
)
"""Words that a C, C++ or Rust program cannot use as the name of a function, in lower case."""
_RESERVED = frozenset({"main", *PROVIDED})
"""Names of functions that programs or exported code define."""
_PREFIX = "convsmith"
"""Prefix of the names of entries."""


def check_name(name: str) -> str:
    """Return ``name``. UsageError unless it is an identifier of C, C++ and Rust."""
    expect_text("name", name, "bad-name")
    if not _is_legal(name):
        kind = "no identifier of C" if _IDENTIFIER.fullmatch(name) is None else "a word of C, C++, Rust or convsmith"
        raise UsageError(
            f"name {name!r} is {kind}; legal are letters, digits and _ that begin with a letter, such as "
            f"{legal_name(name)}",
            code="bad-name",
        )
    return name


def legal_name(text: str, kind: str = "conv") -> str:
    """Return an identifier that resembles ``text``: other characters become _, and ``kind`` precedes a reserved word.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "kernel"
    name = name if _is_legal(name) else f"{kind}_{name}"
    return f"{name}_kernel" if _FUNCTION.search(name) else name


def _is_legal(name: str) -> bool:
    taken = name in _KEYWORDS or name in _RESERVED or name.startswith(_PREFIX)
    return _IDENTIFIER.fullmatch(name) is not None and not taken


def unique_names(names: Iterable[str]) -> list[str]:
    """Return ``names`` with a number behind each repeated name. Case is ignored, because macros are in upper case."""
    found: list[str] = []
    for name in names:
        number, own = 1, name
        while own.upper() in map(str.upper, found):
            number += 1
            own = f"{name}_{number}"
        found.append(own)
    return found
