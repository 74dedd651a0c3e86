"""Packed weights of tensors, kept from call to call.

A tensor of weights that comes a second time is packed into memory that is kept. Torch counts the writes to a tensor
(its version), and a later call packs anew if the count, or the address, has changed. Torch does not count writes
through `.data` or through an array that shares the memory, so a call compares a sample of the elements too.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from convsmith.runtime.packed import Packed
from convsmith.torch.calls import TensorKernel

__all__ = ["KeptTensors"]

_SAMPLES = 64
"""Maximum number of elements that a call compares."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_Key = tuple[int, str]


class _Weights(NamedTuple):
    """A tensor of weights as a call found it, and its packed form; None after the first call."""

    tensor: weakref.ref[Tensor]
    version: int
    address: int
    sample: Any
    content: bytes
    packed: Packed | None


class KeptTensors:
    """Packed weights by tensor and packing, at most `most` bytes, as long as their tensors live.

    Several threads may ask at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[_Key, _Weights] = {}

    @property
    def bytes(self) -> int:
        """Bytes of packed weights that are kept."""
        return sum(0 if entry.packed is None else entry.packed.buffer.nbytes for entry in list(self._entries.values()))

    def packed(self, kernel: TensorKernel, weights: Tensor, bias: Tensor | None) -> Packed | None:
        """Return `weights` packed for `kernel`; None if they come for the first time, or have changed since."""
        key = (id(weights), kernel.signature)
        known = self._entries.get(key)
        if (
            known is not None
            and known.tensor() is weights
            and known.version == weights._version
            and known.address == weights.data_ptr()
            and known.sample.tobytes() == known.content
        ):
            if known.packed is not None:
                return known.packed
            packed = kernel.pack(weights, bias)
            if not kernel.accepts(packed):
                return None
            self._entries[key] = known._replace(packed=packed)
            while self.bytes > self._most:
                self._entries.pop(next(iter(self._entries), key), None)
            return packed
        if not weights.is_inference():  # torch counts no writes to those
            sample = _sample(weights)
            tensor = weakref.ref(weights, lambda _: self._forget(key))
            self._entries.pop(key, None)  # the order of the entries is that of their age
            self._entries[key] = _Weights(tensor, weights._version, weights.data_ptr(), sample, sample.tobytes(), None)
        return None

    def _forget(self, key: _Key) -> None:
        known = self._entries.get(key)
        if known is not None and known.tensor() is None:
            self._entries.pop(key, None)


def _sample(weights: Tensor) -> Any:
    """Return an array on the memory of some elements of a dense tensor, the first and the last among them."""
    count = weights.numel()
    step = max(1, (count - 1) // (_SAMPLES - 1))
    memory = weights.detach().as_strided((-(-count // step),), (step,))
    return memory.view(_INTEGERS[memory.element_size()]).numpy()
