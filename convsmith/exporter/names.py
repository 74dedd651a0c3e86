"""Names of exported kernels: identifiers of C, C++, Rust and JavaScript that no C library, header or build uses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from convsmith.codegen.library_functions import PROVIDED
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text

__all__ = ["check_name", "check_prefix", "legal_name", "unique_names"]

_SUFFIX = re.compile(
    r"_(pack|pack_\w+|check|message|run|diff|load|unload|module|maps|tensor_maps|naive|(packed|scales|zero_points|rounding)(_post_op_\d+)?(_diff)?)$",
    re.IGNORECASE,
)
"""Suffixes that turn the name of a kernel into another of its identifiers: a function of the library or of the example,
or the macro of an array.
"""
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KEYWORDS = frozenset(
    """
    abstract alignas alignof and and_eq arguments as asm async auto await become bitand bitor bool box break case
    catch char char16_t char32_t char8_t class co_await co_return co_yield compl concept const const_cast consteval
    constexpr constinit continue crate debugger decltype default delete do double dyn dynamic_cast else enum eval
    explicit export extern false final finally float fn for friend function gen goto if impl implements import in
    inline instanceof int interface let long loop macro main match mod module move mut mutable namespace new
    noexcept not not_eq null nullptr operator or or_eq override package priv private protected pub public ref
    register reinterpret_cast requires restrict return Self self short signed sizeof static static_assert
    static_cast std struct super switch template this thread_local throw trait true try type typedef typeid typename
    typeof_unqual union unsafe unsigned unsized use using var virtual void volatile wchar_t where while with xor
    xor_eq yield
    """.split()
)
"""Words that a program in C, C++, Rust or JavaScript cannot use as the name of a function."""
_FILES = frozenset(
    """
    aio all assert c clean complex cpio crypt ctype dirent dl dlfcn edit_cache errno fcntl fenv float fmtmsg fnmatch ftw
    gcc gcc_s glob grp help iconv install inttypes iso646 langinfo libgen limits link locale m malloc math memory
    monetary mqueue ndbm netdb nl_types poll preinstall pthread pwd rebuild_cache regex resolv rt sched search semaphore
    setjmp signal spawn stdalign stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string
    strings stropts supc syslog tar termios tgmath threads time trace uchar ulimit unistd util utime utmpx wchar wctype
    wordexp
    """.split()
)
"""Names of standard headers, of libraries that linkers search, and of CMake targets, which no exported file may have.
"""
_RESERVED = frozenset(
    """
    bytes calls check code contents context decoded device encoded end expected found i large largest least loaded m
    made main maps memory modulo n names one_after_the_other open_device platforms queue quotient seconds small start
    status stream taken text_of tiles_are_granted took whole within wrong
    """.split()
).union(PROVIDED)
"""Names of functions that programs or exported code define, and of variables of the examples."""
_NUMBER = re.compile(r"(bits|largest|least|of|to)_(b?f|[su])\d\w*")
"""Names of functions of an example that convert or compare numbers of a type."""
_ARRAY = re.compile(
    r"(sum_of_|host_|true_|packed_|diff_|scales_|zero_points_|rounding_)*(src|wei|bia|dst|post_op_\d\w*|workspace)(_\d+)?"
)
"""Names of arrays, which the example declares next to the kernel."""
_DRIVER = re.compile(r"cu[A-Z]\w*|CU[a-z_A-Z]\w*|cuu?int\w*|cl[A-Z_]\w*|CL_\w*")
"""Names of the headers of CUDA's driver and of OpenCL."""
_OWN = "convsmith"
"""Prefix of the names of entries, and of the types of the header."""


@cache
def _c_library() -> frozenset[str]:
    """Return the identifiers that C libraries and their headers define."""
    text = resources.files(__package__).joinpath("c_library.txt").read_text(encoding="ascii")
    return frozenset(word for line in text.splitlines() if not line.startswith("#") for word in line.split())


def check_name(name: str) -> str:
    """Return ``name``. UsageError unless it is an identifier of C, C++ and Rust that no C library uses."""
    expect_text("name", name, "bad-name")
    if why := _fault(name):
        raise UsageError(
            f"name {name!r} is {why}; legal are letters, digits and _ that begin with a letter, such as "
            f"{legal_name(name)}",
            code="bad-name",
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` without underscores at its end. UsageError unless identifiers may begin with it."""
    expect_text("prefix", prefix, "bad-name")
    own = prefix.rstrip("_")
    if prefix and (_IDENTIFIER.fullmatch(own) is None or own.startswith(_OWN)):
        raise UsageError(
            f"prefix {prefix!r} is not legal; legal are letters, digits and _ that begin with a letter but not with "
            f"{_OWN}, such as {legal_name(prefix, 'net')}",
            code="bad-name",
        )
    return own


def legal_name(text: str, kind: str = "conv", prefix: str = "") -> str:
    """Return an identifier that resembles ``text``: other characters become _, ``prefix`` precedes it, and ``kind``
    precedes a reserved word.
    """
    own = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "kernel"
    name = "_".join(filter(None, (prefix, own)))
    name = "_".join(filter(None, (prefix, kind, own))) if _fault(name) else name
    return f"{name}_kernel" if _SUFFIX.search(name) else name


def _fault(name: str) -> str:
    """Return the reason why ``name`` cannot be the name of a kernel; empty if it can."""
    if _IDENTIFIER.fullmatch(name) is None:
        return "no identifier of C"
    if name in _KEYWORDS or name in _RESERVED or name.startswith(_OWN):
        return "a word of C, C++, Rust or convsmith"
    if _ARRAY.fullmatch(name) or _NUMBER.fullmatch(name):
        return "a word of C, C++, Rust or convsmith"
    if _DRIVER.fullmatch(name):
        return "a name of a device's driver"
    if name in _c_library():
        return "a name of the C library"
    return "the name of a system's header or library, or of a target of CMake" if name in _FILES else ""


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
