"""Let neighbouring pixels multiply the same elements of a source, each by its own shifted copy of a packed operand."""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Ge0, Index, Var, as_index, conj, ge0, parts_of
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Block, For, Kernel, Store, block
from convsmith.ir.value import Const, Load, Select, Value
from convsmith.ir.walk import variables_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.relocate import Place, Relocate
from convsmith.passes.scope import perfect_nest, require_loops, wrap


class _Shared(Rewriter):
    """Reads the elements of the first of ``count`` pixels, and the copy of the packed operand for each pixel."""

    def __init__(
        self, packed: Buffer, pixel: Var, term: Var, count: int, at: int, step: int, written: frozenset[str]
    ) -> None:
        super().__init__()
        self.packed, self.pixel, self.term, self.count, self.at, self.step = packed, pixel, term, count, at, step
        self.written = written

    def visit_Load(self, v: Load) -> Value:
        first = self.pixel // self.count * self.count
        if v.buffer.name == self.packed.name:
            return Load(self.packed, (*v.index[: self.at], self.pixel - first, *v.index[self.at :]), v.lanes)
        if not any(self.term in variables_of(i) for i in v.index):
            return self._Load(v)
        if v.buffer.name in self.written:
            raise ConfigError(
                "share_terms", f"share_terms: the kernel writes {v.buffer.name}, of which a pixel would read more than "
                "its own elements; legal are sources",
            )  # fmt: skip
        for i in v.index:
            steps = dict(i.terms)
            if steps.get(self.pixel, 0) != self.step * steps.get(self.term, 0):
                raise ConfigError(
                    "share_terms", f"share_terms: {v} does not depend on {self.pixel} by {self.step} steps of "
                    f"{self.term} alone; legal are pixels that step along the terms",
                )  # fmt: skip
        return Load(v.buffer, tuple(substitute(i, {self.pixel: first}) for i in v.index), v.lanes)


@stages(*LOOPS)
def share_terms(
    kernel: Kernel, packed: str, pixel: str, term: str, count: int, step: int = 1, before: str = ""
) -> Kernel:
    """Let ``count`` adjacent pixels of the loop ``pixel`` multiply the elements that the first of them reads.

    A pixel moves by ``step`` terms of the loop ``term``. The ``packed`` operand holds zeros for the last terms; its new
    dim, before that of the loop ``before``, or of the terms, holds a copy for each of the pixels, which lies so many
    terms further on.

    Before::

        kernel k(a: u8[8], b_p: s8[4], c: s32[2])
          for i in 0 .. 2:
            for q in 0 .. 4:
              c[i] = c[i] + cast(s32, a[i + q]) * cast(s32, b_p[q])
        pack k_pack_b(b: s8[3], b_p: s8[4])
          for q in 0 .. 4:
            b_p[q] = (b[q] if -q + 2 >= 0 else s8(0))

    After ``share_terms("b_p", "i", "q", 2)``::

        kernel k(a: u8[8], b_p: s8[2, 4], c: s32[2])
          for i in 0 .. 2:
            for q in 0 .. 4:
              c[i] = c[i] + cast(s32, a[q + i // 2 * 2]) * cast(s32, b_p[i - i // 2 * 2, q])
        pack k_pack_b(b: s8[3], b_p: s8[2, 4])
          for i in 0 .. 2:
            for q in 0 .. 4:
              b_p[i, q] = (b[-i + q] if i - q + 2 >= 0 and -i + q >= 0 else s8(0))
    """
    require_loops(kernel, (pixel, term), "share_terms")
    if count < 2 or step < 1:
        raise ConfigError(
            "share_terms", f"share_terms: {count} pixels, {step} terms apart; legal are two pixels or more, and a term"
        )
    pack = next((p for p in kernel.packs if p.params[-1].name == packed), None)
    if pack is None:
        raise ConfigError("share_terms", f"share_terms: no kernel packs {packed}; legal are packed operands")
    made, at = _shifted(pack, Var(pixel), Var(term), count, step, before or term)
    new = made.params[-1]
    written = frozenset(b.name for b in kernel.written)
    body = _Shared(new, Var(pixel), Var(term), count, at, step, written).stmt(kernel.body)
    params = tuple(new if b is pack.params[-1] else b for b in kernel.params)
    return replace(kernel, params=params, body=body, packs=tuple(made if p is pack else p for p in kernel.packs))


def _shifted(pack: Kernel, pixel: Var, term: Var, count: int, step: int, before: str) -> tuple[Kernel, int]:
    """Return the kernel that packs a copy for each of ``count`` pixels, and the place of their dim. Other statements of
    the kernel read the copy for the first pixel.
    """
    old, (fill, *others) = pack.params[-1], pack.body.stmts if isinstance(pack.body, Block) else (pack.body,)
    assert isinstance(fill, For)
    nest, s = perfect_nest(fill)
    variables = [x.var for x in nest]
    assert isinstance(s, Store) and s.index == tuple(variables)
    room, terms = int(nest[variables.index(term)].hi), _terms(s.value, term)
    if terms + (count - 1) * step > room:
        raise ConfigError(
            "share_terms", f"share_terms: {count} pixels of {terms} terms, {step} apart, need "
            f"{terms + (count - 1) * step} terms, and {term} has {room}",
        )  # fmt: skip
    at = [str(x) for x in variables].index(before)
    new = make_buffer(old.name, old.dtype, (*old.shape[:at], count, *old.shape[at:]), old.scope)
    moved = term - pixel * step
    value = substitute(s.value, {term: moved})
    assert isinstance(value, Select)
    value = Select(conj((*parts_of(value.cond), ge0(moved))), value.yes, value.no)

    def place(index: Place, copy: Index) -> Place:
        return (*index[:at], copy, *index[at:])

    loops = (*nest[:at], For(pixel, as_index(0), as_index(count), nest[at].body), *nest[at:])
    first = Relocate(old, new, lambda index: place(index, as_index(0)))
    body = block(wrap(loops, Store(new, place(s.index, pixel), value)), *map(first.stmt, others))
    return replace(pack, params=(*pack.params[:-1], new), body=body), at


def _terms(value: Value, term: Var) -> int:
    """Return the number of terms of a packed operand that are not zero."""
    if not isinstance(value, Select) or not isinstance(value.no, Const) or value.no.value:
        raise ConfigError("share_terms", f"share_terms: {term} has no term that is zero; legal are filled terms")
    ends = [x.arg.const + 1 for x in parts_of(value.cond) if isinstance(x, Ge0) and dict(x.arg.terms) == {term: -1}]
    if not ends:
        raise ConfigError("share_terms", f"share_terms: the end of {term} depends on other loops")
    return min(ends)
