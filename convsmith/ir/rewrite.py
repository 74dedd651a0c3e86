"""Rewriting of the IR: a :class:`Rewriter` rebuilds nodes.

It calls the method named after a node's class: ``For`` rebuilds loops, ``Load`` rebuilds loads. It returns the same
object for a node that does not change, and memoises the result of each interned node. A Rewriter without a method for
indices, conditions or values does not visit them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import (
    Affine,
    And,
    Cond,
    Eq0,
    FloorDiv,
    Ge0,
    Index,
    Max,
    Min,
    Mod,
    Never,
    Prod,
    Quot,
    Var,
    conj,
    eq,
    floordiv,
    ge0,
    make_sum,
    maximum,
    minimum,
    mod,
    product,
    quotient,
)
from convsmith.ir.stmt import (
    Alloc,
    AsyncCopy,
    AtomicAdd,
    Block,
    Call,
    For,
    If,
    Invoke,
    Let,
    PointerLoad,
    Prefetch,
    Release,
    Stmt,
    Store,
    TensorCopy,
    block,
)
from convsmith.ir.value import (
    Binary,
    Bits,
    Cast,
    Fma,
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
from convsmith.ir.walk import EXPRESSIONS, WITHOUT_STATEMENTS, AnyNode, variables_of

_METHODS = {f"visit_{kind}" for kind in EXPRESSIONS} | {"expr", "index"}
"""Names of a rewriter's methods for indices, conditions and values."""


def _unchanged(e: Any) -> Any:
    return e


class _Methods(dict[type, Callable[[Any, Any], Any]]):
    """The methods of a class of rewriters, by the class of the nodes that they rewrite."""

    def __init__(self, cls: type["Rewriter"]) -> None:
        super().__init__()
        self._cls = cls

    def __missing__(self, t: type) -> Callable[[Any, Any], Any]:
        method = self[t] = self._cls._method(t)
        return method


class Rewriter:
    """Rebuilds a tree bottom-up; subclasses define ``visit_X`` for nodes of class ``X``.

    Such a method takes the place of the default, and calls ``rebuild`` to rewrite the children.
    """

    _methods: _Methods
    _has_expressions = False
    """Whether a method handles indices, conditions or values."""

    def __init_subclass__(cls) -> None:
        cls._methods = _Methods(cls)
        own = (c for c in cls.__mro__ if c not in Rewriter.__mro__)
        cls._has_expressions = any(not _METHODS.isdisjoint(c.__dict__) for c in own)

    def __init__(self) -> None:
        self._memo: dict[Any, Any] = {}
        if not self._has_expressions:
            self.expr = _unchanged  # type: ignore[method-assign]

    @classmethod
    def _method(cls, t: type) -> Callable[[Any, Any], Any]:
        name = t.__name__
        default: Callable[[Any, Any], Any] = getattr(cls, "_" + name, cls._leaf)
        if t in WITHOUT_STATEMENTS and not cls._has_expressions:
            default = cls._leaf
        method: Callable[[Any, Any], Any] = getattr(cls, f"visit_{name}", default)
        return method

    def stmt(self, s: Stmt) -> Stmt:
        """Return the rewritten statement."""
        return self._methods[type(s)](self, s)  # type: ignore[no-any-return]

    def expr(self, e: Any) -> Any:
        """Return the rewritten index, condition or value."""
        out = self._memo.get(e)
        if out is None:
            out = self._memo[e] = self._methods[type(e)](self, e)
        return out

    def rebuild(self, n: Any) -> Any:
        """Return ``n`` with its children rewritten."""
        return getattr(self, "_" + type(n).__name__, self._leaf)(n)

    def _leaf(self, n: Any) -> Any:
        return n

    # -- indices and conditions
    def _Affine(self, e: Affine) -> Index:
        if not e.terms:
            return e
        atom, changed = self.atom, False
        total: dict[Index, int] = {}
        const = e.const
        for a, c in e.terms:
            x = atom(a)
            if x is a:
                total[a] = total.get(a, 0) + c
            else:
                changed = True
                const += x.const * c
                for b, k in x.terms:
                    total[b] = total.get(b, 0) + k * c
        if not changed:
            return e
        return make_sum(const, total)

    def atom(self, a: Index) -> Index:
        """Return the rewritten atom of a sum."""
        return self.expr(a)  # type: ignore[no-any-return]

    def _FloorDiv(self, e: FloorDiv) -> Index:
        num = self.expr(e.num)
        return e if num is e.num else floordiv(num, e.den)

    def _Mod(self, e: Mod) -> Index:
        num = self.expr(e.num)
        return e if num is e.num else mod(num, e.den)

    def _Min(self, e: Min) -> Index:
        args = tuple(map(self.expr, e.args))
        return e if args == e.args else minimum(*args)

    def _Max(self, e: Max) -> Index:
        args = tuple(map(self.expr, e.args))
        return e if args == e.args else maximum(*args)

    def _Prod(self, e: Prod) -> Index:
        args = tuple(map(self.expr, e.args))
        if args == e.args:
            return e
        out: Index = args[0]
        for x in args[1:]:
            out = product(out, x)
        return out

    def _Quot(self, e: Quot) -> Index:
        num, den = self.expr(e.num), self.expr(e.den)
        return e if num is e.num and den is e.den else quotient(num, den)

    def _Ge0(self, c: Ge0) -> Cond:
        arg = self.expr(c.arg)
        return c if arg is c.arg else ge0(arg)

    def _Eq0(self, c: Eq0) -> Cond:
        arg = self.expr(c.arg)
        return c if arg is c.arg else eq(arg, 0)

    def _And(self, c: And) -> Cond:
        parts = tuple(map(self.expr, c.parts))
        return c if parts == c.parts else conj(parts)

    # -- values
    def index(self, index: tuple[Index, ...]) -> tuple[Index, ...]:
        """Return the rewritten indices of an access."""
        return tuple(map(self.expr, index))

    def _Load(self, v: Load) -> Value:
        index = self.index(v.index)
        return v if index == v.index else Load(v.buffer, index, v.lanes)

    def _Binary(self, v: Binary) -> Value:
        a, b = self.expr(v.a), self.expr(v.b)
        return v if a is v.a and b is v.b else Binary(v.op, a, b)

    def _Fma(self, v: Fma) -> Value:
        a, b, c = self.expr(v.a), self.expr(v.b), self.expr(v.c)
        return v if a is v.a and b is v.b and c is v.c else Fma(a, b, c)

    def _Unary(self, v: Unary) -> Value:
        a = self.expr(v.a)
        return v if a is v.a else Unary(v.op, a)

    def _Cast(self, v: Cast) -> Value:
        a = self.expr(v.a)
        return v if a is v.a else Cast(v.dtype, a)

    def _Bits(self, v: Bits) -> Value:
        a = self.expr(v.a)
        return v if a is v.a else Bits(v.dtype, a)

    def _Select(self, v: Select) -> Value:
        c, a, b = self.expr(v.cond), self.expr(v.yes), self.expr(v.no)
        if type(c) is Never or (type(c) is And and not c.parts):
            arm: Value = b if type(c) is Never else a
            return arm if lanes_of(arm) == lanes_of(v) else Repeat(arm, lanes_of(v))
        return v if c is v.cond and a is v.yes and b is v.no else Select(c, a, b)

    def _Where(self, v: Where) -> Value:
        a, b, yes, no = self.expr(v.a), self.expr(v.b), self.expr(v.yes), self.expr(v.no)
        same = a is v.a and b is v.b and yes is v.yes and no is v.no
        return v if same else Where(v.op, a, b, yes, no)

    def _Lookup(self, v: Lookup) -> Value:
        first, a = self.expr(v.first), self.expr(v.a)
        return v if first is v.first and a is v.a else Lookup(first, a)

    def _Repeat(self, v: Repeat) -> Value:
        a = self.expr(v.a)
        return v if a is v.a else Repeat(a, v.times)

    def _Sum(self, v: Sum) -> Value:
        a = self.expr(v.a)
        return v if a is v.a else Sum(a, v.group)

    def _Sums(self, v: Sums) -> Value:
        args = tuple([self.expr(a) for a in v.args])
        return v if args == v.args else Sums(args)

    # -- statements
    def _Block(self, s: Block) -> Stmt:
        out = tuple(map(self.stmt, s.stmts))
        return s if out == s.stmts else block(*out)

    def _For(self, s: For) -> Stmt:
        lo, hi = self.expr(s.lo), self.expr(s.hi)
        carried = tuple([c._replace(init=self.expr(c.init)) for c in s.carried]) if s.carried else ()
        body = self.stmt(s.body)
        if lo is s.lo and hi is s.hi and body is s.body and carried == s.carried:
            return s
        return For(s.var, lo, hi, body, s.kind, carried)

    def _If(self, s: If) -> Stmt:
        cond = self.expr(s.cond)
        if type(cond) is Never:
            return Block(())
        body = self.stmt(s.body)
        if type(cond) is And and not cond.parts:
            return body
        return s if cond is s.cond and body is s.body else If(cond, body)

    def _Let(self, s: Let) -> Stmt:
        value, body = self.expr(s.value), self.stmt(s.body)
        return s if value is s.value and body is s.body else Let(s.var, value, body)

    def _Alloc(self, s: Alloc) -> Stmt:
        body = self.stmt(s.body)
        return s if body is s.body else Alloc(s.buffer, body)

    def _PointerLoad(self, s: PointerLoad) -> Stmt:
        index, offset, zero_at = self.index(s.index), self.expr(s.offset), self.index(s.zero_at)
        body = self.stmt(s.body)
        if index == s.index and offset is s.offset and zero_at == s.zero_at and body is s.body:
            return s
        return PointerLoad(s.buffer, s.table, index, offset, s.source, s.zero, zero_at, body, s.rows)

    def _Store(self, s: Store) -> Stmt:
        index, value = self.index(s.index), self.expr(s.value)
        if type(value) is Repeat and type(s.value) is Select and not lanes_of(value.a):
            value = value.a  # the arm that is left of a choice; a store of a scalar writes it to every lane
        return s if index == s.index and value is s.value else Store(s.buffer, index, value, s.lanes)

    def _Invoke(self, s: Invoke) -> Stmt:
        dst, args = self.expr(s.dst), tuple([self.expr(a) for a in s.args])
        return s if dst is s.dst and args == s.args else Invoke(s.instruction, dst, args)

    def _Call(self, s: Call) -> Stmt:
        pointers = tuple([(b, self.expr(i)) for b, i in s.pointers])
        indices = self.index(s.indices)
        return s if pointers == s.pointers and indices == s.indices else Call(s.function, pointers, indices)

    def _AsyncCopy(self, s: AsyncCopy) -> Stmt:
        dst, src = self.expr(s.dst), self.expr(s.src)
        cond = None if s.cond is None else self.expr(s.cond)
        if type(cond) is And and not cond.parts:
            cond = None
        return s if dst is s.dst and src is s.src and cond is s.cond else AsyncCopy(dst, src, cond)

    def _TensorCopy(self, s: TensorCopy) -> Stmt:
        dst, src, at, offsets = self.expr(s.dst), self.expr(s.src), self.index(s.at), self.index(s.offsets)
        cond = None if s.cond is None else self.expr(s.cond)
        if type(cond) is And and not cond.parts:
            cond = None
        if dst is s.dst and src is s.src and at == s.at and offsets == s.offsets and cond is s.cond:
            return s
        return TensorCopy(dst, src, s.map, at, offsets, s.groups, cond)

    def _AtomicAdd(self, s: AtomicAdd) -> Stmt:
        index, value = self.index(s.index), self.expr(s.value)
        return s if index == s.index and value is s.value else AtomicAdd(s.buffer, index, value, s.lanes)

    def _Prefetch(self, s: Prefetch) -> Stmt:
        index = self.index(s.index)
        return s if index == s.index else Prefetch(s.buffer, index)

    def _Release(self, s: Release) -> Stmt:
        (step,) = self.index((s.step,))
        return s if step is s.step else Release(step, s.to_cluster)

    _Const = _Var = _Never = _Barrier = _Commit = _Wait = _Fence = _Receive = _Meet = _ShareRegisters = _Turn = _leaf


Rewriter._methods = _Methods(Rewriter)


class Substitute(Rewriter):
    """Replaces variables by indices, and buffers by buffers."""

    def __init__(self, variables: Mapping[Var, Index], buffers: Mapping[Buffer, Buffer] | None = None) -> None:
        super().__init__()
        self._variables = variables
        self._buffers = buffers or {}

    def expr(self, e: Any) -> Any:
        """Return the rewritten index, condition or value; one without any of the variables or buffers is unchanged."""
        return super().expr(e) if self._occurs_in(e) else e

    def stmt(self, s: Stmt) -> Stmt:
        """Return the rewritten statement; one without any of the variables or buffers is unchanged."""
        return super().stmt(s) if self._occurs_in(s) else s

    def _occurs_in(self, n: AnyNode) -> bool:
        return bool(self._buffers) or not self._variables.keys().isdisjoint(variables_of(n))

    def visit_Var(self, v: Var) -> Index:
        return self._variables.get(v, v)

    def atom(self, a: Index) -> Index:
        if type(a) is Var:
            return self._variables.get(a, a)
        return self.expr(a)  # type: ignore[no-any-return]

    def visit_Load(self, v: Load) -> Value:
        b = self._buffers.get(v.buffer)
        return self._Load(v) if b is None else Load(b, self.index(v.index), v.lanes)

    def visit_Store(self, s: Store) -> Stmt:
        b = self._buffers.get(s.buffer)
        return self._Store(s) if b is None else Store(b, self.index(s.index), self.expr(s.value), s.lanes)

    def visit_AtomicAdd(self, s: AtomicAdd) -> Stmt:
        b = self._buffers.get(s.buffer)
        return self._AtomicAdd(s) if b is None else AtomicAdd(b, self.index(s.index), self.expr(s.value), s.lanes)


def substitute(n: Any, variables: Mapping[Var, Index]) -> Any:
    """Return ``n`` (an index, condition, value or statement) with ``variables`` replaced."""
    r = Substitute(variables)
    return r.stmt(n) if isinstance(n, Stmt) else r.expr(n)


class _ReplaceValue(Rewriter):
    def __init__(self, old: Value, new: Value) -> None:
        super().__init__()
        self.old, self.new = old, new

    def expr(self, e: Any) -> Any:
        """Return the rewritten index, condition or value."""
        return self.new if e is self.old else super().expr(e)


def replace_value(v: Value, old: Value, new: Value) -> Value:
    """Return the value ``v`` with ``new`` in the place of its part ``old``."""
    return _ReplaceValue(old, new).expr(v)  # type: ignore[no-any-return]
