"""Tensors of PyTorch's CPU build, taken for tensors of a GPU whose launches the interpreter of PTX runs."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
import torch

from convsmith.frontend import numpy_api
from convsmith.machine.nvidia import host
from convsmith.runtime import cuda
from convsmith.runtime.device_library import OpenedOnce
from convsmith.torch import calls, convolve, devices, steps
from ptx.driver import InterpretedDriver

__all__ = ["GPU", "STREAM", "TensorDriver", "pretend"]

GPU = torch.device("cuda", 0)
STREAM = 0x5150


class TensorDriver(InterpretedDriver):
    """A driver for which the memory of every tensor is memory of the device."""

    def argument_at(self, address: int, words: list[int]) -> Any:
        found = super().argument_at(address, words)
        if found is not address or address in self.maps:
            return found
        memory = _memory_of_tensor(address)
        if memory is None and address >= 1 << 32:
            raise AssertionError("a launch is given an address that belongs to no tensor")
        return address if memory is None else memory


def _memory_of_tensor(address: int) -> np.ndarray | None:
    """Return the memory from ``address`` to the end of the tensor that it lies in, which may be in the first 4 GiB, as
    the heap of some builds of Python is; None for other numbers.
    """
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, torch.nn.Parameter):
            memory = x.untyped_storage()
            end = memory.data_ptr() + memory.nbytes()
            if memory.data_ptr() <= address < end:
                return np.ctypeslib.as_array((ctypes.c_uint8 * (end - address)).from_address(address))
    return None


def pretend(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> TensorDriver:
    """Return the driver of a GPU on which all tensors are from now on."""
    driver = TensorDriver(capability)
    monkeypatch.setattr(host, "capability", lambda: capability)
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    monkeypatch.setattr(cuda, "code_for", lambda artifact, _: artifact.notes["ptx"].encode())
    monkeypatch.setattr(devices, "device_of", lambda tensor: GPU)
    monkeypatch.setattr(devices, "empty_on", lambda _, *form: torch.empty_strided(form[0], form[1], dtype=form[2]))
    monkeypatch.setattr(devices, "stream_on", lambda _: STREAM)
    monkeypatch.setattr(devices, "check_not_capturing", lambda _: None)
    monkeypatch.setattr(devices, "finish", lambda _: None)
    for kept in (numpy_api._kernel, calls._made, convolve.prepared, convolve.gradient_of_weights, steps._step):
        kept.cache_clear()  # their kernels are loaded by another driver
    return driver
