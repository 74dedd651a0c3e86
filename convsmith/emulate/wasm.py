"""`WebAssembly`: modules of WebAssembly in Node, or else in wasmtime.

An image becomes the linear memory of a module. Engines protect no part of it, so the memory is compared after a run: an
entry may change only what it writes, and the bytes around arrays hold poison.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact
from convsmith.codegen.library_functions import PROVIDED, library_text
from convsmith.codegen.wasm_module import PAGE_BYTES, STACK_POINTER, ModuleMemory, wasm_module
from convsmith.codegen.wasm_object import WasmObject
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.forking import import_lock
from convsmith.diag.record import record
from convsmith.emulate.image import PAGE, START, START_SIZE, Image
from convsmith.emulate.processor import POISON, PlacedCode, ProcessorEmulator
from convsmith.emulate.processors import Fault
from convsmith.emulate.wasm_probe import probe_module
from convsmith.machine.base import Machine
from convsmith.machine.wasm.levels import LEVELS

__all__ = ["ENGINES", "WEB_ASSEMBLY", "ModuleCode", "WebAssembly", "library", "memory_of"]

ENGINES = ("node", "wasmtime")
"""Engines in the order in which they are preferred: a program, and a package of Python."""
_STARTUP = Path(__file__).with_name("startup_wasm.mjs")
_TRAPPED = 3
"""The status of the start-up program after a trap."""
_NUMBERS = struct.Struct("<4Q")


@record(frozen=True)
class WebAssembly(ProcessorEmulator):
    """The engines of WebAssembly; `engine` is one of `ENGINES`, by default the first that is installed."""

    engine: str = ""

    @property
    def name(self) -> str:
        return self._chosen

    @property
    def architecture(self) -> str:
        return LEVELS[0].triple.partition("-")[0]

    @property
    def processors(self) -> Mapping[str, frozenset[str]]:
        return {self._chosen: _features(self)}

    @property
    def page(self) -> int:
        return PAGE

    @property
    def _chosen(self) -> str:
        """The engine that runs modules. UnsupportedError if none is installed."""
        for engine in (self.engine,) if self.engine else ENGINES:
            if shutil.which(engine) if engine == ENGINES[0] else importlib.util.find_spec(engine) is not None:
                return engine
        raise UnsupportedError(
            "code for WebAssembly runs in Node, which PATH does not have, or in the package wasmtime, which is not "
            "installed: install nodejs (apt install nodejs), version 20 or later, or wasmtime (pip install wasmtime)",
            code="emulator",
        )

    def program(self) -> str:
        chosen = self._chosen
        return os.path.abspath(shutil.which(chosen) or "") if chosen == ENGINES[0] else chosen

    def library(self) -> Mapping[str, int]:
        return {}

    def link(self, artifact: Artifact) -> PlacedCode:
        return ModuleCode(artifact)

    def emulate(self, image: Image, processor: str) -> bytes | Fault:
        image.finish()
        before = bytes(memory_of(image))
        run = _in_node if self._chosen == ENGINES[0] else _in_wasmtime
        after = run(self, image, before)
        if isinstance(after, Fault):
            return after
        if (at := _changed(image, before, after)) is not None:
            return Fault(f"page fault (writing {at:#x})", None)
        return b"".join(after[start : start + size] for start, size in image.results)


WEB_ASSEMBLY = WebAssembly()


def _features(engine: WebAssembly) -> frozenset[str]:
    """Return the features of an engine: an installed one has those of each level, and of each machine that runs
    the kernels of a level, whose products it computes.
    """
    chosen = engine.name
    return _features_of(chosen, engine.program())


@cache
def _features_of(engine: str, program: str) -> frozenset[str]:
    found = (x.needs for x in _machines() if _computes(engine, program, probe_module(x)))
    return frozenset(LEVELS[-1].needs).union(*found)


def _machines() -> Iterator[Machine]:
    """Yield the levels above the lowest, and the machines that run their kernels with fewer features."""
    for level in LEVELS[:-1]:
        machine: Machine | None = level
        while machine is not None:
            yield machine
            machine = machine.alternative


@cache
def _computes(engine: str, program: str, module: bytes) -> bool:
    """Return whether an engine computes the products of a level, as the module that probes them says."""
    return _accepts_in_node(program, module) if engine == ENGINES[0] else _accepts_in_wasmtime(module)


def _accepts_in_node(node: str, module: bytes) -> bool:
    """Return whether Node computes the products of a level."""
    with tempfile.TemporaryDirectory(prefix="convsmith-wasm-") as directory:
        path = Path(directory) / "probe"
        path.write_bytes(module)
        command = [node, str(_STARTUP), str(path)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True)
    return done.stdout.strip() == "1"


def _accepts_in_wasmtime(module: bytes) -> bool:
    """Return whether wasmtime computes the products of a level."""
    store = _store()
    with import_lock:
        import wasmtime

    try:
        own = wasmtime.Instance(store, wasmtime.Module(store.engine, module), [])
    except wasmtime.WasmtimeError:
        return False
    probe: Any = own.exports(store)["probe"]
    return bool(probe(store) == 1)


class ModuleCode:
    """The functions of an artifact as a module, whose data an image holds."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self._names = tuple(dict.fromkeys(entry.chunk_symbol for entry in artifact.entries.values()))
        wasm_module(artifact.code, self._names, ModuleMemory(0, 0))
        segments = WasmObject(artifact.code).segments
        self._data = sum(x.size + x.alignment for x in segments)

    def place(self, image: Image) -> Mapping[str, int]:
        """Return the numbers of the functions among the exports of a module."""
        at = image.reserve(self._data, "write", PAGE) if self._data else 0
        image.code = wasm_module(self._artifact.code, self._names, ModuleMemory(at, 0))
        return {name: n for n, name in enumerate(self._names)}

    def where(self, address: int | None) -> str:
        """Return nothing: an engine states no address."""
        return ""


def memory_of(image: Image) -> bytearray:
    """Return all memory of an image; what is in no piece holds poison."""
    memory = bytearray(bytes([POISON]) * (image.end + PAGE))
    for page, rights in image.rights.items():
        held = image.pages.get(page)
        if held is not None or rights == "write":
            memory[page * PAGE : (page + 1) * PAGE] = held or bytes(PAGE)
    return memory


def _changed(image: Image, before: bytes, after: bytes) -> int | None:
    """Return the first address that changed and that no entry may write; None if there is none."""
    for page in range(len(before) // PAGE):
        part = slice(page * PAGE, (page + 1) * PAGE)
        if image.rights.get(page) in (None, "read") and before[part] != after[part]:
            return next(n for n in range(part.start, part.stop) if before[n] != after[n])
    return None


def _in_node(engine: WebAssembly, image: Image, memory: bytes) -> bytes | Fault:
    """Return the memory after the calls of an image in Node."""
    node = engine.program()
    with tempfile.TemporaryDirectory(prefix="convsmith-wasm-") as directory:
        folder = Path(directory)
        files = {"module": image.code, "library": library(), "memory": memory}
        for name, content in files.items():
            (folder / name).write_bytes(content)
        command = [node, str(_STARTUP), *(str(folder / name) for name in files), str(image.numbers)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=engine.timeout, check=False, text=True
            )
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"Node ({node}) did not end within {engine.timeout:g} s", code="timeout") from None
        except OSError as error:
            raise ToolchainError(f"Node ({node}) cannot be run: {error}", code="emulator") from None
        if done.returncode == _TRAPPED:
            return Fault(done.stdout.strip(), None)
        if done.returncode:
            raise ToolchainError(
                f"Node ({node}) ended without results, status {done.returncode}: {done.stderr.strip()[-300:]}",
                text=done.stderr, code="emulator",
            )  # fmt: skip
        return (folder / "memory").read_bytes()


def _store() -> Any:
    """Return a new store of wasmtime, with relaxed SIMD."""
    with import_lock:
        import wasmtime

    config = wasmtime.Config()
    config.wasm_relaxed_simd = True
    return wasmtime.Store(wasmtime.Engine(config))


def _in_wasmtime(engine: WebAssembly, image: Image, memory: bytes) -> bytes | Fault:
    """Return the memory after the calls of an image in wasmtime."""
    with import_lock:
        import wasmtime

    store = _store()
    pages = wasmtime.Limits(-(-len(memory) // PAGE_BYTES), None)
    own = wasmtime.Memory(store, wasmtime.MemoryType(pages))
    linker = wasmtime.Linker(store.engine)
    linker.define(store, "env", "memory", own)
    place: Any = own.data_ptr(store)
    ctypes.memmove(place, memory, len(memory))
    provided = linker.instantiate(store, wasmtime.Module(store.engine, library())).exports(store)
    module = wasmtime.Module(store.engine, image.code)
    for x in module.imports:
        if isinstance(x.type, wasmtime.FuncType) and x.name in PROVIDED:
            linker.define(store, "env", str(x.name), provided[str(x.name)])
    linker.define_unknown_imports_as_traps(module)
    exports = linker.instantiate(store, module).exports(store)
    functions = [exports[x.name] for x in module.exports if isinstance(x.type, wasmtime.FuncType)]
    stack, calls, _, listed = _NUMBERS.unpack_from(memory, image.numbers)
    pointer: Any = exports[STACK_POINTER]
    pointer.set_value(store, wasmtime.Val.i32(stack))
    try:
        for n in range(calls):
            number, *given = _NUMBERS.unpack_from(memory, listed + n * _NUMBERS.size)
            functions[number](store, *given)
    except wasmtime.Trap as trap:
        return Fault(trap.message.strip().rpartition("wasm trap: ")[2], None)
    return ctypes.string_at(own.data_ptr(store), len(memory))


@cache
def library() -> bytes:
    """Return the module of the functions that LLVM calls where a machine lacks an instruction.

    Their stack takes the place of the code that begins a run on a processor.
    """
    level = LEVELS[-1]
    texts = [library_text(name, level.triple, f"i{level.address_bits}") for name in PROVIDED]
    code = llvm_bind.joined_code(texts, PROVIDED, level.triple, level.cpu, level.features)
    return wasm_module(code, PROVIDED, ModuleMemory(0, START + START_SIZE))
