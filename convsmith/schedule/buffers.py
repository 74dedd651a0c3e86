"""The private buffers of a kernel: packed operands and copies."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import prod
from typing import NamedTuple

from convsmith.ir.index import Var, is_false
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import place_of
from convsmith.schedule.copies import copied_type, has_windows, is_copied, shared_taps
from convsmith.schedule.loops import Loop, down_to, innermost, names
from convsmith.schedule.nest import Nest
from convsmith.statement.statement import Statement, View


class BufferPlan(NamedTuple):
    """A buffer: its ``name``, ``scope`` and ``lifetime``, and the ``order`` of the loops in which it is read.

    ``elements`` counts the elements of type ``dtype``; 0 if the rewrites determine their number. ``operand`` is the
    operand that is packed, or copied to shared memory.
    """

    name: str
    scope: str
    lifetime: str
    dtype: str
    elements: int = 0
    order: tuple[str, ...] = ()
    operand: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return dtype(self.dtype).bytes_of(self.elements)


def buffers(st: Statement, config: Config, nest: Nest, shared: Mapping[str, int]) -> tuple[BufferPlan, ...]:
    """Return the private buffers of the kernel of ``st``, packed operands first, in packing order. ``shared`` are the
    bytes of the copies in memory that a group of threads shares.
    """
    private = []
    in_groups = bool(nest.at("grid"))
    for view in st.factors:
        if view.packed and in_groups:
            elements, dims = prod(view.layout.shape), tuple(map(str, view.coords))
            lifetime = "until the operand changes"
            private.append(BufferPlan(view.array, "global", lifetime, view.dtype, elements, dims, view.name))
        elif view.name in config.staged("pack") and not is_false(st.a.mask):
            order = nest.packed([x for x in nest.loops if indexes(st, view, x)])
            widths = {x.name: room for x, room in nest.packed_widths}
            if view.name == st.a.name:
                rows = {pixel: n for (_, pixel), n in shared_taps(st, config).items()}
                merged = {*chain(*shared_taps(st, config))}
                last = {x.of: x for x in order}
                kept = [x for x in order if x.of not in merged or (x.of in rows and x is last[x.of])]
                order = tuple(x._replace(extent=rows.get(x.of, x.extent)) for x in kept)
            # The rewrites determine the numbers of taps and phases of residue classes, and the contents of a stream.
            elements = 0 if st.residues or view.beside else prod(max(x.extent, widths.get(x.name, 0)) for x in order)
            converted = packed_type(st, nest) if view.name == st.b.name else ""
            packed = converted or (st.acc if nest.unit.converts else view.factor)
            lifetime = "until the operand changes" if view.constant else "for a call"
            private.append(BufferPlan(f"{view.name}_p", "global", lifetime, packed, elements, names(order), view.name))
    for operand, of in config.staged_at("pack_at"):
        place = innermost(nest.to_tile, *place_of(of))
        assert place is not None
        view = next(v for v in st.factors if v.name == operand)
        outside = down_to(nest.to_tile, place)
        inner = [x for x in nest.loops if x not in outside and indexes(st, view, x)]
        widths = {x.name: room for x, room in nest.widths}
        elements = prod(max(x.extent, widths.get(x.name, 0)) for x in inner)
        lifetime = "for an iteration of the loop that fills it"
        private.append(BufferPlan(f"{operand}_n", "cache", lifetime, view.dtype, elements, names(inner)))
    for view in (v for v in st.factors if v.name in shared):
        elements, lifetime = shared[view.name] * 8 // dtype(view.dtype).bits, "for a step of the reduction"
        private.append(BufferPlan(f"{view.array}_s", "shared", lifetime, view.dtype, elements, operand=view.name))
    if is_copied(st, config) and not in_groups:
        lifetime = "for an iteration of the loop that fills it"
        held = st.a.dtype if has_windows(config) else copied_type(st, nest)
        private.append(BufferPlan(f"{st.a.name}_s", "cache", lifetime, held))
    return tuple(private)


def packed_type(st: Statement, nest: Nest) -> str:
    """Return the type to which packing converts the elements of B, or an empty string: the type that the instruction
    requires, or the type of narrow numbers if vectors hold whole bytes of them.
    """
    if nest.unit.widens:
        return nest.unit.widens
    pairs = st.b.narrow and not st.b.beside and nest.unit.rows == 1 and nest.lane.role == "n" and not nest.scalable
    return st.b.narrow if pairs and nest.filled % dtype(st.b.narrow).per_byte == 0 else ""


def indexes(st: Statement, view: View, loop: Loop) -> bool:
    """Return whether a view depends on a loop; a residue class of the result also selects taps, and hence weights."""
    variables = {v for x in view.coords for v in variables_of(x)}
    used = {d.name: d.axis for d in st.dims if Var(d.name) in variables and d.size > 1}
    if loop.level == "class" and loop.role != "k":
        axes = {d.axis for d in st.dims if d.name in loop.dims}
        return any(used.get(d.name) in axes for d in st.of("k"))
    return any(dim in used for dim in loop.dims)
