"""`torch.compile(backend="convsmith")`: convolutions run on our operators, with gradients, and in one graph."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tomllib  # noqa: E402

from torch import _dynamo, nn  # noqa: E402
from torch._dynamo.backends import registry  # noqa: E402

import convsmith.torch.compile_backend as backend  # noqa: E402


class Net(nn.Module):
    """Two convolutions, one transposed, and what inductor compiles between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up = nn.Conv2d(3, 8, 3, 2, 1), nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, x: Any) -> Any:
        return self.up(torch.relu(self.first(x)) * 0.5).tanh()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The functions that inductor gets, graph by graph; eager runs the graph, because inductor's C++ takes seconds."""
    from torch._inductor import compile_fx

    graphs: list[list[str]] = []

    def compile(graph: Any, inputs: Any) -> Any:
        graphs.append([f"{n.target.__module__}.{n.target.__name__}" for n in graph.graph.nodes if callable(n.target)])
        return graph

    monkeypatch.setattr(compile_fx, "compile_fx", compile)
    _dynamo.reset()
    return graphs


def test_convolutions_are_ours_and_the_rest_is_inductors(seen: list[list[str]]) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 8, 8, requires_grad=True)
    compiled = torch.compile(model, backend=backend.NAME, fullgraph=True)
    expected = model(x)
    expected.sum().backward()
    wanted, x.grad = x.grad, None
    result = compiled(x)
    result.sum().backward()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(x.grad, wanted)
    (names,) = seen
    ours = [name for name in names if name.startswith("convsmith.torch.functional.")]
    assert [name.rpartition(".")[2] for name in ours] == ["conv2d", "conv_transpose2d"]
    assert any(name.endswith(".relu") for name in names)


def test_sizes_that_are_symbols(seen: list[list[str]]) -> None:
    torch.manual_seed(0)
    model = Net()
    compiled = torch.compile(model, backend=backend.NAME, fullgraph=True, dynamic=True)
    for shape in ((2, 3, 8, 10), (3, 3, 8, 12), (5, 3, 14, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(seen) == 1 and sum(name.startswith("convsmith.") for name in seen[0]) == 2


def test_graphs_without_gradients_are_functions_that_follow_their_parameters(seen: list[list[str]]) -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(model, backend=backend.NAME, fullgraph=True)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("convsmith.torch.choice.LEFT", 0.0)  # functions run, whatever they take
        for write in (lambda: None, lambda: model.first.weight.data.add_(1), lambda: model.up.bias.mul_(2)):
            write()
            for given in (x, x * 2):
                torch.testing.assert_close(compiled(given), model(given), rtol=1e-4, atol=1e-4)
    assert seen == [], "inductor compiles nothing"


def test_a_graph_that_writes_its_input_runs_once_a_call(seen: list[list[str]]) -> None:
    """No example run writes to the caller's tensors while the graph is compiled."""
    torch.manual_seed(0)
    model, x, y = nn.Conv2d(3, 4, 3).eval(), torch.zeros(1, 3, 5, 5), torch.zeros(1, 3, 5, 5)
    compiled = torch.compile(lambda x: model(x.add_(1)), backend=backend.NAME)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(y.add_(1)))
    assert torch.equal(x, y)


def test_convolutions_of_other_types_stay_torchs(seen: list[list[str]]) -> None:
    x, w = torch.randn(1, 2, 5, 5, dtype=torch.complex64), torch.randn(3, 2, 3, 3, dtype=torch.complex64)
    compiled = torch.compile(lambda x, w: torch.conv2d(x, w), backend=backend.NAME)
    torch.testing.assert_close(compiled(x, w), torch.conv2d(x, w))
    assert not any("convsmith" in name for name in seen[0])


def test_the_installed_package_registers_the_backend() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["torch_dynamo_backends"]
    assert EntryPoint(backend.NAME, points[backend.NAME], "torch_dynamo_backends").load() is backend.compile_graph


@pytest.mark.parametrize("installed", [False, True])
@pytest.mark.parametrize("imported", [False, True])
def test_the_backend_is_registered_once(installed: bool, imported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.list_backends()  # torch looks for entry points once
    point = EntryPoint(backend.NAME, f"{backend.__name__}:compile_graph", "torch_dynamo_backends")
    others = {name: found for name, found in registry._BACKENDS.items() if name != backend.NAME}
    monkeypatch.setattr(registry, "_BACKENDS", others | ({backend.NAME: point} if installed else {}))
    functions = {name: found for name, found in registry._COMPILER_FNS.items() if name != backend.NAME}
    monkeypatch.setattr(registry, "_COMPILER_FNS", functions)
    if imported or not installed:
        importlib.reload(backend)
    for _ in range(2):
        assert registry.lookup_backend(backend.NAME) is backend.compile_graph
    if imported:
        importlib.reload(backend)


@pytest.mark.slow
def test_inductor_compiles_what_is_not_ours() -> None:
    """Inductor's C++ compiler: 30 s."""
    _dynamo.reset()
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend.NAME, fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
