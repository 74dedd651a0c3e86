"""PyTorch's operators that compute whole layers of transformers, by the operators that they stand for.

In eval mode, `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call one operator each, whose results, under
autocast, have its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["LAYERS"]


def _attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the attention of several heads, and its shares if they are needed. A mask is true where there is no share:
    for pairs of places (type 0), for the keys of samples (type 1), or for samples, heads and pairs (type 2).
    """
    if query is key is value:
        parts = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        parts = tuple(map(functional.linear, (query, key, value), weights, biases))
    q, k, v = (torch.unflatten(x, -1, (heads, -1)).transpose(1, 2) for x in parts)
    shares = None
    if mask is None and not need_weights:
        found = functional.scaled_dot_product_attention(q, k, v)
    else:
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
        if mask is not None:
            absent = mask.to(torch.bool)
            scores = scores.masked_fill(absent[:, None, None] if mask_type == 1 else absent, -math.inf)
        shares = scores.softmax(-1).to(v.dtype)
        found = shares @ v
    y = functional.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights or shares is None:
        return y, None
    return y, shares.mean(1) if average_attn_weights else shares


def _encoder(
    src: Tensor, embed_dim: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, scale_1: Tensor, shift_1: Tensor, scale_2: Tensor,
    shift_2: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the result of an encoder's layer. A sum has the type of the product, which the operator adds to."""

    def normed(x: Tensor, scale: Tensor, shift: Tensor, now: bool) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), scale, shift, eps) if now else x

    x = normed(src, scale_1, shift_1, norm_first)
    x, _ = _attention(
        x, x, x, embed_dim, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, mask_type=mask_type
    )
    before = normed((x + src).to(x.dtype), scale_1, shift_1, not norm_first)
    x = functional.linear(normed(before, scale_2, shift_2, norm_first), weight_1, bias_1)
    x = functional.linear(functional.gelu(x) if use_gelu else functional.relu(x), weight_2, bias_2)
    return normed((x + before).to(x.dtype), scale_2, shift_2, not norm_first)


LAYERS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._native_multi_head_attention.default: _attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder,
}
"""By operator, the function that states it."""
