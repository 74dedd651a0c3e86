"""Prints the IR as Python-like text, one statement per line; :mod:`convsmith.ir.parse` parses it.

    kernel conv(src: f32[1, 6, 6, 8], wei: f32[8, 8, 3, 3], dst: f32[1, 5, 6, 8] = 0:1:240 1:5:48 2:6:8 3:8:1)
      for oc in 0 .. 8:
        alloc acc: f32[16] @register:
          acc[0]{16} = 0.0
          for kh in max(-oh + 1, 0) .. 3 #unrolled carrying p: src = oh * 48 step 48:
            if kh - 1 >= 0 and -kh + 2 >= 0:
              acc[0]{16} = acc[0]{16} + src[p + 8]{16:0} * wei[oc * 16]{16}

Operations print as calls: ``fma(a, b, c)``, ``cast(s8, a)``, ``where(a < b, yes, no)``, ``sum(a, 4)`` over groups of
four lanes, ``repeat(a, 16)``.  Lanes follow an access in braces: ``{16}`` contiguous, ``{16:0}`` broadcast, ``{16:4}``
with stride 4, ``{3 * 8:20}`` three rows of eight, 20 apart, ``{(0, 0, 1, 1)}`` any other map; a suffix ``/5`` means
that only the first five lanes are active.

``at table[i] + 8 in src or zero[0] as pixel: f32[4]:`` binds ``pixel`` to the memory at which a table's entry points.
``barrier``, ``barrier arrive`` and ``barrier wait`` stop the threads of a group. ``async a[i]{4} = b[j]{4} if j >= 0``
starts a copy, ``commit`` closes a group of copies, and ``wait 1`` waits for all groups but the latest. ``atomic a[i] +=
v`` adds indivisibly. ``tensor s[0] = src[0] dims(64:1, 9:64) box(64, 8) at(c, row)`` copies a box of a tensor, whose
dims print as ``size:stride`` innermost first; ``pixels(...)`` gives the pixels of an im2col map, its lower and upper
corners, and its steps, ``offset(...)`` their displacement. A kernel may take sizes after its buffers, ``kernel k(a:
f32[?], n)``; ``?`` is an extent known only at the call. A buffer that is not row-major prints its blocks as
``dim:size:stride``. Repeated parts of a statement's long value are printed before it: ``value v0 = mulh(a[i], a[i])``.
"""

from __future__ import annotations

from convsmith.ir.buffer import UNKNOWN, Buffer, dense
from convsmith.ir.index import And, Cond, Eq0, FloorDiv, Ge0, Index, Max, Min, Mod, Never, Prod, Quot, Var
from convsmith.ir.stmt import (
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Barrier,
    Block,
    Call,
    Commit,
    Fence,
    For,
    If,
    Invoke,
    Kernel,
    Let,
    Meet,
    PointerLoad,
    Prefetch,
    Receive,
    Release,
    ShareRegisters,
    Stmt,
    Store,
    TensorCopy,
    Turn,
    Wait,
)
from convsmith.ir.value import (
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
    lanes_of,
)
from convsmith.ir.walk import children

_SYMBOL = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISON_SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_STRENGTH = {"add": 1, "sub": 1, "mul": 2, "div": 2}


def _atom_text(a: Index) -> str:
    if type(a) is Var:
        return a.name
    if type(a) is FloorDiv or type(a) is Mod:
        num = index_text(a.num)
        if type(a.num) is not Var and not isinstance(a.num, (Min, Max)):
            num = f"({num})"
        return f"{num} {'//' if type(a) is FloorDiv else '%'} {a.den}"
    if type(a) is Quot:
        num, den = (index_text(x) if type(x) is Var else f"({index_text(x)})" for x in (a.num, a.den))
        return f"{num} // {den}"
    if type(a) is Prod:
        return " * ".join(f"({_atom_text(x)})" if type(x) in (FloorDiv, Mod, Quot) else _atom_text(x) for x in a.args)
    if isinstance(a, (Min, Max)):
        return f"{'min' if type(a) is Min else 'max'}({', '.join(index_text(x) for x in a.args)})"
    raise TypeError(type(a))


def index_text(e: Index) -> str:
    """Return an index such as ``a + b * 2 - 1``: coefficients after atoms, the constant last."""
    out = ""
    for atom, c in e.terms:
        sign = "-" if c < 0 else "+"
        body = _atom_text(atom)
        if c < 0 and not out and type(atom) in (FloorDiv, Mod, Quot):
            body = f"({body})"
        if abs(c) != 1:
            body += f" * {abs(c)}"
        out += (f" {sign} " if out else "-" if c < 0 else "") + body
    if not out:
        return str(e.const)
    if e.const:
        out += f" {'-' if e.const < 0 else '+'} {abs(e.const)}"
    return out


def cond_text(c: Cond) -> str:
    """Return a condition such as ``a - 1 >= 0 and b == 0``."""
    if type(c) is Ge0:
        return f"{index_text(c.arg)} >= 0"
    if type(c) is Eq0:
        return f"{index_text(c.arg)} == 0"
    if type(c) is Never:
        return "false"
    assert type(c) is And
    return " and ".join(cond_text(p) for p in c.parts) or "true"


def lanes_text(lanes: Lanes | None) -> str:
    if lanes is None:
        return ""
    stride, rows = lanes.stride, lanes.rows
    body = str(lanes.count) if stride == 1 else f"{lanes.count}:{stride}" if stride is not None else str(lanes.offsets)
    if stride is None and rows is not None:
        body = f"{rows[0]} * {rows[1]}:{rows[2]}"
    first = f"{lanes.first}:" if lanes.first else ""
    return "{" + body + (f"/{first}{lanes.active}" if not lanes.is_whole else "") + "}"


def access_text(buffer: Buffer, index: tuple[Index, ...], lanes: Lanes | None) -> str:
    return f"{buffer.name}[{', '.join(map(index_text, index))}]{lanes_text(lanes)}"


MIN_OPERATIONS = 1000
"""Number of printed operations from which a statement's repeated values get names."""


class _Values:
    """Prints values; a value in ``names`` is printed as its name."""

    def __init__(self, names: dict[Value, str]) -> None:
        self._names = names

    def text(self, v: Value, strength: int = 0) -> str:
        """Return ``v`` as text; ``strength`` is the precedence of the operator around it."""
        return self._names.get(v) or self.written(v, strength)

    def written(self, v: Value, strength: int = 0) -> str:
        """Return ``v`` written out even if it has a name; its operands are printed by name."""
        text = self.text
        if isinstance(v, Const):
            return repr(v.value) if v.dtype.name == "f32" else f"{v.dtype.name}({v.value!r})"
        if isinstance(v, Load):
            return access_text(v.buffer, v.index, v.lanes)
        if isinstance(v, Binary):
            if v.op not in _SYMBOL:
                return f"{v.op}({text(v.a)}, {text(v.b)})"
            own = _STRENGTH[v.op]
            out = f"{text(v.a, own)} {_SYMBOL[v.op]} {text(v.b, own + 1)}"
            return f"({out})" if own < strength else out
        if isinstance(v, Fma):
            return f"fma({text(v.a)}, {text(v.b)}, {text(v.c)})"
        if isinstance(v, Unary):
            return f"{v.op}({text(v.a)})"
        if isinstance(v, (Cast, Bits)):
            return f"{'cast' if isinstance(v, Cast) else 'bits'}({v.dtype.name}, {text(v.a)})"
        if isinstance(v, Select):
            return f"({text(v.yes, 1)} if {cond_text(v.cond)} else {text(v.no, 1)})"
        if isinstance(v, Where):
            test = f"{text(v.a)} {COMPARISON_SYMBOLS[v.op]} {text(v.b)}"
            return f"where({test}, {text(v.yes)}, {text(v.no)})"
        if isinstance(v, Sums):
            return f"sums({', '.join(map(text, v.args))})"
        if isinstance(v, Sum):
            return f"sum({text(v.a)}{f', {v.group}' if v.group != lanes_of(v.a) else ''})"
        if isinstance(v, Lookup):
            return f"lookup({text(v.first)}, {text(v.a)})"
        if isinstance(v, Repeat):
            return f"repeat({text(v.a)}, {v.times})"
        raise TypeError(type(v))


def value_text(v: Value, strength: int = 0) -> str:
    """Return ``v`` as text; ``strength`` is the precedence of the operator around it."""
    return _Values({}).text(v, strength)


def _store_lines(s: Store | AtomicAdd, pad: str, out: Listing) -> None:
    """Append the lines of a store or an atomic addition: its named values if it is long, then the statement."""
    names: dict[Value, str] = {}
    values = _Values(names)
    for v in _repeated(s.value):
        line = f"{pad}value v{len(names)} = {values.written(v)}"
        names[v] = f"v{len(names)}"
        out.append(line)
    word, sign = ("", "=") if isinstance(s, Store) else ("atomic ", "+=")
    out.append(f"{pad}{word}{access_text(s.buffer, s.index, s.lanes)} {sign} {values.text(s.value)}")


def _repeated(value: Value) -> list[Value]:
    """Return operations that are used several times, operands first; empty if the text is short without names."""
    sizes: dict[Value, int] = {}
    uses: dict[Value, int] = {}
    todo: list[Value] = [value]
    while todo:
        v = todo[-1]
        parts = [x for x in children(v) if isinstance(x, Value)]
        missing = [x for x in parts if x not in sizes]
        todo += missing
        if not missing:
            todo.pop()
            if v not in sizes:
                sizes[v] = 1 + sum(sizes[x] for x in parts)
                for x in parts:
                    uses[x] = uses.get(x, 0) + 1
    if sizes[value] <= MIN_OPERATIONS:
        return []
    return [v for v in sizes if uses.get(v, 0) > 1 and sizes[v] > 1]


def buffer_text(b: Buffer) -> str:
    text = f"{b.name}: {b.dtype.name}[{', '.join('?' if n == UNKNOWN else str(n) for n in b.shape)}]"
    if b.blocks != dense(b.shape):
        text += " = " + " ".join(f"{x.dim}:{x.size}:{x.stride}" for x in b.blocks)
    return text


class Listing(list[str]):
    """Lines of text, and the number of the line on which each statement begins, from 1 on."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[Stmt, int] = {}


def _lines(s: Stmt, pad: str, out: Listing) -> None:
    out.numbers.setdefault(s, len(out) + 1)
    inner = pad + "  "
    if isinstance(s, Block):
        if not s.stmts:
            out.append(pad + "pass")
        for x in s.stmts:
            _lines(x, pad, out)
    elif isinstance(s, For):
        kind = "" if s.kind == "serial" else f" #{s.kind}"
        carry = ", ".join(f"{c.var}: {c.buffer.name} = {c.init} step {c.step}" for c in s.carried)
        out.append(f"{pad}for {s.var} in {s.lo} .. {s.hi}{kind}{' carrying ' + carry if carry else ''}:")
        _lines(s.body, inner, out)
    elif isinstance(s, If):
        out.append(f"{pad}if {s.cond}:")
        _lines(s.body, inner, out)
    elif isinstance(s, Let):
        out.append(f"{pad}let {s.var} = {s.value}:")
        _lines(s.body, inner, out)
    elif isinstance(s, Alloc):
        out.append(f"{pad}alloc {buffer_text(s.buffer)} @{s.buffer.scope}:")
        _lines(s.body, inner, out)
    elif isinstance(s, PointerLoad):
        rows = f" of {s.rows.total} by {s.rows.step}" if s.rows else ""
        entry = f"{access_text(s.table, s.index, None)}{rows} + {s.offset} in {s.source.name}"
        out.append(f"{pad}at {entry} or {access_text(s.zero, s.zero_at, None)} as {buffer_text(s.buffer)}:")
        _lines(s.body, inner, out)
    elif isinstance(s, (Store, AtomicAdd)):
        _store_lines(s, pad, out)
    elif isinstance(s, Invoke):
        out.append(f"{pad}{s.instruction}({', '.join(map(value_text, (s.dst, *s.args)))})")
    elif isinstance(s, Call):
        args = [f"{b.name} @ {i}" for b, i in s.pointers] + [str(i) for i in s.indices]
        out.append(f"{pad}call {s.function}({', '.join(args)})")
    elif isinstance(s, Barrier):
        out.append(f"{pad}barrier" + (f" {s.part}" if s.part != "whole" else ""))
    elif isinstance(s, AsyncCopy):
        only = f" if {s.cond}" if s.cond is not None else ""
        out.append(f"{pad}async {value_text(s.dst)} = {value_text(s.src)}{only}")
    elif isinstance(s, TensorCopy):
        out.append(f"{pad}tensor {value_text(s.dst)} = {value_text(s.src)} {_map_text(s)}")
    elif isinstance(s, Commit):
        out.append(f"{pad}commit" + (f" {s.of}" if s.of != "copies" else ""))
    elif isinstance(s, Wait):
        out.append(f"{pad}wait {s.pending}" + (f" {s.of}" if s.of != "copies" else ""))
    elif isinstance(s, Fence):
        out.append(f"{pad}fence {s.of}")
    elif isinstance(s, Receive):
        out.append(f"{pad}receive")
    elif isinstance(s, ShareRegisters):
        out.append(f"{pad}registers {s.count} beside {s.copiers}")
    elif isinstance(s, Turn):
        out.append(f"{pad}turn {s.part}")
    elif isinstance(s, Release):
        out.append(f"{pad}release step {s.step}" + (" to cluster" if s.to_cluster else ""))
    elif isinstance(s, Meet):
        out.append(f"{pad}meet")
    elif isinstance(s, Prefetch):
        out.append(f"{pad}prefetch {access_text(s.buffer, s.index, None)}")
    else:
        raise TypeError(type(s))


def _map_text(s: TensorCopy) -> str:
    """Return the dims of a tensor map as pairs of a size and a stride, the part that it brings, and its place."""
    m, parts = s.map, {}
    parts["dims"] = [f"{n}:{stride}" for n, stride in zip(m.dims, m.strides)]
    parts["box"] = list(map(str, m.box))
    if m.pixels:
        parts["pixels"] = list(map(str, (m.pixels, *m.lower, *m.upper, *m.steps)))
    parts["at"] = list(map(str, s.at))
    if m.pixels:
        parts["offset"] = list(map(str, s.offsets))
    text = " ".join(f"{word}({', '.join(items)})" for word, items in parts.items())
    text = f"{text} to {s.groups} groups" if s.groups > 1 else text
    return text if s.cond is None else f"{text} if {s.cond}"


def head_text(s: Stmt) -> str:
    """Return the first line of the text of a statement."""
    return stmt_text(s).partition("\n")[0]


def stmt_text(s: Stmt) -> str:
    out = Listing()
    _lines(s, "", out)
    return "\n".join(out)


def kernel_text(k: Kernel, word: str = "kernel") -> str:
    """Return the text of a kernel: its functions, the kernel, then the kernels that prepare arguments.

    The latter start with the word ``pack`` or ``before``.
    """
    return "\n".join(listing(k, word)) + "\n" + "".join(
        kernel_text(p, word) for word, kernels in (("pack", k.packs), ("before", k.before)) for p in kernels
    )


def listing(k: Kernel, word: str = "kernel") -> Listing:
    """Return the lines of a kernel, without the kernels that prepare arguments."""
    out = Listing()
    for f in k.functions:
        args = [f"{v}: {b.name}" for v, b in f.pointers] + [str(v) for v in f.indices]
        out.append(f"function {f.name}({', '.join(args)})")
        _lines(f.body, "  ", out)
    bits = f" #i{k.index_bits}" if k.index_bits else ""
    streamed = ", ".join(f"{name}: {ahead}" if ahead else name for name, ahead in sorted(k.streamed.items()))
    hint = f" #stream({streamed})" if streamed else ""
    out.append(f"{word} {k.name}({', '.join([*map(buffer_text, k.params), *map(str, k.sizes)])}){bits}{hint}")
    _lines(k.body, "  ", out)
    return out
