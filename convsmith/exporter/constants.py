"""Arrays that are built into exported code: in the kernel's layout, or packed by this machine during the export.

Code for another machine cannot run here, so its packing kernels are compiled for this one, without vectors: the copies
that they make are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry, Launch
from convsmith.codegen.module_text import module_text
from convsmith.compiler.driver import lower
from convsmith.compiler.facts import facts
from convsmith.compiler.rewritten import private_buffers
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import UsageError
from convsmith.frontend.inspection import Inspected
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.walk import statements_of
from convsmith.machine.generic.level import level
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import Step, run_steps
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.relocate import Relocate
from convsmith.passes.simplify import simplify
from convsmith.runtime.arrays import ALIGNMENT, Array, ArraySpec, address_of
from convsmith.runtime.border import tensors_of
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.operand_packing import PackedParts
from convsmith.runtime.prepared_call import LoadedEntry, PreparedCall
from convsmith.schedule.plan import Plan

__all__ = ["built_in_contents", "stored", "stored_bytes"]

_STEPS = (Step(flatten), Step(simplify), Step(narrow_index))
"""Rewrites of a packing kernel that leave its loops unchanged."""


def stored_bytes(spec: ArraySpec, array: Array | tuple[float, ...]) -> bytes:
    """Return the memory of an array, or of default values, in the layout of ``spec``; bytes between elements are zero.
    """
    return stored(spec, array if isinstance(array, np.ndarray) else spec.filled(array)).tobytes()


def stored(spec: ArraySpec, array: Array) -> Array:
    """Return the memory of an array in the layout of ``spec`` as bytes; those between elements are zero. It is the
    array's own if the array cannot be written and lies in this layout.
    """
    memory = np.zeros(spec.extent, np.uint8)
    placed = np.ndarray(spec.shape, spec.dtype, memory, 0, spec.strides)
    is_placed = placed.flags.c_contiguous and array.flags.c_contiguous and placed.nbytes == array.nbytes == memory.size
    if is_placed and array.dtype == placed.dtype and not array.flags.writeable:
        return array.reshape(-1).view(np.uint8)
    placed[...] = array
    return memory


def built_in_contents(kernel: Inspected, artifact: Artifact, given: Mapping[str, Array]) -> dict[str, bytes]:
    """Return the bytes of the tensors ``given``, by the names of the parameters that they replace.

    UsageError if a tensor is unknown, is not an input, or has another shape or type.
    """
    tensors = tensors_of(artifact)
    specs = {name: ArraySpec(tensor) for name, tensor in tensors.items()}
    checked: dict[str, Array] = {}
    for name, array in given.items():
        inputs = [t.name for t in tensors.values() if t.role == "in"]
        if name not in inputs:
            raise UsageError(
                f"weights: {artifact.problem} reads no array {name!r}; it reads {', '.join(inputs)}", code="bad-weights"
            )
        checked[name] = specs[name].check(array, name)
    plain = {a.name for entry in artifact.steps.values() for a in entry.arguments}
    contents = {name: stored_bytes(specs[name], array) for name, array in checked.items() if name in plain}
    packed = [name for name in checked if name in artifact.packs]
    if packed:
        with no_collection(), kernel.planned() as plan:
            packs = _PackingHere(plan, artifact)
            for name in packed:
                contents[f"packed_{name}"] = packs.packed(name, checked)
    return contents


class _PackingHere:
    """The packing kernels of ``plan``, compiled for this machine."""

    def __init__(self, plan: Plan, artifact: Artifact) -> None:
        here = level()
        made = {plan.symbol(k.name): run_steps(_in_memory(k), _STEPS) for k in lower(plan).packs}
        private = {b: size for k in made.values() for b, size in _private(k).items()}
        *starts, end = accumulate(private.values(), initial=0)
        scratch = {b: (start, end) for b, start in zip(private, starts)}
        text = module_text({name: (k, Launch()) for name, k in made.items()}, facts(here), scratch)
        code = llvm_bind.object_code(text, here.triple, here.cpu, here.features)
        memory = Argument("scratch", "scratch", "u8", (end,), "a", end)
        packing = {name: _entry(e, memory) for name, e in artifact.entries.items() if e.packing}
        self._artifact = artifact
        entries = {**packing, "main": next(iter(packing.values()))}
        self._library = HostLibrary(Artifact(code, here.name, entries, artifact.problem, "none"))

    def packed(self, operand: str, arrays: Mapping[str, Array]) -> bytes:
        """Return the packed memory of ``operand``, one of ``arrays``."""
        parts = PackedParts.of(self._artifact, operand)
        memory = parts.new()
        memory[:] = 0
        functions = [self._library[name] for name in self._artifact.packs[operand]]
        read = {a.name: a for function in functions for a in function.entry.arguments if a.role == "in"}
        ready = [_ready(a, operand, arrays) for a in read.values()]
        given = [parts.offsets, *({name: 0} for name in read)]
        entries = [LoadedEntry(function, function.entry, {}) for function in functions]
        call = PreparedCall(entries, given, self._artifact.passed_on(operand))
        call.run([address_of(memory), *map(address_of, ready)], (memory, ready))
        return memory.tobytes()


def _in_memory(kernel: Kernel) -> Kernel:
    """Return a kernel whose register arrays that loops index are in memory."""
    arrays = {s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.shape}
    body = kernel.body
    for b in arrays:
        body = Relocate(b, make_buffer(b.name, b.dtype, b.shape, "cache"), lambda index: index).stmt(body)
    return replace(kernel, body=body)


def _private(kernel: Kernel) -> dict[Buffer, int]:
    """Return the bytes of each buffer that the kernel allocates in memory."""
    return {b: -(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in private_buffers(kernel)}


def _entry(entry: Entry, scratch: Argument) -> Entry:
    """Return an entry of the kernel with other scratch memory, for one thread."""
    arguments = (a for a in entry.arguments if a.role != "scratch")
    return replace(entry, arguments=(*arguments, *([scratch] if scratch.size else [])), launch=Launch())


def _ready(a: Argument, operand: str, arrays: Mapping[str, Array]) -> Array:
    """Return the array that packing ``operand`` reads as the argument, in the kernel's layout."""
    spec = ArraySpec(a)
    if a.name in arrays:
        return spec.prepare(arrays[a.name])
    if a.default is None:
        raise UsageError(
            f"weights: packing {operand} reads {a.name} too; legal is --weights {a.name}=FILE beside it",
            code="bad-weights",
        )
    return spec.filled(a.default)
