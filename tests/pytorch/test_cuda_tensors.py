"""Tensors of a GPU, without a GPU: tensors of the host that the interpreter of PTX computes on."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ptx.torch_device import STREAM, TensorDriver, pretend  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
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


@pytest.mark.sampled(10, "bias")
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
    with pytest.raises(cs.UsageError, match="the second tensor: is on cpu; legal is cuda:0, where input is"):
        ct.conv2d(x, w)


class Block(torch.nn.Module):  # type: ignore[misc]
    """A block of a residual network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last_norm = (torch.nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.last_norm(self.second(y)) + x)


def block(channels: int, dtype: Any) -> Block:
    """Return a block of small integer weights, whose norms are exact."""
    torch.manual_seed(0)
    made = Block(channels).eval()
    for conv in (made.first, made.second):
        conv.weight.data = torch.randint(-1, 2, conv.weight.shape).float()
    for norm in (made.norm, made.last_norm):
        norm.eps, norm.bias.data = 0.0, torch.randint(-2, 3, norm.bias.shape).float()
    return made.to(dtype).to(memory_format=torch.channels_last)


@pytest.mark.wide
@pytest.mark.parametrize("capability, dtype", [((8, 0), torch.float32), ((9, 0), torch.bfloat16)])
def test_a_network_runs_on_the_gpu(monkeypatch: pytest.MonkeyPatch, capability: Any, dtype: Any) -> None:
    driver = pretend(monkeypatch, capability)
    network, x = block(16, dtype), integers(1, 16, 4, 4, dtype=dtype)
    fast = ct.optimize(network, x, keep_faster=False)
    report = fast.convsmith_report
    assert [row.runner for row in report.rows] == ["convsmith"] * len(report.rows), report
    assert [*fast.convsmith_graphs] == [""], report.divided
    with torch.inference_mode():
        y, again = fast(x), fast(x)
        driver.calls.clear()
        driver.streams.clear()
        assert torch.equal(fast(x), y) and torch.equal(again, y)
        torch.testing.assert_close(y, network(x), rtol=2 * torch.finfo(dtype).eps, atol=0.0)
    assert driver.calls.count("cuLaunchKernel") == 2 and driver.streams == [STREAM, STREAM]
    assert not {x for x in driver.calls if x.startswith(("cuMem", "cuPointer", "cuStream"))}
    with torch.inference_mode():
        other = integers(2, 16, 3, 5, dtype=dtype)
        torch.testing.assert_close(fast(other), network(other), rtol=2 * torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.wide
def test_a_network_takes_sources_that_begin_anywhere(driver: TensorDriver) -> None:
    network, room = block(4, torch.float32), torch.zeros(1 + 4 * 16)
    x = room[1:].view(1, 4, 4, 4).permute(0, 3, 1, 2)
    x.copy_(integers(1, 4, 4, 4))
    fast = ct.optimize(network, integers(1, 4, 4, 4), keep_faster=False)
    assert x.data_ptr() % 16
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), network(x))


class Flattened(torch.nn.Module):  # type: ignore[misc]
    """A convolution whose result is viewed as a row by code that is no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 1, bias=False)
        self.conv.weight.data = integers(4, 4, 1, 1, last=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).view(1, -1) if x.sum() < 1e9 else x


def test_results_are_contiguous_where_the_code_of_a_network_views_them(driver: TensorDriver) -> None:
    """By default the images of the GPU have their channels last in memory, of which a row is no view."""
    network, x = Flattened().eval(), integers(1, 4, 3, 3, last=False)
    fast = ct.optimize(network, x, keep_faster=False)
    assert fast.convsmith_report.ours == 1, fast.convsmith_report
    with torch.inference_mode():
        assert torch.equal(fast(x), network(x)) and driver.streams


@pytest.mark.wide
def test_layers_are_measured_beside_those_of_torch(driver: TensorDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(devices, "finish", waits.append)
    monkeypatch.setattr("convsmith.torch.choice.SHORT_SECONDS", 0.0)
    fast = ct.optimize(block(4, torch.float32), integers(1, 4, 3, 3))
    assert {row.runner for row in fast.convsmith_report.rows} == {"torch"}, "the interpreter is slower"
    assert waits


def test_what_the_gpu_has_no_kernel_for_stays_with_torch(driver: TensorDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise cs.UnsupportedError("no kernel of sm_80", code="test")

    monkeypatch.setattr("convsmith.torch.gpu_network.compile", refuse)
    network, x = block(4, torch.float32), integers(1, 4, 3, 3)
    fast = ct.optimize(network, x)
    assert [(row.runner, row.why) for row in fast.convsmith_report.rows] == [("torch", "no kernel of sm_80")] * 2
    assert torch.equal(fast(x), network(x)) and not driver.streams


def test_a_graph_of_the_gpu_calls_our_operators() -> None:
    """Shapes without data stay on their device; the backend of torch.compile takes convolutions there, but not those of
    another GPU.
    """
    from convsmith.torch.compile_backend import _suits

    with FakeTensorMode():
        x, w = (torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in ((2, 8, 5, 5), (4, 8, 3, 3)))
        x = x.to(memory_format=torch.channels_last)
        y = ct.conv2d(x, w)
        elsewhere = torch.empty(2, 8, 5, 5, device="cuda:1")
    assert (y.shape, y.device, y.dtype) == ((2, 4, 3, 3), torch.device("cuda", 0), torch.bfloat16)
    assert y.is_contiguous(memory_format=torch.channels_last)
    graph = torch.fx.Graph()
    for name, value, suits in (("x", x, True), ("other", elsewhere, False)):
        node = graph.placeholder(name)
        node.meta["example_value"] = value
        assert _suits(node) is suits
