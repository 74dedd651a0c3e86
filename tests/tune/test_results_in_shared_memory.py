"""Results leave through shared memory where the model expects that stores beside products save time."""

from __future__ import annotations

import pytest

from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.tune.devices import stored_results
from convsmith.tune.devices.device import device_config

LAST = "--stag=axb --wtag=axb --dtag=axb"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("line", "is_staged"),
    [
        pytest.param(f"{LAST} --dt=bf16 mb32ic64ih56oc256oh56kh1ph0", True, id="six tiles of a unit"),
        pytest.param(f"{LAST} --dt=f16 mb64ic128ih28oc128oh28kh3ph1", True, id="several tiles of many steps"),
        pytest.param(f"--dir=BWD_D {LAST} --dt=bf16 mb64ic128ih28oc128oh28kh3ph1", True, id="a gradient"),
        pytest.param(f"{LAST} --dt=bf16 mb32ic256ih14oc256oh14kh3ph1", False, id="a tile of a unit"),
        pytest.param(f"{LAST} --dt=bf16:bf16:f32 mb32ic128ih28oc128oh28kh3ph1", False, id="results of 32 bits"),
        pytest.param(f"{LAST} --dt=s8:s8:s8 mb32ic128ih28oc128oh28kh3ph1", False, id="bytes"),
        pytest.param(f"{LAST} --dt=bf16 mb32ic128ih28oc124oh28kh3ph1", False, id="rows that no map stores"),
        pytest.param(f"--dir=BWD_D {LAST} --dt=bf16 mb32ic256ih56oc256oh28kh3ph1sh2", False, id="phases"),
        pytest.param(f"{LAST} --dt=bf16:bf16:f32 mb32ic256ih56oc256oh56kh3ph1", False, id="slots take the room"),
    ],
)
def test_results_are_staged_where_that_saves_time(line: str, is_staged: bool) -> None:
    problem = parse_problem(line)
    config = device_config(problem, target("sm_90a"))
    assert config.realise == "hardware"
    assert (len(config.staged("shared")) == 3) == is_staged


def test_a_result_leaves_in_parts_beside_the_same_slots() -> None:
    """A tile of 128 x 256 with four slots has room for one half of its result: the products and copies of a step are
    those of the tile that an H200 has timed.
    """
    problem, machine = parse_problem(f"{LAST} --dt=bf16 mb32ic256ih56oc256oh56kh3ph1"), target("sm_90a")
    config = device_config(problem, machine)
    assert (config.store_parts, config.buffers, config.staged("shared")) == (2, 4, ("src", "wei", "dst"))
    assert dict(config.tiles_at("group")) == {"mb_oh_ow": 128, "oc": 256, "ic": 64}


def test_parts_are_taken_where_the_gain_is_beyond_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, machine = parse_problem(f"{LAST} --dt=bf16 mb32ic256ih56oc256oh56kh3ph1"), target("sm_90a")
    monkeypatch.setattr(stored_results, "IN_PARTS", 0.9)
    config = device_config(problem, machine)
    assert config.store_parts == 1 and config.staged("shared") == ("src", "wei")
