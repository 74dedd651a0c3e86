"""Packed weights of tensors, kept from call to call.

The second call with a tensor of weights packs it, and keeps the packed weights and a copy of the tensor's bytes. A
later call compares all bytes of the tensor with the copy, and packs anew if one differs, so no write to the tensor can
be missed. Torch counts most writes to a tensor (its version); if the count has changed, the bytes are not compared.

Weights that change before a call takes what was packed, as in training, wait for twice as many calls the next time.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from convsmith.runtime.kept import same_bytes
from convsmith.runtime.packed import Packed
from convsmith.torch.calls import TensorKernel

__all__ = ["KeptTensors"]

_Key = tuple[int, str]
_LONGEST_WAIT = 64
"""Maximum number of calls after which unchanged weights are packed."""


class _Weights(NamedTuple):
    """A tensor of weights since its last change, which `calls` later calls had; after `wait` calls, its packed form and
    a copy of its memory.
    """

    tensor: weakref.ref[Tensor]
    version: int
    address: int
    wait: int = 1
    calls: int = 0
    packed: Packed | None = None
    copy: Tensor | None = None
    copied_to: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of memory that the entry keeps."""
        return 0 if self.packed is None or self.copy is None else self.packed.buffer.nbytes + self.copy.nbytes


class KeptTensors:
    """Packed weights by tensor and packing, with copies of the plain weights: at most `most` bytes, the oldest are
    evicted first.

    An entry is dropped with its tensor. Several threads may call at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[_Key, _Weights] = {}

    @property
    def bytes(self) -> int:
        """Bytes of memory that all entries keep."""
        return sum(entry.bytes for entry in list(self._entries.values()))

    def packed(self, kernel: TensorKernel, weights: Tensor, bias: Tensor | None) -> Packed | None:
        """Return dense `weights` packed for `kernel`; None if `weights` is new or has changed since."""
        key = (id(weights), kernel.signature)
        known, address = self._entries.get(key), weights.data_ptr()
        version = -1 if weights.is_inference() else weights._version
        is_known, wait = known is not None and known.tensor() is weights, 1
        if known is not None and is_known:
            if (known.version, known.address) == (version, address):
                if known.packed is None:
                    return self._waited(key, known, kernel, weights, bias)
                if same_bytes(address, known.copied_to, weights.nbytes):
                    if known.calls <= known.wait:
                        self._entries[key] = known._replace(calls=known.wait + 1)
                    return known.packed
            if known.calls <= known.wait:
                wait = known.wait if known.packed is None else min(2 * known.wait, _LONGEST_WAIT)
        self._entries.pop(key, None)  # entries are ordered by age
        tensor = known.tensor if known is not None and is_known else weakref.ref(weights, lambda _: self._forget(key))
        self._entries[key] = _Weights(tensor, version, address, wait)
        return None

    def _waited(
        self, key: _Key, known: _Weights, kernel: TensorKernel, weights: Tensor, bias: Tensor | None
    ) -> Packed | None:
        """Return the weights packed if that many calls have had the same; otherwise None, and count the call."""
        known = known._replace(calls=known.calls + 1)
        if known.calls >= known.wait:
            return self._pack(key, known, kernel, weights, bias)
        self._entries[key] = known
        return None

    def _pack(
        self, key: _Key, known: _Weights, kernel: TensorKernel, weights: Tensor, bias: Tensor | None
    ) -> Packed | None:
        """Return the weights packed, and keep them for later calls. None if the kernel cannot multiply by them."""
        copy = torch.empty_strided(weights.shape, weights.stride(), dtype=weights.dtype).copy_(weights.detach())
        packed = kernel.pack(weights, bias)
        if not kernel.accepts(packed):
            return None
        # Another thread may have written in between; the copy must match the packed contents.
        if same_bytes(weights.data_ptr(), copy.data_ptr(), weights.nbytes):
            self._entries[key] = known._replace(packed=packed, copy=copy, copied_to=copy.data_ptr())
            while self.bytes > self._most:
                self._entries.pop(next(iter(self._entries), key), None)
        return packed

    def _forget(self, key: _Key) -> None:
        known = self._entries.get(key)
        if known is not None and known.tensor() is None:
            self._entries.pop(key, None)
