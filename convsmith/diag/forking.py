"""Locks that are free in a forked child.

A forked child has one thread, so a lock that another thread of the parent held stays locked in the child for ever.
Three mechanisms prevent this:

- `os.fork()` first acquires the import lock of this module and llvmlite's lock, so that no other thread is importing or
  inside LLVM at the moment of the fork; parent and child release both locks afterwards.
- A `RenewedLock` guards Python objects that are consistent at every moment: the child gets a new lock.
- `cached_property` takes no lock (that of `functools` takes one before Python 3.12).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar, overload

from convsmith.diag.system import at_fork

__all__ = ["RenewedLock", "cached_property", "import_lock"]

T = TypeVar("T")

import_lock = threading.RLock()
"""Held during every import inside a function, because Python does not renew a module's import lock in a child."""

_acquired: list[AbstractContextManager[Any]] = []
"""Locks that the current fork has acquired, in the order of acquisition."""


class RenewedLock:
    """A holder of a reentrant lock, `lock`, that is replaced by a new one in a forked child."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self._renew()
        at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()


class cached_property(Generic[T]):
    """`functools.cached_property` without a lock: two threads may both compute the value, and both results are equal.
    """

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
    _acquire(import_lock)  # before llvmlite's lock, because importing llvmlite acquires that lock
    llvm = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    if llvm is not None:
        _acquire(llvm._lock)


def _acquire(lock: AbstractContextManager[Any]) -> None:
    lock.__enter__()
    _acquired.append(lock)


def _after_fork() -> None:
    while _acquired:
        _acquired.pop().__exit__(None, None, None)


at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
