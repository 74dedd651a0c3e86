"""Facts of devices: levels of threads, memories of tiles, and that facts of CPUs do not mention them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.machine.base import DEVICE_TILE_LEVELS, Machine
from convsmith.machine.registry import device_targets, host_target, known_targets, target


@pytest.mark.parametrize("machine", device_targets(), ids=lambda t: t.name)
def test_a_device_has_levels_of_threads_and_of_tiles(machine: Machine) -> None:
    device = machine.device
    assert device is not None and target(machine.name) is machine is host_target(machine.name)
    assert [x.name for x in device.levels] == ["grid", "group", "warp", "lane"][: 4 if device.warps else 2]
    assert max(device.group) <= device.threads <= device.units.threads
    assert device.shared.bytes <= device.units.shared
    levels = {x.name: x.holders for x in machine.levels}
    assert tuple(levels) == DEVICE_TILE_LEVELS
    assert levels["group"] == (device.shared,) and levels["register"] == machine.register_files
    assert f"{device.shared.bytes >> 10} KiB" in str(levels["group"][0])
    row = machine.row("f32", "f32", "f32")
    assert row is not None and machine.width(row.kernel.params[0].dtype) == row.lanes == 1


def test_a_device_with_warps_numbers_their_lanes() -> None:
    device = device_targets()[0].device
    assert device is not None
    warped = replace(device, warps=(32, 16), threads=256)
    assert [(x.name, x.most) for x in warped.levels[2:]] == [("warp", (16,)), ("lane", (32,))]


def test_levels_of_cpus_have_no_device() -> None:
    assert all(t.device is None for t in known_targets())
    assert not {t.name for t in known_targets()} & {t.name for t in device_targets()}


@pytest.mark.parametrize(("level", "kibibytes"), [("sm_80", 163), ("sm_86", 99), ("sm_89", 99), ("sm_90a", 227)])
def test_a_group_has_the_shared_memory_of_its_generation(level: str, kibibytes: int) -> None:
    device = target(level).device
    assert device is not None and device.shared.bytes == kibibytes << 10


def test_products_of_8_bit_floats_exist_from_sm_89_on() -> None:
    small = {t.name for t in device_targets() if t.fragment_rows("f8_e4m3", "f8_e4m3", "f32")}
    assert small == {"sm_89", "sm_90a"}
