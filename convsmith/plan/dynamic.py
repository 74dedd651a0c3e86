"""Problems some of whose sizes are known at the call only: which sizes these are, and the plan of their kernel.

Ends of loops, and strides of arrays, that depend on such sizes are sizes of the kernel. Where taps meet borders, a
kernel reads its source through a table of pointers (`plan/dynamic_table.py`), or the masks of its views take extents
and pads as sizes (``--realise=mask``). The kernel is compiled from a representative problem (`general`), whose sizes
are placeholders, so lines that differ only in sizes share one kernel.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError, UnsupportedError
from convsmith.ir.index import Var, as_index
from convsmith.passes.generalise import Place, generalise
from convsmith.passes.manager import Step
from convsmith.plan.config import Config
from convsmith.plan.dynamic_table import section_sizes, table_steps
from convsmith.plan.loops import SymbolicSizes
from convsmith.problem.conv import Conv
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.statement.statement import Statement
from convsmith.statement.views import IMAGES, end, front_pad

_EXTENT = 64
"""Extent of each symbolic dim in the representative problem."""


def check_dynamic(p: Problem) -> Problem:
    """Return ``p``; UnsupportedError, which says why, where no kernel takes its sizes at the call."""
    why = ""
    if isinstance(p, Conv) and p.depthwise is not None:
        why = "has a fused depthwise convolution; supported are other post-ops"
    elif isinstance(p, Matmul) and p.bits != (8, 8):
        why = f"has entries of {p.bits[0]} and {p.bits[1]} bits, which are made while packing; supported are 8 and 8"
    elif not isinstance(p, Conv | Matmul):
        why = "is a micro-kernel; supported are convolutions, deconvolutions, their gradients, and matrix products"
    else:
        for t in varying(p):
            fixed = {dim for dim, name in enumerate(t.dims) if name not in symbolic_dims(p)}
            if any(_blocks(t, dim) > 1 for dim in range(len(t.shape)) if dim not in fixed) or ":" in t.tag:
                legal = "of channels" if isinstance(p, Conv) else "of n and k"
                why = f"has {t.name} in the layout {t.layout}; supported are tags with blocks {legal} alone"
    if why:
        raise UnsupportedError(f"dynamic sizes: {p} {why}", code="dynamic")
    return p


def symbolic_dims(p: Problem) -> tuple[str, ...]:
    """Return the dims whose sizes are known at the call: batch and pixels, or rows and the batch of the source."""
    if isinstance(p, Matmul):
        return (*(f"b{n}" for n, size in enumerate(p.wei[:-2]) if size == 1), "m")
    assert isinstance(p, Conv)
    return (IMAGES, *(f"o{a}" for a in p.axes), *(f"i{a}" for a in p.axes))


def through_table(p: Problem) -> bool:
    """Whether ``p`` may read pixels through a table: it is no matrix product, and its result has pixels."""
    return isinstance(p, Conv) and not p.dir.startswith("BWD_W")


def at_sizes(p: Conv, mb: int, i: tuple[int, ...], o: tuple[int, ...], fronts: tuple[int, ...]) -> Conv:
    """Return the problem with the sizes and front pads of a call."""
    return replace(p, mb=mb, i=i, o=o, p=fronts, name=None)


def general(p: Problem, extent: int = _EXTENT) -> Problem:
    """Return the representative problem, without pads; it is equal for all problems that share a kernel."""
    if isinstance(p, Matmul):
        symbolic = symbolic_dims(p)
        names = (*(f"b{n}" for n in range(p.rank - 2)), "m", "k")
        src = tuple(extent if name in symbolic else size for name, size in zip(names, p.src))
        return replace(p, src=src, name=None)
    assert isinstance(p, Conv)
    coarse = (extent,) * p.rank
    fine = tuple((extent - 1) * s + keff for s, keff in zip(p.s, p.keff))
    i, o = (coarse, fine) if p.deconv else (fine, coarse)
    return at_sizes(p, extent, i, o, (0,) * p.rank)


def symbolic_sizes(p: Problem, st: Statement, config: Config) -> SymbolicSizes:
    """Return how the kernel of ``st``, a statement of ``p``, takes its sizes; ConfigError where it cannot."""
    loops = frozenset(d.name for d in st.dims) & set(symbolic_dims(p))
    if st.when == "main":
        _check_config(p, st, config, loops)
    if st.when == "main" and config.realise == "indirection":
        assert isinstance(p, Conv)
        step = _general_step(p, st, loops, section_sizes(p.axes), st.a.name)
        return SymbolicSizes(loops, (step, *table_steps(st, places(p, st.a.name))))
    return SymbolicSizes(loops, (_general_step(p, st, loops),))


def _check_config(p: Problem, st: Statement, config: Config, loops: frozenset[str]) -> None:
    """Raise ConfigError, which names the words of ``config``, where a kernel of it does not serve all sizes."""
    row = st.of("m")[-1].name
    legal = ("indirection", "mask") if through_table(p) else ("mask",) if isinstance(p, Conv) else ("peel", "mask")
    table = config.realise == "indirection"
    tiled = {name for name, size in config.register if size > 1} & loops
    moving = [t.name for t in varying(p) if t.name in config.pack]
    wrong = [
        text
        for text, is_so in (
            (f"--realise={config.realise}", config.realise not in legal),
            (f"--table={config.table}", table and config.table != "sections"), ("--fuse", config.fuse),
            ("--split", config.split), ("--cache", config.cache), ("--phases", config.phases),
            (f"--pack={','.join(moving)}", moving), (f"--lane={config.lane}", config.lane in loops),
            (f"--register={','.join(sorted(tiled))}", tiled - {row}),
        ) if is_so
    ]  # fmt: skip
    if wrong:
        tile = f"a tile of {row} at most" if row in loops else "no tile"
        raise ConfigError(
            "dynamic", f"{' '.join(wrong)}: dynamic sizes need --realise={' or '.join(legal)}, lanes along channels "
            f"and, of {', '.join(d.name for d in st.dims if d.name in loops)}, {tile}",
        )  # fmt: skip


# -- sizes
def varying(p: Problem) -> list[Tensor]:
    """Return the tensors whose shapes depend on the sizes of a call."""
    pairs = zip(general(p).tensors, general(p, _EXTENT + 1).tensors)
    return [a for a, b in pairs if a.shape != b.shape]


def _blocks(t: Tensor, dim: int) -> int:
    return sum(b.dim == dim for b in t.layout.blocks)


def places(p: Problem, name: str) -> tuple[Place, ...]:
    """Return the blocks of a tensor's layout; a stride that depends on the sizes of a call is a size of the kernel."""
    layouts = (general(p, extent).tensor(name).layout.blocks for extent in (_EXTENT, _EXTENT + 1))
    strides = (
        as_index(a.stride) if a.stride == b.stride else Var(f"{name}_s{n}") for n, (a, b) in enumerate(zip(*layouts))
    )
    return tuple((b.dim, b.size, s) for b, s in zip(general(p).tensor(name).layout.blocks, strides))


def size_values(q: Problem) -> dict[str, int]:
    """Return the sizes that any kernel may take, by name, at ``q``, the problem of a call."""
    found = {end(name).name: q.dims[name] for name in symbolic_dims(q)}
    for t in q.tensors:
        found |= {f"{t.name}_s{n}": b.stride for n, b in enumerate(t.layout.blocks)}
    if isinstance(q, Conv):
        found |= {front_pad(a).name: pad for a, pad in zip(q.axes, q.p)}
    return found


def _general_step(
    p: Problem, st: Statement, loops: frozenset[str], more: tuple[Var, ...] = (), pointed: str = ""
) -> Step:
    """Return the rewrite that makes the ends of ``loops`` and the strides of arrays sizes, before ``more``.

    The source that is ``pointed`` at by a table keeps its own strides until then.
    """
    names = [name for name in symbolic_dims(p) if name in loops]
    ends = {name: end(name) for name in names}
    layout = st.c.layout
    if layout.padded_shape != layout.shape:  # a nest of its own writes zeros to what blocks of channels add
        dims = p.tensor(st.c.name).dims
        ends |= {f"pad{dims.index(name)}": end(name) for name in names if name in dims}
    read = {t.name for t in p.tensors} if st.when == "main" else {v.name for v in (*st.factors, st.c)}
    blocks = {t.name: places(p, t.name) for t in varying(p) if t.name in read}
    strides = (stride for found in blocks.values() for _, _, stride in found if isinstance(stride, Var))
    sizes = (*map(end, names), *strides, *more)
    arrays = tuple((name, () if name == pointed else found) for name, found in blocks.items())
    return Step(generalise, tuple(ends.items()), arrays, sizes)
