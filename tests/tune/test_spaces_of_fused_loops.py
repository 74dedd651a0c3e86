"""The space around a config with fused loops has steps, on devices and CPUs, and all of its points make kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from convsmith.cli.main import main
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.tune.search.config_space import ConfigSpace
from convsmith.tune.search.device_space import space_of

LAST = "--stag=axb --wtag=axb --dtag=axb"
TILES = ("register", "group", "step", "copies", "rows", "order", "fuse")
SPACES = {
    ("sm_90a", f"{LAST} --dt=bf16 mb2ic128ih9oc64oh9kh3ph1"): ("register", "group", "step", "copies", "order"),
    ("sm_90a", f"--dir=BWD_W {LAST} --dt=bf16 mb4ic64ih8oc64oh8kh3ph1"): ("step", "copies", "order", "parts"),
    ("sm_90a", f"{LAST} --dt=f32 mb2ic16ih6oc32oh6kh1"): (*TILES, "vectors"),
    ("sm_80", f"{LAST} --dt=bf16 mb2ic64ih8oc32oh8kh1"): TILES,
    ("sm_70", f"--dir=BWD_W {LAST} mb4ic16ih6oc32oh6kh1"): (*TILES, "vectors", "parts"),
    ("xe_hpc", f"{LAST} --dt=bf16 mb2ic64ih8oc32oh8kh1"): TILES,
    ("avx512", f"{LAST} mb2ic16ih6oc40oh6kh1"): ("tile", "order", "cache", "pack", "code", "k_step", "fuse"),
}  # fmt: skip
"""Problems by level, with the dimensions along which a config with fused loops has legal steps."""
COUNT = 4
"""Points that are compiled of each dimension."""


@pytest.fixture(autouse=True)
def _one_table() -> Iterator[None]:
    with interning():
        yield


def fused_point(of: ConfigSpace) -> Config:
    """Return the first candidate of the model with fused loops, or a legal config one step from one of the others."""
    found = next((c for c in of.seeds if c.fuse), None)
    near = (c for seed in of.seeds for c in of.neighbours(seed, "fuse"))
    return found or next(c for c in near if c.fuse and not of.refusal(c))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("level", "line"), SPACES)
def test_fused_loops_have_steps_that_make_kernels(level: str, line: str) -> None:
    problem, machine = parse_problem(line).canonical(), target(level)
    of = space_of(problem, machine, 1)
    start, counts = fused_point(of), Counter[str]()
    assert start.fuse
    for dimension in of.dimensions:
        legal = [c for c in of.neighbours(start, dimension) if of.fits(c) and not of.refusal(c)]
        counts[dimension] = len(legal)
        for config in legal[:: -(-len(legal) // COUNT) or 1]:
            assert lower(plan_for(problem, config, machine)).text and of.cycles(config) >= 0
    assert set(SPACES[level, line]) <= (+counts).keys(), counts


def test_the_command_counts_the_steps_of_fused_loops() -> None:
    """The default has fused loops; the last line is that of all dimensions."""
    line = f"{LAST} --dt=bf16 mb8ic64ih28oc64oh28kh3ph1"
    result = CliRunner().invoke(main, ["tune", "--space", line, "--target=sm_90a"])
    assert result.exit_code == 0 and "--fuse=mb+oh" in result.output and "--realise=hardware" in result.output
    assert int(result.output.splitlines()[-1].split()[1]) > 0


def test_orders_of_groups_are_those_of_the_config() -> None:
    """Groups follow each other along columns, or along rows, where a copy engine brings the operands."""
    problem = parse_problem(f"{LAST} --dt=bf16 mb8ic64ih28oc128oh28kh3ph1").canonical()
    config = Config.parse(
        "--target=sm_90a --lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:64 --reduce=kh,kw,ic --pack= "
        "--instruction=wgmma_m64n64k16_bf16 --realise=hardware --group=mb_oh_ow:64,oc:64,ic:64 --shared=src,wei"
    )
    for order in (("mb_oh_ow", "oc"), ("oc", "mb_oh_ow")):
        made = plan_for(problem, Config.parse(f"{config} --order={','.join(order)}"), target("sm_90a"))
        assert tuple(x.of for x in made.main.nest.grid) == order
