"""A convolution as a GEMM-like statement over views."""

from __future__ import annotations

from convsmith.arith.simplify import simplify
from convsmith.ir.index import Cond, Index, Var, as_index, conj, true
from convsmith.layout.view import Dim, Statement, View
from convsmith.problem.conv import Conv


def _in_range(coord: Index, size: int) -> Cond:
    return conj((coord >= 0, coord < size))


def forward(p: Conv) -> Statement:
    """Forward: source is A, weights are B, destination is C.

    M dims are mb and the output's axes, N is oc within a group, K is ic within a group and the kernel's axes; a
    group is a batch dim.  ``i = o * s + k * (d + 1) - p``, masked where it can leave the input.
    """
    axes = p.axes
    icg, ocg = p.ic // p.g, p.oc // p.g
    groups = (Dim("g", p.g, "batch"),) if p.g > 1 else ()
    dims = (
        *groups,
        Dim("mb", p.mb, "m"),
        Dim("oc", ocg, "n"),
        *(Dim("o" + a, n, "m") for a, n in zip(axes, p.o)),
        Dim("ic", icg, "k"),
        *(Dim("k" + a, n, "k") for a, n in zip(axes, p.k)),
    )
    g: Index = Var("g") if p.g > 1 else as_index(0)
    mb, oc, ic = Var("mb"), Var("oc"), Var("ic")
    out = [Var("o" + a) for a in axes]
    ker = [Var("k" + a) for a in axes]
    src = [o * s + k * (d + 1) - pad for o, k, s, d, pad in zip(out, ker, p.s, p.d, p.p)]
    ranges = {Var(d.name): (0, d.size - 1) for d in dims}
    masks = tuple(simplify(_in_range(c, n), ranges) for c, n in zip(src, p.i))
    a = View("src", p.src_layout, (mb, g * icg + ic, *src), (true(), true(), *masks))
    weights = (oc, ic, *ker)
    b = View("wei", p.wei_layout, (g, *weights) if p.has_groups else weights, (true(),) * len(p.wei_shape))
    c = View("dst", p.dst_layout, (mb, g * ocg + oc, *out), (true(),) * len(p.dst_shape))
    return Statement(dims, a, b, c)
