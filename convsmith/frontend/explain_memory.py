"""Describes the memory of a kernel beside its tensors for `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from convsmith.codegen.memory import KernelMemory
from convsmith.compiler.rewritten import Lowered, private_buffers
from convsmith.machine.base import Machine

__all__ = ["bytes_text", "memory_lines"]


def memory_lines(memory: KernelMemory, low: Lowered, target: Machine) -> Iterator[tuple[str, str]]:
    """Yield what the kernel needs beside its tensors, by array, and its ratio to them; for sizes of a call, the arrays
    alone.
    """
    head = "memory"
    if not low.kernel.sizes:
        yield head, _whole(memory)
        head = ""
    for line in _arrays(memory, low, target):
        yield head, line
        head = ""


def _whole(memory: KernelMemory) -> str:
    """Return the sum of all arrays beside the tensors, in relation to these."""
    if not memory.whole:
        return f"none beside the tensors, which have {bytes_text(memory.tensors)}"
    ratio = memory.whole / max(memory.tensors, 1)
    text = f"{bytes_text(memory.whole)} beside the tensors, {ratio:.2f} of their {bytes_text(memory.tensors)}"
    return f"{text}: more than the tensors; --workspace=BYTES sets a bound" if ratio > 1 else text


def _arrays(memory: KernelMemory, low: Lowered, target: Machine) -> Iterator[str]:
    if memory.packed:
        yield f"packed: {_listed((f'{a.name} of {a.of}', a.nbytes) for a in memory.packed)}"
    if memory.between:
        yield f"from one kernel of a call to the next: {_listed((a.name, a.nbytes) for a in memory.between)}"
    scratch = memory.scratch
    if scratch.nbytes:
        place = target.place(scratch.nbytes * scratch.threads)
        buffers = {b.name: b.nbytes for k in (*low.before, low.kernel, *low.after) for b in private_buffers(k)}
        text = f"{bytes_text(scratch.nbytes)} of scratch memory for each of {scratch.threads} threads"
        yield f"{text}{place and f' {place}'}: {_listed(buffers.items())}"
    if memory.tables:
        yield f"pointers and absent pixels: {_listed((a.name, a.nbytes) for a in memory.tables)}"
    if memory.packing:
        yield f"while packing, and not in calls: {bytes_text(memory.packing)}"


def _listed(arrays: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {bytes_text(nbytes)}" for name, nbytes in arrays)


def bytes_text(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
