"""The inner loop of kernels in assembly, and the estimates of `llvm-mca`, in whose place a script stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.machine.registry import target
from convsmith.page.inner_loop import estimated_cycles, inner_loop

LINE = "--accuracy=strict --stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1"


@pytest.mark.parametrize("name", ["avx2", "avx512", "aarch64", "aarch64+sve", "riscv64+rvv"])
def test_the_loop_with_most_products(name: str) -> None:
    """It has the products of the register tile, once or for several terms, and ends with a jump to its label."""
    kernel = cs.compile(LINE, target=name, threads=1)
    loop = inner_loop(kernel.asm(), kernel.target)
    assert loop is not None and loop.products >= 5 and len(loop.lines) > loop.products
    assert loop.lines[-1].rstrip().endswith(loop.label)
    assert str(loop) == f"{len(loop.lines)} instructions for {loop.products} products"


ASSEMBLY = """f:
\tvsetvli\tzero, a0, e32, m4, ta, ma
.LBB0_1:
\tvfmv.v.f\tv8, fa0
.LBB0_2:
\t.loc\t1 2
\tvle32.v\tv0, (a1)
\tvfmacc.vf\tv8, fa5, v0
\tblt\ta2, a3, .LBB0_2
\tblt\ta4, a5, .LBB0_1
.LBB0_3:
\tvfmv.v.f\tv8, fa0
\tblt\ta2, a3, .LBB0_3
"""


def test_loops_around_it_and_loops_without_products_are_others() -> None:
    loop = inner_loop(ASSEMBLY, target("riscv64+rvv"))
    assert loop is not None and loop.label == ".LBB0_2" and loop.products == 1 and len(loop.lines) == 3
    assert loop.before == "\tvsetvli\tzero, a0, e32, m4, ta, ma"
    assert inner_loop("f:\n\tret\n", target("riscv64+rvv")) is None
    assert inner_loop(ASSEMBLY, target("generic")) is None


def mca(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of the name llvm-mca on PATH."""
    program = folder / "llvm-mca"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mca(tmp_path, f'echo "$@" > {tmp_path}/given; cat > {tmp_path}/text; echo "Total Cycles:      1234"', monkeypatch)
    machine = target("riscv64+rvv")
    loop = inner_loop(ASSEMBLY, machine)
    assert loop is not None and estimated_cycles(loop, machine, "sifive-x280") == 12.34
    given = (tmp_path / "given").read_text()
    assert "-mtriple=riscv64 -mcpu=sifive-x280 -mattr=+m," in given and "-relax" not in given
    assert (tmp_path / "text").read_text().splitlines()[:2] == [loop.before, ".LBB0_2:"]
    result = CliRunner().invoke(main, ["explain", *LINE.split(), "--target", machine.name, "--mca", "sifive-x280"])
    assert result.output.splitlines()[-1].endswith("products; 12.3 cycles on sifive-x280, as llvm-mca estimates")


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("echo error: unable to find instruction-level scheduling information >&2; exit 1", "bad-cpu",
         "has no description of the CPU 'x1'; legal are those of LLVM for riscv64"),
        ("echo unknown instruction >&2; exit 1", "toolchain", "does not read the loop: unknown instruction"),
    ],
)  # fmt: skip
def test_no_estimate(
    script: str, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mca(tmp_path, script, monkeypatch)
    machine = target("riscv64+rvv")
    loop = inner_loop(ASSEMBLY, machine)
    assert loop is not None
    with pytest.raises((cs.UsageError, cs.ToolchainError), match=message) as caught:
        estimated_cycles(loop, machine, "x1")
    assert caught.value.code == code


def test_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    loop = inner_loop(ASSEMBLY, target("riscv64+rvv"))
    assert loop is not None
    with pytest.raises(cs.UnsupportedError, match="which PATH does not have: install the package llvm"):
        estimated_cycles(loop, target("riscv64+rvv"), "sifive-x280")
