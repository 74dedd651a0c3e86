"""`explain` describes the loops, registers and instructions that the kernel has, for vectors and for fragments."""

from __future__ import annotations

from pathlib import Path

import pytest

import convsmith as cs
from convsmith.compiler.instruments import dump_directory
from convsmith.diag.settings import settings
from convsmith.ir.intern import interning
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem.lines import parse_problem
from convsmith.schedule.plan import plan
from convsmith.schedule.text import kernel_lines
from convsmith.tune.candidates import default_config

TARGETS = {t.name: t for t in (*LEVELS, level())}
LINE = "--accuracy=strict --dt=bf16 --stag=axb --dtag=axb mb1ic64ih56oc64oh56kh3ph1"


def described(line: str, isa: str) -> list[str]:
    """The lines of the plan of the main kernel, for any level."""
    problem, target = parse_problem(line), TARGETS[isa]
    with interning():
        made = plan(problem, default_config(problem, target), target)
        return [text for _, text in kernel_lines(made.main)]


def test_fragments() -> None:
    around, reduction, tile, runs, instruction, registers, *_ = described(LINE, "avx512_amx")
    assert around.startswith("around the register tile: mb 1, oh 56, ow.o ")
    assert reduction == "reduction: kh 3, kw 3, ic.o 2"
    assert tile.startswith("register tile (unrolled), of fragments: ow.i ")
    assert runs.startswith("an instruction runs: ow.m ") and runs.endswith("ic.q 16, ic.p 2, oc.l 16")
    assert instruction == "tdpbf16ps_16: 16 sums of 32 products in each of 16 rows"
    assert " of 8 registers for fragments, " in registers


@pytest.mark.parametrize("isa", ["avx512_bf16", "avx512", "generic"])
def test_vectors(isa: str) -> None:
    around, reduction, tile, _, registers, *_ = described(LINE, isa)
    assert around.startswith("around the register tile: mb 1, oh 56, ") and ", ow.o " in around
    assert reduction.startswith("reduction: kh 3, kw 3, ic")
    assert tile.startswith("register tile (unrolled): ow.i ") and "oc.l " in tile
    assert f" of {TARGETS[isa].registers} vector registers, " in registers


@pytest.mark.parametrize("isa", ["avx512_amx", "avx512"])
def test_loops_that_the_epilogue_adds_are_not_loops_around_the_tile(isa: str) -> None:
    # A long epilogue drains the accumulators in loops of its own.
    text = described(LINE.replace("--dt=bf16", "--dt=bf16 --attr-post-ops=gelu_erf"), isa)
    assert all(".w" not in line for line in text)


def test_a_fused_kernel_is_explained_with_both_statements() -> None:
    page = cs.compile("--attr-post-ops=dw:k3s1p1 mb1ic4ih6oc8kh1", threads=1).explain()
    assert page.count("\nstatement") == page.count("\ninstruction") == 2
    assert "stage1, in a loop of the main one" in page


def test_arrays_of_transforms_share_memory_with_those_of_the_block() -> None:
    """The array of the input transform is dead before products are stored; that of the output transform begins later.
    """
    kernel = cs.compile("--stag=axb --dtag=axb mb1ic64ih56oc64oh56kh3ph1", target="avx512", threads=1)
    assert kernel.config.tiles_at("winograd")
    page = kernel.explain().split("\n")
    start = next(n for n, row in enumerate(page) if row.startswith("storage "))
    rows = [row[14:] for row in page[start : start + 5]]
    shared = {row.split()[0]: row.split()[-1] for row in rows[:4]}
    assert shared == {"s0": "prod", "src_w": "d0", "prod": "s0", "d0": "src_w"}
    assert rows[4].startswith("peak 266368 bytes before sharing, 262528 after; 262528 are alive at once")


def test_a_kernel_with_one_private_buffer_has_no_storage_plan() -> None:
    config = "--target=generic --lane=oc --realise=pad_copy"
    page = cs.compile("mb1ic8ih8oc16oh8kh3ph1", config=config, threads=1).explain()
    assert "of scratch memory" in page
    assert "\nstorage" not in page


@pytest.mark.parametrize(
    ("line", "config"),
    [
        ("--dt=u8:s8:u8 --stag=abx --dtag=abx mb1ic928ih14oc256kh1", "--lane=ow --realise=pad_copy --pack=src,wei"),
        ("--stag=abx --dtag=abx mb1ic928ih14oc256oh14kh1ph0", "--lane=oc --realise=peel"),
        ("--stag=axb --dtag=axb mb1ic928ih14oc256oh14kh1ph0", "--lane=ow"),
    ],
)
def test_a_config_without_orders_has_that_of_the_statement(line: str, config: str) -> None:
    """The model ranks loops in the order in which the kernel runs them where a config names none."""
    kernel = cs.compile(line, threads=1, config=f"--target=avx512_vnni {config}")
    assert "\nverdict" in f"\n{kernel.explain()}"


def test_a_page_says_why_files_cannot_be_written(tmp_path: Path) -> None:
    """A directory stands where a file would be, as where the disk is full, the page is complete but for the files."""
    kernel = cs.compile("mb1ic4ih5oc4kh3", target="generic", threads=1)
    with settings.scope(dump=tmp_path):
        (dump_directory(tmp_path, kernel.problem, str(kernel.config)) / "kernel.ll").mkdir(parents=True)
        page = kernel.explain()
    assert "registers" in page and "\nfiles         none: CONVSMITH_DUMP: " in page
    assert "cannot be written: Is a directory" in page


def test_code_for_browsers_is_explained_and_dumped_as_wgsl(tmp_path: Path) -> None:
    """LLVM has no code generator for it, so there is neither LLVM text nor assembly."""
    line = "mb1ic4ih5oc4kh3"
    with settings.scope(dump=tmp_path):
        kernel = cs.compile(line, target="webgpu")
        page = kernel.explain(html=tmp_path / "page.html")
    directory = dump_directory(tmp_path, kernel.problem, str(kernel.config))
    assert f"{directory}/: kernel.wgsl, passes.txt, and the IR after every pass" in page
    assert (directory / "kernel.wgsl").read_text() == kernel.wgsl()
    assert "@compute" in (tmp_path / "page.html").read_text()
