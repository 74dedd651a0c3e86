"""Arrays of a GPU, read through attributes of their library: that takes a tenth of the time of a protocol.

The protocols (`gpu_arrays.py`) remain the way to an array of unknown form: they say everything, and refuse in words. A
reader only finds out whether an array has a form that was accepted before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from convsmith.runtime.arrays import ArraySpec
from convsmith.runtime.foreign import module_of

__all__ = ["READERS", "ArrayReader", "reader_of"]


class ArrayReader(NamedTuple):
    """Functions of an array of one class of a library."""

    form: Callable[[Any], object]
    """Return a key: arrays of equal forms have the same shape, strides, type and device. None if the array is not on a
    GPU, records gradients, or does not show the contents of its memory.
    """
    address: Callable[[Any], int]
    """Return the address of the first element."""
    stream: Callable[[Any], int]
    """Return the stream on which the library works on the array's device, as CUDA's handle."""
    new: Callable[[Any, Sequence[int], Sequence[int], str], Any]
    """Return a new array on the device of an array, of a shape, with strides in elements and a type by numpy's name."""

    def new_for(self, like: Any, spec: ArraySpec) -> Any:
        """Return a new array on the device of `like`, in the form of an argument."""
        return self.new(like, spec.shape, spec.steps, spec.type_name)


def _of_torch(torch: Any) -> dict[type, ArrayReader]:
    """Return the reader of PyTorch's tensors and parameters."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def form(x: Any) -> object:
        if not x.is_cuda or x.requires_grad or x.is_neg():
            return None
        return x.shape, x.stride(), x.dtype, x.get_device()

    def stream(x: Any) -> int:
        return int(raw(x.get_device()) if raw is not None else torch.cuda.current_stream(x.device).cuda_stream)

    def new(like: Any, shape: Sequence[int], strides: Sequence[int], dtype: str) -> Any:
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=like.device)

    return dict.fromkeys((torch.Tensor, torch.nn.Parameter), ArrayReader(form, torch.Tensor.data_ptr, stream, new))


READERS: dict[str, Callable[[Any], dict[type, ArrayReader]]] = {"torch": _of_torch}
"""By the name of a library: the function from its module to the readers of its arrays by class."""

_by_class: dict[type, ArrayReader | None] = {}


def reader_of(given: object) -> ArrayReader | None:
    """Return the reader of an array's class; None if the class has none."""
    kind = type(given)
    try:
        return _by_class[kind]
    except KeyError:
        library = module_of(given)
        make = READERS.get(getattr(library, "__name__", ""))
        found = _by_class[kind] = None if make is None else make(library).get(kind)
        return found
