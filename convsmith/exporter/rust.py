"""The declarations of an exported library for Rust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.exporter.build import BuiltKernel
from convsmith.exporter.header import macro, tensor_text
from convsmith.exporter.interface import WORKSPACE, Interface, Parameter

__all__ = ["CALLBACKS", "THREADS", "UNUSED", "check_functions", "declared", "rust_text"]

_TYPES = {
    "f32": "f32", "f64": "f64", "f16": "u16", "bf16": "u16", "f8_e4m3": "u8", "f8_e5m2": "u8", "s32": "i32",
    "s16": "i16", "s8": "i8", "u8": "u8", "s4": "i8", "u4": "u8",
}  # fmt: skip
_VOID, _INT, _CHAR = "::core::ffi::c_void", "::core::ffi::c_int", "::core::ffi::c_char"
UNUSED = "#[allow(dead_code)]"
_TASK = f'pub type ConvsmithTask = extern "C" fn(data: *mut {_VOID}, part: usize, parts: usize);'
_PARALLEL = (
    "pub type ConvsmithParallel = Option<\n"
    f'    extern "C" fn(pool: *mut {_VOID}, task: ConvsmithTask, data: *mut {_VOID}, parts: usize),\n'
    ">;"
)


THREADS = ("parallel: ConvsmithParallel", f"pool: *mut {_VOID}")
"""The parameters of a function that runs parts of kernels."""
CALLBACKS = (UNUSED, _TASK, UNUSED, _PARALLEL, "")
"""The lines that declare the function by which a program runs parts of kernels."""


def rust_text(name: str, kernels: Sequence[BuiltKernel]) -> str:
    """Return the declarations of the library ``name``, which a program that links it takes by ``mod`` or ``include!``.

    The text imports no name and has no inner attribute: ``include!`` refuses inner attributes, and a name that the
    program also imports would be defined twice.
    """
    return "\n".join(_lines(name, kernels))


def _lines(name: str, kernels: Sequence[BuiltKernel]) -> Iterator[str]:
    yield f"// {name}: kernels compiled by convsmith, for Rust 1.82 or newer; {name}.h describes them."
    yield ""
    if any(k.interface.threads > 1 for k in kernels):
        yield from CALLBACKS
    for kernel in kernels:
        for p in kernel.interface.parameters:
            yield f"/// {tensor_text(p)}"
            yield UNUSED
            yield f"pub const {macro(kernel.name)}_{macro(p.name)}_BYTES: usize = {p.nbytes};"
        for packing in kernel.interface.packings:
            if packing.workspace:
                yield UNUSED
                yield f"pub const {macro(packing.symbol)}_{macro(WORKSPACE)}_BYTES: usize = {packing.workspace};"
    yield ""
    yield "#[allow(dead_code, non_snake_case)]"
    yield 'unsafe extern "C" {'
    for kernel in kernels:
        yield from _functions(kernel)
    yield "}"
    yield ""


def _functions(kernel: BuiltKernel) -> Iterator[str]:
    interface = kernel.interface
    for packing in interface.packings:
        yield f"    pub fn {packing.symbol}({', '.join(map(declared, packing.parameters))});"
    threads = THREADS if interface.threads > 1 else ()
    yield f"    pub fn {interface.name}({', '.join([*map(declared, interface.parameters), *threads])});"
    yield from check_functions(interface)


def check_functions(interface: Interface) -> Iterator[str]:
    """Yield the lines that declare the functions that check the memory of a call, and describe a code."""
    pairs = ", ".join(f"{p.name}: *const {_VOID}, {p.name}_bytes: usize" for p in interface.parameters)
    yield f"    pub fn {interface.check}({pairs}) -> {_INT};"
    yield f"    pub fn {interface.message}(code: {_INT}) -> *const {_CHAR};"


def declared(p: Parameter) -> str:
    """Return a parameter with its type."""
    return f"{p.name}: *{'mut' if p.is_written else 'const'} {_TYPES.get(p.type, _VOID)}"
