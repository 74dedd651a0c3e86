"""The drivers of devices, by the names of their runtimes."""

from __future__ import annotations

from convsmith.exporter.cuda_driver import CudaDriver
from convsmith.exporter.driver import Driver
from convsmith.exporter.opencl_driver import OpenClDriver
from convsmith.machine.base import Machine

__all__ = ["driver_of", "has_driver"]

_DRIVERS: dict[str, Driver] = {"cuda": CudaDriver(), "opencl": OpenClDriver()}


def has_driver(machine: Machine) -> bool:
    """Return whether programs of C launch the kernels of a device; a page of a browser launches others."""
    return machine.device is not None and machine.device.runtime in _DRIVERS


def driver_of(machine: Machine) -> Driver:
    """Return the C of the driver that runs the kernels of a device."""
    assert machine.device is not None
    return _DRIVERS[machine.device.runtime]
