"""Locks that a forked child must find free.

A forked child has one thread, so a lock that another thread of the parent held stays locked in the child for ever.
Three mechanisms prevent this:

- `fork()` waits until no other thread imports a module of this package or is inside LLVM, and holds both locks until
  parent and child run on. The state behind these locks is whole then, and whoever is inside leaves soon.
- A `RenewedLock` guards Python objects that are whole at every moment: the child gets a new one.
- `cached_property` has no lock (the one of `functools` has one before Python 3.12).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, overload

__all__ = ["RenewedLock", "cached_property", "import_lock"]

T = TypeVar("T")

import_lock = threading.RLock()
"""Held around every import inside a function: Python's own lock of a module that is being imported is never renewed."""

_held: list[AbstractContextManager[Any]] = []
"""Locks that the fork under way holds, in the order in which it took them."""


class RenewedLock:
    """A reentrant lock, `lock`, that is replaced in a forked child."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()


class cached_property(Generic[T]):
    """`functools.cached_property` without a lock: two threads may both compute the value, which is the same."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


def _before_fork() -> None:
    _hold(import_lock)  # first: the import of llvmlite takes the other one
    llvm = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    if llvm is not None:
        _hold(llvm._lock)


def _hold(lock: AbstractContextManager[Any]) -> None:
    lock.__enter__()
    _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().__exit__(None, None, None)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
