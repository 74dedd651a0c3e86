"""Rules of loops over groups and threads: their nesting, and the places at which all threads of a group synchronise.

A *nest* is a chain of thread loops each of which is the whole body of the one around it.  Its iterations are threads;
their number is the position of the iteration, the outermost loop being the most significant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from convsmith.ir.index import Var
from convsmith.ir.stmt import (
    BARRIER_PARTS,
    EFFECTS,
    FENCED,
    GROUP_LOOPS,
    SIGNALS,
    THREAD_LOOPS,
    AsyncCopy,
    Barrier,
    Block,
    Commit,
    Fence,
    For,
    Let,
    Stmt,
    TensorCopy,
    Wait,
)
from convsmith.ir.walk import statements_of, variables_of

_LEVELS = {"group": 0, "warp": 0, "lane": 1}
"""Level of each kind of thread loop; a loop is never nested in a loop of a higher level."""


def nest_of(loop: For) -> list[For]:
    """Return the nest of thread loops that starts at ``loop``, outermost first."""
    out = [loop]
    while isinstance(inner := out[-1].body, For) and inner.kind in THREAD_LOOPS:
        out.append(inner)
    return out


def has_effects(s: Stmt, kinds: tuple[type[Stmt], ...] = EFFECTS) -> bool:
    """Return whether ``s`` contains an effect of the ``kinds``."""
    return any(type(x) in kinds for x in statements_of(s))


class PipelineParts(NamedTuple):
    """The body of a pipelined loop: the names around its copies, the copies, and the other statements."""

    lets: tuple[Let, ...]
    copies: tuple[TensorCopy, ...]
    uses: tuple[Stmt, ...]

    def around(self, body: Stmt) -> Stmt:
        """Return ``body`` with the names around it."""
        for x in reversed(self.lets):
            body = Let(x.var, x.value, body)
        return body


def pipeline_parts(loop: For) -> PipelineParts | None:
    """Return the parts of a pipelined loop, or None where it does not begin with copies through tensor maps."""
    lets: list[Let] = []
    parts: list[Stmt] = []

    def collect(s: Stmt) -> None:
        if isinstance(s, Block):
            for x in s.stmts:
                collect(x)
        elif isinstance(s, Let) and any(isinstance(x, TensorCopy) for x in statements_of(s)):
            lets.append(s)
            collect(s.body)
        else:
            parts.append(s)

    collect(loop.body)
    copies = [x for x in parts if isinstance(x, TensorCopy)]
    if not copies or parts[: len(copies)] != copies:
        return None
    return PipelineParts(tuple(lets), tuple(copies), tuple(parts[len(copies) :]))


def slots_of(copies: Sequence[TensorCopy]) -> int:
    """Return the slots of the buffers that ``copies`` fill; all copies to one buffer fill the same slot. Copies with a
    condition fill places that stay.
    """
    buffer = next((x for x in copies if x.cond is None), copies[0]).dst.buffer
    return buffer.size // sum(s.map.size * s.groups for s in copies if s.dst.buffer is buffer)


def team_count(body: Stmt) -> int:
    """Return the number of teams of warps that take turns; 1 if all warps of a group work together."""
    loop = next((s for s in statements_of(body) if isinstance(s, For) and s.kind == "team"), None)
    return 1 if loop is None else (loop.hi - loop.lo).const


class ThreadScope:
    """The loops over threads around a statement, and the variables whose values differ between threads."""

    def __init__(self, fail: Callable[[str], NoReturn]) -> None:
        self._fail = fail
        self._own: set[Var] = set()
        self._apart: list[str] = []
        self._nests: list[For] = []
        self._inner: set[For] = set()

    def loop(self, s: For, around: list[str], in_function: bool) -> None:
        """Check a loop over groups or threads, given the kinds of the loops around it."""
        if in_function or s.carried:
            self._fail(f"a {s.kind} loop carries no pointers, and stands in no function")
        if s.kind in GROUP_LOOPS:
            if any(kind != "grid" for kind in around):
                self._fail(f"a {s.kind} loop stands inside of grid loops only")
            return
        if "parallel" in around or "scalable" in around:
            self._fail(f"a {s.kind} loop stands in a parallel or scalable loop")
        higher = [kind for kind in around if kind in _LEVELS and _LEVELS[kind] > _LEVELS[s.kind]]
        if higher:
            self._fail(f"a {s.kind} loop stands in a {higher[0]} loop")
        if not self._own.isdisjoint(variables_of(s.lo) | variables_of(s.hi)):
            self._fail(f"the bounds {s.lo} .. {s.hi} of the {s.kind} loop differ between threads")

    @contextmanager
    def within(self, s: For) -> Iterator[None]:
        """Enter the body of a loop of any kind."""
        if s.kind in THREAD_LOOPS:
            opens = s not in self._inner
            if opens:
                self._nests.append(s)
                self._inner.update(nest_of(s))
            self._own.add(s.var)
            yield
            self._own.discard(s.var)
            if opens:
                self._nests.pop()
        elif self._nests:
            bounds = variables_of(s.lo) | variables_of(s.hi)
            with self.under(f"the loop {s.var}", bounds), self.binding(s.var, bounds):
                yield
        else:
            yield

    @contextmanager
    def under(self, what: str, variables: Iterable[Var]) -> Iterator[None]:
        """Run the block, whose statements run only where ``variables`` permit."""
        differs = not self._own.isdisjoint(variables)
        if differs:
            self._apart.append(what)
        yield
        if differs:
            self._apart.pop()

    @contextmanager
    def binding(self, var: Var, variables: Iterable[Var]) -> Iterator[None]:
        """Enter the scope of a variable whose value depends on ``variables``."""
        differs = not self._own.isdisjoint(variables)
        if differs:
            self._own.add(var)
        yield
        if differs:
            self._own.discard(var)

    def effect(self, s: Stmt) -> None:
        """Check the place of a barrier, an asynchronous copy, a commit, a wait or a signal."""
        if isinstance(s, SIGNALS) or (isinstance(s, (Commit, Wait)) and s.of != "copies"):
            if self._nests:
                self._fail(f"`{s}` stands in loops over threads, all of which execute it; legal is a place outside")
            if isinstance(s, Fence) and s.of not in FENCED:
                self._fail(f"a fence orders {' or '.join(FENCED)}, not {s.of}")
            return
        if not self._nests:
            self._fail(f"`{s}` stands outside of the loops over threads")
        if isinstance(s, Wait) and s.pending < 0:
            self._fail(f"`{s}`: at least 0 groups may be pending")
        if isinstance(s, AsyncCopy):
            return
        if isinstance(s, Barrier) and s.part not in BARRIER_PARTS:
            self._fail(f"a barrier is {' or '.join(BARRIER_PARTS)}, not {s.part}")
        if len(self._nests) > 1:
            self._fail(f"`{s}` stands in loops over threads that are not one nest")
        if isinstance(s, Barrier) and self._apart:
            self._fail(f"`{s}` stands under {self._apart[-1]}, which differs between threads")
