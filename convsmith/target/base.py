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


def multiply_add(name: str, lanes: int, llvm: str, declare: str, needs: tuple[str, ...], mnemonic: str) -> Instruction:
    """The row of a lane-wise ``c = a * b + c`` on f32."""
    spec = (
        f"kernel {name}(c: f32[{lanes}], a: f32[{lanes}], b: f32[{lanes}])\n"
        f"  for l in 0 .. {lanes}:\n"
        f"    c[l] = fma(a[l], b[l], c[l])\n"
    )
    return Instruction(name, spec, llvm, declare, needs, mnemonic, lanes)
