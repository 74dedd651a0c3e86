"""Permissions that the system grants a process only on request, and the requests.

An artifact names the permissions that its code needs. A new permission is a row of `_REQUESTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.system import SYSTEM

__all__ = ["obtain_permissions"]

_ARCH_PRCTL = 158
_REQUEST_STATE = 0x1023
_TILE_DATA = 18
"""The system call of x86-64, its request ARCH_REQ_XCOMP_PERM, and the number of the state of tile registers."""


def _request_amx() -> bool:
    return bool(SYSTEM.c_library.syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0)


_REQUESTS: dict[str, Callable[[], bool]] = {"amx": _request_amx}
"""The function that requests each permission; it returns whether the process has it from then on."""


def obtain_permissions(artifact: Artifact) -> None:
    """Request the permissions of an artifact. UnsupportedError if one is unknown, or the system refuses it."""
    for name in artifact.permissions:
        if name not in _REQUESTS:
            raise UnsupportedError(
                f"kernel {artifact.problem!r} needs the permission {name!r}, which this convsmith cannot ask for; it "
                f"asks for {', '.join(_REQUESTS)}",
                code="permission",
            )
        if not _is_granted(name):
            raise UnsupportedError(
                f"kernel {artifact.problem!r} is made for {artifact.target}: this CPU has it, but the system does not "
                f"let this process use it (permission {name!r}); legal are levels that do not need it",
                code="target",
            )


@cache
def _is_granted(name: str) -> bool:
    return _REQUESTS[name]()
