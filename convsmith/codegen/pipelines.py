"""Kernels with a signalled loop as LLVM text: one warp produces, the other warps consume.

A slot of shared memory has two barriers. A *full* barrier ends a phase once the copies of a step have brought their
bytes; a *free* barrier, once every consumer warp has multiplied them. The step ``s`` uses the slot ``s % slots`` for
the ``s // slots``-th time; the parity of that number names the phase that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convsmith.codegen.device_text import ThreadEmitter
from convsmith.codegen.facts import Facts
from convsmith.codegen.geometry import tensor_maps
from convsmith.codegen.lane_fragments import LaneFragments
from convsmith.codegen.llvm_text import METHODS
from convsmith.codegen.matrix_stores import swizzled_place
from convsmith.codegen.tensor_stores import commit_stores, stored_rows, wait_for_stores
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.dialect import Dialect, PipelineCalls
from convsmith.ir.index import Index, as_index, make_sum
from convsmith.ir.shared import BARRIER, SLOTS, barrier_bytes
from convsmith.ir.stmt import (
    GROUP_LOOPS,
    Alloc,
    Block,
    Commit,
    Fence,
    For,
    If,
    Kernel,
    Let,
    Meet,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.threads import pipeline_parts, slots_of, team_count
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, variables_of

__all__ = ["PipelineEmitter"]

_WARP = 32
"""Number of threads that arrive at a barrier together."""
SWIZZLES = {128: 1, 64: 2, 32: 3}
"""Number of a swizzle in a descriptor, by the bytes of a row."""
SWIZZLE_ROWS = 8
"""Rows of the pattern that a swizzle repeats."""


class _WarpFragments(LaneFragments):
    """Fragments whose first coordinate is the number of the warp that owns them: each warp has its own registers."""

    def fragment(self, buffer: Buffer, index: Sequence[Index]) -> tuple[int, ...]:
        return super().fragment(buffer, (as_index(0), *index[1:]))


class PipelineEmitter(ThreadEmitter):
    """Emits the statements of one thread of a kernel with a signalled loop."""

    may_call = False  # ptxas would run the products of groups of warps one after the other

    def __init__(self, kernel: Kernel, facts: Facts, dialect: Dialect, symbol: str) -> None:
        super().__init__(kernel, facts, dialect, symbol)
        if dialect.pipelines is None:
            raise InternalError(f"{symbol}: the target has no pipelines of copies")
        self.calls: PipelineCalls = dialect.pipelines
        self.lane_fragments = _WarpFragments(kernel.body, facts.rows)
        self.maps = {x: f"%map{n}" for n, x in enumerate(tensor_maps(kernel))}
        self.alignment_of_shared = SLOTS
        loops = [s for s in statements_of(kernel.body) if isinstance(s, For) and s.kind == "signalled"]
        if len(loops) != 1:
            raise InternalError(f"{symbol}: {len(loops)} signalled loops; legal is one")
        (self.loop,) = loops
        parts = pipeline_parts(self.loop)
        if parts is None:
            raise InternalError(f"{symbol}: the loop {self.loop.var} does not begin with copies through tensor maps")
        self.parts, self.copies = parts, parts.copies
        self.slots_of_loop = slots_of(self.copies)
        around = [s for s in statements_of(kernel.body) if isinstance(s, For) and self.loop in statements_of(s.body)]
        self.rounds = next((s for s in around if s.kind == "serial"), None)
        self.team = next((s for s in around if s.kind == "team"), None)
        self.has_fence = any(isinstance(s, Fence) and s.of == "barriers" for s in statements_of(kernel.body))
        self.shared_registers = next((s for s in statements_of(kernel.body) if isinstance(s, ShareRegisters)), None)
        self.teams = team_count(kernel.body)
        self.warps = (self.geometry.group[1] - 1) // self.teams
        """Groups of warps of a team."""
        self.number_of_team = ""
        self.groups = max(x.groups for x in self.copies)
        """Groups of a cluster that fill slots of each other; 1 if a group fills its own alone."""
        self.reached = 1
        self.produced, self.consumed = Block(parts.copies), Block(parts.uses)
        self.is_split = self.is_producing = self.is_consuming = False
        self.slot_of_step = self.is_first_thread = ""
        self.stored_rows, self.open_stores = stored_rows(kernel.body), list[TensorCopy]()

    def parameters(self) -> list[str]:
        """Return the parameters for the tensor maps, which follow the parameters for the arrays."""
        return [f"{self.calls.map} {name}" for name in self.maps.values()]

    # -- roles
    def stmt(self, s: Stmt) -> None:
        if not self.is_split and not any(isinstance(x, For) and x.kind in GROUP_LOOPS for x in statements_of(s)):
            self.is_split = True
            self._roles(s)
        elif s is self.loop:
            self._settle()  # sums that are constants are in registers before the first product
            self.is_consuming = True
            METHODS[For](self, For(s.var, s.lo, s.hi, self.parts.around(self.consumed)))
            self.is_consuming = False
        elif s is self.team and not self.is_producing:
            self.vars[s.var] = self.number_of_team
            self.stmt(s.body)
        elif s is self.consumed:
            for x in self.parts.uses:
                self.stmt(x)
        elif s is self.produced:
            self._produce()
        elif (method := _SIGNALS.get(type(s))) is not None:
            method(self, s)
        else:
            super().stmt(s)

    def _roles(self, body: Stmt) -> None:
        """Emit the barriers, followed by the statements of the producer and of the consumers. Where a group begins or
        ends by meeting others of its cluster, all of its threads do.
        """
        first, body, last = _meetings(body)
        for s in statements_of(body):
            if isinstance(s, Alloc) and s.buffer.scope == "shared":
                self.bases[s.buffer] = self._shared(s.buffer)
        self.first_barrier = self.taken
        self.taken += barrier_bytes(self.slots_of_loop, self.teams)
        lane, warp = (self._number(self.loop, n) for n in (0, 1))
        self.numbers[0] = lane
        is_first = self.put(f"icmp eq {self.it} {self.put(f'or {self.it} {lane}, {warp}')}, 0")
        self.is_first_thread = is_first
        init, ready, produce, load, consume, end = map(
            self.label, ("init", "ready", "produce", "load", "consume", "end")
        )
        self.lines.append(f"  br i1 {is_first}, label %{init}, label %{ready}")
        self.start(init)
        for name in self.maps.values():
            self.spell(self.calls.prefetch, map=name)
        arrivals = self.warps * self.geometry.group[0] // _WARP * self.groups
        for slot in range(self.slots_of_loop):
            self.spell(self.calls.init, at=self._barrier_at("full", slot), count=1)
            self.spell(self.calls.init, at=self._barrier_at("free", slot), count=arrivals)
        for team in range(self.teams) if self.teams > 1 else ():
            self.spell(self.calls.init, at=self._barrier_at("turn", team), count=arrivals)
        if self.has_fence:
            self.spell(self.calls.initialised)
        self.lines.append(f"  br label %{ready}")
        self.start(ready)
        self.spell(self.calls.meet if first else self.dialect.barrier)
        is_consumer = self.put(f"icmp ult {self.it} {warp}, {self.warps * self.teams}")
        self.lines.append(f"  br i1 {is_consumer}, label %{consume}, label %{produce}")
        self.start(produce)
        if self.shared_registers is not None:
            self.spell(self.calls.leave, count=self.shared_registers.copiers)
        self.lines.append(f"  br i1 {self.put(f'icmp eq {self.it} {lane}, 0')}, label %{load}, label %{end}")
        self.start(load)
        self.known.push()
        self.is_producing, loop = True, self.loop
        self.stmt(_path_to(loop, body, For(loop.var, loop.lo, loop.hi, self.parts.around(self.produced))))
        self.known.pop()
        self.is_producing = False
        self.lines.append(f"  br label %{end}")
        self.start(consume)
        if self.team is not None:
            self.number_of_team = self.put(f"udiv {self.it} {warp}, {self.warps}")
            self.numbers[1] = self.put(f"urem {self.it} {warp}, {self.warps}")
            in_team = self.put(f"or {self.it} {lane}, {self.numbers[1]}")
            self.is_first_thread = self.put(f"icmp eq {self.it} {in_team}, 0")
        super().stmt(body)
        self.lines.append(f"  br label %{end}")
        self.start(end)
        if last:
            self.spell(self.calls.meet)

    # -- barriers
    def _barrier_at(self, kind: str, slot: int | str) -> str:
        """Return the address of the barrier of a ``slot``, which is full or free, or of the turn of a team."""
        space, name = f"addrspace({self.spaces['shared']})", self.dialect.dynamic
        start = self.first_barrier + BARRIER * self.slots_of_loop * ("full", "free", "turn").index(kind)
        if isinstance(slot, int):
            return self.shared_at(start + BARRIER * slot)
        place = self.put(f"getelementptr i8, ptr {space} {name}, i32 {start}")
        return self.put(f"getelementptr i64, ptr {space} {place}, i32 {slot}")

    def as_word(self, value: str, bits: int = 32) -> str:
        """Return an index as a word of ``bits``."""
        if bits == self.bits:
            return value
        return self.put(f"{'trunc' if bits < self.bits else 'zext'} {self.it} {value} to i{bits}")

    def _step(self, number: Index) -> str:
        """Return the number of a step, counted over all rounds, for the iteration ``number`` of the pipelined loop."""
        count = self.loop.hi - self.loop.lo
        if self.rounds is None:
            number = number - self.loop.lo
        elif count.is_const:
            number = self._round() * count + number - self.loop.lo
        return self.as_word(self.index(number))

    def _round(self) -> Index:
        """Return the number of the round of a group, each of which one team computes."""
        assert self.rounds is not None
        return self.rounds.var if self.team is None else self.rounds.var * self.teams + self.team.var

    def _slot_and_turn(self) -> tuple[str, str]:
        """Return the slot of a step, and how many times the slot has been used before."""
        step = self._step(self.loop.var)
        return self.put(f"urem i32 {step}, {self.slots_of_loop}"), self.put(f"udiv i32 {step}, {self.slots_of_loop}")

    def _wait(self, barrier: str, parity: str) -> None:
        """Emit a loop that ends with the phase of a ``parity``."""
        self.repeat_until(lambda: self.spell(self.calls.has_ended, at=barrier, parity=parity))

    # -- the producer
    def _produce(self) -> None:
        """Emit a step of the producer: it waits for a free slot, and starts the copies that fill it."""
        slot, turn = self._slot_and_turn()
        used_before = self.put(f"xor i32 {self.put(f'and i32 {turn}, 1')}, 1")  # a new barrier has ended its phase -1
        self._wait(self._barrier_at("free", slot), used_before)
        full = self._barrier_at("full", slot)
        nbytes = {x: x.map.size * x.groups * x.dst.buffer.dtype.bytes for x in self.copies}
        often, once = ([x for x in self.copies if (x.cond is not None) is n] for n in (False, True))
        holds, always = "", sum(nbytes[x] for x in often)
        awaited: int | str = always
        if once:
            if len({x.cond for x in once}) > 1 or once[0].cond is None:
                raise InternalError(f"{self.symbol}: copies of a step with different conditions")
            holds = self.cond(once[0].cond)
            awaited = self.put(f"select i1 {holds}, i32 {sum(nbytes.values())}, i32 {always}")
        self.spell(self.calls.expect, at=full, bytes=awaited)
        for x in often:
            self._tensor_copy(x, full)
        if once:
            copy, on = self.label("once"), self.label("on")
            self.lines.append(f"  br i1 {holds}, label %{copy}, label %{on}")
            self.start(copy)
            self.known.push()
            for x in once:
                self._tensor_copy(x, full)
            self.known.pop()
            self.lines.append(f"  br label %{on}")
            self.start(on)

    def _tensor_copy(self, s: TensorCopy, full: str) -> None:
        if any(i is not as_index(0) for i in s.src.index):
            raise InternalError(f"{self.symbol}: `{s}` copies from a tensor that does not begin where its array does")
        call = dict(self.calls.im2col if s.map.pixels else self.calls.tile)[len(s.at)]
        places = {f"at{n}": self.as_word(self.index(i)) for n, i in enumerate(s.at)}
        offsets = {f"by{n}": self.as_word(self.index(i), 16) for n, i in enumerate(s.offsets)}
        dst = self.slot_start(s.dst.buffer, s.dst.index[0])
        shared = {"shared": int(s.groups > 1), "mask": (1 << s.groups) - 1 if s.groups > 1 else 0}
        self.spell(call, dst=dst, full=full, map=self.maps[s.src.buffer, s.map], **places, **offsets, **shared)

    def slot_start(self, buffer: Buffer, e: Index) -> str:
        """Return the pointer to the first element of a slot, which a swizzle leaves where it is."""
        return super().address(buffer, e)

    def address(self, buffer: Buffer, e: Index) -> str:
        row = self.stored_rows.get(buffer)
        if row is None:
            return super().address(buffer, e)
        return swizzled_place(self, self.bases[buffer], e, buffer.dtype.bytes, row)

    # -- the consumers
    def _Receive(self, s: Receive) -> None:
        """Wait for the full slot of a step."""
        self.slot_of_step, turn = self._slot_and_turn()
        self._wait(self._barrier_at("full", self.slot_of_step), self.put(f"and i32 {turn}, 1"))

    def _Fence(self, s: Fence) -> None:
        if s.of == "registers":
            self.spell(self.calls.before)
        elif s.of == "shared":
            self.spell(self.calls.published)
            self.consumers_meet()

    def consumers_meet(self) -> None:
        """Let all consumers wait for each other, or those of each team, whose barriers have numbers of their own."""
        number: int | str = 1
        if self.teams > 1:
            number = self.put(f"add i32 {self.as_word(self.number_of_team)}, 1")
        self.spell(self.calls.together, number=number, count=self.warps * self.geometry.group[0])

    def _ShareRegisters(self, s: ShareRegisters) -> None:
        self.spell(self.calls.take, count=s.count)

    def _Turn(self, s: Turn) -> None:
        """Wait until the team of the round before has passed its turn, or let each warp pass it to the next team.

        The barrier of a team ends a phase with each turn that it is given. The first team begins, so that its phases
        are one behind.
        """
        assert self.team is not None and self.rounds is not None
        team = self.as_word(self.number_of_team)
        if s.part == "pass":
            following = self.put(f"urem i32 {self.put(f'add i32 {team}, 1')}, {self.teams}")
            self._arrive("turn", following, self._is_first_lane())
            return
        is_first = self.put(f"zext i1 {self.put(f'icmp eq i32 {team}, 0')} to i32")
        turn = self.put(f"xor i32 {self.as_word(self.index(self.rounds.var))}, {is_first}")
        self._wait(self._barrier_at("turn", team), self.put(f"and i32 {turn}, 1"))

    def _TensorCopy(self, s: TensorCopy) -> None:
        self.open_stores.append(s)

    def _Commit(self, s: Commit) -> None:
        if s.of == "stores":
            commit_stores(self, self.open_stores)
            self.open_stores = []
        else:
            self.spell(self.calls.commit)

    def _Wait(self, s: Wait) -> None:
        if s.of == "stores":
            wait_for_stores(self, s.pending)
            return
        self.spell(self.calls.wait, pending=s.pending)
        if not self.is_consuming:
            self._settle()

    def _Release(self, s: Release) -> None:
        """Free the slot of this step, of an earlier step in the same round, or of the last step of a round."""
        self.reached = self.groups if s.to_cluster else 1
        if self.loop.var not in variables_of(s.step):
            self._free(self._step(s.step), self._is_first_lane_of_steps())
            return
        behind = self.loop.var - s.step
        if not behind.is_const:
            raise InternalError(f"{self.symbol}: `{s}`; legal is a step at a constant distance")
        first = self._is_first_lane()
        if not behind.const:
            self._arrive("free", self.slot_of_step, first)
            return
        step = self.as_word(self.index(self.loop.var - self.loop.lo))
        first = self.put(f"and i1 {first}, {self.put(f'icmp uge i32 {step}, {behind.const}')}")
        away = self.put(f"add i32 {self._step(self.loop.var)}, {self.slots_of_loop - behind.const}")
        self._free(away, first)

    def _is_first_lane(self) -> str:
        """Return whether a thread is the first of its hardware warp."""
        return self.put(f"icmp eq {self.it} {self.put(f'and {self.it} {self.numbers[0]}, {_WARP - 1}')}, 0")

    def _is_first_lane_of_steps(self) -> str:
        """Return whether a thread is the first of its hardware warp, and the pipelined loop has run."""
        first, count = self._is_first_lane(), self.loop.hi - self.loop.lo
        if count.is_const:
            return first
        return self.put(f"and i1 {first}, {self.put(f'icmp sgt {self.it} {self.index(count)}, 0')}")

    def _free(self, step: str, is_asked: str) -> None:
        """Free the slot of a ``step``, in the selected threads."""
        self._arrive("free", self.put(f"urem i32 {step}, {self.slots_of_loop}"), is_asked)

    def _arrive(self, kind: str, number: str, is_asked: str) -> None:
        """Let the selected threads signal that a slot is free, or that it is a team's turn."""
        free, on = self.label(kind), self.label("on")
        self.lines.append(f"  br i1 {is_asked}, label %{free}, label %{on}")
        self.start(free)
        barrier = self._barrier_at(kind, number)
        if self.reached == 1:
            self.spell(self.calls.arrive, at=barrier)
        for group in range(self.reached) if self.reached > 1 else ():
            self.spell(self.calls.arrive_at, at=barrier, group=group)
        self.lines.append(f"  br label %{on}")
        self.start(on)

    def _settle(self) -> None:
        """Pass the sums through an empty instruction after the wait for their products, because LLVM does not know that
        the sums change there.
        """
        slots = [x for use in self.parts.uses for x in self.written_slots(use) if x in self.slots]
        if not slots:
            return
        words = [(slot[0].dtype.llvm, self.slots[slot]) for slot in slots]
        result = f"{{{', '.join(t for t, _ in words)}}}"
        ties = ",".join([*("=f" if t == "float" else "=r" for t, _ in words), *map(str, range(len(words)))])
        given = ", ".join(f"{t} {x}" for t, x in words)
        settled = self.put(f'call {result} asm sideeffect "// sums", "{ties}"({given})')
        self.slots |= {slot: self.put(f"extractvalue {result} {settled}, {n}") for n, slot in enumerate(slots)}

    # -- factors in shared memory
    def _lane_registers(self, v: object) -> list[str]:
        if isinstance(v, Load) and v.buffer.scope == "shared":
            return [self._descriptor(v)]
        return super()._lane_registers(v)

    def _descriptor(self, v: Load) -> str:
        """Return the descriptor of a factor whose rows are swizzled."""
        nbytes = v.buffer.dtype.bytes
        row = next(x.map.box[0] for x in self.copies if x.dst.buffer is v.buffer)
        form = _form(v, row) << 16
        moving = make_sum(0, dict(v.index[0].terms))
        start = f"ptr addrspace({self.spaces['shared']}) {self.bases[v.buffer]}"
        key = ("descriptor", v.buffer, moving)
        word = self.known.get(key)
        if word is None:
            base = self.put(f"ptrtoint {start} to i32")
            place = self.put(f"add i32 {base}, {self.put(f'mul i32 {self.as_word(self.index(moving))}, {nbytes}')}")
            word = self.put(f"zext i32 {self.put(f'lshr i32 {place}, 4')} to i64")
            self.known.set(key, word)
        return self.put(f"add i64 {word}, {_signed(form + (v.index[0].const * nbytes >> 4))}")


_SIGNALS: dict[type[Stmt], Callable[[PipelineEmitter, Any], None]] = {
    kind: getattr(PipelineEmitter, f"_{kind.__name__}")
    for kind in (Receive, Fence, TensorCopy, Commit, Wait, Release, ShareRegisters, Turn)
}


def _meetings(body: Stmt) -> tuple[bool, Stmt, bool]:
    """Return the statements of a group without those at which it meets others, and whether it does before and after.
    """
    parts = body.stmts if isinstance(body, Block) else (body,)
    places = [n for n, s in enumerate(parts) if isinstance(s, Meet)]
    inner = [n for n, s in enumerate(parts) if not isinstance(s, (Meet, Fence))]
    before, after = any(n < inner[0] for n in places), any(n > inner[-1] for n in places)
    return before, Block(tuple(s for s in parts if not isinstance(s, Meet))), after


def _path_to(loop: For, body: Stmt, instead: For) -> Stmt:
    """Return the loops and the names of ``body`` around ``loop``, with the loop ``instead`` in its place."""
    if body is loop:
        return instead
    if isinstance(body, Block):
        return _path_to(loop, next(s for s in body.stmts if loop in statements_of(s)), instead)
    assert isinstance(body, (Alloc, Let, For, If))
    inner = _path_to(loop, body.body, instead)
    if isinstance(body, If):
        return If(body.cond, inner)
    if isinstance(body, Let):
        return Let(body.var, body.value, inner)
    return inner if isinstance(body, Alloc) else For(body.var, body.lo, body.hi, inner, body.kind)


def _form(v: Load, row: int) -> int:
    """Return the bits of a descriptor above the address of a factor ``v`` with rows of ``row`` elements.

    InternalError unless the factor consists of contiguous rows of that length.
    """
    assert v.lanes is not None
    offsets, nbytes = v.lanes.offsets, v.buffer.dtype.bytes
    length = min(next((n for n, x in enumerate(offsets) if x != n), len(offsets)), row)
    rows = [offsets[n] for n in range(0, len(offsets), length)]
    across = 0
    if length == row and len(rows) > 1 and rows[1] != row:  # a row of an MN-major factor has several pieces
        pieces = next(n for n, x in enumerate(rows) if x == row)
        across, rows = rows[1], rows[::pieces]
    if any(x != n * row for n, x in enumerate(rows)):
        raise InternalError(f"{v} does not lie in rows of {row * nbytes} bytes")
    lead = across * nbytes >> 4 or 1
    return lead | (SWIZZLE_ROWS * row * nbytes >> 4) << 16 | SWIZZLES[row * nbytes] << 46


def _signed(word: int) -> int:
    """Return the signed number with the same 64 bits."""
    return word - (word >> 63 << 64)
