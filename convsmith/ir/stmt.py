"""Statements, functions and kernels: plain immutable trees, not interned.

Loops run ``lo .. hi`` in steps of one; where ``hi <= lo`` they do not run.  A loop may *carry* pointers: each
starts at ``init`` and moves by ``step`` elements an iteration.  A carried pointer, like a pointer parameter of a
function, is a variable that stands for a position in one buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from convsmith.diag.forking import import_lock
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, Index, Var
from convsmith.ir.value import Lanes, Load, Value

LOOP_KINDS = ("serial", "unrolled", "parallel")


class Stmt:
    """Base of statements."""

    __slots__ = ()

    def __str__(self) -> str:
        with import_lock:
            from convsmith.ir.text import stmt_text

        return stmt_text(self)


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Block(Stmt):
    """Statements one after the other."""

    stmts: tuple[Stmt, ...]


class Carried(NamedTuple):
    """A pointer into ``buffer`` that a loop carries: ``var = init``, then ``var += step`` an iteration."""

    var: Var
    buffer: Buffer
    init: Index
    step: int


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class For(Stmt):
    """``for var in lo .. hi``.  Iterations of a ``parallel`` loop must not touch each other's elements."""

    var: Var
    lo: Index
    hi: Index
    body: Stmt
    kind: str = "serial"
    carried: tuple[Carried, ...] = ()


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class If(Stmt):
    """``body`` where the condition holds."""

    cond: Cond
    body: Stmt


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Let(Stmt):
    """``var = value`` within ``body``."""

    var: Var
    value: Index
    body: Stmt


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Alloc(Stmt):
    """``buffer`` lives within ``body``; it starts uninitialised."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class At(Stmt):
    """Within ``body``, ``buffer`` is the memory that an entry of a table of pointers points to; it is only read.

    The entry points into ``source``, and ``offset`` elements are added to it; or it is absent, that is, it points to
    the element ``zero_at`` of ``zero``, and nothing is added.
    """

    buffer: Buffer
    table: Buffer
    index: tuple[Index, ...]
    offset: Index
    source: Buffer
    zero: Buffer
    zero_at: tuple[Index, ...]
    body: Stmt


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Store(Stmt):
    """``buffer[index] = value``; with ``lanes`` the active lanes are written, the others left alone."""

    buffer: Buffer
    index: tuple[Index, ...]
    value: Value
    lanes: Lanes | None = None


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Invoke(Stmt):
    """A machine instruction (a row of the target's table): ``dst = instruction(dst, *args)``.

    ``dst`` names the accumulator fragment that is read and written; each argument has the lanes that
    the instruction's specification gives that operand.
    """

    instruction: str
    dst: Load
    args: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Call(Stmt):
    """Call a function of the kernel: pointer arguments first (positions in the named buffers), then indices."""

    function: str
    pointers: tuple[tuple[Buffer, Index], ...]
    indices: tuple[Index, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """An outlined piece: ``pointers`` are (variable, buffer) pairs, ``indices`` plain variables."""

    name: str
    pointers: tuple[tuple[Var, Buffer], ...]
    indices: tuple[Var, ...]
    body: Stmt


@dataclass(frozen=True, eq=False, slots=True)
class Kernel:
    """A kernel: its arguments in order, its body, the functions it calls and the width of its indices.

    ``packs`` are kernels that pack operands of this one (see ``derive_packing``), and those ``before`` run after them
    and write further arguments; ``index_bits`` is 0 until a pass has proved a width.  ``sizes`` are indices that a call
    gives after the arrays, none of them negative.
    """

    name: str
    params: tuple[Buffer, ...]
    body: Stmt
    functions: tuple[Function, ...] = ()
    packs: tuple[Kernel, ...] = ()
    index_bits: int = 0
    sizes: tuple[Var, ...] = ()
    before: tuple[Kernel, ...] = ()

    @property
    def written(self) -> tuple[Buffer, ...]:
        """The parameters that the kernel writes, in order."""
        stores = {s.buffer for s in _below(self.body) if isinstance(s, Store)}
        return tuple(b for b in self.params if b in stores)

    def __str__(self) -> str:
        with import_lock:
            from convsmith.ir.text import kernel_text

        return kernel_text(self)


def _below(s: Stmt) -> Iterator[Stmt]:
    yield s
    inner = s.stmts if isinstance(s, Block) else (s.body,) if isinstance(s, (For, If, Let, Alloc, At)) else ()
    for x in inner:
        yield from _below(x)


def block(*stmts: Stmt) -> Stmt:
    """The statements in order, nested blocks flattened; a single one as itself."""
    out: list[Stmt] = []
    for s in stmts:
        out.extend(s.stmts if type(s) is Block else (s,))
    return out[0] if len(out) == 1 else Block(tuple(out))
