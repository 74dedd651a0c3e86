"""`optimize` runs networks as native functions: all of a network, or the largest parts between operators of PyTorch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from callcounts import counting

torch = pytest.importorskip("torch", exc_type=ImportError)
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.torch import networks, optimize  # noqa: E402
from convsmith.torch.networks import NetworkRun, Networks, read_program, sized_program  # noqa: E402
from convsmith.torch.program import _ProgramReader  # noqa: E402
from convsmith.torch.report import LayerRow  # noqa: E402
from convsmith.torch.sources import OtherSizesWarning  # noqa: E402


def whole(*shape: int) -> Tensor:
    """Return small whole numbers, whose sums of products are exact in f32."""
    return torch.randint(-2, 3, shape).float()


def exact(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for x in model.parameters():
            x.copy_(whole(*x.shape))
    return model.eval()


def made_of(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[nn.Module, Networks]:
    """Return the optimized model, which is one graph, and the functions that it calls."""
    made = optimize(model, args, example_kwargs=kwargs, threads=1, keep_faster=False)
    (graph,) = made.convsmith_graphs[""]
    (found,) = (m for m in graph.modules() if isinstance(m, Networks))
    return made, found


def runs(found: Networks) -> list[NetworkRun]:
    """The functions for the sizes of the first call."""
    return [m for m in found.graphs[0].modules() if isinstance(m, NetworkRun)]


class Sorted(nn.Module):
    """Convolutions and a linear layer around a function that only PyTorch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.one(x).relu()
        z = y.sort(1)[0]
        z = self.two(z) + y
        return {"z": self.last(z.sum((2, 3))), "y": y, "most": y.argmax(1)}


class Plain(nn.Module):
    """A network whose code depends on sizes, so that only an export states it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: float = 1.0, *, mask: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        y = self.conv(x).relu()
        for _ in range(len(x)):
            y = y + 1
        if mask is not None:
            y = y.masked_fill(mask, 0)
        return self.last(y.sum((2, 3)) * scale), {"y": y, "n": None}


def test_a_network_is_one_function_and_reports_its_layers() -> None:
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    model = exact(nn.Sequential(block, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)))
    x = whole(2, 3, 8, 8)
    made, found = made_of(model, x)
    (run,) = runs(found)
    report = made.convsmith_report
    assert [(row.names, row.folded, row.kind) for row in report.rows] == [
        (("0.0",), "norm+relu", "convolution"), (("3",), "", "linear"),
    ]  # fmt: skip
    assert (report.ours, len(report.functions), report.without_functions) == (1, 1, [])
    assert "1 native function computes all around them" in str(report)
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), rtol=1e-5, atol=1e-4)
    assert run.network.outputs and "steps" in repr(run)


@pytest.mark.parametrize("model, reads", [(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), 1), (Sorted(), 3)])
def test_a_program_that_is_one_region_is_read_once(model: nn.Module, reads: int) -> None:
    with counting(_ProgramReader.read) as calls:
        program = read_program(exact(model), [whole(1, 3, 6, 6)])
        assert not isinstance(program, str)
        sized = sized_program(program, 1)
    assert not isinstance(sized, str) and calls["read"] == reads


def test_pytorch_computes_between_the_largest_parts() -> None:
    model, x = exact(Sorted()), whole(2, 3, 6, 6)
    made, found = made_of(model, x)
    assert [len(run.network.inputs) for run in runs(found)] == [1, 2]
    for given in (x, x + 1, whole(1, 3, 9, 5)):
        with torch.no_grad():
            ours, theirs = made(given), model(given)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    (other,) = made.convsmith_report.other_sizes
    assert (other.shapes, other.layers, other.why) == (((1, 3, 9, 5),), 3, "")
    assert len(found.graphs) == 2


def test_a_network_that_only_an_export_states() -> None:
    model, x = exact(Plain()), whole(2, 3, 6, 6)
    mask = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    mask[0, 0, 2] = True
    made, found = made_of(model, x, scale=2.0, mask=mask)
    assert len(runs(found)) == 1
    assert [row.names for row in made.convsmith_report.rows] == [("conv",), ("last",)]
    for network in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        for given in (x, x - 1, whole(3, 3, 5, 5)):
            by_name = {"scale": 2.0, "mask": mask if len(given) == 2 else mask[:1, :, :5, :5]}
            with torch.no_grad():
                (a, one), (b, other) = network(given, **by_name), model(given, **by_name)
            assert torch.equal(a, b) and torch.equal(one["y"], other["y"]) and one["n"] is None


class Large(nn.Module):
    """Products of whole numbers that 32 bits do not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        return y * 2, y.long() * 3_000_000_000


def test_whole_numbers_of_64_bits_stay_pytorchs() -> None:
    model, x = exact(Large()), whole(1, 3, 4, 4)
    made, found = made_of(model, x)
    assert len(runs(found)) == 1
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(made(x), model(x)))


def test_one_tensor_may_be_two_arguments_of_the_example() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.conv(x - t) * 2

    model, x, t = exact(Two()), whole(1, 3, 4, 4), whole(1, 3, 4, 4)
    made, _ = made_of(model, x, x)
    with torch.no_grad():
        assert torch.equal(made(x, t), model(x, t)) and torch.equal(made(t, x), model(t, x))


def test_what_no_export_states_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x) if x.sum() != 12345 else x

    model, x = exact(Choosing()), whole(1, 3, 4, 4)
    made = optimize(model, x, threads=1, keep_faster=False)
    assert list(made.convsmith_graphs) == ["conv"] and capfd.readouterr() == ("", "")


def test_functions_keep_the_parameters_of_the_example() -> None:
    model, x = exact(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())), whole(1, 3, 4, 4)
    more = whole(1, 3, 5, 5)
    made, found = made_of(model, x)
    with torch.no_grad():
        before = model(x)
        model[0].weight.add_(1)
        assert torch.equal(made(x), before)
        with pytest.warns(OtherSizesWarning, match="later writes have changed its parameters"):
            assert torch.equal(made(more), model(more))
    assert len(found.graphs) == 1, "a function for other sizes would have the new parameters"


def test_sizes_without_functions_and_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "MAX_SIZES", 2)
    model, x = exact(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())), whole(1, 3, 4, 4)
    made, found = made_of(model, x)
    with pytest.warns(OtherSizesWarning, match="PyTorch computes"):
        assert made(torch.empty(0, 3, 4, 4)).shape == (0, 4, 4, 4)
    for size in (5, 6, 7):
        given = whole(1, 3, size, size)
        with torch.no_grad():
            assert torch.equal(made(given), model(given))
    assert [graph(whole(1, 3, n, n)).shape[-1] for graph, n in zip(found.graphs, (4, 6, 7), strict=True)] == [4, 6, 7]


def test_sources_that_no_function_takes_are_refused() -> None:
    made, _ = made_of(exact(nn.Sequential(nn.Conv2d(3, 4, 1))), whole(1, 3, 4, 4))
    with pytest.raises(cs.UsageError, match=r"the source is torch.float64 on cpu; legal is torch.float32 on cpu"):
        made(whole(1, 3, 4, 4).double())
    with pytest.raises(cs.UsageError, match="the source requires a gradient"):
        made(whole(1, 3, 4, 4).requires_grad_())


def test_random_numbers_and_effects_are_no_part_of_functions() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.calls = nn.Conv2d(3, 4, 1), 0

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return y + torch.rand(len(y), 1, 1, 1).ge(2).float()

    class Counting(Noisy):
        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.conv(x[: len(x)]) * self.calls

    x = whole(2, 3, 4, 4)
    program = read_program(exact(Noisy()), [x])
    assert not isinstance(program, str) and "it draws random numbers" in program.refused.values()
    model = exact(Counting())
    made = optimize(model, x, threads=1, keep_faster=False)
    with torch.no_grad():
        assert torch.equal(made(x), model(x)) and torch.equal(made(x), model(x))
    assert list(made.convsmith_graphs) == ["conv"]


def test_attention_may_stay_with_pytorch() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.before(x).chunk(3, -1)
            return self.after(functional.scaled_dot_product_attention(q, k, v)) + x

    model, x = exact(Attention()), torch.rand(2, 5, 8) / 8
    program = read_program(model, [x])
    assert not isinstance(program, str)
    expected = model(x)
    for kept, count in (((), 1), (("scaled_dot_product_attention",), 2)):
        made = sized_program(program, 1, kept)
        assert not isinstance(made, str) and len(made.runs) == count
        torch.testing.assert_close(made.graph(x), expected, rtol=1e-5, atol=1e-5)


def test_what_pytorch_keeps_has_a_reason() -> None:
    class Own(nn.Module):
        """A convolution of whole numbers behind one of fractions."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return functional.conv2d(y.to(torch.int32), torch.ones(3, 3, 1, 1, dtype=torch.int32))

    model, x = exact(Own()), whole(1, 3, 4, 4)
    made, _ = made_of(model, x)
    (ours, theirs) = sorted(made.convsmith_report.rows, key=lambda row: row.runner)
    assert isinstance(theirs, LayerRow) and (ours.runner, theirs.runner) == ("convsmith", "torch")
    assert "elements of s32" in theirs.why
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x))
