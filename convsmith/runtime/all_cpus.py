"""Work on arrays that all CPUs of the process share: numpy and kernels leave Python to other threads meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TypeVar

from convsmith.runtime.threads import available_cpus

__all__ = ["on_all_cpus", "on_other_cpus"]

T = TypeVar("T")


def on_all_cpus(work: Callable[[T], object], items: Sequence[T]) -> None:
    """Call ``work`` with each item, in threads for all CPUs. Raises the first error of a call, after which no further
    one begins.
    """
    with on_other_cpus(work, items):
        pass


@contextmanager
def on_other_cpus(work: Callable[[T], object], items: Sequence[T]) -> Iterator[None]:
    """Call ``work`` with each item, in threads for all CPUs but one while the block runs, and in this thread too when
    it has ended. Raises the first error of a call.

    No thread works when the context has ended, even after an error.
    """
    left, errors = iter(items), list[BaseException]()

    def share() -> None:
        try:
            for item in left:
                work(item)
        except BaseException as error:
            errors.append(error)

    helpers = [Thread(target=share) for _ in range(min(available_cpus(), len(items)) - 1)]
    started = list[Thread]()
    try:
        with suppress(RuntimeError):  # the system has no more threads
            for helper in helpers:
                helper.start()
                started.append(helper)
        yield
        for item in left:
            if errors:
                break
            work(item)
    finally:
        for _ in left:
            pass
        for helper in started:
            helper.join()
    if errors:
        raise errors[0]
