"""Products that copy blocks of the rows of a large source: which of them do, and that their results are exact."""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, known_targets
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config
from convsmith.tune.plain_weights import config_of_plain_weights

LEVELS = {t.name: t for t in known_targets()}
LINES = ["2059x1030:1030x530", "--bia-dt=f32 --bia-mask=2 --attr-post-ops=relu 2059x1030:1030x530"]
HERE = [t.name for t in host_targets() if t.name in ("avx2", "generic")]
OTHERS = [
    "--matmul 1024x1024:1024x1024",  # the tables of addresses have all pages of the source
    "--matmul 2100x1024:1024x256",  # few tiles of columns read it
    "--matmul --dt=bf16 4200x1024:1024x1024",  # it is converted
    "--matmul 2x2100x1024:2x1024x1024",
    "--stag=axb --dtag=axb mb16ic256ih28oc512kh3ph1",  # pixels are read for several taps
    "--stag=axb --dtag=axb --dir=BWD_W mb16ic512ih28oc512kh1",
]
"""Products and convolutions whose first choice at 256 bits reads the source in place."""


def _config(line: str, machine: Machine, threads: int = 1) -> Config:
    with interning():
        return default_config(parse_problem(line).canonical(), machine, threads=threads)


@pytest.mark.parametrize("threads", (1, 2))
def test_rows_of_a_large_source_are_copied(threads: int) -> None:
    machine = LEVELS["avx2"]
    config = _config("--matmul 2100x1024:1024x1024", machine, threads)
    *own, (terms, depth), (row, rows) = config.tiles_at("cache")
    assert config.staged_at("pack_at") == (("src", f"m:{rows}"),) and not config.staged("fetch")
    assert (terms, row) == ("k", "m") and depth * config.size("n") * 4 <= machine.l1.bytes
    assert rows * depth * 4 <= machine.l2.bytes // 2 and rows % config.size("m") == 0
    assert depth * 4 % machine.l1.line == 0
    if threads == 1:
        assert not own
    else:
        ((loop, part),) = own
        assert loop == "m" and part % rows == 0 and 1050 <= part < 1100


def test_terms_that_the_first_level_cache_holds_stay_together() -> None:
    config = _config("--matmul 4200x512:512x1024", LEVELS["avx2"])
    assert [n for n, _ in config.tiles_at("cache")] == ["m"]


def test_pixels_of_one_tap_are_copied() -> None:
    config = _config("--stag=axb --dtag=axb mb16ic512ih28oc512kh1", LEVELS["avx2"])
    ((operand, place),) = config.staged_at("pack_at")
    assert operand == "src" and place.partition(":")[0] in config.order


@pytest.mark.parametrize("line", OTHERS)
def test_other_sources_are_read_in_place(line: str) -> None:
    assert "src" not in dict(_config(line, LEVELS["avx2"]).staged_at("pack_at"))


def test_arithmetic_of_wide_tiles_hides_the_lines() -> None:
    assert not _config("--matmul 2100x1024:1024x2048", LEVELS["avx512"]).staged_at("pack_at")


@pytest.mark.parametrize("threads", (1, 3))
def test_plain_weights_and_rows_are_copied_together(threads: int) -> None:
    """A product of fewer rows copies blocks of both sides if weights come anew in each call."""
    machine, problem = LEVELS["avx2"], parse_problem("--matmul 512x1024:1024x1024").canonical()
    with interning():
        config = default_config(problem, machine, threads=threads)
        other = config_of_plain_weights(problem, config, machine)
    assert other is not None
    tiles = other.tiles_at("cache")
    assert [n for n, _ in tiles] == ["n"] * (threads > 1) + ["k", "m"]
    assert other.staged_at("pack_at") == (("wei", "k"), ("src", f"m:{tiles[-1][1]}"))
    apart = tiles[-2][1] * other.size("n") * 4
    assert machine.l2.lines_kept(apart, 0) >= 1024 // threads // other.size("n")  # panels of the copy share few sets


@pytest.mark.sampled(4, "threads")
@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("line", LINES)
def test_products_are_exact(line: str, level: str, threads: int) -> None:
    k = cs.compile(f"--matmul {line}", target=level, threads=threads)
    assert ("src" in dict(k.config.staged_at("pack_at"))) or level != "avx2"
    rng = np.random.default_rng(0)
    a, b, bias = (rng.integers(-4, 5, size).astype(np.float32) for size in ((2059, 1030), (1030, 530), (1, 530)))
    wanted = a @ b
    if "relu" in line:
        wanted = np.maximum(wanted + bias, 0)
    arrays = {"src": a, "wei": b, "dst": np.empty_like(wanted), **({"bia": bias} if "relu" in line else {})}
    for _ in range(2):
        arrays["dst"][:] = np.nan
        k.run(**arrays)
        np.testing.assert_array_equal(arrays["dst"], wanted)
