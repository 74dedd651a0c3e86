"""What kernels say of themselves for every kind of problem: `verify`, with its bounds of rounding, and `explain`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.interp.arithmetic import fma
from convsmith.measure.bounds import Interval, intervals, within
from convsmith.measure.verification import Verdict, has_real_data, verify_kernel
from convsmith.problem.lines import parse_problem

Array = np.ndarray[Any, Any]

LINE = "mb1ic6ih7oc20oh7kh3ph1"


def test_verification_finds_a_wrong_element_and_a_padding_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    k = cs.compile(LINE, dst_tag="nChw16c", threads=1)
    assert verify_kernel(k).ok and verify_kernel(k, seed=3, real=True).ok
    right = k.run

    class Wrong:
        problem, target, artifact, transforms = k.problem, k.target, k.artifact, ()

        def __init__(self, at: tuple[int, ...]) -> None:
            self.at = at

        def run(self, **arrays: Array) -> dict[str, Array]:
            results = right(**arrays)
            results["dst"][self.at] += 1
            return results

    element, lane = verify_kernel(Wrong((0, 1, 2, 3, 3))), verify_kernel(Wrong((0, 1, 2, 3, 4)))  # type: ignore[arg-type]
    assert element.wrong == 1 and "the first, at (0, 19, 2, 3), is" in element.detail
    assert lane.wrong == 1 and "padding lanes of aBcd16b are not zero" in lane.detail
    assert verify_kernel(Wrong((0, 1, 2, 3, 3)), real=True).wrong == 1  # type: ignore[arg-type]


def wrong_by(k: cs.CompiledKernel, **change: Any) -> Any:
    """The kernel, with something added to some elements of its outputs."""

    def run(**arrays: Array) -> dict[str, Array]:
        results = k.run(**arrays)
        for name, x in change.items():
            results[name][...] = (results[name].astype(np.float64) + x).astype(results[name].dtype)
        return results

    return SimpleNamespace(problem=k.problem, target=k.target, artifact=k.artifact, transforms=(), run=run)


EXACT = (
    "--dir=BWD_D mb2ic5ih6oc7oh6kh3ph1", "--dir=BWD_W --stag=axb g2mb2ic6iw7oc4ow7kw3pw1",
    "--deconv ic3iw5oc4ow5kw3pw1", "--dir=BWD_D --dt=s8:s8:u8 --attr-scales=src:per_oc+wei:common:3 ic3iw5oc4ow5kw3pw1",
    "--matmul --bia-dt=f32 5x7:7x6", "--dt=f16 --attr-acc-mode=f16 ic3iw5oc4ow5kw3pw1",
    "--dir=FWD_B --dt=bf16 --dtag=aBc16b ic3iw5oc4ow5kw3pw1",
    "--dir=FWD_B --dt=u8:s8:s8 --attr-scales=wei:per_oc+dst:common:3 --attr-post-ops=sum:0.7+relu ic3iw5oc4ow5kw3pw1",
    "--dt=s8:s8:s32 --attr-zero-points=src:common:3 ic3iw5oc4ow5kw3pw1", "--dt=f64 ic3iw5oc4ow5kw3pw1",
)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", EXACT)
def test_verification_of_every_kind_of_problem(line: str) -> None:
    k = cs.compile(line, threads=1)
    assert verify_kernel(k) == Verdict(0, int(np.prod(k.problem.outputs[0].shape)), "exact")
    real = verify_kernel(k, real=True)
    assert real.ok and (real.detail == "exact") != has_real_data(k.problem), real.detail
    name = k.problem.outputs[0].name
    assert not verify_kernel(wrong_by(k, **{name: 1})).ok
    if has_real_data(k.problem):
        assert not verify_kernel(wrong_by(k, **{name: 2}), real=True).ok


@pytest.mark.sampled(3)
@pytest.mark.parametrize("alg", ["exp", "log", "tanh", "gelu_erf", "swish:1.7", "elu:0.5", "pow:0.5:0.33", "mish"])
def test_transcendental_post_ops_are_right_within_their_rounding(alg: str) -> None:
    k = cs.compile(f"--attr-post-ops={alg} ic3iw50oc4ow50kw1", threads=1)
    verdict = verify_kernel(k)
    assert verdict.ok and verdict.detail.endswith("of the rounding of the steps after the sums"), verdict.detail
    assert verify_kernel(k, seed=1, real=True).ok
    assert not verify_kernel(wrong_by(k, dst=1e-2)).ok


def test_a_rounded_integer_may_differ_next_to_a_tie_only() -> None:
    near_tie, elsewhere = (Interval(np.array([x]), np.array([1e-6]), 9) for x in (2.5 + 1e-7, 2.4))
    assert [bool(within(np.array([n], np.int8), near_tie, "s8")[0]) for n in (1, 2, 3, 4)] == [False, True, True, False]
    assert [bool(within(np.array([n], np.int8), elsewhere, "s8")[0]) for n in (1, 2, 3)] == [False, True, False]
    saturated = Interval(np.array([300.0, np.nan]), np.zeros(2), 0)
    assert within(np.array([127, 0], np.int8), saturated, "s8").all()
    assert within(np.array([np.inf, np.nan]), Interval(np.array([np.inf, np.nan]), np.zeros(2), 0), "f32").all()
    assert not within(np.array([np.nan, 1.0]), Interval(np.array([1.0, np.nan]), np.zeros(2), 0), "f32").any()


def test_the_bound_of_sums_and_steps() -> None:
    """One product of 3 and 5, times 4 and through relu: the error of the sum is scaled, and each step rounds."""
    p = parse_problem("--attr-scales=wei:common:4 --attr-post-ops=relu:-2 mb1ic1iw1oc1kw1")
    arrays = {"src": np.full((1, 1, 1), 3, np.float32), "wei": np.full((1, 1, 1), -5, np.float32)}
    arrays |= {"scales_wei": np.full(1, 4, np.float32)}
    (found,) = intervals(p, arrays, "f32", exact_sums=False).values()
    eps = np.finfo(np.float32).eps
    assert found.truth == 120 and found.terms == 1
    assert 3 * eps * 15 * 4 * 2 < found.error < 3 * eps * 15 * 4 * 2 + 50 * eps * 120
    (exact,) = intervals(p, arrays, "f32", exact_sums=True).values()
    assert 0 < exact.error < 50 * eps * 120 and exact.terms == 0


def test_the_bound_of_sums_in_f16() -> None:
    """It is that of the type's own eps, and holds for sums of either length, one product after the other."""
    rng = np.random.default_rng(0)
    for k in (7, 600, 5000):
        p = parse_problem(f"--matmul --dt=f16:f16:f32 --attr-acc-mode=f16 1x{k}:{k}x64")
        arrays = {"src": rng.standard_normal((1, k)), "wei": rng.standard_normal((k, 64))}
        arrays = {name: x.astype(np.float16) for name, x in arrays.items()}
        sums = np.zeros((1, 64), np.float16)
        for n in range(k):
            sums = fma(np.repeat(arrays["src"][:, n], 64)[None], arrays["wei"][n : n + 1], sums)
        narrow, wide = (intervals(p, arrays, acc, exact_sums=False)["dst"] for acc in ("f16", "f32"))
        assert within(sums.astype(np.float32), narrow, "f32").all()
        assert not within(sums.astype(np.float32), wide, "f32").all()
        # eps is 2**13 times as large; the conversion to f32 adds a rounding of its own to the smaller one.
        assert ((2**12 < narrow.error / wide.error) & (narrow.error / wide.error < 1.01 * 2**13)).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", [*EXACT, "--dir=FWD_D --attr-post-ops=add:f32:per_oc+exp mb0ic3iw5oc4ow5kw3pw1"])
def test_explain_tells_of_every_kind_of_problem(line: str) -> None:
    k = cs.compile(line, threads=1)
    page = k.explain()
    for tensor in k.problem.tensors:
        assert f" {tensor.name} {' x '.join(map(str, tensor.shape))} {tensor.dtype} " in page
    if k.artifact is not None:
        integers = k.problem.acc == "s32"
        assert ("GOP/s" in page) == integers and ("GFLOP/s in " in page) != integers
