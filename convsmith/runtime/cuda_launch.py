"""Launches of CUDA's driver: of a grid of groups, or of clusters of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convsmith.codegen.artifact import Launch

__all__ = ["Start", "starting"]

Start = Callable[[int, int], Any]
"""Starts a kernel on a stream, with the addresses of its arguments at an address; returns the driver's answer."""


def starting(driver: Any, function: Any, launch: Launch) -> Start:
    """Return what starts a ``function`` of the ``driver``; only one thread at a time may call it."""
    if launch.cluster:
        return _clusters(driver, function, launch)
    sizes = (function, *launch.grid, *launch.group, launch.shared)
    return lambda stream, places: driver.cuLaunchKernel(*sizes, stream, places, 0)


def _clusters(driver: Any, function: Any, launch: Launch) -> Start:
    attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = launch.cluster
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value = value
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.group
    config.sharedMemBytes = launch.shared
    config.attrs, config.numAttrs = [attribute], 1

    def start(stream: int, places: int) -> Any:
        config.hStream = stream
        return driver.cuLaunchKernelEx(config, function, places, 0)

    return start
