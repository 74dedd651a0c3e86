"""The gate of speed measures the kernels that two revisions make differently, and fails when one is slower."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LINES = ("mb1ic4ih4oc4oh4kh3ph1", "mb1ic8ih4oc4oh4kh3ph1", "mb1ic4iw4oc2ow4kw1pw0")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gate")


def _tree(folder: Path, codes: dict[str, str], kind: str = "fixed") -> Path:
    rows = [{"kind": kind, "line": k, "target": "generic", "threads": 1, "code": v} for k, v in codes.items()]
    path = folder / "tests/replay/kernels.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"llvm": "", "rows": rows}))
    return folder


def test_kernels_that_both_lists_have_with_different_code_are_measured(gate: Any, tmp_path: Path) -> None:
    old = _tree(tmp_path / "a", {LINES[0]: "1", LINES[1]: "1"})
    new = _tree(tmp_path / "b", {LINES[0]: "1", LINES[1]: "2", LINES[2]: "3"})
    assert [s.line for s in gate.listed(old, new, equal=False)] == [LINES[1]]
    assert [s.line for s in gate.listed(old, new, equal=True)] == [*LINES[:2]]
    micro = _tree(tmp_path / "c", {LINES[0]: "2"}, "micro")
    assert [*gate.listed(micro, micro, equal=True)] == []


@pytest.mark.parametrize(
    ("ratios", "status", "said"),
    [((1.0, 1.1, 0.96), 0, "passed"), ((1.0, 1.1, 0.94), 1, "FAILED"), ((0.98, 0.97, 1.0), 1, "FAILED"), ((), 0, "no")],
)
def test_a_slower_mean_or_kernel_fails(
    gate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ratios: tuple[float, ...], status: int, said: str,
) -> None:  # fmt: skip
    tree = _tree(tmp_path / "a", dict.fromkeys(LINES, ""))
    speeds = {gate.Subject(line, "generic", 1): ratio for line, ratio in zip(LINES, ratios)}
    monkeypatch.setattr(gate, "compare", lambda subjects, trees, cache: speeds)
    assert gate.main([str(tree), str(tree), "--all", "--level", "generic"]) == status
    assert said in capsys.readouterr().out


def test_two_revisions_run_in_turns(gate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each tree's processes find their own sources and cache. One that seems slower is measured again."""
    old, new = tmp_path / "old", tmp_path / "new"
    seconds = {LINES[0]: iter([1.0, 2.0, 2.0, 1.0] * 9), LINES[1]: iter([1.0, 2.0, 2.0, 1.0, *[1.0] * 10])}
    ran = []

    def bench(lines: list[str], *words: str, **setting: str) -> dict[str, Any]:
        ran.append((Path(setting["PYTHONPATH"]), setting["CONVSMITH_CACHE"], len(lines)))
        return {"rows": [{"seconds": {"low": next(seconds[line])}} for line in lines]}

    monkeypatch.setattr(gate, "bench", bench)
    first, second = (gate.Subject(line, "generic", 1) for line in LINES[:2])
    found = gate.compare([second, first], [old, new], tmp_path)
    assert [tree for tree, _, _ in ran[:4]] == [old, new, new, old]
    assert len({cache for _, cache, _ in ran}) == 2
    assert found[second] == 1.0 and found[first] == 0.5
    assert len(ran) == 2 * (gate.TURNS + gate.MORE_TURNS)


_FAKE = """
import json, pathlib, sys
rows = [{"from": __file__} for _ in sys.stdin]
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"rows": rows}))
"""


def test_a_process_measures_the_sources_that_it_is_given(
    gate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sources in the working directory do not come first."""
    monkeypatch.chdir(BENCHMARKS.parent)
    program = tmp_path / "convsmith/cli/main.py"
    program.parent.mkdir(parents=True)
    program.write_text(_FAKE)
    for package in (program.parent, program.parents[1]):
        (package / "__init__.py").touch()
    assert gate.bench([LINES[0]], PYTHONPATH=str(tmp_path))["rows"] == [{"from": str(program)}]


def test_a_revision_is_written_to_a_folder(gate: Any, tmp_path: Path) -> None:
    assert gate.sources(str(tmp_path), tmp_path / "x") == tmp_path
    with pytest.raises(SystemExit, match="no folder and no revision"):
        gate.sources("no-such-revision", tmp_path / "x")
