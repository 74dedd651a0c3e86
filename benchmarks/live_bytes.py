"""The memory of a run of PyTorch: the largest number of bytes that its tensors hold at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["most_live_bytes"]


def most_live_bytes(call: Callable[[], Any], known: Iterable[Tensor]) -> int:
    """Return the largest number of bytes of tensors that are alive at once during a call, without those of `known`
    tensors, such as weights and inputs. What operators allocate inside is not counted.
    """
    counter = _LiveBytes(known)
    with counter:
        call()
    return counter.most


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages from their first result to their end."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {x.untyped_storage()._cdata for x in known}
        self._live = dict[int, int]()
        self._now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the results of an operator, after their memory is counted."""
        results = func(*args, **(kwargs or {}))
        for x in tree_leaves(results):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                key = storage._cdata
                if key not in self._known and key not in self._live:
                    self._live[key] = storage.nbytes()
                    weakref.finalize(storage, self._end, key)
                    self._now += self._live[key]
                    self.most = max(self.most, self._now)
        return results

    def _end(self, key: int) -> None:
        self._now -= self._live.pop(key)
