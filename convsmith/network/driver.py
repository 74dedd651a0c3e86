"""The function of a network as LLVM text: it calls the kernels in order, with pointers into memory of the caller.

    void convsmith_network(ptr block)

In a process, the argument block holds the addresses of a table of the kernels' entries, and of the areas of the
program: weights, workspace, inputs, outputs. No code but that of kernels runs between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.forking import import_lock
from convsmith.exporter.entry_points import EntryFunctions
from convsmith.exporter.interface import Interface
from convsmith.machine.base import Machine
from convsmith.network.image import ImageStep, NetworkImage, tensor_arguments
from convsmith.network.program import NetworkProgram, ProgramStep

__all__ = ["SYMBOL", "call_lines", "driver_artifact", "entries_of", "image_of"]

SYMBOL = "convsmith_network"
_CODE = "code"
"""The parameter that points to the table of entries."""


class _TabledEntries(EntryFunctions):
    """Functions that call entries through the table `code`, in which each has a `number`."""

    def __init__(self, interface: Interface, word: str, numbers: Mapping[str, int]) -> None:
        super().__init__(interface, word, f"{interface.name}.")
        self._numbers = numbers

    def _call(self, entry: Entry, block: str, is_shared: bool) -> None:
        at = self._put(f"getelementptr ptr, ptr %{_CODE}, {self.word} {self._numbers[entry.symbol]}")
        self._lines.append(f"  call void {self._put(f'load ptr, ptr {at}')}(ptr {block})")


def entries_of(program: NetworkProgram) -> list[tuple[int, str]]:
    """Return the entries that steps run, each by the number of its kernel and its name, in the order of the table."""
    found: dict[tuple[int, str], None] = {}
    for step in program.steps:
        kernel = program.kernels[step.kernel]
        names = {entry.symbol: name for name, entry in kernel.artifact.entries.items()}
        for use in kernel.interface.function(step.operand).uses:
            found[step.kernel, names[use.entry.symbol]] = None
    return [*found]


def driver_artifact(program: NetworkProgram) -> Artifact:
    """Return the function of a network as an artifact, whose entry takes the arguments above."""
    with import_lock:
        from convsmith.codegen import llvm_bind

    machine = program.target
    addresses = 2 * max(len(entries_of(program)), 1)  # halves of addresses
    weights = max(program.weights.size, 1)
    memory = (("in", "s32", addresses), ("in", "u8", weights), ("scratch", "u8", program.workspace))
    private = [Argument(str(n), role, type_, (size,), "a", size) for n, (role, type_, size) in enumerate(memory)]  # type: ignore[arg-type]
    own = tensor_arguments(program.inputs, program.outputs)
    tensors = [replace(x, name=str(n)) for n, x in enumerate(own, len(private))]
    arguments = (*private, *tensors)
    entry = Entry(SYMBOL, arguments)
    code = llvm_bind.object_code(_text(program, entry, machine), machine.triple, machine.cpu, machine.features)
    permissions = tuple(dict.fromkeys(x for kernel in program.kernels for x in kernel.artifact.permissions))
    return Artifact(
        code, machine.name, {"main": entry}, program.name, f"--target={machine.name}", needs=program.needs,
        permissions=permissions, address_bits=machine.address_bits,
    )  # fmt: skip


def image_of(program: NetworkProgram) -> NetworkImage:
    """Return a program in machine code."""
    steps = tuple(ImageStep(_line(program, step), step.names, step.alive, step.apart) for step in program.steps)
    kernels = tuple(kernel.artifact for kernel in program.kernels)
    table = tuple(entries_of(program))
    return NetworkImage(
        program.name, program.inputs, program.outputs, program.workspace, program.bound, table, steps,
        driver_artifact(program), kernels, program.weights,
    )  # fmt: skip


def _line(program: NetworkProgram, step: ProgramStep) -> str:
    """Return what a step computes, as a line."""
    work = str(program.kernels[step.kernel].work)
    return f"packs {step.operand} of {work}" if step.operand else work


def _text(program: NetworkProgram, entry: Entry, machine: Machine) -> str:
    """Return the module of the driver."""
    word = f"i{machine.address_bits}"
    constants: dict[str, str] = {}
    functions: list[str] = []
    table = {place: n for n, place in enumerate(entries_of(program))}
    for number, kernel in enumerate(program.kernels):
        names = {e.symbol: name for name, e in kernel.artifact.entries.items()}
        numbers = {symbol: table[number, name] for symbol, name in names.items() if (number, name) in table}
        module = _TabledEntries(kernel.interface, word, numbers)
        for operand in dict.fromkeys(step.operand for step in program.steps if step.kernel == number):
            made = kernel.interface.function(operand)
            functions += module.function(made.symbol, made.parameters, made.uses, f", ptr %{_CODE}")
        constants |= module.constants
    lines = [f"define void @{SYMBOL}(ptr %block) nounwind {{"]
    for n in range(len(entry.arguments)):
        lines += [f"  %p{n} = getelementptr ptr, ptr %block, {word} {n}", f"  %a{n} = load ptr, ptr %p{n}"]
    areas = [f"%a{n}" for n in range(1, len(entry.arguments))]
    lines += call_lines(program, areas, word, lambda _, symbol: (f"@{symbol}", "ptr %a0"))
    chunk = f"define void @{SYMBOL}_chunk(ptr %block, {word} %part, {word} %parts) nounwind {{"
    whole = (f"  call void @{SYMBOL}(ptr %block)", "  ret void", "}")
    head = f'target triple = "{machine.triple}"'
    return "\n".join((head, *constants.values(), *functions, *lines, "  ret void", "}", chunk, *whole, ""))


def call_lines(
    program: NetworkProgram, areas: Sequence[str], word: str, callee: Callable[[int, str], tuple[str, str]]
) -> Iterator[str]:
    """Yield the lines that run the steps of a program on memory whose `areas` are pointers.

    `callee` returns the function of a kernel's number and symbol, and the arguments behind its pointers.
    """
    for n, step in enumerate(program.steps):
        given = []
        for k, (area, offset) in enumerate(step.places):
            pointer = f"%s{n}.{k}"
            yield f"  {pointer} = getelementptr i8, ptr {areas[area]}, {word} {offset}"
            given.append(f"ptr {pointer}")
        function, more = callee(step.kernel, program.kernels[step.kernel].interface.function(step.operand).symbol)
        yield f"  call void {function}({', '.join((*given, *([more] if more else ())))})"


