"""Work in forked children: for code generators that keep state of a module or end the process, and to use several CPUs.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import NoReturn

from convsmith.diag.errors import ToolchainError

__all__ = ["Children", "in_child", "in_children"]

_DONE, _REFUSED = b"\0", b"\1"
_NUMBER = 4
"""Bytes of a number in a pipe."""
MAX_NUMBERS = 8192
"""Maximum number of pieces of work for children: an unread pipe has space for twice as many."""


def in_child(work: Callable[[], bytes], what: str) -> bytes:
    """Return the result of ``work`` in a forked child; without forks, run it in this process.

    ToolchainError if ``work`` raises one (with its text) or if the child dies; the message names ``what`` the child
    did.
    """
    if not hasattr(os, "fork"):
        return work()
    end, start = os.pipe()
    pid = _fork()
    if pid == 0:
        _run(work, start)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) or not answer:
        how = signal.strsignal(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else "without an answer"
        raise ToolchainError(f"{what}: LLVM ended its process ({how})")
    if answer[:1] == _REFUSED:
        raise ToolchainError(answer[1:].decode())
    return answer[1:]


class Children:
    """Forked processes that call ``work`` with each number below ``count``, until `close`; none without forks.

    A call that raises or whose process dies is skipped, as are numbers beyond `MAX_NUMBERS`: ``work`` stores its
    results where the caller looks for them, and the caller computes missing results.
    """

    def __init__(self, work: Callable[[int], object], count: int) -> None:
        self._work, self._pids = work, list[int]()
        self._numbers, give = os.pipe()
        self._end, self._start = os.pipe()
        os.write(give, b"".join(n.to_bytes(_NUMBER, "little") for n in range(min(count, MAX_NUMBERS))))
        os.close(give)

    def start(self, processes: int) -> None:
        """Start so many processes, which share the numbers that are left with those started before."""
        for _ in range(processes if hasattr(os, "fork") else 0):
            pid = _fork()
            if pid == 0:
                _work(self._work, self._numbers, self._start)
            self._pids.append(pid)

    def done(self) -> Generator[None, None, None]:
        """Yield once for each finished call, until all numbers are taken. No process is started afterwards."""
        os.close(self._start)
        self._start = -1
        while answer := os.read(self._end, 1):
            if answer == _DONE:
                yield

    def close(self) -> None:
        """End the processes."""
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for pipe in (self._start, self._end, self._numbers):
            if pipe >= 0:
                os.close(pipe)


def in_children(work: Callable[[int], object], count: int, processes: int) -> Generator[None, None, None]:
    """Call ``work`` with each number below ``count`` in one of several forked ``processes``, which end with the
    generator, and yield after each call, as `Children` do.
    """
    children = Children(work, count)
    try:
        children.start(processes)
        yield from children.done()
    finally:
        children.close()


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, for which this child never waits
        pid = os.fork()
    if pid == 0:
        gc.freeze()  # objects of the parent may wait for threads when they are destroyed, which a child lacks
    return pid


def _run(work: Callable[[], bytes], pipe: int) -> NoReturn:
    """Write the outcome of ``work`` to the pipe, and end the process; the parent continues with everything else."""
    try:
        try:
            answer = _DONE + work()
        except ToolchainError as error:
            answer = _REFUSED + str(error).encode()
        with os.fdopen(pipe, "wb") as file:
            file.write(answer)
    finally:
        os._exit(0)


def _work(work: Callable[[int], object], numbers: int, pipe: int) -> NoReturn:
    """Call ``work`` with numbers from a pipe that all children read, until it is empty, and end the process."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
        warnings.simplefilter("ignore")  # the caller warns about missing results
        while number := os.read(numbers, _NUMBER):
            answer = _REFUSED
            with suppress(Exception):
                work(int.from_bytes(number, "little"))
                answer = _DONE
            os.write(pipe, answer)
    finally:
        os._exit(0)
