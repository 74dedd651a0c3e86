"""Forward convolutions with batch, extents and pads known only at the call: one kernel, which reads through a pointer
table.

Loop ends, strides and the positions of the table's sections are sizes of the kernel.  Channels, kernel, strides and
dilations are constants.  The kernel is compiled from a representative problem (`general`), whose sizes are
placeholders, so lines that differ only in sizes share one kernel.
"""

from __future__ import annotations

import math
from dataclasses import replace

from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.ir.index import Index, Var, as_index, maximum, minimum, product
from convsmith.ir.types import PTR
from convsmith.layout.indirection import Window, input_stride, shape_of
from convsmith.passes import indirect as rewrite
from convsmith.passes.generalise import Place, generalise
from convsmith.passes.manager import Step
from convsmith.plan.config import Config
from convsmith.plan.loops import SymbolicSizes
from convsmith.plan.pointers import Pointers, pointers
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.statement.epilogue import SOURCE_SUMS
from convsmith.statement.statement import Statement
from convsmith.statement.views import IMAGES, statement

TABLE = "src_table"

_EXTENT = 64
"""Extent of the representative problem's result along each axis."""


def check_dynamic(p: Problem) -> Conv:
    """Return the problem. UnsupportedError, with the reason, if it has no kernel of this kind."""
    why = ""
    if not isinstance(p, Conv) or not p.forward or p.deconv:
        why = "is a gradient, a deconvolution or a matrix product; supported are forward convolutions"
    elif p.depthwise is not None:
        why = "has a fused depthwise convolution; supported are other post-ops"
    else:
        for t in _varying(p):
            blocks = [t.dims[dim] for dim in range(len(t.shape)) if dim != 1 and _blocks(t, dim) > 1]
            if blocks or ":" in t.tag:
                why = f"has {t.name} in the layout {t.layout}; supported are tags with blocks of channels alone"
    if why:
        raise UnsupportedError(f"dynamic sizes: {p} {why}", code="dynamic")
    assert isinstance(p, Conv)
    return p


def at_sizes(p: Conv, mb: int, i: tuple[int, ...], o: tuple[int, ...], fronts: tuple[int, ...]) -> Conv:
    """Return the problem with the sizes and front pads of a call."""
    return replace(p, mb=mb, i=i, o=o, p=fronts, name=None)


def general(p: Conv, extent: int = _EXTENT) -> Conv:
    """Return the representative problem, without pads; it is equal for all problems that share a kernel."""
    i = tuple((extent - 1) * s + keff for s, keff in zip(p.s, p.keff))
    return at_sizes(p, extent, i, (extent,) * p.rank, (0,) * p.rank)


def symbolic_sizes(p: Conv, st: Statement, config: Config) -> SymbolicSizes:
    """Return how a kernel for ``p``, whose main statement is ``st``, takes its sizes; ConfigError where it cannot."""
    row = f"o{p.axes[-1]}"
    outputs = {IMAGES, *(f"o{a}" for a in p.axes)}
    tiled = {name for name, size in config.register if size > 1} & outputs
    wrong = [
        text
        for text, is_so in (
            (f"--realise={config.realise}", config.realise != "indirection"), (f"--table={config.table}",
            config.table != "sections"), ("--fuse", config.fuse), ("--split", config.split),
            ("--cache", config.cache), (f"--lane={config.lane}", config.lane in outputs),
            (f"--register={','.join(sorted(tiled))}", tiled - {row}),
        ) if is_so
    ]  # fmt: skip
    if wrong:
        raise ConfigError(
            "dynamic", f"{' '.join(wrong)}: dynamic sizes need --realise=indirection, lanes along channels and, of mb "
            f"and the pixels, a tile of {row} at most",
        )  # fmt: skip
    if any(view.name == SOURCE_SUMS for view in st.sums):
        raise ConfigError(
            "dynamic", "--offsets=sums: zero points of weights, and flipped weights, need sums of the source, which "
            "kernels with dynamic sizes do not make; legal is --offsets=each",
        )  # fmt: skip
    return SymbolicSizes(frozenset(outputs), (_general_step(p), _pointer_step(p, st), *_pixel_steps(p, st)))


# -- sizes
def _varying(p: Conv) -> list[Tensor]:
    """Return the tensors whose shapes depend on the sizes of a call."""
    pairs = zip(general(p).tensors, general(p, _EXTENT + 1).tensors)
    return [a for a, b in pairs if a.shape != b.shape]


def _blocks(t: Tensor, dim: int) -> int:
    return sum(b.dim == dim for b in t.layout.blocks)


def _places(p: Conv, name: str) -> tuple[Place, ...]:
    """Return the blocks of a tensor's layout; a stride that depends on the sizes of a call is a size of the kernel."""
    layouts = (general(p, extent).tensor(name).layout.blocks for extent in (_EXTENT, _EXTENT + 1))
    strides = (
        as_index(a.stride) if a.stride == b.stride else Var(f"{name}_s{n}") for n, (a, b) in enumerate(zip(*layouts))
    )
    return tuple((b.dim, b.size, s) for b, s in zip(general(p).tensor(name).layout.blocks, strides))


def sizes_of(p: Conv) -> tuple[Var, ...]:
    """Return the names of the kernel's sizes, in order."""
    sizes = [Var("mb_end"), *(Var(f"o{a}_end") for a in p.axes)]
    for t in _varying(p):
        sizes += [stride for _, _, stride in _places(p, t.name) if isinstance(stride, Var)]
    for a in p.axes[:-1]:
        sizes += map(Var, (f"low_{a}", f"high_{a}", f"row_{a}", f"step_{a}"))
    return tuple(sizes)


def size_values(q: Conv, window: Window) -> dict[str, int]:
    """Return the values of the sizes, and others, for the problem at the sizes of a call, with the window over its
    source.
    """
    values = {"mb_end": q.mb} | {f"o{a}_end": size for a, size in zip(q.axes, q.o)}
    for t in q.tensors:
        values |= {f"{t.name}_s{n}": b.stride for n, b in enumerate(t.layout.blocks)}
    _, length = shape_of(window, "sections")
    rows = [a.sections.rows for a in window.axes[:-1]]
    for n, (letter, axis, stride) in enumerate(zip(q.axes[:-1], window.axes, window.strides)):
        s = axis.sections
        low, high = (s.low, s.high) if s.low < s.high else (axis.o, axis.o + 1)
        values[f"low_{letter}"], values[f"high_{letter}"] = low, high
        values[f"row_{letter}"] = math.prod(rows[n + 1 :]) * length
        values[f"step_{letter}"] = axis.s * stride
    return values


def call_pointers(q: Conv) -> Pointers:
    """Return the pointer table of the problem at the sizes of a call, and its zero buffer."""
    return pointers(statement(q), "sections")


# -- rewrites
def _general_step(p: Conv) -> Step:
    """Return the rewrite that replaces loop ends and strides by sizes; the source keeps its own until it is read by
    pointers.
    """
    ends = {IMAGES: Var("mb_end"), **{f"o{a}": Var(f"o{a}_end") for a in p.axes}}
    layout = p.dst_layout
    if layout.padded_shape != layout.shape:  # a nest of its own writes zeros to what blocks of channels add
        ends |= {f"pad{n}": end for n, end in zip((0, *range(2, 2 + p.rank)), tuple(ends.values()))}
    arrays = [(t.name, () if t.name == "src" else _places(p, t.name)) for t in _varying(p)]
    return Step(generalise, tuple(ends.items()), tuple(arrays), sizes_of(p))


def _pointer_step(p: Conv, st: Statement) -> Step:
    """Return the rewrite that reads the source through the table, whose rows the sizes locate."""
    own = pointers(st, "sections")
    place: Index = as_index(0)
    moved: Index = product(Var(IMAGES), next(stride for dim, _, stride in _places(p, "src") if dim == 0))
    for a in p.axes[:-1]:
        y, low, last = Var(f"o{a}"), Var(f"low_{a}"), Var(f"high_{a}") - 1
        below = maximum(y - last, 0)
        inside = minimum(maximum(y, low), last) - low - product(minimum(below, 1), last - low)
        place = place + product(minimum(y, low) + below, Var(f"row_{a}"))
        moved = moved + product(inside, Var(f"step_{a}"))
    stride = input_stride(own.window, "sections")
    columns = [*p.axes[-1:], *p.axes[:-1]]
    apart, within = 1, {}
    for a in reversed(columns):
        within[a] = apart
        apart *= p.dims["k" + a]
    place = place + Var(f"o{p.axes[-1]}") * stride
    for a in p.axes:
        place = place + Var("k" + a) * within[a]
    table = make_buffer(TABLE, PTR, (UNKNOWN,))
    return Step(rewrite.indirect, st.a.name, table, own.zero, (place,), moved)


def _pixel_steps(p: Conv, st: Statement) -> list[Step]:
    """Return the rewrites that make the distance of a pixel's channels a size, if the layout has one."""
    places = tuple((0, size, stride) for dim, size, stride in _places(p, "src") if dim == 1)
    if all(stride.is_const for _, _, stride in places):
        return []
    return [Step(generalise, (), ((f"{st.a.name}_at", places), (f"{st.a.name}_0", places)), ())]
