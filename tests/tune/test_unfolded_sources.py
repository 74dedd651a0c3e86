"""Copies of strided sources, so that tiles of pixels run on from row to row: which kernels make them, and their values.
"""

from __future__ import annotations

import numpy as np
import pytest

import convsmith as cs
from convsmith.emulate.wasm_memory import placed_kernel
from convsmith.ir.intern import interning
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, known_targets, target
from convsmith.problem.data import random_arrays
from convsmith.problem.lines import parse_problem
from convsmith.problem.reference import reference
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config

LAST = "--stag=axb --dtag=axb"
UNFOLDED = [f"{LAST} mb1ic1024ih14oc2048oh7kh1sh2ph0", f"{LAST} mb1ic512ih28oc1024oh14kh1sh2ph0"]
OTHERS = [
    f"{LAST} mb1ic256ih12oc512oh6kh1sh2ph0",  # a tile has all pixels of a row
    f"{LAST} mb1ic512ih7oc1024oh7kh1ph0",  # rows follow each other
    f"{LAST} mb1ic64ih14oc64oh7kh3sh2ph1",  # taps read the same pixels
    f"{LAST} g4mb1ic1024ih14oc2048oh7kh1sh2ph0",
    "--stag=abx --dtag=abx mb1ic1024ih14oc2048oh7kh1sh2ph0",
    f"--dir=BWD_D {LAST} mb1ic1024ih14oc2048oh7kh1sh2ph0",
]


def _config(line: str, level: Machine) -> Config:
    with interning():
        return default_config(parse_problem(line).canonical(), level)


@pytest.mark.parametrize("line", UNFOLDED)
def test_short_rows_are_copied_where_few_sums_would_wait_for_each_other(line: str) -> None:
    config = _config(line, target("wasm32+relaxed"))
    assert config.staged("unfold") == ("src",) and {*config.staged("pack")} == {"src", "wei"}
    assert ("oh", "ow") in config.fuse and config.size("oh_ow") == 6


@pytest.mark.parametrize("line", OTHERS)
def test_other_sources_stay_where_they_are(line: str) -> None:
    assert not _config(line, target("wasm32+relaxed")).staged("unfold")


def test_no_copy_is_made_where_all_tiles_of_a_row_hide_the_latency() -> None:
    """Tiles of seven pixels by 48 channels leave no pixel, and tiles of nine leave five."""
    level = next(x for x in known_targets("znver5") if x.name == "avx512")
    assert not _config(UNFOLDED[1], level).staged("unfold")


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("line", ["mb2ic5ih7oc9oh4kh1sh2ph0", "mb1ic3ih5iw9oc8oh2ow5kh1kw1sh3sw2ph0pw0"])
def test_copied_pixels_have_the_values_of_the_reference(line: str, threads: int) -> None:
    problem, level = parse_problem(f"{LAST} {line}"), host_targets()[0]
    config = (
        f"--target={level.name} --lane=oc --fuse=oh+ow --register=oh_ow:3,oc:{level.width(dtype('f32'))} "
        f"--pack=wei,src --unfold=src --threads={threads}"
    )
    arrays = random_arrays(problem)
    kernel = cs.compile(problem, config=config, threads=threads)
    np.testing.assert_array_equal(kernel.run(**arrays)["dst"], reference(problem, arrays)["dst"])


def test_each_call_of_a_placed_kernel_copies_the_source_and_none_packs_weights() -> None:
    problem = parse_problem(f"{LAST} mb1ic4ih5oc8oh3kh1sh2ph0")
    config = (
        "--target=wasm32+relaxed --lane=oc --fuse=oh+ow --register=oh_ow:3,oc:8 --order=mb,oc,oh_ow --reduce=kh,kw,ic "
        "--pack=wei,src --unfold=src"
    )
    artifact = cs.compile(problem, target="wasm32+relaxed", config=config, threads=1).artifact
    assert artifact is not None
    kernel = placed_kernel(artifact, random_arrays(problem))
    packs, steps = ([name for name, *_ in calls] for calls in (kernel.packs, kernel.steps))
    assert [name.rpartition("_pack_")[2] for name in packs] == ["wei_chunk"]
    assert len(steps) == 3 and all("_pack_src" in name for name in steps[:2])
