"""Parses the printed form of the IR; the exact inverse of :mod:`convsmith.ir.text`.

A printed expression parses to the same interned object; a printed statement parses to one that prints the same text.
The parser also accepts the body of a loop on the line of the loop.  A text that does not parse raises UsageError with
line, column and the expected token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from convsmith.ir.buffer import SCOPES, UNKNOWN, Buffer, dense
from convsmith.ir.index import (
    Cond,
    Index,
    Var,
)
from convsmith.ir.parse_values import ValueParser
from convsmith.ir.stmt import (
    BARRIER_PARTS,
    GROUPED,
    LOOP_KINDS,
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Call,
    Carried,
    Commit,
    Fence,
    For,
    Function,
    If,
    Invoke,
    Kernel,
    Let,
    Meet,
    NumberedRows,
    PointerLoad,
    Prefetch,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    Store,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.stmt import Block as Sequence
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.text import buffer_text
from convsmith.ir.value import (
    Load,
    Value,
)
from convsmith.layout.block import LayoutBlock


class _Parser(ValueParser):
    # -- statements
    def body(self) -> Stmt:
        """Parse the body after a colon: one statement on the same line, or an indented block."""
        if self._now.kind != "newline":
            return self.statement()
        self._next()
        return self.indented()

    def indented(self) -> Stmt:
        self._kind("indent", "an indented block")
        out = self.statements()
        self._kind("dedent", "a statement")
        return out

    def statements(self) -> Stmt:
        out = [self.statement()]
        while self._now.kind not in ("dedent", "end"):
            out.append(self.statement())
        return out[0] if len(out) == 1 else Sequence(tuple(out))

    def program(self) -> Stmt:
        """Parse statements up to the end of the text."""
        out = self.statements()
        self._kind("end", "the end")
        return out

    def _value_names(self) -> None:
        """Parse lines such as ``value v0 = a[i] + b[i]``, which name values of the following statement."""
        self._values = {}
        while self._is("value") and not self._follows("[") and not self._follows("("):
            self._next()
            name = self._name("a value")
            self._expect("=")
            self._values[name] = self.value()
            self._kind("newline", "the end of the value")

    def statement(self) -> Stmt:
        self._value_names()
        word = self._now.text if self._now.kind == "name" else ""
        compound = {"for": self._for, "if": self._if, "let": self._let, "alloc": self._alloc, "at": self._at_entry}
        if word in compound:
            self._next()
            return compound[word]()
        effect = {"barrier": self._barrier, "async": self._async, "commit": lambda: Commit(self._of()),
                  "wait": self._wait, "atomic": self._atomic, "tensor": self._tensor, "receive": Receive,
                  "meet": Meet, "registers": self._registers, "turn": lambda: Turn(self._next().text),
                  "fence": lambda: Fence(self._next().text), "release": self._release,
                  "prefetch": self._prefetch}  # fmt: skip
        if word == "pass":
            self._next()
            out: Stmt = Sequence(())
        elif word in effect and not self._follows("[") and not self._follows("("):
            self._next()
            out = effect[word]()
        elif word == "call":
            self._next()
            out = self._call()
        elif word and self._follows("("):
            out = self._invoke()
        elif word and self._follows("["):
            target = self.access()
            self._expect("=")
            out = Store(target.buffer, target.index, self.value(), target.lanes)
        else:
            raise self._fail("a statement")
        self._kind("newline", "the end of the statement")
        return out

    def _registers(self) -> Stmt:
        count = int(self._next().text)
        self._expect("beside")
        return ShareRegisters(count, int(self._next().text))

    def _barrier(self) -> Stmt:
        return Barrier(self._next().text if self._is(*BARRIER_PARTS) else "whole")

    def _async(self) -> Stmt:
        dst = self.access()
        self._expect("=")
        src = self.access()
        return AsyncCopy(dst, src, self.cond() if self._take("if") else None)

    def _tensor(self) -> Stmt:
        dst = self.access()
        self._expect("=")
        src = self.access()

        def numbers(word: str) -> tuple[int, ...]:
            start = self._now
            items = indices(word)
            if not all(i.is_const for i in items):
                raise self._fail("numbers", start)
            return tuple(i.const for i in items)

        def indices(word: str) -> tuple[Index, ...]:
            self._expect(word)
            self._expect("(")
            return tuple(self._list(self.index, ")"))

        dims: list[tuple[int, int]] = []

        def dim() -> None:
            size = self._int()
            self._expect(":")
            dims.append((size, self._int()))

        self._expect("dims")
        self._expect("(")
        self._list(dim, ")")
        box = numbers("box")
        pixels, *corners = numbers("pixels") if self._is("pixels") else (0,)
        inner = len(corners) // 3
        lower, upper, steps = (tuple(corners[n * inner : (n + 1) * inner]) for n in range(3))
        sizes, strides = zip(*dims)
        made = TensorMap(sizes, strides, box, pixels, lower, upper, steps)
        at, offsets = indices("at"), indices("offset") if pixels else ()
        groups = self._int() if self._take("to") else 1
        if groups > 1:
            self._expect("groups")
        return TensorCopy(dst, src, made, at, offsets, groups, self.cond() if self._take("if") else None)

    def _wait(self) -> Stmt:
        return Wait(self._int("the number of groups that may be pending"), self._of())

    def _of(self) -> str:
        return self._next().text if self._is(*GROUPED) else GROUPED[0]

    def _release(self) -> Stmt:
        self._expect("step")
        step = self.index()
        to_cluster = bool(self._take("to"))
        if to_cluster:
            self._expect("cluster")
        return Release(step, to_cluster)

    def _prefetch(self) -> Stmt:
        target = self.access()
        return Prefetch(target.buffer, target.index)

    def _atomic(self) -> Stmt:
        target = self.access()
        self._expect("+")
        self._expect("=")
        return AtomicAdd(target.buffer, target.index, self.value(), target.lanes)

    def _for(self) -> Stmt:
        var = self._variable("a loop variable")
        self._expect("in")
        lo = self.index()
        self._expect("..")
        hi = self.index()
        kind = "serial"
        if self._now.kind == "note":
            kind = self._now.text[1:]
            if kind not in LOOP_KINDS:
                raise self._fail(" or ".join("#" + k for k in LOOP_KINDS))
            self._next()
        carried: list[Carried] = []
        if self._take("carrying"):
            carried.append(self._carried())
            while self._take(","):
                carried.append(self._carried())
        self._expect(":")
        return For(var, lo, hi, self.body(), kind, tuple(carried))

    def _carried(self) -> Carried:
        var = self._variable("a pointer")
        self._expect(":")
        buffer = self._buffer()
        self._expect("=")
        init = self.index()
        self._expect("step")
        return Carried(var, buffer, init, self._int("a step"))

    def _if(self) -> Stmt:
        cond = self.cond()
        self._expect(":")
        return If(cond, self.body())

    def _let(self) -> Stmt:
        var = self._variable("a variable")
        self._expect("=")
        value = self.index()
        self._expect(":")
        return Let(var, value, self.body())

    def _alloc(self) -> Stmt:
        buffer = self._declaration()
        self._expect(":")
        self._allocated.setdefault(buffer.name, buffer)
        with self._scope({buffer.name: buffer}):
            return Alloc(buffer, self.body())

    def _at_entry(self) -> Stmt:
        entry, rows = self.access(), None
        if self._take("of"):
            count = self._int("a number of rows")
            self._expect("by")
            rows = NumberedRows(count, self._int("a step"))
        self._expect("+")
        offset = self.index()
        self._expect("in")
        source = self._buffer()
        self._expect("or")
        zero = self.access()
        self._expect("as")
        buffer = self._declaration()
        self._expect(":")
        with self._scope({buffer.name: buffer}):
            body = self.body()
            return PointerLoad(buffer, entry.buffer, entry.index, offset, source, zero.buffer, zero.index, body, rows)

    def _invoke(self) -> Stmt:
        name = self._next().text
        self._expect("(")
        start = self._now
        args = self._list(self.value, ")")
        if not args:
            raise self._fail(f"the accumulator of {name}")
        if not isinstance(args[0], Load):
            raise self._fail("an access", start)
        return Invoke(name, args[0], tuple(args[1:]))

    def _call(self) -> Stmt:
        name = self._name("a function")
        self._expect("(")
        pointers: list[tuple[Buffer, Index]] = []
        indices: list[Index] = []

        def argument() -> None:
            if self._now.kind == "name" and self._follows("@"):
                if indices:
                    raise self._fail("an index: pointers come first")
                buffer = self._buffer()
                self._expect("@")
                pointers.append((buffer, self.index()))
            else:
                indices.append(self.index())

        self._list(argument, ")")
        return Call(name, tuple(pointers), tuple(indices))

    @contextmanager
    def _scope(self, buffers: Mapping[str, Buffer]) -> Iterator[None]:
        outer = self._buffers
        self._buffers = {**outer, **buffers}
        yield
        self._buffers = outer

    # -- kernels
    def _declaration(self) -> Buffer:
        name = self._name("a buffer")
        self._expect(":")
        dtype = self._dtype()
        self._expect("[")
        shape = tuple(self._list(lambda: UNKNOWN if self._take("?") else self._int(), "]"))
        blocks = dense(shape)
        if self._take("="):
            listed: list[LayoutBlock] = []
            while self._now.kind == "int":
                dim = self._int()
                self._expect(":")
                size = self._int()
                self._expect(":")
                listed.append(LayoutBlock(dim, size, self._int()))
            blocks = tuple(listed)
        scope = "global"
        if self._take("@"):
            if not self._is(*SCOPES):
                raise self._fail(" or ".join(SCOPES))
            scope = self._next().text
        return Buffer(name, dtype, shape, blocks, scope)

    def kernel(self) -> Kernel:
        """Parse a kernel up to the end of the text, with the kernels that prepare its arguments."""
        kernel = self._kernel("kernel")
        packs: list[Kernel] = []
        before: list[Kernel] = []
        while self._now.kind != "end":
            last = bool(before) or self._is("before")
            (before if last else packs).append(self._kernel("before" if last else "pack", kernel.params))
        return replace(kernel, packs=tuple(packs), before=tuple(before))

    def _kernel(self, word: str, known: tuple[Buffer, ...] = ()) -> Kernel:
        """Parse one kernel; ``word`` is its keyword, ``known`` are buffers that it may share.

        Functions precede the kernel but use its buffers, so they are skipped first and parsed after it.
        """
        starts: list[int] = []
        while self._is("function"):
            starts.append(self._at)
            self._skip_indented()
        self._expect(word)
        name = self._name("a kernel")
        self._expect("(")
        same = {buffer_text(b): b for b in known}
        params, sizes = [], []

        def parameter() -> None:
            if not self._follows(":"):
                sizes.append(self._variable("a size"))
                return
            if sizes:
                raise self._fail("a size: buffers come first")
            b = self._declaration()
            params.append(same.get(buffer_text(b), b))

        self._list(parameter, ")")
        def hint() -> None:
            name = self._name("a buffer")
            streamed[name] = self._int() if self._take(":") else 0

        bits = 0
        streamed: dict[str, int] = {}
        if re.fullmatch(r"#i\d+", self._now.text):
            bits = int(self._next().text[2:])
        if self._now.kind == "note":
            if self._now.text != "#stream":
                raise self._fail("a width such as #i32, or #stream and names of buffers")
            self._next()
            self._expect("(")
            self._list(hint, ")")
        self._kind("newline", "the end of the line")
        self._buffers = {b.name: b for b in params}
        self._allocated = {}
        body = self.indented()
        end = self._at
        self._buffers = {**self._allocated, **self._buffers}
        functions = []
        for start in starts:
            self._at = start
            functions.append(self._function())
        self._at = end
        return Kernel(
            name, tuple(params), body, tuple(functions), index_bits=bits, sizes=tuple(sizes),
            streamed=streamed,
        )  # fmt: skip

    def _skip_indented(self) -> None:
        depth = 0
        while True:
            token = self._next()
            depth += {"indent": 1, "dedent": -1}.get(token.kind, 0)
            if token.kind == "dedent" and not depth:
                return
            if token.kind == "end":
                raise self._fail("an indented function, then a kernel", token)

    def _function(self) -> Function:
        self._expect("function")
        name = self._name("a function")
        self._expect("(")
        pointers: list[tuple[Var, Buffer]] = []
        indices: list[Var] = []

        def parameter() -> None:
            var = self._variable("a parameter")
            if self._take(":"):
                pointers.append((var, self._buffer()))
            else:
                indices.append(var)

        self._list(parameter, ")")
        self._kind("newline", "the end of the line")
        return Function(name, tuple(pointers), tuple(indices), self.indented())


def parse_index(text: str) -> Index:
    """Return the index that ``text`` denotes, in normal form."""
    parser = _Parser(text, {})
    return parser.whole(parser.index)


def parse_cond(text: str) -> Cond:
    """Return the condition that ``text`` denotes."""
    parser = _Parser(text, {})
    return parser.whole(parser.cond)


def parse_value(text: str, buffers: Mapping[str, Buffer]) -> Value:
    """Return the value that ``text`` denotes; ``buffers`` maps names to buffers."""
    parser = _Parser(text, buffers)
    return parser.whole(parser.value)


def parse_stmt(text: str, buffers: Mapping[str, Buffer]) -> Stmt:
    """Return the statements of ``text``; ``buffers`` maps names to buffers."""
    parser = _Parser(text, buffers)
    return parser.read(parser.program)


def parse_kernel(text: str) -> Kernel:
    """Return the kernel of ``text`` with its functions and the kernels that prepare its arguments.

    All buffers are new; the preparing kernels share the parameters whose declarations equal the kernel's.
    """
    parser = _Parser(text, {})
    return parser.read(parser.kernel)
