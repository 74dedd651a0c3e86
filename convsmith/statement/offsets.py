"""Zero points subtracted from the sums instead of from each factor, so that instructions multiply the stored bytes.

With zero points p of the source and q of the weights, over the terms that are present (gemmlowp)::

    sum (a - p) * (b - q)  =  sum a * b  -  p * sum b  -  q * sum (a - p)

Both sides wrap at 32 bits alike, so the results are equal bit for bit.  Where each channel of the source has a zero
point, the second sum is one of p * b, made in each call of weights that are not packed.  An operand can be *flipped*:
with its top bit inverted, s8 is multiplied as u8 with a zero point 128 more, and u8 as s8 with a zero point 128 less,
so instructions for u8 by s8 serve all bytes.

The sums of weights are the same in all calls.  The packing kernel computes them over the channels of each tap
(`passes/packed_sums.py`); if taps may be absent, a later kernel adds them up for each set of present taps
(`statement/presence.py`).  The sums of the source are computed in each call, before the products: while packing, if the
config packs the source and all terms are present; otherwise over the channels of a pixel, and then over the taps of one
axis after the other, each in a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from convsmith.ir.index import Index, Var, conj, is_false, is_true, true
from convsmith.ir.walk import variables_of
from convsmith.layout.layout import Layout
from convsmith.problem.attributes import ZERO_POINTS
from convsmith.problem.problem import Problem
from convsmith.statement.epilogue import SOURCE_SUMS, WEIGHT_SUMS, differs_by_channel
from convsmith.statement.presence import Cut, cuts, number
from convsmith.statement.statement import Dim, Statement, View, When

TAP_SUMS = "wei_taps"
"""Name of the weights' sums over the channels of each tap."""
CHANNEL_SUMS = "src_channels"
"""Name of the source's sums over the channels of each pixel; with an axis appended, of the sums over that axis too."""
MAX_WEIGHT_SUMS = 1 << 20
"""Maximum number of sums of weights."""


def flips(problem: Problem, st: Statement) -> tuple[tuple[str, ...], ...]:
    """Return the sets of operands that can be flipped together, smallest first: sources of bytes and u8 weights.

    Products of fewer bits have one set, for instructions that multiply u8 by s8.
    """
    source = [st.a.name] if st.a.dtype in ("s8", "u8") and st.a.requantised is None else []
    weights = [st.b.name] if st.b.dtype == "u8" and st.b.requantised is None else []
    if of_fewer_bits(st):
        return ((*(source if st.a.dtype == "s8" else ()), *weights),)
    if not problem.forward or problem.acc != "s32":
        return ((),)
    return tuple(dict.fromkeys(((), tuple(weights), tuple(source), (*source, *weights))))


def of_fewer_bits(st: Statement) -> bool:
    """Return whether entries are requantised."""
    return st.a.requantised is not None or st.b.requantised is not None


def summed(
    problem: Problem, st: Statement, flip: tuple[str, ...] = (), pack: tuple[str, ...] = (), filled: bool = False,
    in_call: bool = False,
) -> Statement | None:  # fmt: skip
    """Return the statement that subtracts zero points, its own and those due to flipping, from the sums; None if
    illegal.

    If A is ``filled``, all taps are present at every pixel, and one sum of weights serves all pixels. Sums of weights
    are computed ``in_call`` on devices, elsewhere while weights are packed.
    """
    source = problem.quantity(ZERO_POINTS, "src")
    fewer = of_fewer_bits(st)
    legal = flip in flips(problem, st) and (st.shifted or flip or fewer) and not is_false(st.a.mask)
    if not legal or (differs_by_channel(problem) and not (in_call and st.b.name not in pack)):
        return None
    a, b = (replace(v, flipped=v.name in flip, packed=v.name in pack) for v in (st.a, st.b))
    a = replace(a, filled=filled)
    st = replace(st, factors=(a, b), shifted=False)
    sums = []
    if source is not None or a.flipped or (fewer and a.dtype == "s8"):
        mask_cuts = _cuts(st)
        case, cases = number([(c.index, c.cases) for c in mask_cuts])
        others = _varying(st, st.b, "batch", "n")
        if prod(d.size for d in others) * cases > MAX_WEIGHT_SUMS:
            return None
        dims = (Dim("case", cases, "m"), *others) if mask_cuts else others
        sums.append(_view(WEIGHT_SUMS, st.b, dims, *[case] * bool(mask_cuts)))
    centred = fewer and (b.dtype == "s8" or b.requantised is None)
    if b.flipped or problem.quantity(ZERO_POINTS, "wei") is not None or centred:
        sums.append(_view(SOURCE_SUMS, st.a, _varying(st, st.a, "batch", "m")))
    return replace(st, sums=tuple(sums))


def _adding(
    given: View, result: View, dims: Sequence[Dim], reduce: Sequence[Dim], when: When = "packing",
    shifted: bool = False, order: tuple[str, ...] = (), weighed: View | None = None,
) -> Statement:
    """Return the statement that adds up the present terms of ``given`` over ``reduce`` into ``result``.

    ``order`` names the reduction loops in the order that reads memory sequentially. Where ``shifted`` is set, all terms
    are present, and the source's zero point is subtracted from each. The zero point of the source at ``weighed``
    multiplies each term.
    """
    names = order or tuple(d.name for d in reduce)
    around = tuple(replace(d, kind="m") for d in dims)
    return Statement(
        (*around, *(replace(d, kind="k") for d in reduce)), (given,), result, names, "s32", name=result.name, when=when,
        finish="centred" if shifted else "sum", weighed=weighed,
    )  # fmt: skip


def sums_of(problem: Problem, st: Statement) -> tuple[Statement, ...]:
    """Return the statements that make the sums of ``st.sums``, in the order in which they run.

    The sums of the weights are computed when the weights are packed, the sums of the source in each call.
    """
    makers = {st.b.name: _weights, st.a.name: _source}
    return tuple(s for view in st.sums for s in makers[view.adds](problem, st, view))


def _weights(problem: Problem, st: Statement, result: View) -> tuple[Statement, ...]:
    weighed = st.a if differs_by_channel(problem) else None
    others = _varying(st, st.b, "batch", "n")
    mask_cuts = _cuts(st)
    if not mask_cuts:
        return (_adding(st.b, result, others, st.of("k"), order=st.reduce, weighed=weighed),)
    taps = tuple(d for d in st.of("k") if d.axis)
    channels = tuple(d for d in st.of("k") if not d.axis)
    kept = (*taps, *others)
    tap_sums = _view(TAP_SUMS, st.b, kept)
    given = replace(tap_sums, masks=(conj(c.cond for c in mask_cuts), *tap_sums.masks[1:]))
    case = number([(c.var, c.cases) for c in mask_cuts])[0]
    dims = (*(Dim(c.var.name, c.cases, "m") for c in mask_cuts), *others)
    return (
        _adding(st.b, tap_sums, kept, channels, weighed=weighed),
        _adding(given, replace(result, coords=(case, *result.coords[1:])), dims, taps),
    )


def _cuts(st: Statement) -> tuple[Cut, ...]:
    """Return the cases in which the mask removes taps from sums of weights; empty if all terms are present."""
    return () if st.a.filled else cuts(st)


def _source(problem: Problem, st: Statement, result: View) -> tuple[Statement, ...]:
    # After its zero point is subtracted, an absent element is zero.
    st = replace(st, factors=(replace(st.a, filled=False), st.b))
    others = _varying(st, st.a, "batch", "m")
    taps = tuple(d for d in st.of("k") if d.axis)
    shifted = not of_fewer_bits(st)
    if not st.a.packed and shifted:
        # After the zero point is subtracted, a flipped element equals the original one.
        st = replace(st, factors=(replace(st.a, flipped=False), st.b))
    if is_true(st.a.mask) and all(d.size == 1 for d in taps):
        return (_adding(st.a, result, others, st.of("k"), "before", shifted, st.reduce),)
    names = problem.tensor(st.a.name).dims
    image, _, *axes = (Dim(name, size, "m", name[-1]) for name, size in zip(names, st.a.layout.shape))
    channels = tuple(d for d in st.of("k") if not d.axis)
    view = _view(CHANNEL_SUMS, st.a, (*st.of("batch"), image, *axes))
    coords = (*st.a.coords[:2], *(Var(d.name) for d in axes))
    here = replace(st.a, flipped=False, coords=coords, masks=(true(),) * len(names))
    dims = (*st.of("batch"), image, *axes)
    made = [_adding(here, view, dims, channels, "before", shifted=True)]
    at = {d.axis: (x, mask) for d, x, mask in zip(axes, st.a.coords[2:], st.a.masks[2:])}
    windows = [d.axis for d in taps if d.size > 1 or not is_true(at[d.axis][1])]
    for axis in windows:
        done = {axis} if axis != windows[-1] else {axis, *(d.axis for d in taps if d.axis not in windows)}
        coords, masks = zip(*(at[d.axis] if d.axis in done else (Var(d.name), true()) for d in dims))
        dims = tuple(next(o for o in others if o.axis == d.axis) if d.axis in done else d for d in dims)
        given = replace(view, coords=coords, masks=masks)
        view = result if axis == windows[-1] else _view(f"{CHANNEL_SUMS}_{axis}", st.a, dims)
        summed_over = tuple(d for d in taps if d.axis in done)
        made.append(_adding(given, view, dims, summed_over, "before"))
    return tuple(made)


def _varying(st: Statement, view: View, *kinds: str) -> tuple[Dim, ...]:
    """Return the dims of the given kinds along which a view varies."""
    names = {v for x in view.coords for v in variables_of(x)} | variables_of(view.mask)
    return tuple(d for d in st.of(*kinds) if Var(d.name) in names)


def _view(name: str, of: View, dims: Sequence[Dim], *index: Index) -> View:
    """Return the view of sums of ``of`` at each point of ``dims``; ``index`` replaces the coordinates along the first
    dims.
    """
    coords = (*index, *(Var(d.name) for d in dims[len(index) :]))
    layout = Layout.from_tag("any", tuple(d.size for d in dims))
    return View(name, "s32", layout, coords, (true(),) * len(coords), adds=of.name)
