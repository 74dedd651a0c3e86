"""Split a reduction among threads: each part is summed apart, and the parts are added up, always in the same order.

Worth it where the result is too small to be divided: the gradient of few weights, summed over many pixels.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.build.sums import sum_nest, sum_steps
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.stmt import Kernel
from convsmith.ir.types import dtype
from convsmith.ir.value import Load
from convsmith.ir.walk import substitute
from convsmith.layout.layout import Layout
from convsmith.layout.tags import MAX_DIMS
from convsmith.layout.view import Dim, Statement, View
from convsmith.passes.manager import Step
from convsmith.schedule.config import Config
from convsmith.target.base import Target

PART = "part"
"""The loop over parts, and in the name of their memory."""
SUMS = "part_sums"
"""The memory of the parts: a result each."""


def parted(st: Statement, config: Config) -> Statement:
    """The statement that the config schedules: with parts of their own where it splits a reduction."""
    for loop, parts in config.split:
        st = _split(st, loop, parts)
    return st


def splits(st: Statement) -> bool:
    """Whether the result can have parts: gradients of weights, where another dim leaves a layout."""
    return not st.constant and st.c.layout.is_plain and len(st.c.coords) < MAX_DIMS


def _split(st: Statement, loop: str, parts: int) -> Statement:
    sizes = {d.name: d.size for d in st.of("k")}
    if loop not in sizes or sizes[loop] % parts:
        legal = ", ".join(f"{name} ({size})" for name, size in sizes.items())
        raise ConfigError("split", f"--split={loop}:{parts}: legal is a reduction loop and a divisor of it: {legal}")
    if not splits(st):
        raise ConfigError(
            "split",
            f"--split={loop}:{parts}: only gradients of weights are split, in a plain layout of fewer than "
            f"{MAX_DIMS} dims",
        )
    size = sizes[loop] // parts
    moved: dict[Var, Index] = {Var(loop): Var(PART) * size + Var(loop)}
    dims = tuple(replace(d, size=size) if d.name == loop else d for d in st.dims)
    shape = (parts, *st.c.layout.shape)
    layout = Layout.from_tag("any", shape)
    c = View(SUMS, st.acc, layout, (Var(PART), *st.c.coords), (st.c.masks[0], *st.c.masks))
    return replace(st, dims=(Dim(PART, parts, "batch"), *dims), a=_at(st.a, moved), b=_at(st.b, moved), c=c)


def _at(view: View, moved: dict[Var, Index]) -> View:
    coords = tuple(substitute(x, moved) for x in view.coords)
    return replace(view, coords=coords, masks=tuple(substitute(m, moved) for m in view.masks))


def sums_kernel(st: Statement, config: Config) -> Kernel:
    """The naive nest that adds up the parts of the statement's result, which the config splits."""
    given, result = (
        Buffer(v.name, dtype(v.dtype), v.layout.padded_shape, v.layout.blocks) for v in (parted(st, config).c, st.c)
    )
    around = [(f"w{n}", size) for n, size in enumerate(st.c.layout.shape)]
    index = tuple(Var(name) for name, _ in around)
    term = Load(given, (Var(PART), *index), None)
    return sum_nest("sums", term, result, index, dtype(st.acc), around, [(PART, given.shape[0])])


def sums_steps(st: Statement, target: Target) -> list[Step]:
    """Vectors along the last dim."""
    return sum_steps(f"w{len(st.c.coords) - 1}", 1, target.lanes(dtype(st.acc).bits), (PART,))
