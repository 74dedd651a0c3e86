"""`--config` with some decisions: every command that takes it chooses the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import run

import convsmith as cs
from convsmith.exporter.library import kernels_for

LINE = "mb1ic8ih5oc8kh3ph1"


@pytest.mark.parametrize(("config", "more", "heading"), [
    ("--realise=mask --threads=2", (), "2 threads, "),
    ("--realise=mask", ("--threads", "3"), "3 threads, "),
    ("--realise=mask --threads=2", ("--threads", "1"), "1 thread, "),
    ("--target=generic --lane=oc --threads=2", ("--threads", "1"), "1 thread, "),
])  # fmt: skip
def test_the_heading_names_the_threads_that_run(config: str, more: tuple[str, ...], heading: str) -> None:
    result = run("verify", LINE, "--config", config, *more)
    assert result.exit_code == 0 and result.output.startswith(heading)


@pytest.mark.parametrize("verb", ["explain", "show"])
def test_a_text_names_the_target(verb: str) -> None:
    result = run(verb, LINE, "--threads", "1", "--config", "--target=generic --realise=mask")
    assert result.exit_code == 0
    if verb == "explain":
        (config,) = (line for line in result.output.splitlines() if line.startswith("config "))
        assert "--target=generic " in config and config.endswith("--realise=mask")


def test_a_bench_row_has_the_values() -> None:
    config = "--realise=mask --pieces=3"
    result = run("bench", LINE, "--threads", "1", "--rounds", "1", "--config", config, "--json", "-")
    (row,) = json.loads(result.stdout)["rows"]
    made = cs.Config.parse(row["config"])
    assert (made.realise, made.pieces) == ("mask", 3)


def test_a_library_for_another_machine_has_the_values(tmp_path: Path) -> None:
    (made,) = kernels_for(LINE, "aarch64-linux-gnu", None, "--realise=mask --threads=2")
    assert (made.config.realise, made.config.threads, made.config.target) == ("mask", 2, made.target.name)
    with pytest.raises(cs.UsageError, match="config is for target avx2"):
        kernels_for(LINE, "aarch64-linux-gnu", None, "--realise=mask --target=avx2")
    result = run("export", LINE, "--threads", "1", "--config", "--realise=mask", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0
