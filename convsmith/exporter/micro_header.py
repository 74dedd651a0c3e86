"""The header of exported micro-kernels, for C and C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.exporter.header import INTEGERS, comment, cpu_lines, framed, machine_text, macro, prototype
from convsmith.exporter.micro_kernel import BOUNDS, QUANTISATION, ExportedMicroKernel, MicroFunction
from convsmith.frontend.public import public
from convsmith.problem.micro_kernel import MicroKernel

__all__ = ["micro_header_text", "pointers_text"]

_STRUCTURES = {
    BOUNDS: ("The least and the largest output.", ("float minimum", "float maximum")),
    QUANTISATION: (
        "Zero points, and the least and the largest output.",
        ("int32_t input_zero_point", "int32_t kernel_zero_point", "int32_t output_zero_point",
         "int32_t output_minimum", "int32_t output_maximum"),
    ),
}  # fmt: skip


def micro_header_text(name: str, kernels: Sequence[ExportedMicroKernel]) -> str:
    """Return the header of the library ``name``."""
    about = (
        f"depthwise micro-kernels compiled by convsmith {public('__version__')}, for C and C++, with the arguments of "
        "XNNPACK's. They call no library and check nothing."
    )
    used = {QUANTISATION if k.kernel.quantised else BOUNDS for k in kernels}
    parts = [line for structure in _STRUCTURES if structure in used for line in _structure(structure)]
    for kernel in kernels:
        parts += [*_kernel_lines(kernel), ""]
    return framed(name, about, INTEGERS, parts)


def pointers_text(m: MicroKernel, kernel_size: str) -> str:
    """Return an expression of C for the pointers of each output, by an expression for the taps."""
    if not m.multipass:
        return str(m.taps[0])
    first, middle, last = m.taps
    ends = first + last
    return f"({ends} + ({kernel_size} > {ends} ? ({kernel_size} - {ends} + {middle - 1}) / {middle} * {middle} : 0))"


def _structure(name: str) -> Iterator[str]:
    about, members = _STRUCTURES[name]
    yield from (f"#ifndef {macro(name)}", f"#define {macro(name)}", *comment(about), f"struct {name} {{")
    yield from (f"    {member};" for member in members)
    yield from ("};", "#endif", "")


def _kernel_lines(kernel: ExportedMicroKernel) -> Iterator[str]:
    m, tile = kernel.kernel, kernel.kernel.channel_tile
    per_tap, beside = kernel.channel_bytes
    name = macro(kernel.name)
    sizes = "several passes" if m.multipass else f"up to {m.taps[0]} taps"
    yield from comment(
        f"{m.name}: a row of output pixels of a depthwise convolution of {sizes}, in tiles of {tile} channels.",
        machine_text(kernel), *cpu_lines(kernel.machine),
    )
    yield from comment("Pointers of each output pixel; those beyond the taps are `zero`.")
    yield f"#define {name}_POINTERS(kernel_size) {pointers_text(m, '(kernel_size)')}"
    yield from comment(
        "Bytes of packed weights: for each tile of channels its biases, the weights of each tap"
        + (", and its scales." if m.quantised else ".")
    )
    yield f"#define {name}_WEIGHTS_BYTES(channels, kernel_size) \\"
    yield (
        f"    (((channels) + {tile - 1}) / {tile} * {tile} * ({beside} + {name}_POINTERS(kernel_size) * {per_tap}))"
    )
    yield from _function_lines(kernel.pack, "Packs weights once, for any number of calls.")
    yield from _function_lines(kernel.main, "Computes a row of output pixels.")


def _function_lines(function: MicroFunction, about: str) -> Iterator[str]:
    yield from comment(about, *(f"{p.name}: {p.about}." for p in function.parameters))
    yield prototype(f"void {function.symbol}", [p.declared for p in function.parameters])
