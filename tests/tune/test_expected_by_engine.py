"""The time that the model expects of kernels whose operands a copy engine brings, as a part of the peak."""

from __future__ import annotations

from math import prod

import pytest

from convsmith.ir.intern import one_table
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_config
from convsmith.tune.devices.device_parts import expected_by_engine, expected_lines

LAST = "--stag=axb --wtag=axb --dtag=axb --dt=bf16"
LAYERS = {
    "3x3, 256 channels, 56": "mb32ic256ih56oc256oh56kh3ph1", "3x3, 128 channels, 28": "mb32ic128ih28oc128oh28kh3ph1",
    "3x3, 256 channels, 14": "mb32ic256ih14oc256oh14kh3ph1", "3x3, 512 channels, 7": "mb32ic512ih7oc512oh7kh3ph1",
    "3x3, 64 channels, 56": "mb32ic64ih56oc64oh56kh3ph1", "1x1, 64 to 256 channels, 56": "mb32ic64ih56oc256oh56kh1",
    "1x1, 256 to 1024 channels, 14": "mb32ic256ih14oc1024oh14kh1",
}  # fmt: skip
"""Layers that are bound by different limits: products, shared memory, idle units, memory, results."""
MEAN = 0.52
"""The least mean of the parts of the peak."""


def made(line: str, words: str = "", direction: str = "") -> Plan:
    """Return the plan of a layer, by default with the default config; call it where expressions are interned."""
    problem, machine = parse_problem(f"{direction} {LAST} {line}"), target("sm_90a")
    config = Config.parse(f"--target=sm_90a --pack= {words}") if words else device_config(problem, machine)
    return plan_for(problem, config, machine)


def expected(line: str, words: str = "") -> tuple[float, float]:
    """Return the cycles that the model expects, and the part of the peak."""
    with one_table():
        found = expected_by_engine(made(line, words))
    assert found is not None
    return found


def test_default_kernels_take_their_part_of_the_peak() -> None:
    shares = [expected(line)[1] for line in LAYERS.values()]
    assert max(shares) < 1 and sum(shares) / len(shares) >= MEAN


def test_groups_of_warps_are_as_many_as_fill_the_units() -> None:
    """The 25,088 pixels of 28 x 28 are 131 tiles of 192 rows for 132 units, and 196 of 128 rows."""
    with one_table():
        plan = made(LAYERS["3x3, 128 channels, 28"])
    assert plan.decided.group_size("mb_oh_ow") == 3 * 64
    assert prod(x.extent for x in plan.main.nest.grid) == 131


def test_untimed_numbers_of_groups_of_warps_gain_clearly_with_all_other_decisions() -> None:
    """The tile of 192 x 256 alone is expected to be quicker, but its result has no room in shared memory."""
    with one_table():
        plan = made("mb32ic1024ih14oc512oh14kh1", direction="--dir=BWD_D")
    assert plan.decided.group_size("mb_ih_iw") != 3 * 64 and "diff_src" in plan.decided.staged("shared")


def test_words_change_what_is_expected() -> None:
    """Fewer slots hide less of the latency of copies; a cluster reads rows once for all of its groups."""
    words = ("--realise=hardware --lane=oc --fuse=mb+oh,mb_oh+ow --register=mb_oh_ow:64,oc:64 --reduce=kh,kw,ic "
             "--group=mb_oh_ow:128,oc:64,ic:64 --shared=src,wei --instruction=wgmma_m64n64k16_bf16 --buffers=")
    line = LAYERS["3x3, 256 channels, 14"]
    plain, short, shared = (expected(line, words + x) for x in ("4", "2", "4 --cluster=oc:2"))
    assert short[0] > plain[0] != shared[0]
    assert all(x * share == pytest.approx(plain[0] * plain[1]) for x, share in (short, shared))


def test_explain_says_it() -> None:
    line = LAYERS["3x3, 64 channels, 56"]
    cycles, share = expected(line)
    with one_table():
        (found,) = expected_lines(made(line))
    assert found == ("expected", f"{cycles:,.0f} cycles by the model: {share:.0%} of the multiply-adds of all units")


def test_other_kernels_have_no_estimate_in_cycles() -> None:
    with one_table():
        assert expected_by_engine(made("mb1ic8iw8oc8ow8kw1", "--lane=oc --realise=mask --group=oc:8,ow:8")) is None
