"""Subjects of `gpu.py`: convsmith's kernels and PyTorch's (cuDNN, cuBLAS) on one GPU, or kernels alone on OpenCL.

On a GPU of CUDA both sides run from a CUDA graph of several calls, timed by events, on tensors of PyTorch: neither side
pays for Python. PyTorch searches cuDNN's algorithms before the graph is made (`cudnn.benchmark`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.timing import Sampler
from convsmith.measure.verification import real_arrays, verify_kernel
from convsmith.problem.conv import Conv
from convsmith.runtime.loading import DeviceMemory, device_name

__all__ = ["CudaSubjects", "OpenClSubjects", "Subject"]

Subject = Callable[[], float]
"""Returns the seconds of a call, from one sample."""
SAMPLE = 4e-3
"""Seconds of a sample."""
MAX_CALLS = 200
"""Maximum number of calls in a graph."""
WRONG = 2.0**-7
"""Largest legal difference from PyTorch's result in f32, relative to the largest element: two roundings to bf16."""
SIDE = 8192
"""Rows and columns of the matrices whose product states the rate of a GPU."""
COPIED = 1 << 30
"""Bytes of the array whose copy states the bandwidth of the memory of a GPU."""


class OpenClSubjects:
    """Kernels on a device of OpenCL, which has no peers here."""

    name = ""

    def __init__(self, target: Machine) -> None:
        assert target.device is not None
        self.name = device_name(target.device.runtime)

    def kernel(self, problem: Conv, kernel: CompiledKernel) -> tuple[Subject, bool]:
        """Return a subject, and whether its results are right."""
        right = verify_kernel(kernel).ok
        call, _ = bound_call(problem, kernel, aligned_inputs(problem, real_arrays(problem)))
        return Sampler(call), right

    def peer(self, problem: Conv) -> Subject | None:
        return None

    def product(self) -> float | None:
        """Return the rate of a product of matrices in 1e12 operations a second; None where nothing computes one."""
        return None

    def bandwidth(self) -> float | None:
        """Return the bytes that a copy of the GPU's memory reads and writes in a second."""
        return None


class CudaSubjects:
    """Kernels beside PyTorch's on tensors of PyTorch."""

    def __init__(self, target: Machine) -> None:
        import torch

        if not torch.cuda.is_available():
            raise UnsupportedError("PyTorch finds no GPU of CUDA", code="cuda")
        self.torch = torch
        self.name = torch.cuda.get_device_name()
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self._tensors: tuple[Conv, dict[str, Any]] | None = None

    def kernel(self, problem: Conv, kernel: CompiledKernel) -> tuple[Subject, bool]:
        """Return a subject, and whether its results are those of PyTorch in f32."""
        from convsmith.runtime.cuda import CudaMemory

        tensors = self._of(problem)
        call = kernel.host.addressed(tuple(tensors))
        memory: DeviceMemory = CudaMemory()

        def run() -> None:
            with memory.on_stream(self.torch.cuda.current_stream().cuda_stream):
                call.run([t.data_ptr() for t in tensors.values()], tensors)

        run()
        self.torch.cuda.synchronize()
        (out,) = (tensors[t.name] for t in problem.tensors if t.role != "in")
        right = self._is_right(out, self._reference(problem, tensors))
        return self._graph(run), right

    def peer(self, problem: Conv) -> Subject | None:
        """Return cuDNN's kernel for a problem; None where PyTorch has none for its types."""
        if not {t.dtype for t in problem.tensors} <= {"bf16", "f16", "f32"}:
            return None
        tensors = self._of(problem)
        return self._graph(lambda: self._computed(problem, tensors))

    def product(self) -> float | None:
        """Return the rate of a product of bf16 matrices in 1e12 operations a second."""
        a, b = (self.torch.randn(SIDE, SIDE, device="cuda", dtype=self.torch.bfloat16) for _ in range(2))
        sample = self._graph(lambda: a @ b)
        return 2 * SIDE**3 / min(sample() for _ in range(5)) * 1e-12

    def bandwidth(self) -> float | None:
        """Return the bytes that a copy of the GPU's memory reads and writes in a second."""
        a = self.torch.empty(COPIED, device="cuda", dtype=self.torch.uint8)
        b = self.torch.empty_like(a)
        sample = self._graph(lambda: b.copy_(a))
        return 2 * COPIED / min(sample() for _ in range(5))

    def _of(self, problem: Conv) -> dict[str, Any]:
        """Return tensors of small integers by name, of which those of the last problem are kept."""
        if self._tensors is None or self._tensors[0] != problem:
            self._tensors = problem, {t.name: self._tensor(t) for t in problem.tensors if t.default is None}
        return self._tensors[1]

    def _tensor(self, tensor: Any) -> Any:
        types = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "s8": "int8", "u8": "uint8", "s32": "int32"}
        strides = [0] * len(tensor.layout.shape)
        for b in tensor.layout.blocks:
            strides[b.dim] = b.stride
        made = self.torch.empty_strided(
            tensor.layout.shape, strides, device="cuda", dtype=getattr(self.torch, types[tensor.dtype])
        )
        return made.copy_(self.torch.randint(0 if tensor.dtype == "u8" else -2, 3, tensor.layout.shape, device="cuda"))

    def _computed(self, problem: Conv, tensors: Mapping[str, Any]) -> Any:
        """Return the result of PyTorch's convolution, or gradient, of these tensors."""
        wei = tensors.get("wei", tensors.get("diff_wei"))
        wei = wei.flatten(0, 1) if problem.g > 1 else wei
        shape = (list(problem.s), list(problem.p), [d + 1 for d in problem.d])
        functions = self.torch.ops.aten
        if problem.forward:
            return functions.convolution(tensors["src"], wei, None, *shape, False, [0], problem.g)
        src = tensors.get("src", tensors.get("diff_src"))
        of_data = problem.dir == "BWD_D"
        found = functions.convolution_backward(
            tensors["diff_dst"], src, wei, None, *shape, False, [0], problem.g, [of_data, not of_data, False]
        )
        return found[0] if of_data else found[1]

    def _reference(self, problem: Conv, tensors: Mapping[str, Any]) -> Any:
        return self._computed(problem, {name: t.float() for name, t in tensors.items()})

    def _is_right(self, ours: Any, wanted: Any) -> bool:
        ours, wanted = ours.float().reshape(wanted.shape), wanted.float()
        return bool((ours - wanted).abs().max() <= WRONG * wanted.abs().max().clamp(min=1))

    def _graph(self, call: Callable[[], object]) -> Subject:
        """Return a subject that replays a graph of calls."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
            start.record()
            call()
            end.record()
        side.synchronize()
        count = max(1, min(MAX_CALLS, math.ceil(SAMPLE / max(start.elapsed_time(end) * 1e-3, 1e-6))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(count):
                call()

        def sample() -> float:
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3 / count

        sample()
        return sample


def bytes_of(problem: Conv) -> int:
    """Return the bytes of all arrays of a problem, each read or written once."""
    sizes = {"bf16": 2, "f16": 2, "f32": 4, "s8": 1, "u8": 1, "s32": 4}
    return sum(int(np.prod(t.layout.shape)) * sizes[t.dtype] for t in problem.tensors if t.default is None)
