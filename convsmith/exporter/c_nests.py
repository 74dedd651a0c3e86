"""The naive nests of a problem as C: the loops that define what a kernel computes, for a program that checks it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from textwrap import wrap

from convsmith.diag.errors import InternalError
from convsmith.diag.record import record
from convsmith.exporter.c_numbers import C_NUMBERS, number_text, numbers_in, rounded_text, storage
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Affine, And, Cond, Eq0, FloorDiv, Ge0, Index, Max, Min, Mod, Never, Prod, Quot, Var
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc, Block, For, If, Kernel, Let, Stmt, Store
from convsmith.ir.types import DType
from convsmith.ir.value import Binary, Bits, Cast, Const, Fma, Load, Select, Unary, Value, Where, dtype_of
from convsmith.machine.base import Machine
from convsmith.passes.flatten import flatten
from convsmith.problem.problem import Problem
from convsmith.schedule.given_kernel import program_of

__all__ = ["CNests", "nests_of"]

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_INDEX = "int64_t"
_WIDTH = 118


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
        lines = [line for text, kernel in zip(texts, kernels) for line in text.kernel(kernel)]
        declared = ", ".join(f"{'' if b.name in written else 'const '}{storage(b.dtype)} *{b.name}" for b in given)
        made = [f"    {storage(b.dtype)} *{b.name} = memory({b.nbytes});" for b in own]
        freed = [f"    free({b.name});" for b in own]
        calls = tuple(dict.fromkeys(x for text in texts for x in text.calls))
        head = f"static void {name}_naive({declared})"
        return CNests(
            f"{name}_naive", tuple(b.name for b in given), (head, "{", *made, *lines, *freed, "}"), calls
        )  # fmt: skip


class _CText:
    """The C of one kernel whose buffers in memory have one dim; `calls` are the functions that it calls."""

    def __init__(self) -> None:
        self.calls: dict[str, None] = {}
        self._named: dict[Value, str] = {}

    def kernel(self, kernel: Kernel) -> Iterator[str]:
        """Yield the lines of a kernel, within a function."""
        for line in self._statement(kernel.body, 1):
            tab = line[: len(line) - len(line.lstrip())]
            yield from wrap(line.lstrip(), _WIDTH, initial_indent=tab, subsequent_indent=f"{tab}    ")

    def _statement(self, s: Stmt, depth: int) -> Iterator[str]:
        tab = "    " * depth
        if isinstance(s, Block):
            for x in s.stmts:
                yield from self._statement(x, depth)
        elif isinstance(s, For):
            v = _name(s.var)
            loop = f"for ({_INDEX} {v} = {self._index(s.lo)}; {v} < {self._index(s.hi)}; {v}++)"
            yield from self._nested(f"{tab}{loop}", s.body, depth)
        elif isinstance(s, If):
            yield from self._nested(f"{tab}if ({self._condition(s.cond)})", s.body, depth)
        elif isinstance(s, Let):
            yield f"{tab}const {_INDEX} {_name(s.var)} = {self._index(s.value)};"
            yield from self._statement(s.body, depth)
        elif isinstance(s, Alloc):
            yield from self._allocated(s, depth)
        elif isinstance(s, Store):
            yield from self._store(s, tab)
        else:
            raise InternalError(f"a naive nest has the statement {type(s).__name__}")

    def _nested(self, head: str, body: Stmt, depth: int) -> Iterator[str]:
        yield f"{head} {{"
        yield from self._statement(body, depth + 1)
        yield f"{'    ' * depth}}}"

    def _allocated(self, s: Alloc, depth: int) -> Iterator[str]:
        tab, b = "    " * depth, s.buffer
        if b.in_registers:
            yield f"{tab}{storage(b.dtype)} {_name(b)}{''.join(f'[{n}]' for n in b.shape)};"
            yield from self._statement(s.body, depth)
            return
        yield f"{tab}{storage(b.dtype)} *{_name(b)} = memory({b.nbytes});"
        yield from self._statement(s.body, depth)
        yield f"{tab}free({_name(b)});"

    def _store(self, s: Store, tab: str) -> Iterator[str]:
        """Yield a store, after the values that it uses more than once."""
        repeated = [v for v, count in _uses(s.value).items() if count > 1 and not isinstance(v, (Load, Const))]
        target = f"{_name(s.buffer)}{self._places(s.index)}"
        if not repeated:
            yield f"{tab}{target} = {_bare(self._value(s.value))};"
            return
        yield f"{tab}{{"
        for n, v in enumerate(repeated):
            text = self._value(v)
            self._named[v] = f"t{n}"
            yield f"{tab}    const {storage(dtype_of(v))} t{n} = {_bare(text)};"
        yield f"{tab}    {target} = {_bare(self._value(s.value))};"
        yield f"{tab}}}"
        self._named = {}

    def _places(self, index: tuple[Index, ...]) -> str:
        return "".join(f"[{_bare(self._index(x))}]" for x in index)

    def _call(self, function: str, *arguments: str) -> str:
        self.calls |= dict.fromkeys(numbers_in(function))
        return f"{function}({', '.join(map(_bare, arguments))})"

    # -- indices
    def _index(self, e: Index) -> str:
        """Return an index as an operand."""
        if isinstance(e, Var):
            return _name(e)
        if not e.terms:
            return str(e.const)
        if isinstance(e, (FloorDiv, Quot, Mod)):
            divisor = str(e.den) if isinstance(e.den, int) else self._index(e.den)
            return self._call("modulo" if isinstance(e, Mod) else "quotient", self._index(e.num), divisor)
        if isinstance(e, Prod):
            return f"({' * '.join(map(self._index, e.args))})"
        if isinstance(e, (Min, Max)):
            text = self._index(e.args[0])
            for x in e.args[1:]:
                text = self._call("least" if isinstance(e, Min) else "largest", text, self._index(x))
            return text
        assert isinstance(e, Affine)
        text = ""
        for atom, c in e.terms:
            body = self._index(atom) + (f" * {abs(c)}" if abs(c) != 1 else "")
            text += f" {'-' if c < 0 else '+'} {body}" if text else f"-{body}" if c < 0 else body
        const = f" {'-' if e.const < 0 else '+'} {abs(e.const)}" if e.const else ""
        return f"({text}{const})"

    def _condition(self, c: Cond) -> str:
        if isinstance(c, Ge0):
            return f"{_bare(self._index(c.arg))} >= 0"
        if isinstance(c, Eq0):
            return f"{_bare(self._index(c.arg))} == 0"
        if isinstance(c, Never):
            return "0"
        assert isinstance(c, And)
        return " && ".join(map(self._condition, c.parts)) or "1"

    # -- values
    def _value(self, v: Value) -> str:
        """Return a value as an operand; floats that C lacks are their bits."""
        if v in self._named:
            return self._named[v]
        if isinstance(v, Const):
            return number_text(v)
        if isinstance(v, Load):
            return f"{_name(v.buffer)}{self._places(v.index)}"
        if isinstance(v, Select):
            return f"({self._condition(v.cond)} ? {self._value(v.yes)} : {self._value(v.no)})"
        if isinstance(v, Where):
            compared = f"{self._number(v.a)} {_COMPARED[v.op]} {self._number(v.b)}"
            return f"({compared} ? {self._value(v.yes)} : {self._value(v.no)})"
        if isinstance(v, Cast):
            return self._cast(v)
        if isinstance(v, Bits):
            return self._call(f"bits_{v.dtype}_{dtype_of(v.a)}", self._value(v.a))
        if isinstance(v, Fma):
            operands = [self._number(x) for x in (v.a, v.b, v.c)]
            return self._rounded(dtype_of(v), f"{_float('fma', dtype_of(v))}({', '.join(map(_bare, operands))})")
        if isinstance(v, Unary):
            text = self._number(v.a)
            return self._rounded(dtype_of(v), _unary(v.op, dtype_of(v), text))
        if isinstance(v, Binary):
            return self._binary(v)
        raise InternalError(f"a naive nest has the value {type(v).__name__}")

    def _number(self, v: Value) -> str:
        """Return a value as a number of C."""
        t = dtype_of(v)
        return self._call(f"of_{t}", self._value(v)) if t.name in C_NUMBERS else self._value(v)

    def _rounded(self, t: DType, text: str) -> str:
        """Return a number of C as a value of a type that has arithmetic."""
        return self._call(f"to_{t}", text) if t.name in C_NUMBERS else text

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
            return self._rounded(t, self._call(f"{name}_{number}" if number else name, a, b))
        if t.kind == "float":
            return self._rounded(t, f"({a} {_SIGNS[v.op]} {b})")
        if v.op == "mulh":
            return self._call("high_product", a, b)
        if v.op == "shr":
            return f"(({storage(t)})({a} >> {b}))"
        right = b if v.op == "shl" else f"(uint32_t){b}"
        return f"(({storage(t)})((uint32_t){a} {_SIGNS[v.op]} {right}))"


def _name(x: Var | Buffer) -> str:
    return re.sub(r"\W", "_", x.name)


def _bare(text: str) -> str:
    """Return an operand without parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and n < len(text) - 1:
            return text
    return text[1:-1]


def _float(function: str, t: DType) -> str:
    """Return the name of a function of C's library for a type."""
    return f"{function}f" if t.name == "f32" else function


def _unary(op: str, t: DType, text: str) -> str:
    if op == "neg":
        return f"(-{text})"
    function = {"round": "rint", "floor": "floor", "sqrt": "sqrt", "abs": "fabs"}[op]
    return f"{_float(function, t)}({_bare(text)})"


def _uses(root: Value) -> Counter[Value]:
    """Return how often each value is used in every evaluation of ``root``, operands before what uses them."""
    counts: Counter[Value] = Counter()
    order: dict[Value, None] = {}

    def visit(v: Value) -> None:
        counts[v] += 1
        if counts[v] > 1:
            return
        for x in _operands(v):
            visit(x)
        order[v] = None

    visit(root)
    return Counter({v: counts[v] for v in order})


def _operands(v: Value) -> tuple[Value, ...]:
    """Return the operands that are always evaluated."""
    if isinstance(v, (Binary, Where)):
        return (v.a, v.b, *((v.yes, v.no) if isinstance(v, Where) else ()))
    if isinstance(v, Fma):
        return (v.a, v.b, v.c)
    return (v.a,) if isinstance(v, (Cast, Bits, Unary)) else ()
