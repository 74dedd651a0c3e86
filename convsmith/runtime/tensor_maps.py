"""Tensor maps of the copy engine, which the driver encodes into memory of this process, once for each address.

The driver documents an alignment of 64 bytes for a map, but objects of cuda.bindings are aligned to 16. The encoding
functions are therefore called through ctypes, at the addresses that the driver returns for their names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from convsmith.codegen.artifact import MapArgument
from convsmith.diag.errors import ToolchainError
from convsmith.diag.forking import RenewedLock
from convsmith.diag.record import record
from convsmith.ir.types import DTYPES
from convsmith.runtime.arrays import address_of, aligned_empty

__all__ = ["MapEncoding", "TensorMaps", "encoding_of"]

_MAP_BYTES = 128
"""Bytes of a tensor map, which is also the alignment of memory from `aligned_empty`."""
_MAX_MAPS = 256
"""Maximum number of maps that an entry keeps; the most recently encoded are kept."""
_INTERFACE = 12000
"""The version of CUDA that has the functions with the parameters below."""

_LONGS, _WORDS, _INTS = (ctypes.POINTER(x) for x in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int))
_TENSOR: tuple[Any, ...] = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p, _LONGS, _LONGS)
"""The first parameters: the map, and the tensor's type, rank, address, sizes, and steps in bytes."""
_FORM: tuple[Any, ...] = (_WORDS, *[ctypes.c_int] * 4)
"""The last parameters: the steps of elements, interleave, swizzle, promotion, and the fill value of elements outside.
"""
_PROTOTYPES = {
    "cuTensorMapEncodeTiled": ctypes.CFUNCTYPE(ctypes.c_int, *_TENSOR, _WORDS, *_FORM),
    "cuTensorMapEncodeIm2col": ctypes.CFUNCTYPE(
        ctypes.c_int, *_TENSOR, _INTS, _INTS, ctypes.c_uint32, ctypes.c_uint32, *_FORM
    ),
}
_ELEMENTS = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32", "s32": "INT32"} | dict.fromkeys(
    ("s8", "u8", "f8_e4m3", "f8_e5m2"), "UINT8"
)
"""The driver's names of the types of elements that copies bring unchanged."""
_SWIZZLE = "CU_TENSOR_MAP_SWIZZLE_"
_FORMS = ("CUtensorMapInterleave", "CUtensorMapSwizzle", "CUtensorMapL2promotion", "CUtensorMapFloatOOBfill")
"""The driver's enumerations of the parts of a map's form."""


@record(frozen=True)
class MapEncoding:
    """The parameters of the driver's ``function`` that makes a tensor map, apart from the map and the tensor's address.

    ``type`` and the four parts of ``form`` are names of the driver's enumerators. ``sizes`` count elements, ``steps``
    bytes between neighbours along each dim but the innermost. ``box`` are the elements of a tile; an im2col map has
    ``channels`` and ``pixels`` instead, and the corners ``lower`` and ``upper``.
    """

    function: str
    type: str
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    element_steps: tuple[int, ...]
    form: tuple[str, str, str, str]
    box: tuple[int, ...] = ()
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    channels: int = 0
    pixels: int = 0


def encoding_of(made: MapArgument) -> MapEncoding:
    """Return the parameters with which the driver makes a map."""
    m, rank = made.map, len(made.map.dims)
    swizzle = f"{_SWIZZLE}{made.swizzle}B" if made.swizzle else f"{_SWIZZLE}NONE"
    form = ("CU_TENSOR_MAP_INTERLEAVE_NONE", swizzle, "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
            "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE")  # fmt: skip
    type_ = f"CU_TENSOR_MAP_DATA_TYPE_{_ELEMENTS[made.dtype]}"
    steps = tuple(n * DTYPES[made.dtype].bytes for n in m.strides[1:])
    if m.pixels:
        return MapEncoding(
            "cuTensorMapEncodeIm2col", type_, m.dims, steps, (1, *m.steps, 1), form, (), m.lower, m.upper, m.box[0],
            m.pixels,
        )  # fmt: skip
    return MapEncoding("cuTensorMapEncodeTiled", type_, m.dims, steps, (1,) * rank, form, m.box)


class _Gpu(Protocol):
    """The driver's binding, and the check of the status of its functions."""

    driver: Any

    def check(self, answer: Any, what: str) -> Any: ...


class TensorMaps:
    """The tensor maps of an entry, each of which is encoded once for each address of its tensor. Several threads may
    ask at once.
    """

    def __init__(self, maps: Sequence[MapArgument]) -> None:
        self._maps = tuple(maps)
        self._encoded: dict[tuple[int, int], NDArray[np.uint8]] = {}
        self._guard = RenewedLock()

    def at(self, gpu: _Gpu, addresses: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return the maps of tensors at ``addresses`` of the device, bytes each."""
        found = [self._encoded.get(key) for key in enumerate(addresses)]
        return [self._new(gpu, n, addresses[n]) if row is None else row for n, row in enumerate(found)]

    def _new(self, gpu: _Gpu, n: int, address: int) -> NDArray[np.uint8]:
        """Return map ``n`` of a tensor at an ``address``, encoded now."""
        encoded = _encoded_map(gpu, self._maps[n], address)
        with self._guard.lock:
            self._encoded[n, address] = encoded
            if len(self._encoded) > _MAX_MAPS:
                del self._encoded[next(iter(self._encoded))]
        return encoded


def _encoded_map(gpu: _Gpu, made: MapArgument, address: int) -> NDArray[np.uint8]:
    """Return the bytes of the map of a tensor at an ``address`` of the device."""
    encoded = aligned_empty(_MAP_BYTES)
    _encode(gpu, address_of(encoded), made, address)
    return encoded


def _encode(gpu: _Gpu, place: int, made: MapArgument, address: int) -> None:
    """Write the map of a tensor at an ``address`` of the device to ``place``."""
    driver, e = gpu.driver, encoding_of(made)
    form = tuple(int(getattr(getattr(driver, kind), name)) for kind, name in zip(_FORMS, e.form))
    type_ = int(getattr(driver.CUtensorMapDataType, e.type))
    sizes, steps = _row(ctypes.c_uint64, e.sizes), _row(ctypes.c_uint64, e.steps)
    part: tuple[Any, ...] = (_row(ctypes.c_uint32, e.box),)
    if e.pixels:
        part = (_row(ctypes.c_int, e.lower), _row(ctypes.c_int, e.upper), e.channels, e.pixels)
    apart = _row(ctypes.c_uint32, e.element_steps)
    status = _function(gpu, e.function)(place, type_, len(e.sizes), address, sizes, steps, *part, apart, *form)
    gpu.check((driver.CUresult(status),), f"the tensor map of {made.of}")


def _function(gpu: _Gpu, name: str) -> Callable[..., int]:
    """Return a function of the driver. ToolchainError if the driver lacks it."""
    address = gpu.check(gpu.driver.cuGetProcAddress(name.encode(), _INTERFACE, 0), f"the driver's function {name}")
    if not address:
        raise ToolchainError(f"the driver has no function {name}", text=name)
    return _PROTOTYPES[name](int(address))


def _row(kind: type[Any], values: Sequence[int]) -> Any:
    """Return an array of ctypes."""
    return (kind * len(values))(*values)
