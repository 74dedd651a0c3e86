"""Problems some of whose sizes are known only at the call: their symbolic sizes, and the plan of their kernel.

Ends of loops and strides of arrays that depend on these sizes are sizes of the kernel. If taps read padding, a kernel
reads its source through a table of pointers (`schedule/dynamic_table.py`), or the masks of its views take extents and
pads as sizes (``--realise=mask``). The kernel is compiled from a representative problem (`general`), whose sizes are
placeholders, so lines that differ only in sizes share one kernel. The stages of a chain run one after the other, each
as a kernel with its own sizes. They are not fused, because rows of fused stages would be in private memory, whose size
is a constant of the code, while the length of a row is known only at the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from convsmith.diag.errors import ConfigError, UnsupportedError, UsageError
from convsmith.ir.index import Var, as_index
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.passes.generalise import Place, generalise
from convsmith.passes.manager import Step
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic_table import section_sizes, table_steps
from convsmith.schedule.joined_rows import PixelRows
from convsmith.schedule.loops import SymbolicSizes, fused_dims, fused_name
from convsmith.statement.fused import FusedStatements, suffix
from convsmith.statement.statement import Statement
from convsmith.statement.views import IMAGES, end, front_pad, reads_windows, statement

MAX_EVEN_TILES = 2
"""Maximum number of tiles of rows of equal height in an image; in more tiles, few rows lie beyond the image."""
_EXTENT = 64
"""Extent of each symbolic dim in the representative problem."""


def check_dynamic(p: Problem) -> Problem:
    """Return ``p``; UnsupportedError, with the reason, if no kernel takes its sizes at the call."""
    why = ""
    if p.workspace is not None:
        why = "bounds the memory of a kernel; supported is that of kernels with fixed sizes"
    elif isinstance(p, Chain):
        for stage in p.stages:
            check_dynamic(stage)
        why = _why_fixed(p)
    elif isinstance(p, Conv) and p.depthwise is not None:
        why = "has a fused depthwise convolution; supported are other post-ops, and the two as stages of a chain"
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


def _why_fixed(p: Chain) -> str:
    """Return the reason why the sizes of a call do not determine the sizes of all stages; empty if they do."""
    for n, (one, two) in enumerate(pairwise(p.stages), start=1):
        written, read = one.outputs[0], two.tensor("src")
        free, taken = ([x in symbolic_dims(q) for x in t.dims] for q, t in ((one, written), (two, read)))
        if free != taken:
            return f"has a dim in stage {n + 1} whose size is fixed, and free in stage {n}; supported are equal ones"
    try:
        general(p)
    except UsageError:
        return "adds its source to a result of another shape if front pads stand at both ends; supported are equal ones"
    return ""


def symbolic_dims(p: Problem) -> tuple[str, ...]:
    """Return the dims whose sizes are known only at the call: batch and pixels, or rows and the batch of the source;
    for a chain, the dims of its first stage.
    """
    if isinstance(p, Chain):
        return symbolic_dims(p.stages[0])
    if isinstance(p, Matmul):
        return (*(f"b{n}" for n, size in enumerate(p.wei[:-2]) if size == 1), "m")
    assert isinstance(p, Conv)
    return (IMAGES, *(f"o{a}" for a in p.axes), *(f"i{a}" for a in p.axes))


def through_table(p: Problem) -> bool:
    """Return whether ``p`` may read pixels through a table: it is not a matrix product, and its result has pixels."""
    return isinstance(p, Conv) and not p.dir.startswith("BWD_W")


def serves_unpadded(p: Problem, config: Config) -> bool:
    """Return whether the kernel of ``p`` under ``config``, whose sizes are known at the call, serves calls without pads
    alone. A variant serves the other calls (`schedule/call_variants.py`).
    """
    return isinstance(p, Conv) and config.realise == "peel"


def at_sizes(p: Conv, mb: int, i: tuple[int, ...], o: tuple[int, ...], fronts: tuple[int, ...]) -> Conv:
    """Return the problem with the sizes and front pads of a call."""
    return replace(p, mb=mb, i=i, o=o, p=fronts, name=None)


def general(p: Problem, extent: int = _EXTENT) -> Problem:
    """Return the representative problem; it is equal for all problems that share a kernel.

    It has no pads, except in a chain, whose pads are the same at each call.
    """
    if isinstance(p, Chain):
        return _general_chain(p, extent)
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


def _general_chain(p: Chain, extent: int) -> Chain:
    """Return the chain with a result of ``extent`` pixels; each earlier stage has the pixels that its successor reads.
    """
    fewest = extent + 2 * sum(pad for stage in p.stages if isinstance(stage, Conv) for pad in stage.p)
    o: tuple[int, ...] = (fewest,) * p.rank
    stages: list[Problem] = []
    for stage in reversed(p.stages):
        if isinstance(stage, Conv):
            i = tuple((o - 1) * s + keff - 2 * pad for o, s, keff, pad in zip(o, stage.s, stage.keff, stage.p))
            stages.insert(0, at_sizes(stage, fewest, i, o, stage.p))
            o = i
        else:
            stages.insert(0, general(stage, fewest))
    return replace(p, stages=tuple(stages), name=None)


def has_lanes_along_rows(p: Problem, threads: int) -> bool:
    """Return whether vectors of a kernel of ``p`` may run along the pixels of a row, which no threads share."""
    return isinstance(p, Conv) and (threads == 1 or p.rank > 1)


def has_masked_pixels(st: Statement, target: Machine) -> bool:
    """Return whether vectors of pixels may have masks that depend on the sizes of a call: the machine has masked
    accesses to elements of all types.
    """
    least = min(dtype(view.dtype).bits for view in (*st.factors, st.c))
    plain = target.device is None and target.head_load is None and not target.vectors.scalable
    return plain and 0 < 8 * target.masked_bytes <= least


def even_tile(pixels: int, tile: int) -> int:
    """Return the pixels of each of the about equal tiles that cover ``pixels``, if tiles of ``tile`` pixels, which are
    computed whole, would be two at most; otherwise ``tile``.
    """
    count = -(-pixels // tile)
    return max(-(-pixels // count), min(tile, 2)) if count <= MAX_EVEN_TILES else tile


def symbolic_sizes(p: Problem, st: Statement, config: Config) -> SymbolicSizes:
    """Return how the kernel of ``st``, a statement of ``p``, takes its sizes; ConfigError if it cannot."""
    loops = frozenset(d.name for d in st.dims) & set(symbolic_dims(p))
    if st.when == "main":
        _check_config(p, st, config, loops, ("peel",) if isinstance(p, Conv) and reads_windows(p) else ())
    read = {t.name for t in p.tensors} if st.when == "main" else {v.name for v in (*st.factors, st.c)}
    return _symbolic_sizes(p, st, config, "", {name: places(p, name) for name in varying_names(p) if name in read})


def symbolic_stage(kernel: FusedStatements, n: int, config: Config) -> SymbolicSizes:
    """Return how the ``kernel`` of stage ``n`` of a chain takes its sizes; ConfigError if it cannot."""
    p, st = kernel.stages.problems[n], kernel.own[n - kernel.start]
    _check_config(p, st, config, frozenset(d.name for d in st.dims) & set(symbolic_dims(p)), ())
    whole = kernel.stages.whole
    found = {name: places(whole, name, n) for name in varying_names(whole, n)}
    return _symbolic_sizes(p, kernel.renamed(n), config, suffix(n), found)


def _symbolic_sizes(
    p: Problem, st: Statement, config: Config, suffix: str, found: Mapping[str, tuple[Place, ...]]
) -> SymbolicSizes:
    """Return how the kernel of ``st`` takes its sizes; ``found`` are the blocks of its arrays. Names of its loops are
    the names of the dims of ``p`` followed by ``suffix``.
    """
    ends = {d: end(d) for d in symbolic_dims(p) if any(x.name == d + suffix for x in st.dims)}
    loops = frozenset(d + suffix for d in ends)
    if config.realise == "indirection":
        assert isinstance(p, Conv)
        step = _general_step(p, st, ends, suffix, found, section_sizes(p.axes), st.a.name)
        return SymbolicSizes(loops, (step, *table_steps(st, found[st.a.name])))
    return SymbolicSizes(loops, (_general_step(p, st, ends, suffix, found),))


def _check_config(
    p: Problem, st: Statement, config: Config, loops: frozenset[str], unpadded: tuple[str, ...]
) -> None:  # fmt: skip
    """Raise ConfigError, which names the words of ``config``, if a kernel of that config does not serve all sizes, or
    all without pads if its realisation is ``unpadded``.
    """
    row = st.of("m")[-1].name
    legal = ("indirection", "mask") if through_table(p) else ("mask",) if isinstance(p, Conv) else ("peel", "mask")
    legal = (*legal, *unpadded)
    table = config.realise == "indirection"
    along = {row} if has_lanes_along_rows(p, config.threads) and not table else set()
    in_place = isinstance(p, Conv) and is_pointwise(p) and config.realise == "peel"
    near = {(st.a.name, n) for n in ({row} if table else along & {config.lane}) if table or in_place}
    several = {name for name, size in config.tiles_at("register") if size > 1}
    tiled = several & loops
    rows = {d.name for d in st.of("m") if d.axis} if config.realise == "mask" else {row}
    cut = {d.axis for d in st.of("m") if d.name in tiled}
    if cut and config.realise == "mask":  # taps of other axes run as far as the source does
        tiled |= {d.name for d in st.of("k") if d.sort == "taps" and d.axis not in cut} & several
    fused = {n for a, b in config.fuse for n in fused_dims(config, fused_name(a, b))}
    moving = [t.name for t in varying(p) if t.name in config.staged("pack")]
    wrong = [
        text
        for text, is_so in (
            (f"--realise={config.realise}", config.realise not in legal),
            (f"--table={config.table}", table and config.table != "sections"), ("--fuse", fused & loops),
            ("--split", config.tiles_at("split")), ("--cache", config.tiles_at("cache")), ("--phases", config.phases),
            (f"--pack={','.join(moving)}", moving), ("--pack_at", set(config.staged_at("pack_at")) - near),
            (f"--lane={config.lane}", config.lane in loops - along),
            (f"--register={','.join(sorted(tiled))}", tiled - rows),
        ) if is_so
    ]  # fmt: skip
    if wrong:
        tile = f"a tile of {row} at most" if row in loops else "no tile"
        lanes = f"lanes along channels or {row}" if along else "lanes along channels"
        lanes += "".join(f", --pack_at={name}+{n} alone" for name, n in near)
        raise ConfigError(
            "dynamic", f"{' '.join(wrong)}: dynamic sizes need --realise={' or '.join(legal)}, {lanes}, and, of "
            f"{', '.join(d.name for d in st.dims if d.name in loops)}, {tile}",
        )  # fmt: skip


# -- sizes
def varying(p: Problem) -> list[Tensor]:
    """Return the tensors whose shapes depend on the sizes of a call."""
    pairs = zip(general(p).tensors, general(p, _EXTENT + 1).tensors)
    return [a for a, b in pairs if a.shape != b.shape]


def _blocks(t: Tensor, dim: int) -> int:
    return sum(b.dim == dim for b in t.layout.blocks)


def kernel_arrays(p: Problem, n: int = 0) -> dict[str, Tensor]:
    """Return the tensors of the kernel of ``p``, or of its stage ``n``, by their names there."""
    stages = stages_of(p)
    if stages is None:
        return {t.name: t for t in p.tensors}
    found = {stages.names[n].get(t.name, t.name + suffix(n)): t for t in stages.problems[n].tensors}
    return found | {t.name: t for t in p.tensors if t.name in found}


def varying_names(p: Problem, n: int = 0) -> list[str]:
    """Return the names of the arrays among `kernel_arrays` whose shapes depend on the sizes of a call."""
    one, two = (kernel_arrays(general(p, extent), n) for extent in (_EXTENT, _EXTENT + 1))
    return [name for name, t in one.items() if t.shape != two[name].shape]


def places(p: Problem, name: str, n: int = 0) -> tuple[Place, ...]:
    """Return the blocks of the layout of one of `kernel_arrays`; a stride that depends on the sizes of a call is a size
    of the kernel.
    """
    one, two = (kernel_arrays(general(p, extent), n)[name].layout.blocks for extent in (_EXTENT, _EXTENT + 1))
    return tuple(
        (a.dim, a.size, as_index(a.stride) if a.stride == b.stride else Var(f"{name}_s{at}"))
        for at, (a, b) in enumerate(zip(one, two))
    )


def size_values(q: Problem, n: int = 0) -> dict[str, int]:
    """Return the sizes that the kernel of ``q``, the problem of a call, or of its stage ``n`` may take, by name."""
    stages = stages_of(q)
    own = q if stages is None else stages.problems[n]
    found = {end(name).name: own.dims[name] for name in symbolic_dims(own)}
    for name, t in kernel_arrays(q, n).items():
        found |= {f"{name}_s{at}": b.stride for at, b in enumerate(t.layout.blocks)}
    if isinstance(own, Conv):
        found |= {front_pad(a).name: pad for a, pad in zip(own.axes, own.p)}
    return found


def is_pointwise(p: Conv) -> bool:
    """Return whether a pixel of the result reads one pixel, at its own coordinates if there are no pads."""
    return reads_windows(p) and all(k == s == 1 for k, s in zip(p.k, p.s))


def joined_pixels(q: Problem, arrays: Mapping[str, Tensor], config: Config) -> dict[str, int]:
    """Return the values of the sizes of a kernel that reads the pixels of ``q``, the problem of a call, where they are,
    and runs rows as one; none if they stay apart.
    """
    if not isinstance(q, Conv) or not is_pointwise(q):
        return {}
    st = statement(q)
    for images in (True, False):
        rows = PixelRows.of(st, config, images=images, in_place=True)
        if rows.are_even(arrays.values()):
            return rows.values(rows.joined(config.threads), arrays)
    return {}


def _general_step(
    p: Problem, st: Statement, ends: Mapping[str, Var], suffix: str, found: Mapping[str, tuple[Place, ...]],
    more: tuple[Var, ...] = (), pointed: str = "",
) -> Step:  # fmt: skip
    """Return the rewrite that makes the ``ends`` of loops and the strides of arrays sizes, before ``more``.

    A source that a table points into (``pointed``) keeps its own strides until then.
    """
    stops = {name + suffix: stop for name, stop in ends.items()}
    layout = st.c.layout
    if layout.padded_shape != layout.shape:  # a separate nest writes zeros to the padding of blocks of channels
        dims = p.tensor("dst" if suffix else st.c.name).dims
        stops |= {f"pad{dims.index(name)}": stop for name, stop in ends.items() if name in dims}
    strides = (stride for blocks in found.values() for _, _, stride in blocks if isinstance(stride, Var))
    sizes = (*ends.values(), *strides, *more)
    arrays = tuple((name, () if name == pointed else blocks) for name, blocks in found.items())
    return Step(generalise, tuple(stops.items()), arrays, sizes)
