"""Exported kernels, called: through ctypes from a shared library, and in the emulated machine through a driver of ours.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guarded import expected

from convsmith.codegen import llvm_bind
from convsmith.emulate.image import Image
from convsmith.emulate.processor import CODE_ALIGNMENT, ProcessorEmulator
from convsmith.emulate.processors import Fault, processor_for
from convsmith.exporter.build import BuiltKernel
from convsmith.exporter.files import ExportedLibrary
from convsmith.exporter.interface import WORKSPACE, Parameter
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, ArraySpec, address_of, aligned_empty
from convsmith.runtime.object_code import ObjectCode

Arrays = Mapping[str, Array]

POISON = 0xA5
"""Every byte that no array gives."""
BEHIND = 1 << 16
"""Bytes of poison behind each array, which no function may write."""

_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


def tool(name: str) -> str:
    """The path of a compiler or builder; the test is skipped where there is none."""
    found = shutil.which(name) or shutil.which(str(Path.home() / ".cargo" / "bin" / name))
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of a command; its errors fail the test."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def shared_library(library: ExportedLibrary) -> ctypes.CDLL:
    """The library as a shared one, which may need no other: neither the C library nor that of the compiler."""
    path = library.directory / f"lib{library.name}.so"
    whole = ("-Wl,--whole-archive", *library.code, "-Wl,--no-whole-archive")
    run(tool("gcc"), "-shared", "-nostdlib", "-Wl,--no-undefined", "-o", path, *whole)
    return ctypes.CDLL(str(path))


@_PARALLEL
def parts_backwards(pool: int, task: int, data: int, parts: int) -> None:
    """Run the last part first: parts may run in any order."""
    for part in reversed(range(parts)):
        _TASK(task)(data, part, parts)


def memory_for(p: Parameter, problem: Problem, arrays: Arrays) -> Any:
    """Memory for a parameter, with the array in its layout if there is one, else poison."""
    memory = aligned_empty(p.nbytes + BEHIND)
    memory[:] = POISON
    if p.tensor is not None and p.tensor.name in arrays:
        spec = ArraySpec(p.tensor)
        place = np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides)
        place[...] = to_layout(arrays[p.tensor.name], problem.tensor(p.tensor.name).layout)
    return memory


def result_in(p: Parameter, problem: Problem, memory: Any) -> Array:
    """The logical array that a kernel has written."""
    assert p.tensor is not None
    spec = ArraySpec(p.tensor)
    return from_layout(
        np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides), problem.tensor(p.tensor.name).layout
    )


def _check_ends(memory: dict[str, Any], parameters: Iterable[Parameter]) -> None:
    """A call with these parameters writes nothing behind the end of an array; workspaces of calls differ in size."""
    for p in parameters:
        assert (memory[p.name][p.nbytes :] == POISON).all(), f"{p.name}: something is written behind its end"


def check_called(
    kernel: BuiltKernel, loaded: ctypes.CDLL, problem: Problem, arrays: Arrays, parallel: bool,
    truths: Arrays | None = None, null: bool = True,
) -> None:  # fmt: skip
    """Results of the exported functions are exact; optional arrays are null where `null` is set."""
    interface = kernel.interface
    memory: dict[str, Any] = {}
    for packing in interface.packings:
        for p in packing.parameters:
            memory[p.name] = memory_for(p, problem, arrays)
        getattr(loaded, packing.symbol)(*(ctypes.c_void_p(address_of(memory[p.name])) for p in packing.parameters))
        _check_ends(memory, packing.parameters)
    for p in interface.parameters:
        if p.name not in memory or not p.of:
            memory[p.name] = memory_for(p, problem, arrays)
    given = (None if p.is_optional and null else address_of(memory[p.name]) for p in interface.parameters)
    places = [ctypes.c_void_p(address) for address in given]
    pairs = [x for p, place in zip(interface.parameters, places) for x in (place, ctypes.c_size_t(p.nbytes))]
    assert getattr(loaded, interface.check)(*pairs) == 0
    threads = [parts_backwards if parallel else None, None] if interface.threads > 1 else []
    getattr(loaded, kernel.name)(*places, *threads)
    _check_ends(memory, interface.parameters)
    check_memory(kernel, problem, memory, truths or expected(problem, arrays))


def check_memory(kernel: BuiltKernel, problem: Problem, memory: Mapping[str, Any], truths: Arrays) -> None:
    """The results in memory are the true ones."""
    for p in kernel.interface.parameters:
        if p.tensor is not None and p.is_written:
            np.testing.assert_array_equal(result_in(p, problem, memory[p.name]), truths[p.name], p.name)


# -- in the emulated machine
def check_emulated_calls(
    kernel: BuiltKernel, problem: Problem, arrays: Arrays, emulator: ProcessorEmulator, code: bytes | None = None
) -> None:
    """Results of the exported functions are exact in the emulated machine, where no other memory can be accessed.

    `code` is the object code, by default the kernel's own. Functions of the compiler's library are the emulator's.
    """
    interface = kernel.interface
    image = Image(emulator.page)
    functions = {name: at for name, at in emulator.library().items() if name in kernel.needs}
    linked = ObjectCode(code or kernel.code.object)
    start = image.reserve(linked.size, "execute", CODE_ALIGNMENT)
    image.write(start, linked.at(start, functions))
    outside = {symbol: start + linked.symbols[symbol] for symbol in interface.symbols}
    memory: dict[str, int] = {}
    own: dict[str, Any] = {}

    def place(parameters: Sequence[Parameter]) -> None:
        for p in parameters:
            if p.name not in memory or p.name == WORKSPACE:  # workspaces of calls differ in size
                own[p.name] = memory_for(p, problem, arrays)
                is_made = p.is_written or any(p.of and p.of == x.operand for x in interface.packings)
                contents = own[p.name][: p.nbytes].tobytes()
                memory[p.name] = image.place(contents, "write" if is_made else "read", p.alignment)

    bits = interface.artifact.address_bits
    verdict = image.place(bytes(8), "write", 8)
    calls: list[tuple[str, list[int], bool]] = []
    for packing in interface.packings:
        place(packing.parameters)
        calls.append((packing.symbol, [memory[p.name] for p in packing.parameters], False))
    place(interface.parameters)
    given = [0 if p.is_optional else memory[p.name] for p in interface.parameters]
    pairs = [x for p, at in zip(interface.parameters, given) for x in (at, p.nbytes)]
    calls.append((interface.check, [*pairs, verdict], True))
    calls.append((kernel.name, given, False))
    text = "\n".join(_driver(n, *call, bits) for n, call in enumerate(calls))
    m = kernel.machine
    driver = ObjectCode(llvm_bind.object_code(f'target triple = "{m.triple}"\n{text}', m.triple, m.cpu, m.features))
    at = image.reserve(driver.size, "execute", CODE_ALIGNMENT)
    image.write(at, driver.at(at, outside))
    block = image.place(bytes(8), "read", 8)
    for n in range(len(calls)):
        image.call(at + driver.symbols[f"call{n}"], block)
    image.result(verdict, 4)
    results = [p for p in interface.parameters if p.tensor is not None and p.is_written]
    for p in results:
        image.result(memory[p.name], p.nbytes)
    found = replace(emulator, timeout=60.0).emulate(image, processor_for(m.needs, emulator.processors))
    assert not isinstance(found, Fault), found
    assert found[:4] == bytes(4), "the check refuses the arrays"
    found = found[4:]
    for p in results:
        own[p.name] = np.frombuffer(found[: p.nbytes], np.uint8).copy()
        found = found[p.nbytes :]
    check_memory(kernel, problem, own, expected(problem, arrays))


def _driver(n: int, symbol: str, words: Sequence[int], returns: bool, bits: int) -> str:
    """A function that the start-up code calls, and that calls a function of C with words; a code goes to the last."""
    passed = words[:-1] if returns else words
    types, values = ", ".join([f"i{bits}"] * len(passed)), ", ".join(f"i{bits} {x}" for x in passed)
    result = "i32" if returns else "void"
    called = f"call {result} @{symbol}({values})"
    store = f"  %p = inttoptr i{bits} {words[-1]} to ptr\n  store i32 %code, ptr %p\n" if returns else ""
    return (
        f"declare {result} @{symbol}({types})\n"
        f"define void @call{n}(ptr %block, i{bits} %tid, i{bits} %n) nounwind {{\n"
        f"  {'%code = ' if returns else ''}{called}\n{store}  ret void\n}}"
    )
