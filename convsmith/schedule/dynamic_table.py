"""The table of pointers through which a kernel reads pixels whose number is known only at the call.

The positions of the table's sections are sizes of the kernel.
"""

from __future__ import annotations

import math

from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.ir.index import Index, Var, as_index, maximum, minimum, product
from convsmith.ir.types import PTR
from convsmith.layout.indirection import Window, input_stride, shape_of
from convsmith.passes import indirect as rewrite
from convsmith.passes.generalise import Place, generalise
from convsmith.passes.manager import Step
from convsmith.problem.problem import Problem
from convsmith.schedule.pointers import Pointers, pointers
from convsmith.statement.fused import stage_statement
from convsmith.statement.statement import Statement


def table_name(source: str) -> str:
    """Return the name of the table of pointers into the array ``source``."""
    return f"{source}_table"


def section_sizes(axes: str) -> tuple[Var, ...]:
    """Return the sizes that determine the positions of the table's sections along the outer ``axes``."""
    return tuple(Var(f"{word}_{a}") for a in axes[:-1] for word in ("low", "high", "row", "step"))


def section_values(axes: str, window: Window) -> dict[str, int]:
    """Return the values of these sizes, by name, at a call with the ``window`` over its source."""
    found = {}
    _, length = shape_of(window, "sections")
    rows = [a.sections.rows for a in window.axes[:-1]]
    for n, (letter, axis, stride) in enumerate(zip(axes[:-1], window.axes, window.strides)):
        s = axis.sections
        low, high = (s.low, s.high) if s.low < s.high else (axis.o, axis.o + 1)
        found[f"low_{letter}"], found[f"high_{letter}"] = low, high
        found[f"row_{letter}"] = math.prod(rows[n + 1 :]) * length
        found[f"step_{letter}"] = axis.s * stride
    return found


def call_pointers(q: Problem, n: int = 0) -> Pointers:
    """Return the pointer table of the problem at the sizes of a call, or of its stage ``n``, and its zero buffer."""
    return pointers(stage_statement(q, n), "sections")


def table_steps(st: Statement, places: tuple[Place, ...]) -> tuple[Step, ...]:
    """Return the rewrites that make ``st`` read its first factor, laid out by ``places``, through the table."""
    return (_pointer_step(st, places), *_pixel_steps(st, places))


def _pointer_step(st: Statement, places: tuple[Place, ...]) -> Step:
    """Return the rewrite that reads the source through the table, whose rows the sizes locate."""
    own = pointers(st, "sections")
    outputs = {d.axis: Var(d.name) for d in st.of("m") if d.axis}
    axes = "".join(outputs)
    place: Index = as_index(0)
    images = next(d.name for d in st.dims if d.sort == "images")
    moved: Index = product(Var(images), next(stride for dim, _, stride in places if dim == 0))
    for a in axes[:-1]:
        y, low, last = outputs[a], Var(f"low_{a}"), Var(f"high_{a}") - 1
        below = maximum(y - last, 0)
        inside = minimum(maximum(y, low), last) - low - product(minimum(below, 1), last - low)
        place = place + product(minimum(y, low) + below, Var(f"row_{a}"))
        moved = moved + product(inside, Var(f"step_{a}"))
    stride = input_stride(own.window, "sections")
    taps = {d.axis: d for d in st.of("k") if d.axis}
    apart, within = 1, {}
    for a in reversed([*axes[-1:], *axes[:-1]]):
        within[a] = apart
        apart *= taps[a].size
    place = place + outputs[axes[-1]] * stride
    for a in axes:
        place = place + Var(taps[a].name) * within[a]
    table = make_buffer(table_name(st.a.name), PTR, (UNKNOWN,))
    return Step(rewrite.indirect, st.a.name, table, own.zero, (place,), moved, st.sizes)


def _pixel_steps(st: Statement, places: tuple[Place, ...]) -> list[Step]:
    """Return the rewrites that make the distance of a pixel's channels a size, if the layout has one."""
    channels = tuple((0, size, stride) for dim, size, stride in places if dim == 1)
    if all(stride.is_const for _, _, stride in channels):
        return []
    return [Step(generalise, (), ((f"{st.a.name}_at", channels), (f"{st.a.name}_0", channels)), ())]
