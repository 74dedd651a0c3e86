"""`ResidentCall`: a call of a kernel on arrays that were copied to device memory once.

Calls are queued, so that the time of many calls is the time of the device.
"""

from __future__ import annotations

from collections.abc import Mapping

from convsmith.runtime.arrays import Array, ArraySpec, address_of
from convsmith.runtime.host_block import memory_at
from convsmith.runtime.loading import DeviceMemory
from convsmith.runtime.prepared_call import PreparedCall

__all__ = ["ResidentCall"]

_DEFAULT_STREAM = 0


class ResidentCall:
    """Runs `kernel` on device copies of `arrays` by name, with the forms `specs`. A call only queues the work; `finish`
    waits.
    """

    def __init__(
        self, kernel: PreparedCall, memory: DeviceMemory, arrays: Mapping[str, Array],
        specs: Mapping[str, ArraySpec],
    ) -> None:  # fmt: skip
        self._kernel, self._memory = kernel, memory
        self.addresses: dict[str, int] = {}
        """The addresses of the copies, by name."""
        self._keep: list[object] = []
        for name, array in arrays.items():
            nbytes = specs[name].extent
            address, owner = memory.reserve(max(nbytes, 1))
            if specs[name].argument.role != "out":
                memory.write(address, memory_at(address_of(array), nbytes))
            self.addresses[name] = address
            self._keep.append(owner)

    def __call__(self) -> None:
        with self._memory.on_stream(_DEFAULT_STREAM, resident=True):
            self._kernel.run(tuple(self.addresses.values()), self._keep)

    def finish(self) -> None:
        """Wait until all calls have ended."""
        self._memory.wait(_DEFAULT_STREAM)
