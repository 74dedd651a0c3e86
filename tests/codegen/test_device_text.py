"""Kernels of threads compute on a device of OpenCL what the interpreter computes; LLVM takes them for every device."""

from __future__ import annotations

import re

import numpy as np
import pytest
from opencl_driver import require_opencl, run_kernel
from thread_kernels import HEAD, KERNELS, SPLIT, arrays

from convsmith.codegen import llvm_bind
from convsmith.codegen.device_module import device_text
from convsmith.codegen.geometry import geometry, is_pipelined
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.diag.errors import ConfigError, InternalError
from convsmith.interp import run
from convsmith.ir.parse import parse_kernel
from convsmith.machine.base import Machine
from convsmith.machine.registry import device_targets, target

COMPILED = [t for t in device_targets() if t.device is not None and t.device.dialect is not None]
"""The levels whose kernels LLVM compiles."""

@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", KERNELS)
def test_a_device_computes_what_the_interpreter_computes(name: str) -> None:
    require_opencl()
    kernel, wanted, found = parse_kernel(HEAD + KERNELS[name].strip("\n")), arrays(), arrays()
    run(kernel, wanted)
    run_kernel(kernel, found)
    assert all(np.array_equal(found[x], wanted[x]) for x in "abcd")
    assert any(wanted[x].any() for x in "cd")


@pytest.mark.sampled(12, "name", "machine")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("machine", COMPILED, ids=lambda t: t.name)
def test_the_code_generator_of_every_device_takes_them(machine: Machine, name: str) -> None:
    kernel = parse_kernel(HEAD + KERNELS[name].strip("\n"))
    text = device_text({"k": kernel}, facts(machine))
    assert llvm_bind.assembly(text, machine.triple, machine.cpu, machine.features)
    launch = launch_of(kernel, 1, machine)
    assert launch.kind == "grid" and machine.device is not None and launch.runtime == machine.device.runtime


@pytest.mark.parametrize("machine", COMPILED, ids=lambda t: t.name)
def test_a_barrier_in_two_parts_is_code_where_a_device_has_both(machine: Machine) -> None:
    assert machine.device is not None and machine.device.dialect is not None
    kernel, calls = parse_kernel(HEAD + SPLIT.strip("\n")), machine.device.dialect.split_barrier
    if calls is None:
        with pytest.raises(InternalError, match="k: the target has no barriers in two parts"):
            device_text({"k": kernel}, facts(machine))
        return
    text = device_text({"k": kernel}, facts(machine))
    arrive, wait = ((x.effect or x.lines[0]).partition("@")[2].partition("(")[0] for x in (calls.arrive, calls.wait))
    assert [text.count(f"call {kind} @{name}(") for kind, name in re.findall(r"call ([\w ]+) @(\w[\w.]*)\(", text)
            if name in (arrive, wait)] == [1, 1]  # fmt: skip
    word = 128 if calls.init is not None else 0
    assert launch_of(kernel, 1, machine).shared == 256 + word and text.count("call void @llvm.nvvm.mbarrier.init") == (
        1 if word else 0
    )


def test_the_geometry_of_a_kernel() -> None:
    sizes = geometry(parse_kernel(HEAD + KERNELS["axes of a grid and of a group"].strip("\n")))
    assert (sizes.grid, sizes.group, sizes.shared) == ((4, 3, 2), (8, 2, 1), 0)
    assert {str(v): n for v, n in sizes.axes.items()} == {"z": 2, "y": 1, "x": 0, "u": 1, "t": 0}
    sizes = geometry(parse_kernel(HEAD + KERNELS["two barriers a step"].strip("\n")))
    assert (sizes.grid, sizes.group, sizes.shared) == ((1, 1, 1), (8, 1, 1), 128)


PIPELINED = """\
kernel k(a: f32[40], c: f32[10])
  alloc s: f32[8] @shared:
    for i in 0 .. 10 #pipelined:
      tensor s[i % 2 * 4] = a[0] dims(4:1, 10:4) box(4, 1) at(0, i)
      for w in 0 .. 2 #warp:
        for l in 0 .. 5 #lane:
          c[i] = s[i % 2 * 4 + 3]
"""


def test_one_loop_among_others_makes_a_kernel_pipelined() -> None:
    kernel = parse_kernel(PIPELINED)
    assert is_pipelined(kernel)
    assert geometry(kernel).group == (5, 3, 1), "a warp produces"
    assert not any(is_pipelined(parse_kernel(HEAD + text.strip("\n"))) for text in KERNELS.values())


BESIDE = """
  for x in 0 .. 4 #grid:
    c[x] = 0.0
  for y in 0 .. 4 #grid:
    c[y + 4] = 1.0
"""
OUTSIDE = """
  for x in 0 .. 4 #grid:
    d[x] = s32(1)
    for t in 0 .. 4 #group:
      c[x * 4 + t] = 0.0
"""


@pytest.mark.parametrize("body, text", [
    (BESIDE, "the grid loop y stands beside the loop x"),
    (OUTSIDE, "`d[x] = s32(1)` stands outside of the loop t"),
])  # fmt: skip
def test_loops_that_are_no_geometry(body: str, text: str) -> None:
    with pytest.raises(InternalError) as caught:
        geometry(parse_kernel(HEAD + body.strip("\n")))
    assert text in str(caught.value)


@pytest.mark.parametrize("body, code, text", [
    ("for t in 0 .. 512 #group:\n    c[t] = 0.0", "group", "k: groups of 512 threads; opencl has at most 256"),
    ("for y in 0 .. 70000 #grid:\n    for x in 0 .. 2 #grid:\n      c[y % 2] = 0.0", "grid",
     "k: the grid has 70000 along y; opencl has at most 65535 there"),
    ("alloc s: f32[9000] @shared:\n    for t in 0 .. 4 #group:\n      s[t] = 0.0", "shared",
     "k: 36096 bytes of shared memory; opencl has 32768"),
])  # fmt: skip
def test_limits_of_a_device(body: str, code: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launch_of(parse_kernel(f"{HEAD}  {body}"), 1, target("opencl"))
    assert caught.value.code == code and str(caught.value) == text
