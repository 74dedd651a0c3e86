"""`KernelCalls`: the calls of one kernel, prepared for the arrays that they are given, and kept for later ones.

A call is prepared for the names of its arrays and of those among them that are packed. It runs on addresses: whoever
asks for it has checked the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.runtime.arrays import Array, address_of
from convsmith.runtime.border import Border
from convsmith.runtime.host_block import memory_at
from convsmith.runtime.loading import LoadedCode, memory_of
from convsmith.runtime.operand_packing import OperandPacking
from convsmith.runtime.packed import Packed
from convsmith.runtime.prepared_call import Frame, LoadedEntry, PreparedCall, places_of
from convsmith.runtime.stream_kernels import StreamKernels

__all__ = ["KernelCalls", "Launch", "addresses_of"]

Launch: TypeAlias = Callable[[Sequence[int], object, int], None]
_Form: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of all arrays of a call, and of the packed ones."""


class KernelCalls:
    """Calls of the entries of `artifact`, which `library` holds as code, on host memory or on that of a GPU."""

    def __init__(self, artifact: Artifact, border: Border, packing: OperandPacking, library: LoadedCode) -> None:
        self._artifact, self._border, self._packing = artifact, border, packing
        self._gpu = memory_of(library)
        self._steps = [LoadedEntry(library[name], entry, border.defaults) for name, entry in artifact.steps.items()]
        arguments = [argument for entry in artifact.steps.values() for argument in entry.arguments]
        self._shared = {argument.name: argument for argument in arguments if argument.role == "shared"}.values()
        self._on_host: dict[_Form, PreparedCall] = {}
        self._on_any_stream: dict[_Form, PreparedCall] = {}
        """Calls on a GPU without memory of their own."""
        self._on_streams = StreamKernels()

    @property
    def scratch_bytes(self) -> int:
        """Bytes of memory that a placed call needs, besides its arrays."""
        return places_of(self._shared, max(step.scratch_bytes for step in self._steps))[1]

    def addressed(self, names: Sequence[str], packed: Collection[str] = (), *, fresh: bool = False) -> PreparedCall:
        """Return the call on the addresses of the arrays `names`, which fit as `ArraySpec.fits` says.

        Operands in `packed` are passed packed, all others as plain arrays, which each call packs. Memory between
        entries is reused by later calls unless it is `fresh`. The caller checks that operands in `artifact.limits` are
        within their limits.
        """
        packing, specs = self._packing, self._border.specs
        plain = [name for name in packing.entries if name in names and name not in packed]
        packs = [part for name in plain for part in packing.parts[name].arguments]
        packs += [part for name in plain for part in self._artifact.passed_on(name)]
        return PreparedCall(
            [*(e for name in plain if not specs[name].empty_tensor for e in packing.entries[name]), *self._steps],
            [packing.parts_of(name).offsets if name in packed else {name: 0} for name in names],
            [*packs, *self._shared],
            None if fresh else self._gpu,
            fresh=fresh,
        )

    def on_host(self, names: tuple[str, ...], packed: tuple[str, ...]) -> PreparedCall:
        """Return the call on these arrays in host memory, prepared at the first request."""
        call = self._on_host.get((names, packed))
        if call is None:
            call = self._on_host[names, packed] = self.addressed(names, packed, fresh=True)
        return call

    def on_stream(self, names: tuple[str, ...], packed: tuple[str, ...]) -> PreparedCall:
        """Return the call on the current stream of a GPU, on the addresses of the arrays `names`."""
        call = self._on_any_stream.get((names, packed))
        if call is not None:
            return call
        assert self._gpu is not None
        if self._shared or not self._packing.entries.keys() <= {*packed}:
            return self._on_streams.kernel(self.addressed, self._gpu, names, packed)
        return self._on_any_stream.setdefault((names, packed), self.addressed(names, packed))

    def placed(self, inputs: Mapping[str, Array | Packed], names: Sequence[str], scratch: int) -> Frame:
        """Return blocks for calls on memory at addresses of the arrays `names`, which the caller writes; the checked
        arrays and packed operands `inputs` are the same in every call, and packed here.

        The call also uses `scratch_bytes` of memory from the address `scratch`, a multiple of `ALIGNMENT`.
        """
        packing = self._packing
        plain = {name: x for name, x in inputs.items() if isinstance(x, np.ndarray)}
        to_pack = [name for name in plain if name in packing.entries]
        known = [*inputs.values(), *(packing.pack(name, plain) for name in to_pack)]
        given: list[Mapping[str, int]] = [
            *({name: 0} if name in plain else packing.parts_of(name).offsets for name in inputs),
            *(packing.parts[name].offsets for name in to_pack), *({name: 0} for name in names),
        ]  # fmt: skip
        return PreparedCall(self._steps, given, self._shared).frame(scratch, addresses_of(known), known)

    def launched(self, inputs: Mapping[str, Array | Packed], names: Sequence[str]) -> Launch:
        """Return the function that launches on the addresses of the arrays `names` in memory of the GPU, given what
        holds that memory, and a stream. The checked arrays and packed operands `inputs` are copied there once.
        """
        gpu, known, owners = self._gpu, dict[str, int](), list[object]()
        assert gpu is not None
        for name, array in inputs.items():
            if isinstance(array, Packed):
                known[name], of_bias = array.addresses_on(gpu)
                known |= {"bia": of_bias} if array.bias is not None else {}
                owners.append(array)
            else:
                extent = self._border.specs[name].extent
                known[name], owner = gpu.reserve(extent)
                gpu.write(known[name], memory_at(address_of(array), extent))
                owners.append(owner)
        taken = (*known, *names)
        of_packed = tuple(name for name, array in inputs.items() if isinstance(array, Packed))

        def launch(addresses: Sequence[int], keep: object, stream: int) -> None:
            with gpu.on_stream(stream, True):
                self.on_stream(taken, of_packed).run((*known.values(), *addresses), (keep, owners))

        return launch


def addresses_of(arrays: Iterable[Array | Packed]) -> list[int]:
    """Return the addresses that a call on these arrays and packed operands passes."""
    return [x.addresses[0] if isinstance(x, Packed) else address_of(x) for x in arrays]
