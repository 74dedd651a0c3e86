"""Describes a kernel for a device for `explain`: its groups and threads, its memory, and the groups that fit a unit."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from convsmith.codegen.artifact import Artifact, Launch
from convsmith.compiler.rewritten import Lowered
from convsmith.machine.device import ComputeUnits, Device
from convsmith.measure.roofline import bytes_of_arrays
from convsmith.problem.problem import Problem
from convsmith.problem.types import TYPES
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.text import decisions
from convsmith.tune.costs.verdict import MIN_GAIN
from convsmith.tune.devices.device_parts import expected_lines, parts_lines

__all__ = ["device_lines", "device_roofline", "device_verdict"]


def device_lines(plan: Plan, low: Lowered, artifact: Artifact) -> Iterator[tuple[str, str]]:
    """Yield the decisions of the plan, and the launch of each kernel in the order of a call, with its occupancy."""
    device = plan.machine.device
    assert device is not None
    yield from decisions(plan)
    yield from parts_lines(plan)
    yield from expected_lines(plan)
    for k in (*low.before, low.kernel, *low.after):
        symbol = plan.symbol("" if k is low.kernel else k.name)
        launch = low.launched[symbol][1]
        threads = prod(launch.group)
        yield "launch", (
            f"{k.name}: {prod(launch.grid)} groups ({_extents(launch.grid)}) of {threads} threads "
            f"({_extents(launch.group)}), {launch.shared} bytes of shared memory each"
        )
        registers = int(artifact.notes.get(f"registers of {symbol}", "0")) or launch.registers
        yield "occupancy", resident(launch, device, registers)


def resident(launch: Launch, device: Device, registers: int = 0) -> str:
    """Return the number of groups of a launch that reside on a unit of the device at a time, and the limiting resource.
    ``registers`` counts the registers of a thread; 0 if no assembler has reported it and the launch does not state it.
    """
    units, threads = device.units, prod(launch.group)
    warp = min(device.warps, default=1)
    limits = units.residing(-(-threads // warp) * warp, launch.shared, registers)
    groups = min(limits.values())
    cause = next(name for name, most in limits.items() if most == groups)
    share = min(groups * threads / units.threads, 1.0)
    known = "" if registers else "; the driver allocates registers"
    number = "1 group resides" if groups == 1 else f"{groups} groups reside"
    return f"{number} on each of {units.count} units (limit: {cause}), {share:.0%} of its threads{known}"


def device_roofline(problem: Problem, config: Config, units: ComputeUnits) -> Iterator[tuple[str, str]]:
    """Yield the bounds of the device by its data sheet, in cycles: by the multiply-adds of the config's kind, and by
    moving all arrays once.
    """
    if not units.multiply_adds:
        yield "roofline", f"not known: {config.target} is code for devices of any rate"
        return
    rate, kind, products, moved = _cycles(problem, config, units)
    side = _side(products, moved)
    yield "roofline", (
        f"by the data sheet, in a cycle: {rate} multiply-adds of {kind} on each of {units.count} units, "
        f"{units.memory_bytes} bytes of memory"
    )
    yield "", f"bound by {side}: at least {max(products, moved):,.0f} cycles"


def device_verdict(problem: Problem, config: Config, launch: Launch, units: ComputeUnits) -> str:
    """Return the bound of a device's main kernel by the data sheet, a recommendation, and its gain."""
    if not units.multiply_adds:
        return f"the bound is not known, as {config.target} is code for devices of any rate: --target names a level"
    _, _, products, moved = _cycles(problem, config, units)
    bound, groups = f"bound by {_side(products, moved)} by the data sheet", prod(launch.grid)
    turns = units.turns(groups)
    idle = 1 - 1 / units.excess(groups)
    if idle >= MIN_GAIN:
        way = "a larger batch, smaller tiles of a group, or --split" if turns == 1 else "other tiles of a group"
        return f"{bound}: {groups} groups leave some of {units.count} units idle; {way} takes up to {idle:.0%} less"
    if products < moved:
        return f"{bound}: a smaller type, or a chain with its neighbours, moves fewer; half of them take 50% less"
    if not config.instruction and units.of_fragments > units.multiply_adds:
        gain = 1 - units.multiply_adds / units.of_fragments
        return f"{bound}: --dt=bf16, where its precision suffices, takes up to {gain:.0%} less by fragments"
    return f"{bound}: all units have work, and nothing on the data sheet gains {MIN_GAIN:.0%}"


def _cycles(problem: Problem, config: Config, units: ComputeUnits) -> tuple[int, str, float, float]:
    """Return the multiply-adds of a unit per cycle, their kind, and the minimum cycles for products and for bytes."""
    rate, kind = units.multiply_adds, "f32"
    if config.instruction:
        bits = TYPES[problem.types[0]].bits
        rate, kind = units.of_fragments * 16 // bits, f"fragments of {bits}-bit elements"
    products = problem.flops_real / (2 * rate * units.count)
    return rate, kind, products, bytes_of_arrays(problem) / units.memory_bytes


def _side(products: float, moved: float) -> str:
    return "the multiply-adds" if products >= moved else "the bytes"


def _extents(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
