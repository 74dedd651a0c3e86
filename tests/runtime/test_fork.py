"""fork() while other threads compile: the child finds no lock held, and nothing half done.

Each lock is tried by itself, held by a thread while the process forks; then all at once, by threads that compile.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding as llvm

import convsmith as cs
from convsmith.compiler import cache
from convsmith.diag import forking, trace
from convsmith.diag.collection import no_collection
from convsmith.diag.forking import RenewedLock, cached_property
from convsmith.frontend import conv_functions
from convsmith.measure import ceilings
from convsmith.network import sizes
from convsmith.runtime import cuda, host, host_kernel, opencl, operand_packing, stream_kernels, tensor_maps

ROOT = Path(cs.__file__).parents[1]
SIZES = count(20)
HELD = 0.2
LIMIT = 60

LOCKS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "llvm": lambda: llvm.ffi.lib._lock,
    "import": lambda: forking.import_lock,
    "jit": lambda: host._jit_guard.lock,
    "fallback": lambda: host_kernel._making.lock,
    "cache": lambda: cache._counting.lock,
    "trace": lambda: trace._writing.lock,
    "ceilings": lambda: ceilings._lock.lock,
    "kept": lambda: conv_functions._KEPT._guard.lock,
    "cuda": lambda: cuda._opened.guard.lock,
    "opencl": lambda: opencl._opened.guard.lock,
    "packing": lambda: operand_packing._making.lock,
    "sizes": lambda: sizes._making.lock,
    "streams": lambda: stream_kernels._making.lock,
    "tensor_maps": lambda: tensor_maps.TensorMaps(())._guard.lock,
}


@contextmanager
def other_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run work(started) in another thread, which has set `started` when the body begins."""
    started = threading.Event()
    thread = threading.Thread(target=work, args=(started,))
    thread.start()
    started.wait()
    yield
    thread.join()


def child_does(work: Callable[[], bool]) -> bool:
    """Whether a forked child returns True from `work`, in time."""
    child = os.fork()
    if not child:
        signal.alarm(LIMIT)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def compiles() -> bool:
    """Whether a kernel that no cache has is compiled, linked and right, and goes through every lock."""
    size = next(SIZES)
    x = np.ones((1, 3, size, 5), np.float32)
    w = np.ones((5, 3, 3, 3), np.float32)
    w[0, 0, 0, 0] = np.inf  # the kernel may need another
    lines: list[str] = []
    with trace.redirect(lines.append), cs.settings.scope(verbose="create"):
        config = "--target=generic --lane=oc --register=oc:8,ow:5 --realise=pad_copy"
        kernel = cs.compile(f"mb1ic3ih{size}iw5oc5kh3kw3ph1pw1", threads=1, config=config)
        y = kernel(x, w)
        conv_functions._KEPT.packed("of this test", w, None, partial(kernel.pack, w))
    return bool(lines and y[0, 1, 1, 1] == 27 and y[0, 0, 1, 1] == np.inf)


def hold(lock: AbstractContextManager[object], started: threading.Event) -> None:
    with lock:
        started.set()
        time.sleep(HELD)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", list(LOCKS))
def test_a_lock_that_another_thread_holds(name: str) -> None:
    with other_thread(partial(hold, LOCKS[name]())):
        assert child_does(compiles)
    assert compiles()


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", list(LOCKS))
def test_a_lock_that_the_forking_thread_holds(name: str) -> None:
    """A callback, or a handler of a signal, may fork."""
    with LOCKS[name]():
        assert child_does(compiles)
    assert compiles()


def test_every_lock_is_known() -> None:
    """Locks of modules and classes are those above, or those of threads, which a child makes anew."""
    found = set()
    for file in (ROOT / "convsmith").rglob("*.py"):
        text = file.read_text()
        if re.search(r"\b(Lock|RLock|Condition|Semaphore|RenewedLock)\(", text):
            found.add(file.stem)
        assert not re.search(r"from functools import .*cached_property|functools\.cached_property\b", text) or (
            file.stem == "forking"
        ), f"{file}: functools.cached_property holds a lock before Python 3.12"
    known = {
        "forking", "trace", "cache", "ceilings", "device_library", "host", "host_kernel", "kept", "networks",
        "operand_packing", "sizes", "stream_kernels", "tensor_maps", "threads",
    }  # fmt: skip
    assert found == known


def test_imports_inside_functions_hold_the_lock() -> None:
    """Python's lock of a module that another thread imports is never free in a child."""
    late = re.compile(r"^( +)(?:from|import) (?:convsmith|llvmlite)\b", re.MULTILINE)
    for file in sorted((ROOT / "convsmith").rglob("*.py")):
        text = file.read_text()
        if not late.search(text):
            continue
        tree = ast.parse(text)
        guarded = {
            id(inside)
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and ast.unparse(node.items[0].context_expr) == "import_lock"
            for inside in node.body
        }
        functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for node in (inside for function in functions for inside in ast.walk(function)):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and late.match(" " + ast.unparse(node)):
                assert id(node) in guarded, f"{file}:{node.lineno}: write `with import_lock:` around it"


def python(body: str) -> str:
    """Return the output of a script that runs in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(body)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_module_takes_the_lock_while_it_is_imported() -> None:
    """Else a thread that imports it, and one that holds the lock and wants the module, would wait for each other."""
    python("""
        import pkgutil
        from importlib import import_module
        import convsmith
        from convsmith.diag import forking
        from convsmith.diag.errors import UnsupportedError
        class Refuse:
            def __enter__(self): raise AssertionError("taken")
            def __exit__(self, *_): pass
        forking.import_lock = convsmith.import_lock = Refuse()
        for module in pkgutil.walk_packages(convsmith.__path__, "convsmith.", onerror=lambda name: None):
            if not module.name.startswith("convsmith.tune."):
                try:
                    import_module(module.name)
                except UnsupportedError as error:  # a library that is not installed
                    assert "pip install" in str(error), error
    """)


STRESS = """
    import os, signal, sys, threading, time
    import numpy as np
    import convsmith as cs
    cs.settings.scope(cache="off").__enter__()
    stop = threading.Event()
    def compile_on(first):
        with cs.settings.scope(cache="off"):
            for size in range(first, 1 << 20, 3):
                if stop.is_set():
                    return
                cs.compile(f"mb1ic3ih{{5 + size % 900}}iw6oc4kh3kw3ph1pw1", threads=1)
    def child(number):
        with cs.settings.scope(cache="off"):
            k = cs.compile(f"mb1ic4ih6iw{{7 + number}}oc4kh3kw3ph1pw1", threads=1 + number % 2)
            y = k(np.ones((1, 4, 6, 7 + number), np.float32), np.ones((4, 4, 3, 3), np.float32))
        return (y[0, :, 1:-1, 1:-1] == 36).all()
    threads = [threading.Thread(target=compile_on, args=(n,), daemon=True) for n in range(3)]
    for thread in threads: thread.start()
    for number in range({forks}):
        time.sleep(0.003 * (number % 7))
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            os._exit(0 if child(number) else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, (number, status)
    stop.set()
    for thread in threads: thread.join()
    print("done")
"""


@pytest.mark.parametrize("forks", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_children_compile_while_threads_compile(forks: int) -> None:
    """The first forks happen while the threads still import the compiler."""
    assert python(STRESS.format(forks=forks)) == "done\n"


def test_the_collector_runs_in_the_child() -> None:
    """Compiling pauses it; the thread that would resume it is none of the child's."""

    def pause(started: threading.Event) -> None:
        with no_collection():
            started.set()
            time.sleep(HELD)

    with other_thread(pause):
        assert not gc.isenabled() and child_does(gc.isenabled)
    assert gc.isenabled()
    with no_collection():
        assert child_does(lambda: not gc.isenabled())


def test_a_renewed_lock_guards_again() -> None:
    guard = RenewedLock()

    def another_can_take_it() -> bool:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(guard.lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return found[0]

    with guard.lock:
        assert not another_can_take_it()
    assert child_does(another_can_take_it)


def test_cached_property_computes_once_and_holds_no_lock() -> None:
    counted = []
    computing = threading.Event()

    class Slow:
        @cached_property
        def value(self) -> int:
            """A number."""
            counted.append(1)
            computing.set()
            time.sleep(HELD if len(counted) == 1 else 0)
            return 7

    slow = Slow()
    assert Slow.value.__doc__ == "A number."
    with other_thread(lambda started: (started.set(), slow.value)[0]):  # type: ignore[func-returns-value]
        computing.wait()
        assert child_does(lambda: slow.value == 7)
    assert slow.value == 7 and slow.__dict__ == {"value": 7} and len(counted) == 1
