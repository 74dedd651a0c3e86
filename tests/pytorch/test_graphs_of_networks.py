"""Graphs of torch that are made of optimized networks: what they cannot hold is refused in words."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from optimized import assert_alike, parts  # noqa: E402
from torch import Tensor, fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.torch import optimize  # noqa: E402
from convsmith.torch.network_operator import seen  # noqa: E402

X = torch.ones(1, 4, 6, 6)


class Network(nn.Module):
    """Layers of many kinds, which an exported program calls as operators of aten."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.more = nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.up, self.linear, self.relu = nn.ConvTranspose2d(8, 8, 2, 2), nn.Linear(8, 5), nn.ReLU(inplace=True)
        self.same, self.dropout = nn.Conv2d(8, 8, 3, padding="same"), nn.Dropout()
        nn.init.uniform_(self.norm.running_var), nn.init.normal_(self.norm.running_mean)

    def forward(self, x: Tensor, double: bool = False) -> dict[str, Tensor]:
        y = self.relu(self.norm(self.conv(x)))
        y = functional.silu(self.dropout(self.more(y)) + y)
        y = functional.hardtanh(self.up(y), -1.0, 2.0)
        z = functional.gelu(self.same(y), approximate="tanh")
        z = self.linear(functional.adaptive_avg_pool2d(z, 1).flatten(1))
        return {"z": z * 2 if double else z, "y": y.view(y.shape[0], -1)}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch copies an exported program with one
@pytest.mark.parametrize("batches", [False, True])
def test_exported_programs_are_optimized(batches: bool) -> None:
    model, x = Network().eval(), torch.randn(2, 4, 6, 6)
    sizes = {"x": {0: torch.export.Dim("n", min=1, max=64)}, "double": None} if batches else None
    program = torch.export.export(model, (x,), {"double": True}, dynamic_shapes=sizes).module()
    made = optimize(program, x, example_kwargs={"double": True}, threads=1, keep_faster=False)
    report = made.convsmith_report
    assert (report.ours, report.convolutions, report.divided) == (4, 4, {})
    assert [row.folded for row in report.rows] == ["norm+relu", "add+silu", "clip", "gelu", "mul"]
    with torch.no_grad():
        for network in (made, copy.deepcopy(made)):
            for batch in (2, 5)[: 1 + batches]:
                y = torch.randn(batch, 4, 6, 6)
                assert_alike(network(y, double=True), model(y, double=True))


LOADING = """
import sys, torch
x, expected = torch.load(sys.argv[1] + "/data")
program = torch.export.load(sys.argv[1] + "/program.pt2").module()
for n in (2, 1):
    result = program(x[:n])
    for name in expected:
        torch.testing.assert_close(result[name], expected[name][:n], rtol=1e-5, atol=1e-5)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strict", [False, True])
def test_optimized_networks_are_exported_saved_and_loaded(strict: bool, tmp_path: Path) -> None:
    """An exported program has PyTorch's operators, and needs no convsmith."""
    model, x = Network().eval(), torch.randn(2, 4, 6, 6)
    made = optimize(model, x, threads=1, keep_faster=False)
    sizes = {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    program = torch.export.export(made, (x,), dynamic_shapes=sizes, strict=strict)
    with torch.no_grad():
        expected = model(x)
        assert_alike(program.module()(x), expected)
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((x, expected), tmp_path / "data")
    if strict:  # in this process, once the network is gone
        del made, program
        gc.collect()
        torch._dynamo.reset()
        assert_alike(torch.export.load(tmp_path / "program.pt2").module()(x), expected)
    else:
        subprocess.run([sys.executable, "-W", "ignore", "-c", LOADING, str(tmp_path)], check=True)


def test_graphs_of_fx_are_optimized() -> None:
    graph = fx.symbolic_trace(Network().eval(), concrete_args={"double": False})
    for node in graph.graph.nodes:
        node.type = None  # torch cannot pickle annotations that are texts
    graph.recompile()
    made = optimize(graph, X, threads=1, keep_faster=False)
    assert (made.convsmith_report.ours, made.convsmith_report.divided) == (4, {})
    with torch.no_grad():
        for network in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert_alike(network(X), graph(X))


def optimized() -> nn.Module:
    return optimize(nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval(), X, threads=1, keep_faster=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["trace", "script"])
@pytest.mark.parametrize("inside", [False, True])
def test_torchscript_is_refused(name: str, inside: bool) -> None:
    made = optimized()
    expected = made(X)
    model = nn.Sequential(made, nn.ReLU()) if inside else made
    with pytest.raises(cs.UnsupportedError, match=rf"torch\.jit\.{name}: .*available are torch\.compile") as caught:
        torch.jit.trace(model, X) if name == "trace" else torch.jit.script(model)
    assert caught.value.code == "torchscript"
    assert torch.equal(made(X), expected), "the network itself still runs"


def test_a_name_of_another_process_finds_no_functions() -> None:
    """Every process counts its parts from 0, so the number alone would name another network."""
    made = optimized()
    (part,) = parts(made)
    number = part._name.split(" of ")[0]
    for stranger in (number, f"{number} of 00000000-0000-0000-0000-000000000000"):
        with pytest.raises(cs.UsageError, match="is of another process"):
            seen(stranger, [X])
