"""Values as LLVM text: arithmetic on what accesses load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convsmith.codegen.accesses import AccessEmitter
from convsmith.codegen.bounds import bounds_of
from convsmith.codegen.casts import is_word, literal
from convsmith.codegen.denormals import is_flushed
from convsmith.codegen.joined_bytes import joined_stores
from convsmith.codegen.lookups import looked_up
from convsmith.codegen.products import LEAST, high_product
from convsmith.codegen.quotients import BRANCHED, Quotient, quotient_of
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Var
from convsmith.ir.instruction import ByteLookup, HeadLoad
from convsmith.ir.stmt import Stmt, Store
from convsmith.ir.types import BF16, DType, Half
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
    dtype_of,
    is_lost_part,
    lanes_of,
    strided,
)
from convsmith.ir.walk import children, loads_of, variables_of, walk

REGISTER_BITS = 128
"""Bits of the registers of machines that load constants, or have functions for larger numbers."""
TOGETHER = 4
"""The largest number of quotients in the same branches, as many as registers hold."""
_CONSTANT = "convsmith.constant"
"""The first part of the names of constants in memory."""
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_OPS = {op: op for op in ("add", "sub", "mul", "and", "or", "xor", "shl")}
_UNARY = {"round": "rint", "floor": "floor", "sqrt": "sqrt", "abs": "fabs"}


class ValueEmitter(AccessEmitter):
    """Emits values. No element of ``flushed`` buffers is denormal."""

    quotients = BRANCHED

    def __init__(
        self, bits: int, written: set[Buffer], half: Half, flushed: frozenset[Buffer], head: HeadLoad | None = None,
        lookup: ByteLookup | None = None,
    ) -> None:  # fmt: skip
        super().__init__(bits, written, half, head, lookup)
        self.flushed = flushed
        self.has_fused_steps = False
        self.reads_scalars = False
        self.word_lookup = ""
        self.loads_constants = False
        self.relaxed_fma = ""
        self.extremes = ""
        self.is_after_sums = False
        """Whether a loop before the current statement adds up in registers."""
        self.shared: dict[tuple[Value, int], str] = {}
        self.divided: dict[tuple[Value, int], str] = {}
        """Quotients of the next stores."""
        self.current = "entry"
        self.has_constant_values = False
        """Whether values of the statements in a loop are computed ahead of it."""

    def start(self, label: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{label}:")
        self.current = label

    def value(self, v: Value, lanes: int) -> str:
        """Return the operand of a value with ``lanes`` lanes (0: a scalar); values with fewer lanes are broadcast.

        A value that occurs several times in a statement is computed once; call :meth:`forget` before each statement.
        """
        if isinstance(v, Const):
            is_kept = v.value == 0 and not (self.is_after_sums or self.has_constant_values)
            is_loaded = self._can_load(v, lanes) and not is_kept
            return self._loaded_constant(v, lanes) if is_loaded else self.const(v.dtype, v.value, lanes)
        operand = self.shared.get((v, lanes))
        if operand is None and self.has_constant_values:
            operand = self.known.get((v, lanes))
        if operand is None:
            operand = self._value(v, lanes)
            self.shared[v, lanes] = operand
        return operand

    def _can_load(self, v: Const, lanes: int) -> bool:
        """Return whether a load serves as a register of the constant: one of floats, or of zeros."""
        t = v.dtype
        is_number = (t.kind == "float" and not is_word(t)) or v.value == 0
        return self.loads_constants and lanes * t.bits == REGISTER_BITS and is_number

    def _loaded_constant(self, v: Const, lanes: int) -> str:
        """Return a register of a constant that is loaded from memory, once in this scope."""
        t, number = v.dtype, literal(v.dtype, v.value)
        vector = self.known.get(("constant", t.llvm, number))
        if vector is None:
            place = f"@{_CONSTANT}.{t.llvm}.{number}"
            self.declared[f"{place} = private unnamed_addr constant {t.llvm} {number}, align {t.bytes}"] = None
            vector = self.splat(t, self.put(f"load {t.llvm}, ptr {place}, align {t.bytes}"), lanes)
            self.known.set(("constant", t.llvm, number), vector)
        return vector

    def compute_ahead(self, stores: Sequence[Store], moving: set[Var]) -> None:
        """Compute the values within ``stores`` that are constant while the ``moving`` variables change.

        They stay known in this scope. LLVM would compute them again and again: it does not know that no store changes
        the memory that they are loaded from. So do constants, if they are loaded.
        """
        for s in stores:
            lanes = s.lanes.count if s.lanes else 0
            for v in walk(s.value):
                if isinstance(v, Const) and self._can_load(v, lanes):
                    self._loaded_constant(v, lanes)
            for v in self._constant_in(s.value, moving):
                self.known.set((v, lanes), self.value(v, lanes))
            quotient = self.quick_quotient(s.value, lanes)
            if quotient is not None and all(self._is_constant(x, moving) for x in quotient.numbers):
                self.quotients.numbers(self, quotient, dtype_of(s.value), lanes)

    def _constant_in(self, v: Value, moving: set[Var]) -> Iterator[Value]:
        """Yield the largest constant parts of a value that have its lanes."""
        if self._is_constant(v, moving):
            yield v
        elif isinstance(v, (Binary, Cast, Fma, Unary)):
            for x in children(v):
                if isinstance(x, Value):
                    yield from self._constant_in(x, moving)

    def _is_constant(self, v: Value, moving: set[Var]) -> bool:
        """Return whether a value is computed from memory that no statement writes, at the same places each time."""
        parts = [x for x in walk(v) if isinstance(x, Value)]
        loads = [x for x in parts if isinstance(x, Load)]
        simple = all(isinstance(x, (Binary, Cast, Const, Fma, Load, Unary)) for x in parts)
        in_memory = all(x.buffer not in self.written and not self.is_held(x.buffer) for x in loads)
        return bool(loads) and simple and in_memory and not variables_of(v) & moving

    def forget(self) -> None:
        """Discard cached values, because registers and memory may have changed."""
        self.shared = {}

    def _value(self, v: Value, lanes: int) -> str:
        if lanes_of(v) != lanes:
            return self.splat(dtype_of(v), self.value(v, 0), lanes)
        if isinstance(v, Load):
            return self.load(v)
        t = dtype_of(v)
        ty = self.type(t, lanes)
        if isinstance(v, Fma):
            is_relaxed = self.relaxed_fma and lanes * t.bits == REGISTER_BITS and not is_lost_part(v)
            name = self.relaxed_fma if is_relaxed else "fma"
            return self.intrinsic(name, t, lanes, *[self.value(x, lanes) for x in (v.a, v.b, v.c)])
        if isinstance(v, Cast) and t is BF16 and is_flushed(v.a, self.flushed):
            return self.truncate_normal(self.value(v.a, lanes), lanes)
        quotient = self.quick_quotient(v, lanes)
        if quotient is not None:
            found = self.divided.get((v, lanes))
            return self.quotients.rounded(self, [quotient], t, lanes)[0] if found is None else found
        if isinstance(v, Cast) and self.reads_scalars and isinstance(v.a, Load) and _is_repeated(v.a):
            one = Cast(v.dtype, Load(v.a.buffer, v.a.index, None))
            return self.splat(t, self.value(one, 0), lanes)
        if isinstance(v, Cast):
            if t.kind == "float":
                return self.cast(self.value(v.a, lanes), dtype_of(v.a), t, lanes)
            whole = v.a.a if isinstance(v.a, Unary) and v.a.op == "round" else v.a  # the conversion rounds likewise
            return self.cast(self.value(whole, lanes), dtype_of(whole), t, lanes, bounds_of(whole))
        if isinstance(v, Bits):
            n = lanes_of(v.a)
            return self.put(f"bitcast {self.type(dtype_of(v.a), n)} {self.value(v.a, n)} to {ty}")
        if isinstance(v, Binary):
            return self._binary(v, t, lanes)
        if isinstance(v, Unary):
            a = self.value(v.a, lanes)
            return self.operation("fneg", t, lanes, a) if v.op == "neg" else self.intrinsic(_UNARY[v.op], t, lanes, a)
        if isinstance(v, Where):
            holds = self._compare(v, lanes)
            return self.choose(holds, t, lanes, self.value(v.yes, lanes), self.value(v.no, lanes))
        if isinstance(v, Lookup):
            return looked_up(self, v, lanes)
        if isinstance(v, Repeat):
            return self._repeat(v, t)
        if isinstance(v, Sum):
            n = lanes_of(v.a)
            return self.sum_of_lanes(t, self.value(v.a, n), n, v.group)
        if isinstance(v, Sums):
            n = lanes_of(v.args[0])
            return self.sums_of_vectors(t, n, [self.value(a, n) for a in v.args])
        assert isinstance(v, Select)
        return self._select(v, ty, lanes)

    def divide_ahead(self, stores: Sequence[Store]) -> None:
        """Compute the quotients that adjacent ``stores`` write, by the same number, in the same branches."""
        lanes = stores[0].lanes.count if stores[0].lanes else 0
        quotients = [x for s in stores if (x := quotient_of(s.value, self.written)) is not None]
        first = 0
        while first < len(stores):
            count = len(self.joined_from(stores, first))
            quotients[first : first + count] = [x._replace(joined=True) for x in quotients[first : first + count]]
            first += max(1, count)
        found = self.quotients.rounded(self, quotients, dtype_of(stores[0].value), lanes)
        self.divided = {(s.value, lanes): x for s, x in zip(stores, found, strict=True)}

    def quotients_from(self, statements: Sequence[Stmt], first: int) -> list[Store]:
        """Return the ``statements`` from the ``first`` on that store quotients by the same number with as many lanes,
        at most `TOGETHER`, with all that become one store; no numerator is read where one of them stores.
        """
        found: list[Store] = []
        numbers: object = None
        for s in statements[first : first + TOGETHER] if self.quotients.is_branched else ():
            if not isinstance(s, Store) or type(s.value) is not Cast:
                break
            lanes = s.lanes.count if s.lanes else 0
            quotient = self.quick_quotient(s.value, lanes)
            if quotient is None or any(x.buffer is s.buffer for x in loads_of(quotient.x)):
                break
            key = (quotient.numbers, s.value.dtype, lanes, s.buffer)
            if found and key != numbers:
                break
            numbers = key
            found.append(s)
        whole = 0
        while whole < len(found):
            joined = max(1, len(self.joined_from(statements, first + whole)))
            if whole and whole + joined > len(found):
                break
            whole += joined
        return found[:whole]

    def joined_from(self, statements: Sequence[Stmt], first: int) -> list[Store]:
        """Return the ``statements`` from the ``first`` on that become one store of bytes; empty if there are none."""
        return [] if self.scalable or self.on_lanes is not None else joined_stores(statements, first, self.narrowing)

    def store_joined(self, stores: Sequence[Store]) -> None:
        """Store the bytes of adjacent ``stores`` as one vector, if each of them narrows a register of s32."""
        first, lanes = stores[0], self.narrowing.lanes if self.narrowing is not None else 0
        values = [self.value(s.value, lanes) for s in stores]
        words = [self.narrowed_words[x] for x in values if x in self.narrowed_words]
        if len(words) == len(stores):
            both = strided(lanes * len(stores), 1)
            self.store(first.buffer, first.index, both, self.joined_bytes(words, first.buffer.dtype))
            return
        for s, x in zip(stores, values, strict=True):
            self.store(s.buffer, s.index, s.lanes, x)

    def quick_quotient(self, v: Value, lanes: int) -> Quotient | None:
        """Return the parts of a quotient that products compute; None for other values."""
        is_faster = self.has_fused_steps and (lanes or self.quotients.serves_scalars)
        return quotient_of(v, self.written) if is_faster else None

    def _compare(self, v: Where, lanes: int) -> str:
        t = dtype_of(v.a)
        if t.kind == "float":
            how = f"fcmp {'une' if v.op == 'ne' else 'o' + v.op}"
        else:
            how = f"icmp {'' if v.op in ('eq', 'ne') else 's' if t.kind == 'int' else 'u'}{v.op}"
        return self.compare(how, t, lanes, self.value(v.a, lanes), self.value(v.b, lanes))

    def _repeat(self, v: Repeat, t: DType) -> str:
        """Emit a splat of one integer if the lanes fit in one, so that a broadcast from memory is one instruction."""
        n = lanes_of(v.a)
        scalable, self.scalable = self.scalable, False  # the repeated lanes are in every unit
        a, lanes = self.value(v.a, n), lanes_of(v)
        bits = n * t.value_bits
        word = self.put(f"bitcast {self.type(t, n)} {a} to i{bits}") if bits in (16, 32, 64) else ""
        self.scalable = scalable
        if not n:
            return self.splat(t, a, lanes)
        if not word:
            return self.shuffle(t, n, a, "poison", [i % n for i in range(lanes)])
        wide, first = self.vector(f"i{bits}", v.times), self.vector("i32", v.times)
        one = self.put(f"insertelement {wide} poison, i{bits} {word}, i64 0")
        all_ = self.put(f"shufflevector {wide} {one}, {wide} poison, {first} zeroinitializer")
        return self.put(f"bitcast {wide} {all_} to {self.type(t, lanes)}")

    def _binary(self, v: Binary, t: DType, lanes: int) -> str:
        a, b = self.value(v.a, lanes), self.value(v.b, lanes)
        if t.kind != "float":
            sign = "s" if t.kind == "int" else "u"
            if v.op == "mulh":
                saturates = all(not isinstance(x, Const) or x.value == LEAST for x in (v.a, v.b))
                return high_product(self, a, b, lanes, saturates)
            if v.op in ("max", "min"):
                return self.intrinsic(sign + v.op, t, lanes, a, b)
            return self.operation(_INT_OPS.get(v.op) or ("ashr" if sign == "s" else "lshr"), t, lanes, a, b)
        if v.op in _FLOAT_OPS:
            return self.operation(_FLOAT_OPS[v.op], t, lanes, a, b)
        # `b beats a ? b : a` gives a if a is NaN; b must be a number, or be tested as well.
        if self.extremes and lanes * t.bits == REGISTER_BITS:
            best = self.intrinsic(f"{self.extremes}{v.op}", t, lanes, a, b)
        else:
            beats = self.compare(f"fcmp {'ogt' if v.op == 'max' else 'olt'}", t, lanes, b, a)
            best = self.choose(beats, t, lanes, b, a)
        if isinstance(v.b, Const):
            return best
        return self.choose(self.compare("fcmp uno", t, lanes, b, b), t, lanes, b, best)

    def _select(self, v: Select, ty: str, lanes: int) -> str:
        """Emit a branch, because reading the operand that is not selected may be illegal."""
        yes, no, end = self.label("yes"), self.label("no"), self.label("end")
        self.lines.append(f"  br i1 {self.cond(v.cond)}, label %{yes}, label %{no}")
        arms = []
        before = self.shared
        for label, side in ((yes, v.yes), (no, v.no)):
            self.start(label)
            self.known.push()
            self.shared = dict(before)
            x = self.value(side, lanes)
            self.known.pop()
            arms.append(f"[ {x}, %{self.current} ]")
            self.lines.append(f"  br label %{end}")
        self.shared = before
        self.start(end)
        return self.put(f"phi {ty} {', '.join(arms)}")


def _is_repeated(v: Load) -> bool:
    """Return whether all lanes of a load are one element."""
    return v.lanes is not None and v.lanes.stride == 0 and v.lanes.is_whole
