"""PyTorch's layers of attention, which call one operator in eval mode: all their products run on our kernels, with and
without autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)

from optimized import functions  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from convsmith.torch import optimize  # noqa: E402

WIDTH, PLACES = 32, 20


class Layer(nn.Module):
    """A layer, and the code that calls it on a source, on other places, and with masks of pairs and of keys."""

    def __init__(self, layer: nn.Module, code: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.code = layer, code
        self.register_buffer("pairs", torch.ones(PLACES, PLACES, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor, keys: Tensor) -> Any:
        return self.code(self.layer, x, self.pairs, keys)


def _heads(**more: Any) -> nn.Module:
    return nn.MultiheadAttention(WIDTH, 4, batch_first=True, **more)


def _encoder(**more: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True, **more)


def _by_function(m: Any, x: Tensor, pairs: Tensor, keys: Tensor) -> Tensor:
    q, k, v = m(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
    y: Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).flatten(2)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], int]] = {
    "a function": (lambda: nn.Linear(WIDTH, 3 * WIDTH), _by_function, 3),
    "heads": (_heads, lambda m, x, pairs, keys: m(x, x, x, need_weights=False)[0], 4),
    "heads without biases": (lambda: _heads(bias=False), lambda m, x, *_: m(x, x, x, need_weights=False)[0], 4),
    "heads of other places": (_heads, lambda m, x, *_: m(x, x.flip(1), x.flip(1), need_weights=False)[0], 5),
    "shares": (_heads, lambda m, x, *_: m(x, x, x), 4),
    "shares of heads": (_heads, lambda m, x, pairs, keys: m(x, x, x, keys, average_attn_weights=False), 4),
    "a mask of pairs": (_heads, lambda m, x, pairs, _: m(x, x, x, attn_mask=pairs, need_weights=False)[0], 4),
    "both masks": (_heads, lambda m, x, pairs, keys: m(x, x, x, keys, attn_mask=pairs), 4),
    "an encoder": (_encoder, lambda m, x, *_: m(x), 6),
    "an encoder with masks": (
        lambda: _encoder(norm_first=True, activation="gelu"), lambda m, x, pairs, keys: m(x, pairs, keys), 6
    ),
}  # fmt: skip
"""Layers, the code that calls them, and the number of their products."""
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def _casting(dtype: torch.dtype) -> AbstractContextManager[Any]:
    enabled = dtype is not torch.float32
    return torch.autocast("cpu", dtype if enabled else torch.bfloat16, enabled=enabled)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_as_near_as_those_of_torch(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    make, code, count = LAYERS[name]
    model, x, keys = Layer(make(), code).eval(), torch.randn(2, PLACES, WIDTH), torch.zeros(2, PLACES, dtype=torch.bool)
    keys[0, 15:] = True
    with torch.no_grad():
        wide = model.double()(x.double(), keys)
        model.float()
        with _casting(TYPES[dtype]):
            made = optimize(model, (x, keys), threads=1, keep_faster=False)
            ours, theirs = made(x, keys), model(x, keys)
    products = [p for run in functions(made) for p, _ in run.problems()]
    least = count - 2 if dtype == "f32" else count  # attention is one kernel in f32
    assert len(products) >= least and {p.dt[0] for p in products} == {dtype}
    single = isinstance(wide, Tensor)
    for a, b, c in zip(*([y] if single else y for y in (ours, theirs, wide)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        apart, other = (float((y.double() - c).abs().max() / c.abs().max()) for y in (a, b))
        assert apart <= 2 * other + torch.finfo(TYPES[dtype]).eps
