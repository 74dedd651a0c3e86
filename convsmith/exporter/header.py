"""The header of an exported library, for C and C++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from convsmith.exporter.build import BuiltKernel
from convsmith.exporter.interface import WORKSPACE, Parameter
from convsmith.exporter.kernel import ExportedKernel, LibraryKernel
from convsmith.frontend.public import public
from convsmith.ir.types import dtype
from convsmith.layout.layout import Layout
from convsmith.machine.base import Machine
from convsmith.runtime.arrays import within_text

__all__ = [
    "C_TYPES", "INTEGERS", "PARALLEL", "PERMISSIONS", "about_lines", "comment", "cpu_lines", "framed", "header_text",
    "machine_text", "macro", "prototype", "size_macros", "tensor_text",
]  # fmt: skip

C_TYPES = {
    "f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "s32": "int32_t", "s16": "int16_t",
    "s8": "int8_t", "u8": "uint8_t", "s4": "int8_t", "u4": "uint8_t", "f8_e4m3": "uint8_t", "f8_e5m2": "uint8_t",
    "": "void",
}  # fmt: skip
"""Types of C by data type. Types that C lacks are integers of their size; packed operands and workspaces are void."""

INTEGERS = ("#include <stddef.h>", "#include <stdint.h>")
"""Lines of a header for sizes and for integers of fixed sizes."""
_WIDTH = 116
_UNBROKEN = "\0"
"""Stands for a space where no line may end."""

PARALLEL = """\
#ifndef CONVSMITH_PARALLEL
#define CONVSMITH_PARALLEL
/* Part `part` of the `parts` parts of a kernel's work on `data`. */
typedef void (*convsmith_task)(void *data, size_t part, size_t parts);
/* A function of the program: calls task(data, part, parts) for each part from 0 to parts - 1, in any order and on any
 * threads, and returns when all have ended. `pool` is the program's own. */
typedef void (*convsmith_parallel)(void *pool, convsmith_task task, void *data, size_t parts);
#endif
"""

PERMISSIONS = {
    "amx": "Before the first call, Linux must let the process use tiles: syscall(SYS_arch_prctl, 0x1023, 18) == 0.",
}  # fmt: skip


def header_text(name: str, kernels: Sequence[BuiltKernel]) -> str:
    """Return the header of the library ``name``."""
    about = (
        f"kernels compiled by convsmith {public('__version__')}, for C and C++. They call no library and check "
        "nothing; each NAME_check compares the memory of a call with what NAME needs."
    )
    parts = [PARALLEL] if any(k.interface.threads > 1 for k in kernels) else []
    for kernel in kernels:
        parts += [*_kernel_lines(kernel), ""]
    return framed(name, about, INTEGERS, parts)


def framed(name: str, about: str, includes: Sequence[str], parts: Sequence[str]) -> str:
    """Return the header of the library ``name``: the lines ``parts`` between the guard and the linkage of C."""
    guard = f"{macro(name)}_H"
    head = [
        *comment(f"{name}: {about}"), "", f"#ifndef {guard}", f"#define {guard}", "", *includes, "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
    ]  # fmt: skip
    return "\n".join((*head, *parts, "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""))


def macro(name: str) -> str:
    """Return the prefix of the macros of ``name``."""
    return name.upper()


def tensor_text(p: Parameter) -> str:
    """Return a line with shape, layout, strides and bytes of the array behind a parameter."""
    if p.tensor is None:
        return f"{p.nbytes} bytes, aligned to {p.alignment}"
    t = p.tensor
    dims = ", ".join(f"{name} {size}" for name, size in zip(t.dims, t.shape)) or "1 element"
    layout = Layout.parse(t.layout, t.shape)
    strides = f", strides {', '.join(map(str, layout.strides))} elements" if layout.is_plain else ""
    default = f"; null is {', '.join(f'{x:g}' for x in t.default[:4])}" if t.default is not None else ""
    more = ", ..." if t.default is not None and len(t.default) > 4 else ""
    return f"{t.dtype} [{dims}], layout {t.layout}{strides}, {p.nbytes} bytes{default}{more}"


def _declared(p: Parameter) -> str:
    return f"{'' if p.is_written else 'const '}{C_TYPES[p.type]} *{p.name}"


def comment(*texts: str) -> list[str]:
    """Return the lines of a comment of several paragraphs."""
    safe = (text.replace("*/", "* /") for text in texts)
    lines = [line for text in safe for line in wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)]
    marked = [f"{'/*' if n == 0 else ' *'} {line}" for n, line in enumerate(lines)]
    return [f"{marked[0]} */"] if len(marked) == 1 else [*marked, " */"]


def prototype(head: str, parameters: Sequence[str]) -> str:
    """Return a prototype in lines of bounded length, which end between parameters."""
    start, *whole = (text.replace(" ", _UNBROKEN) for text in (head, *parameters))
    text = f"{start}({', '.join(whole)});"
    lines = wrap(text, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_UNBROKEN, " ")


def machine_text(kernel: LibraryKernel) -> str:
    """Return the sentence about the machine and the config of a kernel."""
    return f"For {kernel.machine.name} ({kernel.machine.triple}), with {kernel.config}."


def cpu_lines(machine: Machine) -> list[str]:
    """Return the sentence about the features of a CPU, if any are needed."""
    return [f"The CPU must have {', '.join(machine.needs)}."] if machine.needs else []


def about_lines(kernel: ExportedKernel) -> Iterator[str]:
    """Yield sentences about a kernel, and what its arrays must hold."""
    interface, m = kernel.interface, kernel.machine
    yield f"{kernel.problem}."
    yield machine_text(kernel)
    if len(kernel.nodes) > 1:
        yield f"Of the nodes {', '.join(kernel.nodes)}."
    if interface.built_in:
        yield f"Built in: {', '.join(sorted(interface.built_in))}."
    yield from (PERMISSIONS[name] for name in m.permissions)
    if kernel.needs:
        yield f"Calls {', '.join(kernel.needs)} of the compiler's library."
    for name, limit in interface.artifact.limits.items():
        if name not in interface.built_in:
            yield f"{name} must hold {within_text(limit)}, or the result is wrong."
    for entry in interface.artifact.steps.values():
        for a in entry.arguments:
            if a.role == "zero" and a.recipe:
                low, high = dtype(a.dtype).limits
                yield f"{a.recipe} must hold numbers from {low} to {high}."


def size_macros(kernel: ExportedKernel) -> Iterator[str]:
    """Yield the macros of the bytes of a kernel's arrays."""
    interface = kernel.interface
    for p in interface.parameters:
        yield f"#define {macro(interface.name)}_{macro(p.name)}_BYTES {p.nbytes}"
    for packing in interface.packings:
        if packing.workspace:
            yield f"#define {macro(packing.symbol)}_{macro(WORKSPACE)}_BYTES {packing.workspace}"


def _kernel_lines(kernel: BuiltKernel) -> Iterator[str]:
    interface = kernel.interface
    of_kernel = [f"{p.name}: {tensor_text(p)}." for p in interface.parameters]
    yield from comment(*about_lines(kernel), *cpu_lines(kernel.machine))
    yield from size_macros(kernel)
    yield ""
    for packing in interface.packings:
        read = [f"{p.name}: {tensor_text(p)}." for p in packing.parameters if p.tensor is not None]
        yield from comment(f"Packs {packing.operand} once, for any number of calls.", *read)
        yield prototype(f"void {packing.symbol}", list(map(_declared, packing.parameters)))
    yield from comment(
        "The kernel. It checks nothing.", *of_kernel,
        *([f"It runs in at most {interface.threads} parts through `parallel`; where that is null, the calling thread "
           "runs all."] if interface.threads > 1 else []),
        *(["Each call at a time needs a workspace of its own; its content does not matter."]
          if interface.workspace else []),
    )  # fmt: skip
    threads = ["convsmith_parallel parallel", "void *pool"] if interface.threads > 1 else []
    yield prototype(f"void {interface.name}", [*map(_declared, interface.parameters), *threads])
    yield from comment(
        "Returns 0 where every array of a call is large enough and aligned, and no array that is written overlaps "
        "another; else a code."
    )
    pairs = [text for p in interface.parameters for text in (f"const void *{p.name}", f"size_t {p.name}_bytes")]
    yield prototype(f"int {interface.check}", pairs)
    yield from comment("Returns what a code says, as text.")
    yield f"const char *{interface.message}(int code);"
