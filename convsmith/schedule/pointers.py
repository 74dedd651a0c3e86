"""The pointer table through which a statement reads A, and the position of an output's pointers in the table."""

from __future__ import annotations

import math
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, is_false, maximum, minimum
from convsmith.ir.types import PTR, dtype
from convsmith.layout.block import LayoutBlock
from convsmith.layout.indirection import SECTIONED, Sections, Table, Window, input_stride, shape_of, table
from convsmith.passes import indirect as rewrite
from convsmith.passes.flatten import offset
from convsmith.passes.manager import Step
from convsmith.schedule.config import Config
from convsmith.statement.statement import Statement


class Pointers(NamedTuple):
    """The pointer table of a statement as a buffer, and its zero buffer."""

    window: Window
    form: str
    table: Buffer
    zero: Buffer

    @property
    def entries(self) -> Table:
        return table(self.window, self.form)


def pointers(st: Statement, form: str) -> Pointers:
    """Return pointer table and zero buffer of a statement. ConfigError if A has no pixels."""
    if not st.axes:
        raise ConfigError("realise", "--realise=indirection: a matrix product has no pixels; legal are peel and mask")
    if st.whole is not st:
        raise ConfigError("realise", "--realise=indirection: a split reduction has no table; legal are peel and mask")
    rank, layout = len(st.axes), st.a.layout
    strides = []
    for dim in range(len(layout.shape) - rank, len(layout.shape)):
        blocks = [b for b in layout.blocks if b.dim == dim]
        if len(blocks) > 1:
            raise ConfigError("realise", f"--realise=indirection: {layout} has blocks along pixels; legal is mask")
        strides.append(blocks[0].stride)
    window = Window(st.axes, tuple(strides))
    channels = [LayoutBlock(0, b.size, b.stride) for b in layout.blocks if b.dim == 1]
    zero = Buffer(f"{st.a.name}_0", dtype(st.a.dtype), (layout.padded_shape[1],), tuple(channels))
    return Pointers(window, form, _table_buffer(f"{st.a.name}_{form}", window, form), zero)


def _table_buffer(name: str, window: Window, form: str) -> Buffer:
    """Return the table's buffer, over rows along the outer axes, outputs along the innermost, and taps along each axis.

    The forms differ only in strides, which let outputs share columns.
    """
    rank, (_, length) = len(window.axes), shape_of(window, form)
    rows = [(a.sections.rows if form in SECTIONED else a.o) for a in window.axes[:-1]]
    shape = [*rows, window.axes[-1].o, *(a.k for a in window.axes)]
    strides = [0] * len(shape)
    for n in range(rank - 1):
        strides[n] = math.prod(rows[n + 1 :]) * length
    strides[rank - 1] = input_stride(window, form)
    taps = list(range(rank, 2 * rank))
    if form != "row":
        taps = [taps[-1], *taps[:-1]]
    for n, dim in enumerate(taps):
        strides[dim] = math.prod(shape[x] for x in taps[n + 1 :])
    return Buffer(name, PTR, tuple(shape), tuple(LayoutBlock(n, shape[n], stride) for n, stride in enumerate(strides)))


def indirect(st: Statement, config: Config) -> bool:
    """Return whether A is read through a pointer table."""
    return config.realise == "indirection" and not is_false(st.a.mask)


def indirect_step(st: Statement, form: str) -> Step:
    """Return the rewrite of the naive nest that reads A through the table."""
    p = pointers(st, form)
    taps = [d for d in st.dims if d.sort == "taps"]
    outputs = [next(d.name for d in st.dims if d.axis == t.axis and d is not t) for t in taps]
    index: list[Index] = []
    images = [LayoutBlock(0, b.size, b.stride) for b in st.a.layout.blocks if b.dim == 0]
    away = offset(Buffer(st.a.name, PTR, st.a.layout.padded_shape[:1], tuple(images)), st.a.coords[:1])
    for name, axis, stride in zip(outputs[:-1], p.window.axes, p.window.strides):
        row, steps = (Var(name), as_index(0)) if form not in SECTIONED else _place(axis.sections, Var(name))
        index.append(row)
        away = away + steps * (axis.s * stride)
    index += [Var(outputs[-1]), *(Var(t.name) for t in taps)]
    return Step(rewrite.indirect, st.a.name, p.table, p.zero, tuple(index), away)


def _place(s: Sections, output: Index) -> tuple[Index, Index]:
    """Return the result of `Sections.place` as expressions: the row, and the offset from the row's own output."""
    if s.high - s.low < 2:
        return output, as_index(0)
    below = maximum(output - (s.high - 1), 0)
    row = minimum(output, s.low) + below
    inside = minimum(maximum(output, s.low), s.high - 1) - s.low
    return row, inside - minimum(below, 1) * (s.high - 1 - s.low)
