"""Data types of values, as rows of one table.  A new data type is a row here.

Values wrap, saturate and round by their type; index arithmetic (:mod:`convsmith.ir.index`) has no type.
"""

from __future__ import annotations

from typing import NamedTuple

from convsmith.diag.errors import UnsupportedError


class DType(NamedTuple):
    """``name`` is oneDNN's, ``kind`` one of ``float`` / ``int`` / ``uint``; ``numpy`` the dtype's name there."""

    name: str
    kind: str
    bits: int
    numpy: str
    llvm: str

    @property
    def bytes(self) -> int:
        return self.bits // 8

    def __str__(self) -> str:
        return self.name


DTYPES = {
    t.name: t
    for t in (
        DType("f32", "float", 32, "float32", "float"),
        DType("f64", "float", 64, "float64", "double"),
        DType("s32", "int", 32, "int32", "i32"),
    )
}
F32, F64, S32 = DTYPES["f32"], DTYPES["f64"], DTYPES["s32"]


def dtype(name: str) -> DType:
    """The row of that name, or UnsupportedError naming the types there are."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnsupportedError(f"data type {name!r} is not supported; supported: {', '.join(DTYPES)}") from None
