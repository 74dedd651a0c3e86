"""Models whose runs do more than to compute from tensors: each computes what eager computes, and none makes `optimize`
raise.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from optimized import assert_alike, check  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.torch import optimize  # noqa: E402

X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """A convolution, with a function of it and of the source as forward."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], *layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.more, self.code = nn.Conv2d(4, 4, 3, padding=1), nn.ModuleList(layers), forward
        self.register_buffer("mean", torch.zeros(4, 1, 1))
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        return self.code(self, x)


def check_model(forward: Callable[[Any, Tensor], Any], *layers: nn.Module, ours: int, x: Tensor = X) -> nn.Module:
    made = check(Model(forward, *layers).eval(), x)
    assert made.convsmith_report.ours == ours
    return made


class Standardised(nn.Conv2d):
    """A convolution of a class of its own, which computes its weights."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


def layer(transposed: bool) -> nn.Module:
    torch.manual_seed(2)
    if transposed:
        return nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1)
    return nn.Conv2d(4, 6, 3, stride=2, padding=1)


def pruned(module: nn.Module) -> nn.Module:
    prune.l1_unstructured(module, "weight", 0.5)  # type: ignore[no-untyped-call]
    prune.random_unstructured(module, "bias", 0.5)  # type: ignore[no-untyped-call]
    return module


WEIGHTS: dict[str, Callable[[Any], nn.Module]] = {
    "weight_norm": weight_norm,
    "spectral_norm": spectral_norm,
    "prune": pruned,
    "parametrizations.weight_norm": parametrizations.weight_norm,
    "parametrizations.spectral_norm": parametrizations.spectral_norm,
    "parametrizations.orthogonal": parametrizations.orthogonal,
    "two parametrizations": lambda m: parametrize.register_parametrization(
        parametrizations.weight_norm(m), "weight", Doubled()
    ),
}


@pytest.mark.sampled(14, "inside", "transposed")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_computed_weights_are_folded(kind: str, transposed: bool, inside: bool) -> None:
    body, x = nn.Sequential(WEIGHTS[kind](layer(transposed)), nn.ReLU()), torch.randn(2, 4, *[8] * (2 - transposed))
    tail = nn.Identity() if inside else WEIGHTS[kind](nn.Linear(body(x).shape[-1], 3))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.tail = body, tail

        def forward(self, x: Tensor) -> Tensor:
            return self.tail(self.body(x)) if not inside or x.sum() != 12345 else x

    report = check(Network().eval(), x).convsmith_report
    assert (report.ours, report.convolutions) == (1, 1) and ("" in report.divided) is inside
    assert [row.runner for row in report.rows if row.kind == "linear"] == ["convsmith"] * (not inside)


def test_weights_of_classes_of_their_own_are_folded() -> None:
    made = check(nn.Sequential(Standardised(4, 8, 3), nn.ReLU()).eval(), X)
    assert [row.names for row in made.convsmith_report.rows] == [("0",)] and made.convsmith_report.ours == 1


def counted(model: Any, x: Tensor) -> Tensor:
    model.calls += 1
    return model.conv(x) * model.calls


def accumulated(model: Any, x: Tensor) -> Tensor:
    y = model.conv(x)
    model.mean.add_(y.mean((0, 2, 3)).reshape(4, 1, 1))
    return y - model.mean


def written(model: Any, x: Tensor) -> Tensor:
    x.mul_(2)
    return model.conv(x)


def written_constant(model: Any, x: Tensor) -> Tensor:
    total = torch.zeros(2, 4, 6, 6)
    total += model.conv(x)
    return total


def gradient(model: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(model.conv(x).square().sum(), x)[0]


def gradient_of_weights(model: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return torch.autograd.grad(model.conv(x).square().sum(), model.conv.weight)[0]


EFFECTS: dict[str, tuple[Callable[[Any, Tensor], Any], int]] = {
    "counts its calls": (counted, 1),
    "accumulates in a buffer": (accumulated, 1),
    "writes its input": (written, 1),
    "writes its input in place": (lambda m, x: m.conv(functional.relu(x, inplace=True)), 1),
    "writes a constant": (written_constant, 1),
    "draws a constant": (lambda m, x: m.conv(x) + torch.randn(4, 1, 1), 1),
    "draws like a tensor": (lambda m, x: m.conv(x + torch.randn_like(x)), 1),
    "dropout": (lambda m, x: functional.dropout(m.conv(x), 0.5, True), 1),
    "dropout of its source": (lambda m, x: m.conv(functional.dropout(x, 0.5, True, False)), 1),
    "view of a result": (lambda m, x: m.conv(x).view(2, -1), 1),
    "view as another type": (lambda m, x: m.conv(x).view(torch.int32).view(torch.float32), 1),
    "view in its own code": (lambda m, x: m.conv(x).view(2, -1) if x.sum() != 12345 else x, 1),
    "strides in its own code": (lambda m, x: m.conv(x).as_strided((2, 4), (1, 2)), 1),
    "a gradient by its source": (gradient, 0),
    "a gradient by its weights": (gradient_of_weights, 0),
    "numbers of tensors": (lambda m, x: m.conv(x) * float(x.mean()), 1),
    "ranks": (lambda m, x: m.conv(x).argmax(1), 1),
    "one of two": (lambda m, x: m.conv(x) if x.dim() == 4 else m.more[0](x), 1),
    "a weight by itself": (lambda m, x: (m.conv(x), m.conv.weight, m.mean), 1),
    "its training flag": (lambda m, x: m.conv(x) * (2 if m.training else 3), 1),
    "numpy": (lambda m, x: torch.from_numpy(m.conv(x).numpy() * 2), 1),
    "a list of tensors": (lambda m, x: torch.cat([m.conv(y) for y in x.split(1)]), 2),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("effect", EFFECTS)
def test_models_with_effects_compute_what_eager_computes(effect: str) -> None:
    forward, ours = EFFECTS[effect]
    check_model(forward, nn.Conv2d(4, 4, 1), ours=ours)


@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: float(torch.rand(()))])
def test_draws_of_every_generator_are_drawn_in_each_call(draw: Callable[[], float]) -> None:
    model = Model(lambda m, x: m.conv(x) * draw()).eval()
    made = optimize(model, X, threads=1, keep_faster=False)
    assert made.convsmith_report.divided == {"": "it draws random numbers"} and made.convsmith_report.ours == 1
    first, second = made(X), made(X)
    assert not torch.equal(first, second)


def test_layers_in_training_mode_stay_what_they_are() -> None:
    model = nn.Sequential(
        nn.Dropout(0.5), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Dropout2d(0.5)
    ).eval()
    for n in (0, 2, 4):
        model[n].train()
    made = check(model, X)
    assert made.convsmith_report.ours == 2 and "it changes 2." in made.convsmith_report.divided[""]
    statistics = model[2].running_mean.clone()
    before = made[2].running_mean.clone()
    made(X)
    assert torch.equal(model[2].running_mean, statistics) and not torch.equal(made[2].running_mean, before)


def test_hooks_of_every_module_see_its_calls() -> None:
    seen: list[str] = []

    def result(name: str) -> Callable[..., Any]:
        return lambda m, args, y: (seen.append(name), y * 2)[1]

    def source(name: str) -> Callable[..., Any]:
        return lambda m, args: (seen.append(name), (args[0] + 1,))[1]

    model = Model(lambda m, x: m.more[0](m.conv(x)), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), Doubled())).eval()
    for name, module in model.named_modules():
        if name not in ("more", "more.0.0"):  # kernels run beside hooks
            module.register_forward_hook(result(f"{name} result"))
            module.register_forward_pre_hook(source(f"{name} source"))
    made = check(model, X)
    assert made.convsmith_report.ours == 2
    seen.clear()
    model(X)
    expected = list(seen)
    seen.clear()
    made(X)
    assert seen == expected and len(seen) == 10


@pytest.mark.parametrize("inside", [False, True])
def test_modules_with_hooks_stay_ours_in_code_that_is_no_graph(inside: bool) -> None:
    """They run on kernels before the code around them is tried, and the report keeps their rows."""
    body = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
    body.register_forward_hook(lambda m, args, y: y * 2)
    made = check_model(lambda m, x: m.conv(m.more[0](x)) if x.sum() != 12345 else x,
                       nn.Sequential(body, nn.Conv2d(4, 4, 1)) if inside else body, ours=2 + inside)  # fmt: skip
    rows = made.convsmith_report.rows
    assert all(row.runner == "convsmith" for row in rows) and sum(len(row.names) for row in rows) == 2 + inside


def test_attributes_methods_and_parameters_are_the_models() -> None:
    class Named(Model):
        size = 3

        @property
        def dtype(self) -> torch.dtype:
            return next(self.parameters()).dtype

        def twice(self, x: Tensor) -> Tensor:
            return self(self(x))

    model = Named(lambda m, x: m.conv(x)).eval()
    model.lock, model.config = threading.Lock(), {"a": [1, 2]}  # a lock cannot be copied
    made = optimize(model, X, threads=1, keep_faster=False)
    assert made.convsmith_report.ours == 1 and made.dtype is torch.float32 and made.size == 3
    assert made.config == model.config and made.config is not model.config and made.lock is model.lock
    assert list(made.state_dict()) == list(model.state_dict())
    assert made.conv.weight.data_ptr() == model.conv.weight.data_ptr()
    with torch.no_grad():
        assert_alike(made.twice(X), model.twice(X))


class Stubborn(Model):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copies")


def test_models_that_refuse_copies_are_optimized() -> None:
    model = Stubborn(lambda m, x: m.conv(x)).eval()
    made = optimize(model, X, threads=1, keep_faster=False)
    assert made is not model and "forward" not in vars(model) and made.convsmith_report.ours == 1
    with torch.no_grad():
        assert_alike(made(X), model(X))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torchscript_stay_as_they_are() -> None:
    script = torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 1)).eval())
    made = optimize(script, X, threads=1, keep_faster=False)
    assert made.convsmith_report.divided == {"": "it is compiled by torch.jit.script"}
    assert_alike(made(X), script(X))
    check_model(lambda m, x: m.more[0](m.conv(x)), script, ours=1)


def test_what_the_example_does_not_reach_is_named() -> None:
    made = check_model(lambda m, x: m.conv(x), nn.Conv2d(4, 4, 1), nn.Sequential(nn.Conv2d(4, 4, 1)), ours=1)
    why = {row.names: row.why for row in made.convsmith_report.rows if row.runner == "torch"}
    assert why == {("more.0", "more.1.0"): "the example does not call it"}


def test_examples_that_do_not_run_and_lazy_layers_are_refused_in_words() -> None:
    with pytest.raises(cs.UsageError, match=r"does not run on example_inputs: RuntimeError: .* to have 4 channels"):
        optimize(nn.Conv2d(4, 4, 1).eval(), X[:, :3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazy = nn.Sequential(nn.LazyConv2d(8, 3)).eval()
    with pytest.raises(cs.UsageError, match=r"0\.weight has no shape yet, .*; legal is a model that was called once"):
        optimize(lazy, X)
    lazy(X)
    assert optimize(lazy, X, threads=1, keep_faster=False).convsmith_report.ours == 1


def test_a_part_that_differs_from_eager_stays_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong function is found by the comparison on the example."""
    from convsmith.torch.networks import NetworkRun

    right = NetworkRun.forward
    monkeypatch.setattr(NetworkRun, "forward", lambda self, *given: right(self, *given) + (len(self.steps) > 1))
    made = check_model(lambda m, x: torch.softmax(m.conv(x), 1) * 2, ours=1)  # the convolution alone is one step
    assert "its graph gives results that differ by" in made.convsmith_report.divided[""]
