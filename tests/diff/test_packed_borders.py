"""Sources in channels first, with borders or a stride, that are packed in each call for lanes along channels."""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.ir.intern import interning
from convsmith.machine.registry import known_targets
from convsmith.machine.registry import target as known_target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import candidates, default_config

BYTES, FLOATS = "--stag=abx --dtag=abx --dt=u8:s8:u8", "--stag=abx --dtag=abx --dt=bf16"
SHIFTED = f"{BYTES} --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
PADDED = "mb1ic2048ih7oc512oh7kh1sh2ph3"


def packed_configs(line: str, target: str) -> list[Config]:
    """Return three candidates that pack the source for lanes along channels."""
    with interning():
        every = [c.config for c in candidates(parse_problem(line).canonical(), known_target(target), 1)]
    return [c for c in every if "src" in c.staged("pack") and c.lane in ("oc", "ic")][:3]


@pytest.mark.sampled(8, "line", "target")
@pytest.mark.parametrize("target", ["avx512_vnni", "avx512_bf16", "avx2", "aarch64+dotprod"])
@pytest.mark.parametrize(
    "line",
    [
        f"{SHIFTED} mb1ic24ih5oc20oh5kh1sh2ph2",
        f"{SHIFTED} mb2ic22ih6iw7oc20oh3ow2kh1kw1sh2sw5ph0pw0",
        f"{SHIFTED} g2mb1ic24ih5oc40oh5kh1sh2ph2",
        f"{SHIFTED} mb2ic24ih4oc20oh6kh1ph1",
        f"{BYTES} mb1ic17iw9oc20ow7kw1sw2pw2",
        f"{BYTES} mb1ic24id3ih4iw4oc20od5oh6ow6kd1kh1kw1pd1ph1pw1",
        f"{FLOATS} mb1ic24ih5oc20oh5kh1sh2ph2",
        f"{FLOATS} --dir=FWD_B mb2ic17ih4oc20oh6kh1ph1",
    ],
)
def test_results_are_exact(line: str, target: str) -> None:
    if "bf16" in line and target != "avx512_bf16":
        pytest.skip("the level has no products of bf16")
    configs = packed_configs(line, target)
    assert configs
    for config in configs:
        try:
            verdict = cs.compile(line, target=target, config=str(config)).verify()
        except UnsupportedError as error:
            pytest.skip(str(error))
        assert verdict.ok, f"{config}: {verdict.detail}"


def test_pixels_beyond_borders_are_not_multiplied() -> None:
    """On Zen 5 a copy with borders, of which 40 of 49 pixels are zeros, takes 124 us, the packed source 54."""
    (machine,) = (t for t in known_targets("znver5") if t.name == "avx512_vnni")
    with interning():
        config = default_config(parse_problem(f"{SHIFTED} {PADDED}").canonical(), machine)
    assert config.staged("pack") == ("src", "wei") and config.realise == "peel" and config.lane == "oc"


def test_taps_that_repeat_elements_read_a_copy() -> None:
    assert not packed_configs(f"{SHIFTED} mb1ic64ih7oc48oh7kh3ph1", "avx512_vnni")
