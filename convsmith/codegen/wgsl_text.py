"""Kernels of threads as a module of WGSL, the language of WebGPU's shaders.

WGSL has no pointers to memory and no jumps, so it is written from the statements of a kernel, one by one. A value with
lanes becomes one expression per lane, and a register buffer whose elements have constant numbers becomes variables.
Elements of 8 and 16 bits share the words of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from convsmith.arith.ranges import try_interval
from convsmith.codegen.artifact import AXES
from convsmith.codegen.geometry import geometry
from convsmith.codegen.structured_text import bare, repeated_values
from convsmith.codegen.warp_joins import joins
from convsmith.codegen.wgsl_fragments import WgslFragments, directives
from convsmith.codegen.wgsl_values import FUNCTIONS, RESERVED, WgslValues, type_name
from convsmith.codegen.wgsl_words import WordStores, element, in_word, is_narrow, per_word, words_of
from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import (
    THREAD_LOOPS,
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Commit,
    For,
    Invoke,
    Kernel,
    Let,
    Stmt,
    Store,
    Wait,
)
from convsmith.ir.value import Load, Select, Value, const, lanes_of
from convsmith.ir.walk import loads_of, statements_of, walk

__all__ = ["wgsl_text"]


def wgsl_text(kernels: Mapping[str, Kernel], rows: Mapping[str, Instruction]) -> str:
    """Return a module with an entry point of each symbol, whose arrays are the bindings of group 0, in order; ``rows``
    are the instructions on fragments.
    """
    parts: list[str] = []
    calls: dict[str, None] = {}
    needs: dict[str, None] = {}
    taken = {*kernels}
    for symbol, kernel in kernels.items():
        text = _WgslText(kernel, symbol, taken, rows)
        parts += [*text.whole(), ""]
        calls, needs = calls | text.calls, needs | text.needs
    return "\n".join((*directives([*needs]), *(FUNCTIONS[name] for name in FUNCTIONS if name in calls), *parts))


class _WgslText(WgslValues):
    """The WGSL of one kernel."""

    def __init__(
        self, kernel: Kernel, symbol: str, taken: set[str], rows: Mapping[str, Instruction]
    ) -> None:  # fmt: skip
        super().__init__()
        self._rows, self._fragments, self._joins = rows, WgslFragments(kernel, rows), joins(kernel.body)
        self.needs: dict[str, None] = {}
        """Features that the instructions need."""
        self._kernel, self._symbol, self._taken = kernel, symbol, taken
        self._geometry = geometry(kernel)
        self._added = {s.buffer for s in statements_of(kernel.body) if isinstance(s, AtomicAdd)}
        self._words = WordStores(kernel)
        self._moving = set(_moving(kernel.body))
        self._used = {x.buffer for x in walk(kernel.body) if isinstance(x, (Load, Store, AtomicAdd))}
        self._globals: dict[Var | Buffer, str] = {}
        """The names of arrays and sizes, which no other name of the module equals."""
        self._shared: dict[Buffer, str] = {}
        self._names: list[str] = []
        """Names in the scopes around the present line."""
        self._count = 0

    def whole(self) -> Iterator[str]:
        """Yield the declarations of the kernel's arrays and its entry point."""
        written = {*self._kernel.written}
        for n, b in enumerate(self._kernel.params):
            access = "read_write" if b in written else "read"
            yield f"@group(0) @binding({n}) var<storage, {access}> {self.name(b)}: array<{self._stored(b)}>;"
        for n, v in enumerate(self._kernel.sizes, len(self._kernel.params)):
            yield f"@group(0) @binding({n}) var<storage, read> {self._argument(v)}: array<i32, 1>;"
        # A binding that an entry point does not mention is no part of its layout.
        body = [f"{self.tab}_ = &{self.name(b)};" for b in self._kernel.params if b not in self._used]
        body += [f"{self.tab}let {self.name(v)} = {self._argument(v)}[0];" for v in self._kernel.sizes]
        body += self.lines(self._kernel.body)
        for b, name in self._shared.items():
            yield f"var<workgroup> {name}: array<{self._stored(b)}, {words_of(b)}>;"
        yield f"@compute @workgroup_size({', '.join(map(str, self._geometry.group))})"
        numbers = ("workgroup_id", "local_invocation_id")
        yield f"fn {self._symbol}({', '.join(f'@builtin({x}) {x}: vec3<u32>' for x in numbers)}) {{"
        yield from body
        yield "}"

    def _argument(self, v: Var) -> str:
        return self._global(v, self.name(v))

    def _stored(self, b: Buffer) -> str:
        if b in self._added or b in self._words.apart:
            return "atomic<u32>"
        return "u32" if is_narrow(b) else type_name(b.dtype)

    # -- names
    def name(self, x: Var | Buffer) -> str:
        if isinstance(x, Buffer) and x in self._kernel.params:
            return self._global(x, super().name(x))
        if isinstance(x, Buffer) and x.scope == "shared":
            if x not in self._shared:
                self._shared[x] = self._global(x, f"{super().name(x)}_{len(self._shared)}")
            return self._shared[x]
        name = super().name(x)
        return f"{name}_" if name in RESERVED else name

    def _global(self, x: Var | Buffer, name: str) -> str:
        """Return the name of an array or a size of the kernel: that of the kernel, followed by its own ``name``."""
        if x not in self._globals:
            name = f"{self._symbol}_{name}"
            while name in self._taken:
                name += "_"
            self._taken.add(name)
            self._globals[x] = name
        return self._globals[x]

    def place(self, v: Load, lane: int) -> str:
        b, offset = v.buffer, v.lanes.offsets[lane] if v.lanes else 0
        if is_narrow(b):
            word, bit = in_word(b.dtype, v.index[0] + offset)
            text = f"{self.name(b)}[{bare(self.index(word))}]"
            text = f"atomicLoad(&{text})" if b in self._words.apart else text
            return element(b.dtype, text, self._bits(bit))
        if not b.in_registers:
            text = f"{self.name(b)}[{bare(self.index(v.index[0] + offset))}]"
            return f"bitcast<{type_name(b.dtype)}>(atomicLoad(&{text}))" if b in self._added else text
        if b in self._fragments:
            end, n = self._fragments.places(v)[lane - (v.lanes.first if v.lanes else 0)]
            name = f"{self.name(b)}_{end}"
            return element(b.dtype, name, f"{n * b.dtype.bits}u") if self._fragments.is_word(b) else name
        number = _number(b, v.index) + offset
        if b not in self._moving:
            return f"{self.name(b)}_{int(number)}"
        return f"{self.name(b)}[{bare(self.index(number))}]"

    # -- statements
    def statement(self, s: Stmt, depth: int) -> Iterator[str]:
        tab = self.tab * depth
        if s in self._joins:
            yield f"{tab}workgroupBarrier();"
        if isinstance(s, For):
            first, last = try_interval(s.lo, self.ranges), try_interval(s.hi, self.ranges)
            if first is not None and last is not None:
                self.ranges[s.var] = first[0], last[1] - 1
        if isinstance(s, For) and s.kind in ("grid", *THREAD_LOOPS):
            yield from self._scoped(self.name(s.var), self._numbered, s, depth)
        elif isinstance(s, For) and s.carried:
            yield f"{tab}{{"
            for c in s.carried:
                yield f"{tab}{self.tab}var {self.name(c.var)}: i32 = {self.index(c.init)};"
            yield f"{tab}{self.tab}{self.loop_head(s)} {{"
            yield from self.statement(s.body, depth + 2)
            for c in s.carried:
                yield f"{tab}{self.tab * 2}{self.name(c.var)} += {c.step};"
            yield f"{tab}{self.tab}}}"
            yield f"{tab}}}"
        elif isinstance(s, Invoke):
            yield from self._invoked(s, tab)
        elif isinstance(s, Let):
            self._fragments.named[s.var] = s.value
            known = try_interval(s.value, self.ranges)
            if known is not None:
                self.ranges[s.var] = known
            yield from self._scoped(self.name(s.var), super().statement, s, depth)
        elif isinstance(s, Barrier) and s.part == "whole":
            yield f"{tab}workgroupBarrier();"
        elif isinstance(s, AsyncCopy):
            # Without asynchronous copies, a copy has ended before the thread waits for it.
            zero = const(s.dst.buffer.dtype, 0)
            value: Value = s.src if s.cond is None else Select(s.cond, s.src, zero)
            yield from self.store(Store(s.dst.buffer, s.dst.index, value, s.dst.lanes), tab)
        elif isinstance(s, (Commit, Wait)):
            return
        elif isinstance(s, AtomicAdd):
            yield from self._atomic_add(s, tab)
        else:
            yield from super().statement(s, depth)

    def _numbered(self, s: For, depth: int) -> Iterator[str]:
        """Yield a loop that has one iteration in each group or thread, whose number the device provides."""
        of = "workgroup_id" if s.kind == "grid" else "local_invocation_id"
        number = f"i32({of}.{AXES[self._geometry.axes[s.var]]})"
        start = f" + {self.index(s.lo)}" if not (s.lo.is_const and s.lo.const == 0) else ""
        yield self.tab * depth + self.bound(s.var, number + start)
        yield from self.statement(s.body, depth)

    def _invoked(self, s: Invoke, tab: str) -> Iterator[str]:
        """Yield an instruction on fragments: its steps, and the new registers of the result."""
        row = self._rows[s.instruction]
        self.needs |= dict.fromkeys(row.needs)
        registers: dict[str, list[str]] = {}
        for x, v in zip(row.operands, (s.dst, *s.args)):
            assert isinstance(v, Load)
            registers[x.name] = [f"{self.name(v.buffer)}_{end}" for end in self._fragments.registers(v)]
        lines: list[str] = []

        def put(text: str) -> str:
            name = self._new()
            lines.append(f"let {name} = {text};")
            return name

        done = row.emit(put, registers)
        yield f"{tab}{{"
        yield from (f"{tab}{self.tab}{line}" for line in lines)
        yield from (f"{tab}{self.tab}{name} = {x};" for name, x in zip(registers[row.result.name], done))
        yield f"{tab}}}"
        self._count = 0

    def loop_head(self, s: For) -> str:
        v = self.name(s.var)
        return f"for (var {v}: i32 = {self.index(s.lo)}; {v} < {self.index(s.hi)}; {v}++)"

    def bound(self, v: Var, value: str) -> str:
        return f"let {self.name(v)}: i32 = {bare(value)};"

    def allocated(self, s: Alloc, depth: int) -> Iterator[str]:
        b = s.buffer
        if b.scope == "shared":
            yield from self.statement(s.body, depth)
            return
        if b.scope == "fragment" and b not in self._fragments:
            raise InternalError(f"{self._kernel.name}: no instruction states the layout of the fragment {b.name}")
        yield from self._scoped(self.name(b), self._declared, s, depth)

    def _declared(self, s: Alloc, depth: int) -> Iterator[str]:
        b, tab, t = s.buffer, self.tab * depth, type_name(s.buffer.dtype)
        if b in self._fragments:
            t = "u32" if self._fragments.is_word(b) else t
            yield from (f"{tab}var {self.name(b)}_{end}: {t};" for end in self._fragments.all_registers(b))
        elif b in self._moving or not b.in_registers:
            yield f"{tab}var {self.name(b)}: array<{t}, {b.size}>;"
        else:
            yield from (f"{tab}var {self.name(b)}_{n}: {t};" for n in range(b.size))
        yield from self.statement(s.body, depth)

    def _scoped(
        self, name: str, write: Callable[[Any, int], Iterator[str]], s: Stmt, depth: int
    ) -> Iterator[str]:  # fmt: skip
        """Yield what ``write`` yields of a statement that declares a name: in a block of its own if the name is known.
        """
        tab, is_known = self.tab * depth, name in self._names
        self._names.append(name)
        if is_known:
            yield f"{tab}{{"
        yield from write(s, depth + is_known)
        if is_known:
            yield f"{tab}}}"

    def nested(self, head: str, body: Stmt, depth: int) -> Iterator[str]:
        count = len(self._names)
        yield from super().nested(head, body, depth)
        del self._names[count:]

    def store(self, s: Store, tab: str) -> Iterator[str]:
        """Yield a store lane by lane, after the values that it uses more than once, or that a lane before it changes.
        """
        lanes = range(s.lanes.first, s.lanes.active) if s.lanes else range(1)
        if is_narrow(s.buffer):
            yield from self._store_in_words(s, lanes, tab)
            return
        if s.buffer in self._fragments and self._fragments.is_word(s.buffer):
            yield from self._store_in_registers(s, lanes, tab)
            return
        target = Load(s.buffer, s.index, s.lanes)
        repeated = repeated_values(s.value)
        is_read = len(lanes) > 1 and _reads_other_lanes(s)
        if not repeated and not is_read:
            for n in lanes:
                yield f"{tab}{self.place(target, n)} = {bare(self.value(s.value, n))};"
            return
        yield f"{tab}{{"
        texts: list[str] = []
        yield from self._named_lanes(s, lanes, tab + self.tab, texts)
        for n, text in zip(lanes, texts):
            yield f"{tab}{self.tab}{self.place(target, n)} = {text};"
        yield f"{tab}}}"
        self._count = 0

    def _named_lanes(self, s: Store, lanes: range, tab: str, texts: list[str]) -> Iterator[str]:
        """Yield the declarations of the values of lanes, whose names are appended to ``texts``."""
        for n in lanes:
            with self.naming():
                for x in repeated_values(s.value):
                    name = self._new()
                    yield f"{tab}let {name} = {bare(self.value(x, n))};"
                    self.name_value(x, n, name)
                texts.append(self._new())
                yield f"{tab}let {texts[-1]} = {bare(self.value(s.value, n))};"

    def _store_in_words(self, s: Store, lanes: range, tab: str) -> Iterator[str]:
        """Yield a store to an array whose elements share words: of whole words if its lanes fill them."""
        b, t, inner = s.buffer, s.buffer.dtype, tab + self.tab
        is_whole, is_atomic = self._words.fills(b, s.index[0], s.lanes), b in self._words.apart
        yield f"{tab}{{"
        texts: list[str] = []
        yield from self._named_lanes(s, lanes, inner, texts)
        texts = [text if type_name(t) == "u32" else f"u32({text})" for text in texts]
        for n in range(0, len(lanes), per_word(t) if is_whole else 1):
            offset = s.lanes.offsets[lanes[n]] if s.lanes else 0
            word, bit = in_word(t, s.index[0] + offset)
            place = f"{self.name(b)}[{bare(self.index(word))}]"
            if is_whole:
                whole = self.call(f"word_of_{'bytes' if t.bits == 8 else 'halves'}", *texts[n : n + per_word(t)])
                yield f"{inner}atomicStore(&{place}, {whole});" if is_atomic else f"{inner}{place} = {whole};"
                continue
            mask, first = (1 << t.bits) - 1, self._bits(bit)
            yield f"{inner}atomicAnd(&{place}, ~({mask}u << {first}));"
            yield f"{inner}atomicOr(&{place}, ({texts[n]} & {mask}u) << {first});"
        yield f"{tab}}}"
        self._count = 0

    def _store_in_registers(self, s: Store, lanes: range, tab: str) -> Iterator[str]:
        """Yield a store to registers whose elements share words. A word of an array is one element of it."""
        b, t, inner = s.buffer, s.buffer.dtype, tab + self.tab
        places, count, x = self._fragments.places(Load(b, s.index, s.lanes)), per_word(t), s.value
        names = [f"{self.name(b)}_{end}" for end, _ in places]
        fills = [e for _, e in places] == [*range(count)] * (len(places) // count)
        if fills and isinstance(x, Load) and is_narrow(x.buffer) and self._words.fills(x.buffer, x.index[0], x.lanes):
            assert x.lanes is not None
            for n in range(0, len(lanes), count):
                word, _ = in_word(t, x.index[0] + x.lanes.offsets[lanes[n]])
                place = f"{self.name(x.buffer)}[{bare(self.index(word))}]"
                yield f"{tab}{names[n]} = {f'atomicLoad(&{place})' if x.buffer in self._words.apart else place};"
            return
        yield f"{tab}{{"
        texts: list[str] = []
        yield from self._named_lanes(s, lanes, inner, texts)
        for name, (_, n), text in zip(names, places, texts):
            yield f"{inner}{name} = insertBits({name}, u32({text}), {n * t.bits}u, {t.bits}u);"
        yield f"{tab}}}"
        self._count = 0

    def _bits(self, bit: Index) -> str:
        """Return the number of a bit of a word as an operand."""
        return f"{bit.const}u" if bit.is_const else f"u32({bare(self.index(bit))})"

    def _new(self) -> str:
        self._count += 1
        return f"value_{self._count}"

    def _atomic_add(self, s: AtomicAdd, tab: str) -> Iterator[str]:
        for lane in range(s.lanes.active if s.lanes else 1):
            offset = s.lanes.offsets[lane] if s.lanes else 0
            at, t = f"&{self.name(s.buffer)}[{bare(self.index(s.index[0] + offset))}]", type_name(s.buffer.dtype)
            inner = tab + self.tab
            yield f"{tab}loop {{"
            yield f"{inner}let before = atomicLoad({at});"
            total = f"bitcast<{t}>(before) + {self.value(s.value, lane)}"
            yield f"{inner}let after = bitcast<u32>({total});"
            yield f"{inner}if (atomicCompareExchangeWeak({at}, before, after).exchanged) {{ break; }}"
            yield f"{tab}}}"


def _number(b: Buffer, index: tuple[Index, ...]) -> Index:
    """Return the number of an element of a register buffer in row-major order."""
    number = as_index(0)
    for i, size in zip(index, b.shape):
        number = number * size + i
    return number


def _moving(body: Stmt) -> Iterator[Buffer]:
    """Yield the register buffers that have an access whose element is not known from the text."""
    for s in statements_of(body):
        if isinstance(s, (Store, AtomicAdd)):
            found = (*loads_of(s.value), Load(s.buffer, s.index, s.lanes))
            yield from (v.buffer for v in found if v.buffer.in_registers and any(not i.is_const for i in v.index))


def _reads_other_lanes(s: Store) -> bool:
    """Return whether the value of a lane may depend on an element that the store of another lane changes."""
    target = Load(s.buffer, s.index, s.lanes)
    is_apart = lanes_of(s.value) != lanes_of(target)
    return any(v.buffer is s.buffer and (v is not target or is_apart) for v in loads_of(s.value))

