"""The gradients of a convolution are its adjoints: <conv(x, w), dy> = <x, bwd_d(dy, w)> = <w, bwd_w(x, dy)>.

Compiled, of random problems, exact on whole numbers; nothing here asks the reference.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from draws import examples
from guarded import Array, Compiled, logical
from hypothesis import given
from hypothesis import strategies as st
from problems import exact

from convsmith.compiler.driver import build_artifact
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.problem import Conv
from convsmith.problem.types import TYPES as ROWS
from convsmith.tune.candidates import default_config

TYPES = {"f32": 4, "f64": 9, "bf16:bf16:f32": 4, "f16:f16:f32": 4}
"""Types of source, weights and destination, with the greatest factor whose sums are exact."""


@st.composite
def problems(draw: st.DrawFn) -> Conv:
    """Convolutions and deconvolutions with groups, strides, dilation and uneven pads."""
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    g = draw(st.sampled_from((1, 1, 2, 3)))
    icg, ocg = (draw(st.sampled_from((1, 2, 3, 5, 8, 16, 17))) for _ in "io")
    axes = []
    for _ in range(rank):
        coarse, k, s = (draw(st.integers(1, n)) for n in (5, 3, 3))
        d, p = (draw(st.integers(0, 2)) for _ in "dp")
        keff = (k - 1) * (d + 1) + 1
        fine = (coarse - 1) * s + keff - p - draw(st.integers(1 - s, 2))
        if fine < 1:
            p, fine = 0, (coarse - 1) * s + keff
        axes.append((coarse, fine, k, s, d, p))
    o, i, k, s, d, p = (tuple(column) for column in zip(*axes, strict=True))
    deconv = draw(st.booleans())
    return Conv(
        mb=draw(st.integers(1, 2)), ic=g * icg, oc=g * ocg, i=o if deconv else i, o=i if deconv else o, k=k, s=s, d=d,
        p=p, g=g, has_groups=g > 1, deconv=deconv, stag=draw(st.sampled_from(("abx", "axb"))),
        dtag=draw(st.sampled_from(("abx", "axb"))),
    )  # fmt: skip


def computed(problem: Conv, target: Machine, threads: int, arrays: dict[str, Array]) -> Array:
    """The output of the default kernel."""
    artifact = build_artifact(problem, default_config(exact(problem), target, threads), target)
    inputs = {t.name: arrays[t.name].astype(ROWS[t.dtype].numpy) for t in problem.inputs}
    return logical(problem, Compiled(problem, artifact)(inputs)).astype(np.float64)


@examples(10)
@given(problems(), st.sampled_from(list(TYPES)), st.sampled_from(host_targets()), st.integers(1, 2), st.integers(0, 99))
def test_gradients_are_adjoints(forward: Conv, types: str, target: Machine, threads: int, seed: int) -> None:
    a, b, c = types.split(":") if ":" in types else [types] * 3
    rng = np.random.default_rng(seed)
    most = TYPES[types]
    shapes = {"src": forward.src_shape, "wei": forward.wei_shape, "diff_dst": forward.dst_shape}
    arrays = {name: rng.integers(-most, most, shape, endpoint=True) for name, shape in shapes.items()}
    # A gradient has the type of sums, so that it is exact; the factors have those of the forward problem.
    by_data = replace(forward, dir="BWD_D", dt=(c, b, a))
    by_weights = replace(forward, dir="BWD_W", dt=(a, c, a if c == "f64" else "f32"))
    y = computed(replace(forward, dt=(a, b, c)), target, threads, arrays)
    dx = computed(by_data, target, threads, arrays)
    dw = computed(by_weights, target, threads, arrays)
    products = (y * arrays["diff_dst"]).sum(), (dx * arrays["src"]).sum(), (dw * arrays["wei"]).sum()
    assert products[0] == products[1] == products[2], f"{forward} in {types} on {target.name}: {products}"
