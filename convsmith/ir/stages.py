"""The stages of a kernel during compilation; a grammar, held as data, states which nodes each stage permits.

==========  ==========================================================================================
naive       scalar statements in serial loops, over logical coordinates; a mask is a ``Select`` or an ``If``
scheduled   loops are split, reordered and bound to hardware; accumulators are arrays; thread loops end in a join
realised    a mask guards a statement or selects the whole stored value, and never occurs within arithmetic
            (a kernel that tests its masks at run time skips this stage)
flat        a memory access has one offset; a register access keeps its coordinates
tensorised  statements work on lanes; instructions are selected; loops carry pointers; indices have names; the threads
            of a group have one nest of loops, with barriers and asynchronous copies in it
unrolled    loops marked for unrolling are gone, so every register access has constant coordinates
==========  ==========================================================================================

:mod:`convsmith.ir.verify` checks the rules that hold at every stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.diag.record import record
from convsmith.ir.stmt import (
    THREAD_LOOPS,
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Call,
    Commit,
    Fence,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Meet,
    PointerLoad,
    Prefetch,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    Store,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.value import (
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Load,
    Lookup,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
)
from convsmith.ir.walk import statements_of, walk

_SCALAR: frozenset[type[Value]] = frozenset({Load, Const, Binary, Unary, Fma, Cast, Bits, Select, Where, Lookup})
_VECTOR: frozenset[type[Value]] = _SCALAR | {Repeat, Sum, Sums}
_FIRST: frozenset[type[Stmt]] = frozenset({Block, For, If, Alloc, Store, PointerLoad})
_PLAIN: frozenset[type[Stmt]] = _FIRST | {AtomicAdd, TensorCopy}
_LOOPS = frozenset({"serial", "unrolled", "parallel", "pipelined", "grid", *THREAD_LOOPS})


@record(frozen=True)
class Stage:
    """The nodes that a kernel of the stage may contain.

    ``inner_masks``: a Select may occur within arithmetic. ``flat``: memory has one dim without gaps. ``lanes``:
    accesses may have lanes. ``pointers``: loops may carry pointers, and functions may be called.
    ``constant_registers``: register accesses have constant coordinates. ``tables``: arrays may be read through tables
    of pointers, and not only by numbers of rows.
    """

    name: str
    statements: frozenset[type[Stmt]] = _PLAIN
    values: frozenset[type[Value]] = _SCALAR
    loops: frozenset[str] = _LOOPS
    inner_masks: bool = True
    flat: bool = True
    lanes: bool = False
    pointers: bool = False
    constant_registers: bool = False
    tables: bool = True

    def __str__(self) -> str:
        return self.name


_ALL = _PLAIN | {Let, Invoke, Call, Barrier, AsyncCopy, Commit, Wait, Fence, Receive, Release, Meet, Prefetch,
               ShareRegisters, Turn}  # fmt: skip

NAIVE = Stage("naive", _FIRST, loops=frozenset({"serial"}), flat=False, tables=False)
SCHEDULED = Stage("scheduled", flat=False)
REALISED = Stage("realised", inner_masks=False, flat=False)
FLAT = Stage("flat")
TENSORISED = Stage(
    "tensorised", _ALL, _VECTOR, _LOOPS | {"scalable", "signalled", "cluster", "team"}, lanes=True, pointers=True
)
UNROLLED = Stage(
    "unrolled", _ALL, _VECTOR, TENSORISED.loops - {"unrolled"}, lanes=True, pointers=True, constant_registers=True
)

STAGES = {s.name: s for s in (NAIVE, SCHEDULED, REALISED, FLAT, TENSORISED, UNROLLED)}


def violations(kernel: Kernel, stage: Stage) -> Iterator[str]:
    """Yield one message per node of ``kernel`` that ``stage`` does not permit, in program order, naming the statement.
    """
    if kernel.functions and not stage.pointers:
        yield f"function {kernel.functions[0].name}: functions come later"
    if stage.flat:
        for b in kernel.params:
            if not b.flat:
                yield f"parameter {b}: memory must have one dim, stored without gaps, not {list(b.shape)}"
    for body in (*(f.body for f in kernel.functions), kernel.body):
        for s in statements_of(body):
            yield from _statement(s, stage)


def _statement(s: Stmt, stage: Stage) -> Iterator[str]:
    line = str(s).partition("\n")[0]
    is_table = isinstance(s, PointerLoad) and s.rows is None
    if type(s) not in stage.statements or (is_table and not stage.tables):
        yield f"`{line}`: a statement {type(s).__name__} is not allowed"
    if isinstance(s, For):
        if s.kind not in stage.loops:
            yield f"`{line}`: a loop is {' or '.join(sorted(stage.loops))}, not {s.kind}"
        if s.carried and not stage.pointers:
            yield f"`{line}`: loops carry no pointers yet"
    elif isinstance(s, Alloc):
        if stage.flat and not s.buffer.in_registers and not s.buffer.flat:
            yield f"`{line}`: memory must have one dim, stored without gaps"
    elif isinstance(s, PointerLoad):
        if stage.flat and not s.buffer.flat:
            yield f"`{line}`: memory must have one dim, stored without gaps"
    elif isinstance(s, (Store, AtomicAdd)):
        accesses = [Load(s.buffer, s.index, s.lanes)]
        for v in walk(s.value):
            if not isinstance(v, Value):
                continue
            if type(v) not in stage.values:
                yield f"`{line}`: a value {type(v).__name__} is not allowed"
            if isinstance(v, Select) and v is not s.value and not stage.inner_masks:
                yield f"`{line}`: the mask {v.cond} stands inside of arithmetic"
            if isinstance(v, Load):
                accesses.append(v)
        yield from _accesses(line, accesses, stage)
    elif isinstance(s, Invoke):
        loads = [v for a in s.args for v in walk(a) if isinstance(v, Load)]
        yield from _accesses(line, [s.dst, *loads], stage)
    elif isinstance(s, (AsyncCopy, TensorCopy)):
        yield from _accesses(line, [s.dst, s.src], stage)


def _accesses(line: str, accesses: list[Load], stage: Stage) -> Iterator[str]:
    for a in accesses:
        if a.lanes and not stage.lanes:
            yield f"`{line}`: {a} has lanes"
        if stage.constant_registers and a.buffer.scope == "register" and not all(i.is_const for i in a.index):
            yield f"`{line}`: register {a} has coordinates that are not constant"
