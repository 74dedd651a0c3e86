"""Random graphs as functions of C: a program under AddressSanitizer calls them, and finds what Python computes.

Each array ends where a page without rights begins; inputs are read-only.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from exported import run, tool

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from drawn_bytes import DrawnBytes, on_bytes
from drawn_graphs import KINDS, DrawnGraph
from drawn_small import DTYPES, DrawnSmall

import convsmith as cs
from convsmith.runtime.arrays import Array

FLAGS = (
    "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip
_ALIGNED = 64
"""Bytes by which the address of a workspace is divided."""
_START = """
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "drawn.h"

static const size_t PAGE = 4096;

static void *array(size_t size, size_t align) {
  size_t whole = (size + PAGE - 1) / PAGE * PAGE;
  char *memory = mmap(0, whole + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(memory + PAGE, whole, PROT_READ | PROT_WRITE);
  memset(memory + PAGE, 0xA5, whole);
  return memory + PAGE + (whole - size) / align * align;
}

static void *input(const char *name, size_t size, size_t align) {
  void *memory = array(size, align);
  FILE *file = fopen(name, "rb");
  if (fread(memory, 1, size, file) != size) return NULL;
  fclose(file);
  size_t whole = (size + PAGE - 1) / PAGE * PAGE;
  mprotect((char *)((size_t)memory / PAGE * PAGE), whole, PROT_READ);
  return memory;
}

static void output(const char *name, const void *memory, size_t size) {
  FILE *file = fopen(name, "wb");
  fwrite(memory, 1, size, file);
  fclose(file);
}

int main(void) {
"""


def drawn(seed: int) -> Any:
    """Return a random model of f32, of small floats, or with bytes; None if all operators are illegal."""
    nodes = Random(seed).randint(3, 9)
    if seed % 3 == 0:
        g = DrawnGraph(seed)
        g.draw(KINDS, nodes)
        return g.model()
    if seed % 3 == 1:
        g = DrawnSmall(seed)
        g.draw(KINDS[:-1], nodes)
        return g.model()
    coded = DrawnBytes(seed)
    coded.draw((*KINDS, *[on_bytes] * 10), nodes)
    return coded.model(coded.returned)


def _program(names: list[str], arrays: dict[str, Array], inputs: int, workspace: int) -> str:
    """Return a program that calls the function on the arrays of these names, of which the first ones are inputs."""
    lines, given = [_START], [f"a{n}" for n in range(len(names))]
    for n, name in enumerate(names):
        size, align = arrays[name].nbytes, arrays[name].itemsize
        made = f'input("{n}.in", {size}, {align})' if n < inputs else f"array({size}, {align})"
        lines.append(f"  void *a{n} = {made};")
    if workspace:
        lines.append(f"  void *workspace = array({workspace}, {_ALIGNED});")
        given.append("workspace")
    lines.append(f"  int code = drawn({', '.join(given)});")
    lines.append('  if (code) return printf("%s\\n", drawn_message(code)), 1;')
    lines += [f'  output("{n}.out", a{n}, {arrays[name].nbytes});' for n, name in enumerate(names) if n >= inputs]
    return "\n".join([*lines, "  return 0;", "}", ""])


@pytest.mark.sampled(150, wide=4)
@pytest.mark.parametrize("seed", range(150))
def test_random_graphs_compute_in_c_what_they_compute_in_python(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drawn(seed)
    if model is None:
        return
    try:
        net = cs.onnx.compile(model, threads=1)
    except cs.UnsupportedError as error:  # an illegal graph of bytes, whose shapes ONNX does not infer
        pytest.skip(str(error))
    rng = np.random.default_rng(seed)
    types = {x.name: DTYPES[x.type.tensor_type.elem_type] for x in model.graph.input}
    arrays: dict[str, Array] = {n: rng.integers(-3, 4, s).astype(types[n]) for n, s in net.inputs.items()}
    inputs, expected = len(arrays), net.run(arrays)
    library = net.export(tmp_path, "drawn")
    names = [row["value"] for row in json.loads((tmp_path / "drawn.json").read_text())["parameters"]]
    assert names == [*arrays, *expected]
    arrays |= expected
    monkeypatch.chdir(tmp_path)
    for n, name in enumerate(names[:inputs]):
        arrays[name].tofile(f"{n}.in")
    Path("program.c").write_text(_program(names, arrays, inputs, net.workspace))
    run(tool("gcc"), *FLAGS, "program.c", library.library, "-lm", "-o", "program")
    run("./program")
    for n, name in enumerate(names[inputs:], inputs):
        found = np.fromfile(f"{n}.out", arrays[name].dtype)
        np.testing.assert_array_equal(found.view(np.uint8), arrays[name].reshape(-1).view(np.uint8))
