"""Checks of arguments and dataclass fields against type hints, for functions and records that users call directly."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection
from dataclasses import fields
from datetime import date
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from convsmith.diag.choices import suggestion
from convsmith.diag.errors import ConvsmithError, UsageError

__all__ = [
    "MAX_DIGITS",
    "MAX_FIGURE",
    "MIN_FIGURE",
    "check_fields",
    "conforms",
    "expect_text",
    "expect_word",
    "has_long_number",
    "hint_text",
    "integer",
    "integers",
    "is_day",
    "is_encodable",
    "is_positive",
    "json_list",
    "limit_digits",
    "shown",
]  # fmt: skip

MIN_FIGURE, MAX_FIGURE = 1e-12, 1e18
"""Bounds of a positive measured number, within which quotients of two numbers and their logarithms are finite."""
_LONGEST = 200
"""Characters of a value in an error message."""
_MAX_BITS = 1000
MAX_DIGITS = 300
"""Maximum bits, and digits, of a number that is read; every legal size is smaller."""
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")


def conforms(value: Any, hint: Any) -> bool:
    """Return whether `value` is an instance of the type hint `hint`: a class, a union or a tuple type.

    A bool is never accepted as a number, nor is an integer beyond any legal number.
    """
    return (type(value) is hint and hint is not int) or _check_of(hint)(value)


def check_fields(record: Any, fail: Callable[[str], ConvsmithError], skip: Collection[str] = ()) -> None:
    """Check every field of the dataclass instance `record` against its type hint, except fields in `skip` and fields
    that have their default.

    Raise `fail(message)` for the first field that does not conform.
    """
    kind: Any = type(record)
    for name, hint, check, default in _hints(kind):
        value = getattr(record, name)
        if value is not default and (type(value) is not hint or hint is int) and name not in skip and not check(value):
            raise fail(f"{name}={shown(value)} is not legal: expected {hint_text(hint)}")


def expect_text(name: str, value: object, code: str) -> None:
    """Raise UsageError with `code` if `value`, the argument `name`, is not a str."""
    if not isinstance(value, str):
        raise UsageError(f"{name}: expected a text, got {shown(value)}", code=code)


def expect_word(name: str, value: object, legal: Collection[str], code: str) -> None:
    """Raise UsageError with `code` if `value`, the argument `name`, is not one of the strings in `legal`."""
    if not isinstance(value, str) or value not in legal:
        expected = f"{' or '.join(legal)}{suggestion(value, legal)}"
        raise UsageError(f"{name}={shown(value)} is not legal: expected {expected}", code=code)


def limit_digits(text: str, code: str) -> None:
    """Raise UsageError with `code` if a number in `text` has more than `MAX_DIGITS` digits.

    Python refuses to read and to print an integer of more than 4,300 digits.
    """
    if len(text) > MAX_DIGITS and (found := _LONG_NUMBER.search(text)):
        start = found.start()
        raise UsageError(
            f"a number begins with {text[start : start + 20]}: legal are at most {MAX_DIGITS} digits", code=code
        )


def has_long_number(text: str) -> bool:
    """Return whether a number in ``text`` has more than `MAX_DIGITS` digits."""
    return len(text) > MAX_DIGITS and _LONG_NUMBER.search(text) is not None


def integer(name: str, value: object) -> int:
    """Return `value` (Python or numpy integer) as an int.

    UsageError if it is anything else, including True and 2.0, which compare equal to integers.
    """
    if type(value) is int and value.bit_length() <= _MAX_BITS:
        return value
    try:
        if not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "bool":
            number = operator.index(value)  # type: ignore[arg-type]
            if number.bit_length() > _MAX_BITS:
                raise UsageError(f"{name} is {shown(number)}: legal are at most {_MAX_BITS}", code="bad-dim")
            return number
    except TypeError:
        pass
    raise UsageError(f"{name}={shown(value)} is not a whole number", code="bad-dim")


def integers(name: str, values: Any) -> tuple[int, ...]:
    """Return the elements of the iterable `values` as ints. UsageError if it is not iterable or holds a non-integer."""
    try:
        elements = tuple(values)
    except TypeError:
        message = f"{name}={shown(values)} is not legal: expected whole numbers in a list"
        raise UsageError(message, code="bad-dim") from None
    return tuple([integer(name, value) for value in elements])


def is_positive(value: object) -> bool:
    """Return whether a value that was read from a file is a number from `MIN_FIGURE` to `MAX_FIGURE`."""
    return type(value) in (int, float) and MIN_FIGURE <= value <= MAX_FIGURE  # type: ignore[operator]


def is_encodable(value: object) -> bool:
    """Return whether a value that was read from a file is a text that UTF-8 can encode."""
    return type(value) is str and not any("\ud800" <= c <= "\udfff" for c in value)


def is_day(value: object) -> bool:
    """Return whether a value that was read from a file is a day, such as 2026-01-31."""
    try:
        return type(value) is str and date.fromisoformat(value) is not None
    except ValueError:
        return False


def json_list(content: bytes, count: int) -> list[Any]:
    """Return the list of ``count`` values that a text in JSON holds; ValueError for other contents."""
    found = json.loads(content)
    if type(found) is not list or len(found) != count:
        raise ValueError(f"no list of {count} values")
    return found


@cache
def _check_of(hint: Any) -> Callable[[Any], bool]:
    """Return the function that checks whether a value conforms to `hint`."""
    if hint is Any:
        return lambda value: True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return lambda value: any(conforms(value, part) for part in parts)
    if origin is tuple and parts[-1] is Ellipsis:
        one, check = parts[0], _check_of(parts[0])
        return lambda value: isinstance(value, tuple) and all([type(x) is one or check(x) for x in value])
    if origin is tuple:
        return lambda value: isinstance(value, tuple) and len(value) == len(parts) and all(map(conforms, value, parts))
    if hint in (int, float):
        number = Integral if hint is int else Real

        def is_number(value: Any) -> bool:
            if type(value) is int:
                return value.bit_length() <= _MAX_BITS
            return isinstance(value, number) and not isinstance(value, bool) and not _is_huge(value)

        return is_number
    return lambda value: isinstance(value, origin or hint)


def _is_huge(value: object) -> bool:
    """Return whether a value is an integer that is beyond any legal number."""
    return isinstance(value, int) and value.bit_length() > _MAX_BITS


@cache
def _hints(record: Any) -> list[tuple[str, Any, Callable[[Any], bool], Any]]:
    """Return, for each field of a dataclass, its name, its type hint, the function that checks whether a value
    conforms, and its default, which conforms (`MISSING` if it has none).
    """
    hints = get_type_hints(record)
    return [(x.name, hints[x.name], _check_of(hints[x.name]), x.default) for x in fields(record)]


def hint_text(hint: Any) -> str:
    """Return the type hint `hint` in words, for an error message."""
    parts = get_args(hint)
    if get_origin(hint) is tuple:
        several = parts[-1] is Ellipsis
        return "a tuple of " + (
            f"any number of {hint_text(parts[0])}" if several else " and ".join(map(hint_text, parts))
        )
    if parts:
        return " or ".join(map(hint_text, parts))
    words = {str: "a text", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def shown(value: object) -> str:
    """Return a value as an error message shows it: its representation, of at most `_LONGEST` characters.

    Python refuses to print an integer of more than 4,300 digits; such a number is described.
    """
    if isinstance(value, int) and value.bit_length() > _LONGEST:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str | bytes) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]!r}..., of length {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # a container of such numbers
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
