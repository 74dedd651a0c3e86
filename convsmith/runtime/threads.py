"""Host threads: the OpenMP runtime of the process, or Python threads where there is none that can be used.

An OpenMP runtime that is already loaded is taken (PyTorch brings one: one pool then serves both), else libgomp. The
choice is made once, when the first kernel of several threads is loaded. libgomp's workers do not survive `fork()`, and
a parallel region in the child waits for them for ever: a child of a process that had an OpenMP runtime uses Python
threads, which run the same chunks.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from convsmith.diag.settings import settings

__all__ = ["SYMBOLS", "OpenMP", "available_cpus", "default_threads", "describe", "openmp", "run_chunks"]

SYMBOLS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
"""What generated code calls."""

_RUNTIME = re.compile(r"lib(gomp|iomp5|omp)\b[^/]*\.(so|dylib)[^/]*")


@dataclass(frozen=True)
class OpenMP:
    """An OpenMP runtime in this process: its file and the addresses of `SYMBOLS`."""

    path: str
    addresses: dict[str, int]


class _State:
    """What this process has found and started; made anew in a forked child."""

    def __init__(self, inherited: bool) -> None:
        self.inherited = inherited
        self.lock = threading.Lock()
        self.searched = False
        self.openmp: OpenMP | None = None
        self.pool: ThreadPoolExecutor | None = None


_state = _State(inherited=False)


def _after_fork() -> None:
    global _state
    _state = _State(inherited=_state.inherited or _state.openmp is not None or bool(_loaded()))


os.register_at_fork(after_in_child=_after_fork)


def openmp() -> OpenMP | None:
    """The OpenMP runtime to use in this process; None means Python threads."""
    state = _state
    if not state.searched:
        with state.lock:
            if not state.searched:
                state.openmp = None if state.inherited else _find()
                state.searched = True
    return state.openmp


def run_chunks(chunk: Callable[[int, int, int], None], block: int, threads: int, keep: object) -> None:
    """Run chunk(block, tid, threads) for every tid below `threads` on Python threads, and wait.

    `keep` holds the memory that the chunks use: an interrupt can end the wait while workers still run.
    """
    region = _Region(chunk, block, threads, keep)
    try:
        pool = _pool()
        for _ in range(threads - 1):
            pool.submit(region.work)
    except RuntimeError:
        pass  # no more threads (a limit, or the interpreter is shutting down): the caller does what is left
    region.work()
    region.done.wait()


class _Region:
    """Chunks that whoever has time takes; the caller takes part, so they all run even if no worker ever comes."""

    def __init__(self, chunk: Callable[[int, int, int], None], block: int, threads: int, keep: object) -> None:
        self._chunk, self._block, self._threads, self._keep = chunk, block, threads, keep
        self._todo = list(range(threads))
        self._left = threads
        self._lock = threading.Lock()
        self.done = threading.Event()

    def work(self) -> None:
        while self._todo:
            try:
                tid = self._todo.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                self._chunk(self._block, tid, self._threads)
            finally:
                with self._lock:
                    self._left -= 1
                    if not self._left:
                        self.done.set()


def _pool() -> ThreadPoolExecutor:
    state = _state
    if state.pool is None:
        with state.lock:
            if state.pool is None:
                state.pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="convsmith")
    return state.pool


def default_threads() -> int:
    """CONVSMITH_THREADS, else the number of CPUs that this process may use."""
    return available_cpus() if settings.threads is None else settings.threads


def available_cpus() -> int:
    """The number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe() -> str:
    """One line for people: the file of the OpenMP runtime in use, or why Python threads are."""
    found = openmp()
    if found is not None:
        return found.path
    return f"Python threads ({'this process was forked' if _state.inherited else 'no OpenMP runtime found'})"


def _find() -> OpenMP | None:
    for path in (*_loaded(), "libgomp.so.1"):
        try:
            library = ctypes.CDLL(path)
            addresses = {name: ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in SYMBOLS}
        except (OSError, AttributeError):  # not there, or a runtime without the GNU entry points
            continue
        files = [file for file in _loaded() if path in file]  # the full name of what "libgomp.so.1" stands for
        return OpenMP(files[0] if files else path, addresses)
    return None


def _loaded() -> list[str]:
    """Files of the OpenMP runtimes mapped into this process, PyTorch's first: its pool is the one to share."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:  # no such file outside Linux
        return []
    files = dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line)
    found = [file for file in files if _RUNTIME.fullmatch(file.rpartition("/")[2])]
    return sorted(found, key=lambda file: "/torch/" not in file)
