"""Which problems can be compiled; the rest of what `convsmith.problem` knows has a numpy reference only."""

from __future__ import annotations

from convsmith.build.naive import EPILOGUES
from convsmith.diag.errors import UnsupportedError
from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.types import print_types

__all__ = ["check_available"]


def check_available(problem: Conv) -> None:
    """UnsupportedError where no kernel can be made of the problem: the message names what can be had."""
    if problem.deconv:
        raise _fail("--deconv is not available; available: convolutions")
    if not problem.forward:
        raise _fail(f"--dir: {problem.dir} is not available; available: FWD_B, FWD_D, FWD_I")
    if problem.dt != ("f32", "f32", "f32") or problem.bia_dt:
        types = print_types((*problem.dt, problem.bia_dt) if problem.bia_dt else problem.dt)
        raise _fail(f"--dt: {types} is not available; available: f32")
    if problem.scales or problem.zero_points:
        raise _fail("--attr-scales and --attr-zero-points are not available; available: --attr-post-ops")
    for op in problem.post_ops:
        if not isinstance(op, Eltwise) or op.alg not in EPILOGUES or op.scale != 1:
            raise _fail(f"post-op {op} is not available; available are {', '.join(EPILOGUES)}")


def _fail(message: str) -> UnsupportedError:
    return UnsupportedError(message, code="unsupported-option")
