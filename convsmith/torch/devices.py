"""The devices of tensors that kernels run on: the CPU, and the GPU of CUDA that kernels are launched on.

Other modules ask this one where a tensor is, so that the tests can take memory of the host for memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from convsmith.diag.errors import UnsupportedError, UsageError

__all__ = [
    "CPU", "GPU_TARGET", "check_devices", "check_not_capturing", "device_of", "empty_on", "finish", "is_gpu",
    "runs_kernels", "stream_on", "target_on",
]  # fmt: skip

CPU = torch.device("cpu")
_GPU = torch.device("cuda", 0)
GPU_TARGET = "cuda"
"""The name of the level of this machine's GPU, and of the run time that launches its kernels."""
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def device_of(tensor: Tensor) -> torch.device:
    """Return the device of a tensor."""
    return tensor.device


def is_gpu(device: torch.device) -> bool:
    """Return whether kernels for `device` run on a GPU of CUDA."""
    return device.type == "cuda"


def runs_kernels(device: torch.device) -> bool:
    """Return whether kernels run on a device."""
    return device in (CPU, _GPU)


def check_devices(tensors: Sequence[tuple[str, Tensor | None]]) -> None:
    """Raise UsageError if kernels do not run on the devices of the named `tensors`, or the devices differ."""
    first, owner = None, ""
    for name, tensor in tensors:
        device = first if tensor is None else device_of(tensor)
        if device is None or device == first:
            continue
        if not runs_kernels(device) and device.type != "meta":
            raise UsageError(
                f"{name}: is on {device}; legal is memory of the CPU or of {_GPU} (tensors are never moved)",
                code="device",
            )
        if device.type == "meta":
            continue
        if first is not None:
            raise UsageError(
                f"{name}: is on {device}; legal is {first}, where {owner} is (tensors are never moved)", code="device"
            )
        first, owner = device, name


def target_on(device: torch.device) -> str | None:
    """Return the target of kernels on a device; None for the default of the CPU."""
    return GPU_TARGET if is_gpu(device) else None


def empty_on(device: torch.device, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new uninitialised tensor on a device."""
    if device.type == "cpu":  # without the argument, torch takes 0.2 us less
        return torch.empty_strided(shape, strides, dtype=dtype)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def stream_on(device: torch.device) -> int:
    """Return the current stream of the calling thread on a GPU, as CUDA's handle."""
    if _raw_stream is not None:
        return int(_raw_stream(device.index))
    return int(torch.cuda.current_stream(device).cuda_stream)


def finish(device: torch.device) -> None:
    """Wait until all work that was put on a device has ended."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def check_not_capturing(name: str) -> None:
    """Raise UnsupportedError if a kernel would have to look at the tensor `name` while a graph is captured."""
    if torch.cuda.is_current_stream_capturing():
        raise UnsupportedError(
            f"{name}: a graph is captured, and the kernel has to wait for the GPU to know whether the tensor is "
            "finite; available is a call with the same tensor before the capture",
            code="capture",
        )
