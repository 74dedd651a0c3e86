"""The inner loop of kernels in assembly, and the estimates of `llvm-mca`, in whose place a script stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.machine.registry import target
from convsmith.page.inner_loop import ALL, estimated_cycles, estimates, inner_loop, inner_loops

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


def mca(
    folder: Path, script: str, monkeypatch: pytest.MonkeyPatch, version: str = "22.1.0", name: str = "llvm-mca"
) -> None:  # fmt: skip
    """Make a program the only one of the name llvm-mca on PATH."""
    program = folder / name
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "LLVM version {version}"; exit; }}\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'echo "$@" > {tmp_path}/given; /bin/cat > {tmp_path}/text; echo "Total Cycles:      1234"'
    mca(tmp_path, script, monkeypatch)
    machine = target("riscv64+rvv")
    loop = inner_loop(ASSEMBLY, machine)
    assert loop is not None and estimated_cycles(loop, machine, "sifive-x280") == 12.34
    given = (tmp_path / "given").read_text()
    assert "-mtriple=riscv64 -mcpu=sifive-x280 -mattr=+m," in given and "-relax" not in given
    assert (tmp_path / "text").read_text().splitlines()[:2] == [loop.before, ".LBB0_2:"]


def test_explain_estimates_every_inner_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs that are named must have a description; of the others, a line says which have none."""
    script = """case "$*" in *x60*) echo no scheduling information >&2; exit 1;; *) echo "Total Cycles: 1230";; esac"""
    mca(tmp_path, script, monkeypatch)
    asked = ["explain", *LINE.split(), "--threads", "1", "--target", "riscv64+rvv"]
    page = CliRunner().invoke(main, [*asked, "--mca"]).output.splitlines()
    at = next(n for n, line in enumerate(page) if line.startswith("inner loops"))
    loops = [line.split() for line in page[at + 1 : -2]]
    assert page[at].split() == ["inner", "loops", "instructions", "products", "sifive-x280"] and len(loops) >= 2
    assert [int(x[2]) for x in loops] == sorted((int(x[2]) for x in loops), reverse=True)
    assert {x[3] for x in loops} == {"12.3"}
    assert page[-2] == "cycles of an iteration, as llvm-mca 22.1.0 estimates them; nothing was timed"
    assert page[-1].startswith("spacemit-x60: llvm-mca 22.1.0 (") and "has no description of 'spacemit-x60'" in page[-1]
    result = CliRunner().invoke(main, [*asked, "--mca", "spacemit-x60"])
    assert result.exit_code == 2 and "has no description" in result.output
    assert CliRunner().invoke(main, [*asked, "--mca", "sifive-x280,sifive-p670"]).output.count("12.3") == 2 * len(loops)


def test_loops_that_differ_in_labels_are_one() -> None:
    again = ASSEMBLY.replace("LBB0", "LBB1")
    assert len(inner_loops(ASSEMBLY + again, target("riscv64+rvv"))) == 1
    assert len(inner_loops(ASSEMBLY + again.replace("v8, fa5", "v8, fa4"), target("riscv64+rvv"))) == 2


def test_the_newest_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mca(tmp_path, 'echo "Total Cycles: 100"', monkeypatch, "14.0.6")
    mca(tmp_path, 'echo "Total Cycles: 200"', monkeypatch, "19.1.7", "llvm-mca-19")
    mca(tmp_path, 'echo "Total Cycles: 300"', monkeypatch, "9.0.1", "llvm-mca-9")
    loop = inner_loop(ASSEMBLY, target("riscv64+rvv"))
    assert loop is not None and estimated_cycles(loop, target("riscv64+rvv"), "sifive-x280") == 2.0


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        ("echo error: unable to find instruction-level scheduling information >&2; exit 1", "bad-cpu",
         "has no description of 'x1'; legal are LLVM's CPUs for riscv64"),
        ("echo unknown instruction >&2; exit 1", "toolchain", "does not read the loop: unknown instruction"),
    ],
)  # fmt: skip
def test_no_estimate(script: str, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mca(tmp_path, script, monkeypatch)
    machine = target("riscv64+rvv")
    loop = inner_loop(ASSEMBLY, machine)
    assert loop is not None
    with pytest.raises((cs.UsageError, cs.ToolchainError), match=message) as caught:
        estimated_cycles(loop, machine, "x1")
    assert caught.value.code == code


def test_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = target("riscv64+rvv")
    loop = inner_loop(ASSEMBLY, machine)
    assert loop is not None
    with pytest.raises(cs.UnsupportedError, match="which PATH does not have: install the package llvm"):
        estimated_cycles(loop, machine, "sifive-x280")
    table = estimates(ASSEMBLY, machine, ALL).splitlines()
    assert table[-1].startswith("sifive-x280, spacemit-x60: cycles are estimated by llvm-mca, which PATH does not have")
    assert estimates("f:\n\tret\n", machine, ALL) == "inner loops   none: the products of a tile are no loop"
