"""The window through which a statement reads A: the source of tables of pointers."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.layout.indirection import Axis, Window
from convsmith.layout.layout import Layout
from convsmith.layout.view import Statement
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem


def window_axes(p: Conv) -> tuple[Axis, ...]:
    """The axes, outermost first: outputs are the pixels that a statement steps through, the source those of A."""
    scattered = p.deconv != (p.dir == "BWD_D") and not p.dir.startswith("BWD_W")
    source, output = (p.coarse, p.fine) if scattered else (p.fine, p.coarse)
    return tuple(Axis(i, o, k, s, d, pad, scattered) for i, o, k, s, d, pad in zip(source, output, p.k, p.s, p.d, p.p))


def window_of(p: Problem, st: Statement) -> Window:
    """The window with the strides that A has in memory."""
    if not isinstance(p, Conv):
        raise ConfigError("realise", "--realise=indirection: a matrix product has no pixels; legal are peel and mask")
    return Window(window_axes(p), pixel_strides(st.a.layout, p.rank))


def pixel_strides(layout: Layout, rank: int) -> tuple[int, ...]:
    """Elements between neighbours along each spatial axis, which come last among the dims."""
    found = []
    for dim in range(len(layout.shape) - rank, len(layout.shape)):
        blocks = [b for b in layout.blocks if b.dim == dim]
        if len(blocks) > 1:
            raise ConfigError("realise", f"--realise=indirection: {layout} has blocks along pixels; legal is mask")
        found.append(blocks[0].stride)
    return tuple(found)
