"""Networks that are optimized under autocast compute in its type on our kernels, and give results of torch's types."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from optimized import functions, parts  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from convsmith.torch import optimize  # noqa: E402
from convsmith.torch.networks import NetworkRun  # noqa: E402
from convsmith.torch.part_forward import OtherCallsWarning  # noqa: E402


def whole(*shape: int, seed: int = 0) -> Tensor:
    """Numbers so small that all sums of products are exact in every type."""
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).float()


class Network(nn.Module):
    """Layers with whole numbers for parameters, and the code of a forward."""

    def __init__(self, code: Callable[[Any, Tensor], Any], *layers: nn.Module) -> None:
        super().__init__()
        self.code, self.layers = code, nn.ModuleList(layers)
        for n, x in enumerate((*self.parameters(), *self.buffers())):
            x.data = whole(*x.shape, seed=n + 1).to(x.dtype)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eps, m.running_var = 0.0, torch.full_like(m.running_var, 0.25)

    def forward(self, x: Tensor) -> Any:
        return self.code(self.layers, x)


NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}
NETWORKS: dict[str, tuple[Callable[[Any, Tensor], Any], tuple[Callable[[], nn.Module], ...]]] = {
    "one layer": (lambda m, x: m[0](x), (lambda: nn.Conv2d(4, 4, 3, padding=1),)),
    "by name": (lambda m, x: m[0](input=x), (lambda: nn.Conv2d(4, 4, 3, bias=False),)),
    "norm": (lambda m, x: torch.relu(m[1](m[0](x))), (lambda: nn.Conv2d(4, 4, 3), lambda: nn.BatchNorm2d(4))),
    "an addition of f32": (lambda m, x: torch.relu(m[0](x) + x), (lambda: nn.Conv2d(4, 4, 1),)),
    "an addition of its type": (lambda m, x: m[0](x) + m[1](x), (lambda: nn.Conv2d(4, 4, 1),) * 2),
    "a product with f32": (lambda m, x: m[0](x) * m[1].weight.view(4, 1, 1),
                           (lambda: nn.Conv2d(4, 4, 1), lambda: nn.BatchNorm2d(4))),
    "two layers": (lambda m, x: m[1](m[0](x).relu()), (lambda: nn.Conv2d(4, 4, 1), lambda: nn.Conv2d(4, 4, 1))),
    "transposed": (lambda m, x: m[0](x), (lambda: nn.ConvTranspose2d(4, 4, 3, 2),)),
    "depthwise": (lambda m, x: m[0](x), (lambda: nn.Conv2d(4, 4, 3, groups=4),)),
    "one axis": (lambda m, x: m[0](x.flatten(2)), (lambda: nn.Conv1d(4, 4, 3),)),
    "three axes": (lambda m, x: m[0](x.unsqueeze(2)), (lambda: nn.Conv3d(4, 4, (1, 3, 3)),)),
    "linear": (lambda m, x: m[0](x), (lambda: nn.Linear(4, 4),)),
    "a function": (lambda m, x: functional.conv2d(x, m[0].weight, m[0].bias), (lambda: nn.Conv2d(4, 4, 3),)),
    "a matrix product": (lambda m, x: torch.matmul(m[0](x), x), (lambda: nn.Conv2d(4, 4, 1),)),
    "back to f32": (lambda m, x: m[1](m[0](x).float()) + x, (lambda: nn.Conv2d(4, 4, 1), lambda: nn.Conv2d(4, 4, 1))),
    "a mean and a gate": (
        lambda m, x: (y := m[0](x)) * torch.relu(m[1](functional.adaptive_avg_pool2d(y, 1))),
        (lambda: nn.Conv2d(4, 4, 1), lambda: nn.Conv2d(4, 4, 1)),
    ),
    "a function that torch computes in f32": (
        lambda m, x: m[1](functional.avg_pool3d(m[0](x), (1, 2, 2))),
        (lambda: nn.Conv2d(4, 4, 1), lambda: nn.Conv2d(4, 4, 1)),
    ),
}  # fmt: skip
"""Forwards that autocast changes, with their layers."""


@pytest.mark.sampled(6, "dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    code, layers = NETWORKS[name]
    model, x = Network(code, *(make() for make in layers)).eval(), whole(2, 4, 4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        made = optimize(model, x, threads=1, keep_faster=False)
        for source in (x, -x, whole(1, 4, 4, 4, seed=9)):
            ours, theirs = made(source), model(source)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert torch.equal(ours, theirs)
    products = [p for run in functions(made) for p, _ in run.problems()]
    assert {p.dt[:2] for p in products} == {(NAMES[dtype],) * 2}, "all products multiply the type of autocast"


def test_numbers_of_double_precision_are_not_cast() -> None:
    code, layers = NETWORKS["two layers"]
    model, x = Network(code, *(make() for make in layers)).eval().double(), whole(2, 4, 4, 4).double()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made = optimize(model, x, threads=1, keep_faster=False)
        assert made(x).dtype is torch.float64 and torch.equal(made(x), model(x))
    assert {part.dtype for part in parts(made)} == {torch.float64}


STATES = (None, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("first", STATES, ids=str)
def test_calls_under_another_autocast_are_torchs(first: torch.dtype | None) -> None:
    """A graph is for one type; calls under another one run the network's own code, which a warning says once."""
    code, layers = NETWORKS["two layers"]
    model, x = Network(code, *(make() for make in layers)).eval(), whole(2, 4, 4, 4)

    def under(dtype: torch.dtype | None) -> Any:
        return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)

    with torch.no_grad(), under(first):
        made = optimize(model, x, threads=1, keep_faster=False)
    for state in STATES:
        again = copy.deepcopy(made)
        with warnings.catch_warnings(record=True) as caught, torch.no_grad(), under(state):
            warnings.simplefilter("always")
            ours, theirs = again(x), model(x)
        assert ours.dtype is theirs.dtype is (state or torch.float32) and torch.equal(ours, theirs)
        said = [str(x.message) for x in caught if issubclass(x.category, OtherCallsWarning)]
        where = f"under torch.autocast to {state}, with" if state else "without the torch.autocast with"
        assert [where in text for text in said] == [True] * (state is not first)


def test_a_region_of_autocast_inside_of_a_network() -> None:
    """The network is not one graph; the layers inside of the region compute in its type, those outside of it in f32."""

    def code(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = m[0](x)
            with torch.autocast("cpu", enabled=False):
                z = m[1](y.float())
        return m[0](y.float() + z)

    model, x = Network(code, nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)).eval(), whole(2, 4, 4, 4)
    with torch.no_grad():
        made = optimize(model, x, threads=1, keep_faster=False)
        assert made.convsmith_report.divided == {"": "it enters or leaves torch.autocast"}
        assert torch.equal(made(x), model(x))
    types = {name: [g.convsmith.dtype for g in graphs] for name, graphs in made.convsmith_graphs.items()}
    assert types == {"layers.0": [torch.bfloat16, torch.float32], "layers.1": [torch.float32]}


def test_a_wrong_graph_in_a_region_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is compared under the autocast of its calls, where its kernels run."""

    def code(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return m[0](x)

    right = NetworkRun.forward
    monkeypatch.setattr(NetworkRun, "forward", lambda self, *tensors: right(self, *tensors) + 1)
    model, x = Network(code, nn.Conv2d(4, 4, 1)).eval(), whole(2, 4, 4, 4)
    with torch.no_grad():
        made = optimize(model, x, threads=1, keep_faster=False)
        assert torch.equal(made(x), model(x))
    assert "its graph gives results that differ by" in made.convsmith_report.divided["layers.0"]


def test_torch_keeps_layers_that_it_runs_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of the type of autocast are measured, beside torch's operators under it."""
    from convsmith.torch import native
    from convsmith.torch.choice import LeastTimes, Times

    seen: list[Any] = []

    def least_seconds(ours: Callable[[], Any], theirs: Callable[[], Any], **_: object) -> LeastTimes:
        seen.append((ours().dtype, theirs().dtype, torch.is_autocast_enabled("cpu")))
        return LeastTimes(2.0, 1.0, True)

    monkeypatch.setattr(native, "least_seconds", least_seconds)
    monkeypatch.setattr(native, "kept_times", lambda what, target, measure: Times(*measure(1)))
    code, layers = NETWORKS["one layer"]
    model, x = Network(code, *(make() for make in layers)).eval(), whole(2, 4, 4, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        made = optimize(model, x, threads=1)
        assert not made.convsmith_report.functions and made(x).dtype is torch.bfloat16
    assert seen == [(torch.bfloat16, torch.bfloat16, True)]
