"""Problems: what is to be computed, as pure data, and the numpy reference that says what the right numbers are."""

from __future__ import annotations

from convsmith.problem.conv import Conv
from convsmith.problem.post_ops import PostOp
from convsmith.problem.reference import conv_reference

__all__ = ["Conv", "PostOp", "conv_reference"]
