"""Data types of values, as rows of one table.  A new data type is a row here.

Values wrap, saturate and round by their type; index arithmetic (:mod:`convsmith.ir.index`) has no type.  bf16 is a type
of memory: arithmetic is done on what it is cast to.  So is f16 for the most part: only a target with instructions for
it computes in f16, and only where it was asked to.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import ml_dtypes  # noqa: F401 - so that numpy knows "bfloat16"

from convsmith.diag.errors import UnsupportedError

Half = Literal["", "converts", "computes"]
"""What instructions there are for f16: none, those between it and f32, or arithmetic too."""


class DType(NamedTuple):
    """``name`` is oneDNN's, ``kind`` one of ``float`` / ``int`` / ``uint``; ``numpy`` the dtype's name there.

    ``llvm`` is the type of memory and of what is not computed with: LLVM moves floats of 16 bits as such by library
    calls where it finds no instruction.
    """

    name: str
    kind: str
    bits: int
    numpy: str
    llvm: str

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest integer of an integer type."""
        half = 1 << self.bits - 1
        return (0, 2 * half - 1) if self.kind == "uint" else (-half, half - 1)

    @property
    def computes(self) -> bool:
        """Whether there is arithmetic on the type."""
        return self.kind in ("int", "uint") or (self.kind == "float" and self.name != "bf16")

    def __str__(self) -> str:
        return self.name


DTYPES = {
    t.name: t
    for t in (
        DType("f32", "float", 32, "float32", "float"),
        DType("f64", "float", 64, "float64", "double"),
        DType("f16", "float", 16, "float16", "i16"),
        DType("bf16", "float", 16, "bfloat16", "i16"),
        DType("s32", "int", 32, "int32", "i32"),
        DType("s16", "int", 16, "int16", "i16"),
        DType("s8", "int", 8, "int8", "i8"),
        DType("u8", "uint", 8, "uint8", "i8"),
    )
}
F32, F64, F16, BF16 = DTYPES["f32"], DTYPES["f64"], DTYPES["f16"], DTYPES["bf16"]
S32, S16, S8, U8 = DTYPES["s32"], DTYPES["s16"], DTYPES["s8"], DTYPES["u8"]

PTR = DType("ptr", "pointer", 64, "int64", "ptr")
"""The entries of a table of pointers: no values, so not among the types of those.

To the interpreter an entry is a place, in elements of what it points into, or ABSENT; in machine code an address.
"""


def dtype(name: str) -> DType:
    """The row of that name, or UnsupportedError naming the types there are."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnsupportedError(f"data type {name!r} is not supported; supported: {', '.join(DTYPES)}") from None
