"""Winograd kernels and weights near the end of f32's range: outputs overflow where those of the direct kernel do."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.arith.linear_map import growth, linear_code
from convsmith.arith.winograd import filtering, transposed_filtering
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.measure.verification import narrow_limits
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.packed import Packed
from convsmith.statement.winograd import SOURCES

KINDS = {
    "channels last": ("--stag=axb --dtag=axb mb2ic19ih9iw11oc21oh9ow11kh3kw3ph1pw1",
                      "--lane=oc --register=oc:8,tw:2 --winograd=oh:4,ow:4"),
    "bias": ("--dir=FWD_B --attr-post-ops=relu --stag=abx --dtag=abx g2mb1ic24ih9oc40oh9kh3ph1",
             "--lane=oc --register=oc:8,tw:2 --winograd=oh:2,ow:2"),
    "blocks": ("--stag=aBx16b --dtag=aBx16b mb3ic20ih8oc24kh3ph1",
               "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2 --block=oh:3"),
    "one axis": ("mb1ic18iw20oc17kw3pw1", "--lane=oc --register=oc:8,tw:2 --winograd=ow:6"),
    "three axes": ("--stag=axb --dtag=axb mb1ic8id4ih5iw5oc16od4oh5ow5kd3kh3kw3pd1ph1pw1",
                   "--lane=oc --register=oc:16,tw:2 --winograd=oh:2,ow:2"),
    "gradient": ("--dir=BWD_D --stag=axb --dtag=axb mb2ic18ih10oc17kh3ph1",
                 "--lane=ic --register=ic:8,tw:2 --winograd=ih:4,iw:4"),
    "gradient with a stride": ("--dir=BWD_D --stag=axb --dtag=axb mb2ic18ih10oc17oh5kh3sh2ph1",
                               "--lane=ic --register=ic:8,tw:2 --winograd=ih:4,iw:6"),
    "deconvolution": ("--deconv --stag=axb --dtag=axb g2mb1ic18ih6oc34oh13kh5sh2ph1",
                      "--lane=oc --fuse=th+tw --register=oc:8,th_tw:2 --winograd=oh:4,ow:4 --block=oh:2"),
    "bf16": ("--dt=bf16 --stag=axb --dtag=axb mb1ic19ih9oc21kh3ph1",
             "--lane=oc --register=oc:8,tw:2 --winograd=oh:4,ow:4"),
    "f16": ("--dt=f16:f16:f32 --stag=axb --dtag=axb mb1ic19ih9oc21kh3ph1",
            "--lane=oc --register=oc:8,tw:2 --winograd=oh:4,ow:4"),
}  # fmt: skip
CHAIN = "--stag=axb mb1ic8ih8oc12kh3ph1 -> --dtag=axb mb1ic12ih8oc8kh3ph1"


def made(kind: str, threads: int = 1) -> cs.CompiledKernel:
    """The kernel of a kind with its transform."""
    line, words = KINDS[kind]
    kernel = cs.compile(line, config=f"--target=generic {words} --pack=wei_w --threads={threads}")
    assert kernel.transforms
    return kernel


def direct(kernel: cs.CompiledKernel) -> cs.CompiledKernel:
    """The strict kernel of the same problem."""
    return cs.compile(kernel.problem, target="generic", threads=kernel.config.threads, accuracy="strict")


def inputs(kernel: cs.CompiledKernel) -> dict[str, Array]:
    """Sources and weights of magnitudes around 1."""
    rng = np.random.default_rng(1)
    given = (t for t in kernel.arguments if t.role == "in")
    shapes = {t.name: (t.shape if t.layout.is_plain else t.layout.physical_shape, numpy_dtype(t.dtype)) for t in given}
    return {name: rng.standard_normal(shape).astype(dtype) for name, (shape, dtype) in shapes.items()}


def result(kernel: cs.CompiledKernel, arrays: dict[str, Any]) -> Array:
    """The only output, as f32: infinities and NaN of 16 bits stay what they are."""
    (array,) = kernel.run(**arrays).values()
    return np.asarray(array, np.float32)


def same_overflow(found: Array, want: Array) -> bool:
    """Whether infinities, with their signs, and NaN are at the same places, and are some."""
    kinds = [(np.isposinf(y), np.isneginf(y), np.isnan(y)) for y in (found, want)]
    return not np.isfinite(want).all() and all(np.array_equal(a, b) for a, b in zip(*kinds))


def spoiled(weights: Array, case: str) -> Array:
    """The weights, of which one is near the end of f32's range, or all are."""
    w = weights.copy()
    if case == "one":
        w.reshape(-1)[w.size // 3] = 3e38
    else:
        w[...] = np.copysign(3e38, w.astype(np.float32))
    return w


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "f16"])
def test_outputs_overflow_where_those_of_the_strict_kernel_do(kind: str) -> None:
    kernel = made(kind, threads=1 + len(kind) % 2)
    arrays = inputs(kernel)
    for case in ("one", "all"):
        given = {**arrays, "wei": spoiled(arrays["wei"], case)}
        assert same_overflow(result(kernel, given), result(direct(kernel), given))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_at_the_limit_overflow_with_no_source_up_to_the_stated_one(kind: str) -> None:
    """Signs are those that a sum of taps or of pixels has alike, or random ones; the transform itself runs."""
    kernel = made(kind)
    assert kernel.artifact is not None
    limit = kernel.artifact.limits["wei"]
    alone = HostKernel(kernel.artifact)  # which has no other one to turn to
    arrays, rng = inputs(kernel), np.random.default_rng(2)
    (source,) = arrays.keys() - {"wei", "bia"}
    largest = {name: min(x, 65504.0) if kind == "f16" else x for name, x in (("wei", limit), (source, SOURCES))}
    for alternates in ((), ("wei",), (source,), ("wei", source), None):
        for name, most in largest.items():
            x = arrays[name]
            signs = rng.integers(0, 2, x.shape) if alternates is None else np.indices(x.shape).sum(0) % 2
            x[...] = (np.where(signs, -most, most) if alternates is None or name in alternates else most)
        (found,) = alone.run(arrays).values()
        assert np.isfinite(found.astype(np.float32)).all()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_weights_are_far_below_the_limit(kind: str) -> None:
    kernel = made(kind)
    assert kernel.artifact is not None
    (limit,) = kernel.artifact.limits.values()
    assert 2.0**40 <= limit <= 2.0**60 and limit == np.float32(limit) and not narrow_limits(kernel)


def _loaded(packed: Packed, folder: Path) -> Packed:
    packed.save(folder / "w")
    return Packed.load(folder / "w")


def _by_name(kernel: Any, function: Callable[..., Any], **arrays: Any) -> Any:
    """Call a function of a kernel, or of the run time's, which takes arrays in a dictionary."""
    return function(arrays) if isinstance(kernel, HostKernel) else function(**arrays)


def _bound(kernel: Any, x: Array, w: Any) -> Array:
    out = np.zeros((1, 17, 20), np.float32)
    kernel.bind(x, w, out)()
    return out


def _bound_by_name(kernel: Any, x: Array, w: Any) -> Array:
    out = np.zeros((1, 17, 20), np.float32)
    _by_name(kernel, kernel.bind_each, src=x, wei=w, dst=out)()
    return out


CALLS: dict[str, Callable[[Any, Array, Any], Array]] = {
    "call": lambda k, x, w: k(x, w),
    "out": lambda k, x, w: k(x, w, out=np.zeros((1, 17, 20), np.float32)),
    "run": lambda k, x, w: _by_name(k, k.run, src=x, wei=w)["dst"],
    "bind": _bound,
    "bind_each": _bound_by_name,
}
PACKINGS: dict[str, Callable[[Any, Array, Path], Any]] = {
    "plain": lambda k, w, _: w,
    "packed": lambda k, w, _: k.pack(w),
    "pickled": lambda k, w, _: pickle.loads(pickle.dumps(k.pack(w))),
    "loaded": lambda k, w, folder: _loaded(k.pack(w), folder),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("call", CALLS)
def test_every_way_to_call(call: str, packing: str, tmp_path: Path) -> None:
    """At the limit, the transform runs, whatever packing makes of the weights; beyond it, the other kernel does."""
    kernel = made("one axis")
    assert kernel.artifact is not None
    alone = HostKernel(kernel.artifact)
    arrays = inputs(kernel)
    x, w = arrays["src"], arrays["wei"]
    limit = np.float32(kernel.artifact.limits["wei"])
    w.reshape(-1)[6:12] = limit * np.array([1, 1, 1, 1, -1, 1], np.float32)
    assert np.array_equal(CALLS[call](alone, x, PACKINGS[packing](alone, w, tmp_path)), kernel(x, w))
    w.reshape(-1)[7] = np.nextafter(limit, np.float32(np.inf))
    strict = direct(kernel)
    np.testing.assert_array_equal(CALLS[call](kernel, x, PACKINGS[packing](kernel, w, tmp_path)), strict(x, w))
    w = spoiled(w, "one")
    assert same_overflow(CALLS[call](kernel, x, PACKINGS[packing](kernel, w, tmp_path)), strict(x, w))
    with pytest.raises(UnsupportedError, match=r"wei: holds elements beyond \d\S*, .* legal are numbers from -\d"):
        CALLS[call](alone, x, w)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("stage", [1, 2])
def test_a_stage_of_a_chain(stage: int, threads: int) -> None:
    words = f"--target=generic --lane=oc --register=oc:8,tw:2 --winograd=oh:4,ow:4 --pack=wei_w --threads={threads}"
    kernel = cs.compile(CHAIN, config=f"{words} / {words}")
    strict = cs.compile(CHAIN, target="generic", threads=threads, accuracy="strict")
    assert len(kernel.transforms) == 2 and not strict.transforms
    arrays = inputs(kernel)
    np.testing.assert_allclose(result(kernel, arrays), result(strict, arrays), 0, 1e-3)
    packed = kernel.pack_each(wei_1=arrays["wei_1"], wei_2=arrays["wei_2"])
    np.testing.assert_array_equal(result(kernel, {**arrays, **packed}), result(kernel, arrays))
    name = f"wei_{stage}"
    arrays[name] = spoiled(arrays[name], "one")
    assert same_overflow(result(kernel, arrays), result(strict, arrays))
    spoilt = kernel.pack_each(**{name: arrays[name]})
    for call in (lambda: kernel.run(**{**arrays, **spoilt}), lambda: kernel.host.placed({**packed, **spoilt}, (), 0)):
        with pytest.raises(UsageError, match=rf"{name}: holds elements beyond \d\S*; legal is a plain array"):
            call()


def test_explain_names_the_limit() -> None:
    kernel = made("one axis")
    assert kernel.artifact is not None
    text = " ".join(kernel.explain().split())
    limit = kernel.artifact.limits["wei"]
    assert f"wei with elements beyond {limit:g} run through another kernel (accuracy=strict)" in text


@pytest.mark.parametrize(
    ("m", "r", "largest"),
    [(1, 5, 5.0),  # r products of one by one
     (2, 3, 2 * 1 + 2 * 1.5 + 2 * 1.5),  # rows of B^T add 2 each; those of G 1, 1.5, 1.5, 1; a row of A^T adds three
     (2, 2, 2 * 1 + 1 * 2),
     (4, 1, 1.0)],
)  # fmt: skip
def test_growth(m: int, r: int, largest: float) -> None:
    assert growth(filtering(m, r)) == largest


@pytest.mark.sampled(4)
@pytest.mark.parametrize("r", [2, 3, 5])
@pytest.mark.parametrize("m", [2, 3, 4, 6])
@pytest.mark.parametrize("transposed", [False, True])
def test_no_product_or_sum_of_a_transform_exceeds_its_growth(transposed: bool, m: int, r: int) -> None:
    """For the signs that make each row of the matrices largest, and for random ones."""
    matrices = transposed_filtering(2 * m, r, 2, 1) if transposed else filtering(m, r)
    bound, rng = growth(matrices), np.random.default_rng(m)
    codes = [linear_code(x) for x in (matrices.input, matrices.weights, matrices.output)]
    rows = [[np.sign(np.array(row, float)) for row in matrix] for matrix in (matrices.input, matrices.weights)]
    most = 0.0
    for draw in range(200):
        signs = [
            made_[draw % len(made_)] if draw < 40 else rng.choice((-1.0, 1.0), code.inputs)
            for made_, code in zip(rows, codes)
        ]
        source, weights = (_values(code, x) for code, x in zip(codes, signs))
        products = [source[i] * weights[k] for i, k in zip(codes[0].results, codes[1].results)]
        most = max(most, *map(abs, _values(codes[2], products)))
    assert 1 <= most <= bound * (1 + 1e-12)


def _values(code: Any, inputs: Any) -> list[float]:
    """All values of straight-line code."""
    values = [float(x) for x in inputs]
    for terms in code.steps:
        values.append(sum(float(c) * values[i] for c, i in terms))
    return values
