"""The level of this machine's NVIDIA GPU, as its driver reports it."""

from __future__ import annotations

import ctypes
import re
from functools import cache

from convsmith.diag.errors import UnsupportedError
from convsmith.machine.base import Machine
from convsmith.machine.nvidia.levels import LEVELS

__all__ = ["capability", "level_here"]

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_MAJOR, _MINOR = 75, 76
"""The driver's numbers of the attributes that hold the compute capability."""


@cache
def capability() -> tuple[int, int]:
    """Return the compute capability of the first GPU. UnsupportedError if there is no driver or no GPU."""
    driver = _driver()
    device, found = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
    for attribute, value in zip((_MAJOR, _MINOR), found):
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    if failed:
        raise UnsupportedError(f"the driver of NVIDIA's GPUs finds no device: status {failed}", code="cuda")
    return found[0].value, found[1].value


def _driver() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    raise UnsupportedError("this machine has no driver of NVIDIA's GPUs", code="cuda")


def level_here() -> Machine:
    """Return the newest level that the GPU of this machine runs. UnsupportedError if there is no such level."""
    have = capability()
    for level in LEVELS:
        major, minor, alone = re.fullmatch(r"sm_(\d+)(\d)(a?)", level.name).groups()  # type: ignore[union-attr]
        needed = int(major), int(minor)
        if have == needed if alone else have >= needed:
            return level
    raise UnsupportedError(
        f"the GPU of this machine is sm_{have[0]}{have[1]}; legal are {', '.join(t.name for t in reversed(LEVELS))} "
        "and later ones",
        code="cuda",
    )
