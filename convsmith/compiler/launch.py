"""The launch of a kernel: on threads of the host, or as a grid of a device, within its limits."""

from __future__ import annotations

from math import prod

from convsmith.codegen.artifact import AXES, Launch, MapArgument, host_launch
from convsmith.codegen.barriers import word_bytes
from convsmith.codegen.geometry import Geometry, geometry, tensor_maps
from convsmith.diag.errors import ConfigError
from convsmith.ir.stmt import Kernel
from convsmith.machine.base import Machine
from convsmith.machine.device import Device

__all__ = ["launch_of"]


def launch_of(kernel: Kernel, threads: int, machine: Machine, registers: int = 0) -> Launch:
    """Return the launch of ``kernel`` on ``machine``, with ``threads`` host threads unless the machine is a device; a
    thread of a device has so many ``registers``, or if that is 0 the usual number. ConfigError if the kernel exceeds a
    limit of the device.
    """
    if machine.device is None:
        return host_launch(threads)
    sizes = geometry(kernel, word_bytes(kernel, machine.device.dialect))
    _check_limits(kernel, sizes, machine.name, machine.device)
    maps = tuple(MapArgument(b.name, b.dtype.name, m.box[0] * b.dtype.bytes, m) for b, m in tensor_maps(kernel))
    return Launch(
        "grid", runtime=machine.device.runtime, grid=sizes.grid, group=sizes.group, shared=sizes.shared, maps=maps,
        registers=registers, cluster=sizes.cluster,
    )  # fmt: skip


def _check_limits(kernel: Kernel, sizes: Geometry, name: str, device: Device) -> None:
    threads = prod(sizes.group)
    if threads > device.threads:
        raise ConfigError("group", f"{kernel.name}: groups of {threads} threads; {name} has at most {device.threads}")
    for code, extents, limits in (("grid", sizes.grid, device.grid), ("group", sizes.group, device.group)):
        for axis, size, most in zip(AXES, extents, limits):
            if size > most:
                raise ConfigError(
                    code, f"{kernel.name}: the {code} has {size} along {axis}; {name} has at most {most} there"
                )
    most = device.shared.bytes
    if sizes.shared > most:
        raise ConfigError("shared", f"{kernel.name}: {sizes.shared} bytes of shared memory; {name} has {most}")
