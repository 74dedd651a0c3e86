"""Pauses of Python's cyclic garbage collector while many objects that live on are made."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from convsmith.diag.system import at_fork

__all__ = ["importing", "no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector, each of whose runs takes tens of milliseconds while LLVM modules, the nodes
    of a kernel or the modules of PyTorch are alive.
    """
    if not gc.isenabled():
        yield
        return
    thread = threading.get_ident()
    _pausing.add(thread)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _pausing.discard(thread)


@contextmanager
def importing() -> Iterator[None]:
    """Pause the collector while modules are imported, and let all objects grow old at the end: the next collection of
    young objects would look at those of the modules, which live on, for 25 ms.

    A program that has frozen objects keeps them frozen, and the others young.
    """
    with no_collection():
        yield
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # objects that are no longer frozen are in the oldest generation


_pausing: set[int] = set()
"""Threads that have paused the collector and will resume it."""


def _resume_in_child() -> None:
    """Resume the collector in a forked child for a thread that only the parent has."""
    if _pausing - {threading.get_ident()}:
        _pausing.clear()
        gc.enable()


at_fork(after_in_child=_resume_in_child)
