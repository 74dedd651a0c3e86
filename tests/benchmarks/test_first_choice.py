"""The model's first choices lose no more time to the fastest measured configs than the limits say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from convsmith.machine.micro_architectures import named

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIMITS = {
    ("intel-server", "forward f32", "avx512"): (0.051, 0.33, 6),
    ("intel-server", "forward f32", "avx2"): (0.065, 0.31, 9),
    ("intel-server", "gradients", "avx512"): (0.11, 0.44, 10),
    ("intel-server", "bf16", "avx512_amx"): (0.05, 0.71, 0),
    ("intel-server", "u8:s8:s32", "avx512_amx"): (0.04, 0.2, 0),
    ("znver4", "forward f32", "avx512"): (0.04, 0.29, 1), ("znver4", "forward f32", "avx2"): (0.042, 0.31, 1),
    ("znver4", "gradients", "avx512"): (0.131, 1.08, 7), ("znver4", "gradients", "avx2"): (0.101, 0.95, 3),
    ("znver4", "u8:s8:u8", "avx512_vnni"): (0.01, 0.06, 0),
    ("znver5", "forward f32", "avx512"): (0.054, 0.25, 8), ("znver5", "forward f32", "avx2"): (0.027, 0.24, 4),
}  # fmt: skip
"""For the problems of a kind at a level, the mean loss, the worst one, and how many first choices nobody measured."""


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("first_choice")


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted({name for name, *_ in LIMITS}))
def test_first_choices_stay_near_the_fastest_measured_configs(replay: Any, name: str) -> None:
    found = replay.summaries(replay.first_choices(replay.read_table(name), named(name)))
    for (of, *key), (mean, worst, unknown) in LIMITS.items():
        if of == name:
            x = found[tuple(key)]
            assert x.mean <= mean and x.worst <= worst and x.count - x.known <= unknown, (key, x)


def test_a_loss_is_the_time_beside_the_fastest_sure_config(replay: Any) -> None:
    samples = {
        "first": replay.Sample(1.0, 0.0, 60), "faster": replay.Sample(0.8, 0.02, 15),
        "lucky": replay.Sample(0.5, 0.1, 3), "slower": replay.Sample(1.2, 0.02, 15),
    }  # fmt: skip
    question = replay.Question("mb1ic4ih4oc4oh4kh3ph1", "avx2", samples)
    assert question.best == 0.8 and question.kind == "forward f32"
    assert [question.loss(x) for x in ("faster", "first", "slower", "unmeasured")] == [1.0, 1.25, 1.2 / 0.8, None]
    noise = replay.Question("", "", {"first": samples["first"], "other": replay.Sample(0.98, 0.1, 5)})
    assert noise.best == 1.0 and noise.loss("other") == 1.0
    assert replay.Question("--dir=BWD_W mb1", "", {}).kind == "gradients"
    assert replay.Question("--dt=u8:s8:u8 mb1", "", {}).kind == "u8:s8:u8"


def test_a_table_holds_what_an_export_gives_but_disturbed_rounds(
    replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "--stag=acdb --dtag=acdb mb1ic16ih8oc16oh8kh1ph0"
    row = {"problem": line, "target": "avx2", "threads": 1, "status": "ok", "rounds": 5, "date": "2026-11-23"}
    rows = [
        {**row, "config": "--target=avx2 --lane=oc", "ratio": 1.0, "spread": 0.0},
        {**row, "config": "--target=avx2 --lane=ow", "ratio": 0.5, "spread": 0.9},
        {**row, "config": "--target=avx2 --lane=ic", "ratio": 1.5, "spread": 0.1},
        {**row, "config": "--target=avx2 --lane=mb", "ratio": 1.5, "spread": 0.1, "status": "refused"},
        {**row, "config": "--target=avx2 --lane=oh", "ratio": 1.5, "spread": 0.1, "threads": 2},
    ]
    (tmp_path / "export.json").write_text(json.dumps({"schema": 1, "machines": {"x": "a CPU"}, "rows": rows}))
    monkeypatch.setattr(replay, "FOLDER", tmp_path / "measurements")
    replay.main(["znver4", "--table", str(tmp_path / "export.json")])
    (question,) = replay.read_table("znver4").questions
    assert (question.line, question.level) == (line, "avx2")
    assert set(question.samples) == {"--target=avx2 --lane=oc", "--target=avx2 --lane=ic"}
