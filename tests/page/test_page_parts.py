"""Pages of HTML: the data behind their parts, and the files."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.page import document
from convsmith.page.assembly_view import hot_loop, routines
from convsmith.page.executions import bytes_asked, executed
from convsmith.page.nest_view import levels_of, nest_lines, planned_nest
from convsmith.page.packing_grid import packed_grids
from convsmith.page.pass_timeline import timeline
from convsmith.problem.types import TYPES

LINE = "--stag=axb --dtag=axb mb1ic3ih14oc8kh3ph1"

ASSEMBLY = """
\t.text
first:
\t.loc\t1 3 0
\tmovl\t$1, %eax
.LBB0_1:
\tincl\t%eax
.LBB0_2:
\t.loc\t1 5 0
\tvfmadd231ps\t%ymm0, %ymm1, %ymm2
\tjne\t.LBB0_2
\tjne\t.LBB0_1
.LBB0_9:
\tretq
second:
\tretq
third:
\t.loc\t1 7 0
.LBB2_1:
\tb.lt\t.LBB2_1 // a loop
"""


def test_the_hot_loop_is_the_innermost_that_runs_most_instructions() -> None:
    found = routines(ASSEMBLY)
    assert [r.name for r in found] == ["first", "third"]
    assert [x.label for x in found[0].lines if x.label] == [".LBB0_1", ".LBB0_2"]
    hot = hot_loop(found, {5: 100, 7: 10})
    assert hot is not None and [hot[0].lines[n].source for n in hot[1]] == [0, 5, 5]
    hot = hot_loop(found, {5: 100, 7: 1000})
    assert hot is not None and hot[0].name == "third"
    assert hot_loop(routines("only:\n\t.loc 1 2 0\n\tretq\n"), {}) is None


@pytest.mark.parametrize("target, row", [("avx2", "vfmadd"), ("avx512", "vfmadd"), ("aarch64", "fmla")])
def test_instructions_of_the_hot_loop_come_from_the_lines_of_products(target: str, row: str) -> None:
    kernel = cs.compile(LINE, threads=1, target=target)
    with kernel.planned() as plan:
        low = lower(plan, debug=True)
    assembly = _assembly(low.text, kernel)
    lines = str(low.kernel).splitlines()
    multiplying = [x for r in routines(assembly) for x in r.lines if x.text.split()[0].startswith(row)]
    assert multiplying
    assert all(re.search(r"fma|fmla", lines[x.source - 1]) for x in multiplying)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", [
    LINE, "--dir=BWD_W mb2ic16ih14oc32kh3ph1", "--dt=u8:s8:s32 mb1ic16ih7oc16kh3ph1", "g32mb1ic32ih28oc32oh28kh3ph1",
])  # fmt: skip
def test_lines_change_no_instruction(line: str) -> None:
    kernel = cs.compile(line, threads=1, target="avx2")
    with kernel.planned() as plan:
        plain, marked = lower(plan), lower(plan, debug=True)
    assert "!dbg" not in plain.text
    assert _instructions(_assembly(plain.text, kernel)) == _instructions(_assembly(marked.text, kernel))


def _assembly(text: str, kernel: cs.CompiledKernel) -> str:
    from convsmith.codegen import llvm_bind

    target = kernel.target
    return llvm_bind.assembly(text, target.triple, target.cpu, target.features)


def _instructions(assembly: str) -> list[str]:
    found = (line.split("#")[0].strip() for line in assembly.splitlines() if line.startswith("\t"))
    return [x for x in found if x and not x.startswith(".")]


def test_statements_are_counted() -> None:
    kernel = parse_kernel(
        """function f(p: a, n)
  for j in 0 .. n:
    b[j] = a[p]
kernel k(a: f32[8], b: f32[8])
  for i in 0 .. 4:
    call f(a @ i, i)
    b[i] = a[i] + a[i]
"""
    )
    assert [leaf.times for leaf in executed(kernel)] == [4, 4, 12]
    assert bytes_asked(kernel) == 4 * (4 + 4) + 12 * (4 + 4)


def test_passes_show_the_lines_that_they_change() -> None:
    with interning():
        kernel = cs.compile(LINE, threads=1, target="avx2")
        views = timeline(kernel.passes())
        nest = list(nest_lines(planned_nest(kernel.passes()), levels_of(kernel.plan().main)))
    assert views[0].added == views[0].removed == 0 and views[0].lines
    tiled = next(x for x in views if x.step.startswith("tile"))
    assert any(x.mark == "+" and ".o in 0" in x.text for x in tiled.lines)
    assert all(not x.lines for x in views if not x.changed) and max(x.share for x in views) == 1
    assert {"caches", "reduction", "tile", "vector", "memory", "statement"} == {x.level for x in nest}


@pytest.mark.parametrize("types", ["f32", "u8:s8:s32"])
def test_the_grid_is_the_packed_memory(types: str) -> None:
    kernel = cs.compile(f"--dt={types} --stag=axb --dtag=axb mb1ic3ih14oc8kh3ph1", threads=1)
    with kernel.planned() as plan:
        (grid,) = packed_grids(kernel.problem, lower(plan))
    weights = np.arange(8 * 27).reshape(8, 3, 3, 3) % 61 + 1  # within the limit of products of AVX2
    typed = weights.astype(next(TYPES[t.dtype].numpy for t in kernel.arguments if t.name == "wei"))
    packed = kernel.pack(typed).buffer
    cells = [cell for row in grid.rows for cell in row]
    wanted = [weights[tuple(map(int, cell.text.split(",")))] if cell.text else 0 for cell in cells]
    assert packed[: len(wanted)].astype(int).tolist() == wanted


class _Page(HTMLParser):
    """The identities of elements of a page, the addresses that it loads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [str(found["id"])] if found.get("id") else []
        loads = [found.get("src"), found.get("href") if tag != "a" else None]
        self.loaded += [x for x in loads if x and not x.startswith("#")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("line, target", [
    (LINE, None), ("--stag=axb --dtag=axb mb1ic64ih28oc64kh3ph1", None), (LINE, "aarch64"),
    ("mb1ic8ih6oc8kh3", "opencl"), ("mb1ic8ih14oc16kh1 -> g16mb1ic16ih14oc16kh3ph1", None),
])  # fmt: skip
def test_a_page_loads_nothing(tmp_path: Path, line: str, target: str | None) -> None:
    kernel = cs.compile(line, threads=1, target=target)
    text = kernel.explain(html=tmp_path / "k.html")
    page = _Page((tmp_path / "k.html").read_text())
    assert not page.loaded
    assert {"limits", "passes", "nest", "registers", "packing", "bytes", "assembly", "decisions"} <= set(page.ids)
    assert text.splitlines()[0] in "".join(page.texts)


def test_names_of_problems_are_escaped(tmp_path: Path) -> None:
    file = tmp_path / "b.html"
    result = CliRunner().invoke(main, ["bench", 'mb1ic4ih5oc4kh3n"a<b>&c"', "--rounds", "1", "--html", str(file)])
    assert result.exit_code == 0, result.output
    assert "a&lt;b&gt;&amp;c" in file.read_text() and "a<b>" not in file.read_text()


def test_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cs.compile("mb1ic4ih5oc4kh3", threads=1)
    with pytest.raises(cs.UsageError, match="no such directory"):
        kernel.explain(html=tmp_path / "none" / "k.html")
    with pytest.raises(cs.UsageError, match="cannot be written: Is a directory"):
        kernel.explain(html=tmp_path)
    monkeypatch.setattr(document, "_PACKAGES", ("no_such_package",))
    with pytest.raises(cs.UnsupportedError, match=r"pip install 'convsmith\[page\]'"):
        kernel.explain(html=tmp_path / "k.html")
    empty = cs.compile("mb0ic4ih5oc4kh3", threads=1)
    monkeypatch.undo()
    with pytest.raises(cs.UsageError, match="nothing is compiled"):
        empty.explain(html=tmp_path / "k.html")
