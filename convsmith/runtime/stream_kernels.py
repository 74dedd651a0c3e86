"""`StreamKernels`: a kernel with separate memory for each stream of a GPU, so that calls on different streams do not
wait.

A kernel whose entries pass data to each other, or which packs an operand in each call, has its own memory. Calls on one
stream run in order and share it; calls on several streams overlap, so each stream has separate memory. A call that is
captured in a graph has memory that no other call uses, because a replay may overlap any of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from convsmith.diag.forking import RenewedLock
from convsmith.runtime.loading import DeviceMemory
from convsmith.runtime.prepared_call import PreparedCall

__all__ = ["StreamKernels"]

_MAX_STREAMS = 16
"""Maximum number of streams for which a kernel keeps memory; the most recently used are kept."""
_making = RenewedLock()
"""Held while the kernel of a stream is looked up or created."""


class StreamKernels:
    """The kernels of each stream, by the names of all arrays and of the packed arrays."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, dict[object, PreparedCall]] = OrderedDict()
        self._captured: list[PreparedCall] = []

    def kernel(
        self,
        make: Callable[[Sequence[str], Collection[str]], PreparedCall],
        gpu: DeviceMemory,
        names: tuple[str, ...],
        packed: tuple[str, ...],
    ) -> PreparedCall:
        """Return the kernel for a call on the stream of this thread; `make` creates it at the first call with these
        names.
        """
        stream = gpu.stream_number()
        if stream is None:
            made = make(names, packed)
            self._captured.append(made)
            return made
        with _making.lock:
            known = self._known.setdefault(stream, {})
            self._known.move_to_end(stream)
            if (names, packed) not in known:
                known[names, packed] = make(names, packed)
            # The memory of a stream is freed when the last call on it has ended.
            while len(self._known) > _MAX_STREAMS:
                self._known.popitem(last=False)
            return known[names, packed]
