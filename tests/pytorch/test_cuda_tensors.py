"""Tensors of a GPU, without a GPU: tensors of the host that the interpreter of PTX computes on."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ptx.torch_device import STREAM, TensorDriver, pretend  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

import convsmith as cs  # noqa: E402
import convsmith.torch as ct  # noqa: E402
from convsmith.torch import devices  # noqa: E402


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> TensorDriver:
    return pretend(monkeypatch, (8, 0))


def integers(*shape: int, dtype: Any = torch.float32, last: bool = True) -> Tensor:
    made = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)
    return made.to(memory_format=torch.channels_last) if last else made


CASES: dict[str, tuple[Any, ...]] = {
    "f32": (torch.float32, (2, 4, 5, 6), (8, 4, 3, 3), {"padding": 1}, True),
    "bf16": (torch.bfloat16, (1, 16, 4, 4), (16, 16, 3, 3), {"padding": 1, "stride": 2}, True),
    "f16": (torch.float16, (1, 8, 4, 4), (8, 8, 1, 1), {}, True),
    "groups": (torch.float32, (1, 4, 4, 4), (4, 1, 3, 3), {"groups": 4, "padding": 1}, True),
    "first": (torch.float32, (1, 4, 4, 5), (4, 4, 3, 3), {}, False),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_convolutions_run_on_the_gpu(driver: TensorDriver, name: str, bias: bool) -> None:
    dtype, x_shape, w_shape, options, last = CASES[name]
    x, w = integers(*x_shape, dtype=dtype, last=last), integers(*w_shape, dtype=dtype, last=last)
    b = integers(w_shape[0], dtype=dtype, last=False) if bias else None
    wanted = functional.conv2d(x.double(), w.double(), None if b is None else b.double(), **options).to(dtype)
    for _ in range(2):
        driver.calls.clear()
        y = ct.conv2d(x, w, b, **options)
        assert torch.equal(y, wanted) and y.is_contiguous(memory_format=torch.channels_last) >= last
    assert {*driver.streams} == {STREAM}
    assert not {"cuMemcpyHtoD", "cuMemcpyDtoH", "cuStreamSynchronize", "cuPointerGetAttribute"} & {*driver.calls}


def test_gradients_are_computed_there(driver: TensorDriver) -> None:
    x, w, b = integers(1, 4, 4, 4), integers(4, 4, 3, 3), integers(4, last=False)
    ours, theirs = ([t.clone().requires_grad_() for t in (x, w, b)] for _ in range(2))
    for function, tensors in ((ct.conv2d, ours), (functional.conv2d, theirs)):
        y = function(*tensors, padding=1)
        y.backward(torch.ones_like(y))
    for a, e in zip(ours, theirs):
        assert torch.equal(a.grad, e.grad)
    assert driver.calls.count("cuLaunchKernel") >= 3


def test_transposed_convolutions(driver: TensorDriver) -> None:
    x, w = integers(1, 4, 3, 3), integers(4, 4, 3, 3)
    y = ct.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    assert torch.equal(y, functional.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1))
    assert driver.streams


def test_weights_that_are_not_finite(driver: TensorDriver) -> None:
    """The tensor is looked at again after a write to it."""
    x, w = integers(1, 4, 4, 4), integers(8, 4, 3, 3)
    wanted = ct.conv2d(x, w, padding=1)
    w[0, 0, 0, 0] = torch.inf
    for _ in range(2):
        y = ct.conv2d(x, w, padding=1)
        assert torch.equal(y[:, 1:], wanted[:, 1:]) and not y[:, 0, 0].isnan().any(), "padding is absent"


def test_misaligned_and_empty_tensors(driver: TensorDriver) -> None:
    room = torch.zeros(1 + 4 * 25)
    x = room[1:].view(1, 5, 5, 4).permute(0, 3, 1, 2)
    x.copy_(integers(1, 4, 5, 5))
    w = integers(4, 4, 3, 3)
    assert x.data_ptr() % 16
    assert torch.equal(ct.conv2d(x, w), functional.conv2d(x, w))
    w.requires_grad_()
    y = ct.conv2d(x[:0], w)
    assert y.shape == (0, 4, 3, 3)
    y.backward(y)
    assert torch.equal(w.grad, torch.zeros_like(w))


def test_several_devices_are_refused(driver: TensorDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = integers(1, 4, 4, 4), integers(4, 4, 1, 1)
    monkeypatch.setattr(devices, "device_of", lambda t: torch.device("cpu") if t is w else torch.device("cuda", 0))
    with pytest.raises(cs.UsageError, match="the tensors are on cuda:0, cpu; legal is one device"):
        ct.conv2d(x, w)
