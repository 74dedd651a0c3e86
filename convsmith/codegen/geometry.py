"""The geometry of a kernel for a device: which axes of the grid and of a group its loops run along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convsmith.codegen.artifact import AXES
from convsmith.diag.errors import InternalError
from convsmith.ir.index import Var
from convsmith.ir.stmt import THREAD_LOOPS, Alloc, AsyncCopy, AtomicAdd, For, Kernel, Stmt, Store
from convsmith.ir.walk import statements_of

__all__ = ["Geometry", "geometry"]

_ALIGNMENT = 128
"""Bytes to which each array in shared memory is aligned: all banks once."""
_EFFECTS = (Store, AtomicAdd, AsyncCopy)


@dataclass(frozen=True)
class Geometry:
    """Groups of the grid and threads of a group along each axis, innermost first, and bytes of shared memory.

    ``axes`` gives the axis of each loop over groups or threads by its variable.
    """

    grid: tuple[int, ...]
    group: tuple[int, ...]
    shared: int
    axes: Mapping[Var, int]


def geometry(kernel: Kernel) -> Geometry:
    """Return the geometry of ``kernel``. InternalError where its loops over groups, or over threads, are not one nest
    of at most three loops around all that has an effect.
    """
    nests = [_nest(kernel, ("grid",)), _nest(kernel, THREAD_LOOPS)]
    for nest in nests:
        outside = [s for s in statements_of(kernel.body) if isinstance(s, _EFFECTS)] if nest else []
        within = set(statements_of(nest[-1])) if nest else set()
        for s in outside:
            if s not in within:
                raise InternalError(f"{kernel.name}: `{s}` stands outside of the loop {nest[-1].var}, and all run it")
    grid, group = (_extents(nest) for nest in nests)
    axes = {s.var: n for nest in nests for n, s in enumerate(reversed(nest))}
    allocated = (s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "shared")
    shared = sum(shared_bytes(b.size * b.dtype.bytes) for b in dict.fromkeys(allocated))
    return Geometry(grid, group, shared, axes)


def shared_bytes(nbytes: int) -> int:
    """Return the bytes that an array of ``nbytes`` takes from shared memory."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _nest(kernel: Kernel, kinds: Sequence[str]) -> list[For]:
    """Return the loops of the ``kinds``, outermost first, each of which stands in the one before it."""
    nest: list[For] = []
    body: Stmt = kernel.body
    for s in statements_of(kernel.body):
        if isinstance(s, For) and s.kind in kinds:
            if s not in statements_of(body):
                raise InternalError(f"{kernel.name}: the {s.kind} loop {s.var} stands beside the loop {nest[-1].var}")
            nest.append(s)
            body = s.body
    if len(nest) > len(AXES):
        raise InternalError(f"{kernel.name}: {len(nest)} loops {', '.join(str(s.var) for s in nest)}; 3 are legal")
    return nest


def _extents(nest: Sequence[For]) -> tuple[int, ...]:
    extents = []
    for s in reversed(nest):
        size = s.hi - s.lo
        if not size.is_const:
            raise InternalError(f"the {s.kind} loop {s.var} runs {size} times, which is no number")
        extents.append(size.const)
    return (*extents, *[1] * (len(AXES) - len(extents)))
