"""What a target is: the facts that schedules, passes and code generation are given."""

from __future__ import annotations

from dataclasses import dataclass

from convsmith.ir.instruction import Instruction


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
class Target:
    """One level of an instruction set.

    ``isa`` is the name that users give; ``registers`` the number of vector registers of ``vector_bits``;
    ``features`` what LLVM is told, ``needs`` what the machine must have; ``attributes`` go on every function.
    ``half`` says whether instructions convert between f16 and f32.
    ``l1_bytes`` and ``l1_ways`` describe the first-level data cache; ``instructions`` are tried in order.
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
    attributes: tuple[tuple[str, str], ...]
    instructions: tuple[Instruction, ...]
    half: bool = False

    def lanes(self, bits: int) -> int:
        """Elements of ``bits`` in a vector."""
        return self.vector_bits // bits

    def row(self, a: str, b: str, c: str) -> Instruction | None:
        """The first instruction that adds products of types ``a`` and ``b`` to sums of type ``c``."""
        return next((row for row in self.instructions if row.types == (a, b, c)), None)

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
