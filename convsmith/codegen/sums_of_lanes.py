"""Horizontal sums of the lanes of vectors as LLVM text."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.codegen.shuffles import ShuffleEmitter
from convsmith.ir.types import DType

__all__ = ["SumEmitter"]


class SumEmitter(ShuffleEmitter):
    """Emits sums of the lanes of one vector, and of several at once."""

    def plus(self, t: DType, lanes: int, a: str, b: str) -> str:
        return self.operation("fadd" if t.kind == "float" else "add", t, lanes, a, b)

    def fold(self, t: DType, x: str, lanes: int, to: int, groups: int = 1) -> str:
        """Add the upper half of each group of lanes to the lower half until a group has ``to`` lanes."""
        own = lanes // groups
        while own > to:
            half = own // 2
            low = [g * own + i for g in range(groups) for i in range(half)]
            parts = [self.shuffle(t, own * groups, x, "poison", [i + up for i in low]) for up in (0, half)]
            x, own = self.plus(t, half * groups, *parts), half
        return x

    def sum_of_lanes(self, t: DType, x: str, lanes: int, group: int) -> str:
        groups = lanes // group
        if groups == 1 and t.kind != "float" and lanes > 1:
            # LLVM recognises byte products in shuffles that add up their lanes, and then drops the sums of some of
            # them.
            name = f"@llvm.vector.reduce.add.{self.suffix(t, lanes)}"
            self.declared[f"declare {t.llvm} {name}({self.type(t, lanes)})"] = None
            return self.put(f"call {t.llvm} {name}({self.type(t, lanes)} {x})")
        x = self.fold(t, x, lanes, 1, groups)
        return x if groups > 1 else self.put(f"extractelement {self.type(t, 1)} {x}, i64 0")

    def sums_of_vectors(self, t: DType, n: int, vectors: Sequence[str]) -> str:
        """Return the vector of the sums of each of ``vectors``, of ``n`` lanes: 2 shuffles and 1 addition per sum.

        Each round folds two vectors into the even and odd lanes of one; pairing ``i`` with ``i + half`` moves every sum
        to the lane of its number.
        """
        width = min(n, 1 << (len(vectors) - 1).bit_length())
        parts = [self.fold(t, x, n, width) for x in vectors]
        if width < 2:
            return parts[0]
        parts += ["zeroinitializer"] * (width - len(parts))
        low = [i // 2 + width * (i % 2) for i in range(width)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [
                self.plus(t, width, *(self.shuffle(t, width, a, b, [i + up for i in low]) for up in (0, width // 2)))
                for a, b in zip(parts[:half], parts[half:])
            ]
        return parts[0] if width == len(vectors) else self.shuffle(t, width, parts[0], "poison", range(len(vectors)))
