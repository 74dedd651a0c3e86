from __future__ import annotations

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import convsmith.cli.bench as bench_module
from convsmith.cli.distribution import distribution, draw
from convsmith.cli.main import main
from convsmith.measure.timing import Measurement, PeerTime, Spread

FEW = ("--suite", "cliffs", "--sample", "4", "--seed", "3", "--rounds", "1", "--threads", "1", "--target", "generic")

WINOGRAD = "--target=generic --lane=oc --fuse=th+tw --register=oc:4,th_tw:2 --pack=wei_w --winograd=oh:4,ow:4"


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words])


def test_the_distribution_of_a_suite(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    picture = tmp_path / "suite.png"
    result = run(*FEW, "--vs", "torch", "--png", str(picture))
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    again = [n for n, line in enumerate(lines) if line.startswith("measured again")]
    assert sum("  yes  " in line for line in lines[: again[0] if again else None]) == 4  # each is verified
    assert "time of torch / ours" in lines and "time at the roofline / ours" in lines
    assert next(line for line in lines if line.startswith("all ")).split()[1].isdigit()
    worst = lines[lines.index("the worst beside torch, and what holds them back") + 1 :]
    ratios = [float(line.split()[0]) for line in worst[::3]]
    assert ratios and ratios == sorted(ratios)
    assert all("--target=generic --lane=" in line for line in worst[1::3])
    assert all(line.strip().startswith("bound by ") for line in worst[2::3])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_kernels_of_engines_have_no_roofline(tmp_path: Path) -> None:
    """This machine's ceilings are not those of WebAssembly."""
    row: Any = {
        "problem": "mb1ic8ih5oc8kh3ph1", "config": "--target=wasm32 --lane=oc", "seconds": {"median": 1e-3},
        "libraries": {"onnxruntime-web": {"speedup": {"median": 0.5}}},
    }  # fmt: skip
    lines = [*distribution([row], ["onnxruntime-web"])]
    assert lines[-3:] == ["the worst beside onnxruntime-web", " 0.50  mb1ic8ih5oc8oh5kh3ph1", f"      {row['config']}"]
    assert "time of onnxruntime-web / ours" in lines and "time at the roofline / ours" not in lines
    assert [*distribution([{**row, "libraries": {}}], [])] == []
    draw([row], ["onnxruntime-web"], str(tmp_path / "ratios.png"))
    assert (tmp_path / "ratios.png").read_bytes().startswith(b"\x89PNG")


def test_one_slow_problem_of_many_is_no_share_of_none() -> None:
    row = {
        "problem": "mb1ic8ih5oc8kh3ph1", "config": "--target=wasm32 --lane=oc", "seconds": {"median": 1e-3},
        "libraries": {"onnxruntime-web": {"speedup": {"median": 2.0}}},
    }  # fmt: skip
    slow = {**row, "libraries": {"onnxruntime-web": {"speedup": {"median": 0.5}}}}
    (line,) = [x for x in distribution([row] * 499 + [slow], ["onnxruntime-web"]) if x.startswith("FWD_D")]
    assert line.split()[-5:] == ["500", "1.99", "99.8%", "0.2%", "0.50"]


def test_without_libraries_the_roofline_is_what_is_compared(tmp_path: Path) -> None:
    result = run(*FEW)
    assert result.exit_code == 0 and "the worst beside the roofline" in result.output


@pytest.mark.sampled(5)
@pytest.mark.parametrize("space", ["dynamic", "chains", "epilogues", "int8", "f32-2"])
def test_spaces_decide_how_kernels_run(space: str, tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    few = ("--suite", "vgg16", "--space", space, "--sample", "1", "--rounds", "1", "--target", "generic")
    result = run(*few, "--json", str(data))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(data.read_text())["rows"]
    assert row["verified"] and any(x in row["config"] for x in ("indirection", "mask")) == (space == "dynamic")
    assert ("--threads=2" in row["config"]) == (space == "f32-2")


def test_a_row_that_seems_slow_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    asked, measure = [], bench_module.measure

    def slower(call: Any, flops: float, peak: Any, peers: Any, rounds: int, threads: int) -> Measurement:
        asked.append(rounds)
        found = measure(call, flops, peak, peers, rounds, threads)
        slow = {name: PeerTime(peer.seconds, Spread(0.5, 0.5, 0.5)) for name, peer in found.peers.items()}
        return replace(found, peers=slow)

    monkeypatch.setattr(bench_module, "measure", slower)
    result = run("--suite", "vgg16", "--space", "f32", "--sample", "2", "--rounds", "1", "--vs", "torch", "--json", "-")
    assert result.exit_code == 0 and "measured again" in result.stderr
    assert asked == [1, 7, 1, 7, 1, 7, 1, 7]  # each in turn, and both once more
    rows = json.loads(result.stdout)["rows"]
    assert len(rows) == 2 and len({row["problem"] for row in rows}) == 2
    asked.clear()
    assert run("mb1ic16ih8oc16kh1", "--rounds", "1", "--vs", "torch").exit_code == 0
    assert asked == [1]


def test_a_run_adds_to_the_rows_of_an_earlier_one(tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    kept = ("--json", str(data), "--resume")
    first = run(*FEW, "--budget", "0", *kept)
    assert first.exit_code == 0 and "the budget is spent: 0 of 4 measured" in first.stderr
    assert run(*FEW, *kept).exit_code == 0
    four = json.loads(data.read_text())
    assert four["complete"] and len(four["rows"]) == 4
    other = run(*FEW[:4], "--seed", "4", *FEW[6:], "--sample", "1", *kept)
    five = json.loads(data.read_text())
    assert five["rows"][:4] == four["rows"] and len(five["rows"]) == 5
    table = other.stdout[other.stdout.index("time at the roofline") :]
    assert next(int(line.split()[1]) for line in table.splitlines() if line.startswith("all ")) == 5
    for change in ("rounds", "sources"):
        data.write_text(json.dumps(five | {change: "other"}))
        refused = run(*FEW, *kept)
        assert refused.exit_code == 2 and f"--resume: the {change} of {data}, 'other', differ" in refused.stderr
    data.write_text("[")
    refused = run(*FEW, *kept)
    assert refused.exit_code == 2 and f"--json={data} holds no rows to add to" in refused.stderr


@pytest.mark.parametrize(
    "words,text",
    [
        ((*FEW, "--resume"), "--resume adds to the rows of a suite: legal with --suite=NAME and --json=FILE"),
        ((), "legal is one of a problem, a list of problems, a model, --suite=NAME and --torch=MODULE:FUNCTION"),
        (("vgg16", "--suite", "cliffs"), "legal is one of a problem"),
        (("--suite", "cliff"), "unknown suite 'cliff': legal are resnet50,"),
        (("--suite", "cliffs", "--dir", "BWD_D"), "sets every option of its problems: legal is no --dir"),
        (("--suite", "cliffs", "--space", "f23"), "unknown space 'f23': legal are every, f32,"),
        (("vgg16", "--space", "f32"), "--space=f32 is a space of the problems of a suite: legal with --suite"),
        ((*FEW, "--png", "nowhere/x.png"), "--png=nowhere/x.png: there is no such directory"),
    ],
)
def test_bad_input(words: tuple[str, ...], text: str) -> None:
    result = run(*words)
    assert result.exit_code == 2 and text in result.output


def test_a_picture_without_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return imported(name, *rest, **named)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    result = run(*FEW, "--png", str(tmp_path / "x.png"))
    assert result.exit_code == 2 and "pip install 'convsmith[plots]' brings it" in result.output


def test_a_library_is_timed_beside_a_kernel_that_transforms() -> None:
    """The results of both differ on integers by the rounding of the transforms."""
    pytest.importorskip("torch")
    line = "--stag=axb --dtag=axb mb1ic16ih14oc16kh3ph1"
    result = run(line, "--config", WINOGRAD, "--vs", "torch", "--rounds", "1")
    assert result.exit_code == 0 and "torch cannot do" not in result.output
    row = next(text for text in result.stdout.splitlines() if text.startswith("mb1ic16"))
    assert float(row.split()[-1]) > 0
