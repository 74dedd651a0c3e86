"""What a machine is: the facts that schedules, passes and code generation are given.

A target is the machine that a kernel is made for.
"""

from __future__ import annotations

from dataclasses import dataclass

from convsmith.ir.instruction import FragmentFile, Instruction, Transposition
from convsmith.ir.types import Half


@dataclass(frozen=True)
class Costs:
    """Cycles of what a kernel's inner loop does: a multiply-add of a vector, a load of one, a load of one element
    into all lanes (one of each after the other), and ``latency`` from a multiply-add to the next on its result.

    ``temporaries`` are registers that a multiply-add needs besides its operands.
    """

    multiply_add: float
    load: float
    broadcast: float
    latency: float
    temporaries: int = 0


@dataclass(frozen=True)
class Machine:
    """One level of an instruction set.

    ``isa`` is the name that users give; ``registers`` the number of vector registers of ``vector_bits``;
    ``features`` what LLVM is told, ``needs`` what the machine must have; ``attributes`` go on every function.
    ``half`` says what instructions do with f16: nothing, only convert between it and f32, or compute in it.
    ``l1_bytes`` and ``l1_ways`` describe the first-level data cache, ``l2_bytes`` what a core has of the second, as the
    smaller machines of the level have them; ``instructions`` are tried in order, and so are ``transpositions``;
    instructions on fragments have the registers of ``fragments``.
    """

    isa: str
    triple: str
    cpu: str
    features: str
    needs: tuple[str, ...]
    vector_bits: int
    registers: int
    costs: Costs
    l1_bytes: int
    l1_ways: int
    l2_bytes: int
    attributes: tuple[tuple[str, str], ...]
    instructions: tuple[Instruction, ...]
    transpositions: tuple[Transposition, ...] = ()
    half: Half = ""
    fragments: FragmentFile | None = None

    def lanes(self, bits: int) -> int:
        """Elements of ``bits`` in a vector."""
        return self.vector_bits // bits

    def row(self, a: str, b: str, c: str) -> Instruction | None:
        """The first instruction that adds products of types ``a`` and ``b`` to a vector of sums of type ``c``."""
        return next((row for row in self.instructions if row.types == (a, b, c) and row.rows == 1), None)

    def fragment_rows(self, a: str, b: str, c: str) -> tuple[Instruction, ...]:
        """The instructions on fragments that do so, those with most terms first."""
        found = (row for row in self.instructions if row.types == (a, b, c) and row.rows > 1)
        return tuple(sorted(found, key=lambda row: -row.terms))

    def nearest(self, a: str, b: str, c: str) -> Instruction | None:
        """The best row for the types, of bytes also as u8 by s8; else that of factors converted to the type of sums."""
        ways = ((x, y, c) for y in dict.fromkeys((b, "s8" if b == "u8" else b))
                for x in dict.fromkeys((a, "u8" if a == "s8" else a)))  # fmt: skip
        rows = [row for types in ways if (row := self.row(*types)) is not None]
        return max(rows, key=lambda row: row.terms) if rows else self.row(c, c, c)


def multiply_add(name: str, lanes: int, llvm: str, declare: str, needs: tuple[str, ...], mnemonic: str,
                 type_: str = "f32") -> Instruction:  # fmt: skip
    """The row of a lane-wise ``c = a * b + c``."""
    spec = (
        f"kernel {name}(c: {type_}[{lanes}], a: {type_}[{lanes}], b: {type_}[{lanes}])\n"
        f"  for l in 0 .. {lanes}:\n"
        f"    c[l] = fma(a[l], b[l], c[l])\n"
    )
    return Instruction(name, spec, llvm, declare, needs, mnemonic, lanes, 1, (type_,) * 3)


def dot(name: str, lanes: int, terms: int, types: tuple[str, str, str], llvm: str, declare: str,
        needs: tuple[str, ...], mnemonic: str) -> Instruction:  # fmt: skip
    """The row of a product of neighbouring elements: lane ``l`` of ``c`` gets the sum of ``terms`` products."""
    a, b, c = types
    n = lanes * terms
    spec = (
        f"kernel {name}(c: {c}[{lanes}], a: {a}[{n}], b: {b}[{n}])\n"
        f"  for l in 0 .. {lanes}:\n"
        f"    for r in 0 .. {terms}:\n"
        f"      c[l] = c[l] + cast({c}, a[l * {terms} + r]) * cast({c}, b[l * {terms} + r])\n"
    )
    return Instruction(name, spec, llvm, declare, needs, mnemonic, lanes, terms, types)


def fragment_dot(name: str, shape: tuple[int, int, int, int], types: tuple[str, str, str], llvm: str, declare: str,
                 needs: tuple[str, ...], mnemonic: str) -> Instruction:  # fmt: skip
    """The row of a product of matrices: ``c[m, l]`` gets the sum over ``k`` groups of ``group`` terms each.

    ``shape`` is (rows of ``a`` and ``c``, groups, lanes, group); the terms of a group lie side by side in ``b``.
    """
    a, b, c = types
    m, k, lanes, group = shape
    spec = (
        f"kernel {name}(c: {c}[{m}, {lanes}], a: {a}[{m}, {k * group}], b: {b}[{k}, {lanes * group}])\n"
        f"  for m in 0 .. {m}:\n"
        f"    for k in 0 .. {k}:\n"
        f"      for l in 0 .. {lanes}:\n"
        f"        for r in 0 .. {group}:\n"
        f"          c[m, l] = c[m, l] + cast({c}, a[m, k * {group} + r]) * cast({c}, b[k, l * {group} + r])\n"
    )
    return Instruction(name, spec, llvm, declare, needs, mnemonic, lanes, k * group, types, m)
