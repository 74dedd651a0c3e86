"""Kernels of problems with an empty tensor: no product is computed, and bias and post-ops apply to zero.

They are ordinary kernels whose entries run the numpy reference instead of object code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.compiler.arguments import argument_of
from convsmith.diag.forking import import_lock
from convsmith.layout.reorder import from_layout, to_layout
from convsmith.problem.chain import Chain
from convsmith.problem.problem import Problem
from convsmith.problem.types import TYPES
from convsmith.runtime.arrays import Array, ArraySpec
from convsmith.runtime.host_block import memory_at
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.loading import LoadedCode, LoadedFunction

__all__ = ["empty_kernel", "has_empty_tensor"]


def has_empty_tensor(problem: Problem) -> bool:
    """Return whether an array of `problem`, or of a stage of it, has no elements."""
    stages = problem.stages if isinstance(problem, Chain) else (problem,)
    return any([0 in shape for stage in stages for shape in (stage.src_shape, stage.wei_shape, stage.dst_shape)])


def empty_kernel(problem: Problem, artifact: Artifact | None = None, library: LoadedCode | None = None) -> HostKernel:
    """Return the kernel of a problem with an empty tensor.

    It takes operands that entries of an `artifact` pack, whose code is the `library`: the kernel of other sizes of the
    problem. By default operands are packed as they are.
    """
    tensors = {tensor.name: argument_of(tensor) for tensor in problem.tensors}
    weights = [t.name for t in problem.inputs if t.holds == "wei"]
    # The reference does not know the order of packed elements, and reads the weights of further stages of a chain.
    is_read = len(weights) > 1 and any(0 not in t.shape for t in problem.outputs)
    if artifact is None:
        names = weights if len(weights) > 1 else []
        packing = {f"pack:{name}": _copy(tensors[name]) for name in names}
        packed = {name: [_packed(tensors[name])] for name in names}
    else:
        packing = {} if is_read else {name: e for name, e in artifact.entries.items() if e.packing}
        of = {a.name: a for e in artifact.steps.values() for a in e.arguments if a.role == "packed" and not is_read}
        packed = {a.of: [b for b in of.values() if b.of == a.of] for a in of.values()}
    arguments = [a for name, plain in tensors.items() for a in packed.get(name, [plain])]
    entries = {"main": Entry("reference", tuple(arguments)), **packing}
    own = Artifact(b"", "", entries, str(problem), "")
    return HostKernel(own, library=_EmptyCode(problem, own, library))


def _packed(plain: Argument) -> Argument:
    """Return the argument for an operand that is packed as it is."""
    return replace(plain, name=f"{plain.name}_p", role="packed", of=plain.name, holds="", dims=(), default=None)


def _copy(plain: Argument) -> Entry:
    """Return the entry that packs an operand as it is."""
    return Entry(f"copy_{plain.name}", (plain, _packed(plain)), packing=f"plain {plain.layout} {plain.shape}")


class _EmptyCode:
    """The functions of the entries of `artifact`; the functions of `packing`, or else copies, pack operands."""

    def __init__(self, problem: Problem, artifact: Artifact, packing: LoadedCode | None) -> None:
        self._problem, self._artifact, self._packing = problem, artifact, packing

    def __getitem__(self, entry: str) -> LoadedFunction:
        if entry != "main" and self._packing is not None:
            return self._packing[entry]
        run = self._compute if entry == "main" else _copy_operand
        return _ReferenceFunction(self._artifact.entries[entry], run)

    def _compute(self, arrays: dict[str, tuple[Argument, Array]]) -> None:
        """Store the outputs in their layouts, computed from all inputs."""
        with import_lock:
            from convsmith.problem.reference import reference, steps_type

        values = {argument.of or name: (argument, array) for name, (argument, array) in arrays.items()}
        known = {
            t.name: from_layout(values[t.name][1], t.layout)
            if self._reads(values[t.name][0])
            else np.zeros(t.shape, TYPES[t.dtype].numpy)
            for t in self._problem.inputs
        }
        results = reference(self._problem, known, steps_type(self._problem))
        for t in self._problem.outputs:
            np.copyto(values[t.name][1], to_layout(results[t.name], t.layout))

    def _reads(self, argument: Argument) -> bool:
        """Return whether results depend on an operand: weights of a single stage are multiplied by nothing."""
        if argument.role == "packed":
            return self._packing is None
        return argument.holds != "wei" or isinstance(self._problem, Chain)


def _copy_operand(arrays: dict[str, tuple[Argument, Array]]) -> None:
    (_, source), (_, packed) = arrays.values()
    np.copyto(packed, source)


class _ReferenceFunction:
    """An entry that computes on arrays: `function(block)` with the address of an argument block."""

    whole = None
    """No native function runs the entry."""

    def __init__(self, entry: Entry, run: Callable[[dict[str, tuple[Argument, Array]]], None]) -> None:
        self.entry, self._run = entry, run

    def __call__(self, block: int, keep: object = None) -> None:
        words = (ctypes.c_uint64 * len(self.entry.arguments)).from_address(block)
        self._run({a.name: (a, _array(a, word)) for a, word in zip(self.entry.arguments, words)})


def _array(argument: Argument, address: int) -> Array:
    """Return an argument's memory as the array that it holds."""
    spec = ArraySpec(argument)
    nbytes = argument.size * spec.dtype.itemsize
    memory = memory_at(address, nbytes) if nbytes else np.zeros(0, np.uint8)
    array: Array = np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides)
    return array
