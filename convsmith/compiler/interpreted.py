"""Kernels run by the interpreter: the binder's memory there, and the entry of a kernel at any stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt

from convsmith.codegen.artifact import Argument, Entry, size_argument
from convsmith.codegen.binder import ArgumentMemory, Binder, element_type
from convsmith.compiler.arguments import argument_of, buffer_argument
from convsmith.compiler.entries import absent_points, pointer_arguments
from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import DTYPES
from convsmith.layout.indirection import FORMS, Table
from convsmith.problem.data import unwritten
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.pointers import pointers
from convsmith.statement.fused import stage_statement

__all__ = ["ArrayMemory", "InterpretedCall", "known_arguments"]

Array = npt.NDArray[Any]


class ArrayMemory(ArgumentMemory[Array]):
    """Memory of the interpreter: a place is a one-dimensional array, a pointer the position of an element.

    `make` returns a new array of a size and a type.
    """

    def __init__(self, make: Callable[[int, np.dtype[Any]], Array]) -> None:
        self._make = make

    def reserve(self, argument: Argument, elements: int) -> Array:
        return self._make(elements, element_type(argument))

    def read(self, place: Array, nbytes: int) -> bytes:
        return place.tobytes()[:nbytes]

    def write(self, place: Array, contents: Array) -> None:
        place[:] = contents.ravel()

    def pointers(self, table: Table, base: Array, absent: Array, itemsize: int) -> Array:
        return table.entries


_PARTS = frozenset(t.element for t in DTYPES.values() if t.per_byte > 1)
"""Names of types with fewer than 8 bits, whose elements take a byte each in arrays."""


def _unwritten(elements: int, dtype: np.dtype[Any]) -> Array:
    return unwritten((elements,), dtype)


class InterpretedCall:
    """One call of a problem's kernels, in the interpreter.

    `arrays` holds memory by name, and sizes; memory that a kernel writes for a later kernel is added to it. `known` are
    the arguments of the problem, `instructions` the specifications of the target's rows, `scale` the units of a vector.
    """

    def __init__(
        self, known: Mapping[str, Argument], arrays: MutableMapping[str, Any], instructions: Mapping[str, Kernel],
        make: Callable[[int, np.dtype[Any]], Array] = _unwritten, scale: int = 1,
    ) -> None:  # fmt: skip
        self._known, self._instructions, self._scale = known, instructions, scale
        self._binder: Binder[Any] = Binder(ArrayMemory(make), arrays)

    def run(self, kernel: Kernel) -> None:
        """Run a kernel of any stage."""
        entry = self._entry(kernel)
        words = dict(zip((a.name for a in entry.arguments), self._binder.bind(entry).words, strict=True))
        sizes = {v.name: words.pop(v.name) for v in kernel.sizes}
        for b in kernel.params:
            if b.dtype.per_byte == 1 and words[b.name].dtype.name in _PARTS:  # kernels read an element's byte
                words[b.name] = words[b.name].view(b.dtype.numpy)
        run(kernel, words, self._instructions, sizes, self._scale)

    def _entry(self, kernel: Kernel) -> Entry:
        arguments = [self._known.get(b.name) or buffer_argument(b, "shared") for b in kernel.params]
        return Entry(kernel.name, (*arguments, *(size_argument(v.name) for v in kernel.sizes)))


def known_arguments(problem: Problem) -> dict[str, Argument]:
    """Return the arguments of a problem by name: its tensors, pointer tables in every form, and zero buffers."""
    known = {tensor.name: argument_of(tensor) for tensor in problem.tensors}
    stages = stages_of(problem)
    for n in range(1 if stages is None else len(stages)):
        st = stage_statement(problem, n)
        try:
            for p in (pointers(st, form) for form in FORMS):
                known |= pointer_arguments(p, p.table.name, st.a.name, absent_points(problem, st.a.name))
        except ConfigError:  # a problem without pixels has no tables
            continue
    return known
