"""The run time of CUDA: obstacles are one error each, and launches reach the driver, whose kernels are interpreted."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from guarded import check_result, expected, memories
from thread_kernels import HEAD, KERNELS, arrays

import convsmith as cs
from convsmith.codegen.artifact import Artifact, Entry
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.cubin import assembler_of, find_tool
from convsmith.compiler.launch import launch_of
from convsmith.diag.errors import ConfigError, ConvsmithError, UnsupportedError, UsageError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.machine.nvidia import host
from convsmith.machine.registry import target
from convsmith.problem import parse_problem, reference
from convsmith.problem.data import random_arrays
from convsmith.runtime import cuda
from convsmith.runtime.device_library import OpenedOnce
from convsmith.runtime.host_block import HostBlock
from convsmith.runtime.loading import library_of
from ptx.driver import InterpretedDriver, Status
from ptx.hopper_configs import KINDS as KINDS_OF_HOPPER
from ptx.hopper_configs import hopper_artifact
from ptx.kernels import kernel_ptx

TEXT = HEAD + KERNELS["reversed in shared memory"].strip("\n")


def artifact(machine: str = "sm_80", text: str = TEXT) -> Artifact:
    """Return the artifact of a kernel, whose parameters are its arguments."""
    kernel, level = parse_kernel(text), target(machine)
    arguments = tuple(buffer_argument(b, "inout" if b in kernel.written else "in") for b in kernel.params)
    entry = Entry(kernel.name, arguments, launch_of(kernel, 1, level))
    return Artifact(kernel_ptx(kernel, level).encode(), level.name, {"main": entry}, "k", f"--target={machine}")


_drivers: list[InterpretedDriver] = []


@pytest.fixture(autouse=True)
def _unopened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which no device has been opened. After each test, errors included, the caller's context is current.
    """
    monkeypatch.setattr(cuda, "_opened", OpenedOnce(cuda._OpenedGpu, "CUDA", "cuda"))
    _drivers.clear()
    yield
    assert all((driver.contexts, driver.mode) == (["the caller's"], 0) for driver in _drivers)


def opened(monkeypatch: pytest.MonkeyPatch, driver: InterpretedDriver) -> None:
    """Make the run time use a driver."""
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    _drivers.append(driver)


@pytest.mark.parametrize("name", KERNELS)
def test_a_launch_gives_the_driver_its_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = HEAD + KERNELS[name].strip("\n")
    driver, found, wanted = InterpretedDriver(), arrays(), arrays()
    opened(monkeypatch, driver)
    function = library_of(artifact(text=text))["main"]
    run(parse_kernel(text), wanted)
    block = HostBlock(function.entry, {x: array.ctypes.data for x, array in found.items()})
    for _ in range(2):
        for x, array in arrays().items():
            found[x][:] = array
        function(block.address)
        assert all(np.array_equal(found[x], wanted[x]) for x in "abcd")
    assert driver.calls.count("cuMemAlloc") == 4 and driver.calls.count("cuMemcpyHtoD") == 8
    assert driver.contexts == ["the caller's"], "the context that was current is so again"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["stride", "backward by weights", "a cluster of rows"])
def test_tensor_maps_are_made_of_the_arrays_of_a_call(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = InterpretedDriver((9, 0))
    opened(monkeypatch, driver)
    made, problem = hopper_artifact(kind), parse_problem(KINDS_OF_HOPPER[kind][0])
    function = library_of(replace(made, code=made.notes["ptx"].encode()))["main"]
    given = random_arrays(problem)
    memory = memories(problem, given)
    block = HostBlock(function.entry, {a.name: memory[a.name].ctypes.data for a in function.entry.arguments})
    function(block.address)
    check_result(problem, memory, expected(problem, given))
    encoded = [x for x in driver.calls if x.startswith("cuTensorMapEncode")]
    assert ("cuLaunchKernelEx" in driver.calls) == ("cluster" in kind)
    assert len(encoded) == len(function.entry.launch.maps) == 2 and "cuTensorMapEncodeIm2col" in encoded


def test_arrays_of_the_device_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, wanted = InterpretedDriver(), arrays()
    opened(monkeypatch, driver)
    function = library_of(artifact())["main"]
    run(parse_kernel(TEXT), wanted)
    places = {x: driver.cuMemAlloc(array.nbytes)[1] for x, array in wanted.items()}
    for x, array in arrays().items():
        driver.arrays[places[x]][:] = array.view(np.uint8)
    block = HostBlock(function.entry, places)
    function(block.address)
    np.testing.assert_array_equal(driver.arrays[places["c"]].view(np.float32), wanted["c"])
    assert not {"cuMemcpyHtoD", "cuMemcpyDtoH"} & set(driver.calls)


def test_an_array_of_the_device_between_two_accesses(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = InterpretedDriver()
    opened(monkeypatch, driver)
    function = library_of(artifact())["main"]
    places = {x: driver.cuMemAlloc(array.nbytes + 16)[1] for x, array in arrays().items()}
    places["a"] += 4
    driver.arrays[places["a"]] = driver.arrays[places["a"] - 4][4:]
    block = HostBlock(function.entry, places)
    with pytest.raises(UnsupportedError, match=r"argument a of k begins at 0x[0-9a-f]+, no multiple of 16"):
        function(block.address)


@pytest.mark.parametrize("code, capability, takes", [
    ("sm_70", (7, 5), "cubin"), ("sm_80", (8, 6), "cubin"), ("sm_80", (9, 0), "ptx"), ("sm_90a", (9, 0), "cubin"),
])  # fmt: skip
def test_a_later_generation_takes_ptx(code: str, capability: tuple[int, int], takes: str) -> None:
    made = replace(artifact(code), code=b"cubin", notes={"ptx": "ptx"})
    assert cuda.code_for(made, capability).rstrip(b"\0").decode() == takes


@pytest.mark.parametrize("code, capability", [("sm_80", (7, 5)), ("sm_90a", (8, 0)), ("sm_90a", (10, 0))])
def test_a_device_that_lacks_the_instructions(code: str, capability: tuple[int, int],
                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    opened(monkeypatch, InterpretedDriver(capability))
    have = "sm_{}{}".format(*capability)
    refused(artifact(code), UnsupportedError, "cuda", f"code for {code} does not run on this GPU, which is {have}")


def test_memory_of_the_device_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch, InterpretedDriver(memory=3000))
    function = library_of(artifact())["main"]
    given = arrays()
    block = HostBlock(function.entry, {x: array.ctypes.data for x, array in given.items()})
    with pytest.raises(UnsupportedError, match="argument c of 2048 bytes: the device has no such"):
        function(block.address)


def test_more_shared_memory_than_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch, InterpretedDriver())
    large = artifact()
    main = large.entries["main"]
    large = replace(large, entries={"main": replace(main, launch=replace(main.launch, shared=200 << 10))})
    refused(large, ConfigError, "shared", "entry k: 204800 bytes of shared memory; interpreted GPU has 102400")


def test_the_target_cuda_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_LIBRARIES", ())
    monkeypatch.setattr(host, "capability", host.capability.__wrapped__)
    with pytest.raises(UnsupportedError, match="this machine has no driver of NVIDIA's GPUs"):
        target("cuda")


def test_without_a_driver() -> None:
    """On a machine with a driver the test does not apply; where there is none, its absence is one line."""
    pytest.importorskip("cuda.bindings")
    if any(line.startswith("nvidia ") for line in modules()):
        pytest.skip("this machine has a driver of NVIDIA's GPUs")
    with pytest.raises(UnsupportedError) as caught:
        called(artifact())
    assert caught.value.code == "cuda" and "\n" not in str(caught.value)
    assert re.match("this machine has no driver of NVIDIA's GPUs|the driver of NVIDIA's GPUs finds", str(caught.value))


@pytest.mark.parametrize(("have", "level"), [
    ((9, 0), "sm_90a"), ((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 9), "sm_89"), ((10, 0), "sm_89"), ((7, 5), "sm_70"),
    ((6, 1), ""),
])  # fmt: skip
def test_the_target_cuda_is_the_level_of_the_gpu(
    have: tuple[int, int], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "capability", lambda: have)
    if level:
        assert target("cuda").name == level
        return
    with pytest.raises(UnsupportedError, match="this machine is sm_61; legal are sm_70, sm_80, sm_86, sm_89, sm_90a"):
        target("cuda")


def test_the_driver_states_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    def attribute(value: Any, kind: int, device: object) -> int:
        value._obj.value = {75: 8, 76: 6}[kind]
        return 0

    driver = SimpleNamespace(cuInit=lambda _: 0, cuDeviceGet=lambda *_: 0, cuDeviceGetAttribute=attribute)
    monkeypatch.setattr(host, "_driver", lambda: driver)
    assert host.capability.__wrapped__() == (8, 6)
    driver.cuInit = lambda _: 100
    with pytest.raises(UnsupportedError, match="finds no device: status 100"):
        host.capability.__wrapped__()


def test_a_driver_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = InterpretedDriver()
    monkeypatch.setattr(driver, "cuInit", lambda flags: (Status.CUDA_ERROR_NO_DEVICE,), raising=False)
    opened(monkeypatch, driver)
    with pytest.raises(UnsupportedError, match="the driver of NVIDIA's GPUs finds no device: CUDA_ERROR_NO_DEVICE"):
        cuda.device_name()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["sm_70", "sm_80", "sm_86", "sm_89", "sm_90a"])
def test_without_a_device_a_kernel_answers_questions(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has PTX, a cubin and the report of the assembler, where one is installed; a call is refused."""
    monkeypatch.setattr(cuda, "_driver", lambda: pytest.fail("a driver is looked for"))
    kernel = cs.compile("--stag=axb --dtag=axb mb1ic4ih6oc8oh6kh3ph1", target=level)
    made = kernel.artifact
    assert made is not None and f".target {level}" in made.notes["ptx"] == kernel.asm() == kernel.ptx()
    assert level in kernel.explain()
    try:
        assembler_of(level)
    except UnsupportedError:
        assert made.code == made.notes["ptx"].encode()
    else:
        assert made.code.startswith(b"\x7fELF")
        report = made.notes[f"use of {made.entries['main'].symbol}"]
        assert re.fullmatch(r"\d+ registers, no spills", report)
        assert report in kernel.explain()
        if level != "sm_70" and find_tool("nvdisasm") is not None:
            assert "FFMA" in kernel.sass()


def test_other_targets_have_no_machine_code_to_show() -> None:
    with pytest.raises(UsageError, match=r"target generic has no SASS; targets that have it: sm_90a, sm_89,"):
        cs.compile("mb1ic2ih3oc2kh1", target="generic").sass()


def test_arrays_go_in_and_out(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch, InterpretedDriver((9, 0)))
    kernel = cs.compile("--stag=axb --dtag=axb mb1ic4ih6oc8oh6kh3ph1", target="sm_80")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((1, 4, 6, 6), (8, 4, 3, 3)))
    np.testing.assert_array_equal(kernel(x, w), reference(kernel.problem, {"src": x, "wei": w})["dst"])


def modules() -> list[str]:
    """Return the lines that the system lists modules of its kernel with."""
    try:
        with open("/proc/modules", encoding="utf-8") as file:
            return file.readlines()
    except OSError:
        return []


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("cuda"):
            raise ImportError("No module named 'cuda'")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "cuda.bindings", raising=False)
    text = ("kernels of CUDA are launched through the package cuda.bindings, which cannot be imported (No module named "
            "'cuda'); pip install 'convsmith[cuda]' installs it")  # fmt: skip
    refused(artifact(), UnsupportedError, "cuda", text)


def called(made: Artifact) -> None:
    """Call the entry of an artifact."""
    function, given = library_of(made)["main"], arrays()
    block = HostBlock(function.entry, {x: array.ctypes.data for x, array in given.items()})
    function(block.address)


def refused(made: Artifact, kind: type[ConvsmithError], code: str, text: str) -> None:
    with pytest.raises(ConvsmithError) as caught:
        called(made)
    assert (type(caught.value), caught.value.code, str(caught.value)) == (kind, code, text)
