"""Subjects of `gpu.py`: convsmith's kernels and PyTorch's (cuDNN, cuBLAS) on one GPU, or kernels alone on OpenCL.

On a GPU of CUDA both sides run from a CUDA graph of several calls, timed by events, on the same tensors of PyTorch:
neither side pays for Python. The calls of a graph use several sets of tensors in turns, which together exceed the cache
of the second level. PyTorch searches cuDNN's algorithms before the graph is made (`cudnn.benchmark`).
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.measure.calls import aligned_inputs, bound_call
from convsmith.measure.timing import Sampler
from convsmith.measure.verification import real_arrays, verify_kernel
from convsmith.problem.conv import Conv
from convsmith.runtime.cuda import CudaMemory
from convsmith.runtime.loading import device_name
from convsmith.runtime.packed import Packed

__all__ = ["CudaSubjects", "OpenClSubjects", "Subject", "bytes_of"]

Subject = Callable[[], float]
"""Returns the seconds of a call, from one sample."""
SAMPLE = 4e-3
"""Seconds of a sample."""
MAX_CALLS = 200
"""Maximum number of calls in a graph."""
MAX_SETS = 64
"""Maximum number of sets of tensors."""
CACHES = 2.5
"""Ratio of the bytes of all sets of tensors to the cache of the second level."""
SIDE = 8192
"""Rows and columns of the matrices whose product states the rate of a GPU."""
COPIED = 1 << 30
"""Bytes of the array whose copy states the bandwidth of the memory of a GPU."""
IN_CACHE = 8 << 20
"""Bytes of the array whose copy states the bandwidth of the cache of the second level."""
_TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "s8": "int8", "u8": "uint8", "s32": "int32"}
_FACTS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "clocks.sm", "clocks.mem", "power.limit")
"""Fields that `nvidia-smi` is asked for."""


class OpenClSubjects:
    """Kernels on a device of OpenCL, which has no peers here."""

    def __init__(self, target: Machine) -> None:
        assert target.device is not None
        self.name = device_name(target.device.runtime)

    def facts(self) -> dict[str, Any]:
        """Return what is known of the device: its name."""
        return {"device": self.name}

    def kernel(self, problem: Conv, kernel: CompiledKernel) -> tuple[Subject, str]:
        """Return a subject, and what is wrong with its results."""
        verdict = verify_kernel(kernel)
        call, _ = bound_call(problem, kernel, aligned_inputs(problem, real_arrays(problem)))
        return Sampler(call), "" if verdict.ok else verdict.detail

    def peer(self, problem: Conv) -> Subject | None:
        """Return None: there is no library beside the kernels."""
        return None

    def clock(self) -> int | None:
        """Return None: OpenCL does not tell the clock of a device."""
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
        self._memory = CudaMemory()
        self._cache = int(torch.cuda.get_device_properties().L2_cache_size)
        self._sets: tuple[Conv, list[dict[str, Any]]] | None = None
        self._kept: list[tuple[str, Packed]] = []
        self._alive: list[Callable[[], object]] = []

    def facts(self) -> dict[str, Any]:
        """Return the device, the versions of its software, and its ceilings: the rate of a product of bf16 matrices in
        1e12 operations a second, and the bytes that copies read and write in a second, in memory and in the cache.
        """
        torch = self.torch
        found = {
            "device": self.name, "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), **_asked(),
        }  # fmt: skip
        return found | {
            "product": self._product(), "bandwidth": self._copied(COPIED), "cached": self._copied(IN_CACHE)
        }

    def clock(self) -> int | None:
        """Return the clock of the multiprocessors in MHz; None if the driver does not say."""
        try:
            return int(self.torch.cuda.clock_rate())
        except Exception:  # the library of the driver's management is missing, or it refuses
            return None

    def kernel(self, problem: Conv, kernel: CompiledKernel) -> tuple[Subject, str]:
        """Return a subject, and what is wrong with its results, which are compared with PyTorch's."""
        sets = self._of(problem)
        packed = self._packed(problem, kernel, sets)
        call = kernel.host.addressed(tuple(sets[0]), tuple(packed[0]))
        addresses = [
            [where.get(name, t.data_ptr()) for name, t in tensors.items()] for where, tensors in zip(packed, sets)
        ]
        turn = 0

        def run() -> None:
            nonlocal turn
            turn = (turn + 1) % len(sets)
            with self._memory.on_stream(self.torch.cuda.current_stream().cuda_stream, resident=True):
                call.run(addresses[turn], sets[turn])

        wrong = self._wrong(problem, sets, run)
        return self._graph(run), wrong

    def peer(self, problem: Conv) -> Subject | None:
        """Return cuDNN's kernel for a problem; None where PyTorch has none for its types."""
        if not {t.dtype for t in problem.tensors} <= {"bf16", "f16", "f32"}:
            return None
        sets, turn = self._of(problem), 0

        def run() -> None:
            nonlocal turn
            turn = (turn + 1) % len(sets)
            self._computed(problem, sets[turn])

        return self._graph(run)

    def _product(self) -> float:
        a, b = (self.torch.randn(SIDE, SIDE, device="cuda", dtype=self.torch.bfloat16) for _ in range(2))
        sample = self._graph(lambda: a @ b)
        return 2 * SIDE**3 / min(sample() for _ in range(5)) * 1e-12

    def _copied(self, nbytes: int) -> float:
        a = self.torch.zeros(nbytes // 4, device="cuda", dtype=self.torch.int32)
        b = self.torch.empty_like(a)
        sample = self._graph(lambda: self.torch.neg(a, out=b))  # a kernel: copies may run on an engine of their own
        return 2 * nbytes / min(sample() for _ in range(5))

    def _packed(self, problem: Conv, kernel: CompiledKernel, sets: Sequence[Mapping[str, Any]]) -> list[dict[str, int]]:
        """Return the addresses of packed weights by name for each set of tensors; a call would pack plain ones again.
        """
        self._kept = []
        for name in (t.name for t in problem.inputs if t.holds == "wei"):
            packed = kernel.pack(sets[0][name].cpu())
            self._kept = [(name, Packed(packed.key, packed.buffer, packed.bias)) for _ in sets]
        return [{name: packed.addresses_on(self._memory)[0]} for name, packed in self._kept] or [{} for _ in sets]

    def _of(self, problem: Conv) -> list[dict[str, Any]]:
        """Return sets of tensors of small integers by name, of which those of the last problem are kept. The tensors of
        all sets have the same elements.
        """
        if self._sets is None or self._sets[0] != problem:
            self._sets = None
            self._alive.clear()
            count = min(MAX_SETS, max(1, math.ceil(CACHES * self._cache / bytes_of(problem))))
            first = {t.name: self._tensor(t) for t in problem.tensors if t.default is None}
            copies = [{name: self.torch.clone(t) for name, t in first.items()} for _ in range(count - 1)]
            self._sets = problem, [first, *copies]
        return self._sets[1]

    def _tensor(self, tensor: Any) -> Any:
        strides = [0] * len(tensor.layout.shape)
        for b in tensor.layout.blocks:
            strides[b.dim] = b.stride
        made = self.torch.empty_strided(
            tensor.layout.shape, strides, device="cuda", dtype=getattr(self.torch, _TYPES[tensor.dtype])
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

    def _wrong(self, problem: Conv, sets: Sequence[Mapping[str, Any]], run: Callable[[], None]) -> str:
        """Return what is wrong with the results of all sets after runs on poisoned memory; sums of integers are exact,
        so that each element must be equal.
        """
        (name,) = (t.name for t in problem.tensors if t.role != "in")
        for tensors in sets:
            out = tensors[name]
            out.fill_(math.nan if out.is_floating_point() else 113)
        for _ in sets:
            run()
        self.torch.cuda.synchronize()
        with self.torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
            exact = self._computed(problem, {key: t.float() for key, t in sets[0].items()})
        wanted = exact.round().to(sets[0][name].dtype).reshape(sets[0][name].shape)
        for number, tensors in enumerate(sets):
            count = int((tensors[name] != wanted).sum())
            if count:
                return f"{count} of {wanted.numel()} elements of set {number} of {len(sets)} differ"
        return ""

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
        self._alive.append(call)  # a replay uses the memory of the kernel that the call holds
        return sample


def bytes_of(problem: Conv) -> int:
    """Return the bytes of all arrays of a problem, each read or written once."""
    sizes = {"bf16": 2, "f16": 2, "f32": 4, "s8": 1, "u8": 1, "s32": 4}
    return sum(int(np.prod(t.layout.shape)) * sizes[t.dtype] for t in problem.tensors if t.default is None)


def _asked() -> dict[str, str]:
    """Return what the driver's management tool says of the GPU; nothing where there is no such tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(_FACTS)}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    return dict(zip(_FACTS, map(str.strip, done.stdout.split(","))))
