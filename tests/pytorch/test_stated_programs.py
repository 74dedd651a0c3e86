"""Modules as programs without effects, in the types of their floats."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from torch import Tensor, nn  # noqa: E402

from convsmith.torch import optimize  # noqa: E402
from convsmith.torch.networks import NetworkRun, read_program, sized_program  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_small_floats_are_stored_and_multiplied_as_the_model_says(dtype: torch.dtype) -> None:
    class Mixed(nn.Module):
        """Convolutions of a small type and of f32, with whole numbers, which both types hold exactly."""

        def __init__(self) -> None:
            super().__init__()
            self.small, self.wide = nn.Conv2d(3, 4, 1).to(dtype), nn.Conv2d(4, 4, 1)
            for x in self.parameters():
                x.data = torch.randint(-2, 3, x.shape).to(x.dtype)

        def forward(self, x: Tensor) -> Any:
            y = self.small(x).relu() + x.sum(1, keepdim=True)
            z = self.wide(y.float()) * 3
            return y, z, z.to(dtype), (y > 0).to(dtype)

    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randint(-2, 3, (2, 3, 4, 4)).to(dtype)
    made = optimize(model, x, threads=1, keep_faster=False)
    with torch.no_grad():
        for ours, theirs in zip(made(x), model(x), strict=True):
            assert ours.dtype is theirs.dtype and torch.equal(ours, theirs)
    (graph,) = made.convsmith_graphs[""]
    (run,) = (m for m in graph.convsmith.graphs[0].modules() if isinstance(m, NetworkRun))
    types = {name: p.dt[0] for p, names in run.network.problems() for name in names if name.startswith("conv")}
    assert {*types.values()} == {"f32", {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]}


def test_programs_that_overwrite_values() -> None:
    """A value is overwritten as a whole, in a part that is read through another view, or an argument is."""

    def whole(y: Tensor) -> Tensor:
        z = y.relu_()
        z += 1
        return z.view(-1).mul_(2) + 1

    def part(y: Tensor) -> Tensor:
        y[:, 0].add_(3)
        return y * 2

    class Overwriting(nn.Module):
        def __init__(self, code: Any) -> None:
            super().__init__()
            self.conv, self.code = nn.Conv2d(2, 2, 1), code

        def forward(self, x: Tensor) -> Any:
            return self.code(self.conv(x) if self.code is not shared else x)

    def shared(x: Tensor) -> Tensor:
        return x.relu_()

    x = torch.randn(1, 2, 3, 3)
    for code in (whole, part):
        model = Overwriting(code).eval()
        program = read_program(model, [x])
        assert not isinstance(program, str) and not any("_." in str(node.target) for node in program.nodes)
        sized = sized_program(program, 1)
        assert not isinstance(sized, str)
        with torch.no_grad():
            torch.testing.assert_close(sized.graph(x), model(x), rtol=1e-5, atol=1e-5)
    assert "it changes" in str(read_program(Overwriting(shared).eval(), [x]))
