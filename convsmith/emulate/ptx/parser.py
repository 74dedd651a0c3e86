"""PTX text as data: kernels with their parameters, variables, labels and instructions."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import NamedTuple

from convsmith.diag.errors import ToolchainError


class PtxError(ToolchainError):
    """A fault of a PTX program: text that is not PTX, or an execution that the PTX manual calls undefined."""

    default_code = "fault"


class Register(NamedTuple):
    """A register, or a special register such as ``%tid.x``."""

    name: str


class Immediate(NamedTuple):
    """A number; for a float, its bits and their count."""

    value: int
    float_bits: int = 0


class Symbol(NamedTuple):
    """The address of a variable, or a label, or the name of a parameter."""

    name: str


class Address(NamedTuple):
    """The operand ``[base + offset]``; TMA instructions have coordinates beside the address of the tensor map."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Register | Immediate, ...] = ()


class Group(NamedTuple):
    """A vector operand ``{a, b, ...}``."""

    items: tuple[Register | Immediate | Symbol, ...]


Atom = Register | Immediate | Symbol
Argument = Register | Immediate | Symbol | Address | Group


class PtxInstruction(NamedTuple):
    """One instruction: the words of its opcode, its operands, and the predicate that guards it.

    A shuffle or elect writes a predicate beside its result (``%r1|%p1``): ``beside`` names it.
    """

    words: tuple[str, ...]
    arguments: tuple[Argument, ...]
    guard: str = ""
    is_negated: bool = False
    beside: str = ""
    line: int = 0
    text: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


class PtxVariable(NamedTuple):
    """A variable: its state space, alignment and bytes; ``content`` of a variable with an initial value."""

    space: str
    align: int
    size: int
    content: bytes = b""


@dataclass
class PtxKernel:
    """A kernel: parameters as (name, bytes, alignment), bits of registers by name, variables, instructions, labels."""

    name: str
    parameters: list[tuple[str, int, int]]
    threads: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    registers: dict[str, int] = field(default_factory=dict)
    variables: dict[str, PtxVariable] = field(default_factory=dict)
    code: list[PtxInstruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass
class PtxModule:
    """The target of a PTX text, and its kernels by name, which are parsed when they are asked for."""

    target: str
    kernels: dict[str, Callable[[], PtxKernel]]


_BYTES = {"b8": 1, "s8": 1, "u8": 1, "b16": 2, "s16": 2, "u16": 2, "f16": 2, "b32": 4, "s32": 4, "u32": 4, "f32": 4,
          "b64": 8, "s64": 8, "u64": 8, "f64": 8}  # fmt: skip
_VARIABLE = re.compile(
    r"(?:\.visible\s+|\.extern\s+|\.weak\s+)*\.(shared|global|const|local)\s+(?:\.attribute\(.*?\)\s*)?"
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(\[\d*\])?\s*(?:=\s*(.*))?$",
    re.DOTALL,
)
_ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)\s*\(")


def parse_ptx(text: str) -> PtxModule:
    """Return the kernels of a PTX text. PtxError if the braces of a kernel do not match."""
    text = re.sub(r"//[^\n]*", "", text)
    target = re.search(r"\.target\s+(\w+)", text)
    shared: dict[str, PtxVariable] = {}
    kernels: dict[str, Callable[[], PtxKernel]] = {}
    place = 0
    while True:
        entry = _ENTRY.search(text, place)
        for statement in text[place : entry.start() if entry else len(text)].split(";")[:-1]:
            _declare(statement.strip(), shared)
        if entry is None:
            return PtxModule(target[1] if target else "", kernels)
        place = _end_of_body(text, entry)
        kernels[entry[1]] = cache(partial(_kernel, text, entry, shared))


def _end_of_body(text: str, entry: re.Match[str]) -> int:
    """Return the position after the brace that closes the body of a kernel."""
    depth = 0
    for brace in re.finditer("[{}]", text[entry.end() :]):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return entry.end() + brace.end()
    raise PtxError(f"kernel {entry[1]}: the text ends within the body")


def _kernel(text: str, entry: re.Match[str], shared: Mapping[str, PtxVariable]) -> PtxKernel:
    """Return the kernel whose name `entry` has found, in a text with variables outside of kernels."""
    close = text.index(")", entry.end())
    opening = text.index("{", close)
    threads, cluster = _extents(text[close:opening])
    kernel = PtxKernel(entry[1], _parameters(text[entry.end() : close]), threads, cluster, variables={**shared})
    _body(text, opening, kernel)
    return kernel


def _extents(directives: str) -> Iterator[tuple[int, int, int] | None]:
    """Yield the threads of a block and the blocks of a cluster that a kernel requires along each axis."""
    for name in ("reqntid", "reqnctapercluster"):
        found = re.search(rf"\.{name}\s+([\d, ]+)", directives)
        x, y, z = (*(int(n) for n in found[1].split(",")), 1, 1)[:3] if found else (0, 0, 0)
        yield (x, y, z) if found else None


def _parameters(text: str) -> list[tuple[str, int, int]]:
    parameters = []
    for part in filter(str.strip, text.split(",")):
        align = re.search(r"\.align\s+(\d+)\s+\.b8", part)
        kind = re.search(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", part)
        name = re.search(r"([\w$]+)\s*(?:\[(\d+)\])?\s*$", part)
        if kind is None or name is None:
            raise PtxError(f"parameter {part.strip()!r} is not understood")
        size = int(name[2]) if name[2] else _BYTES[kind[1]]
        parameters.append((name[1], size, int(align[1]) if align else min(size, 8)))
    return parameters


def _declare(text: str, variables: dict[str, PtxVariable]) -> None:
    found = _VARIABLE.search(text)
    if found is None:
        return
    space, align, kind, name, extent, content = found.groups()
    count = int(extent[1:-1] or 0) if extent else 1
    size = count * _BYTES[kind]
    data = b""
    if content:
        numbers = [_immediate(x.strip()) for x in content.strip("{} \n").split(",")]
        data = b"".join((n.value % (1 << 8 * _BYTES[kind])).to_bytes(_BYTES[kind], "little") for n in numbers)
        data = data.ljust(size, b"\0")
    elif space in ("global", "const") and extent:
        data = bytes(size)
    variables[name] = PtxVariable(space, int(align or _BYTES[kind]), size, data)


def _body(text: str, place: int, kernel: PtxKernel) -> None:
    """Parse the statements of a body that begins at its brace."""
    scopes: list[dict[str, str]] = []
    counter, counted = 0, place
    line = text.count("\n", 0, place) + 1
    statement = re.compile(r"\s*(?:(\{)|(\})|([\w$]+):|([^;]*);)", re.DOTALL)
    while True:
        found = statement.match(text, place)
        assert found is not None, "the braces match"
        opening, closing, label, words = found.groups()
        place = found.end()
        if opening:
            scopes.append({})
        elif closing:
            scopes.pop()
            if not scopes:
                return
        elif label:
            kernel.labels[label] = len(kernel.code)
        elif words.strip().startswith(".reg"):
            counter += 1
            _registers(words.strip(), kernel, scopes[-1], counter if len(scopes) > 1 else 0)
        elif words.strip().startswith("."):
            _declare(words.strip(), kernel.variables)
        elif words.strip():
            local = tuple(names for scope in scopes for names in scope.items())
            line += text.count("\n", counted, place)
            counted = place
            kernel.code.append(_instruction(words.strip(), local)._replace(line=line))


def _registers(text: str, kernel: PtxKernel, scope: dict[str, str], counter: int) -> None:
    """Declare registers; those of an inner scope, whose `counter` is not 0, get unique names. `scope` gets the names
    that differ from those in the text, or do not look like a register.
    """
    _, kind, names = text.split(None, 2)
    bits = 1 if kind == ".pred" else 128 if kind == ".b128" else 8 * _BYTES[kind[1:]]
    for name in (n.strip() for n in names.split(",")):
        several = re.fullmatch(r"(.*)<(\d+)>", name)
        for one in [f"{several[1]}{n}" for n in range(int(several[2]))] if several else [name]:
            if counter and one in kernel.registers:
                scope[one] = f"{one}.{counter}"
            elif not one.startswith("%"):
                scope[one] = one
            kernel.registers[scope.get(one, one)] = bits


_FLOAT = {"f": 32, "d": 64}
_INSTRUCTION = re.compile(r"(?:@(!?)([%\w]+)\s+)?([\w.:]+)\s*(.*)$", re.DOTALL)
_ADDRESS = re.compile(r"([%\w$.]+)\s*(?:\+\s*(-?\w+))?")
_OPERAND = re.compile(r"(?:\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,\[{(])+")


def _immediate(text: str) -> Immediate:
    if text[:2].lower() in ("0f", "0d") and len(text) > 2:
        return Immediate(int(text[2:], 16), _FLOAT[text[1].lower()])
    if re.fullmatch(r"-?\d*\.\d+(e[+-]?\d+)?", text):
        return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    return Immediate(int(text.rstrip("U"), 0))


@lru_cache(1 << 14)  # texts of a kernel, one of which is changed, share most lines
def _instruction(text: str, names: tuple[tuple[str, str], ...]) -> PtxInstruction:
    """Return the instruction of a statement without its semicolon; `names` are those of registers in a scope."""
    local = dict(names)
    found = _INSTRUCTION.match(text)
    if found is None:
        raise PtxError(f"{text!r} is not an instruction")
    negated, guard, opcode, operands = found.groups()
    words = tuple(opcode.replace("::", ":").split("."))
    arguments, beside = [], ""
    for part in _split(operands):
        if "|" in part:
            part, beside = (x.strip() for x in part.split("|"))
        arguments.append(_argument(part, local))
    guard = local.get(guard, guard) if guard else ""
    text = " ".join(text.split())
    return PtxInstruction(words, tuple(arguments), guard, bool(negated), local.get(beside, beside), text=text)


def _split(text: str) -> list[str]:
    """Split operands at the commas outside of brackets."""
    return [part for part in map(str.strip, _OPERAND.findall(text)) if part]


def _argument(text: str, local: Mapping[str, str]) -> Argument:
    if text.startswith("{"):
        return Group(tuple(_atom(x, local) for x in _split(text[1:-1])))
    if not text.startswith("["):
        return _atom(text, local)
    base, *coordinates = _split(text[1:-1])
    found = _ADDRESS.fullmatch(base)
    if found is None:
        raise PtxError(f"address {text} is not understood")
    atom = _atom(found[1], local)
    lanes = _argument(coordinates[0], local) if coordinates else Group(())
    assert isinstance(lanes, Group)
    return Address(atom, int(found[2] or "0", 0), lanes.items)  # type: ignore[arg-type]


def _atom(text: str, local: Mapping[str, str]) -> Atom:
    if text in local or text.startswith("%") or text == "_":
        return Register(local.get(text, text))
    if text[0] in "-.0123456789":
        return _immediate(text)
    return Symbol(text)
