"""Memory of torch's tensors: whether it exists, whether it is channels first or last, and the layout tags of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from convsmith.diag.errors import UsageError

__all__ = ["activation_tag", "check_memory", "dense_strides", "has_one_order", "in_order", "prefers_last", "weight_tag"]

Ints = tuple[int, ...]


def dense_strides(shape: Sequence[int], last: bool) -> Ints:
    """Return the strides of a dense tensor of `shape` (N, C, *spatial), with its channels last in memory or not."""
    order = (0, *range(2, len(shape)), 1) if last else range(len(shape))
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def is_dense(shape: Sequence[int], strides: Sequence[int], last: bool) -> bool:
    """Return whether `strides` belong to a dense tensor; the strides of dims of one element are arbitrary."""
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, dense_strides(shape, last)))


def prefers_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor has its channels last in memory.

    If both orders have the same memory (one channel, or one pixel), the strides of dims with one element decide, as
    torch sets them.
    """
    if not is_dense(shape, strides, True):
        return False
    if not is_dense(shape, strides, False):
        return True
    exact = tuple(strides[1:])
    return exact == dense_strides(shape, True)[1:] != dense_strides(shape, False)[1:]


def has_one_order(shape: Sequence[int]) -> bool:
    """Return whether a dense tensor of `shape` has the same memory with its channels last as without."""
    return is_dense(shape, dense_strides(shape, False), True)


def in_order(tensor: Tensor, last: bool) -> Tensor:
    """Return `tensor` itself if it is dense in the memory order, otherwise a copy that is."""
    if is_dense(tensor.shape, tensor.stride(), last):
        return tensor
    strides = dense_strides(tensor.shape, last)
    return torch.empty_strided(tuple(tensor.shape), strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def check_memory(tensors: Iterable[tuple[str, Tensor | None]]) -> None:
    """Raise UsageError if one of the named `tensors` has elements but no memory, as after its storage was freed."""
    for name, tensor in tensors:
        if tensor is None or not (tensor.is_cpu or tensor.is_cuda) or tensor.layout is not torch.strided:
            continue
        if tensor.numel() and not tensor.data_ptr():
            raise UsageError(
                f"{name}: has {tensor.numel()} elements, but its memory was freed, or not yet allocated; legal is a "
                "tensor with memory",
                code="no-memory",
            )


def activation_tag(last: bool) -> str:
    """Return the layout tag of activations."""
    return "axb" if last else "abx"


def weight_tag(last: bool, groups: int, transposed: bool) -> str:
    """Return the layout tag, in the dims of a problem, of weights as torch stores them.

    Torch's weights of a transposed convolution have the source's channels first, ((G,) IC, OC, *kernel).
    """
    if groups == 1:
        first, second = "ba" if transposed else "ab"
        leading = ""
    else:
        first, second = "cb" if transposed else "bc"
        leading = "a"
    return f"{leading}{first}x{second}" if last else f"{leading}{first}{second}x"
