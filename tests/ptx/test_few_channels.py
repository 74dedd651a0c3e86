"""Convolutions with few channels a group: threads hold a strip of pixels, and load an element once for its taps."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.device import device_config
from ptx.test_convolutions import check, made

TYPES = "--stag=axb --dtag=axb --dt=bf16"
DEPTHWISE = f"{TYPES} g32mb2ic32ih14oc32oh14kh7ph3"
FEW = f"{TYPES} g8mb2ic32ih14oc32oh14kh3ph1"
LARGE_DEPTHWISE = f"{TYPES} g96mb32ic96ih56oc96oh56kh7ph3"
LARGE_FEW = f"{TYPES} g32mb32ic128ih56oc128oh56kh3ph1"


def config_of(line: str, level: str = "sm_90a") -> Config:
    """Return the default config of a problem."""
    return device_config(parse_problem(line).canonical(), target(level))


def counts(line: str, level: str = "sm_90a") -> Counter[str]:
    """Return how often loads, stores, conversions and products stand in the main kernel."""
    text = made(line, "", level).notes["ptx"]
    main = text[text.index(".entry convsmith(") :].partition("\n}")[0]
    return Counter(re.findall(r"\s((?:ld|st)\.(?:shared|global)\S+|fma\S+|cvt\.u32\.u16)\s", main))


@pytest.mark.parametrize("line", [LARGE_DEPTHWISE, LARGE_FEW])
def test_an_element_is_loaded_once_for_all_taps_of_a_row(line: str) -> None:
    found = counts(line)
    loads = {name: n for name, n in found.items() if name.startswith("ld.shared")}
    assert {*loads} <= {"ld.shared.v2.b32", "ld.shared.v4.b32"} and found["fma.rn.f32"] >= 8 * sum(loads.values())
    assert not found["cvt.u32.u16"] and not found["st.global.b16"]


def test_each_thread_has_all_channels_of_a_group_and_neighbours_the_next_group() -> None:
    config = config_of(LARGE_FEW)
    assert (config.lane, config.order[-1], config.size("oc"), config.size("g")) == ("oc", "g", 4, 1)
    assert config.group_size("g") == 8


def test_tiles_divide_an_image_of_fourteen_pixels() -> None:
    config = config_of(f"{TYPES} g384mb32ic384ih14oc384oh14kh3ph1")
    assert config.staged("pack") == ("wei",) and 7 in (config.size("oh"), config.size("ow"))


@pytest.mark.parametrize("line", [
    DEPTHWISE, FEW, f"{TYPES} g8mb1ic16ih9oc16oh5kh3sh2ph1", f"{TYPES} g6mb1ic18ih5oc18oh5kh3ph1",
    "--dir=BWD_D --stag=axb --dtag=axb --dt=bf16 g8mb1ic32ih6oc32oh6kh3ph1",
    "--stag=axb --dtag=axb --dt=s8:s8:s32 g8mb1ic32ih6oc32oh6kh3ph1",
])  # fmt: skip
def test_kernels_are_exact_under_four_schedules(line: str) -> None:
    check(line, "", "sm_80")


@pytest.mark.parametrize(("line", "words"), [
    (DEPTHWISE, "--lane=g --register=g:4,ow:7 --group=g:16,ow:7,oh:14,kh:7,kw:7 --vectors=g:4"),
    (FEW, "--lane=oc --register=oc:4,ow:7,oh:2 --order=mb,oh,ow,g --group=oc:4,g:8,ow:14,oh:4,kh:3,kw:3,ic:4 "
          "--vectors=oc:4,ic:4"),
])  # fmt: skip
def test_strips_of_pixels_are_exact_under_four_schedules(line: str, words: str) -> None:
    check(line, f"--target=sm_90a --reduce=kh,kw,ic --realise=pad_copy --pack=wei --shared=src,wei {words}", "sm_90a")
