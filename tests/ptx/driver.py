"""A driver of CUDA that runs PTX in the interpreter: the functions that the run time calls, by the binding's names."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from convsmith.emulate.ptx.launch import run
from convsmith.emulate.ptx.tensor_copies import PtxTensorMap


class Status(IntEnum):
    """Statuses of the driver."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_NOT_FOUND = 500


_TYPES = {"UINT8": (0, 1), "INT32": (3, 4), "FLOAT16": (6, 2), "FLOAT32": (7, 4), "BFLOAT16": (9, 2)}
"""The driver's numbers of the types of elements, and their bytes."""
_SWIZZLES = {32: 1, 64: 2, 128: 3}
"""The driver's numbers of swizzles, by their bytes."""
_L2_256B = 3
"""The driver's number of the widest promotion in the second-level cache."""

_LONGS, _WORDS, _INTS = (ctypes.POINTER(x) for x in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int))
_FIRST_MAP = 0xA11C0DE << 32
"""The number of the first map, which is no address."""


class EncodedMap(NamedTuple):
    """A tensor map of the driver: the address of the tensor, and what it describes. Its 128 bytes hold its number."""

    address: int
    map: PtxTensorMap


class _Contexts(threading.local):
    """The contexts of each thread."""

    def __init__(self) -> None:
        self.stack = ["the caller's"]


class InterpretedDriver:
    """The driver of one GPU of a compute capability; memory of the device is memory of this process.

    A module is PTX: the assembler is left out. `calls` are the names of the functions called, `streams` those
    of the launches.
    """

    def __init__(self, capability: tuple[int, int] = (8, 0), memory: int = 1 << 24) -> None:
        self.capability, self.free = capability, memory
        self.arrays: dict[int, np.ndarray] = {}
        self.owners: dict[int, Any] = {}
        self.calls: list[str] = []
        self.streams: list[int] = []
        self._current = _Contexts()
        names = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{x}": x for x in names})
        self.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
        self.CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE="type")
        self.CUresult = Status
        self.maps: dict[int, EncodedMap] = {}
        kinds = {f"CU_TENSOR_MAP_DATA_TYPE_{name}": number for name, (number, _) in _TYPES.items()}
        self.CUtensorMapDataType = SimpleNamespace(**kinds)
        self.CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0)
        widths = {f"CU_TENSOR_MAP_SWIZZLE_{width}B": number for width, number in _SWIZZLES.items()}
        self.CUtensorMapSwizzle = SimpleNamespace(CU_TENSOR_MAP_SWIZZLE_NONE=0, **widths)
        self.CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B=_L2_256B)
        self.CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE=0)
        self._functions = self._encoders()
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
        self.mode = 0
        self.CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
        self.CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION=4)
        self.CUlaunchAttribute = self.CUlaunchConfig = SimpleNamespace
        self.CUlaunchAttributeValue = lambda: SimpleNamespace(clusterDim=SimpleNamespace())

    @property
    def contexts(self) -> list[str]:
        """The contexts of the calling thread, of which the last is current."""
        return self._current.stack

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("cu"):
            self.calls.append(name)
        return object.__getattribute__(self, name)

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuDeviceGet(self, number: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, number

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, b"interpreted GPU\0\0"

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, "context"

    def cuCtxPushCurrent(self, context: str) -> tuple[Any, ...]:
        self.contexts.append(context)
        return (Status.CUDA_SUCCESS,)

    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.contexts.pop()

    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, self.contexts[-1]

    def cuStreamGetId(self, stream: int) -> tuple[Any, ...]:
        self._check_context()
        return Status.CUDA_SUCCESS, stream

    def _check_context(self) -> None:
        assert self.contexts[-1] == "context", "another context is current"

    def cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        self._check_context()
        return (Status.CUDA_SUCCESS,)

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[Any, ...]:
        before, self.mode = self.mode, mode
        return Status.CUDA_SUCCESS, before

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 0

    def cuDeviceGetAttribute(self, kind: str, device: int) -> tuple[Any, ...]:
        major, minor = self.capability
        known = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
        return Status.CUDA_SUCCESS, known.get(kind, 100 << 10)

    def cuModuleLoadData(self, code: bytes) -> tuple[Any, ...]:
        self._check_context()
        return Status.CUDA_SUCCESS, code.decode()

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[Any, ...]:
        self._check_context()
        if f".entry {name.decode()}(" not in module:
            return Status.CUDA_ERROR_NOT_FOUND, None
        return Status.CUDA_SUCCESS, (module, name.decode())

    def cuFuncSetAttribute(self, function: Any, kind: str, value: int) -> tuple[Any, ...]:
        self._check_context()
        return (Status.CUDA_SUCCESS,)

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        if nbytes > self.free:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, 0
        self.free -= nbytes
        array = np.zeros(nbytes, np.uint8)
        self.arrays[array.ctypes.data] = array
        return Status.CUDA_SUCCESS, array.ctypes.data

    def take(self, address: int, nbytes: int, owner: Any) -> None:
        """Treat memory of this process, which `owner` keeps, as memory of the device."""
        self.owners[address] = owner
        self.arrays[address] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def cuPointerGetAttribute(self, kind: str, address: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS, 2) if address in self.arrays else (1, None)

    def cuMemcpyHtoD(self, to: int, of: int, nbytes: int) -> tuple[Any, ...]:
        self._check_context()
        ctypes.memmove(to, of, nbytes)
        return (Status.CUDA_SUCCESS,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        self._check_context()
        self.free += self.arrays.pop(address).nbytes
        return (Status.CUDA_SUCCESS,)

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> tuple[Any, ...]:
        assert (version, flags) == (12000, 0), "tensor maps came with CUDA 12.0"
        self.calls.append(name.decode())
        function = self._functions.get(name.decode())
        return Status.CUDA_SUCCESS, ctypes.cast(function, ctypes.c_void_p).value if function is not None else 0, 0

    def _encoders(self) -> dict[str, Any]:
        """Return the functions that encode maps, as functions of C with the parameters of CUDA's header."""
        number = ctypes.c_int
        tensor = (ctypes.c_void_p, number, ctypes.c_uint32, ctypes.c_void_p, _LONGS, _LONGS)
        form = (_WORDS, number, number, number, number)
        tiled = ctypes.CFUNCTYPE(number, *tensor, _WORDS, *form)
        columns = ctypes.CFUNCTYPE(number, *tensor, _INTS, _INTS, ctypes.c_uint32, ctypes.c_uint32, *form)
        return {"cuTensorMapEncodeTiled": tiled(self._tiled), "cuTensorMapEncodeIm2col": columns(self._columns)}

    def _tiled(self, place: int, kind: int, rank: int, address: int, sizes: Any, strides: Any, box: Any, steps: Any,
               *form: int) -> int:  # fmt: skip
        if set(steps[:rank]) != {1}:
            return Status.CUDA_ERROR_INVALID_VALUE
        return self._encoded(place, kind, rank, address, sizes, strides, form, tuple(box[:rank]))

    def _columns(self, place: int, kind: int, rank: int, address: int, sizes: Any, strides: Any, lower: Any, upper: Any,
                 channels: int, pixels: int, steps: Any, *form: int) -> int:  # fmt: skip
        between = rank - 2
        more = (pixels, tuple(lower[:between]), tuple(upper[:between]), tuple(steps[1 : rank - 1]))
        if (steps[0], steps[rank - 1]) != (1, 1) or not 0 < pixels <= 1024:
            return Status.CUDA_ERROR_INVALID_VALUE
        return self._encoded(place, kind, rank, address, sizes, strides, form, (channels,), *more)

    def _encoded(self, place: int, kind: int, rank: int, address: int, sizes: Any, strides: Any, form: Any,
                 box: tuple[int, ...], *more: Any) -> int:  # fmt: skip
        """Write a map to `place`, unless the driver's documentation forbids an argument."""
        interleave, swizzle, promotion, fill = form
        itemsize = {number: nbytes for number, nbytes in _TYPES.values()}.get(kind, 0)
        width = {number: width for width, number in _SWIZZLES.items()}.get(swizzle, 0)
        is_legal = not (place % 64 or address % 16) and 1 <= rank <= 5 and itemsize and max(box) <= 256
        if not is_legal or (interleave, promotion, fill) != (0, _L2_256B, 0):
            return Status.CUDA_ERROR_INVALID_VALUE
        made = PtxTensorMap(0, itemsize, tuple(sizes[:rank]), tuple(strides[: rank - 1]), box, width, *more)
        number = _FIRST_MAP + len(self.maps)
        self.maps[number] = EncodedMap(address, made)
        ctypes.memmove(place, (ctypes.c_uint64 * 16)(*[number] * 16), 128)
        return Status.CUDA_SUCCESS

    def argument_at(self, address: int, words: list[int]) -> Any:
        """Return the memory from an address on to the next of `words` in the same array; other words as they are."""
        for start, array in self.arrays.items():
            if start <= address < start + array.nbytes:
                end = min((w for w in words if address < w < start + array.nbytes), default=start + array.nbytes)
                return array[address - start : end - start]
        return address

    def cuLaunchKernelEx(self, config: Any, function: Any, places: int, extra: int) -> tuple[Any, ...]:
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        sizes = (*grid, config.blockDimX, config.blockDimY, config.blockDimZ)
        (attribute,) = config.attrs[: config.numAttrs]
        assert attribute.id == self.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dims = attribute.value.clusterDim
        needed = f".reqnctapercluster {dims.x}, {dims.y}, {dims.z}\n"
        if needed not in function[0].partition(f".entry {function[1]}(")[2].partition("{")[0]:
            return (Status.CUDA_ERROR_INVALID_VALUE,)
        return self.cuLaunchKernel(function, *sizes, config.sharedMemBytes, config.hStream, places, extra)

    def cuLaunchKernel(self, function: Any, *numbers: Any) -> tuple[Any, ...]:
        self._check_context()
        *sizes, shared, stream, places, _ = numbers
        self.streams.append(stream)
        text, name = function
        count = text.partition(f".entry {name}(")[2].partition(")")[0].count(".param")
        at = list((ctypes.c_void_p * count).from_address(places))
        words = [ctypes.c_uint64.from_address(p).value for p in at]
        assert not any(w in self.maps and p % 64 for p, w in zip(at, words)), "a map is aligned to 64 bytes"
        given = [
            replace(self.maps[w].map, argument=words.index(self.maps[w].address)) if w in self.maps
            else self.argument_at(w, words) for w in words
        ]  # fmt: skip
        found = run(text, name, sizes[:3], given, sizes[3:], shared)
        for old, new in zip(given, found):
            if new is not None:
                old[:] = new
        return (Status.CUDA_SUCCESS,)
