"""Machine code of NVIDIA's GPUs as opcodes, and the loop of a kernel that multiplies most."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from convsmith.compiler.cubin import assembler_of, disassemble
from convsmith.diag.errors import UnsupportedError

_OPCODE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)


def skip_without(architecture: str) -> None:
    """Skip the test where no assembler for an architecture is installed."""
    try:
        assembler_of(architecture)
    except UnsupportedError as error:
        pytest.skip(str(error))


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


def hot_loop(text: str, products: str) -> Counter[str]:
    """Return how often each opcode stands in the innermost loop with most `products`; all if no loop has any.

    A loop that only waits, within another, has no products.
    """
    labels = {found[1]: found.start() for found in re.finditer(r"^(\.L_\w+):", text, re.M)}
    loops = []
    for found in re.finditer(r"BRA[\w.]*\s+(?:U?P\w+,\s*)?`\((\.L_\w+)\)", text):
        start = labels[found[1]]
        if start < found.start():
            loops.append((start, found.end()))
    loops = [x for x in loops if products in text[slice(*x)]]
    inner = [x for x in loops if not any(y != x and x[0] <= y[0] and y[1] <= x[1] for y in loops)] or [(0, len(text))]
    found = [Counter(x.split(".")[0] for x in _OPCODE.findall(text[a:b])) for a, b in inner]
    return max(found, key=lambda counts: counts[products])
