"""Sizes of the call on a device of OpenCL: a kernel for each size, behind the interface of dynamic kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_driver import require_opencl

import convsmith as cs
from convsmith.frontend import any_sizes
from convsmith.frontend.host_kernels import host_kernel
from convsmith.runtime.host_kernel import HostKernel

LINE = "--stag=axb --dtag=axb mb1ic3ih6oc4oh6kh3ph1"
WINDOW = "mb1ic3ih9oc4oh5kh3sh2ph1"


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).integers(-4, 5, shape).astype(np.float32)


CALLS = {
    "gradient": (f"--dir=BWD_D {WINDOW}", "mb,oh,ow", [
        {"diff_dst": numbers(2, 4, 3, 5), "wei": numbers(4, 3, 3, 3), "pads": ((0, 1), 0)},
        {"diff_dst": numbers(1, 4, 6, 2), "wei": numbers(4, 3, 3, 3)},
    ]),
    "weights": (f"--dir=BWD_WB {WINDOW}", "mb,ih,iw", [{"src": numbers(2, 3, 7, 5), "diff_dst": numbers(2, 4, 4, 3)}]),
    "deconvolution": ("--deconv mb1ic4ih5oc3oh9kh3sh2ph1", "mb,ih,iw", [
        {"src": numbers(2, 4, 3, 5), "wei": numbers(3, 4, 3, 3), "pads": 0},
    ]),
    "product": ("--matmul 7x5:5x19", "m", [{"src": numbers(m, 5), "wei": numbers(5, 19)} for m in (3, 11)]),
    "chain": ("mb1ic4ih6oc8oh6kh1 -> g8mb1ic8ih6oc8oh6kh3ph1", "mb,ih,iw", [
        {"src": numbers(2, 4, 5, 7), "wei_1": numbers(8, 4, 1, 1), "wei_2": numbers(8, 1, 1, 3, 3)},
    ]),
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", CALLS)
def test_calls_compute_what_the_kernel_for_all_sizes_does(kind: str) -> None:
    require_opencl()
    line, dims, calls = CALLS[kind]
    device, cpu = (cs.compile(line, target=target, dynamic=dims, threads=1) for target in ("opencl", "generic"))
    assert device.sizes and device.requirements == cpu.requirements
    for arrays in calls:
        found, truth = device.run(**arrays), cpu.run(**arrays)
        assert found.keys() == truth.keys()
        for name, result in truth.items():
            np.testing.assert_array_equal(found[name], result)


def test_each_size_has_a_kernel_and_all_take_the_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    require_opencl()
    made: list[str] = []

    def noted(problem: cs.Conv, *others: Any) -> HostKernel:
        made.append(str(problem))
        return host_kernel(problem, *others)

    monkeypatch.setattr(any_sizes, "host_kernel", noted)
    device, cpu = (cs.compile(LINE, target=t, dynamic="mb,ih,iw", threads=1) for t in ("opencl", "generic"))
    w = numbers(4, 3, 3, 3)
    packed = device.pack(w)
    for shape in ((2, 3, 5, 7), (1, 3, 6, 6), (2, 3, 5, 7)):
        x = numbers(*shape)
        for pads in (None, 0):
            truth = cpu(x, w, pads=pads)
            np.testing.assert_array_equal(device(x, w, pads=pads), truth)
            np.testing.assert_array_equal(device(x, packed, pads=pads), truth)
            out = np.empty_like(truth)
            device.bind(x, packed, out, pads)()
            np.testing.assert_array_equal(out, truth)
    assert len(made) == 4
    assert device(numbers(0, 3, 5, 5), w).shape == (0, 4, 5, 5) and len(made) == 4
    w[0, 0, 0, 0] = np.inf
    x = np.zeros((1, 3, 6, 6), np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(device(x, w), cpu(x, w))


def test_questions_are_about_the_sizes_of_the_line_and_wrong_sizes_are_refused() -> None:
    """No device is needed."""
    kernel = cs.compile(LINE, target="sm_80", dynamic="mb,ih,iw")
    page = kernel.explain()
    assert "sizes         those of a call: ic == 3, mb >= 0, ih >= 0, iw >= 0; each has a kernel" in page
    assert "occupancy" in page and ".target sm_80" in kernel.ptx() and "groups" in str(kernel.plan())
    for call, text in (
        (lambda: kernel(numbers(1, 4, 6, 6), numbers(4, 3, 3, 3)), "src has ic=4; the kernel is for ic=3"),
        (lambda: cs.compile(LINE, target="sm_80", dynamic="oc"), "'oc' is fixed; legal are mb, ih, iw"),
    ):
        with pytest.raises(cs.UsageError, match=text):
            call()
