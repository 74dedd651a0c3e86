"""`export_network`: a network as one function of C, in a static library that needs no other.

    int NAME(inputs..., outputs..., workspace, parallel, pool)     runs the network; 0, or a code
    int NAME_check(pointer, bytes, ...)                            checks the memory of a call
    const char *NAME_message(int code)                             describes a code

The library holds the weights, packed. `parallel` and `pool` are absent if one thread runs all kernels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from convsmith.codegen import llvm_bind
from convsmith.codegen.object_symbols import code_bytes
from convsmith.compiler.operator import operator_text
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.forking import import_lock
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.exporter.build import linked_code
from convsmith.exporter.entry_points import check_lines, entry_points_text, message_lines
from convsmith.exporter.files import library_file, library_of
from convsmith.exporter.interface import WORKSPACE, Interface, Parameter, interface_of
from convsmith.exporter.names import check_name, legal_name, unique_names
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.network.driver import call_lines
from convsmith.network.files.c_texts import example_text, header_text, manifest_text, sample
from convsmith.network.files.language_texts import cpp_example, rust_declarations, rust_example
from convsmith.network.image import tensor_arguments
from convsmith.network.program import NetworkProgram, ProgramKernel
from convsmith.runtime.arrays import ALIGNMENT, Array, ArraySpec
from convsmith.schedule.config import Config
from convsmith.statement.operator import Operator

__all__ = [
    "ExportedNetwork", "Member", "NetworkInterface", "export_program", "interface_of_network", "kernel_text",
    "members_of", "write_files", "write_library",
]  # fmt: skip

_MARK = b"\xc5weights of a network\xc5"
"""Bytes at the place of the weights in an object, until they replace them."""


Member: TypeAlias = tuple[str, bytes, tuple[str, ...]]
"""An object of a library: its name, its code, and the symbols that it defines."""


@record(frozen=True)
class ExportedNetwork:
    """The files of an exported network: programs include the `header` and link the `library`.

    A call needs `workspace` bytes of memory. The library has `code` bytes of instructions and `weights` bytes of
    constants for each level; they are 0 where a network is no library of C. A call takes that many `instructions`, to
    within ten; None where no emulator counted them.
    """

    name: str
    directory: Path
    header: Path
    library: Path
    files: tuple[Path, ...]
    workspace: int
    code: int = 0
    weights: int = 0
    instructions: int | None = None


class NetworkInterface(NamedTuple):
    """The function of a network: its name, its parameters, and whether it runs parts of kernels through `parallel`."""

    name: str
    interface: Interface
    is_shared: bool


def interface_of_network(program: NetworkProgram, name: str) -> NetworkInterface:
    """Return the function of `program` under `name`; parameters have the names of inputs and outputs in the model."""
    arguments = tensor_arguments(program.inputs, program.outputs)
    names = unique_names(legal_name(a.name, "x") for a in arguments)
    parameters = [
        Parameter(own, max(spec.extent, 1), spec.dtype.itemsize, a.role != "in", replace(a, name=own))
        for own, a, spec in zip(names, arguments, map(ArraySpec, arguments))
    ]
    if program.workspace:
        parameters.append(Parameter(WORKSPACE, program.workspace, ALIGNMENT, True))
    first = program.kernels[0].artifact
    whole = Interface(name, first, tuple(parameters), (), (), program.workspace, 1, frozenset())
    return NetworkInterface(name, whole, any(k.interface.threads > 1 for k in program.kernels))


def export_program(
    program: NetworkProgram, directory: str | os.PathLike[str], name: str, samples: Mapping[str, Array]
) -> ExportedNetwork:
    """Write the library of `program` to `directory`, which is created: code, header, manifest, declarations for Rust,
    and examples in C, C++ and Rust.

    An example compares results with `samples`, the outputs for the inputs that it makes. UsageError if the name is not
    legal, or the directory cannot be written.
    """
    own = interface_of_network(program, check_name(name))
    members = members_of(program, own)
    made = write_library(program, own, members, directory, samples)
    return made if own.is_shared else replace(made, instructions=_instructions(program, own, members))


def _instructions(program: NetworkProgram, own: NetworkInterface, members: Sequence[Member]) -> int | None:
    """Return the instructions of a call on the inputs of the examples; None if no emulator counts those of the target,
    or it has less memory than a call needs.
    """
    with import_lock:
        from convsmith.exporter.emulated_call import counting_emulator, emulated_call

    emulator = counting_emulator(program.target)
    needed = program.workspace + program.weights.size
    if emulator is None or needed > emulator.room:
        return None
    inputs = {p.name: sample(x.shape, x.type) for p, x in zip(own.interface.parameters, program.inputs)}
    return emulated_call(own.interface, [code for _, code, _ in members], program.target, emulator, inputs).instructions


def write_library(
    program: NetworkProgram, own: NetworkInterface, members: Sequence[Member], directory: str | os.PathLike[str],
    samples: Mapping[str, Array], levels: Sequence[str] = (),
) -> ExportedNetwork:  # fmt: skip
    """Write the library of the objects `members`, with all files beside it; `levels` are those among which it chooses.
    """
    name = own.name
    library = library_file(name, program.target.triple)
    command = f"cc -O2 example.c {library} -lm -o example"
    of_rust = f"rustc --edition=2021 -O -L . -l static={name} example.rs"
    contents = {
        library: library_of([(f"{title}.o", code, symbols) for title, code, symbols in members]),
        f"{name}.h": header_text(program, own, levels).encode(),
        f"{name}.rs": rust_declarations(own).encode(),
        "example.c": example_text(program, own, command, samples).encode(),
        "example.cpp": cpp_example(program, own, f"c++ -O2 example.cpp {library} -o example", samples).encode(),
        "example.rs": rust_example(program, own, of_rust, samples).encode(),
    }  # fmt: skip
    contents[f"{name}.json"] = manifest_text(program, own, [*contents, f"{name}.json"], levels).encode()
    paths = write_files(directory, contents)
    folder = paths[0].parent
    return ExportedNetwork(
        name, folder, folder / f"{name}.h", folder / library, paths, program.workspace,
        sum(code_bytes(code) for _, code, _ in members), program.weights.size,
    )  # fmt: skip


def write_files(directory: str | os.PathLike[str], contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write files to a directory, which is created, and return their paths. UsageError if it cannot be written."""
    if not isinstance(directory, str | os.PathLike) or not os.fspath(directory):
        message = f"directory={shown(directory)} is not legal: expected the path of a directory"
        raise UsageError(message, code="bad-file")
    folder, file = Path(directory), ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in contents.items():
            (folder / file).write_bytes(content)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{printable(str(folder / file))}: cannot be written: {why}", code="bad-file") from None
    return tuple(folder / file for file in contents)


def members_of(program: NetworkProgram, own: NetworkInterface) -> list[Member]:
    """Return the members of the library: names, object code, and the symbols that each defines. A kernel's object has
    the functions that a call runs: of those that pack, the ones whose operand is a value of the network.
    """
    name, machine = own.name, program.target
    found, called = [], {(step.kernel, step.operand) for step in program.steps}
    for n, kernel in enumerate(program.kernels):
        title = f"{name}_k{n}"
        interface = interface_of(title, kernel.artifact, [t.name for t in kernel.work.tensors])
        text = kernel_text(kernel, program.threads)
        packings = (x.symbol for x in interface.packings if (n, x.operand) in called)
        symbols = (interface.symbol, *packings)
        texts = (text, entry_points_text(interface, machine.triple, {}))
        made = linked_code(texts, symbols, kernel.machine, str(kernel.work))
        found.append((title, made.object, symbols))
    if program.weights.size:
        held = f"{name}_weights"
        found.append((held, _weights_object(program.weights, held, machine), (held,)))
    symbols = (name, own.interface.check, own.interface.message)
    made = linked_code((_driver_text(program, own),), symbols, machine, program.name, outside=f"{name}_")
    found.append((name, made.object, symbols))
    return found


def kernel_text(kernel: ProgramKernel, threads: int) -> str:
    """Return the module of a kernel as LLVM text."""
    if isinstance(kernel.work, Operator):
        return operator_text(kernel.work, kernel.machine, threads)
    config = Config.parse(kernel.artifact.config)
    return CompiledKernel(kernel.work, kernel.machine, config, config.threads).llvm()


def _weights_object(weights: Array, symbol: str, machine: Machine) -> bytes:
    """Return an object that defines constant bytes; LLVM's text would take three times their size."""
    size = max(weights.size, len(_MARK))
    mark = "".join(f"\\{byte:02x}" for byte in _MARK)
    kind = f"<{{ [{len(_MARK)} x i8], [{size - len(_MARK)} x i8] }}>"
    text = (
        f'target triple = "{machine.triple}"\n@{symbol} = constant {kind} <{{ [{len(_MARK)} x i8] c"{mark}", '
        f"[{size - len(_MARK)} x i8] zeroinitializer }}>, align {ALIGNMENT}\n"
    )
    code = llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features)
    start = code.index(_MARK)
    return code[:start] + weights.tobytes() + code[start + weights.size :]


def _driver_text(program: NetworkProgram, own: NetworkInterface) -> str:
    """Return the module of the network's function, which checks its pointers and calls the kernels."""
    name, word = own.name, f"i{program.target.address_bits}"
    interface = own.interface
    threads = ", ptr %parallel, ptr %pool"
    declared = dict[str, None]()

    def callee(number: int, symbol: str) -> tuple[str, str]:
        kernel = program.kernels[number]
        is_shared = kernel.interface.threads > 1 and symbol == kernel.interface.symbol
        whole = f"{name}_{symbol}"
        functions = {x.symbol: x.parameters for x in kernel.interface.packings}
        count = len(functions.get(symbol, kernel.interface.parameters))
        pointers = ["ptr"] * (count + 2 * is_shared)
        declared[f"declare void @{whole}({', '.join(pointers)})"] = None
        return f"@{whole}", "ptr %parallel, ptr %pool" if is_shared else ""

    pointers = [f"%{p.name}" for p in interface.parameters]
    tensors = pointers[: len(program.inputs) + len(program.outputs)]
    weights = f"@{name}_weights"
    areas = [weights, f"%{WORKSPACE}" if program.workspace else "null", *tensors]
    calls = list(call_lines(program, areas, word, callee))
    given = ", ".join(f"ptr {x}, {word} {p.nbytes}" for x, p in zip(pointers, interface.parameters))
    parameters = ", ".join(f"ptr {x}" for x in pointers) + (threads if own.is_shared else "")
    lines = (
        f'target triple = "{program.target.triple}"', *declared,
        *([f"{weights} = external constant [{program.weights.size} x i8]"] if program.weights.size else []),
        *check_lines(interface, word), *message_lines(interface),
        f"define i32 @{name}({parameters}) nounwind {{", f"  %code = call i32 @{interface.check}({given})",
        "  %wrong = icmp ne i32 %code, 0", "  br i1 %wrong, label %end, label %run", "run:", *calls, "  br label %end",
        "end:", "  ret i32 %code", "}", "",
    )  # fmt: skip
    return "\n".join(lines)
