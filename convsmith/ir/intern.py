"""Interned immutable nodes: within one table, equal fields give the same object.

Each compilation owns a table (:func:`interning`); outside of a compilation, nodes go to a table of the process.  A
table is a dict with strong references and is freed with its owner.  A context variable holds the current table, so
threads that compile at the same time do not share nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, dataclass_transform

Table = dict[Any, Any]
_OF_PROCESS: Table = {}
_TABLE: ContextVar[Table] = ContextVar("convsmith_nodes", default=_OF_PROCESS)


nodes = _TABLE.get
"""Returns the present table, in which facts about its nodes may be kept under keys of their own."""


@contextmanager
def interning(known: Mapping[Any, Any] = MappingProxyType({})) -> Iterator[Table]:
    """Run the ``with`` block with a new table; nodes created in it are not identical to nodes created outside, except
    those that are ``known``.
    """
    table: Table = dict(known)
    token = _TABLE.set(table)
    try:
        yield table
    finally:
        _TABLE.reset(token)


@contextmanager
def one_table() -> Iterator[Table]:
    """Run the ``with`` block with the table of the compilation under way, or with a new table if there is none.

    Choosing a config and compiling it share a table, so that compiling reuses the facts found while choosing.
    """
    table = _TABLE.get()
    if table is not _OF_PROCESS:
        yield table
        return
    with interning() as table:
        yield table


def _constructor(cls: type, fields: tuple[str, ...]) -> Any:
    names = ", ".join(fields)
    key = f"(cls, {names})" if fields else "(cls,)"
    sets = "\n".join(f"        _set_{f}(node, {f})" for f in fields)
    source = (
        f"def __new__(cls{', ' if names else ''}{names}):\n"
        f"    table = _get_table()\n"
        f"    key = {key}\n"
        f"    node = table.get(key)\n"
        f"    if node is None:\n"
        f"        node = _allocate(cls)\n{sets}\n"
        f"        node = table.setdefault(key, node)\n"
        f"    return node\n"
    )
    scope: dict[str, Any] = {"_get_table": _TABLE.get, "_allocate": object.__new__}
    for f in fields:
        scope[f"_set_{f}"] = cls.__dict__[f].__set__
    exec(source, scope)
    return scope["__new__"]


@dataclass_transform(frozen_default=True, eq_default=False)
class InternMeta(type):
    """Makes each subclass slotted, immutable and interned by its annotated fields, in order.

    A class that defines ``__slots__`` itself is abstract; names in ``_cached_`` become slots that are filled later.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> InternMeta:
        abstract = "__slots__" in space
        own = () if abstract else tuple(space.get("__annotations__", {}))
        space.setdefault("__slots__", own + tuple(space.pop("_cached_", ())))
        space["__match_args__"] = own
        cls = super().__new__(mcs, name, bases, space)
        if own:
            cls.__new__ = _constructor(cls, own)  # type: ignore[method-assign]
        return cls


class Node(metaclass=InternMeta):
    """An interned, immutable expression node; ``==`` is identity."""

    __slots__ = ("_variables",)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def __reduce__(self) -> Any:
        fields: tuple[str, ...] = type(self).__match_args__
        return type(self), tuple(getattr(self, f) for f in fields)

    def __bool__(self) -> bool:
        raise TypeError(f"{type(self).__name__} has no truth value; compare with `is`")
