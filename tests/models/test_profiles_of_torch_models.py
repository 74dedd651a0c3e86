"""The profile of a PyTorch model: every convolution that a run dispatches, beside PyTorch's own kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from convsmith.cli.main import main
from convsmith.diag.errors import UsageError

torch = pytest.importorskip("torch")
from convsmith.torch.profiling import profile, with_function  # noqa: E402  # it needs torch


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured times do not matter here."""
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr("convsmith.torch.profiling._TRIAL_SECONDS", 1e-4)


class Net(torch.nn.Module):
    """Convolutions of modules, one of which runs twice, and one of a function."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.body = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), torch.nn.ReLU())
        self.up = torch.nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(self.body(self.stem(x)))
        return torch.nn.functional.conv2d(self.up(y), torch.ones(2, 4, 1, 1))


def test_modules_and_functions_are_profiled_with_their_real_shapes() -> None:
    found = profile(Net().eval(), torch.randn(2, 3, 12, 8), threads=1, rounds=1)
    assert [(n.names, n.operator, n.agrees) for n in found.nodes] == [
        (("stem",), "Conv", True), (("body.0", "body.0#2"), "Conv", True), (("up",), "ConvTranspose", True),
        (("convolution",), "Conv", True),
    ]  # fmt: skip
    assert str(found.nodes[0].problem) == (
        "--dir=FWD_B --stag=axb --dtag=axb mb2ic3ih12iw8oc8oh6ow4kh3kw3sh2sw2ph1pw1"
    )
    assert "5 convolutions and products take torch" in str(found) and found.host == "torch"


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_other_ranks(rank: int) -> None:
    layer = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[rank - 1](4, 6, 3, padding=1)
    (row,) = profile(layer, torch.randn(1, 4, *(5,) * rank), threads=1, rounds=1).nodes
    assert row.agrees and row.problem.rank == rank


def test_what_no_kernel_serves_is_named() -> None:
    layer = torch.nn.ConvTranspose2d(2, 2, 2, dilation=2, output_padding=1)
    found = profile(layer, torch.ones(1, 2, 3, 3), threads=1, rounds=1)
    ((left,), nodes) = found.left, found.nodes
    assert not nodes and (left.operator, "no source reaches" in left.reason) == ("ConvTranspose", True)
    assert "left to torch: " in str(found)


MODELS = """\
import torch
def made():
    return torch.nn.Conv2d(2, 4, 1), torch.zeros(1, 2, 5, 5)
def bad():
    return 3
def failing():
    return 1 // 0
"""
NAMED = """\
import collections, torch
def made():
    stem = collections.OrderedDict(stem=torch.nn.Conv2d(2, 4, 1))
    return torch.nn.Sequential(stem), torch.zeros(1, 2, 5, 5)
"""


def test_bench_takes_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(MODELS)
    (tmp_path / "named_models.py").write_text(NAMED)
    monkeypatch.chdir(tmp_path)
    words = ["bench", "--torch", "own_models:made", "--threads", "1", "--rounds", "1", "--wide"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0 and "mb1ic2ih5oc4oh5kh1ph0" in result.output, result.output
    assert "own_models:made, 1 thread; ratio is torch's time / ours" in result.output
    page = CliRunner().invoke(main, ["explain", "--torch", "named_models:made", "stem", "--threads", "1"])
    assert page.exit_code == 0 and "mb1ic2ih5oc4oh5kh1ph0" in page.output, page.output
    wrong = CliRunner().invoke(main, ["show", "--torch", "named_models:made"])
    assert wrong.exit_code == 2 and "named_models:made: the name of a node is missing; legal are stem" in wrong.output
    wrong = CliRunner().invoke(main, ["bench", "--torch", "named_models:made", "--input", "x=1x2"])
    assert wrong.exit_code == 2 and "--input is legal with a MODEL.onnx" in wrong.output


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("own_models", "legal is module:function"), ("none_such:made", "none_such cannot be imported: ModuleNotFound"),
        ("own_models:none", "has no function none"), ("own_models:bad", r"returns \(model, inputs\)"),
        ("own_models:failing", r"failing\(\) raised ZeroDivisionError: integer"),
    ],
)  # fmt: skip
def test_functions_that_give_no_model(source: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=why):
        with_function(source)


def test_inputs_that_do_not_suit_the_model() -> None:
    with pytest.raises(UsageError, match=r"Conv2d does not run on these inputs: RuntimeError: .* 3 channels"):
        profile(torch.nn.Conv2d(2, 4, 1), torch.zeros(1, 3, 5, 5))
