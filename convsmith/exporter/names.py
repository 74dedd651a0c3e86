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
    abstract alignas alignof and and_eq as asm async auto await become bitand bitor bool box break case catch char
    char16_t char32_t char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue crate decltype default delete do double dyn dynamic_cast else enum explicit export extern false
    final float fn for friend gen goto if impl in inline int let long loop macro main match mod module move mut mutable
    namespace new noexcept not not_eq nullptr operator or or_eq override priv private protected pub public ref register
    reinterpret_cast requires restrict return Self self short signed sizeof static static_assert static_cast struct
    super switch template this thread_local throw trait true try type typedef typeid typename typeof_unqual union unsafe
    unsigned unsized use using virtual void volatile wchar_t where while xor xor_eq yield
    """.split()
)
"""Words that a C, C++ or Rust program cannot use as the name of a function."""
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
