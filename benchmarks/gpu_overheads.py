"""Calls of a kernel for a GPU on a driver whose functions return at once: their time is that of this process.

Run: python benchmarks/gpu_overheads.py

The kernel is a 3x3 convolution of sm_90a whose operands the copy engine brings, so that a launch needs two tensor maps.
Tensors of PyTorch are those of the host, read as if they were on the GPU.
"""

from __future__ import annotations

import ctypes
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

CALLS, ROUNDS = 200, 50
LINE = "--dt=bf16 --stag=axb --wtag=axb --dtag=axb mb1ic64ih8oc64oh8kh3ph1"
_STREAM = 0x5150
_NUMBERS = {
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": 9, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": 0,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
}  # fmt: skip


class _Numbers:
    """An enumeration of the driver, each name of which has a number."""

    def __getattr__(self, name: str) -> int:
        return _NUMBERS.get(name, 1)

    def __call__(self, status: int) -> int:
        return status


class IdleDriver:
    """The functions of CUDA's driver by the names of its binding, which do nothing and succeed."""

    def __init__(self) -> None:
        self.CUresult: Any = _Numbers()
        self._memory: list[Any] = []
        self._encoder = ctypes.cast(ctypes.CDLL("libm.so.6").feclearexcept, ctypes.c_void_p).value
        """The address of a function that ignores its arguments and returns 0."""

    def __getattr__(self, name: str) -> Any:
        found = _Numbers() if name.startswith("CU") else lambda *_: (0, 1)
        setattr(self, name, found)
        return found

    def cuDeviceGetAttribute(self, kind: int, _: object) -> tuple[int, int]:
        return 0, kind

    def cuDeviceGetName(self, *_: object) -> tuple[int, bytes]:
        return 0, b"idle"

    def cuPointerGetAttribute(self, *_: object) -> tuple[int, int]:
        return 0, 1

    def cuStreamIsCapturing(self, _: object) -> tuple[int, int]:
        return 0, 0

    def cuGetProcAddress(self, *_: object) -> tuple[int, int | None, int]:
        return 0, self._encoder, 0

    def cuMemAlloc(self, nbytes: int) -> tuple[int, int]:
        self._memory.append(np.empty(nbytes + 256, np.uint8))
        return 0, -(-self._memory[-1].ctypes.data // 256) * 256


class _OnGpu:
    """An array of a GPU that speaks CUDA's array interface."""

    def __init__(self, tensor: Any, spec: Any) -> None:
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False), "shape": spec.shape, "strides": spec.strides, "typestr": spec.dtype,
            "stream": _STREAM, "version": 3,
        }  # fmt: skip


def _as_on_gpu(torch: Any) -> Any:
    """Return the reader of PyTorch's tensors of a GPU, made to read tensors of the host."""
    from convsmith.runtime.array_readers import ArrayReader

    def form(x: Any) -> object:
        return None if x.is_cuda or x.requires_grad or x.is_neg() else (x.shape, x.stride(), x.dtype, x.get_device())

    def new(_: Any, shape: Any, strides: Any, dtype: str) -> Any:
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))

    return ArrayReader(form, torch.Tensor.data_ptr, lambda x: _STREAM + x.get_device(), new)


def calls() -> dict[str, Callable[[], Any]]:
    """Return calls by name, after the first call of each."""
    import torch

    import convsmith as cs
    from convsmith.runtime import cuda
    from convsmith.runtime.array_readers import _by_class

    driver = IdleDriver()
    cuda._driver = lambda: driver  # type: ignore[assignment]
    k = cs.compile(LINE, target="sm_90a", threads=1)
    specs, gpu = k.host.border.specs, cuda.CudaMemory()
    packed = k.pack(np.ones(specs["wei"].shape, specs["wei"].dtype))
    x, w, out = (
        torch.ones(specs[name].shape, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        for name in ("src", "wei", "dst")
    )
    addresses = [tensor.data_ptr() for tensor in (x, w, out)]
    by_address = k.host.addressed(("src", "wei", "dst"))
    by_protocol: list[Any] = [_OnGpu(x, specs["src"]), _OnGpu(out, specs["dst"])]

    def on_addresses() -> None:
        with gpu.on_stream(_STREAM, resident=True):
            by_address.run(addresses, out)

    found: dict[str, Callable[[], Any]] = {
        "a GPU's kernel on addresses": on_addresses,
        "`k(x, packed, out=out)` by a protocol": lambda: k(by_protocol[0], packed, out=by_protocol[1]),
    }
    _by_class[torch.Tensor] = _as_on_gpu(torch)
    found["`k(x, packed, out=out)` of PyTorch"] = lambda: k(x, packed, out=out)
    found["`k(x, packed)` of PyTorch"] = lambda: k(x, packed)
    known = k.host._gpu_calls
    assert known is not None
    for result in (out, None):  # a first call would ask PyTorch for its GPU
        known.learn(x, packed, None, result, out)
    for call in found.values():
        call()
    return found


def least(call: Callable[[], Any]) -> float:
    """Return the microseconds of a call in the fastest of several rounds: other processes only add to the others."""
    return min(timeit.repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def main() -> None:
    for name, call in calls().items():
        print(f"{name:40} {least(call):6.2f} us")


if __name__ == "__main__":
    main()
