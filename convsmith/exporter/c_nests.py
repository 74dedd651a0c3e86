"""The naive nests of a problem as C: the loops that define what a kernel computes, for a program that checks it."""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.codegen.structured_text import COMPARED, SIGNS, StructuredText, bare, repeated_values
from convsmith.diag.errors import InternalError
from convsmith.diag.record import record
from convsmith.exporter.c_numbers import C_NUMBERS, number_text, numbers_in, rounded_text, storage
from convsmith.ir.index import Index, Var
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc, For, Store
from convsmith.ir.types import DType
from convsmith.ir.value import Binary, Bits, Cast, Const, Fma, Load, Select, Unary, Value, Where, dtype_of
from convsmith.machine.base import Machine
from convsmith.passes.flatten import flatten
from convsmith.problem.problem import Problem
from convsmith.schedule.given_kernel import program_of

__all__ = ["CNests", "nests_of"]

_INDEX = "int64_t"


@record(frozen=True)
class CNests:
    """A function of C, ``symbol``, that computes on the tensors ``parameters``: its ``lines``, and the names of the
    functions that it calls (`c_numbers.py`).
    """

    symbol: str
    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    calls: tuple[str, ...]


def nests_of(name: str, problem: Problem, machine: Machine) -> CNests:
    """Return the naive nests of ``problem`` as the function ``name``_naive, which runs them one after the other."""
    with interning():
        kernels = [flatten(kernel) for kernel in program_of(problem, machine).nests()]
        tensors = {t.name for t in problem.tensors}
        params = {b.name: b for kernel in kernels for b in kernel.params}
        written = {b.name for kernel in kernels for b in kernel.written}
        given = [b for b in params.values() if b.name in tensors]
        own = [b for b in params.values() if b.name not in tensors]
        texts = [_CText() for _ in kernels]
        lines = [line for text, kernel in zip(texts, kernels) for line in text.lines(kernel.body)]
        declared = ", ".join(f"{'' if b.name in written else 'const '}{storage(b.dtype)} *{b.name}" for b in given)
        made = [f"    {storage(b.dtype)} *{b.name} = memory({b.nbytes});" for b in own]
        freed = [f"    free({b.name});" for b in own]
        calls = tuple(dict.fromkeys(x for text in texts for x in text.calls))
        head = f"static void {name}_naive({declared})"
        return CNests(
            f"{name}_naive", tuple(b.name for b in given), (head, "{", *made, *lines, *freed, "}"), calls
        )  # fmt: skip


class _CText(StructuredText):
    """The C of one kernel; `calls` are the functions that it calls."""

    def __init__(self) -> None:
        self.calls: dict[str, None] = {}
        self._named: dict[Value, str] = {}

    def loop_head(self, s: For) -> str:
        v = self.name(s.var)
        return f"for ({_INDEX} {v} = {self.index(s.lo)}; {v} < {self.index(s.hi)}; {v}++)"

    def bound(self, v: Var, value: str) -> str:
        return f"const {_INDEX} {self.name(v)} = {value};"

    def allocated(self, s: Alloc, depth: int) -> Iterator[str]:
        tab, b = "    " * depth, s.buffer
        if b.in_registers:
            yield f"{tab}{storage(b.dtype)} {self.name(b)}{''.join(f'[{n}]' for n in b.shape)};"
            yield from self.statement(s.body, depth)
            return
        yield f"{tab}{storage(b.dtype)} *{self.name(b)} = memory({b.nbytes});"
        yield from self.statement(s.body, depth)
        yield f"{tab}free({self.name(b)});"

    def store(self, s: Store, tab: str) -> Iterator[str]:
        """Yield a store, after the values that it uses more than once."""
        repeated = repeated_values(s.value)
        target = f"{self.name(s.buffer)}{self._places(s.index)}"
        if not repeated:
            yield f"{tab}{target} = {bare(self._value(s.value))};"
            return
        yield f"{tab}{{"
        for n, v in enumerate(repeated):
            text = self._value(v)
            self._named[v] = f"t{n}"
            yield f"{tab}    const {storage(dtype_of(v))} t{n} = {bare(text)};"
        yield f"{tab}    {target} = {bare(self._value(s.value))};"
        yield f"{tab}}}"
        self._named = {}

    def _places(self, index: tuple[Index, ...]) -> str:
        return "".join(f"[{bare(self.index(x))}]" for x in index)

    def call(self, function: str, *arguments: str) -> str:
        self.calls |= dict.fromkeys(numbers_in(function))
        return f"{function}({', '.join(map(bare, arguments))})"

    # -- values
    def _value(self, v: Value) -> str:
        """Return a value as an operand; floats that C lacks are their bits."""
        if v in self._named:
            return self._named[v]
        if isinstance(v, Const):
            return number_text(v)
        if isinstance(v, Load):
            return f"{self.name(v.buffer)}{self._places(v.index)}"
        if isinstance(v, Select):
            return f"({self.condition(v.cond)} ? {self._value(v.yes)} : {self._value(v.no)})"
        if isinstance(v, Where):
            compared = f"{self._number(v.a)} {COMPARED[v.op]} {self._number(v.b)}"
            return f"({compared} ? {self._value(v.yes)} : {self._value(v.no)})"
        if isinstance(v, Cast):
            return self._cast(v)
        if isinstance(v, Bits):
            return self.call(f"bits_{v.dtype}_{dtype_of(v.a)}", self._value(v.a))
        if isinstance(v, Fma):
            operands = [self._number(x) for x in (v.a, v.b, v.c)]
            return self._rounded(dtype_of(v), f"{_float('fma', dtype_of(v))}({', '.join(map(bare, operands))})")
        if isinstance(v, Unary):
            text = self._number(v.a)
            return self._rounded(dtype_of(v), _unary(v.op, dtype_of(v), text))
        if isinstance(v, Binary):
            return self._binary(v)
        raise InternalError(f"a naive nest has the value {type(v).__name__}")

    def _number(self, v: Value) -> str:
        """Return a value as a number of C."""
        t = dtype_of(v)
        return self.call(f"of_{t}", self._value(v)) if t.name in C_NUMBERS else self._value(v)

    def _rounded(self, t: DType, text: str) -> str:
        """Return a number of C as a value of a type that has arithmetic."""
        return self.call(f"to_{t}", text) if t.name in C_NUMBERS else text

    def _cast(self, v: Cast) -> str:
        text, wanted, given = self._number(v.a), v.dtype, dtype_of(v.a)
        function, made = rounded_text(wanted, given, text)
        self.calls |= dict.fromkeys(numbers_in(function))
        return made

    def _binary(self, v: Binary) -> str:
        t, a, b = dtype_of(v), self._number(v.a), self._number(v.b)
        if v.op in ("max", "min"):
            name = "largest" if v.op == "max" else "least"
            number = t if t.kind == "float" and t.name not in C_NUMBERS else "f32" if t.kind == "float" else ""
            return self._rounded(t, self.call(f"{name}_{number}" if number else name, a, b))
        if t.kind == "float":
            return self._rounded(t, f"({a} {SIGNS[v.op]} {b})")
        if v.op == "mulh":
            return self.call("high_product", a, b)
        if v.op == "shr":
            return f"(({storage(t)})({a} >> {b}))"
        right = b if v.op == "shl" else f"(uint32_t){b}"
        return f"(({storage(t)})((uint32_t){a} {SIGNS[v.op]} {right}))"


def _float(function: str, t: DType) -> str:
    """Return the name of a function of C's library for a type."""
    return f"{function}f" if t.name == "f32" else function


def _unary(op: str, t: DType, text: str) -> str:
    if op == "neg":
        return f"(-{text})"
    function = {"round": "rint", "floor": "floor", "sqrt": "sqrt", "abs": "fabs"}[op]
    return f"{_float(function, t)}({bare(text)})"
