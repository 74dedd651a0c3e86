"""The problem of a call whose sizes follow from the arrays that it is given, and from its pads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import conforms, shown
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.schedule.dynamic import at_sizes, symbolic_dims

__all__ = ["Pads", "Pairs", "Shapes", "deciding", "pad_pairs", "problem_of_call"]

Pads = Sequence[int | Sequence[int]] | int
"""A number for all axes, or for each axis a number or (front, back)."""
Pairs = tuple[tuple[int, int], ...]
"""The front and back pad of each axis."""
Shapes = Mapping[str, tuple[int, ...] | None]
"""The shapes of the arrays that determine the sizes of a call; None for a result that the kernel allocates."""


def deciding(p: Problem) -> tuple[str, ...]:
    """Return the names of the arrays that determine the sizes of a call: required inputs, then the result.

    With a stride, a result on the padded side of a window has several legal sizes, so its shape counts as well.
    """
    if not isinstance(p, Conv) or (p.forward and not p.deconv):
        return ("src",)
    if p.dir.startswith("BWD_W"):
        return ("src", "diff_dst")
    if p.forward:
        return ("src", "dst")
    return ("diff_dst",) if p.deconv else ("diff_dst", "diff_src")


def problem_of_call(p: Problem, fixed: Mapping[str, int], shapes: Shapes, pads: Pairs | None) -> Problem:
    """Return ``p`` at the sizes of a call; UsageError if they contradict the ``fixed`` sizes."""
    first, *others = deciding(p)
    shape = shapes[first]
    assert shape is not None
    sizes = _sizes(p.tensor(first), shape, fixed, p)
    for name in others:
        known = shapes[name]
        if known is not None:
            found = _sizes(p.tensor(name), known, {}, p)
            sizes |= {dim: size for dim, size in found.items() if dim not in sizes}
    return _chain_at(p, sizes) if isinstance(p, Chain) else _problem_at(p, sizes, pads)


def _chain_at(p: Chain, sizes: Mapping[str, int]) -> Chain:
    """Return the chain whose source has these ``sizes``; each stage derives its sizes from the stage before it."""
    stages: list[Problem] = []
    for stage in p.stages:
        if stages:
            sizes = dict(zip(stage.tensor("src").dims, stages[-1].dst_shape))
        stages.append(_problem_at(stage, sizes, None))
    return replace(p, stages=tuple(stages), name=None)


def _problem_at(p: Problem, given: Mapping[str, int], pads: Pairs | None) -> Problem:
    """Return ``p`` at ``given`` sizes of its symbolic dims."""
    sizes = {name: size for name, size in given.items() if name in symbolic_dims(p)}
    if isinstance(p, Matmul):
        t = p.tensor("src")
        return replace(p, src=tuple(sizes.get(name, size) for name, size in zip(t.dims, t.shape)), name=None)
    assert isinstance(p, Conv)
    pairs = tuple((pad, pad) for pad in p.p) if pads is None else pads
    fine, coarse = ("o", "i") if p.deconv else ("i", "o")
    for n, a in enumerate(p.axes):
        if coarse + a not in sizes:
            sizes[coarse + a] = _coarse(p, n, fine, sizes[fine + a], pairs[n])
        elif fine + a not in sizes:
            sizes[fine + a] = _fine(p, n, fine, coarse, sizes[coarse + a], pairs[n])
        elif pads is not None:
            _check_pads(p, n, (fine, sizes[fine + a]), (coarse, sizes[coarse + a]), pairs[n])
    i, o = (tuple(sizes[letter + a] for a in p.axes) for letter in "io")
    return at_sizes(p, sizes["mb"], i, o, tuple(front for front, _ in pairs))


def _sizes(t: Tensor, shape: tuple[int, ...], fixed: Mapping[str, int], p: Problem) -> dict[str, int]:
    """Return the sizes of the symbolic dims of ``t`` from the shape of its array, whose other sizes are ``fixed``."""
    names, layout, symbolic = t.dims, t.layout, symbolic_dims(p)
    dims = range(len(names)) if layout.is_plain else [b.dim for b in layout.blocks]
    if len(shape) != len(dims):
        form = ", ".join(names) if layout.is_plain else f"the physical shape of {layout}, {len(dims)} axes"
        raise UsageError(f"{t.name} has {len(shape)} axes; expected ({form})", code="rank")
    found = {names[dim]: size for dim, size in zip(dims, shape) if names[dim] in symbolic or layout.is_plain}
    for name, size in found.items():
        wanted = fixed.get(name, size)
        if size != wanted:
            raise UsageError(f"{t.name} has {name}={size}; the kernel is for {name}={wanted}", code="shape")
    return {name: size for name, size in found.items() if name in symbolic}


def _coarse(p: Conv, n: int, letter: str, fine: int, pads: tuple[int, int]) -> int:
    """Return the extent of the strided side along axis ``n``, given the extent of the padded side, by the floor
    formula.
    """
    (front, back), a = pads, p.axes[n]
    size = output_size(fine, p.k[n], p.s[n], p.d[n], front, back)
    if size < 0:
        least = p.keff[n] - front - back
        empty = f" (from {max(0, least - p.s[n])} on the result is empty)"
        raise UsageError(
            f"{letter}{a}={fine} with pads {front} and {back} is smaller than the kernel's {p.keff[n]}: expected "
            f"{letter}{a} >= {least}{empty}",
            code="bad-shape",
        )
    return size


def _fine(p: Conv, n: int, letter: str, given: str, coarse: int, pads: tuple[int, int]) -> int:
    """Return the smallest extent of the padded side along axis ``n`` that has ``coarse`` windows."""
    (front, back), a = pads, p.axes[n]
    size = (coarse - 1) * p.s[n] + p.keff[n] - front - back
    if size < 0 < coarse:
        raise UsageError(
            f"{given}{a}={coarse} with pads {front} and {back} leaves {letter}{a}={size}: expected pads of "
            f"{size + front + back} at most together",
            code="bad-shape",
        )
    return max(size, 0)


def _check_pads(p: Conv, n: int, fine: tuple[str, int], coarse: tuple[str, int], pads: tuple[int, int]) -> None:
    """Raise UsageError if the extents of two arrays along axis ``n`` do not follow from each other with ``pads``."""
    wanted = _coarse(p, n, *fine, pads)
    if wanted != coarse[1]:
        a = p.axes[n]
        raise UsageError(
            f"{fine[0]}{a}={fine[1]} with pads {pads[0]} and {pads[1]} goes with {coarse[0]}{a}={wanted}, not with "
            f"{coarse[1]}",
            code="bad-shape",
        )


def pad_pairs(p: Problem, pads: Pads) -> Pairs:
    """Return the front and back pad of each axis; UsageError if they are not legal."""
    if not isinstance(p, Conv):
        why = "stages of a chain have those of its line" if isinstance(p, Chain) else "a matrix product has none"
        raise UsageError(f"pads={shown(pads)}: {why}", code="bad-pads")
    given = _items(pads)
    found: list[Any] = [(pads, pads)] * p.rank if given is None else [_items(pad) or (pad, pad) for pad in given]
    whole = all(conforms(pad, int) for pair in found for pad in pair)
    if len(found) != p.rank or any(len(pair) != 2 for pair in found) or not whole or min(map(min, found)) < 0:
        raise UsageError(
            f"pads={shown(pads)}: expected a whole number of at least 0, or one or (front, back) for each of "
            f"the {p.rank} axes",
            code="bad-pads",
        )
    return tuple((int(front), int(back)) for front, back in found)


def _items(given: Any) -> list[Any] | None:
    """Return the items of a list, a tuple or an array; None for any other value."""
    return list(given) if isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim) else None
