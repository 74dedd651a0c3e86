"""The example of a library for CUDA, run by a driver that interprets PTX: `interpreted_cuda.py LIBRARY.so`.

The library holds the example, whose main function is `example`, and the functions of `interpreted_cuda.c`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ptx.driver import InterpretedDriver, Status

_WORD, _INT, _POINTER = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
_NO_BINARY = 209
"""The driver's number of the status of machine code for another generation."""


class _Handles:
    """The functions of CUDA's header, which find what the driver of Python returns by numbers."""

    def __init__(self, driver: InterpretedDriver) -> None:
        self._driver = driver
        self._known: list[Any] = [None]
        self._kept: list[Any] = []

    def _give(self, place: int, answer: tuple[Any, ...]) -> int:
        status, *values = answer
        if status == Status.CUDA_SUCCESS:
            value = values[0]
            if not isinstance(value, int):
                self._known.append(value)
                value = len(self._known) - 1
            _WORD.from_address(place).value = value
        return int(status)

    def cuInit(self, flags: int) -> int:
        return int(self._driver.cuInit(flags)[0])

    def cuGetErrorName(self, status: int, place: int) -> int:
        self._kept.append(ctypes.create_string_buffer(f"status {status}".encode()))
        _WORD.from_address(place).value = ctypes.addressof(self._kept[-1])
        return 0

    def cuDeviceGet(self, place: int, number: int) -> int:
        _INT.from_address(place).value = number
        return 0

    def cuDevicePrimaryCtxRetain(self, place: int, device: int) -> int:
        return self._give(place, self._driver.cuDevicePrimaryCtxRetain(device))

    def cuCtxSetCurrent(self, context: int) -> int:
        return int(self._driver.cuCtxPushCurrent(self._known[context])[0])

    def cuModuleLoadData(self, place: int, code: int) -> int:
        text = ctypes.string_at(code)
        return _NO_BINARY if text.startswith(b"\x7fELF") else self._give(place, self._driver.cuModuleLoadData(text))

    def cuModuleUnload(self, module: int) -> int:
        return 0

    def cuModuleGetFunction(self, place: int, module: int, name: int) -> int:
        return self._give(place, self._driver.cuModuleGetFunction(self._known[module], ctypes.string_at(name)))

    def cuFuncSetAttribute(self, function: int, kind: int, value: int) -> int:
        return int(self._driver.cuFuncSetAttribute(self._known[function], "shared", value)[0])

    def cuMemAlloc(self, place: int, nbytes: int) -> int:
        return self._give(place, self._driver.cuMemAlloc(nbytes))

    def cuMemFree(self, address: int) -> int:
        return int(self._driver.cuMemFree(address)[0])

    def cuMemcpyHtoD(self, to: int, of: int, nbytes: int) -> int:
        return int(self._driver.cuMemcpyHtoD(to, of, nbytes)[0])

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuStreamCreate(self, place: int, flags: int) -> int:
        _WORD.from_address(place).value = 0
        return 0

    def cuStreamSynchronize(self, stream: int) -> int:
        return int(self._driver.cuStreamSynchronize(stream)[0])

    def cuLaunchKernel(self, function: int, *numbers: Any) -> int:
        return int(self._driver.cuLaunchKernel(self._known[function], *numbers)[0])


_TYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_INT,), "cuGetErrorName": (_INT, _POINTER), "cuDeviceGet": (_POINTER, _INT),
    "cuDevicePrimaryCtxRetain": (_POINTER, _INT), "cuCtxSetCurrent": (_WORD,), "cuModuleLoadData": (_POINTER, _POINTER),
    "cuModuleUnload": (_WORD,), "cuModuleGetFunction": (_POINTER, _WORD, _POINTER),
    "cuFuncSetAttribute": (_WORD, _INT, _INT), "cuMemAlloc": (_POINTER, _WORD), "cuMemFree": (_WORD,),
    "cuMemcpyHtoD": (_WORD, _WORD, _WORD), "cuMemcpyDtoH": (_WORD, _WORD, _WORD), "cuStreamCreate": (_POINTER, _INT),
    "cuStreamSynchronize": (_WORD,), "cuLaunchKernel": (_WORD, *[ctypes.c_uint32] * 7, _WORD, _POINTER, _POINTER),
}  # fmt: skip


def _reported(function: Callable[..., int]) -> Callable[..., int]:
    """Return a function that ends the process where Python raises."""

    def call(*arguments: Any) -> int:
        try:
            return function(*arguments)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(3)

    return call


def main(path: str) -> int:
    """Run the example of a library, and return its status."""
    library, driver = ctypes.CDLL(path), InterpretedDriver((9, 0), 1 << 28)
    handles, kept = _Handles(driver), []
    for name, types in _TYPES.items():
        kept.append(ctypes.CFUNCTYPE(_INT, *types)(_reported(getattr(handles, name))))
        _POINTER.in_dll(library, f"{name}_given").value = ctypes.cast(kept[-1], _POINTER).value
    for name, function in driver._functions.items():
        _POINTER.in_dll(library, f"{name}_given").value = ctypes.cast(function, _POINTER).value
    return int(library.example())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
