"""Plots of pages, in the colours of the page: a roofline with kernels as dots."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from convsmith.measure.roofline import Roofline

__all__ = ["ABOVE", "EFFECTIVE", "MARKERS", "Dot", "figure", "roofline_figure"]

_INK = "#123456"
"""Colour of text and axes in matplotlib; the page replaces it by the colour of its text."""
MARKERS = "os^Dv*PX"
"""Markers by kind of dot, so that a plot can be read without colours."""


EFFECTIVE = "effective operations"
"""Word for rates of kernels with transforms, which multiply less often than the direct sum."""
ABOVE = (
    "Winograd transforms multiply less than the direct sum, whose operations are counted (effective operations): their "
    "dots may lie above the roof."
)
"""The explanation of dots above the roof."""


class Dot(NamedTuple):
    """A kernel: operations per byte, and 1e9 operations per second."""

    intensity: float
    rate: float


def figure(size: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """Return a plot as SVG in the colours of the page; `draw` fills the figure of matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
        "svg.fonttype": "none", "svg.hashsalt": "convsmith", "font.size": 9.0,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        made = Figure(figsize=size, layout="constrained")
        draw(made)
        text = io.StringIO()
        made.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")


def roofline_figure(roof: Roofline, dots: Mapping[str, Sequence[Dot]], unit: str) -> str:
    """Return the bounds of `roof` by bandwidth and by multiply-adds, with the `dots` of each name, as SVG."""

    def draw(made: Any) -> None:
        axes = made.subplots()
        every = [roof.intensity, *(dot.intensity for some in dots.values() for dot in some)]
        peak = roof.peak.rate if roof.peak is not None else None
        corner = (peak or roof.bound) / roof.read.rate
        low, high = min(*every, corner) / 4, max(*every, corner) * 4
        ends = [low, corner, high] if peak else [low, high]
        heights = [min(x * roof.read.rate, peak or float("inf")) for x in ends]
        axes.plot(ends, heights, color=_INK, linewidth=1.5)
        axes.annotate(f"{roof.read.rate:.0f} GB/s from {roof.level}", (low, heights[0]), va="bottom", rotation=0)
        if peak:
            axes.annotate(f"{peak:.0f} {unit}", (high, peak), ha="right", va="bottom")
        for marker, (name, some) in zip(MARKERS, dots.items()):
            axes.plot(*zip(*some), marker, label=name, markersize=8)
        axes.axvline(roof.intensity, color=_INK, linewidth=0.5, linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel=unit)
        if dots:
            axes.legend(loc="best", framealpha=0)

    return figure((6, 3.6), draw)
