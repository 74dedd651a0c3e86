"""Kernels of Xe GPUs: products of fragments of sub-groups, exact as IR and through OpenCL, and dpas in the code."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
from devices import check_fragments
from opencl_driver import require_opencl
from sub_groups import DEVICES, assembly, emulated

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Artifact, Entry
from convsmith.codegen.device_module import device_text
from convsmith.compiler import driver, service
from convsmith.compiler.arguments import buffer_argument
from convsmith.compiler.facts import facts
from convsmith.compiler.launch import launch_of
from convsmith.frontend.kernel import CompiledKernel
from convsmith.interp import run
from convsmith.ir.instruction import Instruction
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.measure.verification import verify_kernel
from convsmith.passes.simplify import simplify
from convsmith.passes.spread_lanes import spread_lanes
from convsmith.passes.unroll import unroll
from convsmith.plan.config import Config
from convsmith.plan.device import device_plan
from convsmith.problem import parse_problem
from convsmith.runtime.host_block import HostBlock
from convsmith.runtime.loading import library_of
from convsmith.tune.device import device_config

ROWS = [
    pytest.param(name, row, id=row.name)
    for name in DEVICES for row in target(name).instructions if row.mnemonic == "dpas"
]  # fmt: skip


def _words(row: str, tiles: str) -> str:
    return f"--pack= --lane=oc --instruction=dpas_{row} --realise=pad_copy --shared=src,wei {tiles}"


LAST = "--stag=axb --dtag=axb"
KINDS = {
    "one-sub-group": ("xe_hpc", f"{LAST} --dt=bf16:bf16:f32 mb1ic32iw16oc16ow16kw1",
                      _words("m8n16k16_bf16", "--register=oc:16,ow:16 --group=oc:16,ow:16,ic:16")),
    "tails": ("xe_hpc", f"{LAST} --dt=bf16 mb1ic20iw19oc20ow19kw3pw1",
              _words("m8n16k16_bf16", "--register=oc:16,ow:16 --group=oc:32,ow:32,ic:16")),
    "bytes": ("xe_hpc", f"{LAST} --dt=s8:s8:s32 mb1ic40iw17oc12ow17kw3pw1",
              _words("m8n16k32_s8", "--register=oc:16,ow:8 --group=oc:16,ow:32,ic:32")),
    "buffers": ("xe_hpc", f"{LAST} --dt=f16 mb1ic48iw16oc16ow16kw1",
                _words("m8n16k16_f16", "--register=oc:16,ow:8 --group=oc:16,ow:16,ic:16 --buffers=2")),
    "eight-lanes": ("xe_hpg", f"{LAST} --dt=bf16:bf16:f32 mb1ic32iw16oc16ow16kw1",
                    _words("m8n8k16_bf16", "--register=oc:8,ow:16 --group=oc:16,ow:16,ic:16")),
    "stride-and-relu": ("xe_hpg", f"{LAST} --dt=u8:s8:u8 --attr-post-ops=relu mb1ic33ih5oc9oh3kh3ph1sh2",
                        _words("m8n8k32_u8_s8", "--register=oc:8,oh:4,ow:2 --group=oc:16,oh:4,ow:4,ic:32")),
}  # fmt: skip
"""Problems and configs whose sub-groups compute fragments, each with the device."""
DEFAULT = {
    "f16": ("xe_hpc", f"{LAST} --dt=f16 mb1ic32ih6oc32oh6kh3ph1"),
    "strided-gradient": ("xe_hpg", f"{LAST} --dir=BWD_D --dt=bf16 mb1ic16ih8oc16oh4kh3ph1sh2"),
    "bytes": ("xe_hpg", f"{LAST} --dt=u8:s8:s32 --attr-post-ops=linear:2:1 mb1ic32ih6oc16oh6kh1"),
}  # fmt: skip
"""Problems whose default configs use dpas, each with the device."""
SCALAR = {
    "types": ("--dt=f32 mb1ic16iw16oc16ow16kw1", "xe_hpc has no instruction for products of f32:f32:f32, but for bf16"),
    "depthwise": (f"{LAST} --dt=bf16 g32mb1ic32iw16oc32ow16kw3pw1",
                  "dpas_m8n16k16_bf16: 8 x 16 x 16 rows, columns and terms; the loops have 16 x 1 x 3"),
    "zero-points": ("--dt=u8:s8:s32 --attr-zero-points=src:common:3 mb1ic32iw16oc16ow16kw1",
                    "zero points are subtracted from the factors; --offsets=sums subtracts them from the sums"),
}  # fmt: skip
"""Problems whose default configs use multiply-adds, each with the reason."""
SMALL = {
    "sixteen-lanes": ("xe_hpc", f"{LAST} --dt=bf16:bf16:f32 mb1ic5iw7oc5ow7kw1",
                      _words("m8n16k16_bf16", "--register=oc:16,ow:8 --group=oc:16,ow:8,ic:16")),
    "eight-lanes": ("xe_hpg", f"{LAST} --dt=s8:s8:s32 mb1ic9iw7oc5ow7kw1",
                    _words("m8n8k32_s8", "--register=oc:8,ow:8 --group=oc:8,ow:8,ic:32")),
}  # fmt: skip
"""Problems that the interpreter of the IR runs after each pass."""


def one_product(row: Instruction) -> Kernel:
    """Return the kernel in which a sub-group adds a product of ``row`` to its sums."""
    c, a, b = row.operands
    (rows, columns), terms = c.shape, a.shape[1]
    with interning():
        kernel = parse_kernel(f"""\
kernel k(a: {a.dtype}[{a.size}], b: {b.dtype}[{b.size}], c: {c.dtype}[{c.size}])
  for w in 0 .. 1 #warp:
    alloc sums: {c.dtype}[{rows}, {columns}] @fragment:
      alloc a_f: {a.dtype}[{rows}, {terms}] @fragment:
        alloc b_f: {b.dtype}[{terms}, {columns}] @fragment:
          for m in 0 .. {rows}:
            for l in 0 .. {columns}:
              sums[m, l] = c[l + m * {columns}]
          for m in 0 .. {rows}:
            for k in 0 .. {terms}:
              a_f[m, k] = a[k + m * {terms}]
          for k in 0 .. {terms}:
            for l in 0 .. {columns}:
              b_f[k, l] = b[l + k * {columns}]
          {row.name}(sums[0, 0]{{{c.size}}}, a_f[0, 0]{{{a.size}}}, b_f[0, 0]{{{b.size}}})
          for m in 0 .. {rows}:
            for l in 0 .. {columns}:
              c[l + m * {columns}] = sums[m, l]
""")
        return unroll(simplify(spread_lanes(kernel, (row,))))


def llvm(kernel: Kernel, machine: Machine) -> str:
    with interning():
        return device_text({kernel.name: kernel}, facts(machine))


def spirv(text: str, machine: Machine) -> bytes:
    return llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features)


@pytest.mark.parametrize("name, row", ROWS)
def test_a_layout_of_a_sub_group_has_each_element_once(name: str, row: Instruction) -> None:
    (lanes,) = target(name).device.warps  # type: ignore[union-attr]
    for x in row.operands:
        assert x.layout.lanes == lanes and x.layout.count == x.size == len(x.layout.places())


@pytest.mark.parametrize("name, row", ROWS)
def test_the_registers_of_a_row_give_its_specification(name: str, row: Instruction) -> None:
    """A driver of OpenCL runs the kernel; functions of broadcasts stand in for dpas."""
    require_opencl()
    machine, kernel = target(name), one_product(row)
    text = llvm(kernel, machine)
    assert row.declare in text
    arguments = tuple(buffer_argument(b, "inout" if b.name == "c" else "in") for b in kernel.params)
    with interning():
        entry = Entry(kernel.name, arguments, launch_of(kernel, 1, machine))
    code = spirv(emulated(text, machine), machine)
    made = Artifact(code, machine.name, {"main": entry}, kernel.name, f"--target={machine.name}")
    rng = np.random.default_rng(1)
    arrays = {}
    for b in kernel.params:
        low, high = b.dtype.limits if b.dtype.bits == 8 else (-9, 9)
        arrays[b.name] = rng.integers(low, high, b.size, endpoint=True).astype(b.dtype.numpy)
    wanted = {x: y.copy() for x, y in arrays.items()}
    run(row.kernel, wanted)
    function = library_of(made)["main"]
    block = HostBlock(function.entry, {x: y.ctypes.data for x, y in arrays.items()})
    function(block.address)
    np.testing.assert_array_equal(arrays["c"], wanted["c"])


@pytest.mark.parametrize("name, row", ROWS)
def test_a_row_becomes_dpas(name: str, row: Instruction, tmp_path: Path) -> None:
    machine = target(name)
    found = assembly(spirv(llvm(one_product(row), machine), machine), machine, tmp_path)
    assert [x.split()[0] for x in found.splitlines() if "dpas" in x] == ["dpas.8x8"]


@pytest.mark.parametrize("kind", SMALL)
def test_every_pass_keeps_the_result_of_sub_groups(kind: str) -> None:
    """The interpreter runs the kernel after the passes that know of fragments, and those that follow them."""
    name, line, words = SMALL[kind]
    check_fragments(line, words, name)


def verified(name: str, line: str, config: Config | None, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Run a kernel for a device through OpenCL, where it must be exact. Functions of broadcasts stand in for dpas; all
    else is the code that a GPU runs.
    """
    require_opencl()
    monkeypatch.setattr(service, "disk_cache", lambda: None)
    monkeypatch.setattr(driver, "device_text", lambda *a: emulated(device_text(*a), target(name)))
    kernel = CompiledKernel(parse_problem(line), target(name), config)
    verdict = verify_kernel(kernel, 0)
    assert verdict.ok, verdict.detail
    return kernel.config


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_sub_groups_are_exact_through_opencl(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, line, words = KINDS[kind]
    verified(name, line, Config.parse(f"--target={name} {words}"), monkeypatch)


@pytest.mark.parametrize("kind", DEFAULT)
def test_default_configs_use_dpas(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, line = DEFAULT[kind]
    config = verified(name, line, None, monkeypatch)
    (lanes,) = target(name).device.warps  # type: ignore[union-attr]
    assert config.instruction.startswith(f"dpas_m8n{lanes}") and config.size(config.lane) % lanes == 0


@pytest.mark.parametrize("name", DEVICES)
def test_sums_take_half_of_the_registers(name: str) -> None:
    machine = target(name)
    with interning():
        config = device_config(parse_problem(f"{LAST} --dt=bf16 mb32ic256ih56oc256oh56kh3ph1"), machine)
    (lanes,) = machine.device.warps  # type: ignore[union-attr]
    assert machine.registers // 4 < prod(size for _, size in config.register) // lanes <= machine.registers // 2


@pytest.mark.parametrize("kind", SCALAR)
def test_explain_says_why_there_is_no_dpas(kind: str) -> None:
    line, why = SCALAR[kind]
    machine = target("xe_hpc")
    with interning():
        problem = parse_problem(line)
        plan = device_plan(problem, device_config(problem, machine), machine)
        found = dict(plan.decisions())
    assert not plan.config.instruction and found["fragments"].startswith("not used: ") and why in found["fragments"]


@pytest.mark.parametrize("kind", ["tails", "eight-lanes"])
def test_products_of_kernels_are_dpas(kind: str, tmp_path: Path) -> None:
    name, line, words = KINDS[kind]
    kernel = CompiledKernel(parse_problem(line), target(name), Config.parse(f"--target={name} {words}"))
    assert kernel.artifact is not None
    found = assembly(kernel.artifact.code, target(name), tmp_path)
    assert f"dpas.8x8 ({16 if name == 'xe_hpc' else 8}|M0)" in found and ":bf" in found
