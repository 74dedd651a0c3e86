"""Kernels given as text, run as machine code: for tests of what values mean."""

from __future__ import annotations

import re

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry, Launch
from convsmith.codegen.module_text import module_text
from convsmith.compiler.facts import facts
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import DTYPES
from convsmith.ir.verify import verify
from convsmith.machine.base import Machine
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.host_block import HostBlock

Arrays = dict[str, np.ndarray]


def llvm_text(kernel: Kernel, target: Machine, symbol: str = "k") -> str:
    """The module of a kernel on one thread."""
    return module_text({symbol: (kernel, Launch())}, facts(target), {})


def run_native(kernel: Kernel, arrays: Arrays, target: Machine) -> None:
    """Compile the kernel for a target and run it on the arrays, in place; those of 4 bits lie two to a byte there."""
    memory = {b.name: packed_bytes(arrays[b.name]) if b.dtype.per_byte > 1 else arrays[b.name] for b in kernel.params}
    arguments = tuple(Argument(b.name, "inout", b.dtype.name, b.shape, "a", b.size) for b in kernel.params)
    code = llvm_bind.object_code(llvm_text(kernel, target), target.triple, target.cpu, target.features)
    function = HostLibrary(Artifact(code, target.name, {"main": Entry("k", arguments)}, kernel.name, ""))["main"]
    block = HostBlock(function.entry, {name: array.ctypes.data for name, array in memory.items()})
    function(block.address)
    for b in kernel.params:
        if b.dtype.per_byte > 1:
            halves = np.stack([memory[b.name] & 15, memory[b.name] >> 4], 1).ravel()[: b.size]
            arrays[b.name][...] = halves.view(arrays[b.name].dtype)


def packed_bytes(x: np.ndarray) -> np.ndarray:
    """The bytes of elements of 4 bits: two in each, the first one in the lower half."""
    halves = np.zeros(x.size + x.size % 2, np.uint8)
    halves[: x.size] = x.view(np.uint8) & 15
    return halves[0::2] | halves[1::2] << 4


def mnemonics(kernel: Kernel, target: Machine) -> list[str]:
    """The instructions that the target's machine code of the kernel's loops is made of."""
    text = llvm_bind.assembly(llvm_text(kernel, target), target.triple, target.cpu, target.features)
    body = text[text.index("k_chunk:") :]
    return re.findall(r"^\t([a-z]\w*)", body[: body.index(".Lfunc_end")], re.MULTILINE)


def elementwise_kernel(text: str, types: dict[str, str], size: int, lanes: int) -> Kernel:
    """``out[i] = text`` for all elements; ``@`` in the text stands for the place of the element, with its lanes."""
    place = f"[i * {lanes}]{{{lanes}}}" if lanes else "[i]"
    params = ", ".join(f"{name}: {t}[{size}]" for name, t in types.items())
    return parse_kernel(
        f"kernel k({params})\n  for i in 0 .. {size // max(lanes, 1)}:\n    out{place} = {text.replace('@', place)}\n"
    )


def computed(text: str, inputs: Arrays, out: str, lanes: int, target: Machine) -> np.ndarray:
    """The elements of ``out[i] = text``, by machine code of ``target`` on vectors of ``lanes``."""
    kernel, arrays = _elementwise(text, inputs, out, lanes)
    run_native(kernel, arrays, target)
    return arrays["out"]


def interpreted(text: str, inputs: Arrays, out: str, lanes: int) -> np.ndarray:
    """The elements of ``out[i] = text`` by the interpreter, which computes them once for all targets."""
    key = (text, out, lanes, *((name, x.dtype.name, x.tobytes()) for name, x in inputs.items()))
    if key not in _INTERPRETED:
        kernel, arrays = _elementwise(text, inputs, out, lanes)
        run(kernel, arrays)
        _INTERPRETED[key] = arrays["out"]
    return _INTERPRETED[key]


_INTERPRETED: dict[tuple[object, ...], np.ndarray] = {}


def _elementwise(text: str, inputs: Arrays, out: str, lanes: int) -> tuple[Kernel, Arrays]:
    """The kernel of ``out[i] = text``, and its arrays."""
    names = {row.numpy: row.name for row in DTYPES.values()}
    size = len(next(iter(inputs.values())))
    types = {name: names[x.dtype.name] for name, x in inputs.items()} | {"out": out}
    kernel = elementwise_kernel(text, types, size, lanes)
    verify(kernel)
    return kernel, {**inputs, "out": np.zeros(size, DTYPES[out].numpy)}


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit by bit, but for what kind of NaN."""
    assert found.dtype == expected.dtype
    word = f"u{found.dtype.itemsize}"
    nan = np.isnan(expected) if expected.dtype.kind not in "iu" else np.zeros(len(expected), bool)
    differs = (found.view(word) != expected.view(word)) & ~(nan & (found != found))
    assert not differs.any(), [(i, found[i], expected[i]) for i in np.flatnonzero(differs)[:5]]
