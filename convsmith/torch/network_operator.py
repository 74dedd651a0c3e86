"""The operator through which torch's compilers see the native functions of a part of a network.

A string names the part, because a graph of torch holds no Python objects; the name is valid in this process.
"""

from __future__ import annotations

import inspect
import itertools
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import _C, Tensor

from convsmith.diag.errors import UsageError
from convsmith.torch.autocast import cast_type

__all__ = ["is_traced", "named", "seen"]


class _Runnable(Protocol):
    """A part of a network: it computes its results from its sources, and their forms from sources without data."""

    def results(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]: ...

    def is_ready(self, tensors: Sequence[Tensor]) -> bool: ...

    def prepare(self, tensors: Sequence[Tensor], cast: torch.dtype | None) -> None: ...

    def without_data(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]: ...


_parts: WeakValueDictionary[str, _Runnable] = WeakValueDictionary()
_numbers = itertools.count()
_modes = _C._len_torch_dispatch_stack


def named(part: _Runnable) -> str:
    """Return a new name of `part` for `seen`, which is valid as long as the part exists."""
    name = f"network {next(_numbers)} of {uuid.uuid4()}"  # unique across processes, for saved graphs
    _parts[name] = part
    return name


def is_traced() -> bool:
    """Return whether torch must see a call: a compiler traces it, or a mode is active."""
    return torch.compiler.is_compiling() or _modes() > 0


def _part(name: str) -> _Runnable:
    found = _parts.get(name)
    if found is None:
        raise UsageError(f"{name!r} is of another process, or its optimized network is gone", code="network")
    return found


def _computed(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return row-major results, none of which shares memory with a source or another result."""
    part = _part(name)
    if not part.is_ready(tensors):
        with ThreadPoolExecutor(1) as apart:  # a trace in this thread would see no operators below this one
            apart.submit(part.prepare, tensors, cast_type()).result()
    taken = {x.untyped_storage().data_ptr() for x in tensors}
    made = list[Tensor]()
    for y in part.results(tensors):
        own = y.contiguous()
        own = own.clone() if own.untyped_storage().data_ptr() in taken else own
        taken.add(own.untyped_storage().data_ptr())
        made.append(own)
    return made


def _without_data(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in _part(name).without_data(tensors)]


_library: Any = torch.library.Library("convsmith", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("network(str name, Tensor[] sources) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
for _key in ("CPU", "CUDA"):
    _library.impl("network", _computed, _key)
inspect.modulesbyfile[__file__] = __name__  # torch asks for it, and `inspect` would look at the files of all modules
torch.library.register_fake("convsmith::network", _without_data, lib=_library)
seen: Any = torch.ops.convsmith.network.default
"""The operator that computes the results of the part of a given name from its sources."""
