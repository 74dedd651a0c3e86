"""Machines: the facts about a target that schedules, passes and code generation receive.

A target is the machine that a kernel is compiled for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.ir.instruction import (
    ByteLookup,
    FragmentFile,
    FragmentLayout,
    HeadLoad,
    Instruction,
    Narrowing,
    Operand,
    RegisterFile,
    WordConversion,
    vector,
)
from convsmith.ir.types import DType, Half, dtype
from convsmith.machine.costs import Costs
from convsmith.machine.memory import MemoryLevel
from convsmith.machine.prices import prices_of

if TYPE_CHECKING:
    from convsmith.machine.device import Device, SharedMemory

TILE_LEVELS = ("thread", "cache", "register", "instruction")
"""Names of the levels of tiles of a CPU, outermost first."""
DEVICE_TILE_LEVELS = ("grid", "group", "thread", "register", "instruction")
"""Names of the levels of tiles of a device, outermost first."""


class TileLevel(NamedTuple):
    """A level of tiles: its name in configs, and the memory or registers that hold one tile; None if tiles are not
    kept.
    """

    name: str
    holders: tuple[MemoryLevel | RegisterFile | SharedMemory, ...] = ()


@record(frozen=True)
class Machine:
    """One level of an instruction set on one micro-architecture.

    ``name`` is the level's name for users, ``features`` are LLVM's, ``needs`` are the CPU features required to run its
    code, ``attributes`` go on every function, ``part_attributes`` also on each function that runs a part of an entry,
    and ``called_attributes`` on the functions that it calls. ``vectors`` are the vector registers, ``fragments`` the
    register files for fragments, ``scalars`` the registers that hold the sums of instructions which leave
    them in scalar registers. ``memories`` are the caches of a core, nearest first. The facts of a level
    are *reference facts*: the facts of the smaller machines that have the level. ``half`` names the f16 instructions:
    no instructions, conversions from and to f32, or arithmetic. ``instructions`` and ``transpositions`` are tried in
    order. ``permissions`` are requested from the system before a process runs code of the level. An address and a word
    of an argument block have ``address_bits``. ``matrix_loads`` load fragments from memory that threads share,
    and ``matrix_stores`` store them there.
    ``messages`` load or store contiguous elements for all lanes of a warp at once. ``head_load`` loads the first lanes
    of a vector where LLVM's masked loads read all of them. ``byte_lookup`` serves shuffles that repeat lanes where
    LLVM's code for them is wrong. ``word_lookup`` is LLVM's function that picks each of 32 words of a register from two
    registers of words, by its number in both, which lies between them. ``extremes`` begins the names of intrinsics,
    ``max`` and ``min`` of two registers of 128 bits, that return the first number unless the second exceeds it, where
    LLVM takes others for comparisons and selections. The machine has masked loads of elements of at least
    ``masked_bytes``, and no masked loads if that is 0. Where it ``has_masked_stores``, a masked store of a vector
    is as fast as a plain one. A machine that ``has_word_products`` multiplies integers of 16 bits faster than those of
    32. One that ``has_fused_steps`` multiplies vectors of f32 and adds to them, rounding once, several times as fast as
    it divides them. The intrinsic of ``word_rounding`` rounds vectors of f32 to s32, and NaN and numbers beyond to
    -2**31; conversions of such words to bytes saturate at no cost. Those of ``word_conversions`` have the meaning of
    the IR's conversion of f32 to s32 instead, and those of ``narrowing`` that of conversions of s32 to bytes. A machine
    without instructions for multiply-adds that round once names ``relaxed_fma``, LLVM's function for those of a vector
    of 128 bits that may round twice. Where it ``has_unsigned_offsets``, an access adds a constant to an address at no
    cost, and no sum of both wraps around. Loads into all lanes of a machine with a ``repeated_reach`` add at most so
    many elements, less one, to an address. One that ``has_vector_lengths`` ends a scalable vector by a number of lanes;
    others have a predicate for each lane. Products of one that ``reads_scalars`` take a factor that all lanes share
    from a scalar register. One that ``loads_words`` has no registers of several bytes but words, in which it loads
    vectors of bytes from any address. One that ``loads_constants`` makes a register of 128 bits of one number faster by
    a load than by instructions that hold the number. One that ``prefetches_by_loads`` has no prefetches: it loads a
    byte of the line, which is part of an array. One that ``extends_bytes`` loads bytes into wider lanes as fast as
    lanes of that width, so that packed operands stay bytes. One that ``loads_predicated`` loads leading lanes under a
    predicate, with zeros behind them, as fast as whole vectors. One that makes ``sums_in_turn`` multiplies all terms of
    a sum where it stores it, so that registers hold the factors of one sum, not those of a tile. The ``alternative`` is
    a machine with fewer features that runs kernels of the same configs, with the same packed operands. ``scratchpad``
    is memory beside the caches, in which a kernel's own buffers of the scope ``cache`` lie. ``fence`` is LLVM's
    function that orders non-temporal stores before later stores; empty if vectors have no non-temporal stores. Kernels
    of a machine that names ``stored`` types have arrays of these types only. Memory that a kernel allocates is aligned
    to ``alignment`` bytes, because aligned vectors have their own instructions; 0 if alignment gains nothing. The
    ``groupings`` are the same machine with vectors that are groups of other numbers of registers, among which a config
    chooses.

    A machine with a ``device`` runs kernels as grids of groups of threads; others are CPUs. ``vectors`` of a device are
    the registers of a thread, of one element of 32 bits or of several smaller ones.
    """

    name: str
    triple: str
    cpu: str
    features: str
    needs: tuple[str, ...]
    vectors: RegisterFile
    memories: tuple[MemoryLevel, ...]
    costs: Costs
    attributes: tuple[tuple[str, str], ...]
    instructions: tuple[Instruction, ...]
    transpositions: Sequence[Instruction] = ()
    matrix_loads: tuple[Instruction, ...] = ()
    matrix_stores: tuple[Instruction, ...] = ()
    messages: tuple[Instruction, ...] = ()
    half: Half = ""
    fragments: tuple[FragmentFile, ...] = ()
    scalars: RegisterFile | None = None
    permissions: tuple[str, ...] = ()
    address_bits: int = 64
    head_load: HeadLoad | None = None
    byte_lookup: ByteLookup | None = None
    word_lookup: str = ""
    extremes: str = ""
    masked_bytes: int = 0
    has_masked_stores: bool = False
    has_word_products: bool = False
    has_fused_steps: bool = False
    word_rounding: WordConversion | None = None
    word_conversions: tuple[WordConversion, ...] = ()
    narrowing: Narrowing | None = None
    relaxed_fma: str = ""
    has_unsigned_offsets: bool = False
    repeated_reach: int = 0
    has_vector_lengths: bool = False
    reads_scalars: bool = False
    loads_words: bool = False
    loads_constants: bool = False
    sums_in_turn: bool = False
    prefetches_by_loads: bool = False
    extends_bytes: bool = False
    loads_predicated: bool = False
    alternative: Machine | None = None
    scratchpad: MemoryLevel | None = None
    device: Device | None = None
    fence: str = ""
    alignment: int = 0
    part_attributes: tuple[str, ...] = ()
    called_attributes: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    groupings: tuple[Machine, ...] = ()

    @cached_property
    def rows(self) -> dict[str, Instruction]:
        """The rows of all tables, by name."""
        tables = (self.instructions, self.transpositions, self.matrix_loads, self.matrix_stores, self.messages)
        return {row.name: row for table in tables for row in table}

    @property
    def registers(self) -> int:
        """Number of vector registers; of a device, of the registers of a thread."""
        return self.vectors.count

    @property
    def vector_bits(self) -> int:
        """Bits of a vector register."""
        return self.vectors.bits

    @property
    def l1(self) -> MemoryLevel:
        """The first-level data cache."""
        return self.memories[0]

    @property
    def l2(self) -> MemoryLevel:
        """The second-level cache."""
        return self.memories[1]

    @property
    def vector_memories(self) -> tuple[MemoryLevel, ...]:
        """The caches that vectors are loaded from, nearest first: a cache that is slower than the next one serves only
        scalars.
        """
        slower = [near.rate < far.rate for near, far in pairwise(self.memories)]
        return tuple(memory for memory, is_slower in zip(self.memories, (*slower, False)) if not is_slower)

    def place(self, nbytes: int) -> str:
        """Return a phrase that tells where a kernel's own buffers of ``nbytes`` are held; empty on a machine without a
        scratchpad.
        """
        if self.scratchpad is None:
            return ""
        if nbytes <= self.scratchpad.bytes:
            return f"in {self.scratchpad}"
        return f"behind {self.vector_memories[-1]}, too large for {self.scratchpad}"

    @property
    def register_files(self) -> tuple[RegisterFile, ...]:
        """The vector registers and, if there are any, the fragment registers, and scalar registers that hold sums."""
        return (self.vectors, *self.fragments, *(() if self.scalars is None else (self.scalars,)))

    @property
    def levels(self) -> tuple[TileLevel, ...]:
        """Levels of tiles, outermost first, from the part of one thread, or the grid, to the result of one instruction.
        """
        holders: dict[str, tuple[MemoryLevel | RegisterFile | SharedMemory, ...]] = {
            "grid": self.memories, "cache": self.memories, "register": self.register_files,
        }  # fmt: skip
        if self.device is not None:
            holders["group"] = (self.device.shared,)
        names = TILE_LEVELS if self.device is None else DEVICE_TILE_LEVELS
        return tuple(TileLevel(name, holders.get(name, ())) for name in names)

    @cached_property
    def key(self) -> str:
        """A hash of all facts of the machine: machines that differ in any fact have different keys."""
        return hashlib.sha256(facts_text(self).encode()).hexdigest()

    @cached_property
    def with_cold_weights(self) -> Machine:
        """This machine for kernels whose weights come from main memory in each call, as those of a large network do."""
        costs = replace(self.costs, weights_byte=self.prices["streamed_byte"])
        return replace(self, costs=costs, groupings=tuple(x.with_cold_weights for x in self.groupings))

    @cached_property
    def with_own_vectors(self) -> Machine:
        """This machine for kernels whose vectors have the same number of registers, as those of several stages have."""
        return replace(self, groupings=()) if self.groupings else self

    def with_vectors(self, registers: int) -> Machine:
        """Return this machine with vectors of a number of registers, or as it is if that is 0. ConfigError if its
        instructions name no groups of that many.
        """
        if registers in (0, self.vectors.group):
            return self
        found = next((x for x in self.groupings if x.vectors.group == registers), None)
        if found is None:
            legal = sorted({self.vectors.group, *(x.vectors.group for x in self.groupings)})
            raise ConfigError(
                "vector_registers", f"--vector_registers={registers}: vectors of {self.name} have "
                f"{' or '.join(map(str, legal))} register{'s' * (legal != [1])}",
            )  # fmt: skip
        return found

    @cached_property
    def prices(self) -> dict[str, float]:
        """The price of each event that a model of kernels counts, by the event's name."""
        return prices_of(self)

    def load(self, memory: MemoryLevel) -> float:
        """Return the cycles to load a vector from ``memory``."""
        return self.vector_bits / 8 / memory.rate

    def lanes(self, bits: int) -> int:
        """Return the number of elements of ``bits`` in a vector."""
        return self.vector_bits // bits

    def width(self, type_: DType) -> int:
        """Return the lanes of the vectors that the machine computes with on numbers of a type."""
        row = self.row(type_.name, type_.name, type_.name)
        return self.lanes(type_.bits) if row is None else row.lanes

    @cached_property
    def scalar_types(self) -> tuple[str, ...]:
        """The types that the machine multiplies and adds only as scalars."""
        single = (row for row in self.instructions if row.lanes == 1 and len({*row.types}) == 1)
        return tuple(row.types[0] for row in single)

    def fragment_rate(self, row: Instruction) -> float:
        """Return the multiply-adds of ``row``, an instruction on fragments, in the time of one multiply-add of f32."""
        assert self.device is not None
        type_ = row.types[0]
        is_plain = type_ in self.scalar_types and not row.rounds
        return 1.0 if is_plain else self.device.fragment_rate * 16 / dtype(type_).bits

    def row(self, a: str, b: str, c: str) -> Instruction | None:
        """Return the first instruction that adds products of types `a` and `b` to a vector of sums of type `c`, for
        factors of any magnitude.
        """
        return next((row for row in self.vector_rows(a, b, c) if not row.limit), None)

    def vector_rows(self, a: str, b: str, c: str) -> tuple[Instruction, ...]:
        """Return all instructions that add products of these types to a vector of sums, the fastest first."""
        return tuple(row for row in self._rows(a, b, c) if row.result.scope == "register")

    def fragment_rows(self, a: str, b: str, c: str) -> tuple[Instruction, ...]:
        """Return the instructions that add products of these types to fragments of sums, those with most terms first.
        """
        rows = (row for row in self._rows(a, b, c) if row.result.scope == "fragment")
        return tuple(sorted(rows, key=lambda row: -row.terms))

    def _rows(self, a: str, b: str, c: str) -> Iterator[Instruction]:
        return (row for row in self.instructions if row.types == (a, b, c))

    def nearest(self, a: str, b: str, c: str) -> Instruction | None:
        """Return the row with most terms for the types (for bytes also u8 by s8), or else the row of the type of sums
        ``c``.
        """
        type_triples = ((x, y, c) for y in dict.fromkeys((b, "s8" if b == "u8" else b))
                for x in dict.fromkeys((a, "u8" if a == "s8" else a)))  # fmt: skip
        rows = [row for types in type_triples for row in self.vector_rows(*types)[:1]]
        if len(rows) > 1:  # the number of terms is read from a specification, which has to be parsed
            return max(rows, key=lambda row: row.terms)
        return rows[0] if rows else self.row(c, c, c)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass; () for other types."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()


def facts_text(value: object) -> str:
    """Return `value` as text that is unique to it: a function by its name, a dataclass by all its fields."""
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(facts_text, value))})"
    kind: Any = type(value)
    if names := _field_names(kind):
        return f"{kind.__name__}({', '.join([facts_text(getattr(value, name)) for name in names])})"
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, FunctionType) else repr(value)


def multiply_add(name: str, lanes: int, llvm: str, declare: str, needs: tuple[str, ...], mnemonic: str,
                 type_: str = "f32") -> Instruction:  # fmt: skip
    """Return the row of a lane-wise ``c = a * b + c``."""
    body = f"  for l in 0 .. {lanes}:\n    c[l] = fma(a[l], b[l], c[l])\n"
    operands = tuple(vector(x, type_, lanes) for x in "cab")
    return Instruction(name, operands, body, llvm, declare, needs, mnemonic)


def dot(name: str, lanes: int, terms: int, types: tuple[str, str, str], llvm: str, declare: str,
        needs: tuple[str, ...], mnemonic: str, flushes: bool = False) -> Instruction:  # fmt: skip
    """Return the row of a dot product: lane ``l`` of ``c`` gets the sum of ``terms`` products of adjacent elements."""
    a, b, c = types
    body = (
        f"  for l in 0 .. {lanes}:\n"
        f"    for r in 0 .. {terms}:\n"
        f"      c[l] = c[l] + cast({c}, a[l * {terms} + r]) * cast({c}, b[l * {terms} + r])\n"
    )
    operands = (vector("c", c, lanes), vector("a", a, lanes * terms), vector("b", b, lanes * terms))
    return Instruction(name, operands, body, llvm, declare, needs, mnemonic, flushes=flushes)


def fragment_dot(name: str, shape: tuple[int, int, int, int], types: tuple[str, str, str], llvm: str, declare: str,
                 needs: tuple[str, ...], mnemonic: str, flushes: bool = False) -> Instruction:  # fmt: skip
    """Return the row of a matrix product: ``c[m, l]`` gets the sum over ``k`` groups of ``group`` terms each.

    ``shape`` is (rows of ``a`` and ``c``, groups, lanes, group); the terms of a group are adjacent in ``b``. A lane of
    a register is a row of a matrix; ``a`` and ``c`` may have fewer rows.
    """
    a, b, c = types
    m, k, lanes, group = shape
    x, y = f"a[m, k * {group} + r]", f"b[k, l * {group} + r]"
    x, y = (v if t == c else f"cast({c}, {v})" for v, t in ((x, a), (y, b)))
    body = (
        f"  for m in 0 .. {m}:\n"
        f"    for k in 0 .. {k}:\n"
        f"      for l in 0 .. {lanes}:\n"
        f"        for r in 0 .. {group}:\n"
        f"          c[m, l] = c[m, l] + {x} * {y}\n"
    )
    shapes = (("c", c, m, lanes), ("a", a, m, k * group), ("b", b, k, lanes * group))
    operands = tuple(
        Operand(x, type_, (rows, columns), FragmentLayout(("l", "e"), rows, columns), "tile", "fragment")
        for x, type_, rows, columns in shapes
    )
    return Instruction(name, operands, body, llvm, declare, needs, mnemonic, partial=("m",), flushes=flushes)
