"""Parses the printed form of indices, conditions and values; :mod:`convsmith.ir.parse` parses statements and kernels.

Indices and conditions go through the normalising constructors, so ``2 * (a + b) - a`` parses to ``a + b * 2``.
Comparisons may be any of ``< <= > >= ==``.
"""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import (
    Cond,
    Index,
    Var,
    as_index,
    conj,
    eq,
    false,
    floordiv,
    make_sum,
    maximum,
    minimum,
    mod,
    product,
    quotient,
    true,
)
from convsmith.ir.stmt import LANE
from convsmith.ir.text import COMPARISON_SYMBOLS
from convsmith.ir.tokens import Cursor
from convsmith.ir.types import DTYPES, F32, PTR, DType, dtype
from convsmith.ir.value import (
    BINARY,
    UNARY,
    Binary,
    Bits,
    Cast,
    Const,
    Fma,
    Lanes,
    Load,
    Lookup,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
    const,
    lanes_of,
    rows_of_lanes,
    strided,
)

_BINARY = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_OPERATIONS = {op: 2 for op in BINARY if op not in _BINARY.values()} | {op: 1 for op in UNARY} | {"fma": 3}
_COMPARISONS = {symbol: op for op, symbol in COMPARISON_SYMBOLS.items()}


class ValueParser(Cursor):
    """Parses the indices, conditions and values within a text."""

    def __init__(self, text: str, buffers: Mapping[str, Buffer]) -> None:
        super().__init__(text)
        self._buffers = dict(buffers)
        self._allocated: dict[str, Buffer] = {}
        self._values: dict[str, Value] = {}

    # -- indices and conditions
    def index(self) -> Index:
        total, coeffs, sign = 0, dict[Index, int](), 1
        while True:
            term = self._product()
            total += sign * term.const
            for atom, c in term.terms:
                coeffs[atom] = coeffs.get(atom, 0) + sign * c
            if not self._is("+", "-"):
                return make_sum(total, coeffs)
            sign = 1 if self._next().text == "+" else -1

    def _product(self) -> Index:
        out = self._factor()
        while self._is("*", "//", "%"):
            op = self._next()
            start = self._now
            right = self._factor()
            if op.text == "*":
                out = product(out, right)
            elif right.terms and op.text == "//":
                out = quotient(out, right)
            elif right.terms or right.const <= 0:
                raise self._fail("a positive constant", start)
            else:
                out = (floordiv if op.text == "//" else mod)(out, right.const)
        return out

    def _factor(self) -> Index:
        if self._take("-"):
            return -self._factor()
        if self._now.kind == "int":
            return as_index(int(self._next().text))
        if self._take("("):
            out = self.index()
            self._expect(")")
            return out
        name = self._kind("name", "an index")
        if name in ("min", "max") and self._take("("):
            args = self._list(self.index, ")")
            if not args:
                raise self._fail(f"arguments of {name}")
            return minimum(*args) if name == "min" else maximum(*args)
        return LANE if name == LANE.name else Var(name)

    def _variable(self, meaning: str) -> Var:
        """Parse the name of a variable that a statement or a kernel binds; the number of a lane has its own."""
        token = self._now
        name = self._name(meaning)
        if name == LANE.name:
            raise self._fail(f"the name of {meaning}; {name} is the number of a lane", token)
        return Var(name)

    def cond(self) -> Cond:
        parts = [self._comparison()]
        while self._take("and"):
            parts.append(self._comparison())
        return conj(parts)

    def _comparison(self) -> Cond:
        if self._take("true"):
            return true()
        if self._take("false"):
            return false()
        left = self.index()
        op = self._now
        if not self._take("<", "<=", ">", ">=", "=="):
            raise self._fail("one of < <= > >= ==")
        right = self.index()
        if op.text == "==":
            return eq(left, right)
        if op.text in ("<", "<="):
            return left < right if op.text == "<" else left <= right
        return left > right if op.text == ">" else left >= right

    # -- values
    def value(self) -> Value:
        out = self._value_product()
        while self._is("+", "-"):
            out = Binary(_BINARY[self._next().text], out, self._value_product())
        return out

    def _value_product(self) -> Value:
        out = self._value_factor()
        while self._is("*", "/"):
            out = Binary(_BINARY[self._next().text], out, self._value_factor())
        return out

    def _value_factor(self) -> Value:
        if self._take("("):
            yes = self.value()
            if self._take("if"):
                cond = self.cond()
                self._expect("else")
                yes = Select(cond, yes, self.value())
            self._expect(")")
            return yes
        name = self._now.text
        if self._now.kind == "name" and self._follows("["):
            return self.access()
        if name in self._values and self._now.kind == "name" and not self._follows("("):
            return self._values[self._next().text]
        if self._now.kind == "name" and self._follows("("):
            if name in DTYPES:
                return self._typed_constant()
            special = {
                "cast": self._typed, "bits": self._typed, "where": self._where, "sum": self._sum, "sums": self._sums,
                "repeat": self._repeat, "lookup": self._lookup,
            }  # fmt: skip
            if name in special:
                return special[name]()
            if name in _OPERATIONS:
                return self._operation()
        if self._is("-", "inf", "nan") or self._now.kind == "float":
            return const(F32, self._float())
        raise self._fail("a value")

    def _operation(self) -> Value:
        start = self._next()
        self._expect("(")
        args = self._list(self.value, ")")
        if len(args) != _OPERATIONS[start.text]:
            raise self._fail(f"{_OPERATIONS[start.text]} arguments, not {len(args)}", start)
        if len(args) == 3:
            return Fma(*args)
        return Unary(start.text, args[0]) if len(args) == 1 else Binary(start.text, *args)

    def _typed(self) -> Value:
        node = Cast if self._next().text == "cast" else Bits
        self._expect("(")
        dtype = self._dtype()
        self._expect(",")
        out = node(dtype, self.value())
        self._expect(")")
        return out

    def _where(self) -> Where:
        self._next()
        self._expect("(")
        a = self.value()
        op = self._now
        if not self._take(*_COMPARISONS):
            raise self._fail(f"one of {' '.join(_COMPARISONS)}")
        b = self.value()
        self._expect(",")
        yes = self.value()
        self._expect(",")
        no = self.value()
        self._expect(")")
        return Where(_COMPARISONS[op.text], a, b, yes, no)

    def _sum(self) -> Sum:
        self._next()
        self._expect("(")
        a = self.value()
        group = self._int("the lanes of a group") if self._take(",") else lanes_of(a)
        self._expect(")")
        return Sum(a, group)

    def _sums(self) -> Sums:
        self._next()
        self._expect("(")
        return Sums(tuple(self._list(self.value, ")")))

    def _lookup(self) -> Lookup:
        self._next()
        self._expect("(")
        first = self.value()
        if not isinstance(first, Load):
            raise self._fail("an element of an array")
        self._expect(",")
        a = self.value()
        self._expect(")")
        return Lookup(first, a)

    def _repeat(self) -> Repeat:
        self._next()
        self._expect("(")
        a = self.value()
        self._expect(",")
        out = Repeat(a, self._int("how many times"))
        self._expect(")")
        return out

    def _typed_constant(self) -> Const:
        dtype = DTYPES[self._next().text]
        self._expect("(")
        start = self._now
        number = self._float() if dtype.kind == "float" else self._int()
        if dtype.kind != "float" and not dtype.limits[0] <= number <= dtype.limits[1]:
            raise self._fail("an integer from {} to {}".format(*dtype.limits), start)
        self._expect(")")
        return const(dtype, number)

    def _float(self) -> float:
        sign = "-" if self._take("-") else ""
        if not (self._now.kind == "float" or self._is("inf", "nan")):
            raise self._fail("a number with a point")
        return float(sign + self._next().text)

    def access(self) -> Load:
        buffer = self._buffer()
        self._expect("[")
        return Load(buffer, tuple(self._list(self.index, "]")), self._lanes())

    def _buffer(self) -> Buffer:
        start = self._now
        name = self._name("a buffer")
        if name not in self._buffers:
            known = ", ".join(self._buffers) or "none"
            raise self._fail(f"a buffer that is in scope ({known})", start)
        return self._buffers[name]

    def _lanes(self) -> Lanes | None:
        if not self._take("{"):
            return None
        if self._take("("):
            out = Lanes(tuple(self._list(self._int, ")")), 0)
            out = Lanes(out.offsets, out.count)
        else:
            count = self._int("the number of lanes")
            length = self._int("the length of a row") if self._take("*") else 0
            step = self._int("a stride") if self._take(":") else 1
            out = rows_of_lanes(count, length, step) if length else strided(count, step)
        if self._take("/"):
            active, first = self._int("the number of active lanes"), 0
            if self._take(":"):
                first, active = active, self._int("the end of the active lanes")
            out = Lanes(out.offsets, active, first)
        self._expect("}")
        return out

    def _dtype(self) -> DType:
        if self._take("ptr"):
            return PTR
        if self._now.text not in DTYPES:
            raise self._fail(f"a data type ({', '.join(DTYPES)})")
        return dtype(self._next().text)
