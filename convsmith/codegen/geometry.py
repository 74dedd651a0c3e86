"""The geometry of a kernel for a device: which axes of the grid and of a group its loops run along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.codegen.artifact import AXES
from convsmith.diag.errors import InternalError
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.shared import SLOTS, barrier_bytes, taken_bytes
from convsmith.ir.stmt import (
    GROUP_LOOPS,
    PIPELINED,
    THREAD_LOOPS,
    Alloc,
    AsyncCopy,
    AtomicAdd,
    For,
    Kernel,
    Stmt,
    Store,
    TensorCopy,
)
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.threads import slots_of, team_count
from convsmith.ir.walk import statements_of

__all__ = ["Geometry", "geometry", "is_pipelined", "tensor_maps"]

_EFFECTS = (Store, AtomicAdd, AsyncCopy)


@record(frozen=True)
class Geometry:
    """Groups of the grid and threads of a group along each axis, innermost first, and bytes of shared memory.

    ``axes`` gives the axis of each loop over groups or threads by its variable. ``cluster`` are the groups of a cluster
    along each axis of the grid; there are none if it is empty.
    """

    grid: tuple[int, ...]
    group: tuple[int, ...]
    shared: int
    axes: Mapping[Var, int]
    cluster: tuple[int, ...] = ()


def geometry(kernel: Kernel, word: int = 0) -> Geometry:
    """Return the geometry of ``kernel``, whose barriers of all threads take ``word`` bytes of shared memory.

    InternalError unless its loops over groups, over threads or warps, and over lanes form nests of at most three loops
    each around all statements with an effect. Several loops over the lanes of a warp are permitted; the warp executes
    the statements between them.
    """
    if is_pipelined(kernel):
        return _pipeline_geometry(kernel)
    groups = _nest(kernel, ("grid",))
    threads = _nest(kernel, tuple(kind for kind in THREAD_LOOPS if kind != "lane"))
    lanes = [s for s in statements_of(kernel.body) if isinstance(s, For) and s.kind == "lane"]
    for nest in (groups, threads or lanes[:1]):
        within = set(statements_of(nest[-1])) if nest else set()
        for s in statements_of(kernel.body) if nest else ():
            if isinstance(s, _EFFECTS) and s not in within:
                raise InternalError(f"{kernel.name}: `{s}` stands outside of the loop {nest[-1].var}, and all run it")
    sizes = {_extent(s) for s in lanes}
    if len(sizes) > 1:
        raise InternalError(f"{kernel.name}: loops over {' and '.join(map(str, sorted(sizes)))} lanes")
    inner = [*threads, *lanes[:1]]
    axes = {s.var: n for nest in (groups, inner) for n, s in enumerate(reversed(nest))} | {s.var: 0 for s in lanes}
    allocated = (s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "shared")
    shared = sum(taken_bytes(b.nbytes) for b in dict.fromkeys(allocated))
    return Geometry(_extents(kernel, groups), _extents(kernel, inner), shared + word, axes)


def is_pipelined(kernel: Kernel) -> bool:
    """Return whether the kernel has a pipelined loop."""
    return any(isinstance(s, For) and s.kind in PIPELINED for s in statements_of(kernel.body))


def tensor_maps(kernel: Kernel) -> list[tuple[Buffer, TensorMap]]:
    """Return the tensor maps of the kernel's copies, each with the tensor that it describes, in order."""
    copies = (s for s in statements_of(kernel.body) if isinstance(s, TensorCopy))
    return list(dict.fromkeys((s.tensor, s.map) for s in copies))


def _pipeline_geometry(kernel: Kernel) -> Geometry:
    """Return the geometry of a kernel with a pipelined loop: lanes along the first axis, warps along the second; the
    last warp is the producer.

    InternalError if its loops over warps or lanes differ.
    """
    groups = _nest(kernel, GROUP_LOOPS)
    loops = {k: [s for s in statements_of(kernel.body) if isinstance(s, For) and s.kind == k] for k in THREAD_LOOPS}
    sizes = {kind: {_extent(s) for s in found} for kind, found in loops.items()}
    if loops["group"] or len(sizes["warp"]) != 1 or len(sizes["lane"]) != 1:
        raise InternalError(f"{kernel.name}: a pipelined loop serves warps of one number of lanes, found {sizes}")
    (warps,), (lanes,) = sizes["warp"], sizes["lane"]
    teams = team_count(kernel.body)
    axes = {s.var: n for n, s in enumerate(reversed(groups))}
    axes |= {s.var: n for n, kind in enumerate(("lane", "warp")) for s in loops[kind]}
    allocated = [s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "shared"]
    slots = slots_of([s for s in statements_of(kernel.body) if isinstance(s, TensorCopy) and not s.is_store])
    shared = sum(taken_bytes(b.nbytes, SLOTS) for b in dict.fromkeys(allocated))
    shared += barrier_bytes(slots, teams)
    clusters = [s for s in groups if s.kind == "cluster"]
    group = lanes, warps * teams + 1, 1
    return Geometry(_extents(kernel, groups), group, shared, axes, _extents(kernel, clusters) if clusters else ())


def _nest(kernel: Kernel, kinds: Sequence[str]) -> list[For]:
    """Return the loops of the ``kinds``, outermost first; each of them contains the next one."""
    nest: list[For] = []
    body: Stmt = kernel.body
    for s in statements_of(kernel.body):
        if isinstance(s, For) and s.kind in kinds:
            if s not in statements_of(body):
                raise InternalError(f"{kernel.name}: the {s.kind} loop {s.var} stands beside the loop {nest[-1].var}")
            nest.append(s)
            body = s.body
    return nest


def _extents(kernel: Kernel, nest: Sequence[For]) -> tuple[int, ...]:
    """Return the iterations of the loops of a ``nest`` along each axis, innermost first."""
    if len(nest) > len(AXES):
        names = ", ".join(str(s.var) for s in nest)
        raise InternalError(f"{kernel.name}: a nest of the {len(nest)} loops {names}; {len(AXES)} are legal")
    return (*(_extent(s) for s in reversed(nest)), *[1] * (len(AXES) - len(nest)))


def _extent(s: For) -> int:
    size = s.hi - s.lo
    if not size.is_const:
        raise InternalError(f"the {s.kind} loop {s.var} runs {size} times, which is no number")
    return size.const
