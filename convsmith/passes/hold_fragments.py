"""Copy the factors of products of fragments into fragments, so that an instruction on fragments may compute the
products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Cond, Index, Var, conj, parts_of
from convsmith.ir.instruction import Instruction, Operand
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, Kernel, Stmt, Store, block
from convsmith.ir.types import dtype
from convsmith.ir.value import Binary, Cast, Load, Select, Value, const, dtype_of
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.lets import Name
from convsmith.passes.order import is_only_sum
from convsmith.passes.scope import LoopRewriter, allocate, are_inside, perfect_nest, with_body, wrap


def _refuse(why: str) -> ConfigError:
    return ConfigError("fragment", f"hold_fragments: {why}")


class _Factor(NamedTuple):
    """A factor of a product: the ``value`` that is multiplied, before its conversion to the type of sums, if any."""

    whole: Value
    value: Value

    @staticmethod
    def of(v: Value) -> _Factor:
        return _Factor(v, v.a if isinstance(v, Cast) else v)


class _HoldFragments(LoopRewriter):
    def __init__(
        self, row: Instruction, names: Sequence[str], inner: Sequence[str], parts: int, strict: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.row, self.names, self.inner = row, tuple(names), tuple(inner)
        self.parts, self.strict = parts, strict

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.names[0]:
            return self._For(loop)
        chain, s = perfect_nest(loop)
        if tuple(x.var.name for x in chain) != (*self.names, *self.inner):
            return self._For(loop)
        if not isinstance(s, Store) or not is_only_sum(s):
            raise _refuse(f"loops {', '.join(self.inner)} compute {s}; legal is a sum of products")
        assert isinstance(s.value, Binary)
        term: Value = s.value.b
        cond = conj(())
        if isinstance(term, Select):
            cond, term = term.cond, term.yes
        if not isinstance(term, Binary) or term.op != "mul":
            raise _refuse(f"loops {', '.join(self.inner)} add {s.value.b}; legal is a product, which may be absent")
        spec = dict(zip(self.row.loops, chain[len(self.names) :]))
        factors = self._in_order(_Factor.of(term.a), _Factor.of(term.b), spec)
        held = [self._fragments_of(x, f, chain, spec) for x, f in zip(self.row.operands[1:], factors)]
        parts = self._conditions_of(cond, held, chain)
        product = Name({f.value: h.read for f, h in zip(factors, held)}).expr(term)
        body: Stmt = wrap(chain[self.parts :], Store(s.buffer, s.index, Binary("add", s.value.a, product)))
        for within, around in ((True, chain[: self.parts]), (False, ())):
            here = [(h, p) for h, p in zip(held, parts) if bool(h.around) is within]
            body = allocate((h.buffer for h, _ in here), block(*(h.fill(p) for h, p in here), body))
            body = wrap(around, body)
        return body

    def _in_order(self, x: _Factor, y: _Factor, spec: dict[Var, For]) -> tuple[_Factor, _Factor]:
        """Return the two factors in the order of the operands of the row."""
        moving = [{spec[v].var for v, n in self.row.steps(k).items() if n} for k in (1, 2)]
        element = {loop.var for loop in spec.values()}
        for pair in ((x, y), (y, x)):
            fits = all((variables_of(f.value) & element) <= m for f, m in zip(pair, moving))
            types = tuple(dtype_of(f.value).name for f in pair)
            if fits and types == tuple(o.dtype for o in self.row.operands[1:]):
                return pair
        raise _refuse(f"{self.row.name} does not multiply {x.value} by {y.value} in loops {', '.join(self.inner)}")

    def _fragments_of(
        self, operand: Operand, factor: _Factor, chain: Sequence[For], spec: dict[Var, For]
    ) -> _FactorFragments:
        """Return the fragments for a factor: one for each iteration of the outer loops that the factor depends on.
        Loops over parts that move the factor are around its fragments.
        """
        number = self.row.operands.index(operand)
        moved = {spec[v].var for v, n in self.row.steps(number).items() if n}
        outer = [x for x in chain[self.parts : len(self.names)] if x.var in variables_of(factor.value)]
        around = [x for x in chain[: self.parts] if x.var in variables_of(factor.value)]
        loops = [*outer, *(x for x in chain[len(self.names) :] if x.var in moved)]
        read = next(v for v in walk(self.row.kernel.body) if isinstance(v, Load) and v.buffer.name == operand.name)
        at = tuple(substitute(i, {v: x.var for v, x in spec.items()}) for i in read.index)
        name = next((v.buffer.name for v in walk(factor.value) if isinstance(v, Load)), operand.name)
        shape = (*(int(x.hi) for x in outer), *operand.shape)
        buffer = make_buffer(f"{name}_f", dtype(operand.dtype), shape, "fragment")
        return _FactorFragments(buffer, tuple(loops), (*(x.var for x in outer), *at), factor.value, tuple(around))

    def _conditions_of(self, cond: Cond, held: Sequence[_FactorFragments], chain: Sequence[For]) -> list[Cond]:
        """Return the condition of each factor's fragments. A part of ``cond`` is one of the first factor of which all
        loops that it depends on fill the fragments, and of any other such factor that may lie outside its array, or
        hold an infinity.
        """
        parts: list[list[Cond]] = [[] for _ in held]
        around = {x.var for x in chain}
        ranges = {**self.ranges, **{x.var: (0, int(x.hi) - 1) for x in chain}}
        inside = [are_inside(h.value, ranges) for h in held]
        for part in parts_of(cond):
            asked = variables_of(part) & around
            places = [n for n, h in enumerate(held) if asked <= {x.var for x in (*h.around, *h.loops)}]
            if not places:
                raise _refuse(f"no factor alone is absent unless {part}")
            for n in (n for n in places if n == places[0] or not inside[n] or self.strict):
                parts[n].append(part)
        return [conj(x) for x in parts]


class _FactorFragments(NamedTuple):
    """The fragments of a factor: the loops that fill them, the element of an iteration, its value, and the loops
    ``around`` both, each of whose iterations fills the fragments again.
    """

    buffer: Buffer
    loops: tuple[For, ...]
    place: tuple[Index, ...]
    value: Value
    around: tuple[For, ...]

    @property
    def read(self) -> Load:
        """The element that an iteration of the product reads."""
        return Load(self.buffer, self.place, None)

    def fill(self, cond: Cond) -> Stmt:
        """Return the nest that fills the fragments, with zeros where ``cond`` does not hold."""
        value = self.value
        if parts_of(cond):
            zero = const(self.buffer.dtype, 0)
            if isinstance(value, Select) and value.no is zero:
                cond, value = conj((*parts_of(cond), *parts_of(value.cond))), value.yes
            value = Select(cond, value, zero)
        own = {x.var: Var(f"{self.buffer.name}{n}") for n, x in enumerate(self.loops)}
        store: Stmt = substitute(Store(self.buffer, self.place, value), own)
        return wrap((For(own[x.var], x.lo, x.hi, x.body) for x in self.loops), store)


@stages(*LOOPS)
def hold_fragments(
    kernel: Kernel, row: Instruction, loops: tuple[str, ...], inner: tuple[str, ...], parts: int = 0,
    strict: bool = False,
) -> Kernel:  # fmt: skip
    """Fill fragments for all iterations of the nest ``loops`` with the factors of the products in the loops ``inner``.

    The loops ``inner`` correspond to the loops of the specification of ``row``, in its order. If a product is absent,
    the fragment of the factor on whose loops the condition depends holds zero; if ``strict``, those of both factors do
    where both depend on it, so that an infinity in place of an absent factor makes no product NaN.

    The first ``parts`` of the ``loops`` run over parts of the products. A factor that they move fills its fragments in
    each of their iterations, so that only those of one part are in registers; other factors fill theirs once. With
    ``hold_fragments(LANE_DOT, ("s", "i"), ("m", "l", "k"), 1)``, where a loop ``s`` over parts of the columns of ``b``
    stands around the loop ``i``, ``b_f`` is filled in the loop ``s``, and ``a_f`` in front of it.

    Before::

        kernel k(a: u8[4, 8], b: s8[8, 2], dst: s32[4, 2])
          for w in 0 .. 2 #warp:
            alloc acc: s32[1, 2, 2] @register:
              for i in 0 .. 1:
                for m in 0 .. 2:
                  for l in 0 .. 2:
                    acc[i, m, l] = s32(0)
              for q in 0 .. 2:
                for i in 0 .. 1:
                  for m in 0 .. 2:
                    for l in 0 .. 2:
                      for k in 0 .. 4:
                        acc[i, m, l] = acc[i, m, l] + cast(s32, a[m + w * 2, k + q * 4]) * cast(s32, b[k + q * 4, l])
              for i in 0 .. 1:
                for m in 0 .. 2:
                  for l in 0 .. 2:
                    dst[m + w * 2, l] = acc[i, m, l]

    After ``hold_fragments(LANE_DOT, ("i",), ("m", "l", "k"))``::

        kernel k(a: u8[4, 8], b: s8[8, 2], dst: s32[4, 2])
          for w in 0 .. 2 #warp:
            alloc acc: s32[1, 2, 2] @register:
              for i in 0 .. 1:
                for m in 0 .. 2:
                  for l in 0 .. 2:
                    acc[i, m, l] = s32(0)
              for q in 0 .. 2:
                alloc a_f: u8[2, 4] @fragment:
                  alloc b_f: s8[4, 2] @fragment:
                    for a_f0 in 0 .. 2:
                      for a_f1 in 0 .. 4:
                        a_f[a_f0, a_f1] = a[a_f0 + w * 2, a_f1 + q * 4]
                    for b_f0 in 0 .. 2:
                      for b_f1 in 0 .. 4:
                        b_f[b_f1, b_f0] = b[b_f1 + q * 4, b_f0]
                    for i in 0 .. 1:
                      for m in 0 .. 2:
                        for l in 0 .. 2:
                          for k in 0 .. 4:
                            acc[i, m, l] = acc[i, m, l] + cast(s32, a_f[m, k]) * cast(s32, b_f[k, l])
              for i in 0 .. 1:
                for m in 0 .. 2:
                  for l in 0 .. 2:
                    dst[m + w * 2, l] = acc[i, m, l]
    """
    if not loops or len(inner) != len(row.loops):
        raise _refuse(f"loops {', '.join(inner)}; legal are as many as {row.name} has, {len(row.loops)}")
    return with_body(kernel, _HoldFragments(row, loops, inner, parts, strict).stmt(kernel.body))
