"""The commands on kernels for a device of OpenCL: they run, are timed, explained and shown."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from opencl_driver import require_opencl

import convsmith as cs
from convsmith.cli.main import main

LINE = "mb1ic3ih6oc4oh6kh3ph1"


def run(*words: str) -> str:
    result = CliRunner().invoke(main, [*words, "--target", "opencl", "--threads", "1"])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_kernel_is_verified_and_timed() -> None:
    require_opencl()
    assert "1 of 1 right" in run("verify", LINE)
    row = next(line.split() for line in run("bench", LINE).splitlines() if line.startswith(LINE))
    *_, microseconds, rate, peak, _, verified = row
    assert float(microseconds) > 0 and float(rate) > 0 and (peak, verified) == ("-", "yes")



def test_a_kernel_is_explained_and_shown_without_a_device() -> None:
    page = run("explain", LINE)
    assert "groups reside on each of 16 units" in page and "bytes of shared memory each" in page
    assert "roofline      not known: the rates of devices that run opencl are not measured" in page
    assert "OpEntryPoint Kernel" in run("show", LINE, "--asm")
    assert "define spir_kernel void @convsmith(ptr addrspace(1)" in run("show", LINE, "--llvm")
    assert "#grid:" in run("show", LINE)


def test_sizes_of_a_call_are_refused() -> None:
    with pytest.raises(cs.UnsupportedError, match="kernels for opencl have fixed sizes; available is a kernel"):
        cs.compile(LINE, target="opencl", dynamic="mb,ih,iw")
