"""Arithmetic and comparisons: a table from opcodes to functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from convsmith.emulate.ptx.conversions import convert
from convsmith.emulate.ptx.operands import TYPES, Operands, PtxType
from convsmith.emulate.ptx.parser import Argument, Immediate, PtxError, PtxInstruction
from convsmith.emulate.ptx.warp import Execute, Warp
from convsmith.interp.arithmetic import fma as fused

Function = Callable[..., np.ndarray]
Words = Sequence[str]


def _integer(words: Words) -> bool:
    return TYPES[words[-1]].dtype.kind in "iu"


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def _product(words: Words) -> tuple[Function, PtxType]:
    """Return the product of a `mul` or `mad`, with the type of the result."""
    type_ = TYPES[words[-1]]
    if not _integer(words) or "lo" in words:
        return np.multiply, type_
    if "wide" in words:
        wide = _wide(type_.dtype)
        return (lambda a, b: np.multiply(a, b, dtype=wide)), PtxType(wide)
    bits = 8 * type_.bytes
    if bits == 64:
        high = np.vectorize(lambda a, b: (int(a) * int(b)) >> 64, otypes=[type_.dtype])
        return high, type_
    wide = _wide(type_.dtype)
    return (lambda a, b: ((a.astype(wide) * b.astype(wide)) >> bits).astype(type_.dtype)), type_


def _divide(a: Any, b: Any) -> np.ndarray:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not np.all(b):
        raise PtxError("an integer is divided by zero")
    x, y = a.astype(object), b.astype(object)
    return np.asarray(np.abs(x) // np.abs(y) * np.sign(x) * np.sign(y)).astype(a.dtype)


def _remainder(a: Any, b: Any) -> np.ndarray:
    return np.asarray(a.astype(object) - _divide(a, b).astype(object) * b.astype(object)).astype(a.dtype)


def _extreme(words: Words) -> Function:
    pick = np.less if words[0] == "min" else np.greater
    if _integer(words):
        return np.minimum if words[0] == "min" else np.maximum
    if "NaN" in words:
        return lambda a, b: np.where((a != a) | (b != b), np.array(np.nan, a.dtype), np.where(pick(b, a), b, a))
    return lambda a, b: np.where(a != a, b, np.where((b != b) | ~pick(b, a), a, b))


def _shift(words: Words, count: Argument | None = None) -> Function:
    """Return a shift by any number, or the faster one by the constant `count`."""
    type_ = TYPES[words[-1]]
    bits = 8 * type_.bytes
    if isinstance(count, Immediate) and count.value < bits:
        shift, by = (np.left_shift if words[0] == "shl" else np.right_shift), type_.dtype.type(count.value)
        return lambda a, n: shift(a, by)
    if words[0] == "shl":
        return lambda a, n: np.where(n < bits, a << np.minimum(n, bits - 1).astype(a.dtype), a.dtype.type(0))
    if type_.dtype.kind == "i":
        return lambda a, n: a >> np.minimum(n, bits - 1).astype(a.dtype)
    return lambda a, n: np.where(n < bits, a >> np.minimum(n, bits - 1).astype(a.dtype), a.dtype.type(0))


def _funnel(words: Words) -> Function:
    def shifted(low: np.ndarray, high: np.ndarray, n: np.ndarray) -> np.ndarray:
        count = (n & 31 if "wrap" in words else np.minimum(n, 32)).astype(np.uint64)
        whole = high.astype(np.uint64) << np.uint64(32) | low
        moved = whole >> count if words[1] == "r" else whole << count >> np.uint64(32)
        return np.asarray(moved, np.uint32)

    return shifted


def _lut(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    chosen = [n for n in range(8) if int(table[0]) >> n & 1]
    terms = [(a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c) for n in chosen]
    return np.bitwise_or.reduce(terms) if terms else np.zeros_like(a)


def _permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    whole = b.astype(np.uint64) << np.uint64(32) | a
    out = np.zeros(len(a), np.uint64)
    for n in range(4):
        choice = selector.astype(np.uint64) >> np.uint64(4 * n) & np.uint64(15)
        byte = whole >> (choice & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        byte = np.where(choice & np.uint64(8), np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0)), byte)
        out |= byte << np.uint64(8 * n)
    return out.astype(np.uint32)


def _insert(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return ``b`` with the lowest bits of ``a`` in a field of ``length`` bits from ``start`` on."""
    field = (1 << np.minimum(length, 32).astype(np.uint64)) - 1 << np.minimum(start, 32).astype(np.uint64)
    moved = a.astype(np.uint64) << np.minimum(start, 32).astype(np.uint64)
    return np.asarray(b.astype(np.uint64) & ~field | moved & field, np.uint32)


def _extract(words: Words) -> Function:
    type_ = TYPES[words[-1]]
    bits = 8 * type_.bytes

    def extracted(a: np.ndarray, place: np.ndarray, length: np.ndarray) -> np.ndarray:
        out = []
        for x, p, n in zip(a.tolist(), (place & 255).tolist(), (length & 255).tolist()):
            n = min(n, max(bits - p, 0))
            field = x % (1 << bits) >> p & ((1 << n) - 1)
            out.append(field - (1 << n) if type_.dtype.kind == "i" and n and field >> (n - 1) else field)
        return np.array(out).astype(type_.dtype)

    return extracted


def _dot_bytes(words: Words) -> Function:
    """Return ``dp4a.atype.btype``, by the signs of the two factors."""
    one, two = (np.dtype("i1" if w.startswith("s") else "u1") for w in words[-2:])
    out = TYPES["s32" if "s32" in words[-2:] else "u32"].dtype

    def dot(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        products = a.view(one).reshape(-1, 4).astype(np.int64) * b.view(two).reshape(-1, 4).astype(np.int64)
        return np.asarray(products.sum(1) + c.view(out).astype(np.int64), out).view(c.dtype)

    return dot


def _count(function: Callable[[int, int], int]) -> Callable[[Words], Function]:
    def made(words: Words) -> Function:
        bits = 8 * TYPES[words[-1]].bytes
        return lambda a: np.array([function(int(x) % (1 << bits), bits) for x in a], np.uint32)

    return made


def _in_double(function: Callable[[Any], Any]) -> Callable[[Words], Function]:
    """Approximate functions: the interpreter computes them in double precision and rounds once."""
    return lambda words: lambda a: function(a.astype(np.float64)).astype(a.dtype)


def _reciprocal(words: Words) -> Function:
    """Return the reciprocal; that of f64 depends on the upper words alone, and its lower word is 0."""
    if words[-1] != "f64" or "approx" not in words:
        return _in_double(lambda a: 1 / a)(words)
    upper = np.uint64(0xFFFFFFFF << 32)
    return lambda a: ((1 / (a.view(np.uint64) & upper).view(np.float64)).view(np.uint64) & upper).view(np.float64)


def _fixed(function: Function) -> Callable[[Words], Function]:
    return lambda words: function


FUNCTIONS: dict[str, Callable[[Words], Function]] = {
    "add": _fixed(np.add), "sub": _fixed(np.subtract), "div": _fixed(_divide), "rem": _fixed(_remainder),
    "min": _extreme, "max": _extreme, "abs": _fixed(np.abs), "neg": _fixed(np.negative),
    "and": _fixed(np.bitwise_and), "or": _fixed(np.bitwise_or), "xor": _fixed(np.bitwise_xor), "not": _fixed(np.invert),
    "shl": _shift, "shr": _shift, "shf": _funnel, "bfe": _extract, "bfi": _fixed(_insert),
    "copysign": _fixed(lambda a, b: np.copysign(b, a)),
    "sqrt": _in_double(np.sqrt), "rsqrt": _in_double(lambda a: 1 / np.sqrt(a)), "rcp": _reciprocal,
    "ex2": _in_double(np.exp2), "lg2": _in_double(np.log2), "sin": _in_double(np.sin), "cos": _in_double(np.cos),
    "tanh": _in_double(np.tanh),
    "lop3": _fixed(_lut), "prmt": _fixed(_permute),
    "popc": _count(lambda x, bits: x.bit_count()), "clz": _count(lambda x, bits: bits - x.bit_length()),
    "brev": _count(lambda x, bits: int(f"{x:0{bits}b}"[::-1], 2)),
}  # fmt: skip
"""Operations whose operands and result have the type that the opcode ends with."""

_RESULT_U32 = {"popc", "clz"}
_COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "num": lambda a, b: (a == a) & (b == b), "nan": lambda a, b: (a != a) | (b != b),
}  # fmt: skip


def scalar(ins: PtxInstruction, made: Operands) -> Execute | None:
    """Return the function of an instruction that computes with scalars; None for other instructions."""
    words = ins.words
    root = words[0]
    if root in ("mul", "mad", "fma", "mul24", "mad24"):
        return _multiply(ins, made)
    if root == "setp":
        return _compare(ins, made)
    if root == "cvt":
        return convert(ins, made)
    if root in ("selp", "slct"):
        type_ = TYPES[words[1]]
        a, b = (made.read(x, type_) for x in ins.arguments[1:3])
        test = made.read(ins.arguments[3], TYPES["pred" if root == "selp" else words[2]])
        put = made.write(ins.arguments[0], type_)
        if root == "selp":
            return lambda warp, mask: put(warp, np.where(test(warp), a(warp), b(warp)), mask)
        return lambda warp, mask: put(warp, np.where(test(warp) >= 0, a(warp), b(warp)), mask)
    if root == "dp4a":
        return _plain(_dot_bytes(words), ins, made, TYPES["b32"], TYPES["b32"])
    if root == "shf" or root == "prmt" or root == "lop3":
        return _plain(FUNCTIONS[root](words), ins, made, TYPES["u32"], TYPES["u32"])
    if root in ("shl", "shr"):
        shift = _shift(words, ins.arguments[2])
        return _plain(shift, ins, made, TYPES[words[-1]], TYPES[words[-1]], second=TYPES["u32"])
    if root == "bfi":
        return _plain(_insert, ins, made, TYPES["u32"], TYPES["u32"])
    if root == "bfe":
        return _plain(_extract(words), ins, made, TYPES[words[-1]], TYPES[words[-1]], second=TYPES["u32"])
    if root in FUNCTIONS:
        type_ = TYPES[words[-1]]
        return _plain(FUNCTIONS[root](words), ins, made, type_, TYPES["u32"] if root in _RESULT_U32 else type_)
    return None


def _plain(function: Function, ins: PtxInstruction, made: Operands, of: PtxType, to: PtxType,
           second: PtxType | None = None) -> Execute:  # fmt: skip
    put = made.write(ins.arguments[0], to)
    types = (of, *((second or of,) * (len(ins.arguments) - 2)))
    reads = [made.read(x, type_) for x, type_ in zip(ins.arguments[1:], types)]
    flushes, saturates = "ftz" in ins.words, "sat" in ins.words and of.dtype.kind == "f"
    if flushes or saturates:
        inner = function

        def function(*values: np.ndarray) -> np.ndarray:
            out = inner(*(_flushed(x) for x in values) if flushes else values)
            out = _flushed(out) if flushes else out
            return np.clip(np.where(out != out, 0, out), 0, 1).astype(out.dtype) if saturates else out

    if len(reads) == 1:
        (a,) = reads
        return lambda warp, mask: put(warp, function(a(warp)), mask)
    if len(reads) == 2:
        a, b = reads
        return lambda warp, mask: put(warp, function(a(warp), b(warp)), mask)
    return lambda warp, mask: put(warp, function(*(x(warp) for x in reads)), mask)


def _flushed(x: np.ndarray) -> np.ndarray:
    if x.dtype != np.float32:
        return x
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def _multiply(ins: PtxInstruction, made: Operands) -> Execute:
    words = ins.words
    of = TYPES[words[-1]]
    product, to = _product(words)
    if words[0].startswith("mul"):
        return _plain(product, ins, made, of, to)
    a, b = (made.read(x, of) for x in ins.arguments[1:3])
    c, put = made.read(ins.arguments[3], to), made.write(ins.arguments[0], to)
    if words[0] == "fma":
        relu = "relu" in words

        def multiply_add(warp: Warp, mask: np.ndarray) -> None:
            x, y, z = a(warp), b(warp), c(warp)
            if of.dtype.kind == "f" and of.dtype.itemsize > 1 and of.dtype.name != "bfloat16":
                out = fused(x, y, z)
            else:
                out = (x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)).astype(of.dtype)
            put(warp, np.maximum(out, of.dtype.type(0)) if relu else out, mask)

        return multiply_add
    return lambda warp, mask: put(warp, product(a(warp), b(warp)) + c(warp), mask)


def _compare(ins: PtxInstruction, made: Operands) -> Execute:
    words = [w for w in ins.words if w != "ftz"]
    type_ = TYPES[words[-1]]
    name = words[1]
    orders = type_.dtype.kind not in "iu" and name not in ("num", "nan")
    unordered = orders and name.endswith("u") and name != "u"
    test = _COMPARE[name[:-1] if unordered else name]
    a, b = (made.read(x, type_) for x in ins.arguments[1:3])
    put = made.write(ins.arguments[0], TYPES["pred"])
    joined = len(words) > 3
    third = made.read(ins.arguments[3], TYPES["pred"]) if joined else None
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[words[2]] if joined else None

    def compare(warp: Warp, mask: np.ndarray) -> None:
        x, y = a(warp), b(warp)
        found = test(x, y)
        if unordered:
            found = found | (x != x) | (y != y)
        elif name == "ne" and orders:
            found = found & (x == x) & (y == y)
        if join is not None and third is not None:
            found = join(found, third(warp))
        put(warp, found, mask)
        if ins.beside:
            warp.set(ins.beside, ~found, mask)

    return compare

