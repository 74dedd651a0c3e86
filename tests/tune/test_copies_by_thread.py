"""Threads copy adjacent rows, or whole images, of a source once, not the rows of each iteration for all its taps."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import host_targets
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.copied_parts import rows_read, stores_taken

LEVEL = next(level for level in LEVELS if level.name == "avx512_bf16")
ZEN5 = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(LEVEL)
FIRST = "--dt=bf16 --stag=abx --dtag=abx"


@pytest.mark.parametrize(
    ("line", "threads", "tiles"),
    [
        ("mb1ic128ih17iw17oc128oh17ow17kh7kw1ph3pw0", 2, {"oh": 9}),
        ("--deconv mb1ic192ih17iw17oc128oh17ow17kh7kw1ph3pw0", 2, {"oh": 9}),
        ("mb1ic64ih56oc128oh28kh3sh2ph1", 4, {"oh": 7}),
        ("--dir=BWD_D mb1ic192ih17iw17oc128oh17ow17kh7kw1ph3pw0", 2, {"ih": 9}),
        ("mb8ic160ih17iw17oc160oh17ow17kh7kw1ph3pw0", 2, {"mb": 1}),
        ("mb3ic160ih17iw17oc160oh17ow17kh7kw1ph3pw0", 2, {"mb": 1, "oh": 9}),  # two images would be the largest part
        ("mb1ic128ih17iw17oc128oh17ow17kh7kw1ph3pw0", 1, {}),
        ("mb1ic128ih17iw17oc128oh17ow17kh1kw7ph0pw3", 2, {"oh": 9}),  # channels of the result share the rows
        ("mb1ic128ih17iw17oc16oh17ow17kh1kw7ph0pw3", 2, {}),  # nothing shares them
        ("g4mb1ic128ih17iw17oc128oh17ow17kh7kw1ph3pw0", 2, {}),  # each group has a copy of its own
        ("mb1ic512ih7oc512oh7kh3ph1", 2, {"oh": 4}),  # cores exchange lines of the result while they multiply
        ("mb1ic256ih7oc384oh7kh1ph0", 2, {}),  # 256 terms of a sum take less time than the lines of its rows
    ],
)
def test_each_thread_copies_its_own_rows(line: str, threads: int, tiles: dict[str, int]) -> None:
    config = default_config(parse_problem(f"{FIRST} {line}"), ZEN5, threads)
    assert config.realise == "pad_copy" and dict(config.tiles_at("cache")) == tiles


@pytest.mark.skipif(LEVEL.name not in {t.name for t in host_targets()}, reason="needs bf16 instructions")
@pytest.mark.parametrize("tiles", ["mb:1", "mb:1,oh:2", "oh:3", "mb:2"])
def test_the_results_are_exact(tiles: str) -> None:
    config = f"--realise=pad_copy --cache={tiles}"
    kernel = cs.compile(f"{FIRST} mb3ic18ih7oc20oh7kh3ph1", target=LEVEL.name, threads=2, config=config)
    verdict = kernel.verify()
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(
    ("tiles", "taps", "rows"), [("mb:1", "", 9), ("mb:1", "kh", 7), ("mb:1,oh:2", "", 4), ("", "kh", 3)]
)
def test_a_copy_holds_the_image_or_the_rows_of_a_part(tiles: str, taps: str, rows: int) -> None:
    config = f"--realise=pad_copy --restrict={taps} --register=ow:7,oc:16 --order=mb,oc,oh,ow --k_step=ic:2"
    config += f" --instruction=vdpbf16ps_512 --cache={tiles}".removesuffix(" --cache=")
    kernel = cs.compile(f"{FIRST} mb3ic32ih7oc32oh7kh3ph1", target=LEVEL.name, threads=2, config=config)
    assert f"bf16[1, 32, {rows}, " in kernel.ir("stage")


@pytest.mark.parametrize(
    ("line", "loop", "size", "rows"),
    [
        ("mb1ic8ih17oc8oh17kh3ph1", "oh", 1, 3),
        ("mb1ic8ih17oc8oh17kh3ph1", "oh", 17, 19),
        ("--deconv mb1ic8ih17oc8oh17kh3ph1", "oh", 4, 6),
        ("mb1ic8ih40oc8oh40kh3ph2dh1", "oh", 2, 6),
        ("mb1ic8ih33oc8oh17kh3ph1sh2", "oh", 2, 5),
        ("mb1ic8ih64oc8oh16kh3ph0sh4", "oh", 2, 7),  # a row between the two windows is not read, but copied
    ],
)
def test_rows_that_iterations_read(line: str, loop: str, size: int, rows: int) -> None:
    assert rows_read(statement(parse_problem(line), LEVEL), loop, size) == rows


@pytest.mark.parametrize(
    ("layout", "size", "tile", "stores"),
    [
        ("abx", 4, 1, 20 * 4),  # four rows of 14 bytes are within a line of the border, in 20 planes
        ("abx", 6, 1, 20 * 5 * 5 / 6),
        ("abx", 4, 2, 20 * 2),
        ("axb", 4, 1, 1 / 4),  # a row of 280 bytes fills lines
    ],
)
def test_stores_whose_lines_another_thread_takes(layout: str, size: int, tile: int, stores: float) -> None:
    st = statement(parse_problem(f"--dt=bf16 --stag={layout} --dtag={layout} mb1ic8ih7oc20oh7kh1"), LEVEL)
    assert stores_taken(st, "oh", size, tile, 64) == pytest.approx(stores)
