"""Make loops scalable: a machine whose vectors have several units runs one iteration per unit at a time.

The lanes of one iteration become a unit of a vector, the lanes of the next iterations the further units. This preserves
every address if the lanes of consecutive iterations are evenly apart in memory, or the same in all iterations.

The rewrite requires that iterations that run at once, statement by statement, do not depend on each other, which the
dependence test decides.  Control flow must not depend on the iteration, registers must belong to one, and instructions
must have a row that works on all units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import gcd
from typing import TypeGuard

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Cond, FloorDiv, Index, Mod, Var, as_index, minimum
from convsmith.ir.instruction import Instruction
from convsmith.ir.rewrite import substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Alloc, Block, For, If, Invoke, Kernel, PointerLoad, Stmt, Store, block
from convsmith.ir.value import Bits, Lanes, Load, Lookup, Repeat, Select, Sum, Sums, Value, lanes_of
from convsmith.ir.walk import children, statements_of, variables_of, walk
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.order import in_any_order, require_order
from convsmith.passes.own_memory import with_shared_memory
from convsmith.passes.scope import LoopRewriter, each_body, loop_range
from convsmith.passes.simplify import simplify_stmt


class _Obstacle(Exception):
    """The reason why iterations of a loop cannot be units of vectors."""


class _Units:
    """Checks that the iterations of ``var`` can be units; ``own`` are the registers that each iteration allocates."""

    def __init__(self, var: Var, own: Collection[Buffer], scalable: Mapping[str, Instruction]) -> None:
        self.var, self.own, self.scalable = var, own, scalable

    def step(self, index: tuple[Index, ...]) -> int:
        """Return the distance in elements by which an iteration moves an access of flat memory."""
        (place,) = index
        terms = dict(place.terms)
        step = terms.pop(self.var, 0)
        if any(self.var in variables_of(atom) for atom in terms):
            raise _Obstacle(f"{place} does not move evenly with {self.var}")
        return step

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, For):
            if s.kind not in ("serial", "unrolled") or s.carried:
                raise _Obstacle(f"loop {s.var} is {s.kind} or carries pointers")
            self.same((s.lo, s.hi), f"the bounds of loop {s.var}")
        elif isinstance(s, If):
            self.same((s.cond,), f"the condition {s.cond}")
        elif isinstance(s, Store) and isinstance(v := s.value, Load) and "fragment" in (s.buffer.scope, v.buffer.scope):
            for x in (s, v):
                self.fragment(x)
        elif isinstance(s, Store):
            self.access(s.buffer, s.index, s.lanes, s)
            if s.lanes is None and not s.buffer.in_registers:
                raise _Obstacle(f"{s} writes a single element")
            self.value(s.value)
        elif isinstance(s, Invoke):
            if s.instruction not in self.scalable:
                raise _Obstacle(f"{s.instruction} works on one unit")
            for v, operand in zip((s.dst, *s.args), self.scalable[s.instruction].operands):
                self.value(v) if operand.layout.scalable else self.factor(v)
        elif isinstance(s, PointerLoad):
            self.same((*s.index, s.offset, *s.zero_at), f"the pointer of {s.buffer}")
        elif isinstance(s, Alloc):
            if not s.buffer.in_registers:
                raise _Obstacle(f"{s.buffer} is allocated in the loop, and is no register")
        elif not isinstance(s, Block):
            raise _Obstacle(f"{type(s).__name__} cannot be done in units")

    def same(self, parts: tuple[Index | Cond, ...], what: str) -> None:
        if any(self.var in variables_of(x) for x in parts):
            raise _Obstacle(f"{what} differs between iterations")

    def access(self, buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None, what: Store | Load) -> None:
        """Raise _Obstacle unless lanes of all units are evenly apart, or the access is the same in all iterations."""
        if buffer.in_registers:
            self.same(index, f"the register of {what}")
            if buffer not in self.own or (lanes is not None and (lanes.stride != 1 or not lanes.is_whole)):
                raise _Obstacle(f"{what} is no whole vector of registers of the iteration")
            return
        apart = 0 if lanes is None else lanes.reach
        if apart is None or (lanes is not None and (not lanes.is_whole or lanes.count < 2)):
            raise _Obstacle(f"{what} has lanes that are absent or not evenly apart")
        if self.step(index) != apart:
            raise _Obstacle(f"units of {what} are {self.step(index)} elements apart; legal is {apart}")

    def fragment(self, x: Store | Load) -> None:
        """Raise _Obstacle unless the rows of a fragment in all units follow each other, if they are in memory."""
        rows = x.lanes.rows if x.lanes is not None else None
        if x.buffer.in_registers or rows is None:
            self.access(x.buffer, x.index, x.lanes, x)
        elif self.step(x.index) != rows[1]:
            raise _Obstacle(f"rows of {x} are {self.step(x.index)} elements apart in units; legal is {rows[1]}")

    def factor(self, v: Value) -> None:
        """Raise _Obstacle unless ``v``, which all units share, is the same in all iterations."""
        if not isinstance(v, Load) or self.moves(v):
            raise _Obstacle(f"{v} is not the same in all iterations")

    def value(self, v: Value) -> None:
        if isinstance(v, Load):
            self.access(v.buffer, v.index, v.lanes, v)
            return
        if isinstance(v, Repeat):
            for x in walk(v.a):
                if isinstance(x, (Sum, Sums, Select)) or (isinstance(x, Load) and self.moves(x)):
                    raise _Obstacle(f"{v} does not repeat the same in all iterations")
            return
        if isinstance(v, (Sum, Sums, Lookup)) or (isinstance(v, Bits) and lanes_of(v) != lanes_of(v.a)):
            raise _Obstacle(f"{v} moves lanes")
        if isinstance(v, Select):
            self.same((v.cond,), f"the condition {v.cond}")
        for x in children(v):
            if isinstance(x, Value):
                self.value(x)

    def moves(self, v: Load) -> bool:
        return v.buffer.in_registers or bool(self.step(v.index))


class _Scale(LoopRewriter):
    def __init__(self, names: tuple[str, ...], rows: Collection[Instruction], tasks: int) -> None:
        super().__init__()
        self.names, self.tasks = names, tasks
        self.pieces: set[Var] = set()
        self.scalable = {row.name: row.scaled for row in rows if row.scaled is not None}

    def visit_Block(self, s: Block) -> Stmt:
        shared = [x.var for x in s.stmts if _is_parallel(x)]
        if len(shared) > 1:  # pieces of one loop that threads share, which stay its pieces
            self.pieces.update(shared)
        return self._Block(s)

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name not in self.names or loop.kind not in ("serial", "parallel") or loop.carried:
            return self._For(loop)
        if loop.kind == "parallel" and loop.var in self.pieces:
            return self._For(loop)
        if loop.kind == "serial" and (made := self.scaled(loop)) is not None:
            return made
        return self.in_blocks(loop) or self._For(loop)

    def in_blocks(self, loop: For) -> Stmt | None:
        """Return ``loop`` as a loop over blocks of iterations that can be units; None if there are none.

        Tiles whose vectors begin within blocks take a half of a block, or less.
        """
        if not loop.lo.is_const or not loop.hi.is_const:
            return None
        size = _block_of(loop)
        if loop.kind == "parallel":
            share = -(-(loop.hi.const - loop.lo.const) // self.tasks)
            size = gcd(share, size) if size else share
        while size > 1:
            if (made := self.by(loop, size)) is not None:
                return made
            size //= 2
        return None

    def by(self, loop: For, size: int) -> Stmt | None:
        """Return ``loop`` as a loop over blocks of ``size`` iterations, if these can be units."""
        outer, count = Var(f"{loop.var.name}.b"), loop.hi.const - loop.lo.const
        rest = as_index(size) if count % size == 0 else minimum(size, count - outer * size)
        around = For(outer, as_index(0), as_index(-(-count // size)), loop.body, loop.kind)
        body = substitute(loop.body, {loop.var: loop.lo + outer * size + loop.var})
        self.around.append(around)
        made = self.innermost(For(loop.var, as_index(0), rest, body, loop.kind))
        self.around.pop()
        return None if made is None else For(outer, around.lo, around.hi, made, loop.kind)

    def innermost(self, loop: For) -> Stmt | None:
        """Return ``loop``, made scalable, within the loops that threads share with it, whose order may be any; None if
        some of its iterations cannot be units.
        """
        body = loop.body
        if loop.kind == "parallel" and isinstance(body, Block) and any(_is_parallel(x) for x in body.stmts):
            parts = [self.innermost(For(loop.var, loop.lo, loop.hi, x, loop.kind)) for x in body.stmts]
            return None if None in parts else block(*(x for x in parts if x is not None))
        if loop.kind == "parallel" and _is_parallel(body):
            if loop.var in variables_of(body.lo) | variables_of(body.hi):
                return None
            self.around.append(body)
            made = self.innermost(For(loop.var, loop.lo, loop.hi, body.body, loop.kind))
            self.around.pop()
            return None if made is None else For(body.var, body.lo, body.hi, made, body.kind)
        body = simplify_stmt(body, {**self.ranges, loop.var: loop_range(loop, self.ranges)})
        return self.scaled(For(loop.var, loop.lo, loop.hi, body, loop.kind))

    def scaled(self, loop: For) -> Stmt | None:
        """Return ``loop``, made scalable, with the memory that its iterations allocate around it; None if some of its
        iterations cannot be units.
        """
        around: list[Alloc] = []
        inside: Stmt = with_shared_memory(loop) or loop
        while isinstance(inside, Alloc):
            around.append(inside)
            inside = inside.body
        assert isinstance(inside, For)
        if not self.has_units(inside, loop):
            return None
        found: Stmt = For(inside.var, inside.lo, inside.hi, inside.body, "scalable")
        for x in reversed(around):
            found = Alloc(x.buffer, found)
        return found

    def has_units(self, loop: For, given: For) -> bool:
        """Return whether iterations of a loop of vectors can be units. Those of the ``given`` loop, which is the same,
        allocate their own memory, so that none reads what another one writes there.
        """
        if not any(x.lanes is not None for x in _stores(loop)):
            return False
        own = {s.buffer for s in statements_of(loop.body) if isinstance(s, Alloc)}
        units = _Units(loop.var, own, self.scalable)

        try:
            for s in statements_of(loop.body):
                units.stmt(s)
            sites = sites_of(given, self.ranges)
            require_order(
                f"scale: loop {given.var}", sites, lambda path: in_any_order(path, {given.var}), self.ranges
            )  # fmt: skip
        except (_Obstacle, ConfigError):
            return False
        return True


def _block_of(loop: For) -> int:
    """Return the iterations after which a quotient or a remainder of the loop's variable in an index first changes its
    course, as where channels are in blocks; 0 if no index has one.
    """
    found = []
    for x in walk(loop.body):
        if isinstance(x, FloorDiv | Mod) and (step := dict(x.num.terms).get(loop.var, 0)):
            found.append(x.den // gcd(x.den, step))
    return min(found, default=0)


def _is_parallel(s: Stmt) -> TypeGuard[For]:
    return isinstance(s, For) and s.kind == "parallel"


def _stores(loop: For) -> Iterator[Store]:
    return (s for s in statements_of(loop.body) if isinstance(s, Store))


@stages(*FLATTENED, ensures=TENSORISED)
def scale(kernel: Kernel, loops: tuple[str, ...], rows: tuple[Instruction, ...] = (), tasks: int = 1) -> Kernel:
    """Make each loop of the names scalable whose iterations can be units of vectors; requires a flat kernel.

    ``rows`` are the machine's instructions. A loop over blocks of channels, in which units are adjacent, is split so
    that the iterations of a block are units, and a loop that threads share is split into ``tasks`` blocks. Memory that
    iterations allocate is around the loop. Other loops are unchanged, and run on vectors of one unit.

    Before::

        kernel k(a: f32[8], b: f32[64], dst: f32[10])
          for i in 0 .. 2:
            alloc acc: f32[4] @register:
              acc[0]{4} = 0.0
              for k in 0 .. 8:
                acc[0]{4} = fma(a[k]{4:0}, b[i * 4 + k * 8]{4}, acc[0]{4})
              dst[i * 4]{4} = acc[0]{4}
          dst[8]{4/2} = a[0]{4:0}

    After ``scale(("i",))``::

        kernel k(a: f32[8], b: f32[64], dst: f32[10])
          for i in 0 .. 2 #scalable:
            alloc acc: f32[4] @register:
              acc[0]{4} = 0.0
              for k in 0 .. 8:
                acc[0]{4} = fma(a[k]{4:0}, b[i * 4 + k * 8]{4}, acc[0]{4})
              dst[i * 4]{4} = acc[0]{4}
          dst[8]{4/2} = a[0]{4:0}
    """
    return each_body(kernel, _Scale(tuple(loops), rows, tasks).stmt)
