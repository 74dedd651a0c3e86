"""`export_web`: a network as modules of WebAssembly, with a module of JavaScript that loads and runs them.

A module has one memory, in which everything has a fixed address: the stacks, weights, the workspace, inputs, outputs.
Its only function, `run`, has no parameters. Where a machine has alternatives, there is a module for each of them, and
these read the same weights; where kernels have several threads, each has a variant whose memory threads share, and one
for a single thread. Programs for several levels have weights of their own. An engine loads the first module whose
products it computes, and its weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
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
from convsmith.network.files.export import ExportedNetwork, kernel_text, write_files
from convsmith.network.files.web_texts import (
    WebModule,
    WebNetwork,
    declarations_text,
    module_text,
    package_text,
    test_text,
    threads_texts,
)
from convsmith.network.image import NetworkValue
from convsmith.network.program import TENSORS, NetworkProgram
from convsmith.runtime.arrays import ALIGNMENT, Array, numpy_dtype

__all__ = ["WEIGHTS_PLACES", "check_web_levels", "export_web"]

WEIGHTS_PLACES = ("beside", "inside")
"""Places of weights: a file of their own, or data of each module."""
_RUN = "run"
_TITLES = {
    "dot-u8": ".dot", "dot-s8": ".signed", "pairs-u8": ".pairs", "relaxed-simd": ".relaxed", "simd128": ".plain",
}  # fmt: skip
"""Parts of the names of files behind the first, by the last feature that their machine needs."""
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


def check_web_levels(machines: Sequence[Machine]) -> None:
    """Raise UsageError for a level that is given twice, and for one that all engines run before others."""
    names = [machine.name for machine in machines]
    if len({*names}) < len(names):
        raise UsageError(f"levels {', '.join(names)}; legal is each level once", code="bad-target")
    for machine in machines[:-1]:
        if machine.alternative is None:
            raise UsageError(
                f"levels {', '.join(names)}; legal is {machine.name} as the last, because all engines run it",
                code="bad-target",
            )


def export_web(
    programs: Sequence[NetworkProgram], directory: str | os.PathLike[str], name: str, samples: Mapping[str, Array],
    weights: str = WEIGHTS_PLACES[0],
) -> ExportedNetwork:  # fmt: skip
    """Write the modules of the `programs` of a graph, each for another level, the best first, to `directory`, which is
    created: code, loader, declarations, package, test.

    `weights` is one of `WEIGHTS_PLACES`. The test compares results with `samples`, the outputs for the inputs that it
    makes. UsageError if a word is not legal, or the directory cannot be written, and what `check_web_levels` raises.
    """
    if weights not in WEIGHTS_PLACES:
        raise UsageError(
            f"weights {weights!r} is not legal; legal are {choices(weights, WEIGHTS_PLACES)}", code="bad-option"
        )
    check_web_levels([program.target for program in programs])
    own, first = check_name(name), programs[0]
    layout = _layout(programs)
    sharing = (True, False) if first.threads > 1 else (False,)
    modules, contents = [], {}
    for is_shared, (program, machine) in product(sharing, _versions(programs)):
        title = _title(machine, first.target)
        made = _module(program, machine, layout, weights == "inside", is_shared)
        file = f"{own}{title}{'.threads' * is_shared}.wasm"
        contents[file] = made.code
        held = ""
        if weights == "beside" and program.weights.size:
            held = f"{own}{_title(program.target, first.target)}.weights"
            contents[held] = program.weights.tobytes()
        needs = machine if machine.alternative is not None else None
        modules.append(WebModule(file, needs, made.pages if is_shared else 0, held))
    sizes = {module.weights: len(contents[module.weights]) for module in modules if module.weights}
    places = dict(zip([x.name for x in (*first.inputs, *first.outputs)], layout.areas[TENSORS:]))
    network = WebNetwork(own, first, places, layout.areas[0], tuple(modules), sizes, _STACK)
    texts = {
        f"{own}.js": module_text(network), f"{own}.d.ts": declarations_text(network), **threads_texts(network),
        "package.json": package_text(network), f"{own}.test.mjs": test_text(network, samples),
    }  # fmt: skip
    contents |= {file: text.encode() for file, text in texts.items()}
    paths = write_files(directory, contents)
    workspace = max(program.workspace for program in programs)
    return ExportedNetwork(own, paths[0].parent, paths[0].parent / f"{own}.js", paths[0], paths, workspace)


def _versions(programs: Sequence[NetworkProgram]) -> Iterator[tuple[NetworkProgram, Machine]]:
    """Yield programs with the machines that run them, the best first. What every engine runs is of the last program."""
    for program in programs:
        for machine in _with_alternatives(program.target):
            if machine.alternative is not None or program is programs[-1]:
                yield program, machine


def _title(machine: Machine, first: Machine) -> str:
    """Return the part of the names of files for a machine; empty for the first."""
    return "" if machine is first else _TITLES[machine.needs[-1]]


def _with_alternatives(target: Machine) -> Iterator[Machine]:
    """Yield a machine, and those that run its kernels with fewer features."""
    machine: Machine | None = target
    while machine is not None:
        yield machine
        machine = machine.alternative


def _layout(programs: Sequence[NetworkProgram]) -> _Layout:
    """Return the addresses, which are those of all programs: kernels form addresses before an image, by its padding,
    which must not be negative. Bytes as many as the largest array has lie before all images.
    """
    tensors = [_nbytes(x) for x in (*programs[0].inputs, *programs[0].outputs)]
    held, workspace = (max(sizes) for sizes in zip(*((x.weights.size, x.workspace) for x in programs)))
    largest = max((t.nbytes for x in programs for k in x.kernels for t in k.work.tensors), default=0)
    stacks = _STACK * programs[0].threads
    start = max(stacks, stacks + largest - held)
    sizes = (held, workspace, *tensors)
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
