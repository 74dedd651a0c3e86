"""Memory of this process that holds code: it is written once, and then read and run."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache

from convsmith.diag.errors import UnsupportedError

__all__ = ["ExecutableMemory", "function_address"]


@cache
def _process() -> ctypes.CDLL:
    """Return the libraries that this process has loaded."""
    return ctypes.CDLL(None, use_errno=True)


@cache
def _protect() -> Callable[[int, int, int], int]:
    """Return the function of the system that changes what a process may do with memory."""
    function = _process().mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


@cache
def function_address(name: str) -> int | None:
    """Return the address of a function in the libraries of this process; None if no library has it."""
    try:
        return ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
    except AttributeError:
        return None


class ExecutableMemory:
    """`nbytes` bytes at `address`, whole pages of their own, while this object lives. UnsupportedError if the system
    forbids processes to run code that they have written.
    """

    __slots__ = ("__weakref__", "_memory", "_view", "address")

    def __init__(self, nbytes: int) -> None:
        self._memory = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = ctypes.c_char.from_buffer(self._memory)  # keeps the pages at their place
        self.address = ctypes.addressof(self._view)

    def hold(self, code: bytes) -> None:
        """Store code, which can run from now on, and can no longer be written."""
        self._memory[: len(code)] = code
        if _protect()(self.address, len(self._memory), mmap.PROT_READ | mmap.PROT_EXEC):
            raise UnsupportedError(
                f"the system does not let this process run code that it wrote: {os.strerror(ctypes.get_errno())}",
                code="executable",
            )
