"""Stages that are computed row by row pack their operands at loops that their nests still have."""

from __future__ import annotations

import pytest

from convsmith.ir.intern import interning
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES, MicroArchitecture
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.tune.chains import stages_config
from convsmith.tune.fused import with_unfused_pixels

LAST, FIRST = "--stag=axb --dtag=axb", "--stag=abx --dtag=abx"
CHAINS = (
    f"{FIRST} mb2ic192ih20oc1152oh20kh1ph0 -> {FIRST} g1152mb2ic1152ih20oc1152oh20kh3ph1",
    f"{FIRST} g72mb1ic72id8ih56iw56oc72od8oh56ow56kd1kh3kw3pd0ph1pw1 -> "
    f"{FIRST} mb1ic72id8ih56iw56oc72od8oh56ow56kd1kh1kw1pd0ph0pw0",
    f"{LAST} mb1ic96ih40oc192oh40kh1ph0 -> {LAST} g192mb1ic192ih40oc192oh40kh3ph1",
)  # fmt: skip
"""Chains whose pointwise stage, alone, has lanes along fused pixels and packs its source at them."""


def test_a_place_follows_its_loop() -> None:
    config = Config.parse(
        "--target=avx512 --lane=oh_ow --fuse=oh+ow --register=oc:4,oh_ow:80 --order=mb,oh_ow,oc --reduce=kh,kw,ic "
        "--pack_at=src+oh_ow"
    )
    assert with_unfused_pixels(config).staged_at("pack_at") == (("src", "ow"),)
    whole = config.changed(pack_at=(("wei", "oc"),))
    assert with_unfused_pixels(whole).staged_at("pack_at") == (("wei", "oc"),)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("row", MICRO_ARCHITECTURES, ids=lambda row: row.name)
@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_default_configs_of_chains_are_legal(level: str, row: MicroArchitecture) -> None:
    machine = row.of(target(level))
    for line in CHAINS:
        problem = parse_problem(line).canonical()
        with interning():
            assert plan_for(problem, stages_config(problem, machine, 1), machine).pipeline
