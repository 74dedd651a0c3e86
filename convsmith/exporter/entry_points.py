"""The functions that a program calls, as LLVM text: they fill argument blocks and run the entries of a kernel.

A block is on the stack of the caller. Tables of pointers, and memory that holds the zero points of a call, are written
to the workspace before the entry that reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from convsmith.codegen.artifact import Argument, Entry
from convsmith.codegen.binder import absent_places, element_type
from convsmith.exporter.constants import stored_bytes
from convsmith.exporter.interface import WORKSPACE, EntryUse, Interface, Parameter
from convsmith.layout.block import ABSENT
from convsmith.layout.indirection import from_recipe
from convsmith.runtime.arrays import ALIGNMENT, ArraySpec
from convsmith.runtime.operand_packing import PackedParts

__all__ = ["EntryFunctions", "check_lines", "entry_points_text", "message_lines"]

_BACKSLASH = "\\"
_SIGN_BITS = {"u8": "zext", "s8": "sext", "s16": "sext"}
"""Conversions of the types of zero points that are narrower than 32 bits."""


def entry_points_text(interface: Interface, triple: str, contents: Mapping[str, bytes]) -> str:
    """Return the module of the functions of ``interface``, which declares the entries that it runs.

    ``contents`` are the bytes of built-in arrays, by the names that their parameters would have.
    """
    word = f"i{interface.artifact.address_bits}"
    module = EntryFunctions(interface, word)
    for name, memory in contents.items():
        module.constant(name, memory)
    threads = (", ptr %parallel, ptr %pool") if interface.threads > 1 else ""
    run = module.function(interface.name, interface.parameters, interface.uses, threads)
    packs = [module.function(p.symbol, p.parameters, p.uses) for p in interface.packings]
    others = (*check_lines(interface, word), *message_lines(interface))
    parts = (*run, *(line for lines in packs for line in lines), *others)
    head = (f'target triple = "{triple}"', *module.declared, *module.constants.values())
    return "\n".join((*head, *parts, ""))


class EntryFunctions:
    """The functions of a module, which collects the constants and declarations that they need, by name.

    Names of constants begin with ``prefix``, so that functions of several interfaces may share a module.
    """

    def __init__(self, interface: Interface, word: str, prefix: str = "") -> None:
        self.interface, self.word, self.prefix = interface, word, prefix
        self.constants: dict[str, str] = {}
        self.declared: dict[str, None] = {}
        self._lines: list[str] = []
        self._values = 0

    def constant(self, name: str, memory: bytes) -> str:
        """Return the name of a constant array of bytes."""
        value = f'c"{_escaped(memory)}"' if any(memory) else "zeroinitializer"
        name = f"{self.prefix}{name}"
        self.constants[name] = f"{_memory(name)} = constant [{len(memory)} x i8] {value}, align {ALIGNMENT}"
        return _memory(name)

    def function(
        self, symbol: str, parameters: Sequence[Parameter], uses: Sequence[EntryUse], threads: str = ""
    ) -> list[str]:
        """Return the lines of a function that runs entries; ``threads`` are further parameters."""
        self._lines, self._values = [], 0
        places = {p.name: f"%{p.name}" for p in parameters}
        given = dict(places)
        for p in parameters:
            if p.is_optional and p.tensor is not None:
                default = self._default(p.tensor)
                is_null = self._put(f"icmp eq ptr %{p.name}, null")
                given[p.name] = self._put(f"select i1 {is_null}, ptr {default}, ptr %{p.name}")
        blocks = [self._put(f"alloca [{max(len(use.entry.arguments), 1)} x ptr]") for use in uses]
        for use, block in zip(uses, blocks):
            self._entry(use, block, given, bool(threads))
        names = ", ".join(f"ptr {place}" for place in places.values())
        return [f"define void @{symbol}({names}{threads}) nounwind {{", *self._lines, "  ret void", "}"]

    def _put(self, text: str) -> str:
        self._values += 1
        self._lines.append(f"  %v{self._values} = {text}")
        return f"%v{self._values}"

    def _default(self, tensor: Argument) -> str:
        assert tensor.default is not None
        return self.constant(f"default_{tensor.name}", stored_bytes(ArraySpec(tensor), tensor.default))

    def _entry(self, use: EntryUse, block: str, given: Mapping[str, str], is_shared: bool) -> None:
        """Fill the argument block of an entry, write the tables that it reads, and call it."""
        entry = use.entry
        own = {a.name: self._place(a, use, given) for a in entry.arguments}
        for a in entry.arguments:
            if a.role == "zero" and a.recipe:
                points = next(x for x in entry.arguments if x.name == a.recipe)
                self._write_points(a, points, own)
        for a in entry.arguments:
            if a.role == "table":
                self._write_table(a, next(z for z in entry.arguments if z.role == "zero" and z.of == a.of), own)
        for n, a in enumerate(entry.arguments):
            at = self._put(f"getelementptr ptr, ptr {block}, {self.word} {n}")
            self._lines.append(f"  store ptr {own[a.name]}, ptr {at}")
        self._call(entry, block, is_shared)

    def _call(self, entry: Entry, block: str, is_shared: bool) -> None:
        """Call an entry on its argument block; its parts run through `parallel` if they ``is_shared``."""
        chunk, word, parts = f"@{entry.chunk_symbol}", self.word, entry.launch.threads
        self.declared[f"declare void {chunk}(ptr, {word}, {word})"] = None
        alone = f"  call void {chunk}(ptr {block}, {word} 0, {word} 1)"
        if not is_shared or parts == 1:
            self._lines.append(alone)
            return
        self._values += 1
        n = self._values
        is_null = self._put("icmp eq ptr %parallel, null")
        self._lines += [
            f"  br i1 {is_null}, label %alone{n}, label %shared{n}", f"alone{n}:", alone, f"  br label %done{n}",
            f"shared{n}:", f"  call void %parallel(ptr %pool, ptr {chunk}, ptr {block}, {word} {parts})",
            f"  br label %done{n}", f"done{n}:",
        ]  # fmt: skip

    def _place(self, a: Argument, use: EntryUse, given: Mapping[str, str]) -> str:
        """Return the address of the memory of an argument."""
        if a.name in use.places:
            return self._at(f"%{WORKSPACE}", use.places[a.name])
        if a.role == "packed":
            name = f"packed_{a.of}"
            offsets = PackedParts.of(self.interface.artifact, a.of).offsets
            return self._at(given.get(name, _memory(name)), offsets[a.name])
        if a.role == "zero":
            return self.constant(f"zeros_{a.name}", bytes(a.nbytes))
        return given.get(a.name, _memory(a.name))

    def _at(self, base: str, offset: int) -> str:
        return self._put(f"getelementptr i8, ptr {base}, {self.word} {offset}") if offset else base

    def _loop(self, count: int) -> tuple[str, str]:
        """Begin a loop of ``count`` iterations; return its variable and the number of its labels."""
        self._values += 1
        n = str(self._values)
        self._lines += [
            f"  br label %before{n}", f"before{n}:", f"  br label %loop{n}", f"loop{n}:",
            f"  %i{n} = phi {self.word} [ 0, %before{n} ], [ %next{n}, %loop{n} ]",
        ]  # fmt: skip
        return f"%i{n}", f"{n} {count}"

    def _end_loop(self, loop: str) -> None:
        n, count = loop.split()
        self._lines += [
            f"  %next{n} = add {self.word} %i{n}, 1", f"  %again{n} = icmp ult {self.word} %next{n}, {count}",
            f"  br i1 %again{n}, label %loop{n}, label %after{n}", f"after{n}:",
        ]  # fmt: skip

    def _write_table(self, a: Argument, zero: Argument, own: Mapping[str, str]) -> None:
        """Write the pointers of a table, which point to pixels of a tensor or to the buffer that represents absent
        pixels.
        """
        item, absent = element_type(zero).itemsize, -1
        entries = from_recipe(a.recipe).entries.ravel()
        if not entries.size:
            return
        offsets = np.where(entries == ABSENT, absent, entries * item).astype("<i8")
        stored = self.constant(f"offsets_{self._values}_{a.name}", offsets.tobytes())
        i, loop = self._loop(len(offsets))
        offset = self._put(f"load i64, ptr {self._put(f'getelementptr i64, ptr {stored}, {self.word} {i}')}, align 8")
        is_absent = self._put(f"icmp eq i64 {offset}, {absent}")
        inside = self._put(f"getelementptr i8, ptr {own[a.of]}, i64 {offset}")
        pointer = self._put(f"select i1 {is_absent}, ptr {own[zero.name]}, ptr {inside}")
        at = self._put(f"getelementptr ptr, ptr {own[a.name]}, {self.word} {i}")
        self._lines.append(f"  store ptr {pointer}, ptr {at}")
        self._end_loop(loop)

    def _write_points(self, a: Argument, points: Argument, own: Mapping[str, str]) -> None:
        """Write the zero points of a call to the buffer that represents absent pixels."""
        wide, bits = f"i{element_type(points).itemsize * 8}", f"i{element_type(a).itemsize * 8}"
        count = a.size if points.size == 1 else points.size
        if a.size > count:
            i, loop = self._loop(a.size)
            place = self._put(f"getelementptr {bits}, ptr {own[a.name]}, {self.word} {i}")
            self._lines.append(f"  store {bits} 0, ptr {place}")
            self._end_loop(loop)
        i, loop = self._loop(count)
        if points.size == 1:
            source, target = own[points.name], i
        else:
            source = self._put(f"getelementptr {wide}, ptr {own[points.name]}, {self.word} {i}")
            stored = self.constant(f"channels_{self._values}_{a.name}", absent_places(a, count).astype("<i8").tobytes())
            at = self._put(f"getelementptr i64, ptr {stored}, {self.word} {i}")
            target = self._put(f"load i64, ptr {at}, align 8")
        point = self._put(f"load {wide}, ptr {source}, align {element_type(points).itemsize}")
        if wide != bits:
            change = "trunc" if int(wide[1:]) > int(bits[1:]) else _SIGN_BITS[points.dtype]
            point = self._put(f"{change} {wide} {point} to {bits}")
        index = self.word if points.size == 1 else "i64"
        place = self._put(f"getelementptr {bits}, ptr {own[a.name]}, {index} {target}")
        self._lines.append(f"  store {bits} {point}, ptr {place}")
        self._end_loop(loop)


def _escaped(memory: bytes) -> str:
    """Return bytes as LLVM writes them in a text."""
    return f"\\{memory.hex(_BACKSLASH)}"


def _memory(name: str) -> str:
    """Return the symbol of a constant, which is not a legal name of a kernel."""
    return f"@memory.{name}"


def check_lines(interface: Interface, word: str) -> Iterator[str]:
    """Yield the lines of the function that checks sizes, alignment and overlaps of the arrays of a call."""
    parameters = interface.parameters
    names = ", ".join(f"ptr %{p.name}, {word} %{p.name}.bytes" for p in parameters)
    yield f"define i32 @{interface.check}({names}) nounwind {{"
    for n, p in enumerate(parameters):
        yield f"  %a{n} = ptrtoint ptr %{p.name} to {word}"
        yield f"  %null{n} = icmp eq ptr %{p.name}, null"
        yield f"  %end{n} = add {word} %a{n}, {p.nbytes}"
    code = "0"
    for number, (n, kind, _) in reversed([*enumerate(interface.faults, 1)]):
        p, at = parameters[n], f"%f{number}"
        which, _, other = kind.partition(" ")
        if which == "null":
            yield f"  {at} = and i1 %null{n}, true"
        elif which == "bytes":
            yield f"  {at}.few = icmp ult {word} %{p.name}.bytes, {p.nbytes}"
            yield from _unless_null(at, f"{at}.few", (n,) if p.is_optional else ())
        elif which == "alignment":
            yield f"  {at}.low = and {word} %a{n}, {p.alignment - 1}"
            yield f"  {at} = icmp ne {word} {at}.low, 0"
        else:
            m = int(other)
            yield f"  {at}.before = icmp ult {word} %a{n}, %end{m}"
            yield f"  {at}.behind = icmp ult {word} %a{m}, %end{n}"
            yield f"  {at}.both = and i1 {at}.before, {at}.behind"
            yield from _unless_null(at, f"{at}.both", (m,) if parameters[m].is_optional else ())
        yield f"  %c{number} = select i1 {at}, i32 {number}, i32 {code}"
        code = f"%c{number}"
    yield from (f"  ret i32 {code}", "}")


def _unless_null(result: str, fault: str, optional: tuple[int, ...]) -> Iterator[str]:
    """Yield the lines that clear the fault of an optional parameter that is null."""
    if not optional:
        yield f"  {result} = and i1 {fault}, true"
        return
    yield f"  {result} = select i1 %null{optional[0]}, i1 false, i1 {fault}"


def message_lines(interface: Interface) -> Iterator[str]:
    """Yield the lines of the function from a code to a text, which needs no relocation: offsets into one constant."""
    texts = ["", *(text for _, _, text in interface.faults), "unknown code"]
    texts[0] = "every array fits the kernel"
    encoded = [f"{interface.name}: {text}".encode() + b"\0" for text in texts]
    starts = [sum(map(len, encoded[:n])) for n in range(len(encoded))]
    whole = _escaped(b"".join(encoded))
    offsets = ", ".join(f"i32 {start}" for start in starts)
    size, last = sum(map(len, encoded)), len(texts) - 1
    yield from (
        f'{_memory("messages")} = constant [{size} x i8] c"{whole}"',
        f"{_memory('offsets')} = constant [{len(texts)} x i32] [{offsets}]",
        f"define ptr @{interface.message}(i32 %code) nounwind {{",
        f"  %known = icmp ult i32 %code, {last}",
        f"  %n = select i1 %known, i32 %code, i32 {last}",
        f"  %at = getelementptr i32, ptr {_memory('offsets')}, i32 %n",
        "  %offset = load i32, ptr %at",
        f"  %text = getelementptr i8, ptr {_memory('messages')}, i32 %offset",
        "  ret ptr %text",
        "}",
    )
