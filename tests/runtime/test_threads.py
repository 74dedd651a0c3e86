"""Host threads: which runtime is found, Python threads over the same chunks, and what happens after fork()."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from llvm_kernels import channels_last, depthwise, expected, weights

from convsmith.codegen.artifact import GOMP, RUNTIME_SYMBOLS
from convsmith.diag.settings import settings
from convsmith.measure.description import describe
from convsmith.runtime import threads
from convsmith.runtime.host_kernel import HostKernel

SHAPE = (2, 5, 3, 7)
X, W = channels_last(SHAPE), weights(5)


def run_python(body: str, timeout: float = 120) -> str:
    """Run a script in an interpreter of its own, where tests' helpers can be imported."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(body)],
        env={**os.environ, "PYTHONPATH": path}, timeout=timeout, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def python_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no OpenMP runtime."""
    state = threads._State(inherited=False)
    state.searched = True
    monkeypatch.setattr(threads, "_state", state)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_python_threads(python_threads: None, count: int) -> None:
    kernel = HostKernel(depthwise(SHAPE, threads=count, scratch=True))
    for _ in range(5):
        assert (kernel(X, W) == expected(X, W)).all()
    assert threads.describe() == "Python threads (no OpenMP runtime found)"


def test_python_threads_from_many_callers(python_threads: None) -> None:
    kernel = HostKernel(depthwise(SHAPE, threads=4, scratch=True))
    packed = kernel.pack(W)
    with ThreadPoolExecutor(6) as callers:
        results = list(callers.map(lambda _: kernel(X, packed), range(60)))
    assert all((y == expected(X, W)).all() for y in results)


def test_no_more_threads(python_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does all chunks itself, each once."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    seen: list[int] = []
    with pytest.warns(threads.ThreadsWarning, match="too few threads for a kernel of 5") as caught:
        for _ in range(3):
            threads.run_chunks(lambda block, tid, n: seen.append(tid), 0, 5, None)
            assert sorted(seen) == [0, 1, 2, 3, 4]
            seen.clear()
    assert len(caught) == 1


def test_memory_lives_until_the_last_chunk_ends(python_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends the wait; a worker still runs, and what it writes to must not be freed."""
    entered, release = threading.Event(), threading.Event()
    alive: list[bool] = []

    class Memory:
        def __del__(self) -> None:
            alive.append(release.is_set())

    def chunk(block: int, tid: int, n: int) -> None:
        if threading.current_thread() is threading.main_thread():
            entered.wait(10)
            raise KeyboardInterrupt
        entered.set()
        release.wait(10)

    with pytest.raises(KeyboardInterrupt):
        threads.run_chunks(chunk, 0, 2, Memory())
    assert not alive
    release.set()
    threads._state.workers.stop()
    assert alive == [True]


def test_openmp_runtime_of_this_machine() -> None:
    found = threads.openmp()
    if found is None:
        assert "Python threads" in threads.describe()
        return
    assert threads.describe() == found.path and Path(found.path).exists()
    assert describe()["openmp"] == Path(found.path).name  # rows that are shared name no folder of a user
    assert set(found.addresses) == set(RUNTIME_SYMBOLS[GOMP])
    number = ctypes.CFUNCTYPE(ctypes.c_int)(found.addresses["omp_get_thread_num"])
    assert number() == 0


def test_default_threads() -> None:
    with settings.scope(threads=None):
        assert threads.default_threads() == len(os.sched_getaffinity(0))
    with settings.scope(threads=3):
        assert threads.default_threads() == 3


def test_runtime_names() -> None:
    for name in ("libgomp.so.1", "libgomp.so.1.0.0", "libgomp-a34b3233.so.1.0.0", "libiomp5.so", "libomp.dylib"):
        assert threads._RUNTIME.fullmatch(name), name
    for name in ("libgompertz.so", "libompi.so.1", "libmkl.so", "xlibgomp.so.1"):
        assert not threads._RUNTIME.fullmatch(name), name


def test_pytorchs_runtime_is_shared() -> None:
    pytest.importorskip("torch")
    out = run_python("""
        import torch
        import numpy as np
        from llvm_kernels import *
        from convsmith.runtime import threads
        from convsmith.runtime.host_kernel import HostKernel
        k = HostKernel(depthwise(threads=2))
        x, w = channels_last((2, 5, 3, 7)), weights(5)
        assert (k(x, w) == expected(x, w)).all()
        assert (torch.ones(300, 300) @ torch.ones(300, 300) == 300).all()
        assert len(threads._loaded()) == 1, threads._loaded()
        print(threads.describe())
    """)
    assert "/torch/" in out


LIMITED = """
    import os, resource, threading, warnings
    from llvm_kernels import *
    from convsmith.runtime import threads
    from convsmith.runtime.host_kernel import HostKernel
    if {python_threads}:
        threads._find = lambda: None
    x, w = channels_last((2, 5, 3, 7)), weights(5)
    def kernel(count):
        k = HostKernel(depthwise(threads=count, scratch=True))
        return k, k.pack(w)
    def right(k, packed):
        return all((k(x, packed) == expected(x, w)).all() for _ in range(3))
    def limit(more):
        # Root has no limit, and the limit counts all processes of a user.
        if os.getuid() == 0:
            os.setuid(60000 + os.getpid() % 5000)
        else:
            more = 0
        used = len(os.listdir("/proc/self/task")) if more else 0
        resource.setrlimit(resource.RLIMIT_NPROC, (used + more, used + more))
    def warned(caught):
        assert all(c.category is threads.ThreadsWarning for c in caught), [str(c.message) for c in caught]
        return len(caught)
    warnings.simplefilter("always")
"""


@pytest.mark.sampled(9, "python_threads", "count", "more")
@pytest.mark.parametrize("python_threads", [False, True])
@pytest.mark.parametrize("count", [2, 64])
@pytest.mark.parametrize("more", [0, 1, 30])
def test_the_system_has_no_more_threads(python_threads: bool, count: int, more: int) -> None:
    """Fewer threads serve, with one warning, and the process lives on."""
    out = run_python(textwrap.dedent(LIMITED.format(python_threads=python_threads)) + textwrap.dedent(f"""
        kernels = [kernel({count}) for _ in range(2)]
        limit({more})
        with warnings.catch_warnings(record=True) as caught:
            assert all(right(*k) for k in kernels)
        wanted = min(os.cpu_count(), {count} - 1) if {python_threads} else {count} - 1 + threads._SPARE_THREADS
        enough = os.getuid() >= 60000 and {more} >= wanted
        assert warned(caught) == (not enough), (warned(caught), enough)
        print("alive")
    """))  # fmt: skip
    assert out == "alive\n"


def test_a_team_that_is_there_needs_no_more_threads() -> None:
    out = run_python(textwrap.dedent(LIMITED.format(python_threads=False)) + textwrap.dedent("""
        two, large = kernel(2), kernel(16)
        assert right(*two)
        limit(0)
        with warnings.catch_warnings(record=True) as caught:
            assert right(*two) and not warned(caught)
            assert right(*large) and warned(caught) == 1
            assert right(*two) and right(*large) and warned(caught) == 1
        print("alive")
    """))  # fmt: skip
    assert out == "alive\n"


def test_callers_that_need_the_same_threads() -> None:
    """Each calling thread has a team of its own: there are threads for some of them."""
    out = run_python(textwrap.dedent(LIMITED.format(python_threads=False)) + textwrap.dedent("""
        k, packed = kernel(6)
        go, end, good = threading.Event(), threading.Barrier(8), []
        def call():
            go.wait()
            good.append(right(k, packed))
            end.wait()
        callers = [threading.Thread(target=call) for _ in range(8)]
        for caller in callers: caller.start()
        limit(20)
        with warnings.catch_warnings(record=True) as caught:
            go.set()
            for caller in callers: caller.join()
        assert good == [True] * 8 and warned(caught) == 1
        print("alive")
    """))  # fmt: skip
    assert out == "alive\n"


@pytest.mark.parametrize("python_threads", [False, True])
def test_the_most_threads(python_threads: bool) -> None:
    out = run_python(textwrap.dedent(LIMITED.format(python_threads=python_threads)) + textwrap.dedent("""
        with warnings.catch_warnings(record=True) as caught:
            assert all(right(*kernel(count)) for count in (1024, 2, 1024)) and not caught
        print("alive")
    """))  # fmt: skip
    assert out == "alive\n"
@pytest.mark.parametrize(
    ("before", "loaded", "inherited"),
    [("nothing", [], False), ("nothing", ["/lib/libgomp.so.1"], True), ("found", [], True), ("inherited", [], True)],
    ids=["no-runtime", "loaded-by-others", "found-here", "grandchild"],
)
def test_a_child_of_a_process_with_an_openmp_runtime_takes_none(
    monkeypatch: pytest.MonkeyPatch, before: str, loaded: list[str], inherited: bool
) -> None:
    """It does not matter who loaded the runtime: its workers are gone, and what it started would wait for them."""
    state = threads._State(inherited=before == "inherited")
    state.openmp = threads.OpenMP("libgomp.so.1", {}) if before == "found" else None
    found = threads.OpenMP("found by the child", {})
    monkeypatch.setattr(threads, "_state", state)
    monkeypatch.setattr(threads, "_loaded", lambda: loaded)
    monkeypatch.setattr(threads, "_find", lambda: found)
    threads._after_fork()
    assert threads._state is not state
    assert threads.openmp() is (None if inherited else found)


FORKED = """
    import os, sys, signal
    import numpy as np
    from llvm_kernels import *
    from convsmith.runtime import threads
    from convsmith.runtime.host_kernel import HostKernel
    k = HostKernel(depthwise(threads=2, scratch=True))
    x, w = channels_last((2, 5, 3, 7)), weights(5)
    packed = k.pack(w)
    if {before}:
        k(x, packed)
    for _ in range(3):
        child = os.fork()
        if not child:
            signal.alarm(120)
            good = all((k(x, packed) == expected(x, w)).all() for _ in range(20))
            new = HostKernel(depthwise((1, 5, 4, 4), threads=2))
            y = channels_last((1, 5, 4, 4))
            good = good and (new(y, w) == expected(y, w)).all()
            print(threads.describe(), flush=True)
            os._exit(0 if good else 3)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert (k(x, packed) == expected(x, w)).all()
"""


@pytest.mark.parametrize("before", [False, True])
def test_fork_does_not_hang(before: bool) -> None:
    out = run_python(FORKED.format(before=before))
    assert out.splitlines() == ["Python threads (this process was forked)"] * 3


def test_fork_of_a_process_with_python_threads() -> None:
    lines = textwrap.dedent(FORKED.format(before=True)).splitlines()
    at = lines.index("k = HostKernel(depthwise(threads=2, scratch=True))")
    lines.insert(at, "threads._find = lambda: None")
    run_python("\n".join(lines))


def test_child_of_a_process_without_openmp_may_use_it() -> None:
    out = run_python("""
        import os
        from llvm_kernels import *
        from convsmith.runtime import threads
        from convsmith.runtime.host_kernel import HostKernel
        assert not threads._loaded()
        child = os.fork()
        if not child:
            k = HostKernel(depthwise(threads=2))
            x, w = channels_last((2, 5, 3, 7)), weights(5)
            assert (k(x, w) == expected(x, w)).all()
            print(threads.openmp() == threads._find(), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """)
    assert out == "True\n"


def test_multiprocessing_fork_while_other_threads_compute() -> None:
    run_python("""
        import multiprocessing, threading, warnings
        import numpy as np
        from llvm_kernels import *
        from convsmith.runtime.host_kernel import HostKernel
        k = HostKernel(depthwise(threads=2))
        x, w = channels_last((2, 5, 3, 7)), weights(5)
        def child(queue):
            queue.put(bool((k(x, w) == expected(x, w)).all()))
        stop = threading.Event()
        def spin():
            while not stop.is_set():
                k(x, w)
        workers = [threading.Thread(target=spin) for _ in range(2)]
        for worker in workers: worker.start()
        context = multiprocessing.get_context("fork")
        for _ in range(5):
            queue = context.SimpleQueue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            process.join(30)
            assert process.exitcode == 0, process.exitcode
            assert queue.get()
        stop.set()
        for worker in workers: worker.join()
    """)


def test_interpreter_ends_with_kernels_alive() -> None:
    run_python("""
        from llvm_kernels import *
        from convsmith.runtime import threads
        from convsmith.runtime.host_kernel import HostKernel
        kernels = [HostKernel(depthwise(threads=t)) for t in (1, 2)]
        for k in kernels: k(channels_last((2, 5, 3, 7)), weights(5))
        threads._state.openmp = None
        kernels[1](channels_last((2, 5, 3, 7)), weights(5))
        class Late:
            def __del__(self):
                kernels[1](channels_last((2, 5, 3, 7)), weights(5))
        late = Late()
    """)


def test_forked_child_writes_only_its_own_memory() -> None:
    """Argument blocks and scratch are kept for later calls; a child's copy is its own."""
    kernel = HostKernel(depthwise(SHAPE, scratch=True))
    packed = kernel.pack(W)
    out = np.empty_like(X)
    kernel(X, packed, out=out)
    child = os.fork()
    if not child:
        out[...] = 0
        os._exit(0 if (kernel(X, packed, out=out) == expected(X, W)).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (out == expected(X, W)).all()
