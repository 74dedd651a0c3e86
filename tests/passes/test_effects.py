"""Barriers and atomic additions under every pass: it refuses them, or moves no access across a barrier.

The example of each pass runs as the only thread of a group, with a barrier at one of several places or with an atomic
addition for a store. Each element of memory that the kernel writes must be read and written between the same barriers
as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from schedules import assert_same, results
from test_docstrings import EXAMPLES, NAMES, Example, example_of, interpret, memory, pass_of

from convsmith.diag.errors import ConfigError
from convsmith.interp.memory import BufferMemory
from convsmith.interp.thread_races import ThreadRaces
from convsmith.ir.buffer import UNKNOWN, Buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import (
    EFFECTS,
    SIGNALS,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Fence,
    For,
    Kernel,
    Meet,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    Store,
    Turn,
    block,
)
from convsmith.ir.types import PTR
from convsmith.ir.value import Binary, Load
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of
from convsmith.passes.flatten import flatten
from convsmith.passes.name_indices import name_indices
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.share_storage import share_storage
from convsmith.passes.simplify import simplify
from convsmith.passes.strength import strength_reduce
from convsmith.passes.unroll import unroll

FOR_THREADS = {
    "async_copies", "block_messages", "collapse", "delay_barriers", "distribute_copy", "distribute_copy-2",
    "hold_fragments", "load_ahead", "load_matrices", "multicast", "multiple_buffers", "pipeline_copies", "preload",
    "residue-2", "set_layout", "share_registers", "signal_steps", "split_barriers", "spread_lanes", "store_matrices",
    "take_turns", "tensor_copies", "map_to_threads",
}  # fmt: skip
"""Passes whose examples have loops over threads or groups already, or over host threads, or copies that stand in none.
"""
MOST = 24
"""Variants of an example that are run."""
Trace = dict[tuple[str, int], list[tuple[int, bool]]]
"""For each element of a parameter, the barriers passed at each access, and whether it writes."""


class _WithBarrier(Rewriter):
    """Puts a barrier before the statement of that number, in preorder, or after it."""

    def __init__(self, number: int, after: bool) -> None:
        super().__init__()
        self.number, self.after = number, after

    def stmt(self, s: Stmt) -> Stmt:
        if isinstance(s, Block):
            return super().stmt(s)
        self.number -= 1
        if self.number == -1:
            return block(s, Barrier()) if self.after else block(Barrier(), s)
        return super().stmt(s)


class _WithAtomic(Rewriter):
    """Makes an atomic addition of the store of that number, if it adds to a parameter."""

    def __init__(self, number: int, kernel: Kernel) -> None:
        super().__init__()
        self.number, self.kernel = number, kernel

    def visit_Store(self, s: Store) -> Stmt:
        self.number -= 1
        v = s.value
        adds = isinstance(v, Binary) and v.op == "add" and v.a is Load(s.buffer, s.index, s.lanes)
        if self.number == -1 and s.buffer in self.kernel.params:
            return AtomicAdd(s.buffer, s.index, v.b if isinstance(v, Binary) and adds else v, s.lanes)
        return s


def variants(kernel: Kernel) -> Iterator[Kernel]:
    """Yield the kernel as one thread, with barriers or atomic additions."""
    count = sum(not isinstance(x, Block) for x in statements_of(kernel.body))
    stores = sum(isinstance(x, Store) for x in statements_of(kernel.body))
    bodies = [_WithBarrier(n, after).stmt(kernel.body) for n in range(count) for after in (False, True)]
    bodies += [_WithAtomic(n, kernel).stmt(kernel.body) for n in range(stores)]
    packed = {pack.params[-1] for pack in kernel.packs}
    for body in bodies:
        if body is not kernel.body:
            for whole in (body, block(*(_written(b) for b in kernel.params if b not in packed), body)):
                yield replace(kernel, body=For(Var("thread"), as_index(0), as_index(1), whole, "group"))


def _written(b: Buffer) -> Stmt:
    """Return a loop that writes some elements of a parameter, as they are."""
    if b.dtype is PTR or UNKNOWN in b.shape or not all(b.shape):
        return Block(())
    var = Var(f"{b.name}.e")
    index = (*(as_index(0) for _ in b.shape[:-1]), var)
    return For(var, as_index(0), as_index(b.shape[-1]), Store(b, index, Load(b, index, None)))


def traced(kernel: Kernel, arrays: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Run the kernel; return between which barriers each element of a parameter is used."""
    trace: Trace = {}
    names = {b.name for b in kernel.params}
    touch = ThreadRaces.touch

    def recorded(self: ThreadRaces, memory: BufferMemory, places: Any, write: bool) -> str | None:
        if memory.name in names and self.now is not None:
            for place in places:
                use = self.now.passed, write
                uses = trace.setdefault((memory.name, place), [])
                if use not in uses:
                    uses.append(use)
        return touch(self, memory, places, write)

    monkeypatch.setattr(ThreadRaces, "touch", recorded)
    interpret(kernel, arrays)
    monkeypatch.undo()
    return trace


def legal_variants(example: Example) -> Iterator[Kernel]:
    for kernel in variants(example.old):
        try:
            verify(kernel)
        except Exception:  # a group loop within a parallel one, for example
            continue
        yield kernel


SHARED = """\
kernel k(a: f32[2, 8], c: f32[8])
  alloc s: f32[8] @shared:
    alloc z: f32[8] @shared:
      for t in 0 .. 8 #group:
        async s[t] = a[0, t]
        async z[t] = a[1, t]
        commit
        wait 0
        barrier
        for i in 0 .. 2 #unrolled:
          c[t] = c[t] + s[-t + 7] + z[(t + i) % 8]
        barrier
        atomic c[-t + 7] += s[t]
"""


def test_passes_after_the_barriers_keep_effects() -> None:
    """Each of the passes that run on threads changes the kernel or leaves it, and keeps every statement."""
    old = parse_kernel(SHARED)
    flat = flatten(old)
    assert [b.shape for b in flat.params] == [(16,), (8,)]
    for change in (flatten, simplify, unroll, name_indices, narrow_index, strength_reduce):
        new = change(flat)
        assert_same(old, new)
        for kind in set(EFFECTS) - set(SIGNALS):
            assert len([x for x in statements_of(new.body) if type(x) is kind]) == (
                2 if kind in (Barrier, AsyncCopy) else 1
            )


SIGNALLED = """\
kernel k(a: f32[40], c: f32[20])
  for g in 0 .. 2 #cluster:
    fence barriers
    meet
    registers 160 beside 24
    alloc s: f32[8] @shared:
      for i in 0 .. 10 #signalled:
        tensor s[i % 2 * 4 + g * 2] = a[0] dims(4:1, 10:4) box(2, 1) at(g * 2, i) to 2 groups
        receive
        for w in 0 .. 1 #warp:
          for l in 0 .. 1 #lane:
            c[g * 10 + i] = s[i % 2 * 4 - g * 2 + 3]
        release step i to cluster
    meet
"""


IN_TEAMS = """\
kernel k(a: f32[40], c: f32[20])
  for g in 0 .. 2 #grid:
    for x in 0 .. 1:
      for y in 0 .. 2 #team:
        alloc s: f32[4] @shared:
          fence barriers
          turn take
          for i in 0 .. 5 #signalled:
            tensor s[(y + i) % 2 * 2] = a[0] dims(4:1, 10:4) box(2, 1) at(-g * 2 + 2, y * 5 + i)
            receive
            for w in 0 .. 1 #warp:
              for l in 0 .. 1 #lane:
                c[g * 10 + y * 5 + i] = s[(y + i) % 2 * 2 + 1]
            release step i
          turn pass
"""
SIGNALS_OF = {
    SIGNALLED: {Fence: 1, Receive: 1, Release: 1, Meet: 2, ShareRegisters: 1},
    IN_TEAMS: {Fence: 1, Receive: 1, Release: 1, Turn: 2},
}  # fmt: skip


@pytest.mark.parametrize("text", SIGNALS_OF, ids=("cluster", "teams"))
def test_passes_keep_the_signals_of_a_loop(text: str) -> None:
    old = parse_kernel(text)
    assert {kind for signals in SIGNALS_OF.values() for kind in signals} == set(SIGNALS)
    for change in (simplify, unroll, name_indices, narrow_index):
        new = change(old)
        found = {"c": np.zeros(20, np.float32), "a": np.arange(40, dtype=np.float32)}
        interpret(new, found)
        np.testing.assert_array_equal(found["c"], [*range(3, 40, 4), *range(1, 40, 4)])
        for kind, count in SIGNALS_OF[text].items():
            assert len([x for x in statements_of(new.body) if type(x) is kind]) == count


APART = """\
kernel k(a: f32[8], c: f32[8])
  alloc s: f32[8] @shared:
    alloc z: f32[8] @shared:
      for t in 0 .. 8 #group:
        s[t] = a[t]
        barrier
        c[t] = s[-t + 7]
        z[t] = a[t]
        barrier
        c[t] = c[t] + z[-t + 7]
"""


def test_memory_of_threads_that_meet_is_not_shared() -> None:
    """A thread may write one buffer while another thread still reads the other one."""
    old = parse_kernel(APART)
    results(old)
    assert share_storage(old) is old


def test_atomic_additions_are_uses_of_memory() -> None:
    text = """\
kernel k(a: f32[8], c: f32[8])
  alloc s: f32[8] @shared:
    alloc z: f32[8] @shared:
      for t in 0 .. 8 #group: s[t] = a[t]
      for t in 0 .. 8 #group: z[t] = a[t]
      for t in 0 .. 8 #group: atomic s[-t + 7] += z[t]
      for t in 0 .. 8 #group: atomic c[t] += 1.0
"""
    for kernel in (parse_kernel(text), parse_kernel(text.replace("+= z[t]", "+= 1.0"))):
        assert share_storage(kernel) is kernel
    apart = parse_kernel(text.replace("s[-t + 7] += z[t]", "z[-t + 7] += 1.0"))
    new = share_storage(apart)
    assert new is not apart
    assert_same(apart, new)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - FOR_THREADS))
def test_no_access_crosses_a_barrier(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example, function = example_of(name), pass_of(name.partition("-")[0])
    _, arguments = example.call.removesuffix(")").split("(", 1)
    kernels = list(legal_variants(example))
    assert kernels, "no variant of the example is legal"
    for old in kernels[:: -(-len(kernels) // MOST)]:
        try:
            new = eval(f"run(kernel, {arguments})", {"run": function, "kernel": old, **NAMES})
        except ConfigError:
            continue
        if new is old:
            continue
        verify(new)
        before, after = (memory(old, new) for _ in range(2))
        expected, found = traced(old, before, monkeypatch), traced(new, after, monkeypatch)
        for b in old.written:
            np.testing.assert_array_equal(before[b.name], after[b.name], err_msg=f"{b}\n{old}\n{new}")
        shapes = [b for b in old.params if b in new.params and b in old.written]
        for (name, place), uses in expected.items():
            if any(b.name == name for b in shapes):
                crossed = {x for x in found.get((name, place), []) if x not in uses}
                assert not crossed, f"element {place} of {name}: {sorted(crossed)}, not {uses}\n{old}\n{new}"
