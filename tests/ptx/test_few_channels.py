"""Convolutions with few channels: threads hold a strip of pixels, and load an element once for its taps; warps multiply
fragments of pixels whose channels are padded in shared memory.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.devices.device import device_config
from ptx.test_convolutions import check, made

TYPES = "--stag=axb --dtag=axb --dt=bf16"
DEPTHWISE = f"{TYPES} g32mb2ic32ih14oc32oh14kh7ph3"
FEW = f"{TYPES} g8mb2ic32ih14oc32oh14kh3ph1"
LARGE_DEPTHWISE = f"{TYPES} g96mb32ic96ih56oc96oh56kh7ph3"
LARGE_FEW = f"{TYPES} --accuracy=strict g32mb32ic128ih56oc128oh56kh3ph1"


def config_of(line: str, level: str = "sm_90a") -> Config:
    """Return the default config of a problem."""
    return device_config(parse_problem(line).canonical(), target(level))


def main_of(line: str, level: str) -> str:
    """Return the PTX of the main kernel."""
    text = made(line, "", level).notes["ptx"]
    return text[text.index(".entry convsmith(") :].partition("\n}")[0]


def counts(line: str, level: str = "sm_90a") -> Counter[str]:
    """Return how often loads, stores, conversions and products stand in the main kernel."""
    return Counter(re.findall(r"\s((?:ld|st)\.(?:shared|global)\S+|fma\S+|cvt\.u32\.u16)\s", main_of(line, level)))


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(6)
@pytest.mark.parametrize("line", [
    DEPTHWISE, FEW, f"{TYPES} g8mb1ic16ih9oc16oh5kh3sh2ph1", f"{TYPES} g6mb1ic18ih5oc18oh5kh3ph1",
    "--dir=BWD_D --stag=axb --dtag=axb --dt=bf16 g8mb1ic32ih6oc32oh6kh3ph1",
    "--stag=axb --dtag=axb --dt=s8:s8:s32 g8mb1ic32ih6oc32oh6kh3ph1",
])  # fmt: skip
def test_kernels_are_exact_under_four_schedules(line: str) -> None:
    check(line, "", "sm_80")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "words"), [
    (DEPTHWISE, "--lane=g --register=g:4,ow:7 --group=g:16,ow:7,oh:14,kh:7,kw:7 --vectors=g:4"),
    (FEW, "--lane=oc --register=oc:4,ow:7,oh:2 --order=mb,oh,ow,g --group=oc:4,g:8,ow:14,oh:4,kh:3,kw:3,ic:4 "
          "--vectors=oc:4,ic:4"),
])  # fmt: skip
def test_strips_of_pixels_are_exact_under_four_schedules(line: str, words: str) -> None:
    check(line, f"--target=sm_90a --reduce=kh,kw,ic --realise=pad_copy --pack=wei --shared=src,wei {words}", "sm_90a")


STEM = "--stag=axb --wtag=axb --dtag=axb --dt=bf16"
LARGE_STEM = f"{STEM} mb32ic3ih224oc64oh112kh7sh2ph3"
FRAGMENTS = "--lane=oc --reduce=kh,kw,ic --realise=pad_copy --pack= --shared=src,wei --pad=src:8,wei:8"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", ["sm_80", "sm_90a"])
def test_a_stem_copies_all_rows_of_its_window_once(level: str) -> None:
    config = config_of(LARGE_STEM, level)
    assert config.instruction == "mma_m16n8k16_bf16" and config.buffers == 1
    assert [config.group_size(n) for n in ("ic", "kw", "kh")] == [4, 8, 7]


def test_fragments_of_padded_channels_are_loaded_as_matrices() -> None:
    """A pixel is stored by one access, with a zero as its fourth channel; two pixels are a row of a matrix."""
    found = Counter(re.findall(r"\s(st\.shared\S+|ldmatrix\S+|ld\.shared\S+|mma\.sync)", main_of(LARGE_STEM, "sm_80")))
    assert found["mma.sync"] == 32 * 14 and 2 * found["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] < found["mma.sync"]
    assert {*found} <= {"mma.sync", "ldmatrix.sync.aligned.m8n8.x4.shared.b16", "st.shared.v2.b32"}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("line", [
    "mb1ic3ih17oc16oh8kh7sh2ph3", "mb1ic3ih12oc16oh12kh3ph1", "mb2ic1ih12oc16oh12kh5ph2", "mb1ic6ih9oc16oh9kh3ph1",
    "mb1ic5ih18oc32oh9kh3sh2ph1", "g2mb1ic6ih12oc32oh12kh3ph1",
])  # fmt: skip
def test_stems_are_exact_under_four_schedules(line: str) -> None:
    check(f"{STEM} {line}", "", "sm_80")


def test_a_window_of_padded_channels_is_exact_under_four_schedules() -> None:
    tiles = "--register=oc:64,oh:2,ow:16 --group=oc:64,oh:4,ow:16,ic:4,kw:8,kh:7 --instruction=mma_m16n8k16_bf16"
    check(f"{STEM} mb1ic3ih32oc64oh16kh7sh2ph3", f"--target=sm_90a {FRAGMENTS} {tiles}", "sm_90a")


def test_bytes_of_few_channels_are_padded_too() -> None:
    check("--stag=axb --wtag=axb --dtag=axb --dt=u8:s8:s32 mb1ic3ih17oc16oh8kh7sh2ph3", "", "sm_80")
