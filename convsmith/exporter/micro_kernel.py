"""An exported micro-kernel: functions with the arguments of XNNPACK's, and their code.

    void NAME(channels, output_width, input, weights, output, input_stride, output_increment, input_offset, zero,
              params)
    void NAME_pack(channels, kernel_size, kernel, bias, weights)

A kernel of several passes takes `kernel_size` and `buffer` before `params`, and a kernel that requantises takes the
scales of the channels when it packs. Sizes are arguments, so the functions fill an argument block and run one entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convsmith.codegen.artifact import Entry
from convsmith.diag.record import record
from convsmith.exporter.build import LinkedCode, linked_code
from convsmith.exporter.header import C_TYPES
from convsmith.exporter.kernel import LibraryKernel
from convsmith.frontend.micro_kernel_texts import MicroKernelTexts
from convsmith.machine.base import Machine
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.statement.micro_kernel import MEMORY, WEIGHTS, sums_type

__all__ = ["BOUNDS", "QUANTISATION", "ExportedMicroKernel", "MicroFunction", "MicroParameter", "build_micro_kernel"]

BOUNDS, QUANTISATION = "convsmith_bounds", "convsmith_quantisation"
"""Names of the structures of C that `params` points to: of kernels of floats, and of kernels that requantise."""
_SIZE = "size_t"


@record(frozen=True)
class MicroParameter:
    """A parameter of a function: its ``type`` in C, and what it means. The entry's argument of the name ``argument``
    has its value.
    """

    name: str
    type: str
    about: str
    argument: str

    @property
    def is_size(self) -> bool:
        """Whether the parameter is a number; others are pointers."""
        return self.type == _SIZE

    @property
    def declared(self) -> str:
        """The declaration in C."""
        return f"{self.type}{'' if self.type.endswith('*') else ' '}{self.name}"


@record(frozen=True)
class MicroFunction:
    """A function that runs ``entry``; arguments without a parameter have the values ``fixed`` or are null pointers."""

    symbol: str
    parameters: tuple[MicroParameter, ...]
    entry: Entry
    fixed: dict[str, int]

    def row(self) -> dict[str, Any]:
        """Return the row of the manifest."""
        parameters = [{"name": p.name, "c_type": p.type, "about": p.about} for p in self.parameters]
        return {"symbol": self.symbol, "parameters": parameters}


@record(frozen=True)
class ExportedMicroKernel(LibraryKernel):
    """A micro-kernel with its functions and their code."""

    kernel: MicroKernel
    main: MicroFunction
    pack: MicroFunction
    code: LinkedCode

    @property
    def name(self) -> str:
        return self.main.symbol

    @property
    def symbols(self) -> tuple[str, ...]:
        return (self.main.symbol, self.pack.symbol)

    def manifest_rows(self) -> dict[str, Any]:
        return {"functions": [f.row() for f in (self.pack, self.main)]}

    @property
    def element(self) -> str:
        """The type in C of the elements of source, weights and output."""
        return C_TYPES[MEMORY[self.kernel.type].name]

    @property
    def channel_bytes(self) -> tuple[int, int]:
        """Bytes of packed weights of a channel: of each tap, and beside the taps."""
        item = MEMORY[self.kernel.type].bytes
        return item, 8 if self.kernel.quantised else item


def build_micro_kernel(kernel: MicroKernelTexts, name: str) -> ExportedMicroKernel:
    """Return the code of ``kernel`` under ``name``.

    UnsupportedError if the code calls a function of a C library.
    """
    m, machine, entries = kernel.kernel, kernel.target, kernel.artifact.entries
    fixed = {} if m.multipass else {"kernel_size": m.taps[0]}
    main = MicroFunction(name, tuple(_parameters_of_call(m, machine)), entries["main"], fixed)
    pack = MicroFunction(f"{name}_pack", tuple(_parameters_of_packing(m, machine)), entries["pack"], {})
    symbols = (main.symbol, pack.symbol)
    functions = _functions_text((main, pack), machine)
    code = linked_code((kernel.llvm(), functions), symbols, machine, m.name)
    return ExportedMicroKernel(machine, m.name, str(kernel.config), (), code.needs, m, main, pack, code)


def _weights_type(m: MicroKernel) -> str:
    """Return the type in C of packed weights; biases and scales have types of their own in those of bytes."""
    return "void" if m.quantised else C_TYPES[MEMORY[m.type].name]


def _aligned(m: MicroKernel, machine: Machine) -> str:
    return f", from a multiple of {machine.alignment} bytes" if machine.alignment else ""


def _parameters_of_call(m: MicroKernel, machine: Machine) -> Iterator[MicroParameter]:
    element = C_TYPES[MEMORY[m.type].name]
    sizes = (
        ("channels", "output channels"), ("output_width", "output pixels"),
        ("input_stride", "bytes from the pointers of an output pixel to those of the next one"),
        ("output_increment", "bytes from the end of an output pixel to the next one"),
        ("input_offset", "bytes to add to each pointer that is not `zero`"),
    )  # fmt: skip
    size = {name: MicroParameter(name, _SIZE, about, name) for name, about in sizes}
    point = "the input's zero point" if m.quantised else "0"
    yield size["channels"]
    yield size["output_width"]
    yield MicroParameter("input", f"const {element} **", "pointers to the pixels of each output, tap by tap", "input")
    yield MicroParameter(
        "weights", f"const {_weights_type(m)} *", f"packed weights{_aligned(m, machine)}", f"{WEIGHTS}_p"
    )
    yield MicroParameter("output", f"{element} *", "output pixels", "output")
    yield size["input_stride"]
    yield size["output_increment"]
    yield size["input_offset"]
    yield MicroParameter("zero", f"const {element} *", f"`channels` elements of {point}, for absent pixels", "zero")
    if m.multipass:
        yield MicroParameter("kernel_size", _SIZE, "taps", "kernel_size")
        sums = C_TYPES[sums_type(m).name]
        yield MicroParameter("buffer", f"{sums} *", "memory for the sums of `channels`", "buffer")
    about = "zero points and bounds" if m.quantised else "bounds"
    yield MicroParameter("params", f"const struct {_params_type(m)} *", f"{about} of the output", "params")


def _parameters_of_packing(m: MicroKernel, machine: Machine) -> Iterator[MicroParameter]:
    element = C_TYPES[MEMORY[m.type].name]
    bias = "int32_t" if m.quantised else element
    yield MicroParameter("channels", _SIZE, "channels", "channels")
    yield MicroParameter("kernel_size", _SIZE, "taps", "kernel_size")
    yield MicroParameter(
        "kernel", f"const {element} *", "[channels][kernel_size], with the taps in the order of the pointers", "kernel"
    )
    yield MicroParameter("bias", f"const {bias} *", "[channels]", "bias")
    if m.quantised:
        yield MicroParameter("scale", "const float *", "[channels], of the requantisation", "scale")
    yield MicroParameter(
        "weights", f"{_weights_type(m)} *", f"memory for the packed weights{_aligned(m, machine)}", f"{WEIGHTS}_p"
    )


def _params_type(m: MicroKernel) -> str:
    return QUANTISATION if m.quantised else BOUNDS


def _functions_text(functions: Sequence[MicroFunction], machine: Machine) -> str:
    """Return the module of the functions, which declares the entries that they run."""
    word = f"i{machine.address_bits}"
    lines = [f'target triple = "{machine.triple}"']
    lines += [f"declare void @{f.entry.chunk_symbol}(ptr, {word}, {word})" for f in functions]
    for f in functions:
        types = {p.argument: word if p.is_size else "ptr" for p in f.parameters}
        names = {p.argument: f"%{p.name}" for p in f.parameters}
        declared = ", ".join(f"{types[p.argument]} {names[p.argument]}" for p in f.parameters)
        lines += [f"define void @{f.symbol}({declared}) nounwind {{"]
        lines += [f"  %block = alloca [{len(f.entry.arguments)} x {word}]"]
        for n, a in enumerate(f.entry.arguments):
            type_ = types.get(a.name, word if a.name in f.fixed else "ptr")
            value = names.get(a.name) or str(f.fixed.get(a.name, "null"))
            lines += [
                f"  %at{n} = getelementptr {word}, ptr %block, {word} {n}", f"  store {type_} {value}, ptr %at{n}"
            ]
        lines += [f"  call void @{f.entry.chunk_symbol}(ptr %block, {word} 0, {word} 1)", "  ret void", "}"]
    return "\n".join((*lines, ""))
