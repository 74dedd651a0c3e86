"""`export_web`: a network as modules of WebAssembly, with a module of JavaScript that loads and runs them.

A module has one memory, in which everything has a fixed address: the stacks, weights, the workspace, inputs, outputs.
Its only function, `run`, has no parameters. Where the machine has alternatives, there is a module for each of them;
where kernels have several threads, each of these has a variant whose memory threads share, and one for a single thread.
An engine loads the first module whose products it computes; all read the same weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, product
from typing import NamedTuple

from convsmith.codegen import llvm_bind
from convsmith.codegen.library_functions import PROVIDED, library_text
from convsmith.codegen.wasm_module import PAGE_BYTES, ModuleMemory, wasm_module
from convsmith.codegen.wasm_object import WasmObject
from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.exporter.entry_points import entry_points_text
from convsmith.exporter.interface import interface_of
from convsmith.exporter.names import check_name
from convsmith.machine.base import Machine
from convsmith.network.driver import call_lines
from convsmith.network.export import ExportedNetwork, kernel_text, write_files
from convsmith.network.image import NetworkValue
from convsmith.network.program import TENSORS, NetworkProgram
from convsmith.network.web_texts import (
    WebModule,
    WebNetwork,
    declarations_text,
    module_text,
    package_text,
    test_text,
    threads_texts,
)
from convsmith.runtime.arrays import ALIGNMENT, Array, numpy_dtype

__all__ = ["WEIGHTS_PLACES", "export_web"]

WEIGHTS_PLACES = ("beside", "inside")
"""Places of weights: a file of their own, or data of each module."""
_RUN = "run"
_TITLES = {"dot-s8": ".signed", "simd128": ".plain"}
"""Parts of the names of files for alternatives of a machine, by the last feature that these need."""
_PARALLEL = "convsmith_parallel"
"""The function that a module whose memory threads share imports: it runs the parts of a kernel."""
_STACK = PAGE_BYTES
"""Bytes of the stack of a thread. That of the first begins at address 0: what exceeds it is outside of memory."""


class _Layout(NamedTuple):
    """The addresses of areas, by the number of an area, and the address behind all of them."""

    areas: tuple[int, ...]
    end: int


class _Module(NamedTuple):
    """A module, and the pages of its memory."""

    code: bytes
    pages: int


def export_web(
    program: NetworkProgram, directory: str | os.PathLike[str], name: str, samples: Mapping[str, Array],
    weights: str = WEIGHTS_PLACES[0],
) -> ExportedNetwork:  # fmt: skip
    """Write the modules of `program` to `directory`, which is created: code, loader, declarations, package, test.

    `weights` is one of `WEIGHTS_PLACES`. The test compares results with `samples`, the outputs for the inputs that it
    makes. UsageError if a word is not legal, or the directory cannot be written.
    """
    if weights not in WEIGHTS_PLACES:
        raise UsageError(
            f"weights {weights!r} is not legal; legal are {choices(weights, WEIGHTS_PLACES)}", code="bad-option"
        )
    own, target = check_name(name), program.target
    layout = _layout(program)
    first, *others = _with_alternatives(target)
    machines = {"": first, **{_TITLES[x.needs[-1]]: x for x in others}}
    sharing = (True, False) if program.threads > 1 else (False,)
    modules, contents = [], {}
    for is_shared, (title, machine) in product(sharing, machines.items()):
        made = _module(program, machine, layout, weights == "inside", is_shared)
        file = f"{own}{title}{'.threads' * is_shared}.wasm"
        contents[file] = made.code
        needs = machine if machine.alternative is not None else None
        modules.append(WebModule(file, needs, made.pages if is_shared else 0))
    is_beside = weights == "beside" and bool(program.weights.size)
    if is_beside:
        contents[f"{own}.weights"] = program.weights.tobytes()
    places = dict(zip([x.name for x in (*program.inputs, *program.outputs)], layout.areas[TENSORS:]))
    network = WebNetwork(
        own, program, places, layout.areas[0], tuple(modules), f"{own}.weights" if is_beside else "", _STACK
    )
    texts = {
        f"{own}.js": module_text(network), f"{own}.d.ts": declarations_text(network), **threads_texts(network),
        "package.json": package_text(network), f"{own}.test.mjs": test_text(network, samples),
    }  # fmt: skip
    contents |= {file: text.encode() for file, text in texts.items()}
    paths = write_files(directory, contents)
    return ExportedNetwork(own, paths[0].parent, paths[0].parent / f"{own}.js", paths[0], paths, program.workspace)


def _with_alternatives(target: Machine) -> Iterator[Machine]:
    """Yield a machine, and those that run its kernels with fewer features."""
    machine: Machine | None = target
    while machine is not None:
        yield machine
        machine = machine.alternative


def _layout(program: NetworkProgram) -> _Layout:
    """Return the addresses: kernels form addresses before an image, by its padding, which must not be negative. Bytes
    as many as the largest array has lie before all images.
    """
    tensors = [_nbytes(x) for x in (*program.inputs, *program.outputs)]
    sizes = (program.weights.size, program.workspace, *tensors)
    largest = max((t.nbytes for k in program.kernels for t in k.work.tensors), default=0)
    stacks = _STACK * program.threads
    start = max(stacks, stacks + largest - program.weights.size)
    starts = tuple(accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=_rounded(start)))
    return _Layout(starts[:-1], starts[-1])


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _nbytes(x: NetworkValue) -> int:
    """Return the bytes of an input or an output."""
    size = numpy_dtype(x.type).itemsize
    for n in x.shape:
        size *= n
    return max(size, 1)


def _module(
    program: NetworkProgram, machine: Machine, layout: _Layout, holds_weights: bool, is_shared: bool
) -> _Module:
    """Return the module of a program for a machine, on a memory that threads share if ``is_shared``."""
    parts: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for n, kernel in enumerate(program.kernels):
        interface = interface_of(f"k{n}", kernel.artifact, [t.name for t in kernel.work.tensors])
        symbols = (interface.symbol, *(packing.symbol for packing in interface.packings))
        text = kernel_text(replace(kernel, machine=machine), program.threads)
        parts.append(((text, entry_points_text(interface, machine.triple, {})), symbols))
    parts.append(((_driver_text(program, layout, is_shared),), (_RUN,)))
    word = f"i{machine.address_bits}"
    while True:
        code = llvm_bind.merged_code(parts, (_RUN,), machine.triple, machine.cpu, machine.features)
        missing = [symbol for symbol in WasmObject(code).undefined if symbol != _PARALLEL]
        provided = [symbol for symbol in missing if symbol in PROVIDED]
        if not provided:
            break
        parts += [((library_text(symbol, machine.triple, word),), (symbol,)) for symbol in provided]
    if missing:
        raise UnsupportedError(f"{program.name}: code calls {', '.join(missing)}, which modules lack", code="library")
    size = layout.end + sum(x.size + x.alignment for x in WasmObject(code).segments)
    held = ((layout.areas[0], program.weights.tobytes()),) if holds_weights and program.weights.size else ()
    pages = -(-size // PAGE_BYTES)
    memory = ModuleMemory(layout.end, _STACK, pages, contents=held, is_shared=is_shared)
    return _Module(wasm_module(code, (_RUN,), memory), pages)


def _driver_text(program: NetworkProgram, layout: _Layout, is_shared: bool) -> str:
    """Return the module of `run`, which calls the kernels on fixed addresses. They run their parts through a function
    that the module imports if ``is_shared``, else one after the other.
    """
    parallel = f"ptr @{_PARALLEL}, ptr null" if is_shared else "ptr null, ptr null"
    word = f"i{program.target.address_bits}"
    declared: dict[str, None] = {}
    if is_shared:
        declared[f"declare void @{_PARALLEL}(ptr, ptr, ptr, {word})"] = None

    def callee(number: int, symbol: str) -> tuple[str, str]:
        own = program.kernels[number].interface
        has_parts = own.threads > 1 and symbol == own.symbol
        functions = {x.symbol: x.parameters for x in own.packings}
        count = len(functions.get(symbol, own.parameters)) + 2 * has_parts
        declared[f"declare void @{symbol}({', '.join(['ptr'] * count)})"] = None
        return f"@{symbol}", parallel if has_parts else ""

    areas = [f"inttoptr ({word} {start} to ptr)" for start in layout.areas]
    calls = list(call_lines(program, areas, word, callee))
    head = f'target triple = "{program.target.triple}"'
    return "\n".join((head, *declared, f"define void @{_RUN}() nounwind {{", *calls, "  ret void", "}", ""))
