"""Linear layers, means and gates of a network run in the segments of its convolutions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from optimized import by_layers, segments  # noqa: E402, F401
from test_optimize import check, whole  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from convsmith.torch.channel_layers import GateLayer, MeanLayer  # noqa: E402
from convsmith.torch.linear import LinearLayer  # noqa: E402

pytestmark = pytest.mark.usefixtures("by_layers")


def kinds(model: nn.Module, kind: type) -> int:
    """Return the number of layers of a kind in the segments of a network."""
    return sum(isinstance(place.layer, kind) for s in segments(model) for place in s._places)


class Squeezed(nn.Module):
    """A block whose channels are multiplied by a function of their means; `form` says how it is written."""

    def __init__(self, channels: int, form: str) -> None:
        super().__init__()
        self.conv, self.form = nn.Conv2d(channels, channels, 3, padding=1, groups=channels), form
        self.down, self.up = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)
        self.pool, self.last = nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        mean = functional.adaptive_avg_pool2d(x, (1, 1)) if self.form == "function" else self.pool(x)
        gate = functional.relu(self.up(self.down(mean)))
        if self.form == "read later":
            return self.last(gate * x) + x[:, :4]
        return self.last(torch.mul(x, gate) if self.form == "function" else gate * x)


@pytest.mark.parametrize("form, runs", [("module", 1), ("function", 1), ("read later", 2)])
@pytest.mark.parametrize("batch, channels", [(1, 16), (3, 13)])
def test_a_gate_stands_between_convolutions(form: str, runs: int, batch: int, channels: int) -> None:
    """Sixteen pixels: their mean is exact."""
    made = check(Squeezed(channels, form), whole(batch, channels, 4, 4), ours=4, runs=runs)
    assert (kinds(made, MeanLayer), kinds(made, GateLayer), kinds(made, LinearLayer)) == (1, 1, 0)
    places = [p for s in segments(made) for p in s._places]
    # The product replaces its source, unless something else reads that.
    assert [p.in_place for p in places if isinstance(p.layer, GateLayer)] == [form != "read later"]


def test_the_head_of_a_network_is_one_run_with_it() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(8, 5), nn.ReLU(),
        nn.Linear(5, 3, bias=False),
    )  # fmt: skip
    made = check(model, whole(2, 3, 6, 6), ours=1, runs=1)
    assert (kinds(made, MeanLayer), kinds(made, LinearLayer)) == (1, 2)
    assert "2 of 2 linear layers too" in made.convsmith_report.summary()
    x = whole(5, 3, 10, 6)
    with torch.no_grad():
        assert torch.allclose(made(x), model(x), rtol=1e-5, atol=1e-4)


class Mixed(nn.Module):
    """A block as ConvNeXt's: the products read rows of channels, their result has channels in the second dim."""

    def __init__(self, c: int, per_channel: bool = True) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(c, c, 3, padding=1, groups=c), nn.LayerNorm(c, elementwise_affine=False)
        self.fc1, self.fc2 = nn.Linear(c, 2 * c), nn.Linear(2 * c, c)
        self.scale = nn.Parameter(torch.ones(c, 1, 1) if per_channel else torch.ones(c, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.fc1(self.norm(self.conv(x).permute(0, 2, 3, 1)).round()))
        return x + self.scale * self.fc2(y).permute(0, 3, 1, 2)


@pytest.mark.parametrize("per_channel", [True, False])
def test_products_with_a_scale_and_a_residual(per_channel: bool) -> None:
    made = check(nn.Sequential(Mixed(8, per_channel), Mixed(8, per_channel)), whole(2, 8, 6, 6), ours=2)
    layers = [p.layer for s in segments(made) for p in s._places if isinstance(p.layer, LinearLayer)]
    assert [layer.folded for layer in layers] == (["relu", "norm+add"] if per_channel else ["relu", ""]) * 2
    assert [layer.moved for layer in layers] == [False, True] * 2


def test_a_value_that_is_read_in_two_orders_ends_a_run() -> None:
    """The linear layer reads the last dim of an image, which the convolution has as columns."""

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear, self.after = nn.Conv2d(3, 4, 3), nn.Linear(6, 5), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.after(self.linear(self.conv(x)))

    made = check(Columns(), whole(2, 3, 8, 8), ours=2, runs=3)
    assert kinds(made, LinearLayer) == 1


def test_means_and_gates_of_other_values_stay() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.other, self.pool = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1)
            self.one = nn.Conv2d(4, 1, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.conv(x)
            maps = y * self.other(x), y * self.pool(x.sum(1, keepdim=True)), y * self.one(self.pool(y))
            return self.pool(x), *maps, functional.adaptive_avg_pool2d(y, 2)

    made = check(Net(), whole(1, 3, 4, 4), ours=3)
    assert (kinds(made, MeanLayer), kinds(made, GateLayer)) == (1, 0)


