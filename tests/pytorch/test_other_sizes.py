"""Optimized networks called with other sizes than the example's: kernels for these sizes, also in graphs of torch."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
from callers import on_threads

torch = pytest.importorskip("torch")

from optimized import parts  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.torch import network_operator, networks, optimize  # noqa: E402
from convsmith.torch.sources import OtherSizesWarning  # noqa: E402


def whole(*shape: int) -> Tensor:
    """Return small whole numbers, whose sums of products are exact in f32."""
    return torch.randint(-2, 3, shape).float()


def exact(model: nn.Module) -> nn.Module:
    """Return the model in eval mode with small whole numbers as parameters."""
    with torch.no_grad():
        for x in model.parameters():
            x.copy_(whole(*x.shape))
    return model.eval()


class Network(nn.Module):
    """A residual in place, one that is an input, a layer of torch's between two runs, and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.depthwise, self.up = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.a(x))
        x = torch.relu(self.b(x) + x)
        y = nn.functional.max_pool2d(x, 2, 1)
        return self.up(torch.relu(self.c(self.depthwise(y)) + y)), x


def optimized(**options: Any) -> tuple[nn.Module, nn.Module]:
    model = exact(Network())
    return model, optimize(model, whole(1, 3, 9, 9), threads=1, keep_faster=False, **options)


def assert_same(ours: Any, theirs: Any) -> None:
    assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    """PyTorch computing would cause a warning."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", OtherSizesWarning)
        yield


def test_other_batches_and_images_run_on_kernels_for_their_sizes() -> None:
    model, made = optimized()
    report = made.convsmith_report
    assert "other sizes" not in str(report)
    for shape in ((1, 3, 9, 9), (3, 3, 9, 9), (2, 3, 12, 20), (1, 3, 31, 8), (3, 3, 9, 9)):
        for x in (whole(*shape), whole(*shape).contiguous(memory_format=torch.channels_last)):
            assert_same(made(x), model(x))
    (part,) = parts(made)
    assert [row.shapes for row in report.other_sizes if row.layers == 5] == [
        ((3, 3, 9, 9),), ((2, 3, 12, 20),), ((1, 3, 31, 8),),
    ]  # fmt: skip
    assert len(part.graphs) == 4
    assert "Calls with other sizes: 15 kernels, made in" in str(report)


def test_parameters_that_change_have_no_effect_at_sizes_with_functions() -> None:
    model, made = optimized()
    inputs = [whole(batch, 3, 9, 9) for batch in (1, 2)]
    expected = [model(x) for x in inputs]
    assert_same(made(inputs[1]), expected[1])
    for parameter in model.parameters():
        parameter.add_(1)
    for x, result in zip(inputs, expected):
        assert_same(made(x), result)
    x = whole(3, 3, 9, 9)
    with pytest.warns(OtherSizesWarning, match="later writes have changed its parameters"):
        assert_same(made(x), model(x))


def test_memory_is_kept_for_a_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "MAX_SIZES", 2)
    model, made = optimized()
    for batch in (2, 3, 4, 1, 2):
        x = whole(batch, 3, 9, 9)
        assert_same(made(x), model(x))
    assert [form[0][0][0] for form in parts(made)[0]._by_sizes] == [1, 4, 2]


def test_sizes_without_functions_are_torchs_after_one_warning() -> None:
    model = exact(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    made = optimize(model, whole(1, 3, 9, 9), threads=1, keep_faster=False)
    x = whole(0, 3, 9, 9)
    with pytest.warns(OtherSizesWarning, match=r"1 layers get sources of \(0, 3, 9, 9\), which PyTorch computes: "):
        assert torch.equal(made(x), model(x))
    assert torch.equal(made(x), model(x)), "no second warning"
    assert torch.equal(made(x := whole(3, 7, 7)), model(x)), "there is no batch"
    assert "2 convolutions by PyTorch (" in made.convsmith_report.summary()
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        made(whole(1, 3, 2, 2))
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 5 channels"):
        made(whole(1, 5, 9, 9))


def test_threads_and_copies_make_kernels_for_other_sizes() -> None:
    model, made = optimized()
    inputs = [whole(1 + n % 3, 3, 9 + n, 9) for n in range(6)]
    expected = [model(x) for x in inputs]

    def work(n: int) -> None:
        with torch.no_grad():
            for _ in range(10):
                assert_same(made(inputs[n]), expected[n])

    on_threads(work, range(6))
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert_same(again(inputs[1]), expected[1])
        assert [len(part.graphs) for part in parts(again)] == [1], "a copy makes functions of its own"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiler_of_torch_sees_one_operator_for_each_run(backend: str) -> None:
    model, made = optimized()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(made, backend=backend, fullgraph=True)
    for batch in (1, 2, 3, 4):  # the second one makes the size a symbol
        x = whole(batch, 3, 9, 9)
        assert_same(compiled(x), model(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_optimized_networks_are_exported_with_open_sizes() -> None:
    model, made = optimized()
    sizes = {0: torch.export.Dim("n", min=1, max=64), 2: torch.export.Dim("h", min=8, max=64)}
    program = torch.export.export(made, (whole(2, 3, 9, 9),), dynamic_shapes=({**sizes},))
    assert str(program.graph).count("torch.ops.aten.conv") == 5, "any process can load it"
    for shape in ((2, 3, 9, 9), (3, 3, 14, 9)):
        x = whole(*shape)
        assert_same(program.module()(x), model(x))
    given = (parts(made)[0]._name, [whole(2, 3, 9, 9)])
    assert set(torch.library.opcheck(network_operator.seen, given).values()) == {"SUCCESS"}
    del made
    with pytest.raises(cs.UsageError, match="its optimized network is gone"):
        network_operator.seen("network -1", [whole(2, 3, 9, 9)])
