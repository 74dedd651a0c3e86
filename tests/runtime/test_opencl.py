"""The run time of OpenCL: each obstacle is one error that says what is missing; threads may call one kernel at once."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opencl_driver import artifact_of, require_opencl

import convsmith as cs
from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import ConfigError, ToolchainError, UnsupportedError, UsageError
from convsmith.ir.parse import parse_kernel
from convsmith.machine.registry import target
from convsmith.runtime import opencl, opencl_drivers
from convsmith.runtime.device_library import OpenedOnce
from convsmith.runtime.host_block import HostBlock
from convsmith.runtime.loading import library_of
from convsmith.runtime.opencl import OpenClLibrary

COPY = """\
kernel copy(a: f32[64], c: f32[64])
  for x in 0 .. 4 #grid:
    for t in 0 .. 16 #group:
      c[x * 16 + t] = a[x * 16 + t]
"""


def copy_artifact() -> Artifact:
    return artifact_of(parse_kernel(COPY), target("opencl"))


def with_launch(artifact: Artifact, **changes: Any) -> Artifact:
    main = artifact.entries["main"]
    return replace(artifact, entries={"main": replace(main, launch=replace(main.launch, **changes))})


def opened(artifact: Artifact) -> None:
    """Build the code of an artifact for the device, as its first call does."""
    library = library_of(artifact)
    assert isinstance(library, OpenClLibrary)
    library.loaded()


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which no device has been opened."""
    monkeypatch.setattr(opencl, "_opened", OpenedOnce(opencl.OpenedDevice, "OpenCL", "opencl"))


@pytest.mark.usefixtures("unopened")
def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "pyopencl":
            raise ImportError("No module named 'pyopencl'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UnsupportedError, match=r"pyopencl, which cannot be .*pip install 'convsmith\[opencl\]'"):
        opened(copy_artifact())


@pytest.mark.usefixtures("unopened")
def test_without_a_device_that_takes_spirv(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(name="old GPU ", il_version="")
    platform = SimpleNamespace(get_devices=lambda: [old])
    package = SimpleNamespace(Error=RuntimeError, get_platforms=lambda: [platform])
    monkeypatch.setitem(sys.modules, "pyopencl", package)
    with pytest.raises(UnsupportedError, match=r"takes SPIR-V: those of this machine are old GPU;") as caught:
        opened(copy_artifact())
    assert caught.value.code == "opencl"

    def no_platform() -> None:
        raise RuntimeError("PLATFORM_NOT_FOUND_KHR")

    package.get_platforms = no_platform
    with pytest.raises(UnsupportedError, match=r"\(PLATFORM_NOT_FOUND_KHR\): those of this machine are none"):
        opened(copy_artifact())
    package.get_platforms = lambda: [SimpleNamespace(get_devices=lambda: [])]
    with pytest.raises(UnsupportedError, match=r"takes SPIR-V: those of this machine are none; pip install"):
        opened(copy_artifact())


def test_a_device_that_lacks_instructions() -> None:
    """Code for Xe GPUs is refused by another device before its driver sees it."""
    require_opencl()
    line = "--stag=axb --dtag=axb mb1ic8iw8oc8ow8kw1"
    matrices = r"cl_intel_subgroup_matrix_\w+, cl_intel_subgroup_matrix_\w+_tf32"
    needs = rf"cl_intel_subgroup_2d_block_io, {matrices}"
    with pytest.raises(UnsupportedError, match=rf"^code for xe_hpc needs {needs}, which .* lacks"):
        cs.compile(line, target="xe_hpc")(*_arrays())


def test_barriers_in_two_parts_are_needed_where_a_config_has_them() -> None:
    """Other code for xe_lp has no instruction that OpenCL's device for CPUs lacks."""
    require_opencl()
    line = "--stag=axb --dtag=axb mb1ic8iw8oc8ow8kw1"
    np.testing.assert_array_equal(cs.compile(line, target="xe_lp")(*_arrays()), np.full((1, 8, 8), 8, np.float32))
    words = "--lane=ow --realise=mask --group=oc:2,ic:2,ow:2 --shared=src,wei --buffers=3 --barriers=split"
    split = cs.compile(line, target="xe_lp", config=f"--target=xe_lp --pack= {words}")
    with pytest.raises(UnsupportedError, match=r"^code for xe_lp needs cl_intel_split_work_group_barrier, which "):
        split(*_arrays())


def _arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((1, 8, 8), np.float32), np.ones((8, 8, 1), np.float32)


def test_an_array_of_another_device() -> None:
    require_opencl()
    there = SimpleNamespace(__dlpack__=lambda **_: None, __dlpack_device__=lambda: (2, 0), device="cuda:0")
    with pytest.raises(UsageError, match=r"^x: is on cuda:0; legal is memory of the CPU \(arrays are never moved\)$"):
        cs.compile("mb1ic8iw8oc8ow8kw1", target="opencl")(there, _arrays()[1])


def test_a_device_without_memory_for_the_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    require_opencl()
    cl = opencl._opened().cl

    def refuse(*_: object, **__: object) -> None:
        raise cl.MemoryError("clCreateBuffer failed: MEM_OBJECT_ALLOCATION_FAILURE")

    monkeypatch.setattr(cl, "Buffer", refuse)
    function = library_of(copy_artifact())["main"]
    a = np.zeros(64, np.float32)
    block = HostBlock(function.entry, {"a": a.ctypes.data, "c": a.ctypes.data})
    with pytest.raises(UnsupportedError, match=r"^entry copy: 512 bytes of arguments; .* has \d+, and not enough"):
        function(block.address)


def test_a_device_that_is_too_small() -> None:
    require_opencl()
    with pytest.raises(ConfigError, match=r"1 x 100000 x 1 = 100000 threads; legal on .* are \d+, and") as group:
        opened(with_launch(copy_artifact(), group=(1, 100_000, 1)))
    with pytest.raises(ConfigError, match=r"entry copy: 1073741824 bytes of shared memory; .* has \d+$") as shared:
        opened(with_launch(copy_artifact(), shared=1 << 30))
    assert (group.value.code, shared.value.code) == ("group", "shared")
    main = copy_artifact().entries["main"]
    huge = replace(main, arguments=tuple(replace(a, size=1 << 50) for a in main.arguments))
    with pytest.raises(UnsupportedError, match=rf"an argument of {1 << 52} bytes; .* has buffers of \d+$"):
        opened(replace(copy_artifact(), entries={"main": huge}))


def test_code_that_the_driver_refuses() -> None:
    require_opencl()
    with pytest.raises(ToolchainError, match=r"cannot build the SPIR-V of 'copy' \(8 bytes\)"):
        opened(replace(copy_artifact(), code=b"\0" * 8))
    with pytest.raises(UnsupportedError, match=r"launched by 'metal'; known are cuda, opencl"):
        opened(with_launch(copy_artifact(), runtime="metal"))


def _load_in_child(library: OpenClLibrary, errors: Any) -> None:
    try:
        library.loaded()
        errors.put("")
    except UnsupportedError as error:
        errors.put(str(error))


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_fork_says_that_it_cannot_launch(is_loaded: bool) -> None:
    require_opencl()
    opened(copy_artifact())
    library = OpenClLibrary(copy_artifact())
    if is_loaded:
        library.loaded()
    context = multiprocessing.get_context("fork")
    errors = context.Queue()
    child = context.Process(target=_load_in_child, args=(library, errors))
    child.start()
    text = errors.get(timeout=60)
    child.join(60)
    assert "had started OpenCL, which a fork cannot use; legal is a process that is spawned" in text


def test_arrays_at_any_address() -> None:
    """Kernels of sub-groups rely on the addresses of arrays: one that is no multiple of 16 bytes is copied."""
    require_opencl()
    room = np.zeros(2 * 65 + 2, np.float32)
    start = (-room.ctypes.data % 16) // 4 + 1
    a, c = room[start : start + 64], room[start + 64 : start + 128]
    a[:] = np.arange(64)
    assert a.ctypes.data % 16 and opencl._aligned(a.view(np.uint8)).ctypes.data % 16 == 0
    function = library_of(copy_artifact())["main"]
    block = HostBlock(function.entry, {"a": a.ctypes.data, "c": c.ctypes.data})
    function(block.address)
    np.testing.assert_array_equal(c, a)


def test_threads_call_one_kernel_at_once() -> None:
    require_opencl()
    function = library_of(copy_artifact())["main"]

    def call(seed: int) -> bool:
        a = np.full(64, seed, np.float32) + np.arange(64, dtype=np.float32)
        c = np.zeros(64, np.float32)
        block = HostBlock(function.entry, {"a": a.ctypes.data, "c": c.ctypes.data})
        function(block.address)
        return np.array_equal(a, c)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(40)))


def test_the_drivers_of_the_system_and_of_the_package_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that names a folder is left as it is."""
    seen = []

    class Package:
        @staticmethod
        def get_platforms() -> list[object]:
            folder = os.environ.get("OCL_ICD_VENDORS")
            seen.append(folder and {file.name: file.read_text() for file in Path(folder).glob("*.icd")})
            return []

    (tmp_path / "gpu.icd").write_text("libgpu.so\n")
    (tmp_path / "readme").write_text("no driver")
    monkeypatch.setattr(opencl_drivers, "_OF_SYSTEM", tmp_path)
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    for driver in (Path("/there/libintelocl.so"), None):
        monkeypatch.setattr(opencl_drivers, "cpu_driver", lambda driver=driver: driver)
        opencl_drivers.platforms(Package)
        assert "OCL_ICD_VENDORS" not in os.environ
    assert seen == [{"gpu.icd": "libgpu.so\n", "intel-opencl-rt.icd": "/there/libintelocl.so\n"}, None]
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setattr(opencl_drivers, "cpu_driver", lambda: Path("/there/libintelocl.so"))
    opencl_drivers.platforms(Package)
    assert seen[2] == {"gpu.icd": "libgpu.so\n"}
