"""Kernels whose instruction saturates with large weights: exact with every weight, on both sides of the limit."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import convsmith as cs
from convsmith.codegen.artifact import FINITE
from convsmith.diag.errors import UnsupportedError
from convsmith.machine.registry import host_targets
from convsmith.measure.verification import limits_of_libraries, narrow_limits, verify_kernel
from convsmith.problem.data import random_arrays
from convsmith.problem.reference import reference
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.packed import Packed

LINES = (
    "--dt=u8:s8:s32 --stag=axb --dtag=axb mb2ic20ih5oc40oh5kh3ph1",
    "--dt=u8:s8:f32 --attr-zero-points=src:common:3 --attr-scales=wei:per_oc mb1ic12ih6oc24kh3sh2ph1",
    "--dt=s8:s8:s32 --stag=axb --dtag=axb mb1ic64ih5oc40oh5kh3ph1",
    "--dt=u8:s8:u8 --attr-post-ops=relu g2mb1ic32ih5oc40oh5kh1",
    "--dir=BWD_D --dt=s32:s8:u8 --stag=axb --dtag=axb mb1ic40ih5oc20oh5kh3ph1",
    "--deconv --dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic20ih5oc40oh9kh3sh2ph1",
    "--matmul --dt=u8:s8:s32 37x83:83x65",
)
ISAS = [t.name for t in host_targets() if t.name in ("avx2", "avx512")]
LIMIT = 64
pytestmark = pytest.mark.skipif(not ISAS, reason="this machine has no AVX2")


def largest_sources(kernel: cs.CompiledKernel) -> dict[str, np.ndarray]:
    """Arrays whose sums of pairs are the largest: every element of the source has the largest magnitude."""
    arrays = random_arrays(kernel.problem, 1)
    for tensor in kernel.problem.inputs:
        if tensor.name != "wei" and tensor.dtype in ("u8", "s8") and tensor.default is None:
            arrays[tensor.name][...] = 255 if tensor.dtype == "u8" else -128
    return arrays


@pytest.mark.sampled(21, "isa")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("weight", [64, -64, 65, -65, 127, -128])
def test_the_largest_sums_are_exact(weight: int, line: str, isa: str) -> None:
    """All weights are as large, or a single pair of them: it alone decides that another kernel runs."""
    kernel = cs.compile(line, target=isa, threads=1)
    assert kernel.artifact is not None and kernel.artifact.limits == {"wei": LIMIT}
    arrays = largest_sources(kernel)
    for places in (slice(None), slice(6, 8)):
        arrays["wei"][...] = np.clip(arrays["wei"], -LIMIT, LIMIT)
        arrays["wei"].reshape(-1)[places] = weight
        (name,) = (t.name for t in kernel.problem.outputs)
        found = kernel.run(**arrays)[name]
        np.testing.assert_array_equal(found, reference(kernel.problem, arrays)[name])


@pytest.mark.parametrize("isa", ISAS)
def test_the_kernel_itself_saturates_beyond_its_limit(isa: str) -> None:
    """The limit is the largest there is: with a pair of 65, sums of words do not hold the products."""
    kernel = cs.compile(LINES[0], target=isa, threads=1)
    assert kernel.artifact is not None
    kernel.artifact.limits["wei"] = 65.0
    arrays = largest_sources(kernel)
    arrays["wei"][...] = 65
    found = HostKernel(kernel.artifact).run(arrays)["dst"]
    kernel.artifact.limits["wei"] = float(LIMIT)
    assert (found != reference(kernel.problem, arrays)["dst"]).any()
    with pytest.raises(UnsupportedError, match=r"wei: holds elements beyond 64, .* legal are numbers from -64 to 64"):
        HostKernel(kernel.artifact).run(arrays)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("line", LINES[:2])
@pytest.mark.parametrize("weight", [64, 65])
def test_packed_weights_know_their_kernel(weight: int, line: str, isa: str, tmp_path: Path) -> None:
    """Pickled and loaded weights too, beside sums of weights that a zero point needs: their bytes are no weights."""
    kernel = cs.compile(line, target=isa, threads=1)
    arrays = largest_sources(kernel)
    arrays["wei"][...] = weight
    want = reference(kernel.problem, arrays)["dst"]
    packed = kernel.pack(arrays.pop("wei"))
    packed.save(tmp_path / "w")
    assert packed.magnitude == weight
    for given in (packed, pickle.loads(pickle.dumps(packed)), Packed.load(tmp_path / "w")):
        for _ in range(2):
            np.testing.assert_array_equal(kernel.run(**arrays, wei=given)["dst"], want)
        if arrays.keys() == {"src"}:
            np.testing.assert_array_equal(kernel(arrays["src"], given), want)
    config = kernel._host._server(packed).artifact.config
    assert ("vpmaddwd" if weight > LIMIT else "vpmaddubsw") in config, config


@pytest.mark.parametrize("isa", ISAS)
def test_verification_runs_both_kernels(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cs.compile(LINES[0], target=isa, threads=1)
    seen: list[int] = []
    run = HostKernel._compute

    def counted(self: HostKernel, taken: dict[str, np.ndarray], results: dict[str, np.ndarray]) -> None:
        seen.append(int(np.abs(taken["wei"].astype(int)).max()))
        run(self, taken, results)

    monkeypatch.setattr(HostKernel, "_compute", counted)
    assert narrow_limits(kernel) == {"wei": LIMIT} and verify_kernel(kernel).ok
    assert seen == [128, 64]


@pytest.mark.parametrize(
    ("line", "limits"),
    [
        ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih28oc64oh28kh3ph1", {"wei": LIMIT}),
        ("--dt=s8:s8:s8 --stag=axb --dtag=axb mb1ic64ih28oc64oh28kh3ph1", {"wei": LIMIT}),
        ("mb1ic64ih14oc64oh14kh3ph1", {}),
        ("--dir=BWD_W mb1ic64ih14oc64oh14kh3ph1", {}),
    ],
)
def test_libraries_are_compared_within_the_limit_of_the_machine(line: str, limits: dict[str, float]) -> None:
    """A transform of bytes has no limit, but the products of bytes of libraries saturate."""
    kernel = cs.compile(line, target="avx2", threads=1)
    assert not narrow_limits(kernel) and limits_of_libraries(kernel) == limits


@pytest.mark.parametrize("isa", ISAS)
def test_chains_have_no_limit(isa: str) -> None:
    """Their weights are packed one by one, and no other kernel takes those that are beyond a limit."""
    line = "--dt=u8:s8:u8 mb1ic16ih6oc32oh6kh1 -> --dt=u8:s8:s32 mb1ic32ih6oc16oh6kh3ph1"
    kernel = cs.compile(line, target=isa, threads=1)
    assert kernel.artifact is not None and all(x >= FINITE for x in kernel.artifact.limits.values())
    assert verify_kernel(kernel).ok


@pytest.mark.parametrize("isa", ISAS)
def test_kernels_for_sizes_of_the_call_have_no_limit(isa: str) -> None:
    kernel = cs.compile("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic20ih5oc40oh5kh3ph1", target=isa, dynamic="mb,ih,iw")
    assert all(x >= FINITE for x in kernel.artifact.limits.values())
