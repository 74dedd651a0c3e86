"""Data types of values as rows of one table; a new data type is a new row.

Values wrap, saturate and round by their type; index arithmetic (:mod:`convsmith.ir.index`) has no type.  bf16 and the
floats of 8 bits are storage types: values are cast to f32 for arithmetic, and those of s4 and u4 to a wider integer
type or to a float.  f16 is a storage type as well, unless the target has f16 arithmetic and the problem permits it.
f8_e4m3 has no infinities: numbers beyond its largest become NaN.

Elements of s4 and u4 lie two to a byte, the first of them in the lower half.  Memory is counted in bits, by
:meth:`DType.bytes_of`: only an element of whole bytes has a size in ``bytes`` and an address of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

from convsmith.diag.errors import InternalError, UnsupportedError
from convsmith.diag.forking import import_lock

Half = Literal["", "converts", "computes"]
"""The target's f16 instructions: no instructions, conversions from and to f32, or also arithmetic."""


class DType(NamedTuple):
    """A data type. ``name`` is oneDNN's, ``kind`` is ``float``, ``int`` or ``uint``, ``element`` is numpy's name of the
    dtype, which numpy may not know yet.

    ``llvm`` is the LLVM type of a value.  Floats of 16 and 8 bits are integers there: LLVM calls library functions to
    move half and bfloat values on targets without instructions for them, and has no type of 8-bit floats.  Values of 4
    bits are bytes.
    """

    name: str
    kind: str
    bits: int
    element: str
    llvm: str

    @property
    def numpy(self) -> str:
        """numpy's name of the dtype, which numpy knows from now on. No module asks for it while it is imported."""
        return _known(self.element)

    @property
    def bytes(self) -> int:
        """Size of an element in bytes. InternalError if an element is no whole number of bytes."""
        if self.bits % 8:
            raise InternalError(f"an element of {self.name} has {self.bits} bits, which are no whole bytes")
        return self.bits // 8

    def bytes_of(self, elements: int) -> int:
        """Return the bytes that ``elements`` adjacent elements take."""
        return -(-elements * self.bits // 8)

    @property
    def per_byte(self) -> int:
        """Number of elements that share a byte; 1 for elements of whole bytes."""
        return max(8 // self.bits, 1)

    @property
    def value_bits(self) -> int:
        """Bits of a value, scalar or one lane of a vector: a whole number of bytes even where elements share a byte in
        memory.
        """
        return self.bits * self.per_byte

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer of an integer type."""
        half = 1 << self.bits - 1
        return (0, 2 * half - 1) if self.kind == "uint" else (-half, half - 1)

    @property
    def computes(self) -> bool:
        """Whether the type has arithmetic."""
        is_integer = self.kind in ("int", "uint") and self.per_byte == 1
        return is_integer or self.name in ("f16", "f32", "f64")

    def __str__(self) -> str:
        return self.name


@cache
def _known(name: str) -> str:
    """Return the name of a dtype after the import of the package that teaches it to numpy."""
    if name in _TAUGHT:
        with import_lock:
            import ml_dtypes  # noqa: F401
    return name


_TAUGHT = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"}
"""Names of dtypes that ml_dtypes, whose import takes 5 ms, adds to those of numpy."""

DTYPES = {
    t.name: t
    for t in (
        DType("f32", "float", 32, "float32", "float"),
        DType("f64", "float", 64, "float64", "double"),
        DType("f16", "float", 16, "float16", "i16"),
        DType("bf16", "float", 16, "bfloat16", "i16"),
        DType("f8_e4m3", "float", 8, "float8_e4m3fn", "i8"),
        DType("f8_e5m2", "float", 8, "float8_e5m2", "i8"),
        DType("s32", "int", 32, "int32", "i32"),
        DType("s16", "int", 16, "int16", "i16"),
        DType("s8", "int", 8, "int8", "i8"),
        DType("u8", "uint", 8, "uint8", "i8"),
        DType("s4", "int", 4, "int4", "i8"),
        DType("u4", "uint", 4, "uint4", "i8"),
    )
}
F32, F64, F16, BF16 = DTYPES["f32"], DTYPES["f64"], DTYPES["f16"], DTYPES["bf16"]
F8_E4M3, F8_E5M2 = DTYPES["f8_e4m3"], DTYPES["f8_e5m2"]
S32, S16, S8, U8 = DTYPES["s32"], DTYPES["s16"], DTYPES["s8"], DTYPES["u8"]

PTR = DType("ptr", "pointer", 64, "int64", "ptr")
"""Type of the entries of a pointer table; not a value type, hence not in DTYPES.

In the interpreter an entry is a position in elements of the buffer it points into, or ABSENT; in machine code it is an
address.
"""
POINTERS = {64: PTR, 32: DType("ptr32", "pointer", 32, "int32", "ptr")}
"""Types of the entries of a table in machine code, by the bits of an address."""


def dtype(name: str) -> DType:
    """Return the row of ``name``. UnsupportedError, which lists the supported types, if there is none."""
    try:
        return DTYPES[name]
    except KeyError:
        raise UnsupportedError(f"data type {name!r} is not supported; supported: {', '.join(DTYPES)}") from None
