"""Index arithmetic and conditions.

Semantics.  An index is a mathematical integer without a width: it never wraps.  Its only divisions are floor division
``//`` by a positive index and the matching modulo ``%`` by a positive constant.  The pass ``narrow_index`` proves the
range of every index of a kernel and chooses the width; no earlier code may depend on a width.  Wrap-around, saturation
and rounding exist only on *values* (:mod:`convsmith.ir.value`).

Normal form.  The constructors normalise: every index is ``const + sum(coeff * atom)`` with atoms sorted by their text.
Two sums that are equal as affine forms are therefore the same object: ``2 * (a + b) - a`` *is* ``a + b * 2``.  Atoms
are variables, floor divisions, modulos, minima, maxima, and products and quotients of these (for example a stride known
at the call times a loop variable).  A simplification that needs the *range* of a variable belongs to
:mod:`convsmith.arith`.

``==`` is identity and builds nothing.  ``+ - * // %`` and ``< <= > >=`` build; :func:`eq` builds an equality.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Union

from convsmith.diag.forking import import_lock
from convsmith.ir.intern import Node, nodes

Term = tuple["Index", int]
IndexLike = Union["Index", int]


class Index(Node):
    """Base class of index expressions: ``const`` plus the sum of ``terms`` (atom, coefficient)."""

    __slots__ = ()

    @property
    def const(self) -> int:
        raise NotImplementedError

    @property
    def terms(self) -> tuple[Term, ...]:
        raise NotImplementedError

    def __add__(self, other: IndexLike) -> Index:
        return add(self, 1, other)

    def __radd__(self, other: int) -> Index:
        return add(self, 1, other)

    def __sub__(self, other: IndexLike) -> Index:
        return add(self, -1, other)

    def __rsub__(self, other: int) -> Index:
        return add(self * -1, 1, other)

    def __neg__(self) -> Index:
        return self * -1

    def __mul__(self, factor: IndexLike) -> Index:
        if not isinstance(factor, int):
            if self.terms and factor.terms:
                raise TypeError(f"a product of two variables is not an index: ({self}) * ({factor})")
            if factor.terms:
                return factor * self.const
            factor = factor.const
        if factor == 1:
            return self
        return make_sum(self.const * factor, {a: c * factor for a, c in self.terms})

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        return floordiv(self, divisor)

    def __mod__(self, divisor: int) -> Index:
        return mod(self, divisor)

    def __lt__(self, other: IndexLike) -> Cond:
        return ge0(add(as_index(other), -1, self) - 1)

    def __le__(self, other: IndexLike) -> Cond:
        return ge0(add(as_index(other), -1, self))

    def __gt__(self, other: IndexLike) -> Cond:
        return ge0(self - other - 1)

    def __ge__(self, other: IndexLike) -> Cond:
        return ge0(self - other)

    @property
    def is_const(self) -> bool:
        return not self.terms

    def __int__(self) -> int:
        if self.terms:
            raise TypeError(f"{self} is not a constant")
        return self.const

    def __str__(self) -> str:
        with import_lock:
            from convsmith.ir.text import index_text

        return index_text(self)

    __repr__ = __str__


class Atom(Index):
    """An index that is not a sum.  ``order`` is its sort key among the atoms of a sum."""

    __slots__ = ()

    @property
    def order(self) -> str:
        raise NotImplementedError

    const = 0

    @property
    def terms(self) -> tuple[Term, ...]:
        return ((self, 1),)


class Var(Atom):
    """A variable, identified by its name: within one intern table, two variables of equal name are the same object."""

    name: str

    @property
    def order(self) -> str:
        return self.name


class Affine(Index):
    """``const + sum(terms)``; only :func:`make_sum` constructs it, in normal form."""

    const: int
    terms: tuple[Term, ...]


class _Compound(Atom):
    __slots__ = ()

    @property
    def order(self) -> str:
        try:
            return self._order  # type: ignore[attr-defined,no-any-return]
        except AttributeError:
            text = "~" + str(self)
            type(self)._order.__set__(self, text)  # type: ignore[attr-defined]
            return text


class FloorDiv(_Compound):
    """``floor(num / den)``; constructed by :func:`floordiv`."""

    num: Index
    den: int
    _cached_ = ("_order",)


class Mod(_Compound):
    """``num - den * (num // den)``, in ``0 .. den``; constructed by :func:`mod`."""

    num: Index
    den: int
    _cached_ = ("_order",)


class Min(_Compound):
    """The minimum of ``args``; constructed by :func:`minimum`."""

    args: tuple[Index, ...]
    _cached_ = ("_order",)


class Max(_Compound):
    """The maximum of ``args``; constructed by :func:`maximum`."""

    args: tuple[Index, ...]
    _cached_ = ("_order",)


class Prod(_Compound):
    """The product of at least two atoms; constructed by :func:`product`."""

    args: tuple[Index, ...]
    _cached_ = ("_order",)


class Quot(_Compound):
    """``floor(num / den)``, where ``den`` is a size known only at the call; constructed by :func:`quotient`.

    ``den`` is positive wherever the division is evaluated.
    """

    num: Index
    den: Index
    _cached_ = ("_order",)


def as_index(value: IndexLike) -> Index:
    """Return an int as an index; an index unchanged."""
    if not isinstance(value, int):
        return value
    known = nodes()
    node: Index | None = known.get(value)
    if node is None:
        node = known[value] = Affine(int(value), ())
    return node


def make_sum(const: int, coeffs: dict[Index, int]) -> Index:
    """Return ``const + sum(coeff * atom)`` in normal form, with quotients and remainders recombined.

    ``x // n * n + x % n`` becomes ``x``, also where the quotient has the form ``(x // g) // (n // g)``, and ``(k + x //
    n) % m * n + x % n`` becomes ``(k * n + x) % (m * n)``.
    """
    terms = [t for t in coeffs.items() if t[1]]
    if not terms:
        return Affine(const, ())
    if len(terms) == 1:
        if not const and terms[0][1] == 1:
            return terms[0][0]
        return Affine(const, tuple(terms))
    for atom, c in terms:
        if type(atom) is Mod:
            whole = floordiv(atom.num, atom.den)
            if whole.const or len(whole.terms) != 1:
                continue
            if coeffs.get(whole) == c * atom.den:
                others = dict(terms)
                del others[atom], others[whole]
                return add(make_sum(const, others), c, atom.num)
            for upper, k in terms:
                if k == c * atom.den and type(upper) is FloorDiv and _is_quotient(upper, atom):
                    others = dict(terms)
                    del others[atom], others[upper]
                    return add(make_sum(const, others), c, atom.num)
                if k == c * atom.den and type(upper) is Mod:
                    below = _quotient_in(upper.num, whole, atom)
                    if below is None:
                        continue
                    others = dict(terms)
                    del others[atom], others[upper]
                    above = add(upper.num, -1, below)
                    both = mod(add(atom.num, atom.den, above), atom.den * upper.den)
                    return add(make_sum(const, others), c, both)
    terms.sort(key=_order)
    return Affine(const, tuple(terms))


def _is_quotient(e: FloorDiv, rest: Mod) -> bool:
    """Return whether ``e`` is the quotient of ``rest``, divided in two steps."""
    parts, left = divmod(rest.den, e.den)
    return not left and floordiv(rest.num, parts) is e.num


def _quotient_in(e: Index, whole: Index, rest: Mod) -> Index | None:
    """Return the term of ``e`` that is ``whole``, the quotient of ``rest``, or that quotient in two steps."""
    for atom, c in e.terms:
        if c == 1 and (atom is whole or (type(atom) is FloorDiv and _is_quotient(atom, rest))):
            return atom
    return None


def from_sorted(const: int, terms: tuple[Term, ...]) -> Index:
    """Return ``const`` plus ``terms``, which are already in normal order."""
    if not const and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    return Affine(const, terms)


def _order(term: Term) -> str:
    atom = term[0]
    return atom.name if type(atom) is Var else atom.order  # type: ignore[attr-defined]


def add(a: Index, factor: int, b: IndexLike) -> Index:
    """Return ``a + factor * b``."""
    if isinstance(b, int):
        if not b:
            return a
        return make_sum(a.const + factor * b, dict(a.terms))
    if not b.terms:
        return add(a, factor, b.const)
    coeffs = dict(a.terms)
    for atom, c in b.terms:
        coeffs[atom] = coeffs.get(atom, 0) + c * factor
    return make_sum(a.const + factor * b.const, coeffs)


def product(a: IndexLike, b: IndexLike) -> Index:
    """Return ``a * b``, expanded to a sum of products of atoms."""
    a, b = as_index(a), as_index(b)
    if not a.terms or not b.terms:
        return a * b
    total = a * b.const + b * a.const - a.const * b.const
    for x, c in a.terms:
        for y, d in b.terms:
            args = sorted((*_factors(x), *_factors(y)), key=_atom_order)
            total = total + make_sum(0, {Prod(tuple(args)): c * d})
    return total


def quotient(num: IndexLike, den: IndexLike) -> Index:
    """Return ``num // den``."""
    num, den = as_index(num), as_index(den)
    return Quot(num, den) if den.terms else floordiv(num, den.const)


def _factors(atom: Index) -> tuple[Index, ...]:
    return atom.args if type(atom) is Prod else (atom,)


def _atom_order(atom: Index) -> str:
    return atom.order  # type: ignore[attr-defined,no-any-return]


def _positive(den: int, operation: str) -> None:
    if not isinstance(den, int) or den <= 0:
        raise ValueError(f"{operation} by {den}: only positive constants divide an index")


def split_multiple(num: Index, den: int) -> tuple[Index, Index]:
    """Return ``(q, r)`` with ``num = q * den + r``; the coefficients of ``r`` are below ``den`` and keep their signs.
    """
    q: dict[Index, int] = {}
    r: dict[Index, int] = {}
    for a, c in num.terms:
        q[a] = c // den if c > 0 else -(-c // den)
        r[a] = c - q[a] * den
    return make_sum(num.const // den, q), make_sum(num.const % den, r)


def floordiv(num: IndexLike, den: int) -> Index:
    """Return ``num // den``, with multiples of ``den`` taken out and common factors cancelled."""
    num = as_index(num)
    _positive(den, "division")
    if den == 1:
        return num
    q, r = split_multiple(num, den)
    if not r.terms:
        return q
    g = den
    for _, c in r.terms:
        g = gcd(g, c)
    if g > 1:
        return q + floordiv(make_sum(r.const // g, {a: c // g for a, c in r.terms}), den // g)
    if not r.const and len(r.terms) == 1 and r.terms[0][1] == 1 and type(r.terms[0][0]) is FloorDiv:
        inner = r.terms[0][0]
        return q + floordiv(inner.num, inner.den * den)
    return q + FloorDiv(r, den) if q.terms or q.const else FloorDiv(r, den)


def mod(num: IndexLike, den: int) -> Index:
    """Return ``num % den``, with multiples of ``den`` dropped and common factors taken out."""
    num = as_index(num)
    _positive(den, "modulo")
    _, r = split_multiple(num, den)
    if not r.terms:
        return r
    g = gcd(den, r.const)
    for _, c in r.terms:
        g = gcd(g, c)
    if g > 1:
        return mod(make_sum(r.const // g, {a: c // g for a, c in r.terms}), den // g) * g
    if not r.const and len(r.terms) == 1 and r.terms[0][1] == 1:
        inner = r.terms[0][0]
        if type(inner) is Mod and inner.den % den == 0:
            return mod(inner.num, den)
    return Mod(r, den)


def _extremum(args: Iterable[IndexLike], node: type[Min] | type[Max]) -> Index:
    pick = min if node is Min else max
    flat: dict[Index, None] = {}
    consts: list[int] = []
    for a in args:
        a = as_index(a)
        for x in a.args if type(a) is node else (a,):
            if x.terms:
                flat[x] = None
            else:
                consts.append(x.const)
    best: dict[tuple[Term, ...], int] = {}
    for x in flat:
        best[x.terms] = pick(x.const, best[x.terms]) if x.terms in best else x.const
    out = [make_sum(c, dict(t)) for t, c in best.items()]
    if consts:
        out.append(Affine(pick(consts), ()))
    if len(out) == 1:
        return out[0]
    return node(tuple(sorted(out, key=_text)))


def _text(e: Index) -> str:
    """Return the text of ``e``, which the table of nodes keeps."""
    known = nodes()
    text: str | None = known.get((_text, e))
    if text is None:
        text = known[_text, e] = str(e)
    return text


def minimum(*args: IndexLike) -> Index:
    """Return the minimum of ``args``."""
    return _extremum(args, Min)


def maximum(*args: IndexLike) -> Index:
    """Return the maximum of ``args``."""
    return _extremum(args, Max)


class Cond(Node):
    """Base class of conditions on indices."""

    __slots__ = ()

    def __str__(self) -> str:
        with import_lock:
            from convsmith.ir.text import cond_text

        return cond_text(self)

    __repr__ = __str__


class Ge0(Cond):
    """``arg >= 0``; constructed by :func:`ge0`."""

    arg: Index


class Eq0(Cond):
    """``arg == 0``; constructed by :func:`eq`."""

    arg: Index


class And(Cond):
    """The conjunction of ``parts``; the empty conjunction is true."""

    parts: tuple[Cond, ...]


class Never(Cond):
    """The condition that is false."""

    why: str


def true() -> Cond:
    return And(())


def false() -> Cond:
    return Never("")


def is_true(c: Cond) -> bool:
    return type(c) is And and not c.parts


def is_false(c: Cond) -> bool:
    return type(c) is Never


def ge0(arg: IndexLike) -> Cond:
    """Return ``arg >= 0``, divided by the coefficients' common factor (the constant is rounded down)."""
    arg = as_index(arg)
    if not arg.terms:
        return true() if arg.const >= 0 else false()
    g = 0
    for _, c in arg.terms:
        g = gcd(g, c)
    if g > 1:
        arg = make_sum(arg.const // g, {a: c // g for a, c in arg.terms})
    return Ge0(arg)


def eq(a: IndexLike, b: IndexLike) -> Cond:
    """Return ``a == b``; false if no integer solves it."""
    arg = as_index(a) - b
    if not arg.terms:
        return true() if arg.const == 0 else false()
    g = 0
    for _, c in arg.terms:
        g = gcd(g, c)
    if arg.const % g:
        return false()
    if arg.terms[0][1] < 0:
        g = -g
    return Eq0(make_sum(arg.const // g, {a: c // g for a, c in arg.terms}) if g != 1 else arg)


def conj(parts: Iterable[Cond]) -> Cond:
    """Return the conjunction of ``parts``, flattened and without duplicates; false if one part is false."""
    seen: dict[Cond, None] = {}
    for p in parts:
        if type(p) is Never:
            return p
        for q in p.parts if type(p) is And else (p,):
            seen[q] = None
    out = tuple(seen)
    return out[0] if len(out) == 1 else And(out)


def parts_of(c: Cond) -> tuple[Cond, ...]:
    """Return the conjuncts of ``c``."""
    return c.parts if type(c) is And else (c,)
