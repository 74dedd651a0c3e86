"""Statements, functions and kernels: immutable trees, not interned.

A loop runs over ``lo .. hi`` in steps of one and does not run if ``hi <= lo``.  A loop may *carry* pointers: each
starts at ``init`` and advances by ``step`` elements per iteration.  A carried pointer, like a pointer parameter of a
function, is a variable that denotes a position in one buffer.

A device runs the iterations of ``grid`` loops as groups, in any order, and those of ``group``, ``warp`` and ``lane``
loops as the threads of a group.  A nest of thread loops ends in a join: the statement after it sees all that the
threads wrote.  Within the nest, a thread sees what another thread wrote only after a :class:`Barrier`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, dataclass_transform

from convsmith.diag.forking import import_lock
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Var
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.value import Lanes, Load, Value

THREAD_LOOPS = ("group", "warp", "lane")
"""Kinds of the loops whose iterations are the threads of a group, from the outermost to the innermost."""
GROUP_LOOPS = ("grid", "cluster")
"""Loops whose iterations are groups of threads."""
LOOP_KINDS = (
    "serial", "unrolled", "parallel", "scalable", "pipelined", "signalled", "team", *GROUP_LOOPS, *THREAD_LOOPS
)  # fmt: skip
PIPELINED = ("pipelined", "signalled")
"""Kinds of loops whose copies through tensor maps run ahead."""
BARRIER_PARTS = ("whole", "arrive", "wait")
TURN_PARTS = ("take", "pass")
GROUPED = ("copies", "products", "stores")
"""Kinds of operations that a thread closes groups of, and waits for."""
FENCED = ("registers", "shared", "barriers")
"""Kinds of state that a fence makes visible to asynchronous operations."""


T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def _statement(cls: type[T]) -> type[T]:
    """Return ``cls`` as an immutable record whose constructor sets the slots directly, since passes construct many."""
    made = dataclass(frozen=True, eq=False, slots=True, repr=False)(cls)
    names = [f.name for f in fields(made)]  # type: ignore[arg-type]
    defaults = {f.name: f.default for f in fields(made) if f.default is not MISSING}  # type: ignore[arg-type]
    arguments = ", ".join(f"{n}=_defaults[{n!r}]" if n in defaults else n for n in names)
    sets = "\n".join(f"    _set_{n}(self, {n})" for n in names)
    scope: dict[str, Any] = {f"_set_{n}": made.__dict__[n].__set__ for n in names} | {"_defaults": defaults}
    exec(f"def __init__(self, {arguments}):\n{sets or '    pass'}\n", scope)
    made.__init__ = scope["__init__"]  # type: ignore[method-assign]
    return made


class Stmt:
    """Base class of statements."""

    __slots__ = ("_variables",)

    def __str__(self) -> str:
        with import_lock:
            from convsmith.ir.text import stmt_text

        return stmt_text(self)


@_statement
class Block(Stmt):
    """Statements executed in order."""

    stmts: tuple[Stmt, ...]


class Carried(NamedTuple):
    """A pointer into ``buffer`` that a loop carries: ``var = init`` before, ``var += step`` after each iteration."""

    var: Var
    buffer: Buffer
    init: Index
    step: int


@_statement
class For(Stmt):
    """``for var in lo .. hi``.  Iterations of a ``parallel`` loop must not touch each other's elements.

    A machine whose vectors have ``vscale`` units runs ``vscale`` iterations of a ``scalable`` loop at a time, statement
    by statement: an iteration has one unit of each vector, and the last vectors are cut short where iterations end.

    Iterations of a ``grid`` loop are groups of threads: they run in any order and touch each other's elements by
    :class:`AtomicAdd` only.  The iterations of a ``cluster`` loop, the innermost loop over groups, run at once: a copy
    of one of these groups may be a multicast to all of them.  Iterations of ``group``, ``warp`` and ``lane`` loops are
    threads, which run at once; the ``lane`` loops of a ``warp`` hold the threads that execute an instruction together.

    The body of a ``pipelined`` loop begins with :class:`TensorCopy` statements.  A group executes them for later
    iterations while threads run the other statements of earlier ones, as many ahead as their buffers have room for.
    In a ``signalled`` loop, statements order them: the elements that a copy brings are there once a :class:`Receive`
    has been executed, and a copy for a later iteration starts once a :class:`Release` has freed its slot.  Products of
    instructions that read shared memory end at a :class:`Wait` there, and need each a :class:`Fence` before them.

    A group has as many *teams* of warps as a ``team`` loop has iterations, each of which executes the iteration of its
    number. An iteration has a signalled loop between two :class:`Turn` statements, and runs it once the iteration
    before it, maybe one of an earlier run of the loop, has received all of its copies; all else runs beside others.
    """

    var: Var
    lo: Index
    hi: Index
    body: Stmt
    kind: str = "serial"
    carried: tuple[Carried, ...] = ()


LANE = Var("lane_number")
"""The number of a lane of a vector, in the condition of an :class:`If`."""


@_statement
class If(Stmt):
    """Executes ``body`` if the condition holds.

    If the condition contains `LANE`, the body consists of stores and instructions on vectors, which are executed for
    the lanes for which the condition holds, a run of adjacent ones that may be empty. Other lanes of memory are neither
    read nor written, except where all lanes read one element, and other lanes of registers keep their values.
    """

    cond: Cond
    body: Stmt


@_statement
class Let(Stmt):
    """Binds ``var = value`` within ``body``."""

    var: Var
    value: Index
    body: Stmt


@_statement
class Alloc(Stmt):
    """Allocates ``buffer``, uninitialised, within ``body``."""

    buffer: Buffer
    body: Stmt


class NumberedRows(NamedTuple):
    """Parts of an array by number: ``total`` of them, each ``step`` elements after the one before."""

    total: int
    step: int


@_statement
class PointerLoad(Stmt):
    """Binds ``buffer`` within ``body`` to the memory at which an entry of a table points; ``body`` only reads it.

    The entry ``table[index]`` of a pointer table is a position in ``source``, to which ``offset`` elements are added.
    An absent entry points at the element ``zero_at`` of ``zero`` instead, without the offset.

    With ``rows``, the table holds whole numbers: an entry is the number of a row. Row 0 begins at the element
    ``offset`` of ``source``. A negative entry counts from the end. A number beyond the rows is absent.
    """

    buffer: Buffer
    table: Buffer
    index: tuple[Index, ...]
    offset: Index
    source: Buffer
    zero: Buffer
    zero_at: tuple[Index, ...]
    body: Stmt
    rows: NumberedRows | None = None


@_statement
class Store(Stmt):
    """``buffer[index] = value``; with ``lanes``, only the active lanes are written."""

    buffer: Buffer
    index: tuple[Index, ...]
    value: Value
    lanes: Lanes | None = None


@_statement
class Invoke(Stmt):
    """A machine instruction (a row of the target's table): ``dst = instruction(dst, *args)``.

    ``dst`` is the accumulator fragment, which is read and written; each argument has as many lanes as the operand in
    the instruction's specification.
    """

    instruction: str
    dst: Load
    args: tuple[Value, ...]


@_statement
class Call(Stmt):
    """Calls a function of the kernel with pointers (positions in the named buffers) and indices."""

    function: str
    pointers: tuple[tuple[Buffer, Index], ...]
    indices: tuple[Index, ...]


@_statement
class Barrier(Stmt):
    """A barrier of all threads of a group; ``part`` is one of BARRIER_PARTS.

    No thread passes a ``whole`` barrier before all have reached it.  ``arrive`` says that the thread has reached the
    barrier, without stopping it; the ``wait`` that follows stops the thread until all threads have arrived.
    """

    part: str = "whole"


@_statement
class AsyncCopy(Stmt):
    """Starts a copy of the elements ``src`` to the elements ``dst``, or of zeros where ``cond`` does not hold.

    The copy belongs to the thread's open group of copies. Until the thread waits for the group, no thread may access
    ``dst`` or write ``src``; other threads see ``dst`` only after a barrier that follows the wait.
    """

    dst: Load
    src: Load
    cond: Cond | None = None


@_statement
class Commit(Stmt):
    """Closes the thread's open group of asynchronous copies, which may be empty, or the group's open group of products
    or stores."""

    of: str = "copies"


@_statement
class Wait(Stmt):
    """Stops the thread until all closed groups of asynchronous copies, products or stores, except the ``pending``
    latest, have ended."""

    pending: int = 0
    of: str = "copies"


@_statement
class Fence(Stmt):
    """Orders what all threads of a group did before the asynchronous operations that follow.

    A fence of ``registers`` orders their accesses to fragments before products that add to them. A fence of ``shared``
    memory orders their stores to it before products and stores of tensors that read it. A fence of ``barriers`` lets
    the copy engine see the barriers by which the slots of a signalled loop are received and released.
    """

    of: str


@_statement
class Receive(Stmt):
    """Stops all threads of a group until the copies of an iteration of the signalled loop around it have arrived."""


@_statement
class Release(Stmt):
    """Lets the copy engine fill the slots of iteration ``step`` of a signalled loop again; before its first iteration
    it does nothing.

    The group itself may fill them, and with ``to_cluster`` all groups of its cluster.
    """

    step: Index
    to_cluster: bool = False


@_statement
class Meet(Stmt):
    """Stops all threads of a group until all groups of its cluster have reached the statement.

    A multicast fills slots of groups that have met after their fence of barriers, and no group ends before the others
    have met it after their last multicast and their last release to the cluster.
    """


@_statement
class TensorCopy(Stmt):
    """Copies the part of a tensor that ``map`` brings to shared memory, or *stores* it from there; a group executes it
    once.

    The tensor begins at the element ``src``, the copy at ``dst``; a store is the other way round.  The part lies ``at``
    coordinates of the tensor, innermost first; ``offsets`` move the pixels of an im2col map along the dims between
    channels and images.  A multicast brings it to the same place in each of so many ``groups``, those of the cluster,
    each of which brings another part of a step's elements.  Where ``cond`` does not hold, a copy brings nothing, and
    what it has brought stays when its step is released.  A store writes no element outside of the tensor.  In a kernel
    with a ``signalled`` loop, it belongs to the open group of stores and reads ``src`` until a :class:`Wait` for that
    group.
    """

    dst: Load
    src: Load
    map: TensorMap
    at: tuple[Index, ...]
    offsets: tuple[Index, ...] = ()
    groups: int = 1
    cond: Cond | None = None

    @property
    def is_store(self) -> bool:
        """Whether it copies from shared memory to the tensor."""
        return self.dst.buffer.scope == "global"

    @property
    def tensor(self) -> Buffer:
        """The array of the tensor."""
        return (self.dst if self.is_store else self.src).buffer


@_statement
class AtomicAdd(Stmt):
    """``buffer[index] += value``, indivisibly; other threads and groups may add to the element at the same time."""

    buffer: Buffer
    index: tuple[Index, ...]
    value: Value
    lanes: Lanes | None = None


@_statement
class Prefetch(Stmt):
    """Asks the second-level cache for the line of the element ``buffer[index]``, which may lie beyond the buffer.

    A hint, which changes no value.
    """

    buffer: Buffer
    index: tuple[Index, ...]


@_statement
class ShareRegisters(Stmt):
    """Gives each lane of a group that executes its statements ``count`` registers. The threads that start the copies of
    signalled loops keep ``copiers`` registers each, and leave the others to these lanes.

    A group does this once, before its first signalled loop.
    """

    count: int
    copiers: int


@_statement
class Turn(Stmt):
    """Orders the signalled loops of the iterations of a ``team`` loop: an iteration takes its turn before its loop, and
    then passes it to the next iteration.
    """

    part: str


SIGNALS = (Fence, Receive, Release, Meet, ShareRegisters, Turn)
"""Statements of all threads of a group that order asynchronous operations."""
FENCES = (Barrier, AsyncCopy, Commit, Wait, *SIGNALS)
"""Statements that order the memory accesses of threads: no access moves across a fence."""
EFFECTS = (*FENCES, AtomicAdd)
"""Statements that order or share memory between threads."""


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """An outlined function: ``pointers`` are (variable, buffer) pairs, ``indices`` are plain variables."""

    name: str
    pointers: tuple[tuple[Var, Buffer], ...]
    indices: tuple[Var, ...]
    body: Stmt


@dataclass(frozen=True, eq=False, slots=True)
class Kernel:
    """A kernel: its arguments in order, its body, the functions it calls and the width of its indices.

    ``packs`` are kernels that pack operands of this one (see ``derive_packing``); the kernels ``before`` run after them
    and write further arguments.  ``index_bits`` is 0 until a pass has proved a width.  ``sizes`` are non-negative
    indices that the caller passes after the arrays.  ``streamed`` are names of buffers whose elements no later load
    finds in the nearest cache, with the bytes from a vector to the cache line that its load prefetches, or 0 where
    loads prefetch none: a hint, which changes no value.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    functions: tuple[Function, ...] = ()
    packs: tuple[Kernel, ...] = ()
    index_bits: int = 0
    sizes: tuple[Var, ...] = ()
    before: tuple[Kernel, ...] = ()
    streamed: Mapping[str, int] = field(default_factory=dict)

    @property
    def written(self) -> tuple[Buffer, ...]:
        """The parameters that the kernel writes, in order."""
        stores = {s.buffer for s in _below(self.body) if isinstance(s, (Store, AtomicAdd))}
        stores |= {s.tensor for s in _below(self.body) if isinstance(s, TensorCopy) and s.is_store}
        return tuple(b for b in self.params if b in stores)

    def __str__(self) -> str:
        with import_lock:
            from convsmith.ir.text import kernel_text

        return kernel_text(self)


def _below(s: Stmt) -> list[Stmt]:
    found, stack = [], [s]
    while stack:
        x = stack.pop()
        found.append(x)
        if isinstance(x, Block):
            stack.extend(x.stmts[::-1])
        elif isinstance(x, (For, If, Let, Alloc, PointerLoad)):
            stack.append(x.body)
    return found


def block(*stmts: Stmt) -> Stmt:
    """Return the statements in order with nested blocks flattened; a single statement is returned as it is."""
    out: list[Stmt] = []
    for s in stmts:
        out.extend(s.stmts if type(s) is Block else (s,))
    return out[0] if len(out) == 1 else Block(tuple(out))
