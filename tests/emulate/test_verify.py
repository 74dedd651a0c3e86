"""Kernels for other machines, verified: `convsmith verify --target`, `CompiledKernel.verify` and `emulated`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner, Result
from emulated import skip_without_emulator
from opencl_driver import require_opencl  # noqa: F401  # has the driver loaded before OpenVINO

import convsmith as cs
from convsmith.cli.main import main
from convsmith.codegen.artifact import Artifact
from convsmith.diag.settings import settings
from convsmith.emulate import emulators
from convsmith.emulate.bochs import BOCHS
from convsmith.emulate.emulators import emulator_for, is_native
from convsmith.emulate.ptx.emulator import PTX, PtxInterpreter
from convsmith.emulate.qemu import AARCH64
from convsmith.frontend import kernel as kernels
from convsmith.machine.registry import device_targets, host_targets, known_targets, target
from convsmith.measure import verification
from convsmith.runtime import opencl
from convsmith.runtime.device_library import OpenedOnce

TARGETS = (
    "aarch64+dotprod", "aarch64+sve", "hexagon+v68", "riscv64+rvv", "wasm32", "wasm32+relaxed", "sm_80", "sm_90a",
    "xe_hpc", "xe_hpg",
)  # fmt: skip

LAST = "--stag=axb --dtag=axb"
LINES = {
    "post-ops": f"--dir=FWD_B {LAST} --attr-post-ops=sum+relu+binary_add:f32:per_oc mb1ic3ih5iw6oc5kh3kw3ph1pw1",
    "stride": f"{LAST} mb1ic3ih9oc20kh3ph1sh2",
    "bytes": f"{LAST} --dt=u8:s8:s32 mb1ic8ih4oc9kh3ph1",
    "scales and zero points": f"{LAST} --dt=u8:s8:u8 --attr-scales=src:common:0.25+wei:per_oc+dst:common:2 "
                              "--attr-zero-points=src:common:3+dst:common:5 --attr-post-ops=relu mb1ic8ih4oc9kh3ph1",
    "transformed bytes": f"{LAST} --dt=s8:s8:s32 mb1ic32ih9oc16kh3ph1",
    "bf16": f"{LAST} --dt=bf16 mb1ic8ih4oc8kh3ph1",
    "chain": "--stag=axb mb1ic4ih4oc8kh1ph0 -> --dtag=axb mb1ic8ih4oc4kh3ph1",
    "gradient of the source": f"--dir=BWD_D {LAST} mb1ic4ih6oc8oh3kh3ph1sh2",
    "gradient of weights and bias": f"--dir=BWD_WB {LAST} mb2ic4ih4oc8kh3ph1",
    "depthwise": f"{LAST} g8mb1ic8ih5oc8kh3ph1",
    "product": "--matmul --dt=s8:s8:s32 5x16:16x9",
}  # fmt: skip


def verify(*words: str) -> Result:
    return CliRunner().invoke(main, ["verify", *words])


@pytest.mark.sampled(22, wide=1, every="case name")
@pytest.mark.parametrize("case", LINES)
@pytest.mark.parametrize("name", TARGETS)
def test_the_command_runs_kernels_in_the_emulator(name: str, case: str) -> None:
    skip_without_emulator(target(name))
    result = verify(*LINES[case].split(" ", 1) if " -> " not in LINES[case] else [LINES[case]], "--target", name)
    emulator = emulator_for(target(name)).name
    assert result.exit_code == 0, result.output
    *heading, line, last = result.output.splitlines()
    assert heading[-1] == f"in {emulator}, because this machine does not run code for {name}"
    assert line.startswith("right: ") and line.endswith(": exact") and last == "1 of 1 right"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["aarch64", "hexagon+v68"])
def test_parts_of_threads_run_one_after_the_other(name: str, threads: int) -> None:
    skip_without_emulator(target(name))
    kernel = cs.compile("mb1ic4ih9oc16kh3ph1", target=name, threads=threads)
    assert kernel.artifact is not None and kernel.artifact.entries["main"].launch.threads == threads
    assert kernel.verify().detail == "exact"


def test_a_kernel_of_this_machine_is_verified_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in {type(emulator) for emulator in emulators.EMULATORS}:
        monkeypatch.setattr(kind, "load", lambda *a: pytest.fail("an emulator is used"))
    verdict = cs.compile("mb1ic3ih5oc4kh3ph1").verify(seed=3)
    assert verdict.ok and verdict.detail == "exact"


def test_an_emulated_kernel_has_every_kind_of_call() -> None:
    k = cs.compile(f"{LAST} mb1ic3ih5oc4kh3ph1", target="sm_80")
    emulated = k.emulated()
    here = cs.compile(f"{LAST} mb1ic3ih5oc4kh3ph1")
    rng = np.random.default_rng(0)
    x = np.ascontiguousarray(rng.integers(-9, 9, (1, 5, 5, 3)).astype(np.float32)).transpose(0, 3, 1, 2)
    w = rng.integers(-9, 9, (4, 3, 3, 3)).astype(np.float32)
    truth = here(x, w)
    out = np.zeros_like(truth)
    emulated.bind(x, w, out)()
    results = [emulated(x, w), emulated(x, emulated.pack(w)), emulated.run(src=x, wei=w)["dst"], out,
               pickle.loads(pickle.dumps(emulated))(x, w)]  # fmt: skip
    for result in results:
        np.testing.assert_array_equal(result, truth)


def test_weights_beyond_a_limit_run_in_the_emulator_too() -> None:
    """The kernel for such weights is another one."""
    k = cs.compile(f"{LAST} mb1ic4ih6oc8kh3ph1", target="sm_80", config="--realise=pad_copy").emulated()
    assert k.artifact is not None and "wei" in k.artifact.limits
    x, w = np.ones((1, 4, 6, 6), np.float32), np.ones((8, 4, 3, 3), np.float32)
    w[0, 0, 0, 0] = np.inf
    y = k(x, w)
    assert np.isinf(y[0, 0, 1:, 1:]).all() and (y[0, 0, 0, 1:-1] == 24).all() and (y[0, 1, 1:-1, 1:-1] == 36).all()


# -- what is missing
NO_QEMU = (
    "UnsupportedError: code for {} runs under {}, which PATH does not have: install the package qemu-user (apt install "
    "qemu-user), version 7.2 or later\n"
)


@pytest.mark.parametrize("name, architecture, program", [
    ("hexagon+v68", "hexagon", "qemu-hexagon"), ("aarch64+sve", "aarch64", "qemu-aarch64"),
])  # fmt: skip
def test_a_missing_emulator_is_one_message(
    name: str, architecture: str, program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It comes before any kernel is made, however many problems there are."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = verify("resnet50", "--target", name)
    assert result.exit_code == 2 and result.output == NO_QEMU.format(architecture, program)
    kernel = cs.compile("mb1ic3ih5oc4kh3ph1", target=name)
    with pytest.raises(cs.UnsupportedError, match="apt install qemu-user"):
        kernel.verify()


def test_a_missing_bochs_is_one_message() -> None:
    name = next(t.name for t in known_targets() if t not in host_targets() and BOCHS.runs(t))
    with settings.scope(bochs=Path("/nowhere/bochs")):
        result = verify("resnet50", "--target", name)
    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert "install Bochs 3.0 or later" in result.output


def test_a_level_that_no_emulated_processor_has() -> None:
    skip_without_emulator(target("hexagon+v68"))
    result = verify("mb1ic3ih5oc4kh3ph1", "--target", "hexagon+v73_fp")
    assert result.exit_code == 2
    assert result.output.startswith("UnsupportedError: no emulated processor has ")
    assert "nearest is v67" in result.output


def test_a_level_without_an_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulators, "EMULATORS", (AARCH64, PTX))
    result = verify("mb1ic3ih5oc4kh3ph1", "--target", "hexagon+v68")
    assert result.exit_code == 2
    assert result.output.startswith(
        "UnsupportedError: this machine does not run code for hexagon+v68, and no emulator does; emulated are aarch64+"
    )
    assert "sm_90a" in result.output and "xe_hpc" not in result.output


def test_a_missing_device_of_opencl_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl, "_opened", OpenedOnce(opencl.OpenedDevice, "OpenCL", "opencl"))
    monkeypatch.setitem(sys.modules, "pyopencl", SimpleNamespace(Error=RuntimeError, get_platforms=lambda: []))
    for name in ("opencl", "xe_hpc"):
        result = verify("resnet50", "--target", name)
        assert result.exit_code == 2 and result.output == (
            "UnsupportedError: no device of OpenCL takes SPIR-V: those of this machine are none; pip install "
            "intel-opencl-rt intel-cmplr-lib-rt installs a driver for CPUs\n"
        )


def test_every_level_is_native_or_has_an_emulator() -> None:
    """Microcontrollers have two: qemu's user mode, and its boards."""
    for machine in (*known_targets(), *device_targets()):
        count = sum(emulator.runs(machine) for emulator in emulators.EMULATORS)
        assert count == 1 + machine.triple.startswith("thumb") or (count == 0 and is_native(machine)), machine.name


def test_a_fault_of_emulated_code_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1, and the line goes on to the next problem."""
    load = PtxInterpreter.load

    def without_a_barrier(self: PtxInterpreter, artifact: Artifact) -> object:
        artifact.notes["ptx"] = "\n".join(x for x in artifact.notes["ptx"].splitlines() if "bar.sync" not in x)
        return load(self, artifact)

    monkeypatch.setattr(PtxInterpreter, "load", without_a_barrier)
    words = "--lane=ow --register=oc:5 --realise=mask --group=oc:20,ow:9,oh:4,ic:2 --shared=src,wei"
    result = verify("mb1ic3ih4iw9oc20oh4ow9kh3kw3ph1pw1", "--config", f"--target=sm_80 --pack= {words}")
    assert result.exit_code == 1, result.output
    assert "ToolchainError" not in result.output.splitlines()[0] and "PtxError: " in result.output
    assert "stopped in the interpreter of PTX" in result.output and result.output.endswith("0 of 1 right\n")


# -- what emulators are known to do wrong
@pytest.mark.parametrize("version, doubted", [("7.2.22 (Debian 1:7.2)", True), ("10.0.2", False), ("of nobody", True)])
def test_outer_products_of_bytes_are_doubted_in_old_versions_of_qemu(
    version: str, doubted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "qemu-aarch64"
    program.write_text(f"#!/bin/sh\necho qemu-aarch64 version {version}\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    shape = "mb1ic16ih5oc16kh3ph1"
    for line, level, is_faulty in (
        (f"--dt=u8:s8:s32 {shape}", "aarch64+sme512", doubted), (shape, "aarch64+sme512", False),
        (f"--dt=u8:s8:s32 {shape}", "aarch64+sve", False),
    ):  # fmt: skip
        artifact = cs.compile(line, target=level).artifact
        assert artifact is not None
        assert bool(AARCH64.doubt(artifact)) is is_faulty, (line, level)


def test_a_mismatch_of_a_doubted_emulator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PtxInterpreter, "doubt", lambda *a: "this interpreter adds one")
    monkeypatch.setattr(verification, "reference", lambda *a: {"dst": np.full((1, 4, 5, 5), 0.5, np.float32)})
    result = verify("--accuracy=strict", "mb1ic3ih5oc4kh3ph1", "--target", "sm_80")
    assert result.exit_code == 1 and "mismatch: " in result.output
    assert result.output.splitlines()[-2].endswith("; this interpreter adds one")


def test_an_emulated_kernel_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cs.compile(f"{LAST} mb1ic3ih5oc4kh3ph1", target="sm_80")
    monkeypatch.setattr(kernels, "compile_problem", lambda *a, **_: pytest.fail("it is compiled"))
    emulated = kernel.emulated()
    assert emulated.artifact is kernel.artifact and emulated.verify().ok
