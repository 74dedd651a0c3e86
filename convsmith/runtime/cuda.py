"""Runs PTX artifacts on an NVIDIA GPU, through the package cuda.bindings.

The arrays of a call are in host memory or in device memory. Host arrays are copied to the device before a launch, and
copied back after it if the entry writes them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.errors import ConfigError, ToolchainError, UnsupportedError
from convsmith.diag.forking import import_lock
from convsmith.runtime.arrays import Array, address_of
from convsmith.runtime.cuda_launch import Start, starting
from convsmith.runtime.device_library import ALIGNMENT, DeviceFunction, DeviceLibrary, OpenedOnce
from convsmith.runtime.tensor_maps import TensorMaps

__all__ = ["GENERATIONS", "CudaFunction", "CudaLibrary", "CudaMemory", "check_device", "device_name"]

_DEVICE = 0
_CAPTURING = 1
"""CUDA's number of the status of a stream whose work is captured."""
GENERATIONS = {
    "sm_70": ((7, 0), False), "sm_80": ((8, 0), False), "sm_86": ((8, 6), False), "sm_89": ((8, 9), False),
    "sm_90a": ((9, 0), True),
}  # fmt: skip
"""By target: the compute capability that runs its code, and whether only that capability does."""


def _driver() -> Any:
    """Return the binding of the driver. UnsupportedError if the binding or the driver is not installed."""
    try:
        with import_lock:
            from cuda.bindings import driver
    except ImportError as error:
        raise UnsupportedError(
            f"kernels of CUDA are launched through the package cuda.bindings, which cannot be imported ({error}); "
            "pip install 'convsmith[cuda]' installs it",
            code="cuda",
        ) from None
    return driver


class _OpenedGpu:
    """The primary context of a GPU, with a stream; `architecture` is the name of its own machine code."""

    def __init__(self) -> None:
        self.driver = driver = _driver()
        try:
            status = driver.cuInit(0)[0]
        except Exception:  # the binding finds no library of the driver
            raise UnsupportedError("this machine has no driver of NVIDIA's GPUs", code="cuda") from None
        if int(status):
            raise UnsupportedError(f"the driver of NVIDIA's GPUs finds no device: {self.text(status)}", code="cuda")
        self.device = self.check(driver.cuDeviceGet(_DEVICE), "the driver has no device")
        self.context = self.check(driver.cuDevicePrimaryCtxRetain(self.device), "the device has no context")
        kinds = driver.CUdevice_attribute
        self.capability = (
            self.attribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self.attribute(kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self.shared = self.attribute(kinds.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        name: bytes = self.check(driver.cuDeviceGetName(128, self.device), "the device has no name")
        self.name = name.rstrip(b"\0").decode()

    def is_entered(self) -> bool:
        """Return whether the context is current in the calling thread."""
        return bool(self.driver.cuCtxGetCurrent()[1] == self.context)

    def entered(self) -> AbstractContextManager[None]:
        """Make the context current in the calling thread within the block; afterwards the caller's context is current
        again.
        """
        return nullcontext() if self.is_entered() else self.pushed()

    @contextmanager
    def pushed(self) -> Iterator[None]:
        """Compute like `entered` where the context is not current."""
        self.check(self.driver.cuCtxPushCurrent(self.context), "the context is lost")
        try:
            yield
        finally:
            self.driver.cuCtxPopCurrent()

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Let the calling thread reserve and free memory within the block while a graph is captured."""
        exchange = self.driver.cuThreadExchangeStreamCaptureMode
        before = self.check(exchange(self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED), "a capture")
        try:
            yield
        finally:
            exchange(before)

    def attribute(self, kind: Any) -> int:
        """Return a number that the driver knows of the device."""
        return int(self.check(self.driver.cuDeviceGetAttribute(kind, self.device), "the device lacks an attribute"))

    def text(self, status: Any) -> str:
        """Return the driver's name of a status."""
        return str(getattr(status, "name", status))

    def check(self, answer: Any, what: str) -> Any:
        """Return the results of a driver function without its status. UnsupportedError: memory is exhausted.
        ToolchainError for other failures.
        """
        status, *values = answer
        if int(status):
            if status == self.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise UnsupportedError(f"{what}: the device has no such amount of memory free", code="memory")
            said = self.text(status)
            raise ToolchainError(f"{what}: {said}", text=said)
        return values[0] if values else None


_opened = OpenedOnce(_OpenedGpu, "CUDA", "cuda")


class _LaunchStream(threading.local):
    """The stream on which the calling thread launches kernels: by default the default stream, which waits for all
    streams.

    ``state`` is the number of the stream, whether the caller waits for launches, where the runtime would wait
    otherwise, and whether all arrays that calls pass are in device memory.
    """

    state = 0, False, False


_stream = _LaunchStream()


class _OnStream:
    """A context in which the launches of this thread are queued on a stream."""

    __slots__ = ("_before", "_within")

    def __init__(self, number: int, resident: bool) -> None:
        self._within = number, True, resident

    def __enter__(self) -> None:
        self._before, _stream.state = _stream.state, self._within

    def __exit__(self, *_: object) -> None:
        _stream.state = self._before


class _Reserved:
    """Memory of a GPU at `address`, which is freed with this object."""

    def __init__(self, gpu: _OpenedGpu, nbytes: int) -> None:
        self._gpu = gpu
        with gpu.entered(), gpu.relaxed():
            self.address = int(gpu.check(gpu.driver.cuMemAlloc(nbytes), f"a result of {nbytes} bytes"))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            with self._gpu.entered(), self._gpu.relaxed():
                self._gpu.driver.cuMemFree(self.address)


class CudaMemory:
    """Memory of the GPU that runs kernels."""

    number = _DEVICE

    def reserve(self, nbytes: int) -> tuple[int, object]:
        """Return the address of new memory, and the object that keeps it."""
        reserved = _Reserved(_opened(), nbytes)
        return reserved.address, reserved

    def write(self, address: int, array: Array) -> None:
        """Copy a host array without gaps to memory of the device."""
        gpu = _opened()
        with gpu.entered(), gpu.relaxed():
            gpu.check(gpu.driver.cuMemcpyHtoD(address, address_of(array), array.nbytes), f"{array.nbytes} bytes")

    def on_stream(self, stream: int, resident: bool) -> AbstractContextManager[None]:
        """Within the context, launch the kernels of this thread on the caller's stream, without waiting for them."""
        return _OnStream(stream, resident)

    def stream_number(self) -> int | None:
        """Return a positive number of the stream on which this thread launches, which no other stream has had; None if
        its work is captured.
        """
        gpu, (stream, _, _) = _opened(), _stream.state
        with gpu.entered():
            if _is_capturing(gpu, stream):
                return None
            return 1 + int(gpu.check(gpu.driver.cuStreamGetId(stream), "the number of a stream"))

    def wait(self, stream: int) -> None:
        """Wait for the kernels on a stream."""
        gpu = _opened()
        with gpu.entered():
            gpu.check(gpu.driver.cuStreamSynchronize(stream), "the kernels of a stream")

    def is_capturing(self, stream: int) -> bool:
        """Return whether the work on a stream is captured in a graph, which makes waiting impossible."""
        gpu = _opened()
        with gpu.entered():
            return _is_capturing(gpu, stream)


def _is_capturing(gpu: _OpenedGpu, stream: int) -> bool:
    status, *found = gpu.driver.cuStreamIsCapturing(stream)
    return not int(status) and int(found[0]) == _CAPTURING


def device_name() -> str:
    """Return the name of the GPU that runs kernels. UnsupportedError if there is none."""
    return str(_opened().name)


def code_for(artifact: Artifact, capability: tuple[int, int]) -> bytes:
    """Return the code of an artifact that a GPU of a compute capability takes: the machine code, or PTX that the driver
    assembles for a later generation. UnsupportedError if the GPU is too old, or lacks the features of a specific
    generation.
    """
    _check_generation(artifact.target, capability)
    is_own = capability[0] == GENERATIONS[artifact.target][0][0]
    return artifact.code if is_own else artifact.notes["ptx"].encode() + b"\0"


def _check_generation(target: str, capability: tuple[int, int]) -> None:
    if target not in GENERATIONS:
        raise UnsupportedError(f"code for {target}; legal are {', '.join(GENERATIONS)}", code="cuda")
    needed, only = GENERATIONS[target]
    if capability < needed or (only and capability != needed):
        have = f"sm_{capability[0]}{capability[1]}"
        raise UnsupportedError(f"code for {target} does not run on this GPU, which is {have}", code="cuda")


def check_device(target: str, needs: Collection[str]) -> None:
    """Raise UnsupportedError if no GPU of this machine runs code for a target."""
    _check_generation(target, _opened().capability)


class CudaFunction(DeviceFunction):
    """One entry on a GPU. `maps` are the tensor maps of its launches."""

    def __init__(self, library: CudaLibrary, entry: Entry) -> None:
        super().__init__(entry)
        self._library = library
        self._memory: dict[int, Any] = {}
        self._function: Any = None
        self.maps = TensorMaps(entry.launch.maps)
        positions = {argument.name: n for n, argument in enumerate(entry.arguments)}
        self.mapped = [positions[made.of] for made in entry.launch.maps]
        """Positions of the arguments that the maps describe."""

    def bound(self, block: int, keep: object) -> Callable[[], object]:
        return _Launch(self, block, keep)

    def opened(self) -> _OpenedGpu:
        """Return the GPU on which the entry is loaded."""
        return self._library.loaded()[0]

    def loaded(self) -> Any:
        """Return the driver's function, loaded at the first call; the context is current."""
        if self._function is None:
            gpu, module = self._library.loaded()
            name, shared, driver = self.entry.symbol, self.entry.launch.shared, gpu.driver
            function = gpu.check(driver.cuModuleGetFunction(module, name.encode()), f"entry {name}")
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            gpu.check(driver.cuFuncSetAttribute(function, most, shared), f"shared memory of {name}")
            self._function = function
        return self._function

    def __call__(self, block: int, keep: object = None) -> None:
        gpu, _ = self._library.loaded()
        driver, name = gpu.driver, self.entry.symbol
        words = (ctypes.c_uint64 * len(self.entry.arguments)).from_address(block)
        values = (ctypes.c_uint64 * len(words))(*words)
        launch, (stream, is_queued, _) = self.entry.launch, _stream.state
        with self.launching, gpu.entered():
            function = self.loaded()
            copied = []
            for n, (argument, nbytes) in enumerate(self.arrays):
                if _is_on_device(gpu, words[n]):
                    self.check_alignment(n, words[n])
                else:
                    values[n] = self._reserve(gpu, n, argument, nbytes)
                    copied.append((n, nbytes))
                    gpu.check(driver.cuMemcpyHtoD(values[n], words[n], nbytes), f"argument {argument.name} of {name}")
            maps = self.maps.at(gpu, [values[n] for n in self.mapped])
            words_at = [ctypes.addressof(values) + 8 * n for n in range(len(values))]
            places = (ctypes.c_void_p * (len(values) + len(maps)))(*words_at, *map(address_of, maps))
            start = starting(driver, function, launch)
            gpu.check(start(stream, ctypes.addressof(places)), f"entry {name}")
            if copied or not is_queued:
                gpu.check(driver.cuStreamSynchronize(stream), f"entry {name}")
            for n, nbytes in copied:
                if n in self.written:
                    gpu.check(driver.cuMemcpyDtoH(words[n], values[n], nbytes), f"results of {name}")

    def check_alignment(self, n: int, address: int) -> None:
        """Raise UnsupportedError if accesses of the entry to argument ``n`` at an ``address`` may be misaligned."""
        if address % ALIGNMENT:
            raise UnsupportedError(
                f"argument {self.arrays[n][0].name} of {self.entry.symbol} begins at {address:#x}, no multiple of "
                f"{ALIGNMENT}",
                code="alignment",
            )

    def _reserve(self, gpu: _OpenedGpu, n: int, argument: Argument, nbytes: int) -> int:
        """Return device memory for an argument, which later calls reuse."""
        if n not in self._memory:
            what = f"argument {argument.name} of {nbytes} bytes"
            self._memory[n] = gpu.check(gpu.driver.cuMemAlloc(max(nbytes, 1)), what)
        return int(self._memory[n])


class _Launch:
    """The launches of an entry with the argument block at the address ``block``; ``keep`` holds the block alive.

    If all arrays are in device memory, the driver reads the words of the block. They are examined only if they have
    changed since the last launch. Only one thread at a time may call it.
    """

    __slots__ = ("_block", "_function", "_keep", "_maps", "_places", "_seen", "_start", "_words")

    def __init__(self, function: CudaFunction, block: int, keep: object) -> None:
        self._function, self._block, self._keep = function, block, keep
        count = len(function.entry.arguments)
        self._words = (ctypes.c_uint64 * count).from_address(block)
        self._places = (ctypes.c_void_p * (count + len(function.mapped)))(*[block + 8 * n for n in range(count)])
        self._maps: Sequence[Array] = ()
        self._seen: list[int] | None = None
        self._start: Start | None = None

    def __call__(self) -> None:
        function, (stream, _, is_resident) = self._function, _stream.state
        if not is_resident or function.has_host_memory:
            return function(self._block, self._keep)
        gpu = function.opened()
        if not gpu.is_entered():
            with gpu.pushed():
                return self._launch(gpu, stream)
        return self._launch(gpu, stream)

    def _launch(self, gpu: _OpenedGpu, stream: int) -> None:
        words = self._words[:]
        if words != self._seen:
            self._examine(gpu, words)
        assert self._start is not None
        answer = self._start(stream, ctypes.addressof(self._places))
        if answer[0]:
            gpu.check(answer, f"entry {self._function.entry.symbol}")

    def _examine(self, gpu: _OpenedGpu, words: list[int]) -> None:
        """Check new words, and point to the tensor maps of their addresses."""
        function = self._function
        for n in range(len(function.arrays)):
            function.check_alignment(n, words[n])
        self._maps = function.maps.at(gpu, [words[n] for n in function.mapped])  # alive until the next examination
        for n, row in enumerate(self._maps, len(words)):
            self._places[n] = address_of(row)
        if self._start is None:
            with function.launching:
                self._start = starting(gpu.driver, function.loaded(), function.entry.launch)
        self._seen = words


def _is_on_device(gpu: _OpenedGpu, address: int) -> bool:
    """Return whether memory is device memory; the driver does not know host memory."""
    driver = gpu.driver
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, *found = driver.cuPointerGetAttribute(kind, address)
    return not int(status) and int(found[0]) == int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE)


class CudaLibrary(DeviceLibrary[_OpenedGpu, Any, CudaFunction]):
    """The PTX or the machine code of an artifact: its code on a GPU is a module of the driver."""

    memory = CudaMemory()

    def opened(self) -> _OpenedGpu:
        return _opened()

    def function(self, entry: Entry) -> CudaFunction:
        return CudaFunction(self, entry)

    def load(self, gpu: _OpenedGpu) -> Any:
        artifact = self.artifact
        for entry in artifact.entries.values():
            if entry.launch.shared > gpu.shared:
                raise ConfigError(
                    "shared",
                    f"entry {entry.symbol}: {entry.launch.shared} bytes of shared memory; {gpu.name} has {gpu.shared}",
                )
        code = code_for(artifact, gpu.capability)
        with gpu.entered():
            return gpu.check(gpu.driver.cuModuleLoadData(code), f"the code of {artifact.problem!r}")
