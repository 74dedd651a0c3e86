"""Optimized networks and tensors whose memory does not hold their elements: freed storages and negated views."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from torch import nn  # noqa: E402

import convsmith as cs  # noqa: E402
from convsmith.torch import optimize  # noqa: E402


def network() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    with torch.no_grad():
        for x in model.parameters():
            x.copy_(torch.randint(-2, 3, x.shape))
    return model


X = torch.randint(-2, 3, (1, 4, 6, 6)).float()


def test_sources_weights_and_examples_without_memory_are_refused() -> None:
    model = network()
    made = optimize(model, X, threads=1, keep_faster=False)
    for x in (X.clone(), X.clone().contiguous(memory_format=torch.channels_last)):
        x.untyped_storage().resize_(0)
        with pytest.raises(cs.UsageError, match="source: has 144 elements, but its memory was freed"):
            made(x)
        with pytest.raises(cs.UsageError, match="example_inputs: has 144 elements, but its memory was freed"):
            optimize(model, (x, X))
    model[0].weight.untyped_storage().resize_(0)
    with pytest.raises(cs.UsageError, match=r"0\.weight: has 288 elements, but its memory was freed"):
        optimize(model, X)


def test_negated_sources_and_weights_are_as_they_read() -> None:
    model = network()
    with torch.no_grad():
        expected = model(X)
    made = optimize(model, X, threads=1, keep_faster=False)
    for order in (torch.contiguous_format, torch.channels_last):
        x = torch._neg_view((-X).contiguous(memory_format=order))
        assert x.is_neg() and torch.equal(made(x), expected)
    for name, x in list(model[0].named_parameters()):
        setattr(model[0], name, nn.Parameter(torch._neg_view(-x.detach())))
    assert model[0].weight.is_neg()
    made = optimize(model, X, threads=1, keep_faster=False)
    assert made.convsmith_report.ours == 1 and torch.equal(made(X), expected)
