"""Load elements of shared memory that a loop reads into registers, iterations before their use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Let, Stmt, Store, block
from convsmith.ir.threads import has_effects
from convsmith.ir.value import Load, Select, Value
from convsmith.ir.walk import children, statements_of, variables_of
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.lets import Name
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.scope import LoopRewriter, require_loops, with_body, wrap


def _refuse(why: str) -> ConfigError:
    return ConfigError("buffering", f"register_buffers: {why}")


def _certain_loads(s: Stmt, around: tuple[For, ...] = ()) -> Iterator[tuple[Load, tuple[For, ...]]]:
    """Yield the loads that every run of ``s`` executes, each with the loops in ``s`` around it."""
    if isinstance(s, Block):
        for x in s.stmts:
            yield from _certain_loads(x, around)
    elif isinstance(s, For):
        yield from _certain_loads(s.body, (*around, s))
    elif isinstance(s, (Alloc, Let)):
        yield from _certain_loads(s.body, around)
    elif not isinstance(s, If):
        stack = [x for x in children(s) if isinstance(x, Value)]
        while stack:
            v = stack.pop()
            if isinstance(v, Load):
                yield v, around
            elif not isinstance(v, Select):
                stack += [x for x in children(v) if isinstance(x, Value)]


class _Preload(LoopRewriter):
    def __init__(self, loop: str, taken: set[str]) -> None:
        super().__init__()
        self.loop, self.taken = loop, taken
        self.made: list[str] = []

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if has_effects(loop.body):
            raise _refuse(f"loop {loop.var} holds barriers or copies; legal is a loop of one thread")
        written = written_in(loop.body)
        names: dict[Value, Value] = {}
        copies: list[Stmt] = []
        buffers: list[Buffer] = []
        for load, around in _certain_loads(loop.body):
            if load in names or load.buffer.scope != "shared" or load.buffer in written or load.lanes is not None:
                continue
            used = [x for x in around if x.var in variables_of(load)]
            if all(x.lo.is_const and x.hi.is_const and x.kind in ("serial", "unrolled") for x in used):
                new = self._buffer(load.buffer, used)
                index = tuple(x.var - x.lo for x in used)
                names[load] = Load(new, index, None)
                copies.append(wrap(used, Store(new, index, load)))
                buffers.append(new)
        if not names:
            raise _refuse(f"loop {loop.var} reads no shared memory unconditionally")
        body = block(*copies, Name(names).stmt(loop.body))
        for b in reversed(buffers):
            body = Alloc(b, body)
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, loop.carried)

    def _buffer(self, of: Buffer, used: Sequence[For]) -> Buffer:
        name = next(x for n in range(len(self.taken) + 1) if (x := f"{of.name}_r{n or ''}") not in self.taken)
        self.taken.add(name)
        self.made.append(name)
        return make_buffer(name, of.dtype, tuple((x.hi - x.lo).const for x in used), "register")


@stages(*LOOPS)
def register_buffers(kernel: Kernel, loop: str, count: int = 2, ahead: int = 1) -> Kernel:
    """Load the elements of shared memory that ``loop`` reads into registers, ``ahead`` iterations before their use.

    Every distinct read has an array of registers over the inner loops, with ``count`` slots as in ``multiple_buffers``,
    so that the latency of a load is hidden by an iteration. Loads under a condition are unchanged.

    Before::

        kernel k(a: f32[24], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              for i in 0 .. 3:
                s[i * 8 + t] = a[i * 8 + t]
            for t in 0 .. 8 #group:
              for k in 0 .. 3:
                c[t] = c[t] + s[k * 8 - t + 7]

    After ``register_buffers("k")``::

        kernel k(a: f32[24], c: f32[8])
          alloc s: f32[24] @shared:
            for t in 0 .. 8 #group:
              for i in 0 .. 3:
                s[i * 8 + t] = a[i * 8 + t]
            for t in 0 .. 8 #group:
              alloc s_r: f32[2] @register:
                s_r[0] = s[-t + 7]
                for k.o in 0 .. 1:
                  s_r[1] = s[k.o * 16 - t + 15]
                  c[t] = c[t] + s_r[0]
                  s_r[0] = s[k.o * 16 - t + 23]
                  c[t] = c[t] + s_r[1]
                c[t] = c[t] + s_r[0]
    """
    require_loops(kernel, (loop,), "register_buffers")
    allocated = [x.buffer for x in statements_of(kernel.body) if isinstance(x, Alloc)]
    preload = _Preload(loop, {b.name for b in (*kernel.params, *allocated)})
    new = with_body(kernel, preload.stmt(kernel.body))
    return multiple_buffers(new, loop, tuple(preload.made), count, ahead, unrolled=True)
