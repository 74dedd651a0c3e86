"""The texts of an exported network: its header, its manifest, and an example program that checks itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from convsmith.exporter.c_numbers import C_NUMBERS, function_texts
from convsmith.exporter.example import ALLOCATION, SECONDS
from convsmith.exporter.header import (
    C_TYPES,
    INTEGERS,
    PARALLEL,
    PERMISSIONS,
    comment,
    framed,
    macro,
    prototype,
    tensor_text,
)
from convsmith.exporter.interface import Parameter
from convsmith.exporter.manifest import SCHEMA
from convsmith.frontend.public import public
from convsmith.network.program import NetworkProgram
from convsmith.network.reference import tolerance
from convsmith.network.rewrites.small_floats import SMALL_FLOATS
from convsmith.runtime.arrays import Array, numpy_dtype

if TYPE_CHECKING:
    from convsmith.network.files.export import NetworkInterface

__all__ = [
    "PERIOD", "bound_of", "compared_places", "decoded_text", "example_text", "header_text", "largest", "manifest_text",
    "returns_bits", "sample", "sample_bits", "sample_of_bits",
]  # fmt: skip

_SAMPLES = 64
"""Maximum number of elements of an output that the example compares."""
PERIOD = 5
"""Elements after which those of a sample repeat."""


def sample(shape: Sequence[int], type_: str) -> Array:
    """Return the input that the example makes: small multiples of 1/4, or small whole numbers for integers."""
    numbers = np.arange(int(np.prod(shape)), dtype=np.int64) * 7 % PERIOD
    dtype = numpy_dtype(type_)
    whole = (numbers - 2) * 0.25 if dtype.kind == "f" else numbers
    return whole.astype(dtype).reshape(tuple(shape))


def sample_bits(type_: str) -> list[int]:
    """Return the bits of the first elements of a sample, for a type that other languages lack."""
    return [int(x) for x in sample((PERIOD,), type_).view(np.uint16)]


def sample_of_bits(p: Parameter) -> tuple[str, str]:
    """Return, in C and C++, the declaration of the bits of a sample, and the expression of its element i."""
    bits = ", ".join(map(str, sample_bits(p.type)))
    return f"    static const uint16_t bits_of_{p.name}[] = {{{bits}}};", f"bits_of_{p.name}[i % {PERIOD}]"


def decoded_text(type_: str, text: str) -> str:
    """Return, in C and C++, the number whose bits in a type of 16 bits are the expression ``text``."""
    fraction, exponent, ratio = C_NUMBERS[type_][:3]
    return f"decoded({text}, {fraction}, {exponent}, {ratio})"


def returns_bits(program: NetworkProgram) -> bool:
    """Return whether arrays of an output hold the bits of floats that other languages lack."""
    return any(x.type in SMALL_FLOATS for x in program.outputs)


def bound_of(program: NetworkProgram) -> float:
    """Return the largest error of an element that an example accepts, as a part of the largest element."""
    return tolerance(x.type for x in (*program.inputs, *program.outputs))


def header_text(program: NetworkProgram, own: NetworkInterface, levels: Sequence[str] = ()) -> str:
    """Return the header for C and C++; `levels` are those among which a library chooses."""
    name, interface, m = own.name, own.interface, program.target
    needs = [f"The CPU must have {', '.join(program.needs)}."] if program.needs else []
    needs += [PERMISSIONS[x] for x in dict.fromkeys(x for k in program.kernels for x in k.artifact.permissions)]
    shared = ["Kernels run in parts through `parallel`; where that is null, the calling thread runs all."]
    threads = ["convsmith_parallel parallel", "void *pool"] if own.is_shared else []
    pairs = [text for p in interface.parameters for text in (f"const void *{p.name}", f"size_t {p.name}_bytes")]
    of = f"{', '.join(levels)}, of which the first call chooses the first that the CPU has" if levels else m.name
    about = (
        f"the network {program.name}, compiled by convsmith {public('__version__')} for {of} ({m.triple}). It "
        "allocates nothing and calls no library."
    )
    parts = [
        *([PARALLEL] if own.is_shared else []),
        *(f"#define {macro(name)}_{macro(p.name)}_BYTES {p.nbytes}" for p in interface.parameters), "",
        *comment("Runs the network. Returns 0, or the code of a null or misaligned pointer, or of arrays that overlap.",
                 *(f"{p.name}: {tensor_text(p)}." for p in interface.parameters),
                 *(shared if own.is_shared else []),
                 *(["Each call at a time needs a workspace of its own; its content does not matter."]
                   if program.workspace else [])),
        prototype(f"int {name}", [*map(_declared, interface.parameters), *threads]),
        *comment("Returns 0 where every array of a call is large enough and aligned, and no array that is written "
                 "overlaps another; else a code."),
        prototype(f"int {interface.check}", pairs),
        *comment("Returns what a code says, as text."),
        f"const char *{interface.message}(int code);", "",
    ]  # fmt: skip
    return framed(name, " ".join((about, *needs)), INTEGERS, parts)


def _declared(p: Parameter) -> str:
    return f"{'' if p.is_written else 'const '}{C_TYPES[p.type]} *{p.name}"


def manifest_text(
    program: NetworkProgram, own: NetworkInterface, files: Sequence[str], levels: Sequence[str] = ()
) -> str:
    """Return the manifest as JSON."""
    m = program.target
    tensors = [*program.inputs, *program.outputs]
    content = {
        "schema": SCHEMA, "library": own.name, "network": program.name, "convsmith": public("__version__"),
        "files": list(files),
        "target": {
            "level": m.name, "triple": m.triple, "cpu": m.cpu, "features": m.features, "needs": list(program.needs),
        },
        **({"levels": list(levels)} if levels else {}),
        "parameters": [
            {"name": p.name, "c_type": C_TYPES[p.type], "bytes": p.nbytes, "alignment": p.alignment,
             "written": p.is_written, "value": x.name, "shape": list(x.shape)}
            for p, x in zip(own.interface.parameters, tensors)
        ],
        "workspace": program.workspace, "live_bytes": program.bound, "weights": int(program.weights.size),
        "threads": program.threads, "codes": {str(n): text for n, (_, _, text) in enumerate(own.interface.faults, 1)},
        "steps": [{"kernel": step.kernel, "nodes": list(step.names)} for step in program.steps],
        "kernels": [str(kernel.work) for kernel in program.kernels],
    }  # fmt: skip
    return json.dumps(content, indent=2) + "\n"


_HEAD = """\
/* {name}: one run on small numbers, compared with results of the same network in Python. Build it with:
 *   {command}
 * It needs a C library; the network does not. */
#define _GNU_SOURCE
#include "{name}.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
{includes}
{memory}

{seconds}

"""


def example_text(program: NetworkProgram, own: NetworkInterface, command: str, samples: Mapping[str, Array]) -> str:
    """Return the example: it fails if an element of a result differs from `samples`, the outputs of its inputs."""
    permissions = {x for k in program.kernels for x in k.artifact.permissions}
    includes = "#include <sys/syscall.h>\n#include <unistd.h>\n" if "amx" in permissions else ""
    if returns_bits(program):
        includes += "#include <string.h>\n"
    head = _HEAD.format(name=own.name, command=command, memory=ALLOCATION, seconds=SECONDS, includes=includes)
    return head + "\n".join(_main(program, own, "amx" in permissions, samples)) + "\n"


def _main(program: NetworkProgram, own: NetworkInterface, tiles: bool, samples: Mapping[str, Array]) -> Iterator[str]:
    name, parameters = own.name, own.interface.parameters
    outputs = dict(zip((p.name for p in parameters[len(program.inputs) :]), program.outputs))
    bound = bound_of(program)
    if returns_bits(program):
        yield from function_texts(["decoded"])
    for own_name, x in outputs.items():
        at, values = compared_places(samples[x.name])
        yield f"static const size_t places_of_{own_name}[] = {{{', '.join(map(str, at))}}};"
        yield f"static const double values_of_{own_name}[] = {{{', '.join(repr(float(v)) for v in values)}}};"
    yield from ("", "int main(void)", "{")
    if tiles:
        yield from ("    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0)", "        return 1;")
    for p in parameters:
        yield f"    {C_TYPES[p.type]} *{p.name} = memory({macro(name)}_{macro(p.name)}_BYTES);"
        if p.tensor is not None and not p.is_written:
            value = "((int)(i * 7 % 5) - 2) * 0.25" if numpy_dtype(p.type).kind == "f" else "i * 7 % 5"
            if p.type in SMALL_FLOATS:
                declaration, value = sample_of_bits(p)
                yield declaration
            yield f"    for (size_t i = 0; i < {p.elements}; i++)"
            yield f"        {p.name}[i] = ({C_TYPES[p.type]})({value});"
    threads = ["NULL", "NULL"] if own.is_shared else []
    call = f"{name}({', '.join([*(p.name for p in parameters), *threads])})"
    yield from (f"    int code = {call};", "    if (code != 0) {", f"        puts({own.interface.message}(code));")
    yield from ("        return 1;", "    }")
    for y, x in outputs.items():
        values = compared_places(samples[x.name])[1]
        most, found = largest(samples[x.name]), f"{y}[places_of_{y}[i]]"
        if x.type in SMALL_FLOATS:
            found = decoded_text(x.type, found)
        yield f"    for (size_t i = 0; i < {len(values)}; i++) {{"
        yield f"        double found = (double){found};"
        yield f"        if (!(fabs(found - values_of_{y}[i]) <= {bound * most!r})) {{"
        yield f'            printf("{y}[%zu] is %.9g, not %.9g\\n", places_of_{y}[i], found, values_of_{y}[i]);'
        yield from ("            return 1;", "        }", "    }")
    yield from ("    int calls = 0;", "    double start = seconds(), end;", "    do {", f"        {call};")
    yield from ("        calls++;", "        end = seconds();", "    } while (calls < 1000 && end - start < 0.1);")
    yield f'    printf("{name}: right, %.1f us a call\\n", 1e6 * (end - start) / calls);'
    yield from (f"    free({p.name});" for p in parameters)
    yield from ("    return 0;", "}")


def largest(x: Array) -> float:
    """Return the largest magnitude of an element."""
    return max(float(np.abs(x.astype(np.float64)).max()), 1e-30)


def compared_places(x: Array) -> tuple[Array, Array]:
    """Return the places of the elements that are compared, and their values."""
    count = min(x.size, _SAMPLES)
    at = np.linspace(0, x.size - 1, count).astype(np.int64)
    return at, x.reshape(-1)[at]


