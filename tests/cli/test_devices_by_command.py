"""The commands on kernels for a device of OpenCL: they run, are timed, explained and shown."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner
from opencl_driver import require_opencl

import convsmith as cs
from convsmith.cli.main import main
from convsmith.codegen.artifact import Launch
from convsmith.frontend.explain_device import resident
from convsmith.machine.registry import target as machine
from convsmith.problem import parse_problem
from convsmith.runtime import opencl

LINE = "mb1ic3ih6oc4oh6kh3ph1"


def run(*words: str, target: str = "opencl") -> str:
    result = CliRunner().invoke(main, [*words, "--target", target, "--threads", "1"])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_kernel_is_verified_and_timed() -> None:
    require_opencl()
    assert "1 of 1 right" in run("verify", LINE)
    page = run("bench", LINE).splitlines()
    assert any(line.startswith(f"opencl on {opencl.device_name()}, ") for line in page)
    assert not any("CPU time" in line for line in page)
    row = next(line.split() for line in page if line.startswith(LINE))
    *_, microseconds, rate, peak, _, verified = row
    billions = parse_problem(LINE).flops_dense / 1e9  # taps that meet padding count; both numbers have one decimal
    assert abs(float(rate) - billions / (float(microseconds) * 1e-6)) < 0.06 and (peak, verified) == ("-", "yes")


def test_a_kernel_is_explained_and_shown_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "_opened", lambda: pytest.fail("a device is looked for"))
    page = run("explain", LINE)
    assert "groups reside on each of 16 units" in page and "bytes of shared memory each" in page
    assert "roofline      not known: opencl is code for devices of any rate" in page
    assert "OpEntryPoint Kernel" in run("show", LINE, "--asm")
    assert "define spir_kernel void @convsmith(ptr addrspace(1)" in run("show", LINE, "--llvm")
    assert "#grid:" in run("show", LINE)


@pytest.mark.parametrize(("shared", "registers", "threads", "text"), [
    (0, 32, 256, "8 groups reside on each of 108 units (limit: threads), 100% of its threads"),
    (0, 0, 32, "32 groups reside on each of 108 units (limit: groups), 50% of its threads; the driver allocates "
     "registers"),
    (0, 61, 256, "4 groups reside on each of 108 units (limit: registers), 50% of its threads"),
    (90_000, 64, 128, "1 group resides on each of 108 units (limit: shared memory), 6% of its threads"),
])  # fmt: skip
def test_occupancy_counts_threads_groups_registers_and_shared_memory(
    shared: int, registers: int, threads: int, text: str
) -> None:
    device = machine("sm_80").device
    assert device is not None
    launch = Launch("grid", runtime="cuda", grid=(1, 1, 1), group=(threads, 1, 1), shared=shared)
    assert resident(launch, device, registers) == text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target, line, rates, bound", [
    ("sm_80", "--matmul --dt=bf16 1024x1024:1024x1024", "1024 multiply-adds of fragments of 16-bit elements on each of "
     "108 units, 1103 bytes of memory", "the multiply-adds: at least 9,709 cycles"),
    ("sm_80", "--matmul 1024x1024:1024x1024", "64 multiply-adds of f32 on each of 108 units, 1103 bytes of memory",
     "the multiply-adds: at least 155,345 cycles"),
    ("xe_hpg", "--matmul --dt=s8:s8:s32 64x1024:1024x1024", "2048 multiply-adds of fragments of 8-bit elements on each "
     "of 32 units, 267 bytes of memory", "the bytes: at least 5,155 cycles"),
])  # fmt: skip
def test_the_roofline_of_a_device_follows_from_its_data_sheet(target: str, line: str, rates: str, bound: str) -> None:
    page = run("explain", line, target=target)
    assert f"roofline      by the data sheet, in a cycle: {rates}\n" in page and f"bound by {bound}\n" in page


def test_code_of_devices_is_shown_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "_opened", lambda: pytest.fail("a device is looked for"))
    spirv = run("show", LINE, "--spirv").splitlines()
    assert spirv[0].startswith("; 1 thread") and any("OpExecutionMode" in line for line in spirv)
    assert spirv[1:] == run("show", LINE, "--asm").splitlines()[1:]
    ptx = run("show", LINE, "--ptx", target="sm_80").splitlines()
    assert ptx[0].startswith("// 1 thread") and any(".target sm_80" in line for line in ptx)
    assert ptx[1:] == run("show", LINE, "--asm", target="sm_80").splitlines()[1:]


@pytest.mark.sampled(2, "text", "names")
@pytest.mark.parametrize(
    "target,text,names",
    [
        ("opencl", "ptx", "PTX; targets that have it: sm_90a, sm_89, sm_86, sm_80, sm_70;"),
        ("opencl", "sass", "SASS; targets that have it: sm_90a, sm_89, sm_86, sm_80, sm_70;"),
        ("sm_80", "spirv", "SPIR-V; targets that have it: opencl, xe_hpc, xe_hpg, xe_lp;"),
        ("generic", "spirv", "SPIR-V; targets that have it: opencl, xe_hpc, xe_hpg, xe_lp;"),
        ("generic", "ptx", "PTX; targets that have it: sm_90a, sm_89, sm_86, sm_80, sm_70;"),
    ],
)  # fmt: skip
def test_code_that_a_target_lacks(target: str, text: str, names: str) -> None:
    message = f"target {target} has no {names} asm() and --asm give the assembly of every target"
    result = CliRunner().invoke(main, ["show", LINE, f"--{text}", "--target", target])
    assert result.exit_code == 2 and message in result.stderr
    kernel = cs.compile(LINE, target=target)
    with pytest.raises(cs.UsageError, match=re.escape(message)) as raised:
        getattr(kernel, text)()
    assert raised.value.code == "text"


def test_a_call_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is compiled on any machine; its first call looks for the device."""

    def without_device() -> None:
        raise cs.UnsupportedError("no device", code="opencl")

    kernel = cs.compile(LINE, target="opencl")
    monkeypatch.setattr(opencl, "_opened", without_device)
    with pytest.raises(cs.UnsupportedError, match="no device"):
        kernel(np.ones((1, 3, 6, 6), np.float32), np.ones((4, 3, 3, 3), np.float32))
