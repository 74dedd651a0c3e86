"""The verifier: checks the rules that hold at every stage, and optionally the grammar of one stage.

Names: every variable is bound where it is used and not bound again within its scope; every buffer is a parameter or
allocated around its use, and no two buffers in scope share a name. Accesses: one index per dim; at most as many active
lanes as lanes; a store writes distinct elements. Values: operands agree in type and lanes. Pointer tables: the memory
at which an entry points is read-only and has the type of the buffer into which the table points. Loops: a parallel loop
is nested in parallel loops only. Pointers: a carried pointer, or a function's pointer parameter, is used only in
positions of its buffer. Calls agree with the functions' parameters. Threads: grid loops are outermost, thread loops
follow in the order of their levels, and shared memory lies between them; all threads of a group reach each barrier: it
is inside one nest of thread loops, and inside no condition or loop whose bounds differ between threads. A pipelined
loop is nested only in loops over groups, or in loops over the tiles of a group, and begins with its copies through
tensor maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import SCOPES, UNKNOWN, Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.stages import Stage, violations
from convsmith.ir.stmt import (
    GROUP_LOOPS,
    LANE,
    LOOP_KINDS,
    PIPELINED,
    SIGNALS,
    THREAD_LOOPS,
    TURN_PARTS,
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Call,
    Commit,
    For,
    Function,
    If,
    Invoke,
    Kernel,
    Let,
    Meet,
    PointerLoad,
    Prefetch,
    Release,
    Stmt,
    Store,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.threads import ThreadScope, pipeline_parts
from convsmith.ir.types import PTR, S32, U8
from convsmith.ir.value import (
    BINARY,
    BITWISE,
    COMPARISONS,
    UNARY,
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Lanes,
    Load,
    Lookup,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
    dtype_of,
    lanes_of,
)
from convsmith.ir.walk import AnyNode, children, variables_of


def verify(kernel: Kernel, stage: Stage | None = None) -> None:
    """Check ``kernel`` and the kernels that prepare its arguments; with ``stage``, also check the stage's grammar.

    InternalError with code ``verify``, which names the enclosing loops and the buffer, if a rule is broken.
    """
    _Verifier(kernel).run()
    if stage is not None:
        for violation in violations(kernel, stage):
            raise InternalError(f"kernel {kernel.name} is not {stage}: {violation}", code="verify")
    for pack in (*kernel.packs, *kernel.before):
        verify(pack)


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._where: list[str] = []
        self._loops: list[str] = []
        self._pointers: dict[Var, Buffer | None] = {}
        self._buffers: dict[Buffer, int] = {}
        self._free: dict[Any, frozenset[Var]] = {}
        self._callable: dict[str, Function] = {}
        self._formals: dict[Buffer, None] | None = None
        self._pointed: set[Buffer] = set()
        self._threads = ThreadScope(self._fail)

    def run(self) -> None:
        k = self._kernel
        if k.index_bits not in (0, 32, 64):
            self._fail(f"indices have 32 or 64 bits, not {k.index_bits}")
        with self._declared(k.params):
            for b in k.params:
                if b.scope != "global":
                    self._fail(f"parameter {b} is {b.scope}, not global")
        for f in k.functions:
            self._function(f)
        self._where = [f"kernel {k.name}"]
        with self._declared(k.params), self._bound(dict.fromkeys(k.sizes)):
            self._stmt(k.body)

    def _function(self, f: Function) -> None:
        self._where = [f"function {f.name}"]
        if f.name in self._callable:
            self._fail("there are two functions of that name")
        formals = dict.fromkeys(b for _, b in f.pointers)
        self._formals = formals
        with self._declared(formals), self._bound({**dict(f.pointers), **dict.fromkeys(f.indices)}):
            if len(self._pointers) < len(f.pointers) + len(f.indices):
                self._fail("two parameters have the same name")
            for b in formals:
                self._memory(b, "a parameter points to")
            self._stmt(f.body)
        self._formals = None
        self._callable[f.name] = f

    def _fail(self, message: str) -> NoReturn:
        where = " > ".join(self._where) or f"kernel {self._kernel.name}"
        raise InternalError(f"{where}: {message}", code="verify")

    # -- scopes
    @contextmanager
    def _declared(self, buffers: Iterable[Buffer]) -> Iterator[None]:
        outer = dict(self._buffers)
        for b in buffers:
            if any(x.name == b.name for x in self._buffers):
                self._fail(f"two buffers in scope have the name {b}")
            if b.scope not in SCOPES:
                self._fail(f"buffer {b} has the scope {b.scope}; there are {', '.join(SCOPES)}")
            if any(not 0 <= x.dim < len(b.shape) or x.size < 0 for x in b.blocks):
                self._fail(f"buffer {b} has blocks {[tuple(x) for x in b.blocks]} for {len(b.shape)} dims")
            if UNKNOWN in b.shape and max(b.blocks, key=lambda x: x.stride).size != UNKNOWN:
                self._fail(f"buffer {b}: an extent that is not known is the outermost in memory")
            self._buffers[b] = len(self._loops)
        yield
        self._buffers = outer

    @contextmanager
    def _bound(self, names: Mapping[Var, Buffer | None]) -> Iterator[None]:
        outer = self._pointers
        for v in names:
            if v in outer:
                self._fail(f"variable {v} is bound again inside of its own scope")
        self._pointers = {**outer, **names}
        yield
        self._pointers = outer

    @contextmanager
    def _at(self, step: str) -> Iterator[None]:
        self._where.append(step)
        yield
        self._where.pop()

    # -- statements
    def _stmt(self, s: Stmt) -> None:
        if isinstance(s, Block):
            for x in s.stmts:
                self._stmt(x)
        elif isinstance(s, For):
            with self._at(f"for {s.var}"):
                self._for(s)
        elif isinstance(s, If) and LANE in variables_of(s.cond):
            self._on_lanes(s)
        elif isinstance(s, If):
            self._plain(s.cond, "a condition")
            with self._threads.under(f"the condition {s.cond}", variables_of(s.cond)):
                self._stmt(s.body)
        elif isinstance(s, Let):
            self._plain(s.value, f"the value of {s.var}")
            with self._bound({s.var: None}), self._threads.binding(s.var, variables_of(s.value)):
                self._stmt(s.body)
        elif isinstance(s, Alloc):
            with self._at(f"alloc {s.buffer}"):
                if s.buffer.scope == "global":
                    self._fail("only cache, shared, register and fragment are allocated")
                if s.buffer.scope == "shared" and any(kind in THREAD_LOOPS for kind in self._loops):
                    self._fail("shared memory is allocated around the loops over threads, not within")
                with self._declared((s.buffer,)):
                    self._stmt(s.body)
        elif isinstance(s, PointerLoad):
            with self._at(f"at {s.table}"):
                self._entry(s)
        elif isinstance(s, (Store, AtomicAdd)):
            self._store(s)
        elif isinstance(s, AsyncCopy):
            self._async_copy(s)
        elif isinstance(s, TensorCopy):
            self._tensor_copy(s)
        elif isinstance(s, (Barrier, Commit, Wait, *SIGNALS)):
            if isinstance(s, Release):
                self._plain(s.step, "a step")
            if (isinstance(s, Meet) or (isinstance(s, Release) and s.to_cluster)) and "cluster" not in self._loops:
                self._fail(f"`{s}` stands outside of a cluster loop, whose groups it is for")
            if isinstance(s, Turn) and ("team" not in self._loops or s.part not in TURN_PARTS):
                self._fail(f"`{s}`; legal is turn {' or '.join(TURN_PARTS)}, in a team loop")
            self._threads.effect(s)
        elif isinstance(s, Prefetch):
            self._access(s.buffer, s.index, None)
        elif isinstance(s, Invoke):
            self._lanes_stored(s.dst.buffer, s.dst.lanes)
            for operand in (s.dst, *s.args):
                self._value(operand, {})
        elif isinstance(s, Call):
            self._call(s)
        else:
            self._fail(f"{type(s).__name__} is no statement")

    def _on_lanes(self, s: If) -> None:
        """Require statements on vectors below a condition on their lanes."""
        with self._bound({LANE: None}):
            self._plain(s.cond, "a condition")
        for x in s.body.stmts if isinstance(s.body, Block) else (s.body,):
            lanes = x.dst.lanes if isinstance(x, Invoke) else x.lanes if isinstance(x, Store) else None
            if lanes is None or not lanes.is_whole:
                self._fail(f"the condition {s.cond} on lanes stands around `{x}`; legal are those on whole vectors")
            self._stmt(x)

    def _for(self, s: For) -> None:
        if s.kind not in LOOP_KINDS:
            self._fail(f"the loop is {s.kind}; there are {', '.join(LOOP_KINDS)}")
        if s.kind == "parallel":
            if self._formals is not None or any(kind != "parallel" for kind in self._loops):
                self._fail("a parallel loop stands inside of parallel loops only")
            if s.carried:
                self._fail("a parallel loop carries no pointers")
        if s.kind == "scalable" and (s.carried or "scalable" in self._loops):
            self._fail("a scalable loop carries no pointers, and stands in no other")
        if s.kind in PIPELINED:
            self._pipelined(s)
        if s.kind == "team" and (s.carried or self._formals is not None or not {"serial", "grid"} >= set(self._loops)):
            self._fail("a team loop carries no pointers, and stands in grid loops and serial loops only")
        if s.kind in GROUP_LOOPS or s.kind in THREAD_LOOPS:
            self._threads.loop(s, self._loops, self._formals is not None)
            if s.kind in GROUP_LOOPS and any(b.scope == "shared" for b in self._buffers):
                self._fail("a loop over groups stands within an allocation of shared memory")
        self._plain(s.lo, "a bound")
        self._plain(s.hi, "a bound")
        for c in s.carried:
            self._memory(c.buffer, f"{c.var} points to")
            self._position(c.buffer, c.init, f"the start of {c.var}", relative=False)
        names = {s.var: None, **{c.var: c.buffer for c in s.carried}}
        if len(names) <= len(s.carried):
            self._fail("two variables of the loop have the same name")
        self._loops.append(s.kind)
        with self._bound(names), self._threads.within(s):
            self._stmt(s.body)
        self._loops.pop()

    def _pipelined(self, s: For) -> None:
        """Require copies through tensor maps, and then statements without any."""
        if s.carried or self._formals is not None or not {*GROUP_LOOPS, "serial", "team"} >= set(self._loops):
            self._fail(f"a {s.kind} loop carries no pointers, and stands in loops over groups or teams and serial ones")
        if pipeline_parts(s) is None:
            self._fail(f"the body of a {s.kind} loop begins with all of its copies through tensor maps")

    def _entry(self, s: PointerLoad) -> None:
        if s.rows is None and s.table.dtype is not PTR:
            self._fail(f"{s.table} holds {s.table.dtype}, no pointers")
        if s.rows is not None and s.table.dtype is not S32:
            self._fail(f"{s.table} holds {s.table.dtype}; the numbers of rows are {S32}")
        if len({s.buffer.dtype, s.source.dtype, s.zero.dtype}) > 1:
            self._fail(f"{s.buffer} is {s.buffer.dtype}, {s.source} {s.source.dtype} and {s.zero} {s.zero.dtype}")
        if s.source not in self._buffers:
            self._fail(f"buffer {s.source} is not in scope")
        if s.buffer.scope != "global":
            self._fail(f"{s.buffer} is {s.buffer.scope}; a table points to global memory")
        self._access(s.table, s.index, None)
        self._access(s.zero, s.zero_at, None)
        self._plain(s.offset, "the offset")
        self._pointed.add(s.buffer)
        with self._declared((s.buffer,)):
            self._stmt(s.body)

    def _async_copy(self, s: AsyncCopy) -> None:
        self._threads.effect(s)
        if s.dst.buffer.scope != "shared" or s.src.buffer.in_registers:
            self._fail(f"{s}: an asynchronous copy is from memory to shared memory")
        self._lanes_stored(s.dst.buffer, s.dst.lanes)
        counts = [self._value(v, {}) for v in (s.dst, s.src)]
        if counts[0] != counts[1] or s.dst.buffer.dtype != s.src.buffer.dtype:
            self._fail(f"{s}: copies {counts[1]} lanes of {s.src.buffer.dtype} to {counts[0]} of {s.dst.buffer.dtype}")
        if s.cond is not None:
            self._plain(s.cond, "a condition")

    def _tensor_copy(self, s: TensorCopy) -> None:
        """Require that a copy through a tensor map is executed by a group as a whole, and that its coordinates lie
        within its tensor.
        """
        if any(kind in ("parallel", "scalable", *THREAD_LOOPS) for kind in self._loops):
            self._fail(f"{s}: a group executes it once; legal is a place outside of the loops over threads")
        if {s.dst.buffer.scope, s.src.buffer.scope} != {"global", "shared"} or s.dst.lanes or s.src.lanes:
            self._fail(f"{s}: a copy through a tensor map is between global and shared memory")
        if s.is_store and s.map.pixels:
            self._fail(f"{s}: a store is that of a tile; im2col maps bring pixels to shared memory")
        if s.dst.buffer.dtype != s.src.buffer.dtype:
            self._fail(f"{s}: copies {s.src.buffer.dtype} to {s.dst.buffer.dtype}")
        if s.groups > 1 and not {"cluster", "signalled"} <= set(self._loops):
            self._fail(f"{s}: a multicast stands in a signalled loop of a group of a cluster")
        m, inner = s.map, max(len(s.map.dims) - 2, 0) if s.map.pixels else 0
        if len(s.at) != len(m.dims) or {len(s.offsets), len(m.lower), len(m.upper), len(m.steps)} != {inner}:
            self._fail(f"{s}: {len(s.at)} coordinates and {len(s.offsets)} offsets for {len(m.dims)} dims")
        for v in (s.dst, s.src):
            self._value(v, {})
        for i in (*s.at, *s.offsets):
            self._plain(i, "a coordinate")
        if s.cond is not None:
            self._plain(s.cond, "a condition")

    def _store(self, s: Store | AtomicAdd) -> None:
        if s.buffer in self._pointed:
            self._fail(f"{s.buffer}, which a table points to, is written")
        if isinstance(s, AtomicAdd) and (s.buffer.in_registers or not s.buffer.dtype.computes):
            self._fail(f"{s}: an atomic addition is to memory, of a type with arithmetic")
        self._access(s.buffer, s.index, s.lanes)
        self._lanes_stored(s.buffer, s.lanes)
        count = self._value(s.value, {})
        if dtype_of(s.value) != s.buffer.dtype:
            self._fail(f"a value of type {dtype_of(s.value)} is stored to {s.buffer}, which holds {s.buffer.dtype}")
        if count and (s.lanes is None or s.lanes.count != count):
            lanes = s.lanes.count if s.lanes else "no"
            self._fail(f"a value of {count} lanes is stored to {lanes} lanes of {s.buffer}: {s.value}")

    def _lanes_stored(self, buffer: Buffer, lanes: Lanes | None) -> None:
        if lanes is not None and lanes.first:
            self._fail(f"a store to {buffer} begins at lane {lanes.first}; legal is lane 0")
        if lanes is not None and len(set(lanes.offsets[: lanes.active])) < lanes.active:
            self._fail(f"two lanes of a store to {buffer} touch the same element: {lanes.offsets}")

    def _call(self, s: Call) -> None:
        f = self._callable.get(s.function)
        if f is None:
            self._fail(f"function {s.function} is not defined before it is called")
        given, wanted = (len(s.pointers), len(s.indices)), (len(f.pointers), len(f.indices))
        if given != wanted:
            self._fail(f"{s.function} takes (pointers, indices) {wanted}, not {given}")
        for (formal_var, formal), (buffer, position) in zip(f.pointers, s.pointers):
            self._memory(buffer, f"{formal_var} of {s.function} points to")
            if (buffer.dtype, buffer.scope) != (formal.dtype, formal.scope):
                self._fail(
                    f"{formal_var} of {s.function} points to {formal.dtype} @{formal.scope}, "
                    f"but {buffer} is {buffer.dtype} @{buffer.scope}"
                )
            self._position(buffer, position, f"the start of {formal_var}", relative=False)
        for i in s.indices:
            self._plain(i, f"an argument of {s.function}")

    # -- accesses and indices
    def _memory(self, b: Buffer, what: str) -> None:
        """Require that ``b`` is memory of one dim in scope, because a pointer points into it."""
        if b not in self._buffers:
            self._fail(f"{what} {b}, which is not in scope")
        if b.in_registers or len(b.shape) != 1:
            self._fail(f"{what} {b}, which is not memory of one dim")

    def _access(self, b: Buffer, index: tuple[Index, ...], lanes: Lanes | None) -> None:
        depth = self._buffers.get(b)
        if depth is None:
            self._fail(f"buffer {b} is not in scope")
        if b.in_registers:
            for kind in ("parallel", *GROUP_LOOPS):
                if kind in self._loops[depth:]:
                    self._fail(f"register {b} is allocated outside of the {kind} loop that uses it")
        if len(index) != len(b.shape):
            self._fail(f"{b}[{', '.join(map(str, index))}] has {len(index)} indices for {len(b.shape)} dims")
        if lanes is not None and not (lanes.count and 0 <= lanes.first <= lanes.active <= lanes.count):
            self._fail(f"lanes {lanes.first} to {lanes.active} of {lanes.count} lanes of {b} are active")
        for i in index:
            self._position(b, i, f"an index of {b}", relative=b in (self._formals or ()))

    def _position(self, b: Buffer, e: Index, what: str, relative: bool) -> None:
        """Require that ``e``, an index into ``b``, contains at most one pointer, and that it points into ``b``.

        If ``relative``, the index must contain a pointer.
        """
        pointers = [(a, c) for a, c in e.terms if type(a) is Var and self._pointers.get(a)]
        if not pointers:
            self._plain(e, what)
            if relative:
                self._fail(f"{what} is {e}: a function knows {b} by its pointers only")
            return
        pointer, factor = pointers[0]
        if len(pointers) > 1 or factor != 1:
            self._fail(f"{what} is {e}: a position adds one pointer once")
        if self._pointers[pointer] is not b:
            self._fail(f"{what} is {e}: {pointer} points into {self._pointers[pointer]}")
        self._plain(e - pointer, what)

    def _plain(self, e: AnyNode, what: str) -> None:
        """Require that every variable of ``e`` is bound and that no variable is a pointer."""
        free = self._free.get(e)
        if free is None:
            free = self._free[e] = frozenset(variables_of(e))
        for v in free:
            if v not in self._pointers:
                self._fail(f"{what} is {e}: variable {v} is not bound")
            if self._pointers[v] is not None:
                self._fail(f"{what} is {e}: {v} is a pointer into {self._pointers[v]}")

    # -- values
    def _value(self, v: Value, known: dict[Value, int]) -> int:
        """Check ``v`` and return its number of lanes, 0 for a scalar.  ``known`` caches the lanes of checked values."""
        if v not in known:
            known[v] = self._checked(v, known)
        return known[v]

    def _checked(self, v: Value, known: dict[Value, int]) -> int:
        if isinstance(v, Const):
            return 0
        if isinstance(v, Load):
            if v.buffer.dtype is PTR:
                self._fail(f"{v}: a pointer is no value")
            self._access(v.buffer, v.index, v.lanes)
            return v.lanes.count if v.lanes else 0
        if isinstance(v, Select):
            with self._bound({LANE: None} if lanes_of(v) else {}):
                self._plain(v.cond, "a condition")
        parts = [x for x in children(v) if isinstance(x, Value)]
        counts = {n for n in [self._value(x, known) for x in parts] if n}
        if len(counts) > 1:
            self._fail(f"{v}: operands have {' and '.join(map(str, sorted(counts)))} lanes")
        count = max(counts, default=0)
        if isinstance(v, Lookup):
            if not isinstance(v.first, Load) or v.first.lanes is not None or dtype_of(v.a) is not U8:
                self._fail(f"{v}: a lookup is of a number of u8, from one element of an array on")
            return count
        if isinstance(v, Repeat):
            if v.times < 1:
                self._fail(f"{v}: a vector is repeated at least once, not {v.times} times")
            return lanes_of(v)
        self._types(v, parts)
        if isinstance(v, Bits):
            return lanes_of(v)
        if isinstance(v, (Sum, Sums)):
            group = v.group if isinstance(v, Sum) else count
            if not count or group < 1 or group & (group - 1) or count % group:
                of = f" in each of the groups of {count}" if group != count else ""
                self._fail(f"{v}: a sum is over 2**n lanes, not {group}{of}")
            return lanes_of(v)
        return count

    def _types(self, v: Value, parts: list[Value]) -> None:
        """Check the types of the operands ``parts`` of ``v``."""
        types = [dtype_of(x) for x in parts]
        t = types[0]
        if isinstance(v, Cast):
            return
        if isinstance(v, Bits):
            if t.per_byte * v.dtype.per_byte > 1:
                self._fail(f"{v}: {t if t.per_byte > 1 else v.dtype} is of no whole bytes; cast instead")
            if max(lanes_of(v.a), 1) * t.bits % v.dtype.bits:
                self._fail(f"{v}: {t} has {t.bits} bits and {v.dtype} has {v.dtype.bits}")
            return
        alike = [types[:2], types[2:]] if isinstance(v, Where) else [types]
        if any(len(set(group)) > 1 for group in alike):
            self._fail(f"{v}: operands have the types {', '.join(map(str, types))}")
        if not isinstance(v, Select) and not t.computes:
            self._fail(f"{v}: there is no arithmetic on {t}; cast it first")
        legal = {Binary: BINARY, Unary: UNARY, Where: COMPARISONS}.get(type(v))
        if legal is not None and v.op not in legal:  # type: ignore[attr-defined]
            self._fail(f"{v.op} is no operation; there are {', '.join(legal)}")  # type: ignore[attr-defined]
        if isinstance(v, Unary) and t.kind != "float":
            self._fail(f"{v}: {v.op} is for floating point only")
        if isinstance(v, Binary):
            if v.op == "div" and t.kind != "float":
                self._fail(f"{v}: division is for floating point only")
            if v.op in BITWISE and t.kind == "float":
                self._fail(f"{v}: {v.op} is for integers only")
            if v.op == "mulh" and t is not S32:
                self._fail(f"{v}: mulh is for s32 only")
            if v.op in ("shl", "shr") and isinstance(v.b, Const) and not 0 <= v.b.value < t.bits:
                self._fail(f"{v}: a shift is by 0 to {t.bits - 1}")
        elif not isinstance(v, (Unary, Fma, Select, Where, Sum, Sums)):
            self._fail(f"{type(v).__name__} is no value")
