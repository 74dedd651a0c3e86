"""Host threads: the OpenMP runtime of the process, or Python threads if no runtime is usable.

An OpenMP runtime that is already loaded is used (PyTorch loads one, and both then share its pool), otherwise libgomp.
The choice is made once, when the first kernel with several threads is loaded. libgomp's workers do not survive
`fork()`, and a parallel region in the child would wait for them for ever; a child of a process with an OpenMP runtime
therefore uses Python threads, which run the same chunks.

An OpenMP runtime ends the process if the system refuses it a thread. Each thread that calls kernels has its own team,
so before a team grows, its new threads are started on trial. If the system refuses one, kernels of that many threads
run on as many Python threads as possible, with one warning.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from convsmith.codegen.artifact import GOMP, RUNTIME_SYMBOLS
from convsmith.diag.record import record
from convsmith.diag.settings import MAX_THREADS, settings
from convsmith.diag.system import SYSTEM, at_fork
from convsmith.diag.warning import ConvsmithWarning, warn

__all__ = [
    "RUNTIMES", "OpenMP", "ThreadsWarning", "available_cpus", "default_threads", "describe", "openmp", "run_chunks",
    "run_region",
]  # fmt: skip

_SYMBOLS = RUNTIME_SYMBOLS[GOMP]

_SPARE_THREADS = 8
"""Number of threads that must be available beyond a new team, because other processes may start some meanwhile."""

_LONGEST_TRIAL = 10.0
"""Seconds to wait for threads that were started on trial to end."""

_LOCK_BYTES = 256
"""Bytes that suffice for a pthread_rwlock_t of any system."""

_RUNTIME = re.compile(r"lib(gomp|iomp5|iomp5md|omp)\b[^/]*\.(so|dylib|dll)[^/]*")


@record(frozen=True)
class OpenMP:
    """An OpenMP runtime in this process: its file and the addresses of its entry points."""

    path: str
    addresses: dict[str, int]


class ThreadsWarning(ConvsmithWarning):
    """The system has fewer threads than the kernel was compiled for; the kernel runs on the available threads."""


class _Team(threading.local):
    """Number of threads in the OpenMP team of the calling thread, itself included."""

    size = 1


class _State:
    """The choices and threads of this process; created anew in a forked child."""

    def __init__(self, inherited: bool) -> None:
        self.inherited = inherited
        self.lock = threading.Lock()
        self.searched = False
        self.openmp: OpenMP | None = None
        self.workers = _Workers(os.cpu_count() or 1)
        self.team = _Team()
        self.growing = threading.Lock()
        self.refused = MAX_THREADS + 1
        """Size of the smallest team for which the system had too few threads."""
        self.warned = False


def _after_fork() -> None:
    global _state
    _state = _State(inherited=_state.inherited or _state.openmp is not None or bool(_loaded()))


at_fork(after_in_child=_after_fork)


def openmp() -> OpenMP | None:
    """Return the OpenMP runtime to use in this process; None means Python threads."""
    state = _state
    if not state.searched:
        with state.lock:
            if not state.searched:
                state.openmp = None if state.inherited else _find()
                state.searched = True
    return state.openmp


def _openmp_addresses() -> dict[str, int]:
    """Return the addresses of the entry points that object code is linked to."""
    runtime = openmp()
    if runtime is not None:
        return runtime.addresses
    # Linking needs addresses, but only chunks will be called.
    abort = ctypes.cast(SYSTEM.c_library.abort, ctypes.c_void_p).value or 0
    return dict.fromkeys(_SYMBOLS, abort)


RUNTIMES: dict[str, Callable[[], dict[str, int]]] = {GOMP: _openmp_addresses}
"""Libraries that start the tasks of an entry (`Launch.runtime`), with the addresses of their entry points."""


def run_region(region: Callable[[int], None], block: int, threads: int) -> bool:
    """Run region(block), which asks the OpenMP runtime for a team of `threads` threads.

    Return False, without having run it, if there is no runtime or the system has no threads for the team.
    """
    state = _state
    team = state.team
    if team.size == threads and state.openmp is not None:
        region(block)
        return True
    if openmp() is None or threads >= state.refused:
        return False
    with state.growing:  # so that no other team takes the threads that were found
        if threads > team.size and not _can_start(threads - team.size + _SPARE_THREADS):
            state.refused = min(state.refused, threads)
            _warn_of_few(threads)
            return False
        team.size = threads  # a runtime ends the threads that a smaller team does not need
        region(block)
    return True


def _can_start(count: int) -> bool:
    """Return whether the system can start `count` more threads; the threads are started on trial and have ended at
    return.

    The threads wait, in native code, for a lock that the caller holds; Python threads take several times longer to
    start. Systems without the threads of POSIX refuse none.
    """
    if not SYSTEM.has_pthreads:
        return True
    system = ctypes.PyDLL(None)
    lock = ctypes.create_string_buffer(_LOCK_BYTES)
    wait = ctypes.cast(system.pthread_rwlock_rdlock, ctypes.c_void_p)
    handles = (ctypes.c_void_p * count)()
    system.pthread_rwlock_init(lock, None)
    system.pthread_rwlock_wrlock(lock)
    others = _tasks()
    started = 0
    while started < count and not system.pthread_create(
        ctypes.byref(handles, started * ctypes.sizeof(ctypes.c_void_p)), None, wait, lock
    ):
        started += 1
    made = _tasks() - others
    system.pthread_rwlock_unlock(lock)
    for handle in handles[:started]:
        system.pthread_join(ctypes.c_void_p(handle), None)
    end = time.monotonic() + _LONGEST_TRIAL
    # A thread counts against the limits until the system has taken it off its list, which is after it was joined.
    while len(made & _tasks()) > len(made) - started:
        if time.monotonic() > end:
            return False
        time.sleep(2e-5)
    return started == count


def _tasks() -> set[str]:
    """Return the threads of this process that the system lists; empty outside Linux."""
    return SYSTEM.threads()


def _warn_of_few(threads: int) -> None:
    """Warn, once per process, that a kernel for `threads` threads runs on fewer."""
    state = _state
    if not state.warned and not sys.is_finalizing():
        state.warned = True
        warn(
            f"the system has too few threads for a kernel of {threads} (limits on processes: ulimit -u, pids.max): it "
            "runs on those that there are; set CONVSMITH_THREADS, or threads=, to fewer",
            ThreadsWarning,
        )


def run_chunks(chunk: Callable[[int, int, int], None], block: int, threads: int, keep: object) -> None:
    """Run chunk(block, tid, threads) for every tid below `threads` on Python threads, and wait.

    `keep` holds the memory of the chunks alive, because an interrupt can end the wait while workers still run.
    """
    region = _Region(chunk, block, threads, keep)
    _state.workers.help(region, threads - 1)
    region.work()
    region.done.wait()


class _Region:
    """Chunks that idle workers take; the caller takes part, so all chunks run even without workers."""

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


class _Workers:
    """At most `most` Python threads that take part in regions; fewer if the system refuses more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._regions: SimpleQueue[_Region | None] = SimpleQueue()

    def help(self, region: _Region, count: int) -> None:
        """Let up to `count` threads take part in a region."""
        if len(self._threads) < min(count, self._most):
            self._start(count)
        for _ in range(min(count, len(self._threads))):
            self._regions.put(region)

    def stop(self) -> None:
        """Wait until all threads have ended; later regions are left to their callers."""
        with self._lock:
            self._most = 0
            threads, self._threads = self._threads, []
        for _ in threads:
            self._regions.put(None)
        for thread in threads:
            thread.join()

    def _start(self, count: int) -> None:
        with self._lock:
            while len(self._threads) < min(count, self._most):
                thread = threading.Thread(target=self._work, name="convsmith", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # a limit, or the interpreter is shutting down: the caller does the remaining work
                    self._most = len(self._threads)
                    _warn_of_few(count + 1)
                    return
                self._threads.append(thread)

    def _work(self) -> None:
        while (region := self._regions.get()) is not None:
            region.work()
            del region  # its objects may be large


_state = _State(inherited=False)
atexit.register(lambda: _state.workers.stop())


def default_threads() -> int:
    """Return CONVSMITH_THREADS, else the number of CPUs that this process may use."""
    return available_cpus() if settings.threads is None else settings.threads


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return min(SYSTEM.cpus(), MAX_THREADS)


def describe() -> str:
    """Return one line with the file of the OpenMP runtime in use, or the reason for Python threads."""
    runtime = openmp()
    if runtime is not None:
        return runtime.path
    return f"Python threads ({'this process was forked' if _state.inherited else 'no OpenMP runtime found'})"


def _find() -> OpenMP | None:
    for path in (*_loaded(), *SYSTEM.openmp):
        try:
            library = ctypes.CDLL(path)
            addresses = {name: ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in _SYMBOLS}
        except (OSError, AttributeError):  # not there, or a runtime without the GNU entry points
            continue
        files = [file for file in _loaded() if path in file]  # the full name of "libgomp.so.1"
        return OpenMP(files[0] if files else path, addresses)
    return None


def _loaded() -> list[str]:
    """Return the files of the OpenMP runtimes mapped into this process, PyTorch's first, whose pool is shared."""
    runtimes = [file for file in SYSTEM.libraries() if _RUNTIME.fullmatch(file.rpartition("/")[2])]
    return sorted(runtimes, key=lambda file: "/torch/" not in file)
