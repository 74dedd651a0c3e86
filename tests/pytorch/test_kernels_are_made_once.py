"""`optimize` compiles the kernel of a layer once: what it times is what runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from optimized import functions  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.compiler import driver  # noqa: E402
from convsmith.frontend import side_by_side  # noqa: E402
from convsmith.network import ahead  # noqa: E402
from convsmith.problem.post_ops import BinaryPostOp  # noqa: E402
from convsmith.torch import optimize  # noqa: E402


class Residual(nn.Module):
    """A block whose residual is the input, and if `is_deep` others whose residuals are a result that is read last, and
    one that another layer reads.
    """

    def __init__(self, is_deep: bool) -> None:
        super().__init__()
        self.is_deep = is_deep
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(5 if is_deep else 1))

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.layers[0](x) + x)
        if not self.is_deep:
            return a
        b = torch.relu(self.layers[2](torch.relu(self.layers[1](a))) + a)
        return torch.relu(self.layers[4](self.layers[3](b)) + b) + torch.nn.functional.max_pool2d(b, 3, 1, 1)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Counter[str]]:
    """The kernels that this process compiles, by problem."""
    found, build = Counter[str](), driver.build_artifact

    def counted(problem: Any, *arguments: Any, **options: Any) -> Any:
        found[str(problem)] += 1
        return build(problem, *arguments, **options)

    monkeypatch.setattr(driver, "build_artifact", counted)
    with cs.settings.scope(cache=str(tmp_path / "cache")):
        yield found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_deep, keep_faster", [(True, True), (True, False), (False, False)])
def test_each_problem_of_a_network_is_compiled_once(
    is_deep: bool, keep_faster: bool, compiled: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (ahead, side_by_side):  # no child compiles
        monkeypatch.setattr(module, "available_cpus", lambda: 1)
    model, x = Residual(is_deep).eval(), torch.randn(1, 8, 6 + 2 * is_deep + keep_faster, 7)
    monkeypatch.setattr("convsmith.torch.choice.LEFT", 0.0)  # our kernels run all layers
    made = optimize(model, x, threads=1, keep_faster=keep_faster)
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)
    runs = [problem for run in functions(made) for problem, _ in run.problems()]
    assert any(isinstance(step, BinaryPostOp) for problem in runs for step in problem.post_ops)
    assert compiled == dict.fromkeys((str(problem.canonical()) for problem in {*runs}), 1)


def test_layers_are_compiled_side_by_side(compiled: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ahead, side_by_side):
        monkeypatch.setattr(module, "available_cpus", lambda: 2)
    made = optimize(Residual(True).eval(), torch.randn(1, 8, 8, 9), threads=1, keep_faster=False)
    assert made.convsmith_report.ours and not compiled, "children have compiled all kernels"
