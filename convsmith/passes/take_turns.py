"""Let teams of warps compute the tiles of a group in turn: one multiplies while others store results."""

from __future__ import annotations

from functools import partial

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, floordiv
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import Alloc, Fence, For, If, Kernel, Let, Stmt, TensorCopy, Turn, block
from convsmith.ir.walk import statements_of
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import with_body


class _TakeTurns(Rewriter):
    def __init__(self, teams: int) -> None:
        super().__init__()
        self.teams, self.rounds = teams, 0
        self.own: dict[Buffer, Buffer] = {}
        """Arrays from which tiles are stored, each with the array that has a tile of every team in its place."""

    def visit_Alloc(self, s: Alloc) -> Stmt:
        body = self.stmt(s.body)
        return Alloc(self.own.get(s.buffer, s.buffer), body)

    def visit_For(self, loop: For) -> Stmt:
        inside = list(statements_of(loop.body))
        if loop.kind == "signalled" and self.rounds:
            return block(Turn("take"), loop, Turn("pass"))
        if loop.kind != "serial" or not any(map(_is_signalled, inside)):
            return self._For(loop)
        self.rounds += 1
        if self.rounds > 1 or loop.lo is not as_index(0) or loop.carried:
            raise ConfigError("teams", f"take_turns: loop {loop.var} has rounds of a group; legal is one loop from 0")
        if any(isinstance(s, TensorCopy) and s.cond is not None for s in inside):
            raise ConfigError(
                "teams", f"take_turns: loop {loop.var} has copies that serve several rounds; legal are copies of each "
                "round",
            )  # fmt: skip
        if any(isinstance(s, Fence) and s.of == "shared" for x in inside if _is_signalled(x) for s in statements_of(x)):
            raise ConfigError("teams", f"take_turns: threads meet in steps of loop {loop.var}; legal is no fence there")
        rounds, team = Var(f"{loop.var}.r"), Var(f"{loop.var}.t")
        body = self._with_own_tiles(self.stmt(loop.body), team)
        if not (loop.hi.is_const and loop.hi.const % self.teams == 0):
            body = If(loop.var < loop.hi, body)
        own = For(team, as_index(0), as_index(self.teams), Let(loop.var, rounds * self.teams + team, body), "team")
        return For(rounds, as_index(0), floordiv(loop.hi + (self.teams - 1), self.teams), own)

    def _with_own_tiles(self, body: Stmt, team: Var) -> Stmt:
        """Return the statements of a round, which stores a tile from the elements of its ``team``."""
        for old in {s.src.buffer: None for s in statements_of(body) if isinstance(s, TensorCopy) and s.is_store}:
            self.own[old] = make_buffer(old.name, old.dtype, (old.size * self.teams,), old.scope)
            body = Relocate(old, self.own[old], partial(_moved, distance=team * old.size)).stmt(body)
        return body


def _moved(at: tuple[Index, ...], distance: Index) -> tuple[Index, ...]:
    return (at[0] + distance,)


def _is_signalled(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == "signalled"


@stages(*FLATTENED, ensures=UNROLLED)
def take_turns(kernel: Kernel, teams: int) -> Kernel:
    """Give the rounds of a group to so many ``teams`` of its warps in turn.

    A team runs the signalled loop of its round once the team of the round before has received all of its copies, and
    passes the turn on behind this loop. It sets its sums to zero and stores its results while others multiply. Where an
    engine stores the tiles, each team writes them to elements of its own, and its threads alone meet at fences.

    Before::

        kernel k(a: f32[16], c: f32[16])
          for g in 0 .. 1 #grid:
            for x in 0 .. 2:
              alloc s: f32[4] @shared:
                fence barriers
                for i in 0 .. 4 #signalled:
                  tensor s[i % 2 * 2] = a[0] dims(2:1, 8:2) box(2, 1) at(0, i + x * 4)
                  receive
                  for w in 0 .. 1 #warp:
                    for l in 0 .. 2 #lane:
                      c[i * 2 + l + x * 8] = s[l + i % 2 * 2]
                  release step i

    After ``take_turns(2)``::

        kernel k(a: f32[16], c: f32[16])
          for g in 0 .. 1 #grid:
            for x.r in 0 .. 1:
              for x.t in 0 .. 2 #team:
                let x = x.r * 2 + x.t:
                  alloc s: f32[4] @shared:
                    fence barriers
                    turn take
                    for i in 0 .. 4 #signalled:
                      tensor s[i % 2 * 2] = a[0] dims(2:1, 8:2) box(2, 1) at(0, i + x * 4)
                      receive
                      for w in 0 .. 1 #warp:
                        for l in 0 .. 2 #lane:
                          c[i * 2 + l + x * 8] = s[l + i % 2 * 2]
                      release step i
                    turn pass
    """
    if teams < 2:
        raise ConfigError("teams", f"take_turns: {teams} teams; legal are two and more")
    rewriter = _TakeTurns(teams)
    body = rewriter.stmt(kernel.body)
    if not rewriter.rounds:
        raise ConfigError("teams", "take_turns: a group computes one tile; legal are several, one after the other")
    return with_body(kernel, body)
