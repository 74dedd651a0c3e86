"""The memory that a kernel needs beside the tensors of a call, read from its manifest."""

from __future__ import annotations

from collections.abc import Iterable

from convsmith.codegen.artifact import ALIGNMENT, Argument, Artifact, Entry
from convsmith.diag.record import record

__all__ = ["KernelMemory", "ThreadScratch"]

_TENSORS = ("in", "out", "inout")


@record(frozen=True)
class ThreadScratch:
    """The scratch memory of an entry: ``nbytes`` for each of ``threads``."""

    nbytes: int
    threads: int

    @property
    def whole(self) -> int:
        """Bytes of all threads."""
        return _rounded(self.nbytes * self.threads)


@record(frozen=True)
class KernelMemory:
    """Memory that a kernel allocates, or asks its caller for; every array begins at a multiple of `ALIGNMENT`.

    ``packed`` arrays hold operands in the kernel's own order. A call has ``between`` its entries arrays that one writes
    and another one reads, and during an entry the ``scratch`` of each thread and ``tables`` of pointers, with the
    elements that stand for absent ones; the entry that needs most of these counts. Packing needs ``packing`` bytes
    beside the operands and the packed arrays. ``tensors`` are the bytes of the tensors of a call.
    """

    tensors: int
    packed: tuple[Argument, ...]
    between: tuple[Argument, ...]
    scratch: ThreadScratch
    tables: tuple[Argument, ...]
    packing: int

    @staticmethod
    def of(artifact: Artifact) -> KernelMemory:
        """Return the memory of an artifact, with or without object code."""
        steps = tuple(artifact.steps.values())
        known = {a.name: a for entry in artifact.entries.values() for a in entry.arguments}
        read = {a.name for entry in steps for a in entry.arguments}
        largest = max(steps, key=_entry_bytes)
        return KernelMemory(
            tensors=sum(a.nbytes for a in known.values() if a.role in _TENSORS),
            packed=tuple(a for a in known.values() if a.role == "packed" and a.name in read),
            between=tuple(a for a in known.values() if a.role == "shared"),
            scratch=_scratch(largest), tables=_tables(largest),
            packing=max((_packing_bytes(artifact, operand) for operand in artifact.packs), default=0),
        )  # fmt: skip

    @property
    def call(self) -> int:
        """Bytes of a call, beside its tensors and the packed arrays."""
        return _sum(self.between) + self.scratch.whole + _sum(self.tables)

    def __str__(self) -> str:
        parts = [f"{a.nbytes} of {a.name}" for a in (*self.packed, *self.between, *self.tables)]
        if self.scratch.nbytes:
            of_each = f" for each of {self.scratch.threads} threads" if self.scratch.threads > 1 else ""
            parts.append(f"{self.scratch.nbytes} of scratch memory{of_each}")
        if self.packing > self.call:
            parts.append(f"{self.packing} while packing, before these are needed")
        return ", ".join(parts) or "none"

    @property
    def whole(self) -> int:
        """Bytes beside the tensors: the packed arrays, and what packing or a call needs, whichever is more."""
        return _sum(self.packed) + max(self.call, self.packing)


def _packing_bytes(artifact: Artifact, operand: str) -> int:
    """Return the bytes that packing ``operand`` needs beside it and the packed arrays."""
    own = max(_entry_bytes(artifact.entries[name]) for name in artifact.packs[operand])
    return own + _sum(artifact.passed_on(operand))


def _entry_bytes(entry: Entry) -> int:
    return _scratch(entry).whole + _sum(_tables(entry))


def _scratch(entry: Entry) -> ThreadScratch:
    return ThreadScratch(sum(a.nbytes for a in entry.arguments if a.role == "scratch"), entry.launch.threads)


def _tables(entry: Entry) -> tuple[Argument, ...]:
    return tuple(a for a in entry.arguments if a.role in ("table", "zero"))


def _sum(arguments: Iterable[Argument]) -> int:
    return sum(_rounded(a.nbytes) for a in arguments)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
