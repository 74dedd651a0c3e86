"""Describes a kernel for a device for `explain`: its groups and threads, its memory, and the groups that fit a unit."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.codegen.artifact import Launch
from convsmith.compiler.driver import Lowered
from convsmith.compiler.launch import launch_of
from convsmith.machine.device import Device
from convsmith.plan.device import DevicePlan

__all__ = ["device_lines"]


def device_lines(plan: DevicePlan, low: Lowered) -> Iterator[tuple[str, str]]:
    """Yield the decisions of the plan, and the launch of each kernel in the order of a call."""
    device = plan.machine.device
    assert device is not None
    yield from plan.decisions()
    for k in (*low.before, low.kernel, *low.after):
        launch = launch_of(k, 1, plan.machine)
        threads = prod(launch.group)
        yield "launch", (
            f"{k.name}: {prod(launch.grid)} groups ({_extents(launch.grid)}) of {threads} threads "
            f"({_extents(launch.group)}), {launch.shared} bytes of shared memory each"
        )
        yield "", resident(launch, device)


def resident(launch: Launch, device: Device) -> str:
    """Return how many groups of a launch reside on a unit of the device at a time, and what limits them."""
    units, threads = device.units, prod(launch.group)
    limits = {"threads": units.threads // threads}
    if launch.shared:
        limits["shared memory"] = units.shared // launch.shared
    groups = min(limits.values())
    cause = next(name for name, most in limits.items() if most == groups)
    share = min(groups * threads / units.threads, 1.0)
    return f"{groups} groups reside on each of {units.count} units ({cause} limit them): {share:.0%} of its threads"


def _extents(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
