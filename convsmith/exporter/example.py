"""The example program of an exported library: it fills arrays, packs, checks, and times calls of every kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.exporter.build import BuiltKernel
from convsmith.exporter.header import C_TYPES, macro
from convsmith.exporter.interface import Parameter
from convsmith.runtime.arrays import ALIGNMENT

__all__ = ["ALLOCATION", "SECONDS", "example_text"]

_ONES = {"f16": "0x3c00", "bf16": "0x3f80", "f8_e4m3": "0x38", "f8_e5m2": "0x3c"}
"""The bits of 1 in types that C lacks."""

SECONDS = """\
static double seconds(void)
{
#ifdef _WIN32
    return (double)clock() / CLOCKS_PER_SEC;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}"""
"""The function of C by which an example reads a clock; that of the C standard counts elapsed time on Windows."""

ALLOCATION = f"""\
#ifdef _WIN32
#include <malloc.h>
#define aligned_alloc(alignment, bytes) _aligned_malloc(bytes, alignment)
#define free _aligned_free
#endif
static void *memory(size_t bytes)
{{
    void *p = aligned_alloc({ALIGNMENT}, (bytes + {ALIGNMENT} - 1) / {ALIGNMENT} * {ALIGNMENT});
    if (p == NULL)
        exit(1);
    return p;
}}"""
"""The function of C by which an example allocates aligned memory, and the names by which Windows has those of C."""

_HEAD = """\
/* {name}: each kernel on arrays of small numbers. Build it with cmake, or:
 *   {command}
 * It needs a C library; the kernels do not. */
#define _GNU_SOURCE
#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
{includes}
{memory}

{seconds}
"""
_PARALLEL = """
/* A program with threads would run the parts on them. */
static void one_after_the_other(void *pool, convsmith_task task, void *data, size_t parts)
{
    (void)pool;
    for (size_t part = 0; part < parts; part++)
        task(data, part, parts);
}
"""
_AMX = """
static int tiles_are_granted(void)
{
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
"""
_INCLUDES = "#include <sys/syscall.h>\n#include <unistd.h>\n"


def example_text(name: str, command: str, kernels: Sequence[BuiltKernel]) -> str:
    """Return the program for the library ``name``, which ``command`` compiles."""
    has_tiles = any("amx" in k.machine.permissions for k in kernels)
    includes = _INCLUDES if has_tiles else ""
    text = _HEAD.format(name=name, command=command, includes=includes, memory=ALLOCATION, seconds=SECONDS)
    text += _PARALLEL if any(k.interface.threads > 1 for k in kernels) else ""
    text += _AMX if has_tiles else ""
    for kernel in kernels:
        text += "\n" + "\n".join(_run(kernel)) + "\n"
    body = [f"    {kernel.name}_run();" for kernel in kernels]
    if has_tiles:
        body[:0] = ["    if (!tiles_are_granted())", "        return 1;"]
    return text + "\n" + "\n".join(("int main(void)", "{", *body, "    return 0;", "}", ""))


def _run(kernel: BuiltKernel) -> Iterator[str]:
    """Yield the lines of the function that runs a kernel."""
    interface = kernel.interface
    memory = {p.name: p for packing in interface.packings for p in packing.parameters if p.of or p.tensor}
    memory |= {p.name: p for p in interface.parameters}
    yield f"static void {kernel.name}_run(void)"
    yield "{"
    for p in memory.values():
        if not p.is_optional:
            yield f"    {C_TYPES[p.type]} *{p.name} = memory({p.nbytes});"
            yield from _filled(p)
    for packing in interface.packings:
        arguments = [_given(p) for p in packing.parameters if p.tensor or p.of]
        if packing.workspace:
            yield f"    void *{packing.symbol}_workspace = memory({packing.workspace});"
            arguments.append(f"{packing.symbol}_workspace")
        yield f"    {packing.symbol}({', '.join(arguments)});"
    pairs = ", ".join(
        f"{_given(p)}, {0 if p.is_optional else f'{macro(kernel.name)}_{macro(p.name)}_BYTES'}"
        for p in interface.parameters
    )
    yield f"    int code = {interface.check}({pairs});"
    yield "    if (code != 0) {"
    yield f"        puts({interface.message}(code));"
    yield "        exit(1);"
    yield "    }"
    threads = ["one_after_the_other", "NULL"] if interface.threads > 1 else []
    call = f"{kernel.name}({', '.join([*map(_given, interface.parameters), *threads])});"
    results = [p for p in interface.parameters if p.tensor is not None and p.is_written]
    yield f"    {call}"
    for p in results:
        sum_ = f"sum_of_{p.name}"
        yield f"    double {sum_} = 0;"
        yield f"    for (size_t i = 0; i < {p.elements}; i++)"
        yield f"        {sum_} += {p.name}[i];"
    yield "    int calls = 0;"
    yield "    double start = seconds(), end;"
    yield "    do {"
    yield f"        {call}"
    yield "        calls++;"
    yield "        end = seconds();"
    yield "    } while (calls < 1000 && end - start < 0.1);"
    form = ", ".join(f"sum of {p.name} %.17g" for p in results)
    sums = "".join(f", sum_of_{p.name}" for p in results)
    yield f'    printf("{kernel.name}: {form}, %.1f us a call\\n"{sums}, 1e6 * (end - start) / calls);'
    for p in memory.values():
        if not p.is_optional:
            yield f"    free({p.name});"
    for packing in interface.packings:
        if packing.workspace:
            yield f"    free({packing.symbol}_workspace);"
    yield "}"


def _given(p: Parameter) -> str:
    return "NULL" if p.is_optional else p.name


def _filled(p: Parameter) -> Iterator[str]:
    """Yield the lines that fill an array with numbers from 0 to 4, by its order in memory."""
    if p.tensor is None:
        return
    value = f"i * 7 % 5 == 0 ? {_ONES[p.type]} : 0" if p.type in _ONES else "i * 7 % 5"
    yield f"    for (size_t i = 0; i < {p.elements}; i++)"
    yield f"        {p.name}[i] = ({C_TYPES[p.type]})({value});"
