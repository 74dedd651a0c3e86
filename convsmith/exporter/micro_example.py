"""The example program of exported micro-kernels: it computes an image row by row through a pointer table in sections,
and compares the results with those of naive loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt

from convsmith.exporter.example import ALLOCATION, SECONDS
from convsmith.exporter.header import macro
from convsmith.exporter.micro_kernel import BOUNDS, QUANTISATION, ExportedMicroKernel
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.runtime.arrays import numpy_dtype
from convsmith.statement.micro_kernel import MEMORY

__all__ = ["micro_example_text"]

_LARGEST = 20
"""The largest magnitude of a result of floats, which every type represents exactly."""
_POINTS = {"qs8": (1, 0, 2, -30, 30), "qu8": (3, 8, 30, 0, 60)}
"""Zero points of input, weights and output, and the least and the largest output, by type."""
_STEP = 4
"""Weights and biases that are requantised are multiples of it, and its reciprocal is the scale: no sum is rounded."""

_HEAD = """\
/* {name}: each micro-kernel on an image, against naive loops. Build it with cmake, or:
 *   {command}
 * It needs a C library; the kernels do not. */
#define _GNU_SOURCE
#include "{name}.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

{memory}

{seconds}

/* Small integers without a pattern, from -2 to 2. */
static int small(int i)
{{
    return (int)((uint32_t)i * 2654435761u >> 16) % 5 - 2;
}}
"""
_RUN = """
static int {name}_run(void)
{{
    const int h = 7, w = 9, c = {channels}, kh = {kh}, kw = {kw}, taps = kh * kw, ph = (kh - 1) / 2, pw = (kw - 1) / 2;
    const int oh = h + 2 * ph - kh + 1, ow = w + 2 * pw - kw + 1, pointers = {macro}_POINTERS(taps);
    /* Neighbouring outputs share columns of pointers if all pointers are to taps. The rows of outputs from `low` to
     * `high` - 1 share one row of pointers; the rows above and below read padding, and have rows of their own. */
    const int step = pointers == taps ? kh : pointers, length = (ow - 1) * step + pointers;
    const int low = ph, high = h + ph - kh + 1, rows = oh - (high - low - 1);
    {element} *image = memory(h * w * c * sizeof *image), *zero = memory(c * sizeof *zero);
    {element} *kernel = memory(c * taps * sizeof *kernel), *output = memory(oh * ow * c * sizeof *output);
    {bias_type} *bias = memory(c * sizeof *bias);
    {weights_type} *weights = memory({macro}_WEIGHTS_BYTES(c, taps));
    const {element} **table = memory(rows * length * sizeof *table);
    const struct {params_type} params = {{ {params} }};
    int wrong = 0;
    for (int i = 0; i < h * w * c; i++)
        image[i] = {image};
    for (int i = 0; i < c * taps; i++)
        kernel[i] = {kernel};
    for (int i = 0; i < c; i++) {{
        bias[i] = {bias};
        zero[i] = {zero};
    }}
{more}    for (int i = 0; i < rows * length; i++)
        table[i] = zero;
    for (int row = 0; row < rows; row++)
        for (int x = 0; x < ow; x++)
            for (int j = 0; j < kw; j++)
                for (int i = 0; i < kh; i++) {{
                    int y = row <= low ? row : row + (high - low - 1);
                    if (y + i >= ph && y + i - ph < h && x + j >= pw && x + j - pw < w)
                        table[row * length + x * step + j * kh + i] = image + ((y + i - ph) * w + x + j - pw) * c;
                }}
    {name}_pack(c, taps, kernel, bias, {scale}weights);
    double start = seconds(), end;
    int calls = 0;
    do {{
        for (int y = 0; y < oh; y++) {{
            int row = y < low ? y : y < high ? low : y - (high - low - 1);
            size_t offset = y < low || y >= high ? 0 : (y - low) * w * c * sizeof *image;
            {name}(c, ow, table + row * length, weights, output + y * ow * c, step * sizeof *table, 0, offset, zero,
                {passes}&params);
        }}
        calls++;
        end = seconds();
    }} while (calls < 1000 && end - start < 0.1);
    for (int y = 0; y < oh; y++)
        for (int x = 0; x < ow; x++)
            for (int n = 0; n < c; n++) {{
                int sum = small(n);
                for (int j = 0; j < kw; j++)
                    for (int i = 0; i < kh; i++)
                        if (y + i >= ph && y + i - ph < h && x + j >= pw && x + j - pw < w)
                            sum += small(((y + i - ph) * w + x + j - pw) * c + n) * small(n * taps + j * kh + i);
                sum = sum < {least} ? {least} : sum > {largest} ? {largest} : sum;
                wrong += output[(y * ow + x) * c + n] != {result};
            }}
    if (wrong == 0)
        printf("{name}: right, %.2f us a row\\n", 1e6 * (end - start) / calls / oh);
    else
        printf("{name}: %d of %d results are wrong\\n", wrong, oh * ow * c);
{freed}
    return wrong != 0;
}}
"""


def micro_example_text(name: str, command: str, kernels: Sequence[ExportedMicroKernel]) -> str:
    """Return the program for the library ``name``, which ``command`` compiles."""
    parts = [_HEAD.format(name=name, command=command, memory=ALLOCATION, seconds=SECONDS)]
    parts += [text for type_ in dict.fromkeys(k.kernel.type for k in kernels) for text in _numbers(type_)]
    parts += [_run(kernel) for kernel in kernels]
    runs = [f"    wrong |= {kernel.name}_run();" for kernel in kernels]
    return "".join((*parts, "\n", "\n".join(("int main(void)", "{", "    int wrong = 0;", *runs, "    return wrong;"))
                    , "\n}\n"))  # fmt: skip


def _numbers(type_: str) -> Iterator[str]:
    """Yield the array of the bits of small integers, for a type that C lacks."""
    if type_ in ("f16", "bf16"):
        bits = [f"0x{_bits(type_, n):04x}" for n in range(-_LARGEST, _LARGEST + 1)]
        rows = [", ".join(bits[n : n + 12]) for n in range(0, len(bits), 12)]
        text = ",\n    ".join(rows)
        yield f"\n/* The bits of {type_} numbers from -{_LARGEST} to {_LARGEST}. */\n"
        yield f"static const uint16_t {type_}_numbers[] = {{\n    {text}\n}};\n"


def _bits(type_: str, n: int) -> int:
    return int.from_bytes(numpy_dtype(MEMORY[type_].name).type(n).tobytes(), "little")


def _run(kernel: ExportedMicroKernel) -> str:
    """Return the function that runs a kernel, and returns whether a result is wrong."""
    m = kernel.kernel
    rows, columns = _window(m)
    arrays = ["image", "zero", "kernel", "output", "bias", "weights", "table"]
    more = passes = ""
    if m.quantised:
        more += f"    float *scale = memory(c * sizeof *scale);\n    for (int i = 0; i < c; i++)\n" \
                f"        scale[i] = {1 / _STEP}f;\n"  # fmt: skip
        arrays.append("scale")
    if m.multipass:
        more += f"    {'int32_t' if m.quantised else 'float'} *buffer = memory(c * sizeof *buffer);\n"
        passes = "taps, buffer, "
        arrays.append("buffer")
    return _RUN.format(
        name=kernel.name, macro=macro(kernel.name), channels=2 * m.channel_tile + 3, kh=rows, kw=columns,
        element=kernel.element, weights_type="void" if m.quantised else kernel.element, more=more, passes=passes,
        scale="scale, " if m.quantised else "", freed="\n".join(f"    free({array});" for array in arrays),
        **_values(kernel),
    )  # fmt: skip


def _window(m: MicroKernel) -> tuple[int, int]:
    """Return the rows and columns of a window: as many taps as one pass has, or one more than two passes have."""
    taps = m.taps[0] if not m.multipass else sum(m.taps) + 1
    rows = min(isqrt(taps), 5)
    return rows, min(taps // rows, 9)


def _values(kernel: ExportedMicroKernel) -> dict[str, str]:
    """Return the expressions of C for elements of the arrays, and for results, by ``i`` and ``sum``."""
    m, element = kernel.kernel, kernel.element
    if m.quantised:
        source, weights, output, least, largest = _POINTS[m.type]
        return {
            "image": f"({element})({source} + small(i))", "kernel": f"({element})({weights} + {_STEP} * small(i))",
            "bias": f"{_STEP} * small(i)", "zero": str(source), "bias_type": "int32_t", "params_type": QUANTISATION,
            "params": ", ".join(map(str, _POINTS[m.type])), "least": str(least - output),
            "largest": str(largest - output), "result": f"sum + {output}",
        }  # fmt: skip
    lacks = m.type in ("f16", "bf16")
    form = f"{m.type}_numbers[{{}} + {_LARGEST}]" if lacks else "(float){}"
    value = form.format("small(i)")
    return {
        "image": value, "kernel": value, "bias": value, "zero": "0", "bias_type": element, "params_type": BOUNDS,
        "params": f"-{_LARGEST}, {_LARGEST}", "least": str(-_LARGEST), "largest": str(_LARGEST),
        "result": form.format("sum"),
    }  # fmt: skip
