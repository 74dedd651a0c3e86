"""Limits of tensors on a GPU, remembered from call to call: to look again, the host would have to wait for the GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from convsmith.torch import devices

__all__ = ["KnownLimits"]


class _Answer(NamedTuple):
    """The last answer about a tensor, at a count of the writes to it and an address."""

    tensor: weakref.ref[Tensor]
    version: int
    address: int
    is_within: bool


class KnownLimits:
    """Answers of `look`, which takes a tensor and a limit, until torch counts a write to the tensor, or it moves.

    A graph that was captured keeps the kernel for the answer at its capture. Several threads may ask at once.
    """

    def __init__(self, look: Callable[[Tensor, float], bool]) -> None:
        self._look = look
        self._known: dict[tuple[int, float], _Answer] = {}

    def is_within(self, tensor: Tensor, limit: float) -> bool:
        """Return whether the elements of a tensor are within a limit. UnsupportedError if that is not known while a
        graph is captured.
        """
        key, address = (id(tensor), limit), tensor.data_ptr()
        version = -1 if tensor.is_inference() else tensor._version
        known = self._known.get(key)
        if known is not None and known.tensor() is tensor and (known.version, known.address) == (version, address):
            return known.is_within
        devices.check_not_capturing("weight")
        found = self._look(tensor, limit)
        if version >= 0:
            gone = weakref.ref(tensor, lambda _: self._known.pop(key, None))
            self._known[key] = _Answer(gone, version, address, found)
        return found
