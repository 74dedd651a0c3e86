"""Decodes JSON values into the types that a dataclass declares, and rejects all other values.

A decoder is created once per type. It takes the output of `json.loads` and raises ValueError for a value that is not of
the type. Lists become tuples; no other value is converted. A field with a default may be absent; `encoded` leaves it
out.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["decoder", "encoded"]

Decoder = Callable[[Any], Any]


@cache
def decoder(kind: Any) -> Decoder:
    """Return the function that decodes a value of `kind`: a dataclass, a plain type, or a tuple, dict or union of them.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind)
    if origin is tuple:
        return _plain_items(arguments[0]) if arguments[0] in (str, int) else _items(decoder(arguments[0]))
    if origin is dict:
        values = decoder(arguments[1])
        return lambda value: {key: values(each) for key, each in _plain(dict, value).items()}
    if origin in (Union, types.UnionType):
        (other,) = (decoder(a) for a in arguments if a is not type(None))
        return lambda value: None if value is None else other(value)
    if kind is object:
        return lambda value: value
    if origin is Literal:
        return lambda value: _member(arguments, value)
    return lambda value: _plain(kind, value)


def encoded(value: object) -> object:
    """Return the value from which the decoder of its type makes an equal one, without fields that have their defaults.
    """
    if is_dataclass(value):
        items = ((f, getattr(value, f.name)) for f in fields(value))
        return {f.name: encoded(item) for f, item in items if item != f.default}
    return [*map(encoded, value)] if isinstance(value, tuple) else value


def _items(item: Decoder) -> Decoder:
    return lambda value: tuple(map(item, value if type(value) is list else _plain(list, value)))


def _plain_items(kind: type) -> Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        for item in value if type(value) is list else _plain(list, value):
            if type(item) is not kind:
                _plain(kind, item)
        return tuple(value)

    return decode


def _record(kind: Any) -> Decoder:
    hints = _types(kind)
    names = {f.name for f in fields(kind)}
    defaults = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    required = names - defaults.keys()
    plain = {name: hints[name] for name in names if hints[name] in (str, int)}
    parts = {name: decoder(hints[name]) for name in names - plain.keys()}
    check: Callable[[Any], None] | None = getattr(kind, "__post_init__", None)

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            _plain(dict, value)
        if not required <= value.keys() <= names:
            raise ValueError(f"{kind.__name__} with the fields {', '.join(value)}")
        content = {**defaults, **value}
        for name, item in value.items():
            if (type_ := plain.get(name)) is None:
                content[name] = parts[name](item)
            elif type(item) is not type_:
                _plain(type_, item)
        made = object.__new__(kind)  # all fields are given, and the constructor checks their names again
        object.__setattr__(made, "__dict__", content)
        if check is not None:
            check(made)
        return made

    return decode


def _types(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, as `typing.get_type_hints` does in three times the time."""
    names = vars(sys.modules[kind.__module__])
    return {f.name: eval(f.type, names) if isinstance(f.type, str) else f.type for f in fields(kind)}


def _member(legal: tuple[Any, ...], value: Any) -> Any:
    if type(value) is not str or value not in legal:
        raise ValueError(f"{value!r:.80} is not one of {', '.join(legal)}")
    return value


def _plain(kind: Any, value: Any) -> Any:
    # bool is a subclass of int
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    return value
