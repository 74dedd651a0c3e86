"""Forward convolutions whose batch, extents and pads are known at the call only: one kernel, reading through a table.

Everything that depends on them is a size of the kernel: ends of loops, strides, and where the sections of the table
lie.  What stays are channels, kernel, strides and dilations of the window.
"""

from __future__ import annotations

import math

from convsmith.build.indirect import pointers
from convsmith.build.loops import Unit, check_config, loops_after_fusing
from convsmith.build.schedule import schedule
from convsmith.build.statement import statement
from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.ir.index import Index, Var, as_index, is_false, maximum, minimum, product
from convsmith.ir.types import PTR
from convsmith.layout.indirection import Axis, Window, input_stride, shape_of
from convsmith.layout.layout import Layout
from convsmith.layout.view import Statement
from convsmith.passes import indirect as rewrite
from convsmith.passes.generalise import generalise
from convsmith.passes.manager import Step
from convsmith.passes.pieces import pieces
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.target.base import Target

TABLE = "src_table"


SIZES_OF_ALL = ("mb_end", "src_image", "dst_image")


def check_dynamic(p: Problem) -> Conv:
    """The problem, or UnsupportedError that says why it has no kernel of this kind."""
    why = ""
    if not isinstance(p, Conv) or not p.forward or p.deconv:
        why = "is a gradient, a deconvolution or a matrix product; supported are forward convolutions"
    elif any(x != Layout.parse("axb", x.shape) for x in (p.src_layout, p.dst_layout)):
        why = "has other layouts than channels last; supported are src_tag='axb', dst_tag='axb'"
    elif p.wei_layout != Layout.parse("any", p.wei_shape):
        why = f"has weights in the layout {p.wei_layout}; supported is plain order"
    elif p.depthwise is not None or any(t.default is None and t.name not in ARRAYS for t in p.tensors):
        why = (
            f"has arrays besides {', '.join(ARRAYS)}; supported are post-ops without an operand, and scales with values"
        )
    elif statement(p).shifted:
        why = "has zero points of source or weights; supported are types without them"
    elif is_false(statement(p).a.mask):
        why = "meets no pixel with any tap at the sizes given; expected sizes of some image"
    if why:
        raise UnsupportedError(f"dynamic sizes: {p} {why}", code="dynamic")
    assert isinstance(p, Conv)
    return p


ARRAYS = ("src", "wei", "bia", "dst")


def dynamic_config(p: Conv, target: Target) -> Config:
    """Vectors of output channels, or of groups where each has one; as many pixels of a row as registers hold."""
    st = statement(p, target)
    lane = "g" if p.g > 1 and p.ic == p.oc == p.g else st.n
    extent = next(d.size for d in st.dims if d.name == lane)
    *_, unit = Unit.choices(st, target)
    terms = ((st.reduce[-1], unit.terms),) if unit.dot and lane == st.n else ()
    lanes = unit.lanes
    row = f"o{p.axes[-1]}"
    order = tuple(d.name for d in st.dims if d.kind != "k" and d.name not in (lane, row))
    for vectors, pixels in ((4, 6), (2, 12), (2, 6), (2, 5), (2, 4), (1, 12), (1, 6), (1, 4), (1, 1)):
        if lane == "g" and pixels > 4:
            continue  # nothing is shared between pixels but weights
        config = Config(
            target.isa, lane, tile=((row, pixels), (lane, vectors * lanes)),
            order=(*order, lane, row), reduce=st.reduce, terms=terms, realise="indirection",
        )  # fmt: skip
        unit = Unit.of(st, target, config)
        if extent <= (vectors - 1) * unit.lanes:
            continue
        try:
            check_config(loops_after_fusing(st, config), config, target, unit)
        except ConfigError:
            continue
        return config
    raise UnsupportedError(f"dynamic sizes: no config of {p} fits the registers of {target.isa}", code="dynamic")


def dynamic_steps(p: Conv, config: Config, target: Target) -> list[Step]:
    """The rewrites of the problem at the sizes that its line has, made general before anything else."""
    st = statement(p, target)
    row = f"o{p.axes[-1]}"
    general = {"mb", *(f"o{a}" for a in p.axes)}
    tiled = {name for name, size in config.tile if size > 1} & general
    wrong = [
        text
        for text, is_so in (
            (f"--realise={config.realise}", config.realise != "indirection"), (f"--table={config.table}",
            config.table != "sections"), ("--fuse", config.fuse), ("--split", config.split),
            ("--block", config.block),
            (f"--threads={config.threads}", config.threads > 1), (f"--lane={config.lane}", config.lane in general),
            (f"--tile={','.join(sorted(tiled))}", tiled - {row}),
        ) if is_so
    ]  # fmt: skip
    if wrong:
        raise ConfigError(
            "dynamic", f"{' '.join(wrong)}: dynamic sizes need --realise=indirection, one thread, lanes along channels "
            f"and, of mb and the pixels, a tile of {row} at most",
        )  # fmt: skip
    _, *steps = schedule(st, config, target)
    width = config.size(row)
    out = [_general_step(p), _pointer_step(p, st)]
    for step in steps:
        if step.name == "partition" and width > 1:
            out.append(Step(pieces, f"{row}.o", "", f"{row}.i", (width, width, width)))
        out.append(step)
    return out


def sizes_of(p: Conv) -> tuple[Var, ...]:
    """The sizes of the kernel, in order."""
    names = [*SIZES_OF_ALL, *(f"o{a}_end" for a in p.axes)]
    for a in p.axes[:-1]:
        names += [f"dst_{a}", f"low_{a}", f"high_{a}", f"row_{a}", f"step_{a}"]
    return tuple(map(Var, names))


def dynamic_window(p: Conv, i: tuple[int, ...], o: tuple[int, ...], pads: tuple[int, ...]) -> Window:
    """The window over an image of these extents."""
    axes = tuple(Axis(*sizes) for sizes in zip(i, o, p.k, p.s, p.d, pads))
    strides = [p.ic]
    for extent in reversed(i[1:]):
        strides.append(strides[-1] * extent)
    return Window(axes, tuple(reversed(strides)))


def size_values(p: Conv, mb: int, w: Window) -> dict[str, int]:
    """What the sizes are for images of a window."""
    extents, outputs = [a.i for a in w.axes], [a.o for a in w.axes]
    found = {"mb_end": mb, "src_image": math.prod(extents) * p.ic, "dst_image": math.prod(outputs) * p.oc}
    found |= {f"o{letter}_end": size for letter, size in zip(p.axes, outputs)}
    _, length = shape_of(w, "sections")
    rows = [a.sections.rows for a in w.axes[:-1]]
    for n, (letter, axis, stride) in enumerate(zip(p.axes[:-1], w.axes, w.strides)):
        s = axis.sections
        low, high = (s.low, s.high) if s.low < s.high else (axis.o, axis.o + 1)
        found[f"dst_{letter}"] = math.prod(outputs[n + 1 :]) * p.oc
        found[f"low_{letter}"], found[f"high_{letter}"] = low, high
        found[f"row_{letter}"] = math.prod(rows[n + 1 :]) * length
        found[f"step_{letter}"] = axis.s * stride
    return found


def _pointer_step(p: Conv, st: Statement) -> Step:
    """Read the source through the table, its rows where the sizes say."""
    own = pointers(st, "sections")
    place: Index = as_index(0)
    moved: Index = product(Var("mb"), Var("src_image"))
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


def _general_step(p: Conv) -> Step:
    rows = [Var(f"dst_{a}") for a in p.axes[:-1]]
    dst: tuple[Index, ...] = (Var("dst_image"), as_index(1), *rows, as_index(p.oc))
    ends = tuple((name, Var(f"{name}_end")) for name in ("mb", *(f"o{a}" for a in p.axes)))
    return Step(generalise, ends, (("src", ()), ("dst", dst)), sizes_of(p))
