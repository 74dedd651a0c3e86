"""Systematic damage to messages of ONNX: every field absent, and every field with another value, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["damaged"]

_INTEGERS = (-1, 0, 1, 99, 1 << 40, (1 << 63) - 1)
_TEXTS = ("", "other", "\x1b]0;x\x07\n")
_BYTES = (b"", b"\xff")
_FLOATS = (0.0, -1.0, float("nan"))


def damaged(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield copies of a message, each with one damage, and the path of the field with what happened to it."""
    for path, change in _damages(message, ()):
        copy = type(message)()
        copy.CopyFrom(message)
        found = copy
        for step in path[:-1]:
            found = found[step] if isinstance(step, int) else getattr(found, step)
        words = ".".join(map(str, path))
        try:
            what = change(found, path[-1])
        except ValueError:  # the value does not fit the field
            continue
        yield f"{words} {what}", copy


def _damages(message: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for field, value in message.ListFields():
        here = (*path, field.name)
        yield here, _absent
        if field.is_repeated:
            yield here, _first_twice
            for n in range(min(len(value), 3)):
                yield (*here, n), _element_absent
                if field.type == field.TYPE_MESSAGE:
                    yield from _damages(value[n], (*here, n))
                else:
                    for other in _others(field):
                        yield (*here, n), _element(other)
        elif field.type == field.TYPE_MESSAGE:
            yield here, _empty
            yield from _damages(value, here)
        else:
            for other in _others(field):
                yield here, _value(other)


def _others(field: Any) -> tuple[Any, ...]:
    if field.type == field.TYPE_STRING:
        return _TEXTS
    if field.type == field.TYPE_BYTES:
        return _BYTES
    return _FLOATS if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE) else _INTEGERS


def _absent(message: Any, name: str) -> str:
    message.ClearField(name)
    return "absent"


def _empty(message: Any, name: str) -> str:
    getattr(message, name).Clear()
    return "empty"


def _first_twice(message: Any, name: str) -> str:
    values = getattr(message, name)
    values.append(values[0])
    return "with its first element twice"


def _element_absent(values: Any, place: int) -> str:
    del values[place]
    return "absent"


def _element(other: Any) -> Any:
    def change(values: Any, place: int) -> str:
        values[place] = other
        return f"= {other!r}"

    return change


def _value(other: Any) -> Any:
    def change(message: Any, name: str) -> str:
        setattr(message, name, other)
        return f"= {other!r}"

    return change
