"""Graphs of torch that are made of optimized networks: what they cannot hold is refused in words."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from torch import nn  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.torch import optimize  # noqa: E402
from convsmith.torch.segment import Segment  # noqa: E402
from convsmith.torch.segment_operator import seen  # noqa: E402

X = torch.ones(1, 4, 6, 6)


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


def test_a_name_of_another_process_finds_no_segment() -> None:
    """Every process counts its segments from 0, so the number alone would name another network."""
    made = optimized()
    (segment,) = (m for m in made.convsmith_graphs[""][0].modules() if isinstance(m, Segment))
    number = segment._name.split(" of ")[0]
    for stranger in (number, f"{number} of 00000000-0000-0000-0000-000000000000"):
        with pytest.raises(cs.UsageError, match="is of another process"):
            seen(stranger, [X])
