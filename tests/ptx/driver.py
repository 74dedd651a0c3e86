"""A driver of CUDA that runs PTX in the interpreter: the functions that the run time calls, by the binding's names."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from ptx.launch import run


class Status(IntEnum):
    """Statuses of the driver."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_FOUND = 500


class InterpretedDriver:
    """The driver of one GPU of a compute capability; memory of the device is memory of this process.

    A module is PTX: the assembler is left out. `calls` are the names of the functions called.
    """

    def __init__(self, capability: tuple[int, int] = (8, 0), memory: int = 1 << 24) -> None:
        self.capability, self.free = capability, memory
        self.arrays: dict[int, np.ndarray] = {}
        self.calls: list[str] = []
        names = ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{x}": x for x in names})
        self.CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
        self.CUpointer_attribute = SimpleNamespace(CU_POINTER_ATTRIBUTE_MEMORY_TYPE="type")
        self.CUresult = Status
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

    def cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        return (Status.CUDA_SUCCESS,)

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
        ctypes.memmove(to, of, nbytes)
        return (Status.CUDA_SUCCESS,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuLaunchKernel(self, function: Any, *numbers: Any) -> tuple[Any, ...]:
        *sizes, shared, _, places, _ = numbers
        text, name = function
        count = text.partition(f".entry {name}(")[2].partition(")")[0].count(".param")
        words = [ctypes.c_uint64.from_address(p).value for p in (ctypes.c_void_p * count).from_address(places)]
        given = [self.arrays.get(w, w) for w in words]
        found = run(text, name, sizes[:3], given, sizes[3:], shared)
        for old, new in zip(given, found):
            if new is not None:
                old[:] = new
        return (Status.CUDA_SUCCESS,)
