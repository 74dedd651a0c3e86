"""Register assignment for fragments: the register of each fragment, and the loads of operands.

Each accumulator keeps one register during its lifetime.  The other registers hold operands and are shared by operands
of equal shape; the least recently used one is reused first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from math import prod
from typing import Protocol

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.instruction import FragmentFile, Instruction, Operand
from convsmith.ir.stmt import Alloc, Call, Invoke, Kernel, Stmt, Store
from convsmith.ir.value import Lanes, Load, Value
from convsmith.ir.walk import statements_of

VECTORS = "vector"
"""The file of the registers that LLVM allocates itself."""
Place = tuple[Buffer, tuple[Index, ...]]
Shape = tuple[int, int]
"""Rows, and bytes per row."""
Shapes = tuple[Shape, ...]
"""The shapes of all registers by number: a configuration."""


class FragmentEmitter(Protocol):
    """The emitter of a function, as far as fragments need it."""

    lines: list[str]

    def put(self, expression: str) -> str:
        """Emit an expression and return the name of its result."""
        ...

    def address(self, buffer: Buffer, index: Index) -> str:
        """Return the pointer to an element."""
        ...

    def registers_of(self, operand: Operand, v: Value) -> list[str]:
        """Return the values of an operand in registers that LLVM allocates."""
        ...


class Assignment:
    """The register of each fragment during the lifetime of a fragment buffer; ``shapes`` are the shapes of all
    registers, by default those that leave most of them to operands.
    """

    def __init__(
        self, body: Stmt, rows: Mapping[str, Instruction], file: FragmentFile, shapes: Shapes | None = None
    ) -> None:  # fmt: skip
        sums: dict[Place, Shape] = {}
        operands: dict[Shape, int] = {}  # and the number of them that an instruction reads
        for s in statements_of(body):
            if isinstance(s, Invoke) and s.dst.buffer.scope == "fragment":
                row = rows[s.instruction]
                read = [_shape(a, x) for a, x in zip(s.args, row.operands[1:])]
                factors = Counter(x for x, operand in zip(read, row.operands[1:]) if operand.file == file.name)
                operands |= {x: max(n, operands.get(x, 0)) for x, n in factors.items()}
                sums.setdefault(_place(s.dst), (read[0][0], _columns(row.result) * s.dst.buffer.dtype.bytes))
        spare = file.count - len(sums)
        if spare < len(operands):
            raise InternalError(f"{len(sums)} fragments of sums leave {spare} registers for {len(operands)} shapes")
        self.shapes = shapes or (*sums.values(), *islice(cycle(operands), spare))
        free: dict[Shape, list[int]] = {}
        for number, shape in enumerate(self.shapes):
            free.setdefault(shape, []).append(number)
        self.number = {place: free[shape].pop(0) for place, shape in sums.items() if free.get(shape)}
        self.pools = {shape: free.get(shape, []) for shape in operands}
        self.is_whole = len(self.number) == len(sums) and all(len(self.pools[x]) >= n for x, n in operands.items())
        """Whether the registers suffice."""


class Configurations:
    """Places at which the fragment registers are configured: around the largest statements that need one configuration.

    A function that needs a single configuration leaves it to its callers, because configuring costs as much as many
    products.
    """

    def __init__(self, kernel: Kernel, rows: Mapping[str, Instruction], file: FragmentFile) -> None:
        self.rows, self.file = rows, file
        bodies = (kernel.body, *(f.body for f in kernel.functions))
        living = [x for body in bodies for x in statements_of(body) if isinstance(x, Alloc) and _lives(x)]
        self.shapes = self._shared([x.body for x in living])
        """The configuration of the statements during the lifetime of each fragment buffer."""
        self._needed: dict[Stmt, frozenset[Shapes]] = {}
        self.left_to_callers: dict[str, frozenset[Shapes]] = {}
        for f in kernel.functions:
            needed = self.needed(f.body)
            self.left_to_callers[f.name] = needed if len(needed) == 1 else frozenset()

    @staticmethod
    def of(
        kernel: Kernel, rows: Mapping[str, Instruction], files: Sequence[FragmentFile]
    ) -> Configurations | None:  # fmt: skip
        """Return the configurations of a kernel; None if it does not use fragments, or their registers need no
        configuration.
        """
        file = file_of((kernel.body, *(f.body for f in kernel.functions)), rows, files)
        if file is None or not file.begin:
            return None
        return Configurations(kernel, rows, file)

    def needed(self, s: Stmt) -> frozenset[Shapes]:
        """Return the configurations that a statement runs under."""
        if s not in self._needed:
            configurations: set[Shapes] = set()
            for x in statements_of(s):
                if isinstance(x, Alloc) and _lives(x):
                    configurations.add(self.shapes[x.body])
                elif isinstance(x, Call):
                    configurations |= self.left_to_callers[x.function]
            self._needed[s] = frozenset(configurations)
        return self._needed[s]

    def _shared(self, bodies: Sequence[Stmt]) -> dict[Stmt, Shapes]:
        """Return a configuration for each of ``bodies``: among those of all, the one that serves most."""
        own = {body: Assignment(body, self.rows, self.file).shapes for body in bodies}
        kinds = dict.fromkeys(own.values())
        served = {
            shapes: [x for x in own if Assignment(x, self.rows, self.file, shapes).is_whole] for shapes in kinds
        } if len(kinds) > 1 else {shapes: [*own] for shapes in kinds}  # fmt: skip
        return {x: max((s for s in kinds if x in served[s]), key=lambda s: len(served[s])) for x in own}

    def begin(self, shapes: Shapes) -> tuple[str, str]:
        """Return the line that configures the registers, and the line that defines the constant it loads."""
        name = "@fragments_" + "_".join(f"{rows}x{size}" for rows, size in shapes)
        return self.file.begin.format(p=name), constant(name, self.file.configuration(shapes))


class Fragments:
    """The registers during the lifetime of a fragment buffer.

    ``streamed`` are the names of streamed buffers, ``emitter`` emits the enclosing function, and ``shapes`` are the
    shapes of the registers, if they are configured.
    """

    def __init__(
        self, body: Stmt, rows: Mapping[str, Instruction], file: FragmentFile, streamed: Mapping[str, int],
        emitter: FragmentEmitter, shapes: Shapes | None,
    ) -> None:  # fmt: skip
        self.rows, self.file, self.streamed, self.emitter = rows, file, streamed, emitter
        assigned = Assignment(body, rows, file, shapes)
        self.number, self.pools = assigned.number, assigned.pools
        self.read: dict[int, Load] = {}
        self.is_awake = False

    def enter(self) -> None:
        """Begin a block: any number of products may precede it, and the operands in registers are unknown."""
        self.forget()
        self.is_awake = False

    def forget(self) -> None:
        """Discard the operands in registers, which may be out of date."""
        self.read.clear()

    def emit(self, line: str) -> str:
        """Emit an expression, and return the name of its result; the empty string for a call without a result."""
        if "call void @" not in line:
            return self.emitter.put(line)
        self.emitter.lines.append(f"  {line}")
        return ""

    def zero(self, buffer: Buffer, index: tuple[Index, ...]) -> None:
        self.emit(self.file.zero[self.number[buffer, index]])

    def fetch(self, buffer: Buffer, index: tuple[Index, ...], v: Load) -> None:
        """Load an accumulator from memory."""
        self._move(self.file.load, self.number[buffer, index], v, buffer.shape[-1])

    def store(self, s: Store) -> None:
        """Store an accumulator to memory."""
        v = s.value
        assert isinstance(v, Load)
        self._move(self.file.store, self.number[_place(v)], s, v.buffer.shape[-1])

    def _move(self, text: str, register: int, x: Load | Store, columns: int) -> None:
        """Emit the ``text`` that moves a register from or to the place of ``x``, whole or lane by lane."""
        distance = _distance(x.lanes, columns) * x.buffer.dtype.bytes
        p = self.emitter.address(x.buffer, x.index[0])
        if not self.file.by_lane:
            self.emit(text.format(r=register, p=p, distance=distance))
            return
        assert x.lanes is not None
        for lane in range(x.lanes.active // columns):
            at = self.emitter.put(f"getelementptr i8, ptr {p}, i64 {lane * distance}") if lane else p
            self.emit(text.format(r=register, p=at, lane=lane))

    def invoke(self, s: Invoke) -> None:
        """Emit one instruction and the loads of its operands."""
        row = self.rows[s.instruction]
        if self.file.awake and not self.is_awake:
            self.emitter.lines.append(f"  {self.file.awake}")
            self.is_awake = True
        registers = {
            x.name: [str(self._operand(a, x))] if x.file == self.file.name else self.emitter.registers_of(x, a)
            for x, a in zip(row.operands[1:], s.args)
        }
        row.emit(self.emit, {row.result.name: [str(self.number[_place(s.dst)])], **registers})

    def _operand(self, v: object, operand: Operand) -> int:
        shape = _shape(v, operand)
        assert isinstance(v, Load) and v.lanes is not None
        pool = self.pools[shape]
        register = next((r for r in pool if self.read.get(r) is v), None)
        if register is None:
            register = pool[0]
            load = self.file.stream if v.buffer.name in self.streamed else self.file.load
            self._move(load, register, v, _columns(operand))
            self.read[register] = v
        pool.remove(register)
        pool.append(register)
        return register


def file_of(
    bodies: Sequence[Stmt], rows: Mapping[str, Instruction], files: Sequence[FragmentFile]
) -> FragmentFile | None:  # fmt: skip
    """Return the one of ``files`` whose registers hold the sums of the products in ``bodies``; None if there are no
    such products. InternalError if no file has their registers.
    """
    every = (s for body in bodies for s in statements_of(body) if isinstance(s, Invoke))
    names = (rows[s.instruction].result.file for s in every if s.dst.buffer.scope == "fragment")
    name = next((x for x in names if x != VECTORS), None)
    if name is None:
        return None
    found = next((file for file in files if file.name == name), None)
    if found is None:
        raise InternalError(f"the target has no registers for fragments in a {name}")
    return found


def _lives(s: Stmt) -> bool:
    return isinstance(s, Alloc) and s.buffer.scope == "fragment"


def constant(name: str, data: bytes) -> str:
    """Return LLVM's definition of constant bytes."""
    text = "".join(f"\\{x:02x}" for x in data)
    return f'{name} = private unnamed_addr constant [{len(data)} x i8] c"{text}", align 64'


def _distance(lanes: Lanes | None, width: int) -> int:
    """Return the elements from one row of ``width`` lanes to the next."""
    rows = lanes.rows if lanes is not None else None
    return rows[2] if rows is not None and rows[1] == width else width


def _place(v: Load) -> Place:
    return v.buffer, v.index


def _shape(v: object, operand: Operand) -> Shape:
    assert isinstance(v, Load) and v.lanes is not None
    columns = _columns(operand)
    return v.lanes.active // columns, columns * v.buffer.dtype.bytes


def _columns(operand: Operand) -> int:
    """Return the elements of a row of a fragment."""
    return prod(operand.shape[1:])
