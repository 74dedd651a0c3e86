"""Work in a forked child, for code generators that keep state of a module or end the process."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

from convsmith.diag.errors import ToolchainError

__all__ = ["in_child"]

_DONE, _REFUSED = b"\0", b"\1"


def in_child(work: Callable[[], bytes], what: str) -> bytes:
    """Return what ``work`` returns in a forked child; without forks, in this process.

    ToolchainError, with the text of the child's, where ``work`` raises one, or where the child dies, which names
    ``what`` the child did.
    """
    if not hasattr(os, "fork"):
        return work()
    end, start = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, for which this child never waits
        pid = os.fork()
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


def _run(work: Callable[[], bytes], pipe: int) -> None:
    """Write the outcome of ``work`` to the pipe, and end the process, whose parent goes on with everything else."""
    try:
        try:
            answer = _DONE + work()
        except ToolchainError as error:
            answer = _REFUSED + str(error).encode()
        with os.fdopen(pipe, "wb") as file:
            file.write(answer)
    finally:
        os._exit(0)
