"""`GpuCalls`: calls of a kernel on arrays of a GPU whose forms an earlier call has checked.

The first call with arrays of some forms takes the general way (`gpu_arrays.py`). A later call with arrays of equal
forms compares addresses only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from convsmith.runtime.array_readers import ArrayReader, reader_of
from convsmith.runtime.border import Border
from convsmith.runtime.loading import DeviceMemory
from convsmith.runtime.packed import Packed
from convsmith.runtime.prepared_call import PreparedCall

__all__ = ["GpuCalls", "StreamCall"]

_MAX_FORMS = 64
"""Maximum number of combinations of forms that a kernel remembers."""

_ABSENT = "absent"
"""The form of an argument that a call omits."""

_CallOf = Callable[[tuple[str, ...], tuple[str, ...]], PreparedCall]


class _CallForm(NamedTuple):
    """A call by position: the names of the arrays whose addresses it passes, and those that are packed."""

    names: tuple[str, ...]
    packed: tuple[str, ...]


class StreamCall:
    """The call of a kernel on addresses in the memory of a GPU, launched on the stream that `stream` returns.

    `call_of` returns the call on the current stream on the arrays `names`, of which `packed` are packed. Several
    threads may run it at once.
    """

    def __init__(
        self, memory: DeviceMemory, call_of: _CallOf, names: Sequence[str], packed: Sequence[str],
        stream: Callable[[], int],
    ) -> None:  # fmt: skip
        self.memory = memory
        self._call_of, self._names, self._packed, self._stream = call_of, tuple(names), tuple(packed), stream

    def run(self, addresses: Sequence[int], keep: object) -> None:
        """Launch the entries on memory at `addresses`. `keep` holds that memory alive until they are launched."""
        with self.memory.on_stream(self._stream(), True):
            self._call_of(self._names, self._packed).run(addresses, keep)


class GpuCalls:
    """The calls by position of the kernel whose tensors `border` holds, on the device of `memory`.

    `call_of` returns the call on the current stream on arrays by name, given the names of all and of the packed ones.
    `limit` is the largest magnitude of packed weights, if there is one, `signature` that of their packing; `learns` is
    whether a call has no other arrays, and no other limit. Several threads may call at once.
    """

    def __init__(
        self, border: Border, memory: DeviceMemory, signature: str, limit: float | None, learns: bool, call_of: _CallOf
    ) -> None:
        self._border, self._memory, self._signature, self._call_of = border, memory, signature, call_of
        self._limit, self._learns = inf if limit is None else limit, learns
        self._known: dict[object, _CallForm] = {}

    def result(self, src: Any, weights: Any, bias: Any, out: Any) -> Any:
        """Return the destination of a call by position; None if the call must take the general way."""
        reader = reader_of(src)
        if reader is None:
            return None
        forms = reader.form(src), _form(reader, weights), _form(reader, bias), _form(reader, out)
        known = self._known.get(forms)
        if known is None:
            return None
        specs, address = self._border.specs, reader.address
        made = reader.new_for(src, specs["dst"]) if out is None else out
        starts, target = [address(src)], address(made)
        if not known.packed:
            starts += [address(x) for x in (weights, bias) if x is not None]
        end = target + specs["dst"].extent
        for name, start in zip(known.names, starts):
            if not start or (start < end and target < start + specs[name].extent):
                return None
        if known.packed:
            # The magnitude of weights that were not examined is NaN.
            if self._limit < inf and not weights.magnitude <= self._limit:
                return None
            packed, of_bias = weights.addresses_on(self._memory)
            starts += [packed, of_bias] if of_bias else [packed]
        starts.append(target)
        with self._memory.on_stream(reader.stream(src), True):
            self._call_of(*known).run(starts, (src, weights, bias, made))
        return made

    def learn(self, src: Any, weights: Any, bias: Any, out: Any, result: Any) -> None:
        """Remember the forms of a call that took the general way to its `result`."""
        reader, is_packed = reader_of(src), type(weights) is Packed
        if reader is None or not self._learns or len(self._known) >= _MAX_FORMS:
            return
        # Each call has to find out whether plain weights are within a limit.
        if weights.signature != self._signature if is_packed else self._limit < inf:
            return
        forms = reader.form(src), _form(reader, weights), _form(reader, bias), _form(reader, out)
        if None not in (*forms, _form(reader, result)):
            has_bias = (weights.bias if is_packed else bias) is not None
            names = ("src", "wei", *(["bia"] if has_bias else []), "dst")
            self._known[forms] = _CallForm(names, ("wei",) if is_packed else ())


def _form(reader: ArrayReader, x: Any) -> object:
    """Return the form of an argument; None if no equal form can be remembered."""
    if x is None:
        return _ABSENT
    if type(x) is Packed:
        return x.signature
    return reader.form(x) if reader_of(x) is reader else None

