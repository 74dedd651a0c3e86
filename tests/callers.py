"""The same work on several Python threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def on_threads(work: Callable[[T], object], given: Sequence[T]) -> None:
    """Do the work on each of what is given, all at once; what fails on one of the threads fails here."""
    start, failures = threading.Barrier(len(given)), list[BaseException]()

    def run(x: T) -> None:
        start.wait()
        try:
            work(x)
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=run, args=(x,)) for x in given]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
