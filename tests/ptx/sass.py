"""Machine code of NVIDIA's GPUs as opcodes, and the loop of a kernel that multiplies most."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from convsmith.compiler.cubin import assembler_of, disassemble, find_tool
from convsmith.diag.errors import UnsupportedError

_REGISTERS = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*)$")
_OPCODE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)


def skip_without(architecture: str) -> None:
    """Skip the test where no assembler for an architecture is installed."""
    try:
        assembler_of(architecture)
    except UnsupportedError as error:
        pytest.skip(str(error))


def skip_without_disassembler(architecture: str) -> None:
    """Skip the test, before it makes code, where no assembler for an architecture or no disassembler is installed."""
    skip_without(architecture)
    if find_tool("nvdisasm") is None:
        pytest.skip("no disassembler is installed: nvdisasm comes with pip install nvidia-cuda-nvdisasm")


def disassembly(cubin: bytes) -> dict[str, str]:
    """Return the text of each kernel of a cubin; skip where no disassembler reads it."""
    try:
        text = disassemble(cubin)
    except UnsupportedError as error:
        pytest.skip(str(error))
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def sass(cubin: bytes) -> dict[str, list[str]]:
    """Return the opcodes of each kernel of a cubin."""
    return {name: _OPCODE.findall(text) for name, text in disassembly(cubin).items()}


def roots(text: str) -> Counter[str]:
    """Return how often each opcode stands in a text, without its modifiers."""
    return Counter(x.split(".")[0] for x in _OPCODE.findall(text))


def hot_loop(text: str, products: str) -> Counter[str]:
    """Return how often each opcode stands in the innermost loop with most `products`; in the whole text if no loop has
    any.
    """
    return roots(_hot_text(text, products))


def _hot_text(text: str, products: str) -> str:
    """Return the text of that loop. A loop that only waits, within another, has no products."""
    labels = {found[1]: found.start() for found in re.finditer(r"^(\.L_\w+):", text, re.M)}
    loops = []
    for found in re.finditer(r"BRA[\w.]*\s+(?:U?P\w+,\s*)?`\((\.L_\w+)\)", text):
        start = labels[found[1]]
        if start < found.start():
            loops.append((start, found.end()))
    loops = [x for x in loops if products in text[slice(*x)]]
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)]
    found = [text[a:b] for a, b in inner]
    return max(found or [text], key=lambda part: roots(part)[products])


def products_behind_barriers(text: str, products: str) -> int:
    """Return how many instructions ``products`` of the hot loop stand between a barrier and the first of them that
    reads a fragment which is loaded behind that barrier; the least number of all barriers.
    """
    least, seen, loaded = None, 0, None
    for line in _hot_text(text, products).splitlines() * 2:
        found = _REGISTERS.search(line)
        if found is None:
            continue
        opcode, registers = found[1].split(".")[0], [int(x) for x in re.findall(r"\bR(\d+)", found[2])]
        if opcode == "BAR":
            seen, loaded = 0, set()
        elif loaded is not None and opcode == "LDSM":
            loaded |= {registers[0] + n for n in range(4)}
        elif loaded is not None and opcode == products:
            if loaded.isdisjoint({registers[1], registers[2]}):
                seen += 1
            else:
                least, loaded = min(seen, seen if least is None else least), None
    assert least is not None
    return least
