"""A driver of CUDA that runs PTX in the interpreter: the functions that the run time calls, by the binding's names."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from ptx.launch import run
from ptx.tensor_copies import TensorMap


class Status(IntEnum):
    """Statuses of the driver."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_NOT_FOUND = 500


_BYTES = {"BFLOAT16": 2, "FLOAT16": 2, "FLOAT32": 4, "UINT8": 1, "INT32": 4}


_FIRST_MAP = 0xA11C0DE << 32
"""The number of the first map, which is no address."""


class EncodedMap:
    """A tensor map of the driver: 128 bytes that hold its number, the address of the tensor, and what it describes."""

    def __init__(self, address: int, made: TensorMap, number: int) -> None:
        self.address, self.map, self._bytes = address, made, np.full(16, number, np.uint64)

    def getPtr(self) -> int:
        """Return the address of the bytes, as the binding's objects do."""
        return int(self._bytes.ctypes.data)


class InterpretedDriver:
    """The driver of one GPU of a compute capability; memory of the device is memory of this process.

    A module is PTX: the assembler is left out. `calls` are the names of the functions called.
    """

    def __init__(self, capability: tuple[int, int] = (8, 0), memory: int = 1 << 24) -> None:
        self.capability, self.free = capability, memory
        self.arrays: dict[int, np.ndarray] = {}
        self.calls: list[str] = []
        self.contexts = ["the caller's"]
        names = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{x}": x for x in names})
        self.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
        self.CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE="type")
        self.CUresult = Status
        self.maps: dict[int, EncodedMap] = {}
        self.cuuint64_t = self.cuuint32_t = int
        names = ("BFLOAT16", "FLOAT16", "FLOAT32", "UINT8", "INT32")
        self.CUtensorMapDataType = SimpleNamespace(**{f"CU_TENSOR_MAP_DATA_TYPE_{x}": x for x in names})
        self.CUtensorMapInterleave = SimpleNamespace(CU_TENSOR_MAP_INTERLEAVE_NONE=0)
        widths = {f"CU_TENSOR_MAP_SWIZZLE_{n}B": n for n in (32, 64, 128)}
        self.CUtensorMapSwizzle = SimpleNamespace(CU_TENSOR_MAP_SWIZZLE_NONE=0, **widths)
        self.CUtensorMapL2promotion = SimpleNamespace(CU_TENSOR_MAP_L2_PROMOTION_L2_256B=0)
        self.CUtensorMapFloatOOBfill = SimpleNamespace(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE=0)
        self.CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)

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

    def _check_context(self) -> None:
        assert self.contexts[-1] == "context", "another context is current"

    def cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuStreamIsCapturing(self, stream: int) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, 0

    def cuDeviceGetAttribute(self, kind: str, device: int) -> tuple[Any, ...]:
        major, minor = self.capability
        known = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
        return Status.CUDA_SUCCESS, known.get(kind, 100 << 10)

    def cuModuleLoadData(self, code: bytes) -> tuple[Any, ...]:
        return Status.CUDA_SUCCESS, code.decode()

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[Any, ...]:
        if f".entry {name.decode()}(" not in module:
            return Status.CUDA_ERROR_NOT_FOUND, None
        return Status.CUDA_SUCCESS, (module, name.decode())

    def cuFuncSetAttribute(self, function: Any, kind: str, value: int) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        if nbytes > self.free:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, 0
        self.free -= nbytes
        array = np.zeros(nbytes, np.uint8)
        self.arrays[array.ctypes.data] = array
        return Status.CUDA_SUCCESS, array.ctypes.data

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

    def cuTensorMapEncodeTiled(self, kind: str, rank: int, address: int, sizes: Any, strides: Any, box: Any,
                               steps: Any, *form: int) -> tuple[Any, ...]:  # fmt: skip
        return self._encoded(address, TensorMap(0, _BYTES[kind], tuple(sizes), tuple(strides), tuple(box), form[1]))

    def cuTensorMapEncodeIm2col(self, kind: str, rank: int, address: int, sizes: Any, strides: Any, lower: Any,
                                upper: Any, channels: int, pixels: int, steps: Any,
                                *form: int) -> tuple[Any, ...]:  # fmt: skip
        made = TensorMap(
            0, _BYTES[kind], tuple(sizes), tuple(strides), (channels,), form[1], pixels, tuple(lower), tuple(upper),
            tuple(steps[1:-1]),
        )  # fmt: skip
        return self._encoded(address, made)

    def _encoded(self, address: int, made: TensorMap) -> tuple[Any, ...]:
        number = _FIRST_MAP + len(self.maps)
        encoded = self.maps[number] = EncodedMap(address, made, number)
        return Status.CUDA_SUCCESS, encoded

    def cuLaunchKernel(self, function: Any, *numbers: Any) -> tuple[Any, ...]:
        self._check_context()
        *sizes, shared, _, places, _ = numbers
        text, name = function
        count = text.partition(f".entry {name}(")[2].partition(")")[0].count(".param")
        at = list((ctypes.c_void_p * count).from_address(places))
        words = [ctypes.c_uint64.from_address(p).value for p in at]
        assert not any(w in self.maps and p % 64 for p, w in zip(at, words)), "a map is aligned to 64 bytes"
        given = [
            replace(self.maps[w].map, argument=words.index(self.maps[w].address)) if w in self.maps
            else self.arrays.get(w, w) for w in words
        ]  # fmt: skip
        found = run(text, name, sizes[:3], given, sizes[3:], shared)
        for old, new in zip(given, found):
            if new is not None:
                old[:] = new
        return (Status.CUDA_SUCCESS,)
