"""Training steps of a small network: loss and gradients beside torch's eager kernels."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ct = pytest.importorskip("convsmith.torch")


class Network(torch.nn.Module):  # type: ignore[misc]
    """Convolutions of every kind: strided, depthwise, pointwise, dilated and transposed; `functions` computes them."""

    def __init__(self, functions: ModuleType) -> None:
        super().__init__()
        self.functions = functions
        shapes = [(16, 3, 3, 3), (16, 1, 3, 3), (24, 16, 1, 1), (24, 24, 3, 3), (24, 8, 2, 2)]
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(s) * 0.2) for s in shapes)
        self.biases = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(n) * 0.2) for n in (16, 16, 24, 24, 8))
        self.norm = torch.nn.BatchNorm2d(24)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        f, (a, b, c, d, e), (p, q, r, s, t) = self.functions, self.weights, self.biases
        x = f.conv2d(x, a, p, stride=2, padding=1).relu()
        x = f.conv2d(x, b, q, padding="same", groups=16).relu()
        x = self.norm(f.conv2d(x, c, r))
        x = x + f.conv2d(x, d, s, padding=2, dilation=2)
        x = f.conv_transpose2d(x, e, t, stride=2)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("last", [False, True])
def test_steps_of_a_small_network(last: bool) -> None:
    torch.manual_seed(1)
    theirs = Network(torch.nn.functional)
    ours = Network(ct)
    ours.load_state_dict(theirs.state_dict())
    models = [ours, theirs]
    if last:
        models = [model.to(memory_format=torch.channels_last) for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
    x, labels = torch.randn(4, 3, 16, 14), torch.randint(0, 10, (4,))
    x = x.to(memory_format=torch.channels_last) if last else x
    first = 0.0
    for _ in range(4):
        losses = []
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), labels)
            loss.backward()
            losses.append(loss)
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: name + text)
        for optimizer in optimizers:
            optimizer.step()
        first = first or losses[0].item()
    assert losses[0].item() < first
