"""The example program of a library for a device: it runs every kernel on small integers, and compares the results with
those of naive loops in C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.exporter.c_numbers import C_NUMBERS, function_texts, numbers_in
from convsmith.exporter.device_build import DeviceKernel
from convsmith.exporter.driver import Driver
from convsmith.exporter.drivers import driver_of
from convsmith.exporter.example import SECONDS
from convsmith.exporter.header import C_TYPES
from convsmith.exporter.interface import Parameter
from convsmith.ir.types import DTYPES

__all__ = ["device_example_text"]

_HEAD = """\
/* {name}: each kernel on arrays of small integers, against naive loops. Build it with:
 *   {command}
 * and run it beside the files of the code. */
#define _GNU_SOURCE
#include "{name}.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *memory(size_t bytes)
{{
    void *p = calloc(bytes, 1);
    if (p == NULL)
        exit(1);
    return p;
}}

{seconds}

/* The contents of a file, with a zero behind them. */
static void *contents(const char *name, size_t *bytes)
{{
    FILE *file = fopen(name, "rb");
    long size = -1;
    char *p;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    if (size < 0) {{
        printf("%s: cannot be read\\n", name);
        exit(1);
    }}
    rewind(file);
    p = memory((size_t)size + 1);
    *bytes = fread(p, 1, (size_t)size, file);
    fclose(file);
    return p;
}}

/* Small integers without a pattern, from `least` on. */
static int small(size_t i, int least)
{{
    return (int)((uint32_t)i * 2654435761u >> 16) % 5 + least;
}}
"""
_CHECK = """
static const char *text_of({status} status)
{{
{body}
}}

static void check({status} code)
{{
    if (code != {success}) {{
        printf("%s\\n", text_of(code));
        exit(1);
    }}
}}

static void open_device(void)
{{
{opened}
}}
"""
_CLOSE = {"f32": 1e-4, "f64": 1e-4, "f16": 4e-3, "bf16": 4e-2, "f8_e4m3": 0.25, "f8_e5m2": 0.5}
"""Relative differences that are legal where results are rounded several times, by type; integers may differ by 1."""


def device_example_text(name: str, kernels: Sequence[DeviceKernel]) -> str:
    """Return the program for the library ``name``."""
    driver = driver_of(kernels[0].machine)
    declared, opened = driver.opened()
    command = f"cc -O2 example.c {driver.link} -lm -o example"
    numbers = [x for k in kernels for x in (*k.nests.calls, *_numbers(k))]
    parts = [
        _HEAD.format(name=name, command=command, seconds=SECONDS),
        *(f"\n{text}" for text in function_texts(numbers)),
        "\n" + "\n".join(declared) + "\n",
        _CHECK.format(
            status=driver.status, success=driver.success, body=_indented(driver.name_of_error()),
            opened=_indented(opened),
        ),
    ]  # fmt: skip
    for kernel in kernels:
        parts += ["\n" + "\n".join(kernel.nests.lines) + "\n", "\n" + "\n".join(_run(kernel, driver)) + "\n"]
    runs = [f"    wrong |= {kernel.name}_run();" for kernel in kernels]
    body = ("int main(void)", "{", "    int wrong = 0;", "    open_device();", *runs, "    return wrong;", "}", "")
    return "".join((*parts, "\n", "\n".join(body)))


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _numbers(kernel: DeviceKernel) -> Iterator[str]:
    """Yield the functions that convert the elements of a kernel's tensors."""
    for p in _tensors(kernel):
        if p.type in C_NUMBERS:
            yield from (*numbers_in(f"to_{p.type}"), *numbers_in(f"of_{p.type}"))


def _tensors(kernel: DeviceKernel) -> list[Parameter]:
    """Return the parameters of tensors, each once: those of packing functions first."""
    every = [p for made, _ in kernel.functions for p in made.parameters]
    return [*{p.name: p for p in every if p.tensor is not None}.values()]


def _run(kernel: DeviceKernel, driver: Driver) -> Iterator[str]:
    """Yield the lines of the function that runs a kernel, and returns whether a result is wrong."""
    interface, tensors = kernel.interface, _tensors(kernel)
    yield f"static int {kernel.name}_run(void)"
    yield "{"
    yield f"    {kernel.name}_module m;"
    if kernel.has_maps:
        yield f"    {kernel.name}_maps made;"
    yield "    size_t bytes;"
    yield from _loaded(kernel, driver)
    for p in tensors:
        yield f"    {C_TYPES[p.type]} *host_{p.name} = memory({p.nbytes});"
        yield from _filled(p)
    for p in tensors:
        if p.is_written:
            yield f"    {C_TYPES[p.type]} *true_{p.name} = memory({p.nbytes});"
            yield f"    memcpy(true_{p.name}, host_{p.name}, {p.nbytes});"
    given = [_parameter(tensors, name) for name in kernel.nests.parameters]
    hosts = ", ".join(f"true_{p.name}" if p.is_written else f"host_{p.name}" for p in given)
    yield f"    {kernel.nests.symbol}({hosts});"
    own = {_array(p, made.operand): p for made in interface.packings for p in made.parameters if not p.is_optional}
    own |= {_array(p): p for p in interface.parameters if not p.is_optional}
    for name, p in own.items():
        yield f"    {driver.reserve(name, str(p.nbytes))}"
        if p.tensor is not None:
            yield f"    check({driver.write(name, f'host_{p.name}', str(p.nbytes))});"
    for packing in interface.packings:
        arguments = ", ".join(_given(p, driver, packing.operand) for p in packing.parameters)
        yield f"    check({packing.symbol}(&m, {arguments}, {driver.queue_name}));"
    maps = []
    if kernel.has_maps:
        arguments = ", ".join(p.name for p in kernel.mapped)
        yield f"    check({kernel.make_maps}(&made, {arguments}));"
        maps = ["&made"]
    arguments = ", ".join(["&m", *maps, *(_given(p, driver) for p in interface.parameters), driver.queue_name])
    call = f"check({kernel.name}({arguments}));"
    yield f"    {call}"
    yield f"    check({driver.wait});"
    yield "    int wrong = 0;"
    for p in tensors:
        if p.is_written:
            yield f"    check({driver.read(p.name, f'host_{p.name}', str(p.nbytes))});"
            yield from _compared(kernel, p)
    yield "    double took;"
    yield "    int calls = 1;"
    yield "    for (;; calls *= 2) {"
    yield "        double start = seconds();"
    yield "        for (int n = 0; n < calls; n++)"
    yield f"            {call}"
    yield f"        check({driver.wait});"
    yield "        took = seconds() - start;"
    yield "        if (took > 0.05 || calls >= 1024)"
    yield "            break;"
    yield "    }"
    yield f'    printf("{kernel.name}: %s, %.1f us a call\\n", wrong ? "wrong" : "right", 1e6 * took / calls);'
    for name in own:
        yield f"    check({driver.free(name)});"
    yield f"    check({kernel.unload}(&m));"
    for p in tensors:
        yield f"    free(host_{p.name});"
        if p.is_written:
            yield f"    free(true_{p.name});"
    yield "    return wrong;"
    yield "}"


def _loaded(kernel: DeviceKernel, driver: Driver) -> Iterator[str]:
    """Yield the lines that load the first file of the code that the driver takes."""
    first, *others = (f"{kernel.name}{end}" for end in kernel.code)
    yield f'    void *code = contents("{first}", &bytes);'
    load = f"{kernel.load}(&m, {driver.load_arguments})"
    yield f"    {driver.status} loaded = {load};"
    for file in others:
        yield f"    if (loaded != {driver.success}) {{"
        yield "        free(code);"
        yield f'        code = contents("{file}", &bytes);'
        yield f"        loaded = {load};"
        yield "    }"
    yield "    check(loaded);"
    yield "    free(code);"


def _parameter(tensors: Sequence[Parameter], name: str) -> Parameter:
    (found,) = (p for p in tensors if p.name == name)
    return found


def _array(p: Parameter, operand: str = "") -> str:
    """Return the name of an array of the device; a workspace belongs to one function."""
    return p.name if p.tensor is not None or p.of or not operand else f"{p.name}_of_{operand}"


def _given(p: Parameter, driver: Driver, operand: str = "") -> str:
    return driver.null if p.is_optional else _array(p, operand)


def _filled(p: Parameter) -> Iterator[str]:
    """Yield the lines that fill an array of the host: with its default, with ones if it holds scales, else with small
    integers.
    """
    assert p.tensor is not None
    tensor, type_ = p.tensor, p.type
    if tensor.default is not None and len(tensor.default) > 1:
        for i, x in enumerate(tensor.default):
            yield f"    host_{p.name}[{i}] = {_element(type_, f'{x!r}')};"
        return
    if tensor.default is not None:
        value = repr(tensor.default[0])
    elif tensor.holds == "scales":
        value = "1"
    else:
        value = f"small(i, {0 if DTYPES[type_].kind == 'uint' else -2})"
    yield f"    for (size_t i = 0; i < {p.elements}; i++)"
    yield f"        host_{p.name}[i] = {_element(type_, value)};"


def _element(type_: str, value: str) -> str:
    return f"to_{type_}({value})" if type_ in C_NUMBERS else f"({C_TYPES[type_]}){value}"


def _compared(kernel: DeviceKernel, p: Parameter) -> Iterator[str]:
    """Yield the lines that print the first element that is wrong."""
    close = "0" if kernel.is_exact else f"{_CLOSE[p.type]} * (1 + fabs(expected))" if p.type in _CLOSE else "1"
    found, expected = (
        f"of_{p.type}({where}_{p.name}[i])" if p.type in C_NUMBERS else f"{where}_{p.name}[i]"
        for where in ("host", "true")
    )  # fmt: skip
    yield f"    for (size_t i = 0; i < {p.elements} && !wrong; i++) {{"
    yield f"        double found = {found}, expected = {expected};"
    yield f"        wrong = !(found == expected || fabs(found - expected) <= {close});"
    yield "        if (wrong)"
    yield f'            printf("{kernel.name}: {p.name}[%zu] is %g, not %g\\n", i, found, expected);'
    yield "    }"
