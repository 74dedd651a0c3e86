"""`GpuSequence`: kernels that are launched one after the other on the current stream of a GPU.

Torch allocates the memory of results that only later kernels read, for each call: its allocator knows the stream, and
whether a graph is captured, and gives memory back without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from convsmith.torch import devices
from convsmith.torch.kernel_sequence import KernelSequence, SequenceStep, placement

__all__ = ["GpuSequence", "sequence_on"]

_BYTES = torch.uint8


class GpuSequence:
    """The `steps` in their order on a GPU; `outside` are the inputs and results, whose addresses each call passes.

    Several threads may call it at once, each on its own current stream.
    """

    def __init__(self, steps: Sequence[SequenceStep], outside: Sequence[int], device: torch.device) -> None:
        self._device, self._places = device, placement(steps, outside)
        self._launches = [(step.kernel.launched_with(step.constants, tuple(step.values)), step) for step in steps]

    def __call__(self, addresses: Sequence[int]) -> None:
        """Launch all steps; `addresses` are the addresses of the values `outside`."""
        outside, homes, nbytes = self._places
        arena: Tensor | None = devices.empty_on(self._device, (nbytes,), (1,), _BYTES) if nbytes else None
        base, stream = 0 if arena is None else arena.data_ptr(), devices.stream_on(self._device)
        for launch, step in self._launches:
            values = [addresses[outside[v]] if v in outside else base + homes[v] for v in step.values.values()]
            launch(values, arena, stream)


Sequenced: TypeAlias = KernelSequence | GpuSequence


def sequence_on(device: torch.device, steps: Sequence[SequenceStep], outside: Sequence[int]) -> Sequenced:
    """Return the sequence of kernels for a device."""
    return GpuSequence(steps, outside, device) if devices.is_gpu(device) else KernelSequence(steps, outside)
