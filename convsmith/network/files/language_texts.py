"""Exported networks for C++ and Rust: examples that check themselves, and the declarations for Rust."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from convsmith.exporter.c_numbers import C_NUMBERS, function_texts
from convsmith.exporter.header import C_TYPES, macro, tensor_text
from convsmith.exporter.interface import Parameter
from convsmith.exporter.rust import CALLBACKS, THREADS, UNUSED, check_functions, declared
from convsmith.network.files.c_texts import (
    PERIOD,
    bound_of,
    compared_places,
    decoded_text,
    largest,
    returns_bits,
    sample_bits,
    sample_of_bits,
)
from convsmith.network.program import NetworkProgram
from convsmith.network.rewrites.small_floats import SMALL_FLOATS
from convsmith.runtime.arrays import ALIGNMENT, Array, numpy_dtype

if TYPE_CHECKING:
    from convsmith.network.files.export import NetworkInterface

__all__ = ["cpp_example", "rust_declarations", "rust_example"]


def _outputs(
    program: NetworkProgram, own: NetworkInterface, samples: Mapping[str, Array]
) -> Iterator[tuple[str, str, Array]]:
    """Yield the parameter of each output with its type and its expected elements."""
    for p, x in zip(own.interface.parameters[len(program.inputs) :], program.outputs):
        yield p.name, x.type, samples[x.name]


def _numbers(x: Array) -> tuple[str, str]:
    """Return the places and the values of the elements that an example compares, as lists."""
    at, values = compared_places(x)
    return ", ".join(map(str, at)), ", ".join(repr(float(v)) for v in values)


def _is_input(p: Parameter) -> bool:
    return p.tensor is not None and not p.is_written


def _tiles(program: NetworkProgram) -> bool:
    return "amx" in {x for k in program.kernels for x in k.artifact.permissions}


# -- C++ --------------------------------------------------------------------------------------------------------------

_CPP = """\
// {name} from C++: one run on small numbers, compared with results of the same network in Python. Build it with:
//   {command}
#include "{name}.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
{includes}
template <class T> using Memory = std::unique_ptr<T[], decltype(&std::free)>;

template <class T> static Memory<T> memory(std::size_t bytes)
{{
    void *found = std::aligned_alloc({alignment}, (bytes + {alignment} - 1) / {alignment} * {alignment});
    if (found == nullptr)
        std::exit(1);
    return Memory<T>(static_cast<T *>(found), &std::free);
}}

{decoded}template <class T, std::size_t N, class F>
static bool is_right(
    const char *name, const T *found, const std::size_t (&at)[N], const double (&values)[N], double most, F number)
{{
    for (std::size_t i = 0; i < N; i++) {{
        const double own = number(found[at[i]]);
        if (!(std::fabs(own - values[i]) <= most)) {{
            std::printf("%s[%zu] is %.9g, not %.9g\\n", name, at[i], own, values[i]);
            return false;
        }}
    }}
    return true;
}}

int main()
{{
"""
_CPP_TILES = "    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0)\n        return 1;"
_CPP_INCLUDES = "#include <sys/syscall.h>\n#include <unistd.h>\n"


def cpp_example(program: NetworkProgram, own: NetworkInterface, command: str, samples: Mapping[str, Array]) -> str:
    """Return the example in C++; it fails if an element of a result differs from `samples`."""
    includes = _CPP_INCLUDES if _tiles(program) else ""
    decoded = ""
    if returns_bits(program):
        includes, decoded = includes + "#include <cstring>\n", "\n".join((*function_texts(["decoded"]), ""))
    head = _CPP.format(name=own.name, command=command, alignment=ALIGNMENT, includes=includes, decoded=decoded)
    return head + "\n".join(_cpp_main(program, own, samples)) + "\n"


def _cpp_main(program: NetworkProgram, own: NetworkInterface, samples: Mapping[str, Array]) -> Iterator[str]:
    if _tiles(program):
        yield _CPP_TILES
    for p in own.interface.parameters:
        kind = C_TYPES[p.type] if p.tensor is not None else "unsigned char"
        yield f"    auto {p.name} = memory<{kind}>({macro(own.name)}_{macro(p.name)}_BYTES);"
        if _is_input(p):
            value = "(int(i * 7 % 5) - 2) * 0.25" if numpy_dtype(p.type).kind == "f" else "i * 7 % 5"
            if p.type in SMALL_FLOATS:
                declaration, value = sample_of_bits(p)
                yield declaration
            yield f"    for (std::size_t i = 0; i < {p.elements}; i++)"
            yield f"        {p.name}[i] = static_cast<{kind}>({value});"
    given = [*(f"{p.name}.get()" for p in own.interface.parameters), *(["nullptr"] * 2 if own.is_shared else [])]
    yield f"    const int code = {own.name}({', '.join(given)});"
    yield from ("    if (code != 0) {", f"        std::puts({own.interface.message}(code));")
    yield from ("        return 1;", "    }")
    for name, type_, x in _outputs(program, own, samples):
        at, values = _numbers(x)
        yield f"    static const std::size_t places_of_{name}[] = {{{at}}};"
        yield f"    static const double values_of_{name}[] = {{{values}}};"
        limit, number = repr(bound_of(program) * largest(x)), "static_cast<double>(x)"
        if type_ in SMALL_FLOATS:
            number = f"static_cast<double>({decoded_text(type_, 'x')})"
        yield f"    const auto number_of_{name} = []({C_TYPES[type_]} x) {{ return {number}; }};"
        checked = f"{name}.get(), places_of_{name}, values_of_{name}, {limit}, number_of_{name}"
        yield f'    if (!is_right("{name}", {checked}))'
        yield "        return 1;"
    yield from (f'    std::puts("{own.name}: right");', "    return 0;", "}")


# -- Rust -------------------------------------------------------------------------------------------------------------


def rust_declarations(own: NetworkInterface) -> str:
    """Return the declarations of the library, which a program that links it takes by ``mod`` or ``include!``."""
    lines = [f"// {own.name}: a network compiled by convsmith, for Rust 1.82 or newer; {own.name}.h describes it.", ""]
    lines += CALLBACKS if own.is_shared else []
    for p in own.interface.parameters:
        lines += [f"/// {tensor_text(p)}", UNUSED]
        lines.append(f"pub const {macro(own.name)}_{macro(p.name)}_BYTES: usize = {p.nbytes};")
    given = ", ".join((*map(declared, own.interface.parameters), *(THREADS if own.is_shared else ())))
    lines += ["", "#[allow(dead_code, non_snake_case)]", 'unsafe extern "C" {']
    lines += [f"    pub fn {own.name}({given}) -> ::core::ffi::c_int;", *check_functions(own.interface), "}", ""]
    return "\n".join(lines)


_RUST = """\
// {name} from Rust: one run on small numbers, compared with results of the same network in Python. Build it with:
//   {command}
include!("{name}.rs");

use std::alloc::{{alloc_zeroed, Layout}};

/// Memory that lives as long as the program.
fn memory<T>(bytes: usize) -> *mut T {{
    let layout = Layout::from_size_align(bytes.max(1), {alignment}).expect("a legal size");
    let found = unsafe {{ alloc_zeroed(layout) }} as *mut T;
    assert!(!found.is_null(), "out of memory");
    found
}}

{decoded}fn check<T: Copy>(
    name: &str, found: *const T, at: &[usize], values: &[f64], most: f64, number: fn(T) -> f64,
) {{
    for (place, value) in at.iter().zip(values) {{
        let own = number(unsafe {{ *found.add(*place) }});
        assert!((own - value).abs() <= most, "{{name}}[{{place}}] is {{own}}, not {{value}}");
    }}
}}
{tiles}
fn main() {{
"""
_RUST_DECODED = """\
/// The number that the bits of a 16-bit floating-point number stand for.
fn decoded(bits: u16, fraction: i32, exponent: i32) -> f64 {
    let power = i32::from(bits >> fraction) & ((1 << exponent) - 1);
    let part = f64::from(bits & ((1 << fraction) - 1)) / f64::from(1 << fraction);
    let bias = (1 << (exponent - 1)) - 1;
    let size = if power == 0 { part * 2f64.powi(1 - bias) } else { (1.0 + part) * 2f64.powi(power - bias) };
    if bits >> 15 == 0 { size } else { -size }
}

"""
_RUST_TILES = """
unsafe extern "C" {
    fn syscall(number: ::core::ffi::c_long, ...) -> ::core::ffi::c_long;
}
"""


def rust_example(program: NetworkProgram, own: NetworkInterface, command: str, samples: Mapping[str, Array]) -> str:
    """Return the example in Rust; it fails if an element of a result differs from `samples`."""
    tiles, decoded = _RUST_TILES if _tiles(program) else "", _RUST_DECODED if returns_bits(program) else ""
    head = _RUST.format(name=own.name, command=command, alignment=ALIGNMENT, tiles=tiles, decoded=decoded)
    return head + "\n".join(_rust_main(program, own, samples)) + "\n"


def _rust_main(program: NetworkProgram, own: NetworkInterface, samples: Mapping[str, Array]) -> Iterator[str]:
    if _tiles(program):
        yield '    assert_eq!(unsafe { syscall(158, 0x1023, 18) }, 0, "the system grants no state of tiles");'
    for p in own.interface.parameters:
        kind = declared(p).rpartition(" ")[2]
        yield f"    let {p.name}: *mut {kind} = memory({macro(own.name)}_{macro(p.name)}_BYTES);"
        if _is_input(p):
            whole = f"(i * 7 % 5) as {kind}"
            value = f"(({whole}) - 2.0) * 0.25" if numpy_dtype(p.type).kind == "f" else whole
            value = f"{sample_bits(p.type)}[i % {PERIOD}]" if p.type in SMALL_FLOATS else value
            yield f"    for i in 0..{p.elements}usize {{"
            yield f"        unsafe {{ *{p.name}.add(i) = {value} }};"
            yield "    }"
    given = [*(p.name for p in own.interface.parameters), *(["None", "std::ptr::null_mut()"] if own.is_shared else [])]
    yield f"    let code = unsafe {{ {own.name}({', '.join(given)}) }};"
    yield '    assert_eq!(code, 0, "{:?}", unsafe { std::ffi::CStr::from_ptr(' + own.interface.message + "(code)) });"
    for name, type_, x in _outputs(program, own, samples):
        at, values = _numbers(x)
        fraction, exponent = C_NUMBERS[type_][:2] if type_ in SMALL_FLOATS else (0, 0)
        number = f"|x| decoded(x, {fraction}, {exponent})" if type_ in SMALL_FLOATS else "|x| x.into()"
        yield f'    check("{name}", {name}, &[{at}], &[{values}], {bound_of(program) * largest(x)!r}, {number});'
    yield from (f'    println!("{own.name}: right");', "}")
