"""`WebEngine`: measures kernels of WebAssembly beside libraries of npm, in one process of Node or in one page of a
browser.

A problem becomes a plan: a folder with a module, its memory, what the libraries get, and `plan.json`, which says what
is in it. The same script runs a plan in both engines: it compares all results with the right one, warms all up, and
times them in turns.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.codegen.wasm_module import PAGE_BYTES, ModuleMemory, wasm_module
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.emulate.browser import opened_page
from convsmith.emulate.wasm_memory import placed_kernel
from convsmith.emulate.wasm_probe import probe_module
from convsmith.layout.layout import Layout
from convsmith.layout.reorder import strided, to_layout
from convsmith.machine.base import Machine
from convsmith.measure.bounds import intervals
from convsmith.measure.peak import peak_types
from convsmith.measure.timing import Measurement, PeerTime, spread
from convsmith.measure.verification import VerifiableKernel, error_of_transforms, narrow_limits
from convsmith.measure.web_peers import JS_TYPES, WEB_PEERS, Packages, plan_of_peer
from convsmith.problem.data import random_arrays
from convsmith.problem.problem import Problem
from convsmith.problem.reference import reference, steps_type
from convsmith.runtime.arrays import Array
from convsmith.statement.views import sums_type

__all__ = [
    "ENGINES", "NodeEngine", "PageEngine", "WebEngine", "WebNetworkFiles", "WebTimes", "engine_of", "peak_loop",
    "write_plan",
]  # fmt: skip

_MILLISECONDS = 5
"""Duration of a sample."""
_WARMING = 2500
"""Milliseconds in which a network runs before it is timed: engines compile again, and better, what runs often."""
_PAGE = "web_page.txt"
"""The page in which Chromium runs plans."""
_SUMS = 12
"""Independent sums in the loop of multiply-adds."""


@record(frozen=True)
class WebTimes:
    """Measurements: `times`, the reasons why libraries are `missing`, by name, and what is `wrong` with the
    kernel's result; empty if it is right.
    """

    times: Measurement
    missing: dict[str, str]
    wrong: str


class WebNetworkFiles(NamedTuple):
    """An exported network with one f32 `input` of a `shape`: the file of its `loader` and that of the ONNX `model`.
    Results may differ by `tolerance`, a part of the largest.
    """

    loader: str
    model: str
    input: str
    shape: tuple[int, ...]
    tolerance: float


class WebEngine(ABC):
    """An engine that runs plans, with the `packages` of the libraries."""

    def __init__(self, packages: Packages) -> None:
        self.packages = packages
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="convsmith-web-")))

    def __enter__(self) -> WebEngine:
        return self

    def __exit__(self, *why: object) -> None:
        self._stack.close()

    @property
    @abstractmethod
    def version(self) -> str:
        """The engine with its version."""

    @abstractmethod
    def run(self, folder: Path) -> dict[str, Any]:
        """Return what the script found for the plan in a folder. ToolchainError if the engine ends without results."""

    def emptied(self) -> Path:
        """Return the folder of plans, which holds no file."""
        for old in self._folder.iterdir():
            old.unlink()
        return self._folder

    def _found(self) -> dict[str, Any]:
        """Return the results of the plan in the folder of plans. ToolchainError if there are none."""
        found = self.run(self._folder)
        if "error" in found:
            raise ToolchainError(f"{self.version} ended without times: {found['error']}", code="engine")
        return found

    def measure_network(self, network: WebNetworkFiles, rounds: int) -> dict[str, list[float]]:
        """Return the milliseconds of each round of ``"network"``, whose files are in the folder of plans, and of
        onnxruntime-web if it is installed. Modules of one engine need names of their own: engines load each name once.

        ToolchainError if both results differ by more than the tolerance.
        """
        is_alone = "onnxruntime-web" not in self.packages.here
        plan = {
            "network": {**network._asdict(), "isAlone": is_alone}, "rounds": rounds, "milliseconds": _MILLISECONDS,
            "warming": _WARMING,
        }  # fmt: skip
        (self._folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        found = self._found()
        if found["wrong"]:
            raise ToolchainError(f"{network.loader} differs from onnxruntime-web: {found['wrong']}", code="mismatch")
        times: dict[str, list[float]] = found["times"]
        return times

    def measure(self, kernel: VerifiableKernel, rounds: int, peers: Sequence[str] | None = None) -> WebTimes:
        """Return the times of a kernel that has code, and of ``peers``, by default of the libraries that are installed;
        all run on one thread.

        UnsupportedError if arrays of JavaScript do not hold the types of the problem.
        """
        libraries = self.packages.here if peers is None else peers
        missing = write_plan(self.emptied(), kernel, rounds, libraries)
        found = self._found()
        times = _measurement(found["times"], kernel.problem, found["operations"])
        return WebTimes(times, missing | found["missing"], found["wrong"])


class NodeEngine(WebEngine):
    """One process of Node. UnsupportedError if it is not installed."""

    def __init__(self, packages: Packages) -> None:
        super().__init__(packages)
        node = shutil.which("node")
        if node is None:
            raise UnsupportedError(
                "kernels of WebAssembly are timed in Node, which PATH does not have; install nodejs, version 20 or "
                "later, or choose --engine=chromium",
                code="engine",
            )
        packages_of = {x: str(packages.folder(x)) for name in packages.here for x in WEB_PEERS[name].packages}
        command = [node, str(Path(__file__).with_name("web_node.mjs")), json.dumps(packages_of)]
        self._node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(self._end)
        self._version = str(self._answer()["engine"])

    @property
    def version(self) -> str:
        return self._version

    def _end(self) -> None:
        self._node.stdin and self._node.stdin.close()
        self._node.kill()
        self._node.wait()

    def run(self, folder: Path) -> dict[str, Any]:
        assert self._node.stdin is not None
        try:
            self._node.stdin.write(f"{folder}\n")
            self._node.stdin.flush()
        except BrokenPipeError:
            raise ToolchainError("Node has ended", code="engine") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """Return what Node writes next."""
        assert self._node.stdout is not None
        for line in self._node.stdout:
            if line.startswith("{"):  # libraries may print lines of their own
                found: dict[str, Any] = json.loads(line)
                return found
        raise ToolchainError(f"Node ended without times, status {self._node.wait()}", code="engine")


class PageEngine(WebEngine):
    """One page of headless Chromium, which a server of this process serves. UnsupportedError if the browser, or the
    package that drives it, is not installed.
    """

    def __init__(self, packages: Packages) -> None:
        super().__init__(packages)
        handler = partial(_Files, own=Path(__file__).parent, plan=self._folder, packages=packages)
        server = self._stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        Thread(target=server.serve_forever, daemon=True).start()
        self._stack.callback(server.shutdown)
        self._driver = self._stack.enter_context(opened_page(f"http://127.0.0.1:{server.server_port}/"))

    @property
    def version(self) -> str:
        return f"Chromium {self._driver.capabilities['browserVersion']}"

    def run(self, folder: Path) -> dict[str, Any]:
        script = "const done = arguments[0]; window.measured().then(done);"
        found: dict[str, Any] = self._driver.execute_async_script(script)
        return found


ENGINES = {"node": NodeEngine, "chromium": PageEngine}
"""Engines by name, the first of which is the default."""


def engine_of(name: str, packages: Packages) -> WebEngine:
    """Return an engine by its name, which is one of `ENGINES`."""
    return ENGINES[name](packages)


class _Files(SimpleHTTPRequestHandler):
    """Serves the page, the scripts, the present plan and packages of npm. The page is isolated: its clock is finer."""

    def __init__(self, *given: Any, own: Path, plan: Path, packages: Packages) -> None:
        self._own, self._plan, self._packages = own, plan, packages
        super().__init__(*given)

    def translate_path(self, path: str) -> str:
        _, *parts = PurePosixPath(urlsplit(path).path).parts
        if not parts:
            return str(self._own / _PAGE)
        root, *rest = parts
        places = {"own": self._own, "plan": self._plan}
        if root in places and rest:
            return str(places[root] / rest[-1])
        for count in (1, 2):  # a package's name has one part or two
            if (folder := self._packages.folder("/".join(rest[:count]))) is not None:
                return str(folder.joinpath(*rest[count:]))
        return str(self._plan / "absent")

    def guess_type(self, path: Any) -> str:
        return "text/html" if Path(path) == self._own / _PAGE else super().guess_type(path)

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def write_plan(folder: Path, of: VerifiableKernel, rounds: int, peers: Sequence[str]) -> dict[str, str]:
    """Write the plan of a kernel to a folder, and return the reasons why libraries are missing."""
    problem, artifact, target = of.problem, of.artifact, of.target
    assert artifact is not None
    source = next(t for t in problem.inputs if t.role == "in")
    arrays = random_arrays(problem, limits=narrow_limits(of))
    right = reference(problem, arrays, steps_type(problem))
    given = {t.name: t for t in (*problem.inputs, *problem.outputs) if t.role == "in" or t.name in arrays}
    physical = {name: _in_memory(arrays[name], t.layout) for name, t in given.items()}
    kernel = placed_kernel(artifact, physical)
    files = {
        "module.wasm": kernel.module, "library.wasm": kernel.library, "memory": kernel.memory,
        "probe.wasm": probe_module(target), "peak.wasm": peak_loop(target)[0],
    }  # fmt: skip
    results = []
    rounds_more = any(not x.is_exact for x in of.transforms)  # other transforms have exact sums of these integers
    error = error_of_transforms(of)
    bounds = intervals(problem, arrays, sums_type(problem, target), False, error) if rounds_more else {}
    for n, tensor in enumerate(problem.outputs):
        expected = _in_memory(right[tensor.name], tensor.layout)
        files[f"result{n}"] = expected.tobytes()
        results.append({**_view(kernel.places[tensor.name], expected), "file": f"result{n}"})
        if bounds:
            results[-1]["error"] = float(bounds[tensor.name].error.max())
    plan: dict[str, Any] = {
        "module": "module.wasm", "library": "library.wasm", "memory": "memory", "stack": kernel.stack,
        "packs": kernel.packs, "steps": kernel.steps, "rounds": rounds, "milliseconds": _MILLISECONDS,
        "source": _view(kernel.places[source.name], physical[source.name]), "results": results,
        "probe": "probe.wasm", "level": target.name, "peers": {},
    }  # fmt: skip
    types_of_peak = peak_types(problem, target)
    if types_of_peak is not None and set(types_of_peak) == {"f32"}:
        plan["peak"] = {"module": "peak.wasm", "operations": peak_loop(target)[1]}
    missing = {}
    for name in peers:
        try:
            plan["peers"][name] = plan_of_peer(name, problem, arrays, right[problem.outputs[0].name], folder)
        except UnsupportedError as error:
            missing[name] = str(error)
    files["plan.json"] = json.dumps(plan).encode()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return missing


def _in_memory(array: Array, layout: Layout) -> Array:
    """Return all elements of the memory of a logical array in a layout, in the order of addresses."""
    memory = np.zeros(layout.size, array.dtype)
    physical = to_layout(array, layout)
    strided(memory, physical.shape, [n // array.itemsize for n in physical.strides])[...] = physical
    return memory


def _view(place: int, array: Array) -> dict[str, Any]:
    """Return how JavaScript sees an array in memory; numbers of 16 bits by their bits. UnsupportedError for a type that
    its arrays do not hold.
    """
    type_ = JS_TYPES.get(array.dtype.name)
    if type_ is None:
        raise UnsupportedError(f"arrays of JavaScript do not hold {array.dtype.name}", code="types")
    return {"place": place, "type": type_, "elements": int(array.size)}


def _measurement(times: Mapping[str, Sequence[float]], problem: Problem, operations: float) -> Measurement:
    """Return the times of a kernel and of libraries, in milliseconds, as figures."""
    ours, flops = times["kernel"], problem.flops_dense
    peers = {}
    for name, library in WEB_PEERS.items():
        if theirs := times.get(name):
            own = times["copies"] if library.copies else ours
            ratios = [their / our for their, our in zip(theirs, own)]
            peers[name] = PeerTime(spread([x * 1e-3 for x in theirs]), spread(ratios))
    rates = [flops / x * 1e-6 for x in ours]
    peaks = [operations / x * 1e-6 for x in times.get("peak", ())]
    return Measurement(
        seconds=spread([x * 1e-3 for x in ours]), gflops=spread(rates), peak_gflops=spread(peaks) if peaks else None,
        of_peak=spread([rate / top for rate, top in zip(rates, peaks)]) if peaks else None, peers=peers,
    )  # fmt: skip


def peak_loop(level: Machine) -> tuple[bytes, int]:
    """Return a module with a loop of multiply-adds on registers, `loop(turns)`, and the operations of a turn."""
    row = level.row("f32", "f32", "f32")
    assert row is not None
    vector = f"<{row.lanes} x float>"
    names = [f"%a{n}" for n in range(_SUMS)]
    lines = [f"{x} = phi {vector} [ splat (float 0.5), %entry ], [ {x}.next, %loop ]" for x in names]
    for x in names:
        lines.append(f"{x}.next = {row.llvm.format(a=x, b='splat (float 0.5)', c='splat (float 0.25)')}")
    total, sums = names[0] + ".next", []
    for x in names[1:]:
        sums.append(f"{x}.sum = fadd {vector} {total}, {x}.next")
        total = f"{x}.sum"
    text = "\n".join((
        f'target triple = "{level.triple}"', row.declare, "define float @loop(i32 %turns) {", "entry:",
        "  br label %loop", "loop:", "  %i = phi i32 [ 0, %entry ], [ %next, %loop ]", *lines,
        "  %next = add i32 %i, 1", "  %more = icmp ult i32 %next, %turns", "  br i1 %more, label %loop, label %end",
        "end:", *sums, f"  %first = extractelement {vector} {total}, i32 0", "  ret float %first", "}", "",
    ))  # fmt: skip
    code = llvm_bind.object_code(text, level.triple, level.cpu, level.features)
    return wasm_module(code, ("loop",), ModuleMemory(1024, PAGE_BYTES, 1)), 2 * row.lanes * _SUMS
